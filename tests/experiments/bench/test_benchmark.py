"""The arithmetic of a bench: whose turn it is, medians, ratios, shares, and what a token needs. Nothing is timed."""

import importlib.util

import pytest
import torch

from harken.errors import BadInput, HarkenError
from harken.experiments.bench import benchmark as module
from harken.experiments.bench import implementations, transformers_gpt2
from harken.experiments.bench.benchmark import bench, compared, interleaved
from harken.experiments.bench.implementations import (
    Ceiling,
    Contender,
    Noise,
    Plan,
    difference,
    flops,
    reading,
    weight_bytes,
)
from harken.inference.prepare import lighten
from harken.models.gpt import Shape
from harken.training.settings import Train

TINY = Shape(style="gpt2", size="tiny")
QUICK = {"size": "tiny", "batch": 2, "context": 40, "tokens": 3, "rounds": 1}
CPU = torch.device("cpu")


@pytest.fixture
def alone(monkeypatch):
    """Without the peer, which takes seconds to import; and with a small product."""
    monkeypatch.setattr(transformers_gpt2, "there", lambda: False)
    monkeypatch.setitem(implementations.SIDE, "cpu", 16)


class World:
    """A clock that stands still but for the seconds a turn takes, and who took them."""

    def __init__(self):
        self.now, self.said = 0.0, []

    def clock(self):
        return self.now

    def turn(self, name, *seconds):
        left = iter(seconds)

        def take():
            self.said.append(name)
            self.now += next(left)

        return take


def plan(rounds):
    return Plan(CPU, TINY, batch=1, tokens=1, rounds=rounds, precisions=("float32",), compiled=False)


# --- turns ------------------------------------------------------------------------------------------------------------


def test_every_one_takes_a_turn_in_every_round_and_the_device_is_waited_for_before_and_after():
    world = World()
    turns = [world.turn("a", 1, 2), world.turn("b", 3, 4)]
    seconds = interleaved(turns, 2, wait=lambda: world.said.append("wait"), clock=world.clock)
    assert seconds == [[1, 2], [3, 4]]
    assert world.said == ["wait", "a", "wait", "wait", "b", "wait"] * 2


def test_what_the_device_still_does_after_a_turn_belongs_to_its_time():
    world = World()
    waits = iter([0, 5])

    def wait():
        world.now += next(waits)

    assert interleaved([world.turn("a", 1)], 1, wait=wait, clock=world.clock) == [[6]]


def test_a_row_has_the_median_speed_its_spread_the_ratio_and_the_share_of_the_fastest_way():
    world = World()
    top = Ceiling("B/s", 100, [world.turn("slow", 0, 2, 2, 2), world.turn("fast", 0, 1, 1, 9)])
    ours = Contender("harken", "int8", world.turn("ours", 2, 1, 4), 8, 5.0, top, {"extra": 7})
    theirs = Contender(transformers_gpt2.NAME, "float32", world.turn("theirs", 4, 4, 8), 8, 10.0, top, {})
    row, other = compared([ours, theirs], plan(3), world.clock)
    assert row == {
        "name": "harken",
        "precision": "int8",
        "tokens_per_second": 4,  # of 4, 8, 2
        "spread": [2, 8],
        "ratio": 2,
        "share": 4 * 5 / 100,
        "ceiling": 100,
        "ceiling_unit": "B/s",
        "extra": 7,
    }
    assert (other["tokens_per_second"], other["ratio"], other["share"]) == (2, 1, 2 * 10 / 100)
    assert world.said == ["slow", "fast", *["ours", "theirs", "slow", "fast"] * 3]  # the ceiling takes its turns too


def test_two_ceilings_are_not_mixed_up_and_without_a_peer_there_is_no_ratio():
    world = World()
    tops = [Ceiling("B/s", 100, [world.turn("", 0, 1)]), Ceiling("B/s", 100, [world.turn("", 0, 4)])]
    rows = compared([Contender("harken", "", world.turn("", 1), 1, 1.0, top, {}) for top in tops], plan(1), world.clock)
    assert [(row["ceiling"], row["share"], row["ratio"]) for row in rows] == [(100, 0.01, None), (25, 0.04, None)]


