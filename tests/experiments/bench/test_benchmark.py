"""The arithmetic of a bench: order of turns, medians, ratios, utilization, work per token. Nothing is timed."""

import importlib.util

import pytest
import torch

from harken.decode.sampling import TextGenerator
from harken.errors import BadInput, HarkenError
from harken.experiments.bench import benchmark, ctranslate2_gpt2, implementations, peers, plain_gpt2, transformers_gpt2
from harken.experiments.bench.benchmark import bench, interleaved_seconds, measure
from harken.experiments.bench.implementations import (
    Ceiling,
    Implementation,
    RandomTokens,
    bandwidth_ceiling,
    flops,
    max_logit_difference,
    weight_bytes,
)
from harken.experiments.bench.plan import GPT2_VOCAB, BenchPlan, make_plans
from harken.inference.prepare import prepare_inference
from harken.models.gpt import GPTSettings
from harken.training.settings import Train

TINY = GPTSettings(style="gpt2", size="tiny")
QUICK = {"size": "tiny", "batch": 2, "context": 40, "tokens": 3, "rounds": 1}
CPU = torch.device("cpu")


@pytest.fixture
def without_peers(monkeypatch):
    """Without other packages (transformers takes seconds to import), and with a small matrix product."""
    monkeypatch.setattr(peers.Peer, "is_installed", property(lambda peer: not peer.extra))
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


def plan(rounds=1, settings=TINY, vocab=GPT2_VOCAB):
    sizes = {"size": "tiny", "batch": 2, "tokens": 5}
    return BenchPlan(CPU, settings, vocab, rounds=rounds, precisions=("float32",), compiled=False, **sizes)


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
    reference = Implementation("transformers", "float32", fake.turn("theirs", 4, 4, 8), 8, 10.0, ceiling, {})
    row, other = measure([model, reference], plan(3), fake.clock)
    assert row == {
        "name": "harken",
        "precision": "int8",
        "tokens_per_second": 4,  # of 4, 8, 2
        "spread": [2, 8],
        "ratio": 2,
        "peer": "transformers, float32",
        "utilization": 4 * 5 / 100,
        "ceiling": 100,
        "ceiling_unit": "B/s",
        "extra": 7,
    }
    assert (other["tokens_per_second"], other["ratio"], other["utilization"]) == (2, 1, 2 * 10 / 100)
    assert fake.log == ["slow", "fast", *["ours", "theirs", "slow", "fast"] * 3]  # the ceiling is measured too


def test_a_ratio_is_that_to_the_fastest_peer_in_the_same_precision_or_else_in_any():
    fake = FakeClock()
    ceiling = Ceiling("B/s", 1, [fake.turn("", 0, 1)])
    seconds = {("harken", "int8"): 2, ("harken", "float32"): 4, ("harken", "bfloat16"): 5}
    seconds |= {("a", "float32"): 8, ("b", "float32"): 6, ("b", "int8"): 10}
    turns = [Implementation(*name, fake.turn("", s), 120, 1.0, ceiling, {}) for name, s in seconds.items()]
    rows = measure(turns, plan(1), fake.clock)
    ratios = {(row["name"], row["precision"]): (row["ratio"], row["peer"]) for row in rows}
    assert ratios == {
        ("harken", "int8"): (10 / 2, "b, int8"),
        ("harken", "float32"): (6 / 4, "b, float32"),
        ("harken", "bfloat16"): (pytest.approx(6 / 5), "b, float32"),
        ("a", "float32"): (6 / 8, "b, float32"),
        ("b", "float32"): (1, "b, float32"),
        ("b", "int8"): (1, "b, int8"),
    }


def test_ceilings_are_separate_and_without_peers_there_is_no_ratio():
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
    assert flops(plan()) == 3 * (2 * weights + attention)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_the_bytes_per_step_match_a_manual_count(precision, monkeypatch):
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)
    model = prepare_inference(TINY.build(GPT2_VOCAB), precision)
    matrices = layers * (4 * d * d + 2 * d * d_ff) + padded_vocab * d  # the tied table is read as the head
    rows = layers * (4 * d + d_ff + d) + padded_vocab  # of matrices: each has a scale and a zero point in int8
    biases, norms = layers * (4 * d + d_ff + d), (2 * layers + 1) * 2 * d
    size = {"float32": 4, "bfloat16": 2}.get(precision)
    counted = matrices + 4 * (2 * rows + biases + norms) if size is None else size * (matrices + biases + norms)
    assert weight_bytes(model) == counted


