"""The arithmetic of a bench: order of turns, medians, ratios, utilization, work per token. Nothing is timed."""

import importlib.util

import pytest
import torch

from harken.errors import BadInput, HarkenError
from harken.experiments.bench import benchmark, implementations, transformers_gpt2
from harken.experiments.bench.benchmark import bench, interleaved_seconds, measure
from harken.experiments.bench.implementations import (
    BenchPlan,
    Ceiling,
    Implementation,
    RandomTokens,
    bandwidth_ceiling,
    flops,
    max_logit_difference,
    weight_bytes,
)
from harken.inference.prepare import prepare_inference
from harken.models.gpt import GPTSettings
from harken.training.settings import Train

TINY = GPTSettings(style="gpt2", size="tiny")
QUICK = {"size": "tiny", "batch": 2, "context": 40, "tokens": 3, "rounds": 1}
CPU = torch.device("cpu")


@pytest.fixture
def without_transformers(monkeypatch):
    """Without transformers, which takes seconds to import, and with a small matrix product."""
    monkeypatch.setattr(transformers_gpt2, "is_installed", lambda: False)
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 16)


class FakeClock:
    """A clock that advances only during turns, with a log of the turns."""

    def __init__(self):
        self.now, self.log = 0.0, []

    def clock(self):
        return self.now

    def turn(self, name, *seconds):
        left = iter(seconds)

        def take():
            self.log.append(name)
            self.now += next(left)

        return take


def plan(rounds):
    return BenchPlan(CPU, TINY, batch=1, tokens=1, rounds=rounds, precisions=("float32",), compiled=False)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_every_implementation_runs_in_every_round_and_the_device_is_synchronized():
    fake = FakeClock()
    turns = [fake.turn("a", 1, 2), fake.turn("b", 3, 4)]
    seconds = interleaved_seconds(turns, 2, wait=lambda: fake.log.append("wait"), clock=fake.clock)
    assert seconds == [[1, 2], [3, 4]]
    assert fake.log == ["wait", "a", "wait", "wait", "b", "wait"] * 2


def test_pending_device_work_counts_for_its_turn():
    fake = FakeClock()
    waits = iter([0, 5])

    def wait():
        fake.now += next(waits)

    assert interleaved_seconds([fake.turn("a", 1)], 1, wait=wait, clock=fake.clock) == [[6]]


def test_a_row_has_median_speed_range_ratio_and_utilization():
    fake = FakeClock()
    ceiling = Ceiling("B/s", 100, [fake.turn("slow", 0, 2, 2, 2), fake.turn("fast", 0, 1, 1, 9)])
    model = Implementation("harken", "int8", fake.turn("ours", 2, 1, 4), 8, 5.0, ceiling, {"extra": 7})
    reference = Implementation(transformers_gpt2.NAME, "float32", fake.turn("theirs", 4, 4, 8), 8, 10.0, ceiling, {})
    row, other = measure([model, reference], plan(3), fake.clock)
    assert row == {
        "name": "harken",
        "precision": "int8",
        "tokens_per_second": 4,  # of 4, 8, 2
        "spread": [2, 8],
        "ratio": 2,
        "utilization": 4 * 5 / 100,
        "ceiling": 100,
        "ceiling_unit": "B/s",
        "extra": 7,
    }
    assert (other["tokens_per_second"], other["ratio"], other["utilization"]) == (2, 1, 2 * 10 / 100)
    assert fake.log == ["slow", "fast", *["ours", "theirs", "slow", "fast"] * 3]  # the ceiling is measured too


def test_ceilings_are_separate_and_without_transformers_there_is_no_ratio():
    fake = FakeClock()
    ceilings = [Ceiling("B/s", 100, [fake.turn("", 0, 1)]), Ceiling("B/s", 100, [fake.turn("", 0, 4)])]
    rows = measure(
        [Implementation("harken", "", fake.turn("", 1), 1, 1.0, ceiling, {}) for ceiling in ceilings],
        plan(1),
        fake.clock,
    )
    assert [(row["ceiling"], row["utilization"], row["ratio"]) for row in rows] == [(100, 0.01, None), (25, 0.04, None)]


# --- work per token ---------------------------------------------------------------------------------------------------

d, layers, d_ff, padded_vocab = 64, 2, 256, 50_304  # a tiny GPT-2: 50,257 words, rounded up to 64


