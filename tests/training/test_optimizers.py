"""The rules and schedules, each beside PyTorch's own or beside its formula."""

import math

import pytest
import torch
from torch import nn

from harken.models.gpt import Shape
from harken.training.muon import Muon, orthogonal
from harken.training.optimizers import hidden, optimizer, rate
from harken.training.settings import Train


def model() -> nn.Module:
    torch.manual_seed(0)
    return Shape(d=16, layers=2, heads=2, context=8).build(50)


def go(net: nn.Module, rule: torch.optim.Optimizer, steps: int = 5) -> dict[str, torch.Tensor]:
    for step in range(steps):
        for n, p in enumerate(net.parameters()):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(100 * step + n))
        rule.step()
    return dict(net.named_parameters())


# --- Muon -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 16, 64), (2, 64, 16), (1, 5, 7)])
def test_an_orthogonal_update_keeps_the_directions_and_makes_them_about_equally_long(shape):
    M = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    U, _, V = torch.linalg.svd(M, full_matrices=False)
    inner = U.mT @ orthogonal(M) @ V.mT  # diagonal, if the directions are those of M
    lengths = inner.diagonal(dim1=-2, dim2=-1)
    assert lengths.min() > 0.6
    assert lengths.max() < 1.25
    torch.testing.assert_close(inner, torch.diag_embed(lengths), atol=1e-6, rtol=0)


def test_muon_is_pytorchs_muon():
    net, other = model(), model()
    rest = [p for p in net.parameters() if not any(p is h for h in hidden(net))]
    ours = Muon(hidden(net), torch.optim.SGD(rest, lr=0), lr=0.02, momentum=0.95, weight_decay=0.1)
    theirs = torch.optim.Muon(
        hidden(other), lr=0.02, momentum=0.95, weight_decay=0.1, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    start, a, b = dict(model().named_parameters()), go(net, ours), go(other, theirs)
    for name in a:
        # PyTorch's rounds are made in bfloat16: the moved distance agrees to its precision
        moved, want = a[name] - start[name], b[name] - start[name]
        assert (moved - want).norm() <= 0.03 * want.norm() + 1e-12, name


def test_muon_takes_the_hidden_matrices_and_adamw_all_else():
    net = model()
    rule = optimizer(net, Train(optimizer="muon"))
    names = {p: name for name, p in net.named_parameters()}
    matrices = {names[p] for p in rule.param_groups[0]["params"]}
    assert matrices == {n for n, p in net.named_parameters() if n.startswith("stack") and p.dim() == 2}
    everything = [p for group in rule.param_groups for p in group["params"]]
    assert len(everything) == len(set(everything)) == len(names)


def test_an_untied_head_is_no_hidden_matrix():
    net = Shape(d=16, layers=1, heads=2, tie_embeddings=False).build(50)
    assert all(p is not net.head.weight for p in hidden(net))


def test_an_update_that_is_held_back_changes_no_weight_and_no_moment():
    net = model()
    rule = optimizer(net, Train(optimizer="muon", lr=0.1))
    go(net, rule, 2)
    before = {n: p.clone() for n, p in net.named_parameters()}
    moments = {s: m.clone() for s, m in rule.moments.items()}
    for p in net.parameters():
        p.grad = torch.full_like(p, math.nan)
    rule.found_inf = torch.ones(())
    rule.step()
    torch.testing.assert_close(dict(net.named_parameters()), before, rtol=0, atol=0)
    torch.testing.assert_close(rule.moments, moments, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adamw", "adam", "rmsprop", "sgd"])
def test_a_rule_is_the_one_of_its_name(name):
    made = {
        "adamw": lambda ps: torch.optim.AdamW(ps, 0.01, betas=(0.9, 0.99), weight_decay=0.0),
        "adam": lambda ps: torch.optim.Adam(ps, 0.01, betas=(0.9, 0.99)),
        "rmsprop": lambda ps: torch.optim.RMSprop(ps, 0.01, alpha=0.99, momentum=0.8),
        "sgd": lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.8, nesterov=True),
    }
    net, other = model(), model()
    train = Train(optimizer=name, lr=0.01, momentum=0.8, nesterov=name == "sgd", weight_decay=0.0)
    a, b = go(net, optimizer(net, train)), go(other, made[name](list(other.parameters())))
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", Train.model_fields["optimizer"].annotation.__args__)
def test_a_decay_takes_the_same_from_the_matrices_under_every_rule(name):
    net = model()
    rule, before = optimizer(net, Train(optimizer=name, lr=0.01, weight_decay=0.5)), model().state_dict()
    for _ in range(100):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        rule.step()
    for n, p in net.named_parameters():
        torch.testing.assert_close(p.detach(), before[n] * (0.995**100 if p.dim() >= 2 else 1), rtol=1e-4, atol=1e-9)


# --- schedules --------------------------------------------------------------------------------------------------------


def rates(steps: int = 100, **settings) -> list[float]:
    train = Train(lr=1.0, **{"warmup": 0, **settings})
    return [rate(step, steps, train) for step in range(steps + 1)]


def test_a_linear_schedule_falls_straight_to_its_end():
    assert rates(schedule="linear", min_lr_ratio=0.2) == pytest.approx([1 - 0.8 * n / 100 for n in range(101)])


def test_the_schedule_of_2017_falls_as_one_over_the_root_of_the_step():
    found = rates(schedule="rsqrt", warmup=16)
    assert found[15] == pytest.approx(1.0)
    assert found[63] == pytest.approx(0.5)
    assert found[99] == pytest.approx(0.4)


def test_a_constant_rate_with_cool_down_stands_and_then_falls_straight():
    found = rates(schedule="constant", cooldown=0.25, min_lr_ratio=0.0)
    assert found[:76] == [1.0] * 76
    assert found[76:] == pytest.approx([(100 - n) / 25 for n in range(76, 101)])


def test_a_cool_down_is_a_share_of_all_steps_and_ends_at_final():
    found = rates(schedule="constant", warmup=0.5, cooldown=0.2, min_lr_ratio=0.1)
    assert found[50:81] == [1.0] * 31
    assert found[80:] == pytest.approx([1 - 0.9 * n / 20 for n in range(21)])
    for schedule in ("cosine", "linear", "rsqrt"):
        assert rates(schedule=schedule, cooldown=0.2, min_lr_ratio=0.1)[-1] == pytest.approx(0.1), schedule


def test_a_cool_down_waits_for_the_warm_up():
    assert rates(schedule="constant", warmup=0.5, cooldown=0.8)[49:] == pytest.approx(
        [1, *(n / 50 for n in range(50, -1, -1))]
    )


def test_a_warm_up_comes_before_every_schedule():
    for schedule in ("cosine", "linear", "rsqrt", "plateau", "constant"):
        found = rates(schedule=schedule, warmup=4)
        assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]), schedule
        assert max(found) <= 1.0
