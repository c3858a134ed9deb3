"""FlexAttention on a device that has it: the same numbers as the written-out equation. Run: pytest -m gpu tests/core"""

from importlib import import_module
from itertools import product

import pytest
import torch

import harken
from harken.core import CAUSAL, ScaledDot, attend, bigbird, explicit, hubs, keep, same, window
from harken.data.synthetic.tales import tales
from harken.models.bigbird import tiled, within
from harken.models.gpt import Shape
from harken.run_folder import sha256
from harken.training.cost import flops_per_token

LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"  # by some versions of the compiler
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(LEAF)]
L, D = 1024, 64
NAMES = ["window", "causal window", "causal documents", "padding", "hubs"]
NAMES += ["bigbird", "causal bigbird", "padded bigbird", "packed bigbird"]


def structures(device: torch.device) -> dict:
    doc = torch.arange(L, device=device).div(300, rounding_mode="floor").expand(2, L)
    pos = (torch.arange(L, device=device) % 300).expand(2, L)
    real = torch.ones(2, L, dtype=torch.bool, device=device)
    real[0, 700:] = False
    real[1] = False  # nobody may look at anything
    return {
        "window": window(50),
        "causal window": CAUSAL & window(200),
        "bigbird": tiled(bigbird(L // 64, 1, 1, 2), 64),
        "causal bigbird": tiled(bigbird(L // 64, 1, 1, 2) & CAUSAL, 64) & CAUSAL,
        "padded bigbird": tiled(bigbird(L // 128, 1, 1, 1), 128) & keep(real),
        "packed bigbird": within(tiled(bigbird(L // 64, 1, 1, 2) & CAUSAL, 64) & CAUSAL, pos) & same(doc),
        "causal documents": CAUSAL & same(doc),
        "padding": keep(real),
        "hubs": (window(10) | hubs(4)) & keep(real),
    }


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("these tests need a CUDA device")
    return torch.device("cuda")


def test_what_flex_would_compute_can_be_counted(device, monkeypatch):
    monkeypatch.setattr(import_module("harken.core.attend"), "LONG", L)
    q = torch.randn(2, 4, L, D, device=device, requires_grad=True)
    nothing = torch.nn.Identity()

    def call() -> None:
        attend(q, q, q, ScaledDot(D), structures(device)["causal documents"]).sum().backward()

    assert flops_per_token(nothing, call, 1) == 3 * 2 * (2 * 4 * L * L * D) * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [4, 2])
def test_flex_gives_the_numbers_and_gradients_of_the_equation(name, heads, device, monkeypatch):
    structure = structures(device)[name]
    made = lambda H: torch.randn(2, H, L, D, device=device, requires_grad=True)  # noqa: E731
    q, k, v = made(4), made(heads), made(heads)
    route = import_module("harken.core.attend")
    monkeypatch.setattr(route, "LONG", L)
    monkeypatch.setattr(route, "fused", None)  # if another route is taken, this test fails
    monkeypatch.setattr(route, "sparse", None)
    monkeypatch.setattr(route, "blocks", None)
    o = attend(q, k, v, ScaledDot(D), structure)
    want = explicit(q, k, v, ScaledDot(D), structure.lay(2, L, L, device))
    toward = torch.randn_like(o)
    torch.testing.assert_close(o, want, atol=2e-3, rtol=2e-3)
    got = torch.autograd.grad((o * toward).sum(), (q, k, v))
    for a, b in zip(got, torch.autograd.grad((want * toward).sum(), (q, k, v)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)


def test_flex_stays_a_kernel_for_all_the_ways_in_which_a_training_calls_it(device, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(import_module("harken.core.attend"), "LONG", 512)
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    for n, (B, long) in enumerate([(3, 600), (3, 700), (2, 640), (1, 600), (1, 900), (4, 512)]):
        for learned, half in product((True, False), repeat=2):
            q = torch.randn(B, 2, long, D, device=device, requires_grad=learned)
            with torch.set_grad_enabled(learned), torch.autocast("cuda", torch.bfloat16, enabled=half):
                attend(q, q, q, ScaledDot(D), CAUSAL & window(30 + n))


def test_bigbird_on_the_device_builds_nothing_of_size_l_squared(device):
    torch._dynamo.reset()  # what the tests above compiled counts too
    long = 32_768
    structure = tiled(bigbird(long // 64, 1, 1, 3), 64)
    q, k, v = (torch.randn(1, 1, long, D, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < long * long / 4  # a mask of two bits a pair would be more


def bird(**more) -> torch.nn.Module:
    torch.manual_seed(0)
    return Shape(d=128, layers=2, heads=2, context=L, structure="bigbird", block=64, **more).build(100)


def test_a_model_of_blocks_says_on_the_device_what_it_says_on_the_cpu(device):
    torch._dynamo.reset()
    model, tokens = bird(), torch.randint(100, (2, 1000))
    want = model(tokens).detach()
    torch.testing.assert_close(model.to(device)(tokens.to(device)).cpu(), want, atol=5e-3, rtol=5e-3)


def test_blocks_with_dropout_have_finite_gradients_on_the_device(device):
    model = bird(dropout=0.1).to(device)
    model(torch.randint(100, (2, 1000), device=device)).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.stack.parameters())


def test_a_training_with_blocks_is_recorded_and_goes_on(device, tmp_path):
    (tmp_path / "tales.txt").write_text("\n".join(tales(400)))
    settings = {"train.steps": 8, "model.size": "tiny", "model.context": 1024, "model.structure": "bigbird"}
    run = harken.train(tmp_path / "tales.txt", out=tmp_path / "run", settings=settings | {"train.batch": 2})
    assert run.metrics["valid"]["loss"] < 6


def test_twenty_packed_batches_are_compiled_for_once(device, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(import_module("harken.core.attend"), "LONG", L)
    model = Shape(d=128, layers=2, heads=2, context=L).build(100).to(device)
    counts = []
    for seed in range(20):
        torch.manual_seed(seed)
        doc = (torch.rand(2, L, device=device) < 0.01).long().cumsum(1)
        tokens = torch.randint(100, (2, L), device=device)
        model(tokens, structure=same(doc)).sum().backward()
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] == counts[1], counts


def test_padded_batches_of_many_lengths_compile_nothing(device, monkeypatch):
    monkeypatch.setattr(import_module("harken.core.attend"), "flex", None)  # if it is called, this test fails
    model = Shape(d=128, layers=2, heads=2, context=2 * L).build(100).to(device)
    for extra in range(4):
        real = torch.rand(2, L + extra, device=device) < 0.9
        model(torch.randint(100, real.shape, device=device), structure=keep(real)).sum().backward()


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_a_deterministic_training_repeats_itself_bit_for_bit_on_the_device(positions, device, tmp_path):
    (tmp_path / "tales.txt").write_text("\n".join(tales(40)))
    settings = {"train.steps": 5, "train.deterministic": True, "model.positions": positions, "model.size": "tiny"}
    runs = [harken.train(tmp_path / "tales.txt", out=tmp_path / n, settings=settings) for n in "ab"]
    assert len({sha256(run.path / "model.safetensors") for run in runs}) == 1