def test_the_flops_per_token_match_a_manual_count():
    L = TINY.context
    weights = layers * (4 * d * d + 2 * d * d_ff) + padded_vocab * d
    attention = layers * 2 * 2 * L * d  # q k and A v, a multiplication and an addition for each key and feature
    assert flops(TINY) == 3 * (2 * weights + attention)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_bytes_per_step_match_a_manual_count(precision):
    model = prepare_inference(TINY.build(implementations.VOCAB), precision)
    matrices = layers * (4 * d * d + 2 * d * d_ff) + padded_vocab * d  # the tied table is read as the head
    rows = layers * (4 * d + d_ff + d) + padded_vocab  # of matrices: each has a scale in int8
    biases, norms = layers * (4 * d + d_ff + d), (2 * layers + 1) * 2 * d
    size = {"float32": 4, "bfloat16": 2}.get(precision)
    counted = matrices + 4 * (rows + biases + norms) if size is None else size * (matrices + biases + norms)
    assert weight_bytes(model) == counted


def test_the_bandwidth_ceiling_reads_as_many_bytes_as_the_weights():
    ceiling = bandwidth_ceiling(5 * 4096 + 17, CPU)
    assert ceiling.work == implementations.REPEAT * 5 * 4096
    assert len(ceiling.variants) == 2


def test_a_matrix_product_has_two_n_cubed_flops(monkeypatch):
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 8)
    assert implementations.matmul_ceiling(torch.float32, CPU).work == implementations.REPEAT * 2 * 8**3


def test_random_tokens_predict_the_next_token_and_count_their_tokens():
    task = RandomTokens(3, 5)
    first, again, other = (task.batch(0, step) for step in (0, 4, 1))
    assert task.tokens_per_batch == first.tokens.numel() == 15
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_the_logit_difference_is_the_maximum():
    model = TINY.build(implementations.VOCAB).eval()
    other = TINY.build(implementations.VOCAB).eval()
    other.load_state_dict(model.state_dict())
    text = torch.tensor([[1, 2, 3]])
    assert max_logit_difference(other, model, text) == 0
    with torch.no_grad():
        h = model(text)[0, 1]
        other.embed.weight[9] += 3 * h / (h @ h)  # the logit of token 9 grows by 3
    assert max_logit_difference(other, model, text) >= 2.99


# --- the benches ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_transformers")
def test_training_has_a_row_per_precision_below_its_ceiling():
    facts = bench("train", device="cpu", precisions=("float32", "bfloat16"), **QUICK)
    assert [(row["name"], row["precision"]) for row in facts["rows"]] == [("harken", "float32"), ("harken", "bfloat16")]
    need = flops(TINY.model_copy(update={"context": 40}))
    for row in facts["rows"]:
        assert row["ceiling_unit"] == "FLOP/s"
        assert row["utilization"] == pytest.approx(row["tokens_per_second"] * need / row["ceiling"])
        assert row["spread"] == [row["tokens_per_second"]] * 2
        assert (row["ratio"], row["memory_mib"], row["context"]) == (None, None, 40)


@pytest.mark.usefixtures("without_transformers")
def test_decoding_reports_the_effect_of_quantization():
    facts = bench("decode", device="cpu", precisions=("float32", "bfloat16", "int8"), **QUICK)
    full, half, quantized = facts["rows"]
    assert (full["same_tokens"], full["logit_difference"]) == (1, 0)
    for row in (half, quantized):
        assert 0 <= row["same_tokens"] <= 1
        assert 0 < row["logit_difference"] < 0.1
    assert full["utilization"] * full["ceiling"] / full["tokens_per_second"] == pytest.approx(
        weight_bytes(TINY.build(implementations.VOCAB)) / QUICK["batch"]
    )


@pytest.mark.usefixtures("without_transformers")
def test_both_benches_run_by_default_and_int8_applies_to_decoding_only():
    rows = bench(device="cpu", precisions=("int8",), **QUICK)["rows"]
    expected = {"train": "float32", "decode": "int8"}
    expected["train"] = str(benchmark.machine.pick_precision("auto", CPU)).removeprefix("torch.")
    assert {row["bench"]: row["precision"] for row in rows} == expected


@pytest.mark.usefixtures("without_transformers")
def test_a_bench_restores_the_rng_state():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bench("decode", device="cpu", precisions=("float32",), **QUICK)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("without_transformers")
def test_without_transformers_one_notice_is_given():
    events = []
    bench("decode", device="cpu", listen=lambda event, **facts: events.append((event, facts)), **QUICK)
    (notice,) = [facts["text"] for event, facts in events if event == "notice"]
    assert notice.startswith("transformers is not installed")
    assert "\n" not in notice
    assert [facts["who"] for event, facts in events if event == "setup_end"] == ["harken, float32", "harken, int8"]


