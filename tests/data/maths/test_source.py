"""Problems of mathematics: drawn by thousands, right by other people's arithmetic, and as often as the settings say."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch

from harken import recipe
from harken.data.batch import IGNORE, dice
from harken.data.maths.batch import Order
from harken.data.maths.integers import Integers, rule
from harken.data.maths.integrals import Integrals
from harken.data.maths.matrices import Matrices, Reals
from harken.data.maths.problem import Chance, Drawn, Law, Numbered, Problem, plain
from harken.data.maths.source import PROBLEMS, MathsSource
from harken.errors import BadInput, BadSetting

UNIFORM, LOGS = (Law({name: 1.0}, {"natural": 1.0}) for name in ("uniform", "log-uniform"))
LAWS = [UNIFORM, LOGS, Law({"log-uniform": 1.0}, {"log-uniform": 1.0}), Law({"uniform": 1.0}, {"uniform": 1.0})]
ORACLES = {
    "gcd": math.gcd,
    "addition": lambda a, b: a + b,
    "multiplication": lambda a, b: a * b,
    "modular-addition": lambda a, b: (a + b) % 97,
    "modular-multiplication": lambda a, b: a * b % 97,
    "fractions": lambda a, b, c, d: Fraction(a, b) + Fraction(c, d),
}


def drawn(problem: Problem, n: int, law: Law = UNIFORM, reach: torch.Tensor | None = None) -> Drawn:
    return problem.draw(Chance(dice(0, 9)), n, law, reach)


def texts(problem: Problem, found: Drawn) -> list[tuple[str, str]]:
    ends = found.lengths.tolist()
    rows = zip(found.source.tolist(), found.target.tolist(), ends, strict=True)
    return [(problem.asked(source[:long]), problem.said(target[:wide])) for source, target, (long, wide) in rows]


def numbers(text: str) -> list[int]:
    return [int(piece) for piece in "".join(c if c.isdigit() else " " for c in text).split()]


# --- whole numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [2, 10, 1000])
@pytest.mark.parametrize("name", ORACLES)
def test_answers_are_those_of_exact_arithmetic(name, base):
    problem = Integers(name, base=base)
    for source, target in texts(problem, drawn(problem, 200, LOGS)):
        found = ORACLES[name](*numbers(source))
        whole = f"{found.numerator}/{found.denominator}" if name == "fractions" else str(found)
        assert target == whole


@pytest.mark.parametrize("law", LAWS)
def test_a_gcd_drawn_first_is_the_gcd(law):
    problem = Integers("gcd", base=7, largest=5000)
    found = drawn(problem, 2000, law)
    pairs = [numbers(source) for source, _ in texts(problem, found)]
    assert all(1 <= x <= 5000 for pair in pairs for x in pair)
    assert [math.gcd(*pair) for pair in pairs] == found.group.tolist()


def test_a_number_is_a_sign_and_its_digits_the_first_one_first():
    problem = Integers("gcd", base=10)
    assert plain(problem.words, problem.read("160 120")) == "+ 1 6 0 + 1 2 0"
    ids, many = problem.write(torch.tensor([160, -7, 0]), 5)
    assert [plain(problem.words, row[:n]) for row, n in zip(ids.tolist(), many.tolist(), strict=True)] == [
        "+ 1 6 0",
        "- 7",
        "+ 0",
    ]


@pytest.mark.parametrize("base", [2, 3, 10, 60, 2401])
def test_what_is_written_at_once_is_what_is_written_one_by_one(base):
    problem = Integers("gcd", base=base)
    x = torch.tensor([1, base - 1, base, base**2 - 1, base**2, 999_999, 1_000_000])
    ids, many = problem.write(x, problem.width(max(10**6, base**2)))
    assert [row[:n] for row, n in zip(ids.tolist(), many.tolist(), strict=True)] == [problem.ids(n) for n in x.tolist()]
    assert [problem.numbers(problem.ids(n)) for n in x.tolist()] == [[n] for n in x.tolist()]


def test_operands_are_drawn_as_often_as_their_distribution_says():
    problem = Integers("gcd", largest=10**6)

    def below(law: Law) -> float:
        return float(np.mean([x < 1000 for s, _ in texts(problem, drawn(problem, 3000, law)) for x in numbers(s)]))

    assert below(UNIFORM) == pytest.approx(0.001, abs=0.002)
    assert below(LOGS) == pytest.approx(0.5, abs=0.03)  # log(1000) is half of log(10^6)
    assert below(Law({"uniform": 3.0, "log-uniform": 1.0}, {"natural": 1.0})) == pytest.approx(0.125, abs=0.03)


def test_outcomes_are_drawn_as_often_as_their_distribution_says():
    problem = Integers("gcd", classes=100)

    def ones(outcomes: dict[str, float]) -> float:
        return float((drawn(problem, 8000, Law({"uniform": 1.0}, outcomes)).group == 1).double().mean())

    harmonic = sum(1 / k for k in range(1, 101))
    assert ones({"natural": 1.0}) == pytest.approx(6 / math.pi**2, abs=0.02)
    assert ones({"uniform": 1.0}) == pytest.approx(0.01, abs=0.005)
    assert ones({"log-uniform": 1.0}) == pytest.approx(1 / harmonic, abs=0.02)
    assert ones({"natural": 1.0, "uniform": 1.0}) == pytest.approx(3 / math.pi**2 + 0.005, abs=0.02)


@pytest.mark.parametrize(
    ("base", "many", "accuracy"),
    [(2, 7, 81.1), (3, 5, 68.4), (6, 20, 91.2), (10, 15, 84.4), (30, 34, 94.9), (31, 2, 60.9), (210, 46, 96.9)],
)
def test_what_a_base_gives_away_is_what_is_known_of_it(base, many, accuracy):
    given = [k for k in range(1, 101) if rule(k, base) == k]
    assert given == [k for k in range(1, 101) if set(sympy.primefactors(k)) <= set(sympy.primefactors(base))]
    assert (len(given), round(100 * sum(6 / (math.pi * k) ** 2 for k in given), 1)) == (many, accuracy)


# --- matrices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["P10", "P1000", "B1999"])
@pytest.mark.parametrize("law", [UNIFORM, LOGS])
def test_matrices_are_answered_as_numpy_does(encoding, law):
    for name, dimension in (("transposition", 4), ("eigenvalues", 3)):
        problem = Matrices(name, dimension=dimension, encoding=encoding)
        for source, target in texts(problem, drawn(problem, 40, law)):
            matrix = np.array([[float(x) for x in row.split()] for row in source.split(";")])
            if name == "transposition":
                assert target == "; ".join(" ".join(f"{x:g}" for x in row) for row in matrix.T)
            else:
                known = np.linalg.eigvalsh(matrix)[::-1]
                np.testing.assert_allclose([float(x) for x in target.split()], known, rtol=5.1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("encoding", "written"),
    [("P10", "+ 3 1 4 E-2 - 5 0 0 E-1"), ("P1000", "+ 314 E-2 - 500 E-1"), ("B1999", "314 E-2 -500 E-1")],
)
def test_a_real_number_is_written_as_its_encoding_says(encoding, written):
    how = Reals(encoding)
    ids = how.write(*how.parts(torch.tensor([[3.14159, -50.0]], dtype=torch.float64)))[0].tolist()
    assert " ".join(how.words[i - 2] for i in ids) == written
    assert how.numbers(ids) == [3.14, -50.0]


def test_three_digits_are_kept_of_every_number_and_nothing_is_zero():
    how = Reals("P1000")
    x = torch.tensor([[0.0, 9.996, 0.00123456, -999.4, 1e-20, 1e300]], dtype=torch.float64)
    assert how.numbers(how.write(*how.parts(x))[0].tolist()) == [0, 10.0, 0.00123, -999, 0, 999e9]


def test_eigenvalues_are_right_within_a_twentieth_of_their_sum():
    problem = Matrices("eigenvalues", dimension=2, encoding="P10")
    assert problem.right("", "10.4 -9.6", "10 -10")
    assert not problem.right("", "11 -10.1", "10 -10")
    assert not problem.right("", "10", "10 -10")


# --- integrals --------------------------------------------------------------------------------------------------------


def test_an_answer_is_an_integral_by_sympy():
    problem, x = Integrals(), sympy.Symbol("x")
    for source, target in texts(problem, drawn(problem, 40, LOGS)):
        names = {"x": x, "ln": sympy.log}
        f, whole = (sympy.parse_expr(text, local_dict=names) for text in (source, target))
        assert sympy.simplify(sympy.diff(whole, x) - f) == 0


def test_any_integral_is_right_and_nothing_else():
    problem = Integrals()
    for source, target in texts(problem, drawn(problem, 8)):
        assert problem.right(source, f"{target} + 7", target)
        assert not problem.right(source, f"{target} + x", target)
    assert problem.right("2*sin(x)*cos(x)", "-1*cos(x)**2", "sin(x)**2")
    assert not problem.right("2*x", "add x", "x**2")
    assert not problem.right("2*x", "9**9**9", "x**2")


@pytest.mark.parametrize("base", ["9", "9*sin(2)", "-1/9", "9*x"])
def test_a_tower_of_powers_is_judged_in_no_time(base):
    tower = base
    for _ in range(5):
        tower = f"({tower})**99"
    begun = time.perf_counter()
    assert not Integrals().right("2*x", tower, "x**2")
    assert time.perf_counter() - begun < 5
    assert Integrals().right("99*9**99*x**98", "(9*x)**99", "")


def test_a_function_that_is_typed_has_the_tokens_of_the_one_that_was_drawn():
    problem = Integrals()
    found = drawn(problem, 60)
    for ids, (long, _) in zip(found.source.tolist(), found.lengths.tolist(), strict=True):
        assert problem.read(problem.asked(ids[:long])) == ids[:long]


# --- what is typed ----------------------------------------------------------------------------------------------------


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
def test_what_is_no_problem_is_refused_in_one_line_with_an_example(name, text):
    with pytest.raises(BadInput, match=rf"maths:{name} takes .*such as"):
        MathsSource(operation=name).problem().read(text)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_read_as_it_is_shown(name):
    opened = MathsSource(operation=name, valid=20, test=0).open()
    part, tokens = opened.splits["valid"], opened.tokenizers
    for n, (source, (target,)) in enumerate(zip(part.sources, part.references, strict=True)):
        assert tokens.encode_source(source).tolist() == [*part.source[n].tolist(), opened.vocab[0] - 1]
        assert tokens.decode_target(tokens.encode_target(target)) == target


# --- splits and batches -----------------------------------------------------------------------------------------------


def seen(batch: object) -> list[tuple[int, ...]]:
    """The sources that a batch asks about."""
    rows = zip(batch.source.tolist(), batch.targets.tolist(), strict=True)
    return [tuple(source) for source, targets in rows if set(targets) != {IGNORE}]


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_is_the_same_whenever_it_is_asked_for_and_another_elsewhere(name):
    opened = MathsSource(operation=name, valid=10, test=0, examples=64).open()
    batches = opened.batches(8, 3)
    places = [(0, 1), (0, 2), (1, 1), (0, 1)]
    first, other, later, again = (batches.batch(*place).tensors() for place in places)
    fresh = opened.batches(8, 3).batch(0, 1).tensors()
    assert all(torch.equal(first[k], again[k]) and torch.equal(first[k], fresh[k]) for k in first)
    assert not any(
        torch.equal(first["source"], x["source"]) for x in (other, later, opened.batches(8, 4).batch(0, 1).tensors())
    )


def test_targets_begin_behind_an_edge_and_end_with_it():
    opened = MathsSource(valid=10, test=0).open()
    batch, edge = opened.batches(50, 0).batch(0, 0), opened.vocab[1] - 1
    rows = (x.tolist() for x in (batch.tokens, batch.targets, batch.source, batch.lengths))
    for tokens, targets, source, long in zip(*rows, strict=True):
        asked = [t for t in targets if t != IGNORE]
        assert (tokens[0], asked[-1]) == (edge, edge)
        assert tokens[1 : len(asked)] == asked[:-1]
        assert source[long - 1 :] == [edge] * (len(source) - long + 1)
        assert math.gcd(*numbers(opened.tokenizers.decode_source(source[: long - 1]))) == int(
            opened.tokenizers.decode_target(asked)
        )
    assert batch.count == int((batch.targets != IGNORE).sum())
    assert batch.rows(0, 3).count == int((batch.targets[:3] != IGNORE).sum())


def test_what_is_held_out_is_never_learned_from_however_small_the_space():
    opened = MathsSource(
        operation="modular-addition", largest=30, valid=40, test=40, examples=4000, operands="log-uniform"
    ).open()
    held = [{frozenset(numbers(s)) for s in part.sources} for part in opened.splits.values()]
    assert [len(some) for some in held] == [40, 40]
    assert not held[0] & held[1]
    batches = opened.batches(500, 0)
    asked = {frozenset(numbers(opened.tokenizers.decode_source(s[: s.index(opened.vocab[0] - 1)])))
             for step in range(batches.steps) for s in map(list, seen(batches.batch(0, step)))}  # fmt: skip
    assert not asked & (held[0] | held[1])
    assert len(asked) > 300  # of 465 - 80


def test_a_sum_of_fractions_that_is_held_out_is_not_learned_the_other_way_round():
    opened = MathsSource(operation="fractions", largest=6, valid=50, test=50, examples=4000).open()
    held = {s for part in opened.splits.values() for s in part.sources}
    turned = {" + ".join(reversed(s.split(" + "))) for s in held}
    batches, edge = opened.batches(500, 0), opened.vocab[0] - 1
    rows = [s for step in range(batches.steps) for s in map(list, seen(batches.batch(0, step)))]
    asked = {opened.tokenizers.decode_source(s[: s.index(edge)]) for s in rows}
    assert len(held) == 100
    assert not asked & (held | turned)
    assert len(asked) > 800  # of 1,296


def test_a_small_space_keeps_most_of_itself_to_learn_from():
    opened = MathsSource(operation="modular-addition", largest=20, valid=2000, test=2000).open()
    assert [len(part) for part in opened.splits.values()] == [20, 20]


def test_the_held_out_gcds_are_the_same_whatever_is_learned_from_and_each_comes_as_often():
    opened = [MathsSource(operands=name, valid=500, test=1000).open() for name in ("uniform", "log-uniform")]
    assert opened[0].sha256 == opened[1].sha256
    counts = np.bincount(list(map(int, opened[0].splits["test"].groups)), minlength=101)[1:]
    assert counts.min() >= 1
    assert counts.max() < 30


def test_other_held_out_examples_than_before_are_told_of():
    said: list[str] = []
    MathsSource(valid=5, test=0, sha256="0" * 64).open(listen=lambda event, **facts: said.append(facts["text"]))
    assert said == ["maths:gcd: other examples are held out than data.sha256 says"]


# --- the order of the examples ----------------------------------------------------------------------------------------


def sizes(**order: object) -> list[float]:
    """The mean logarithm of the operands in each of four epochs."""
    opened = MathsSource(valid=0, test=0, examples=2000, curriculum=3, **order).open()
    batches, found = opened.batches(500, 0), []
    for epoch in range(4):
        rows = [s for step in range(4) for s in seen(batches.batch(epoch, step))]
        texts = [opened.tokenizers.decode_source(s[: s.index(opened.vocab[0] - 1)]) for s in rows]
        found.append(float(np.mean([math.log(x) for text in texts for x in numbers(text)])))
    return found


def test_a_curriculum_goes_from_small_numbers_to_large_ones_and_its_shuffle_has_them_all_at_once():
    ordered, mixed = sizes(), sizes(shuffled=True)
    assert ordered[0] < ordered[1] - 2 < ordered[2] - 4
    assert np.ptp(mixed[:3]) < 0.5
    assert ordered[3] == mixed[3]


@pytest.mark.parametrize("name", ["gcd", "fractions", "eigenvalues", "integrals"])
def test_a_curriculum_and_its_shuffle_have_the_same_examples(name):
    found = []
    for shuffled in (False, True):
        how = MathsSource(operation=name, valid=0, test=0, examples=300, curriculum=3, shuffled=shuffled)
        opened, rows = how.open(), list[tuple[tuple[int, ...], ...]]()
        batches, edge = opened.batches(25, 0), how.open().vocab[0] - 1
        for epoch, step in [(epoch, step) for epoch in range(3) for step in range(12)]:
            batch = batches.batch(epoch, step)
            rows += [tuple(tuple(x for x in side if x not in (edge, IGNORE)) for side in pair)
                     for pair in zip(batch.source.tolist(), batch.targets.tolist(), strict=True)]  # fmt: skip
        found.append(rows)
    ordered, mixed = found
    assert ordered != mixed
    assert sorted(ordered) == sorted(mixed)
    assert len({*ordered}) > 600  # of 900


def test_numbered_examples_are_drawn_as_evenly_as_any():
    chance = Numbered(7, range(20_000))
    x = torch.cat([chance(20_000, 2, 2).flatten(1), chance(20_000)[:, None]], 1).numpy()
    assert x.min() >= 0
    assert x.max() < 1
    assert np.abs(np.corrcoef(np.concatenate([x, np.roll(x, 1, 0)], 1).T) - np.eye(10)).max() < 0.03
    for column in x.T:
        counts = np.bincount((column * 100).astype(int), minlength=100)
        assert ((counts - 200) ** 2 / 200).sum() < 170  # chi-squared of 99 degrees: 1 of 100,000 is above
    again = Numbered(7, [5, 3])
    assert again(2, 2, 2).flatten(1).tolist() == x[[5, 3], :4].tolist()
    assert Numbered(8, [5])(1, 4).tolist() != x[[5], :4].tolist()


def test_without_a_curriculum_nothing_is_held_back():
    assert Order().numbers(range(0, 3), 10) == []
    assert Order(2).numbers(range(20, 30), 10) == []


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"data.operands": "normal"}, r"data.operands = 'normal': accepted: uniform, log-uniform"),
        ({"data.operands": {"uniform": -1.0}}, "weights are numbers from 0 on"),
        ({"data.operation": "gdc"}, "Did you mean gcd"),
        ({"data.operation": "addition", "data.outcomes": "uniform"}, "only the outcomes of gcd can be drawn first"),
    ],
)
def test_a_setting_that_is_none_is_refused_in_one_line(given, line):
    with pytest.raises(BadSetting, match=line):
        recipe.resolve(("given", {"data.kind": "maths", **given}))


def test_numbers_that_do_not_fit_into_64_bits_are_refused():
    with pytest.raises(BadSetting, match="would leave 64 bits"):
        MathsSource(operation="multiplication", largest=10**12).open()


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_gpu_draws_the_examples_that_a_cpu_draws(name):
    opened = MathsSource(operation=name, valid=50, test=0, outcomes="natural").open()
    here, there = opened.batches(64, 0), opened.batches(64, 0)
    there.device = torch.device("cuda")
    mine, theirs = here.batch(1, 2), there.batch(1, 2)
    assert theirs.tokens.is_cuda
    assert theirs.count == mine.count
    long = mine.source.shape[1]
    assert (theirs.source[:, :long].cpu() == mine.source).double().mean() > 0.999  # exp and eigenvalues may round apart


@pytest.mark.gpu
def test_a_training_on_a_gpu_is_recorded_and_passes_its_audit(tmp_path):
    import harken

    tiny = {"model.d": 64, "model.layers": 1, "train.steps": 40, "train.batch": 64, "data.valid": 200, "data.test": 0}
    run = harken.train("maths:gcd", out=tmp_path / "run", settings={**tiny, "train.device": "cuda"})
    assert run.facts["audit"]["passed"]