def test_the_bandwidth_ceiling_reads_as_many_bytes_as_the_weights():
    ceiling = bandwidth_ceiling(5 * 4096 + 17, CPU)
    assert ceiling.work == implementations.REPEAT * 5 * 4096
    assert len(ceiling.variants) == 2


def test_a_matrix_product_has_two_n_cubed_flops(monkeypatch):
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 8)
    assert implementations.matmul_ceiling(torch.float32, CPU).work == implementations.REPEAT * 2 * 8**3


def test_random_tokens_predict_the_next_token_and_count_their_tokens():
    task = RandomTokens(9, 3, 5)
    first, again, other = (task.batch(0, step) for step in (0, 4, 1))
    assert task.tokens_per_batch == first.tokens.numel() == 15
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


def test_the_logit_difference_is_the_maximum():
    model = TINY.build(GPT2_VOCAB).eval()
    other = TINY.build(GPT2_VOCAB).eval()
    other.load_state_dict(model.state_dict())
    text = torch.tensor([[1, 2, 3]])
    assert max_logit_difference(other, model, text) == 0
    with torch.no_grad():
        h = model(text)[0, 1]
        other.embed.weight[9] += 3 * h / (h @ h)  # the logit of token 9 grows by 3
    assert max_logit_difference(other, model, text) >= 2.99


# --- the benches ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_peers")
def test_training_has_a_row_per_precision_and_optimizer_and_a_plain_loop_below_its_ceiling():
    facts = bench("train", device="cpu", precisions=("float32", "bfloat16"), **QUICK)
    assert [(row["name"], row["precision"], row["optimizer"]) for row in facts["rows"]] == [
        ("harken", "float32", "adamw"),
        ("harken", "bfloat16", "adamw"),
        ("harken", "float32", "muon"),
        ("plain PyTorch", "float32", "adamw"),
    ]
    need, plain = flops(plan(settings=TINY.model_copy(update={"context": 40}))), facts["rows"][-1]
    for row in facts["rows"]:
        assert row["ceiling_unit"] == "FLOP/s"
        assert row["utilization"] == pytest.approx(row["tokens_per_second"] * need / row["ceiling"])
        assert row["spread"] == [row["tokens_per_second"]] * 2
        assert row["ratio"] == pytest.approx(row["tokens_per_second"] / plain["tokens_per_second"])
        assert (row["peer"], row["memory_mib"], row["context"]) == ("plain PyTorch, float32", None, 40)


@pytest.mark.usefixtures("without_peers")
def test_decoding_reports_the_effect_of_quantization(monkeypatch):
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)
    facts = bench("decode", device="cpu", precisions=("float32", "bfloat16", "int8"), **QUICK)
    full, half, quantized = facts["rows"]
    assert full["same_tokens"] == 1
    assert full["logit_difference"] < 1e-5  # packed products add in another order
    for row in (half, quantized):
        assert 0 <= row["same_tokens"] <= 1
        assert 0 < row["logit_difference"] < 0.1
    assert full["utilization"] * full["ceiling"] / full["tokens_per_second"] == pytest.approx(
        weight_bytes(TINY.build(GPT2_VOCAB)) / QUICK["batch"]
    )
    assert {row["ratio"] for row in facts["rows"]} == {None}


@pytest.mark.usefixtures("without_peers")
def test_both_benches_run_by_default_decoding_for_several_batches_and_int8_applies_to_decoding_only():
    rows = bench(device="cpu", precisions=("int8",), **{**QUICK, "size": "char", "batch": (1, 2)})["rows"]
    harken = [(row["bench"], row["batch"], row["precision"]) for row in rows if row["name"] == "harken"]
    assert harken == [("train", b, "float32") for b in (1, 1, 2, 2)] + [("decode", b, "int8") for b in (1, 2)]


@pytest.mark.usefixtures("without_peers")
def test_a_bench_restores_the_rng_state():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bench("decode", device="cpu", precisions=("float32",), **QUICK)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("without_peers")
def test_absent_peers_are_named_in_one_notice_with_their_pip_commands():
    events = []
    bench("decode", device="cpu", listen=lambda event, **facts: events.append((event, facts)), **QUICK)
    (notice,) = [facts["text"] for event, facts in events if event == "notice"]
    packages = 'transformers (pip install "harken[hf]"), ctranslate2 (pip install "harken[ct2]")'
    assert notice == f"not installed, so not measured: {packages}"
    assert [facts["who"] for event, facts in events if event == "setup_end"] == ["harken, float32", "harken, int8"]
    assert peers.missing_notice(["train"]) == notice.partition(", ctranslate2")[0]