# --- what a token needs -----------------------------------------------------------------------------------------------

d, layers, hidden, words = 64, 2, 256, 50_304  # a tiny GPT-2: 50,257 words, rounded up to 64


def test_the_flops_of_a_token_are_those_counted_by_hand():
    L = TINY.context
    weights = layers * (4 * d * d + 2 * d * hidden) + words * d
    attention = layers * 2 * 2 * L * d  # q k and A v, a multiplication and an addition for each key and feature
    assert flops(TINY) == 3 * (2 * weights + attention)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_bytes_of_a_step_are_those_counted_by_hand(precision):
    model = lighten(TINY.build(implementations.VOCAB), precision)
    matrices = layers * (4 * d * d + 2 * d * hidden) + words * d  # the tied table is read as the head
    rows = layers * (4 * d + hidden + d) + words  # of matrices: each has a scale in int8
    biases, norms = layers * (4 * d + hidden + d), (2 * layers + 1) * 2 * d
    size = {"float32": 4, "bfloat16": 2}.get(precision)
    counted = matrices + 4 * (rows + biases + norms) if size is None else size * (matrices + biases + norms)
    assert weight_bytes(model) == counted


def test_reading_is_of_as_many_bytes_as_the_weights_in_every_way():
    top = reading(5 * 4096 + 17, CPU)
    assert top.work == implementations.REPEAT * 5 * 4096
    assert len(top.ways) == 2


def test_a_product_of_n_by_n_counts_two_n_cubed(monkeypatch):
    monkeypatch.setitem(implementations.SIDE, "cpu", 8)
    assert implementations.product(torch.float32, CPU).work == implementations.REPEAT * 2 * 8**3


def test_noise_asks_for_the_next_token_and_counts_its_tokens():
    noise = Noise(3, 5)
    first, again, other = (noise.batch(0, step) for step in (0, 4, 1))
    assert noise.tokens == first.tokens.numel() == 15
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_a_difference_is_the_largest_of_all_scores():
    model = TINY.build(implementations.VOCAB).eval()
    other = TINY.build(implementations.VOCAB).eval()
    other.load_state_dict(model.state_dict())
    text = torch.tensor([[1, 2, 3]])
    assert difference(other, model, text) == 0
    with torch.no_grad():
        h = model(text)[0, 1]
        other.embed.weight[9] += 3 * h / (h @ h)  # the score of word 9 grows by 3 there
    assert difference(other, model, text) >= 2.99


# --- the benches ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_training_has_a_row_for_each_precision_below_the_ceiling_of_that_precision():
    found = bench("train", device="cpu", precisions=("float32", "bfloat16"), **QUICK)
    assert [(row["name"], row["precision"]) for row in found["rows"]] == [("harken", "float32"), ("harken", "bfloat16")]
    need = flops(TINY.model_copy(update={"context": 40}))
    for row in found["rows"]:
        assert row["ceiling_unit"] == "FLOP/s"
        assert row["share"] == pytest.approx(row["tokens_per_second"] * need / row["ceiling"])
        assert row["spread"] == [row["tokens_per_second"]] * 2
        assert (row["ratio"], row["memory_mib"], row["context"]) == (None, None, 40)


@pytest.mark.usefixtures("alone")
def test_decoding_says_what_lighter_weights_cost():
    found = bench("decode", device="cpu", precisions=("float32", "bfloat16", "int8"), **QUICK)
    plain, half, light = found["rows"]
    assert (plain["same_tokens"], plain["logit_difference"]) == (1, 0)
    for row in (half, light):
        assert 0 <= row["same_tokens"] <= 1
        assert 0 < row["logit_difference"] < 0.1
    assert plain["share"] * plain["ceiling"] / plain["tokens_per_second"] == pytest.approx(
        weight_bytes(TINY.build(implementations.VOCAB)) / QUICK["batch"]
    )


@pytest.mark.usefixtures("alone")
def test_both_are_measured_where_none_is_named_and_int8_concerns_only_the_writing():
    rows = bench(device="cpu", precisions=("int8",), **QUICK)["rows"]
    own = {"train": "float32", "decode": "int8"}
    own["train"] = str(module.machine.pick_precision("auto", CPU)).removeprefix("torch.")
    assert {row["bench"]: row["precision"] for row in rows} == own