def test_the_context_covers_prompt_and_tokens():
    assert benchmark._plan("decode", CPU, {"size": "tiny", "tokens": 100}, print).settings.context == 132
    assert benchmark._plan("decode", CPU, {"size": "small", "tokens": 5}, print).settings.context == 128
    with pytest.raises(BadInput, match=r"^context=64: a prompt of 32 and 40 tokens need 72; use a longer context"):
        benchmark._plan("decode", CPU, {"context": 64, "tokens": 40}, print)


def test_unsupported_options_of_a_device_are_refused_before_the_setup(monkeypatch):
    monkeypatch.setattr(benchmark.machine, "pick_precision", lambda wanted, device: torch.bfloat16)
    with pytest.raises(BadInput, match=r"^precision='int8': is supported on a CPU only"):
        benchmark._plan("decode", torch.device("cuda"), {"precisions": ("int8",)}, print)


def test_an_unknown_bench_is_refused():
    with pytest.raises(BadInput, match=r"^'tain': expected one of train, decode\. Did you mean train\?$"):
        bench("tain")


def test_a_compile_problem_is_reported_and_the_bench_runs_uncompiled(monkeypatch):
    events = []
    monkeypatch.setattr(benchmark.machine, "compile_problem", lambda device: "no compiler")
    bench_plan = benchmark._plan("train", CPU, {"compiled": True}, lambda event, **facts: events.append(facts["text"]))
    assert (bench_plan.compiled, events) == (False, ["not compiled: no compiler"])


@pytest.mark.usefixtures("without_transformers")
def test_out_of_memory_is_one_line_with_a_fix(monkeypatch):
    def full(plan, listen):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand much more")

    monkeypatch.setitem(benchmark.BENCHES, "train", full)
    with pytest.raises(HarkenError, match=r"^bench train: out of memory with batch 2 and context 40; use a smaller"):
        bench("train", device="cpu", **QUICK)


# --- transformers -----------------------------------------------------------------------------------------------------

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@pytest.mark.oracle
@needs_transformers
def test_with_copied_weights_harken_and_transformers_have_equal_logits():
    settings = TINY.model_copy(update={"context": 12})
    model, reference = settings.build(99).eval(), transformers_gpt2.build(settings, 99)
    for weight in reference.parameters():  # initial biases are 0 and norms 1, which would hide a mix-up
        torch.nn.init.normal_(weight, std=0.3)
    tokens = torch.randint(99, (2, 12))
    transformers_gpt2.copy_weights(reference, model)
    with torch.no_grad():
        torch.testing.assert_close(model.logits(model(tokens)), reference(tokens).logits, rtol=1e-4, atol=1e-3)


@pytest.mark.oracle
@needs_transformers
def test_transformers_trains_on_the_same_batches_and_generates_the_same_text(monkeypatch):
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 16)
    rows = bench(device="cpu", precisions=("float32", "int8"), **QUICK)["rows"]
    assert [row["name"] for row in rows] == [
        "harken",
        transformers_gpt2.NAME,
        "harken",
        "harken",
        transformers_gpt2.NAME,
    ]
    for row in rows:
        other = next(r for r in rows if (r["bench"], r["name"]) == (row["bench"], transformers_gpt2.NAME))
        assert row["ratio"] == pytest.approx(row["tokens_per_second"] / other["tokens_per_second"])
    assert rows[-1]["precision"] == "float32"
    assert rows[-1]["same_tokens"] == 1


@pytest.mark.oracle
@needs_transformers
def test_a_transformers_step_is_adamw_with_the_training_settings():
    model = transformers_gpt2.build(TINY.model_copy(update={"context": 8}), implementations.VOCAB)
    W = model.transformer.wpe.weight
    before = W.detach().clone()
    train = Train(device="cpu", precision="float32", compile="no", lr=1e-2, weight_decay=0.5)
    transformers_gpt2.train_step(model, RandomTokens(2, 8).batch, train)()
    moved = (W.detach() - before * (1 - 1e-2 * 0.5)).abs()
    assert float(moved.max()) == pytest.approx(
        1e-2, rel=0.01
    )  # the first step of AdamW has the size of the learning rate
    assert W.grad is None