def test_the_context_covers_prompt_and_tokens():
    (decode,) = make_plans("decode", CPU, {"size": "tiny", "tokens": 100, "batch": 1}, print)
    assert decode.settings.context == 132
    assert [p.settings.context for p in make_plans("decode", CPU, {"size": "small", "tokens": 5}, print)] == [128, 128]
    with pytest.raises(BadInput, match=r"^context=64: a prompt of 32 and 40 tokens need 72; use a longer context"):
        make_plans("decode", CPU, {"context": 64, "tokens": 40}, print)


def test_the_defaults_on_a_cpu_are_those_of_the_table_and_a_quick_bench_is_smaller():
    (train,), decode = (make_plans(name, CPU, {}, print) for name in ("train", "decode"))
    s = train.settings
    assert (s.d, s.layers, s.heads, s.context, train.vocab, train.batch) == (96, 4, 4, 128, 65, 16)
    assert [(p.batch, p.precisions, p.settings.d) for p in decode] == [(b, ("float32", "int8"), 768) for b in (1, 8)]
    quick = [p for name in implementations.BENCHES for p in make_plans(name, CPU, {}, print, quick=True)]
    assert all(p.settings.d <= 128 and p.rounds == 3 for p in quick)


def test_the_text_of_the_decoding_bench_does_not_repeat():
    """Prompt lookup would guess repeated tokens."""
    (bench_plan,) = make_plans("decode", CPU, {"size": "tiny", "batch": 1, "tokens": 32}, print)
    torch.manual_seed(0)
    model, prompt = bench_plan.settings.build(GPT2_VOCAB).eval(), torch.randint(GPT2_VOCAB, (1, 32))
    assert len(set(implementations._generation(TextGenerator(model), prompt, 32)()[0].tolist())) == 32


def test_unsupported_options_of_a_device_are_refused_before_the_setup(monkeypatch):
    monkeypatch.setattr("harken.machine.pick_precision", lambda wanted, device: torch.bfloat16)
    with pytest.raises(BadInput, match=r"^precision='int8': is supported on a CPU only"):
        make_plans("decode", torch.device("cuda"), {"precisions": ("int8",)}, print)


def test_an_unknown_bench_is_refused():
    with pytest.raises(BadInput, match=r"^'tain': expected one of train, decode\. Did you mean train\?$"):
        bench("tain")


def test_a_compile_problem_is_reported_and_the_bench_runs_uncompiled(monkeypatch):
    events = []
    monkeypatch.setattr("harken.machine.compile_problem", lambda device: "no compiler")
    (bench_plan,) = make_plans("train", CPU, {"compiled": True}, lambda event, **facts: events.append(facts["text"]))
    assert (bench_plan.compiled, events) == (False, ["not compiled: no compiler"])


@pytest.mark.usefixtures("without_peers")
def test_out_of_memory_is_one_line_with_a_fix(monkeypatch):
    def full(plan, listen):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand much more")

    monkeypatch.setitem(benchmark.BENCHES, "train", full)
    with pytest.raises(HarkenError, match=r"^bench train: out of memory with batch 2 and context 40; use a smaller"):
        bench("train", device="cpu", **QUICK)


def test_a_peer_that_fails_on_this_machine_is_left_out_with_a_notice(monkeypatch):
    def broken(*_):
        raise RuntimeError("Library libcublas.so.12 is not found\nand more")

    peer, events = peers.Peer("engine", generation=broken, decode_precisions=lambda plan: ["float32"]), []
    monkeypatch.setattr(implementations, "PEERS", (peer,))
    listen = lambda event, **facts: events.append(facts.get("text"))  # noqa: E731
    rows = implementations.decoding_implementations(plan(), listen)
    assert [i.name for i in rows] == ["harken"]
    assert "engine, float32: does not run on this machine: Library libcublas.so.12 is not found" in events


# --- peers ------------------------------------------------------------------------------------------------------------

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def random_gpt(settings, vocab=99):
    """A model whose biases and norms matter; initially they are 0 and 1, which would hide a mix-up."""
    model = settings.build(vocab).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@pytest.mark.oracle
