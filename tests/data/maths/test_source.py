"""Mathematical problems: correct answers, distributions, tokens, held-out examples, curricula."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch

from harken import recipe
from harken.data.batch import IGNORE
from harken.data.maths.batch import Curriculum
from harken.data.maths.integers import IntegerProblem, base_divisor
from harken.data.maths.integrals import IntegralProblem
from harken.data.maths.matrices import MatrixProblem
from harken.data.maths.problem import Distribution, Examples, IndexedRng, Problem, UniformRng
from harken.data.maths.source import PROBLEMS, MathsSource
from harken.data.rng import rng_for
from harken.errors import BadInput, BadSetting

UNIFORM, LOG_UNIFORM = (Distribution({name: 1.0}, {"natural": 1.0}) for name in ("uniform", "log-uniform"))
DISTRIBUTIONS = [
    UNIFORM,
    LOG_UNIFORM,
    Distribution({"log-uniform": 1.0}, {"log-uniform": 1.0}),
    Distribution({"uniform": 1.0}, {"uniform": 1.0}),
]
ORACLES = {
    "gcd": math.gcd,
    "addition": lambda a, b: a + b,
    "multiplication": lambda a, b: a * b,
    "modular-addition": lambda a, b: (a + b) % 97,
    "modular-multiplication": lambda a, b: a * b % 97,
    "fractions": lambda a, b, c, d: Fraction(a, b) + Fraction(c, d),
}


def draw(problem: Problem, n: int, distribution: Distribution = UNIFORM) -> Examples:
    return problem.draw(UniformRng(rng_for(0, 9)), n, distribution)


def to_texts(problem: Problem, examples: Examples) -> list[tuple[str, str]]:
    rows = zip(examples.source.tolist(), examples.target.tolist(), examples.lengths.tolist(), strict=True)
    return [
        (problem.format_source(source[:source_length]), problem.format_target(target[:target_length]))
        for source, target, (source_length, target_length) in rows
    ]


def integers(text: str) -> list[int]:
    return [int(piece) for piece in "".join(c if c.isdigit() else " " for c in text).split()]


# --- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [2, 10, 1000])
@pytest.mark.parametrize("name", ORACLES)
def test_answers_equal_exact_arithmetic(name, base):
    problem = IntegerProblem(name, base=base)
    for source, target in to_texts(problem, draw(problem, 200, LOG_UNIFORM)):
        outcome = ORACLES[name](*integers(source))
        assert target == (f"{outcome.numerator}/{outcome.denominator}" if name == "fractions" else str(outcome))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_gcd_that_is_drawn_first_is_the_gcd_of_the_operands(distribution):
    problem = IntegerProblem("gcd", base=7, max_operand=5000)
    examples = draw(problem, 2000, distribution)
    pairs = [integers(source) for source, _ in to_texts(problem, examples)]
    assert all(1 <= x <= 5000 for pair in pairs for x in pair)
    assert [math.gcd(*pair) for pair in pairs] == examples.group.tolist()


def test_an_integer_is_a_sign_and_its_digits():
    problem = IntegerProblem("gcd", base=10)
    assert problem.join_tokens(problem.parse_source("160 120")) == "+ 1 6 0 + 1 2 0"
    ids, lengths = problem.encode_integers(torch.tensor([160, -7, 0]), 5)
    assert [problem.join_tokens(row[:n]) for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)] == [
        "+ 1 6 0",
        "- 7",
        "+ 0",
    ]


@pytest.mark.parametrize("base", [2, 3, 10, 60, 2401])
def test_batched_encoding_equals_single_encoding(base):
    problem = IntegerProblem("gcd", base=base)
    x = torch.tensor([1, base - 1, base, base**2 - 1, base**2, 999_999, 1_000_000])
    ids, lengths = problem.encode_integers(x, problem.n_tokens(max(10**6, base**2)))
    single = [problem.encode_integer(n) for n in x.tolist()]
    assert [row[:n] for row, n in zip(ids.tolist(), lengths.tolist(), strict=True)] == single
    assert [problem.decode_integers(row) for row in single] == [[n] for n in x.tolist()]


def test_operands_follow_their_distribution():
    problem = IntegerProblem("gcd", max_operand=10**6)

    def p_small(distribution: Distribution) -> float:
        sources = [source for source, _ in to_texts(problem, draw(problem, 3000, distribution))]
        return float(np.mean([x < 1000 for source in sources for x in integers(source)]))

    assert p_small(UNIFORM) == pytest.approx(0.001, abs=0.002)
    assert p_small(LOG_UNIFORM) == pytest.approx(0.5, abs=0.03)  # log(1000) is half of log(10^6)
    assert p_small(Distribution({"uniform": 3.0, "log-uniform": 1.0}, {"natural": 1.0})) == pytest.approx(
        0.125, abs=0.03
    )


def test_outcomes_follow_their_distribution():
    problem = IntegerProblem("gcd", classes=100)

    def p_one(outcomes: dict[str, float]) -> float:
        return float((draw(problem, 8000, Distribution({"uniform": 1.0}, outcomes)).group == 1).double().mean())

    harmonic = sum(1 / k for k in range(1, 101))
    assert p_one({"natural": 1.0}) == pytest.approx(6 / math.pi**2, abs=0.02)
    assert p_one({"uniform": 1.0}) == pytest.approx(0.01, abs=0.005)
    assert p_one({"log-uniform": 1.0}) == pytest.approx(1 / harmonic, abs=0.02)
    assert p_one({"natural": 1.0, "uniform": 1.0}) == pytest.approx(3 / math.pi**2 + 0.005, abs=0.02)


@pytest.mark.parametrize(
    ("base", "n_learnable", "accuracy"),
    [(2, 7, 81.1), (3, 5, 68.4), (6, 20, 91.2), (10, 15, 84.4), (30, 34, 94.9), (31, 2, 60.9), (210, 46, 96.9)],
)
def test_gcds_revealed_by_the_base_match_the_published_numbers(base, n_learnable, accuracy):
    revealed = [k for k in range(1, 101) if base_divisor(k, base) == k]
    assert revealed == [k for k in range(1, 101) if set(sympy.primefactors(k)) <= set(sympy.primefactors(base))]
    natural = sum(6 / (math.pi * k) ** 2 for k in revealed)
    assert (len(revealed), round(100 * natural, 1)) == (n_learnable, accuracy)


# --- matrices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["P10", "P1000", "B1999"])
@pytest.mark.parametrize("distribution", [UNIFORM, LOG_UNIFORM])
def test_matrix_answers_equal_numpy(encoding, distribution):
    for name, dimension in (("transposition", 4), ("eigenvalues", 3)):
        problem = MatrixProblem(name, dimension=dimension, encoding=encoding)
        for source, target in to_texts(problem, draw(problem, 40, distribution)):
            matrix = np.array([[float(x) for x in row.split()] for row in source.split(";")])
            if name == "transposition":
                assert target == "; ".join(" ".join(f"{x:g}" for x in row) for row in matrix.T)
            else:
                expected = np.linalg.eigvalsh(matrix)[::-1]
                np.testing.assert_allclose([float(x) for x in target.split()], expected, rtol=5.1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("encoding", "tokens"),
    [("P10", "+ 3 1 4 E-2 - 5 0 0 E-1"), ("P1000", "+ 314 E-2 - 500 E-1"), ("B1999", "314 E-2 -500 E-1")],
)
def test_a_real_number_is_encoded_as_documented(encoding, tokens):
    reals = MatrixProblem("eigenvalues", dimension=2, encoding=encoding)
    x = torch.tensor([[3.14159, -50.0]], dtype=torch.float64)
    ids = reals.encode_reals(*reals.to_scientific(x))[0].tolist()
    assert " ".join(reals.tokens[i - 2] for i in ids) == tokens
    assert reals.decode_reals(ids) == [3.14, -50.0]


def test_numbers_are_rounded_to_three_digits_and_clipped():
    reals = MatrixProblem("eigenvalues", dimension=2, encoding="P1000")
    x = torch.tensor([[0.0, 9.996, 0.00123456, -999.4, 1e-20, 1e300]], dtype=torch.float64)
    ids = reals.encode_reals(*reals.to_scientific(x))[0].tolist()
    assert reals.decode_reals(ids) == [0, 10.0, 0.00123, -999, 0, 999e9]


def test_eigenvalues_are_correct_within_five_percent_of_their_sum():
    problem = MatrixProblem("eigenvalues", dimension=2, encoding="P10")
    assert problem.is_correct("", "10.4 -9.6", "10 -10")
    assert not problem.is_correct("", "11 -10.1", "10 -10")
    assert not problem.is_correct("", "10", "10 -10")


# --- integrals --------------------------------------------------------------------------------------------------------


def test_the_derivative_of_an_answer_is_the_problem():
    problem, x = IntegralProblem(), sympy.Symbol("x")
    for source, target in to_texts(problem, draw(problem, 40, LOG_UNIFORM)):
        names = {"x": x, "ln": sympy.log}
        f, integral = (sympy.parse_expr(text, local_dict=names) for text in (source, target))
        assert sympy.simplify(sympy.diff(integral, x) - f) == 0


def test_exactly_the_antiderivatives_are_correct():
    problem = IntegralProblem()
    for source, target in to_texts(problem, draw(problem, 8)):
        assert problem.is_correct(source, f"{target} + 7", target)
        assert not problem.is_correct(source, f"{target} + x", target)
    assert problem.is_correct("2*sin(x)*cos(x)", "-1*cos(x)**2", "sin(x)**2")
    assert not problem.is_correct("2*x", "add x", "x**2")
    assert not problem.is_correct("2*x", "9**9**9", "x**2")


@pytest.mark.parametrize("base", ["9", "9*sin(2)", "-1/9", "9*x"])
def test_a_tower_of_powers_is_refused_quickly(base):
    tower = base
    for _ in range(5):
        tower = f"({tower})**99"
    start = time.perf_counter()
    assert not IntegralProblem().is_correct("2*x", tower, "x**2")
    assert time.perf_counter() - start < 5
    assert IntegralProblem().is_correct("99*9**99*x**98", "(9*x)**99", "")


def test_parsing_a_formatted_function_restores_its_tokens():
    problem = IntegralProblem()
    examples = draw(problem, 60)
    for ids, (length, _) in zip(examples.source.tolist(), examples.lengths.tolist(), strict=True):
        assert problem.parse_source(problem.format_source(ids[:length])) == ids[:length]


# --- user input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("gcd", text) for text in ("160", "a b", "1.5 2", "-5 5", "9" * 5000 + " 1")),
        *(("integrals", text) for text in ("2*y", "open(x)", "x.__class__", "(", "(" * 9999)),
        ("fractions", "1/2"),
        ("fractions", "1/0 + 1/2"),
        ("eigenvalues", "1 2 3"),
        ("eigenvalues", "1 2 3; 4 5 6; 7 8 9"),
        ("transposition", "1 2 3 4 5 6 7 8 x"),
    ],
)
def test_invalid_input_is_refused_with_an_example(name, text):
    with pytest.raises(BadInput, match=rf"maths:{name} accepts .*such as"):
        MathsSource(operation=name).problem().parse_source(text)


@pytest.mark.parametrize("name", PROBLEMS)
def test_encoding_a_shown_problem_restores_its_tokens(name):
    data = MathsSource(operation=name, valid=20, test=0).load_data()
    split, tokenizers = data.splits["valid"], data.tokenizers
    for n, (source, (target,)) in enumerate(zip(split.sources, split.references, strict=True)):
        assert tokenizers.encode_source(source).tolist() == [*split.source[n].tolist(), data.vocab[0] - 1]
        assert tokenizers.decode_target(tokenizers.encode_target(target)) == target


# --- splits and batches -----------------------------------------------------------------------------------------------


def trained_sources(batch: object) -> list[tuple[int, ...]]:
    """The sources of a batch that have targets."""
    rows = zip(batch.source.tolist(), batch.targets.tolist(), strict=True)
    return [tuple(source) for source, targets in rows if set(targets) != {IGNORE}]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_depends_only_on_seed_epoch_and_step(name):
    data = MathsSource(operation=name, valid=10, test=0, examples=64).load_data()
    batches = data.batches(8, 3)
    steps = [(0, 1), (0, 2), (1, 1), (0, 1)]
    first, next_step, next_epoch, repeated = (batches.batch(*step).tensors() for step in steps)
    rebuilt = data.batches(8, 3).batch(0, 1).tensors()
    assert all(torch.equal(first[k], repeated[k]) and torch.equal(first[k], rebuilt[k]) for k in first)
    other_seed = data.batches(8, 4).batch(0, 1).tensors()
    assert not any(torch.equal(first["source"], x["source"]) for x in (next_step, next_epoch, other_seed))


def test_targets_start_and_end_with_the_edge_token():
    data = MathsSource(valid=10, test=0).load_data()
    batch, edge = data.batches(50, 0).batch(0, 0), data.vocab[1] - 1
    rows = (x.tolist() for x in (batch.tokens, batch.targets, batch.source, batch.lengths))
    for tokens, padded_targets, source, length in zip(*rows, strict=True):
        targets = [t for t in padded_targets if t != IGNORE]
        assert (tokens[0], targets[-1]) == (edge, edge)
        assert tokens[1 : len(targets)] == targets[:-1]
        assert source[length - 1 :] == [edge] * (len(source) - length + 1)
        operands = integers(data.tokenizers.decode_source(source[: length - 1]))
        assert math.gcd(*operands) == int(data.tokenizers.decode_target(targets))
    assert batch.n_targets == int((batch.targets != IGNORE).sum())
    assert batch.slice_rows(0, 3).n_targets == int((batch.targets[:3] != IGNORE).sum())


def test_held_out_examples_are_never_trained_on_even_in_a_small_space():
    data = MathsSource(
        operation="modular-addition", max_operand=30, valid=40, test=40, examples=4000, operands="log-uniform"
    ).load_data()
    valid, test = ({frozenset(integers(s)) for s in split.sources} for split in data.splits.values())
    assert (len(valid), len(test)) == (40, 40)
    assert not valid & test
    batches, edge = data.batches(500, 0), data.vocab[0] - 1
    rows = [s for step in range(batches.steps) for s in map(list, trained_sources(batches.batch(0, step)))]
    trained = {frozenset(integers(data.tokenizers.decode_source(s[: s.index(edge)]))) for s in rows}
    assert not trained & (valid | test)
    assert len(trained) > 300  # of 465 - 80


def test_a_held_out_sum_of_fractions_is_not_trained_on_with_swapped_terms():
    data = MathsSource(operation="fractions", max_operand=6, valid=50, test=50, examples=4000).load_data()
    held_out = {s for split in data.splits.values() for s in split.sources}
    swapped = {" + ".join(reversed(s.split(" + "))) for s in held_out}
    batches, edge = data.batches(500, 0), data.vocab[0] - 1
    rows = [s for step in range(batches.steps) for s in map(list, trained_sources(batches.batch(0, step)))]
    trained = {data.tokenizers.decode_source(s[: s.index(edge)]) for s in rows}
    assert len(held_out) == 100
    assert not trained & (held_out | swapped)
    assert len(trained) > 800  # of 1,296


def test_the_held_out_splits_are_at_most_a_tenth_of_a_small_space():
    data = MathsSource(operation="modular-addition", max_operand=20, valid=2000, test=2000).load_data()
    assert [len(split) for split in data.splits.values()] == [20, 20]


def test_held_out_gcds_do_not_depend_on_the_training_distribution_and_are_balanced():
    uniform, log_uniform = (
        MathsSource(operands=name, valid=500, test=1000).load_data() for name in ("uniform", "log-uniform")
    )
    assert uniform.sha256 == log_uniform.sha256
    counts = np.bincount(list(map(int, uniform.splits["test"].groups)), minlength=101)[1:]
    assert counts.min() >= 1
    assert counts.max() < 30


def test_a_checksum_mismatch_of_the_held_out_examples_gives_a_notice():
    notices: list[str] = []
    MathsSource(valid=5, test=0, sha256="0" * 64).load_data(listen=lambda event, **facts: notices.append(facts["text"]))
    assert notices == ["maths:gcd: the held-out examples differ from data.sha256"]


# --- curriculum -------------------------------------------------------------------------------------------------------


def mean_log_operands(**settings: object) -> list[float]:
    """The mean logarithm of the operands in each of four epochs."""
    data = MathsSource(valid=0, test=0, examples=2000, curriculum=3, **settings).load_data()
    batches, means = data.batches(500, 0), []
    for epoch in range(4):
        rows = [s for step in range(4) for s in trained_sources(batches.batch(epoch, step))]
        texts = [data.tokenizers.decode_source(s[: s.index(data.vocab[0] - 1)]) for s in rows]
        means.append(float(np.mean([math.log(x) for text in texts for x in integers(text)])))
    return means


def test_a_curriculum_increases_the_operands_and_its_shuffle_does_not():
    ordered, shuffled = mean_log_operands(), mean_log_operands(shuffle_curriculum=True)
    assert ordered[0] < ordered[1] - 2 < ordered[2] - 4
    assert np.ptp(shuffled[:3]) < 0.5
    assert ordered[3] == shuffled[3]


@pytest.mark.parametrize("name", ["gcd", "fractions", "eigenvalues", "integrals"])
def test_a_curriculum_and_its_shuffle_have_the_same_examples(name):
    examples = []
    for shuffle in (False, True):
        source = MathsSource(operation=name, valid=0, test=0, examples=300, curriculum=3, shuffle_curriculum=shuffle)
        data, rows = source.load_data(), list[tuple[tuple[int, ...], ...]]()
        batches, edge = data.batches(25, 0), data.vocab[0] - 1
        for epoch, step in [(epoch, step) for epoch in range(3) for step in range(12)]:
            batch = batches.batch(epoch, step)
            rows += [tuple(tuple(x for x in side if x not in (edge, IGNORE)) for side in pair)
                     for pair in zip(batch.source.tolist(), batch.targets.tolist(), strict=True)]  # fmt: skip
        examples.append(rows)
    ordered, shuffled = examples
    assert ordered != shuffled
    assert sorted(ordered) == sorted(shuffled)
    assert len({*ordered}) > 600  # of 900


def test_indexed_random_numbers_are_uniform_and_uncorrelated():
    rng = IndexedRng(7, range(20_000))
    x = torch.cat([rng(20_000, 2, 2).flatten(1), rng(20_000)[:, None]], 1).numpy()
    assert x.min() >= 0
    assert x.max() < 1
    assert np.abs(np.corrcoef(np.concatenate([x, np.roll(x, 1, 0)], 1).T) - np.eye(10)).max() < 0.03
    for column in x.T:
        counts = np.bincount((column * 100).astype(int), minlength=100)
        assert ((counts - 200) ** 2 / 200).sum() < 170  # chi-squared with 99 degrees of freedom: p < 1e-5
    subset = IndexedRng(7, [5, 3])
    assert subset(2, 2, 2).flatten(1).tolist() == x[[5, 3], :4].tolist()
    assert IndexedRng(8, [5])(1, 4).tolist() != x[[5], :4].tolist()


def test_there_are_no_indices_without_a_curriculum_or_after_it():
    assert Curriculum().example_indices(range(0, 3), 10) == []
    assert Curriculum(2).example_indices(range(20, 30), 10) == []


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data.operands": "normal"}, r"data.operands = 'normal': accepted: uniform, log-uniform"),
        ({"data.operands": {"uniform": -1.0}}, "weights must be finite and not negative"),
        ({"data.operation": "gdc"}, "Did you mean gcd"),
        (
            {"data.operation": "addition", "data.outcomes": "uniform"},
            "a distribution of outcomes is supported only for gcd",
        ),
    ],
)
def test_an_invalid_setting_is_refused(settings, message):
    with pytest.raises(BadSetting, match=message):
        recipe.resolve(("override", {"data.kind": "maths", **settings}))


def test_outcomes_that_exceed_64_bits_are_refused():
    with pytest.raises(BadSetting, match="exceed 64 bits"):
        MathsSource(operation="multiplication", max_operand=10**12).load_data()


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gpu_draws_the_same_examples_as_a_cpu(name):
    data = MathsSource(operation=name, valid=50, test=0, outcomes="natural").load_data()
    on_cpu, on_gpu = data.batches(64, 0), data.batches(64, 0)
    on_gpu.device = torch.device("cuda")
    cpu_batch, gpu_batch = on_cpu.batch(1, 2), on_gpu.batch(1, 2)
    assert gpu_batch.tokens.is_cuda
    assert gpu_batch.n_targets == cpu_batch.n_targets
    length = cpu_batch.source.shape[1]
    same = gpu_batch.source[:, :length].cpu() == cpu_batch.source
    assert same.double().mean() > 0.999  # exp and eigenvalues may round differently


@pytest.mark.gpu
def test_training_on_a_gpu_uses_cuda_graphs_and_passes_its_audit(tmp_path):
    import harken

    tiny = {"model.d": 64, "model.layers": 1, "train.steps": 40, "train.batch": 64, "data.valid": 200, "data.test": 0}
    run = harken.train("maths:gcd", out=tmp_path / "run", settings={**tiny, "train.device": "cuda"})
    assert run.facts["audit"]["passed"]
