"""Optimizers and schedules against PyTorch or their formulas."""

import math

import pytest
import torch
from torch import nn

from harken.models.gpt import GPTSettings
from harken.training.muon import Muon, orthogonalize
from harken.training.optimizers import build_optimizer, hidden_matrices
from harken.training.schedules import learning_rate
from harken.training.settings import Train


def model() -> nn.Module:
    torch.manual_seed(0)
    return GPTSettings(d=16, layers=2, heads=2, context=8).build(50)


def take_steps(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 5) -> dict[str, torch.Tensor]:
    for step in range(steps):
        for n, p in enumerate(net.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + n))
        optimizer.step()
    return dict(net.named_parameters())


# --- Muon -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(12, 12), (12, 20), (20, 12)])
def test_orthogonalizing_a_batch_equals_orthogonalizing_each_matrix(shape):
    batch = torch.randn(5, *shape)
    torch.testing.assert_close(orthogonalize(batch), torch.stack([orthogonalize(M[None])[0] for M in batch]))


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 64), (2, 64, 16), (1, 5, 7)])
def test_orthogonalize_keeps_the_directions_and_equalizes_their_lengths(shape):
    M = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    U, _, V = torch.linalg.svd(M, full_matrices=False)
    inner = U.mT @ orthogonalize(M) @ V.mT  # diagonal if the directions are those of M
    lengths = inner.diagonal(dim1=-2, dim2=-1)
    assert lengths.min() > 0.6
    assert lengths.max() < 1.25
    torch.testing.assert_close(inner, torch.diag_embed(lengths), atol=1e-6, rtol=0)


def test_muon_equals_pytorchs_muon():
    net, other = model(), model()
    rest = [p for p in net.parameters() if not any(p is h for h in hidden_matrices(net))]
    ours = Muon(hidden_matrices(net), torch.optim.SGD(rest, lr=0), lr=0.02, momentum=0.95, weight_decay=0.1)
    reference = torch.optim.Muon(
        hidden_matrices(other), lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    start, a, b = dict(model().named_parameters()), take_steps(net, ours), take_steps(other, reference)
    for name in a:
        # PyTorch iterates in bfloat16: the updates agree to its precision
        update, expected = a[name] - start[name], b[name] - start[name]
        assert (update - expected).norm() <= 0.03 * expected.norm() + 1e-12, name


def test_muon_updates_the_hidden_matrices_and_adamw_the_rest():
    net = model()
    optimizer = build_optimizer(net, Train(optimizer="muon"))
    names = {p: name for name, p in net.named_parameters()}
    matrices = {names[p] for p in optimizer.param_groups[0]["params"]}
    assert matrices == {n for n, p in net.named_parameters() if n.startswith("stack") and p.dim() == 2}
    everything = [p for group in optimizer.param_groups for p in group["params"]]
    assert len(everything) == len(set(everything)) == len(names)


def test_an_untied_head_is_not_a_hidden_matrix():
    net = GPTSettings(d=16, layers=1, heads=2, tie_embeddings=False).build(50)
    assert all(p is not net.head.weight for p in hidden_matrices(net))


def test_a_skipped_update_changes_neither_weights_nor_momentum():
    net = model()
    optimizer = build_optimizer(net, Train(optimizer="muon", lr=0.1))
    take_steps(net, optimizer, 2)
    before = {n: p.clone() for n, p in net.named_parameters()}
    momentum = {s: m.clone() for s, m in optimizer.momentum.items()}
    for p in net.parameters():
        p.grad = torch.full_like(p, math.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    torch.testing.assert_close(dict(net.named_parameters()), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.momentum, momentum, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adamw", "rmsprop", "sgd"])
def test_an_optimizer_equals_that_of_pytorch(name):
    references = {
        "adamw": lambda ps: torch.optim.AdamW(ps, 0.01, betas=(0.9, 0.99), weight_decay=0.0),
        "rmsprop": lambda ps: torch.optim.RMSprop(ps, 0.01, alpha=0.99, momentum=0.8),
        "sgd": lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.8, nesterov=True),
    }
    net, other = model(), model()
    train = Train(optimizer=name, lr=0.01, momentum=0.8, nesterov=name == "sgd", weight_decay=0.0)
    a, b = take_steps(net, build_optimizer(net, train)), take_steps(other, references[name](list(other.parameters())))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", Train.model_fields["optimizer"].annotation.__args__)
def test_weight_decay_of_the_matrices_is_the_same_for_every_optimizer(name):
    net = model()
    optimizer, before = build_optimizer(net, Train(optimizer=name, lr=0.01, weight_decay=0.5)), model().state_dict()
    for _ in range(100):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for n, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), before[n] * (0.995**100 if p.dim() >= 2 else 1), rtol=1e-4, atol=1e-9)


# --- schedules --------------------------------------------------------------------------------------------------------


def rates(steps: int = 100, **settings) -> list[float]:
    train = Train(lr=1.0, **{"warmup": 0, **settings})
    return [learning_rate(step, steps, train) for step in range(steps + 1)]


def test_a_linear_schedule_falls_linearly():
    assert rates(schedule="linear", min_lr_ratio=0.2) == pytest.approx([1 - 0.8 * n / 100 for n in range(101)])


def test_rsqrt_falls_with_the_inverse_root_of_the_step():
    lrs = rates(schedule="rsqrt", warmup=16)
    assert lrs[15] == pytest.approx(1.0)
    assert lrs[63] == pytest.approx(0.5)
    assert lrs[99] == pytest.approx(0.4)


def test_a_constant_rate_with_cooldown_falls_linearly_at_the_end():
    lrs = rates(schedule="constant", cooldown=0.25, min_lr_ratio=0.0)
    assert lrs[:76] == [1.0] * 76
    assert lrs[76:] == pytest.approx([(100 - n) / 25 for n in range(76, 101)])


def test_a_cooldown_is_a_fraction_of_all_steps_and_ends_at_min_lr_ratio():
    lrs = rates(schedule="constant", warmup=0.5, cooldown=0.2, min_lr_ratio=0.1)
    assert lrs[50:81] == [1.0] * 31
    assert lrs[80:] == pytest.approx([1 - 0.9 * n / 20 for n in range(21)])
    for schedule in ("cosine", "linear", "rsqrt"):
        assert rates(schedule=schedule, cooldown=0.2, min_lr_ratio=0.1)[-1] == pytest.approx(0.1), schedule


def test_a_cooldown_starts_after_the_warm_up():
    assert rates(schedule="constant", warmup=0.5, cooldown=0.8)[49:] == pytest.approx(
        [1, *(n / 50 for n in range(50, -1, -1))]
    )


def test_a_warm_up_comes_before_every_schedule():
    for schedule in ("cosine", "linear", "rsqrt", "plateau", "constant"):
        lrs = rates(schedule=schedule, warmup=4)
        assert lrs[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]), schedule
        assert max(lrs) <= 1.0
