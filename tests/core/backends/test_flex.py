"""FlexAttention on a GPU: the same values as the explicit backend. Run: pytest -m gpu tests/core"""

from importlib import import_module
from itertools import product

import pytest
import torch

import harken
from harken.core import BACKENDS, CAUSAL, ScaledDot, attend, bigbird, explicit, global_tokens, keep, same, window
from harken.core.backends.blocks import blockwise, per_document
from harken.data.synthetic.tales import tales
from harken.files import sha256_of
from harken.models.gpt import GPTSettings
from harken.training.cost import flops_per_token

NON_LEAF = "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"  # by some versions of the compiler
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(NON_LEAF)]
L, D = 1024, 64
NAMES = ["window", "causal window", "causal documents", "padding", "global tokens"]
NAMES += ["bigbird", "causal bigbird", "padded bigbird", "packed bigbird"]


def structures(device: torch.device) -> dict:
    doc = torch.arange(L, device=device).div(300, rounding_mode="floor").expand(2, L)
    pos = (torch.arange(L, device=device) % 300).expand(2, L)
    real = torch.ones(2, L, dtype=torch.bool, device=device)
    real[0, 700:] = False
    real[1] = False  # no key is allowed
    return {
        "window": window(50),
        "causal window": CAUSAL & window(200),
        "bigbird": blockwise(bigbird(L // 64, 1, 1, 2), 64),
        "causal bigbird": blockwise(bigbird(L // 64, 1, 1, 2) & CAUSAL, 64) & CAUSAL,
        "padded bigbird": blockwise(bigbird(L // 128, 1, 1, 1), 128) & keep(real),
        "packed bigbird": per_document(blockwise(bigbird(L // 64, 1, 1, 2) & CAUSAL, 64) & CAUSAL, pos) & same(doc),
        "causal documents": CAUSAL & same(doc),
        "padding": keep(real),
        "global tokens": (window(10) | global_tokens(4)) & keep(real),
    }


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.fail("these tests need a CUDA device")
    return torch.device("cuda")


def test_the_flops_of_flex_can_be_counted(device, monkeypatch):
    monkeypatch.setattr(import_module("harken.core.attend"), "FLEX_MIN_LENGTH", L)
    q = torch.randn(2, 4, L, D, device=device, requires_grad=True)
    model = torch.nn.Identity()

    def call() -> None:
        attend(q, q, q, ScaledDot(D), structures(device)["causal documents"]).sum().backward()

    assert flops_per_token(model, call, 1) == 3 * 2 * (2 * 4 * L * L * D) * 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [4, 2])
def test_flex_has_the_values_and_gradients_of_explicit(name, heads, device, monkeypatch):
    structure = structures(device)[name]
    q, k, v = (torch.randn(2, H, L, D, device=device, requires_grad=True) for H in (4, heads, heads))
    monkeypatch.setattr(import_module("harken.core.attend"), "FLEX_MIN_LENGTH", L)
    for other in ("fused", "sparse", "blocks"):
        monkeypatch.delitem(BACKENDS, other)  # an error if it is selected
    o = attend(q, k, v, ScaledDot(D), structure)
    expected = explicit(q, k, v, ScaledDot(D), structure.layout(2, L, L, device))
    direction = torch.randn_like(o)
    torch.testing.assert_close(o, expected, atol=2e-3, rtol=2e-3)
    grads = torch.autograd.grad((o * direction).sum(), (q, k, v))
    for a, b in zip(grads, torch.autograd.grad((expected * direction).sum(), (q, k, v)), strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=1e-2, rtol=1e-2)


def test_flex_does_not_exceed_the_recompile_limit_in_training(device, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(import_module("harken.core.attend"), "FLEX_MIN_LENGTH", 512)
    monkeypatch.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
    for n, (B, length) in enumerate([(3, 600), (3, 700), (2, 640), (1, 600), (1, 900), (4, 512)]):
        for training, half in product((True, False), repeat=2):
            q = torch.randn(B, 2, length, D, device=device, requires_grad=training)
            with torch.set_grad_enabled(training), torch.autocast("cuda", torch.bfloat16, enabled=half):
                attend(q, q, q, ScaledDot(D), CAUSAL & window(30 + n))


def test_bigbird_on_a_gpu_builds_no_tensor_of_size_l_squared(device):
    torch._dynamo.reset()  # the compilations of earlier tests count
    length = 32_768
    structure = blockwise(bigbird(length // 64, 1, 1, 3), 64)
    q, k, v = (torch.randn(1, 1, length, D, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attend(q, k, v, ScaledDot(D), structure).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < length * length / 4  # less than two bits per pair


def bigbird_gpt(**settings) -> torch.nn.Module:
    torch.manual_seed(0)
    return GPTSettings(d=128, layers=2, heads=2, context=L, structure="bigbird", block_size=64, **settings).build(100)


def test_a_bigbird_model_gives_the_same_values_on_gpu_and_cpu(device):
    torch._dynamo.reset()
    model, tokens = bigbird_gpt(), torch.randint(100, (2, 1000))
    expected = model(tokens).detach()
    torch.testing.assert_close(model.to(device)(tokens.to(device)).cpu(), expected, atol=5e-3, rtol=5e-3)


def test_blocks_with_dropout_have_finite_gradients_on_a_gpu(device):
    model = bigbird_gpt(dropout=0.1).to(device)
    model(torch.randint(100, (2, 1000), device=device)).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.stack.parameters())


def test_a_bigbird_training_runs_with_cuda_graphs(device, tmp_path):
    (tmp_path / "tales.txt").write_text("\n".join(tales(400)))
    settings = {"train.steps": 8, "model.size": "tiny", "model.context": 1024, "model.structure": "bigbird"}
    run = harken.train(tmp_path / "tales.txt", out=tmp_path / "run", settings=settings | {"train.batch": 2})
    assert run.metrics["valid"]["loss"] < 6


def test_twenty_packed_batches_need_one_compilation(device, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(import_module("harken.core.attend"), "FLEX_MIN_LENGTH", L)
    model = GPTSettings(d=128, layers=2, heads=2, context=L).build(100).to(device)
    counts = []
    for seed in range(20):
        torch.manual_seed(seed)
        doc = (torch.rand(2, L, device=device) < 0.01).long().cumsum(1)
        tokens = torch.randint(100, (2, L), device=device)
        model(tokens, structure=same(doc)).sum().backward()
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[-1] == counts[1], counts


def test_short_padded_batches_are_not_compiled(device, monkeypatch):
    monkeypatch.delitem(BACKENDS, "flex")  # an error if it is selected
    model = GPTSettings(d=128, layers=2, heads=2, context=2 * L).build(100).to(device)
    for extra in range(4):
        real = torch.rand(2, L + extra, device=device) < 0.9
        model(torch.randint(100, real.shape, device=device), structure=keep(real)).sum().backward()


@pytest.mark.parametrize("positions", ["rotary", "learned", "alibi"])
def test_deterministic_training_on_a_gpu_is_bitwise_reproducible(positions, device, tmp_path):
    (tmp_path / "tales.txt").write_text("\n".join(tales(40)))
    settings = {"train.steps": 5, "train.deterministic": True, "model.positions": positions, "model.size": "tiny"}
    runs = [harken.train(tmp_path / "tales.txt", out=tmp_path / n, settings=settings) for n in "ab"]
    assert len({sha256_of(run.path / "model.safetensors") for run in runs}) == 1