@pytest.mark.usefixtures("alone")
def test_a_bench_leaves_the_random_numbers_as_they_were():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bench("decode", device="cpu", precisions=("float32",), **QUICK)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("alone")
def test_without_the_peer_one_line_says_so():
    heard = []
    bench("decode", device="cpu", listen=lambda event, **facts: heard.append((event, facts)), **QUICK)
    (notice,) = [facts["text"] for event, facts in heard if event == "notice"]
    assert notice.startswith("transformers is not installed")
    assert "\n" not in notice
    assert [facts["who"] for event, facts in heard if event == "settled"] == ["harken, float32", "harken, int8"]


def test_the_context_of_a_text_holds_prompt_and_tokens():
    assert module._plan("decode", CPU, {"size": "tiny", "tokens": 100}, print).shape.context == 132
    assert module._plan("decode", CPU, {"size": "small", "tokens": 5}, print).shape.context == 128
    with pytest.raises(BadInput, match=r"^context=64: a prompt of 32 and 40 tokens need 72; take a longer context"):
        module._plan("decode", CPU, {"context": 64, "tokens": 40}, print)


def test_what_a_device_cannot_do_is_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(module.machine, "pick_precision", lambda wanted, device: torch.bfloat16)
    with pytest.raises(BadInput, match=r"^precision='int8': it is for a CPU"):
        module._plan("decode", torch.device("cuda"), {"precisions": ("int8",)}, print)


def test_a_name_that_is_no_bench_is_refused():
    with pytest.raises(BadInput, match=r"^'tain' is not a bench; accepted: train, decode\. Did you mean train\?$"):
        bench("tain")


def test_what_cannot_be_compiled_is_said_and_left_plain(monkeypatch):
    heard = []
    monkeypatch.setattr(module.machine, "can_compile", lambda device: "no compiler")
    made = module._plan("train", CPU, {"compiled": True}, lambda event, **facts: heard.append(facts["text"]))
    assert (made.compiled, heard) == (False, ["not compiled: no compiler"])


@pytest.mark.usefixtures("alone")
def test_too_little_memory_is_one_line_with_the_way_out(monkeypatch):
    def full(plan, listen):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand much more")

    monkeypatch.setitem(module.BENCHES, "train", full)
    with pytest.raises(HarkenError, match=r"^bench train: out of memory with batch 2 and context 40; take a smaller"):
        bench("train", device="cpu", **QUICK)


# --- the peer ---------------------------------------------------------------------------------------------------------

oracle = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")


@pytest.mark.oracle
@oracle
def test_given_the_peers_weights_harken_gives_the_peers_scores():
    shape = TINY.model_copy(update={"context": 12})
    ours, theirs = shape.build(99).eval(), transformers_gpt2.build(shape, 99)
    for weight in theirs.parameters():  # first biases are 0 and first norms 1, which would hide a mix-up
        torch.nn.init.normal_(weight, std=0.3)
    tokens = torch.randint(99, (2, 12))
    transformers_gpt2.give(theirs, ours)
    with torch.no_grad():
        torch.testing.assert_close(ours.logits(ours(tokens)), theirs(tokens).logits, rtol=1e-4, atol=1e-3)


@pytest.mark.oracle
@oracle
def test_the_peer_learns_from_the_same_batches_and_writes_the_same_text(monkeypatch):
    monkeypatch.setitem(implementations.SIDE, "cpu", 16)
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
@oracle
def test_a_step_of_the_peer_is_adamw_with_the_settings_of_the_training():
    model = transformers_gpt2.build(TINY.model_copy(update={"context": 8}), implementations.VOCAB)
    W = model.transformer.wpe.weight
    before = W.detach().clone()
    train = Train(device="cpu", precision="float32", compile="no", lr=1e-2, weight_decay=0.5)
    transformers_gpt2.learning(model, Noise(2, 8).batch, train)()
    moved = (W.detach() - before * (1 - 1e-2 * 0.5)).abs()
    assert float(moved.max()) == pytest.approx(1e-2, rel=0.01)  # its first step is as long as its rate
    assert W.grad is None