@needs_transformers
@torch.no_grad()
def test_with_copied_weights_harken_and_transformers_have_equal_logits():
    settings = TINY.model_copy(update={"context": 12, "tie_embeddings": False})
    model, reference = random_gpt(settings), transformers_gpt2.build(plan(settings=settings, vocab=99))
    tokens = torch.randint(99, (2, 12))
    transformers_gpt2.copy_weights(model, reference)
    torch.testing.assert_close(model.scores(tokens), reference(tokens).logits, rtol=1e-4, atol=1e-3)


@pytest.mark.oracle
def test_ctranslate2_generates_the_text_of_harken():
    settings = TINY.model_copy(update={"context": 24, "tie_embeddings": False})
    model, prompt = random_gpt(settings), torch.randint(99, (2, 9))
    bench_plan = plan(settings=settings, vocab=99)
    assert ctranslate2_gpt2.decode_precisions(bench_plan) == ["float32"]
    theirs = ctranslate2_gpt2.generation(model, bench_plan, "float32", prompt)()
    assert theirs.equal(implementations._generation(TextGenerator(model), prompt, bench_plan.tokens)())


@torch.no_grad()
def test_the_plain_gpt2_has_the_logits_of_harken_with_the_same_weights():
    settings = TINY.model_copy(update={"context": 12})
    model, plain = random_gpt(settings), plain_gpt2.PlainGPT2(99, 64, 2, 2, 12)
    plain.embed.weight.copy_(model.embed.weight[:99])
    plain.positions.weight.copy_(model.stack.positions.table.weight)
    plain.norm.load_state_dict(model.norm.state_dict())
    for ours, block in zip(model.stack.blocks, plain.blocks, strict=True):
        attention = ours.attention
        for part in ("weight", "bias"):
            joint = torch.cat([getattr(f, part) for f in (attention.W_q, attention.W_k, attention.W_v)])
            getattr(block.qkv, part).copy_(joint)
        maps = [(attention.W_o, block.out), (ours.mlp.W_1, block.mlp[0]), (ours.mlp.W_2, block.mlp[2])]
        maps += [(ours.attention_sublayer.norm, block.norms[0]), (ours.mlp_sublayer.norm, block.norms[1])]
        for source, target in maps:
            target.load_state_dict(source.state_dict())
    tokens = torch.randint(99, (2, 12))
    torch.testing.assert_close(plain(tokens), model.scores(tokens), rtol=1e-4, atol=1e-3)


@pytest.mark.oracle
@needs_transformers
def test_all_peers_run_on_the_same_batches_and_generate_the_same_text(monkeypatch):
    monkeypatch.setitem(implementations.MATRIX_SIZE, "cpu", 16)
    rows = bench(device="cpu", precisions=("float32", "int8"), **QUICK)["rows"]
    assert [(row["name"], row["precision"]) for row in rows] == [
        ("harken", "float32"),
        ("harken", "float32"),
        ("plain PyTorch", "float32"),
        ("transformers", "float32"),
        ("harken", "float32"),
        ("harken", "int8"),
        ("transformers", "float32"),
        ("ctranslate2", "float32"),
        ("ctranslate2", "int8"),
    ]
    assert [row["same_tokens"] for row in rows[4:] if row["precision"] == "float32"] == [1, 1, 1]
    assert {row["peer"] for row in rows[4:] if row["precision"] == "int8"} == {"ctranslate2, int8"}


@pytest.mark.oracle
@needs_transformers
@pytest.mark.parametrize("peer", [peer for peer in peers.PEERS if peer.train_step], ids=lambda peer: peer.name)
def test_a_step_of_a_peer_is_adamw_with_the_training_settings(peer, monkeypatch):
    models = []
    monkeypatch.setattr(torch.nn.Module, "train", lambda model, mode=True: models.append(model) or model)
    train = Train(device="cpu", precision="float32", compile="no", lr=1e-2, weight_decay=0.5)
    step = peer.train_step(plan(settings=TINY.model_copy(update={"context": 8})), RandomTokens(99, 2, 8).batch, train)
    W = models[-1].get_parameter("transformer.wpe.weight" if peer.name == "transformers" else "positions.weight")
    before = W.detach().clone()
    step()
    moved = (W.detach() - before * (1 - 1e-2 * 0.5)).abs()
    # the first step of AdamW has the size of the learning rate
    assert float(moved.max()) == pytest.approx(1e-2, rel=0.01)
    assert W.grad is None
