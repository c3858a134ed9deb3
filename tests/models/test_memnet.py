"""A memory network beside the same written out: loops over words, lines and hops, in float64."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from harken.core import watching
from harken.models.memnet import MemNet, Shape
from harken.settings import Outputs

VOCAB, ANSWERS, B, M, W = 17, (3, 1, 9, 14), 5, 6, 4
ASKED = Outputs(VOCAB, len(ANSWERS), words=ANSWERS)
LECTURE = {"words": "bag", "tying": "layerwise"}
PAPER = {"residual": True, "time": True, "words": "position", "tying": "adjacent", "hidden": 0, "blanks": True}
LAYERS = {**PAPER, "tying": "layerwise"}
EVERY = [
    {"residual": r, "time": t, "words": w, "tying": y, "hidden": h, "blanks": b}
    for r, t, w, y, h, b in product(
        (False, True), (False, True), ("bag", "position"), ("adjacent", "layerwise"), (0, None), (False, True)
    )
]


def build(seed: int = 0, **fields) -> MemNet:
    torch.manual_seed(seed)
    model = Shape(**{"d": 6, "hops": 3, "memory": 9, **fields}).build(ASKED).double()
    with torch.no_grad():  # fresh weights are so small that many mistakes would not show
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.5
    return model


def stories(seed: int = 1) -> dict[str, Tensor]:
    """Stories of 6, 5, 3, 1 and 0 lines, of 1 to 4 words each."""
    draw = torch.Generator().manual_seed(seed)
    lines, question = (torch.randint(1, VOCAB + 1, shape, generator=draw) for shape in ((B, M, W), (B, W)))
    longest = torch.randint(1, W + 1, (B, M, 1), generator=draw)
    counts = torch.tensor([6, 5, 3, 1, 0])
    lines = lines * (torch.arange(W) < longest) * (torch.arange(M)[:, None] < counts[:, None, None])
    question[:, 3] = 0
    return {"lines": lines, "question": question, "ages": (counts[:, None] - 1 - torch.arange(M)).clamp_min(0)}


def by_hand(model: MemNet, lines: Tensor, question: Tensor, ages: Tensor, *, linear: bool = False) -> list[list[float]]:
    """The network as the papers write it, without one product of matrices."""
    shape, d, E = model.shape, model.d, model.embed.weight.tolist()
    adjacent = shape.tying == "adjacent"

    def vector(words: list[int], table: int, age: int | None = None) -> list[float]:
        said = [word for word in words if word]
        x = [0.0] * d
        for j, word in enumerate(said, 1):
            for k in range(d):
                late, high = (j - (len(said) + 1) / 2) / len(said), (k + 1 - (d + 1) / 2) / d
                weight = 1.0 if shape.words == "bag" else 1 + 4 * late * high
                x[k] += weight * E[word][table * d + k]
        if age is not None and model.ages is not None:
            x = [x[k] + model.ages.weight[age, table * d + k].item() for k in range(d)]
        return x

    found = []
    for story, asked, old in zip(lines.tolist(), question.tolist(), ages.tolist(), strict=True):
        told = [(line, age) for line, age in zip(story, old, strict=True) if any(line)]
        q = vector(asked, 0 if adjacent else 2)
        for hop in range(shape.hops):
            keys, values = (
                [vector(line, (hop if adjacent else 0) + side, age) for line, age in told] for side in (0, 1)
            )
            scores = [sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
            if shape.blanks:
                scores += [0.0] * (shape.memory - len(told))
                values += [[0.0] * d] * (shape.memory - len(told))
            a = scores if linear else [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
            o = [sum(w * v[k] for w, v in zip(a, values, strict=True)) for k in range(d)]
            if shape.residual:
                H = torch.eye(d).tolist() if model.H is None else model.H.weight.tolist()
                o = [o[k] + sum(H[k][i] * q[i] for i in range(d)) for k in range(d)]
            q = o
        if model.mlp is not None:
            q = model.mlp(torch.tensor(q, dtype=torch.float64)).tolist()
        rows = [E[word][shape.hops * d :] for word in ANSWERS] if adjacent else model.W_y.weight.tolist()
        found.append([sum(a * b for a, b in zip(q, row, strict=True)) for row in rows])
    return found


@pytest.mark.parametrize("fields", EVERY, ids=lambda f: "-".join(map(str, f.values())))
def test_every_choice_of_settings_equals_the_loop_over_words_lines_and_hops(fields):
    model, told = build(**fields), stories()
    expected = torch.tensor(by_hand(model, **told), dtype=torch.float64)
    torch.testing.assert_close(model(**told), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fields", [PAPER, LAYERS], ids=["adjacent", "layerwise"])
def test_the_linear_start_leaves_the_softmax_out(fields):
    model, told = build(**fields), stories()
    expected = torch.tensor(by_hand(model, **told, linear=True), dtype=torch.float64)
    torch.testing.assert_close(model(**told, linear=True), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(model(**told), expected)


def test_the_default_is_the_lectures_network():
    shape = Shape()
    assert (shape.residual, shape.time, shape.words, shape.tying) == (False, False, "bag", "layerwise")


def test_without_a_residual_the_last_q_is_a_mean_of_values_and_the_question_only_steers():
    model, told = build(**LECTURE, hops=1, d_ff=0), stories()
    alone = {name: x[3:4] for name, x in told.items()}  # one line: whatever is asked, all weight is on it
    other = alone | {"question": (alone["question"] + 1) % VOCAB + 1}
    torch.testing.assert_close(model(**alone), model(**other))


@pytest.mark.parametrize("fields", [LECTURE, PAPER], ids=["lecture", "paper"])
def test_empty_lines_and_empty_words_change_nothing(fields):
    model, told = build(**fields), stories()
    padded = torch.nn.functional.pad(told["lines"], (0, 3, 0, 2))
    wider = {"lines": padded, "question": torch.nn.functional.pad(told["question"], (0, 2))}
    ages = torch.nn.functional.pad(told["ages"], (0, 2))
    torch.testing.assert_close(model(**wider, ages=ages), model(**told), rtol=0, atol=1e-12)


def test_the_order_of_lines_is_known_by_their_ages_alone():
    turned = torch.arange(M - 1, -1, -1)
    for time in (False, True):
        model, told = build(**{**PAPER, "time": time}), {name: x[:1] for name, x in stories().items()}
        moved = {**told, "lines": told["lines"][:, turned]}
        assert torch.allclose(model(**moved), model(**told)) is not time
        torch.testing.assert_close(model(**moved | {"ages": told["ages"][:, turned]}), model(**told))


def test_a_watcher_sees_the_weights_of_every_hop_and_changes_no_bit():
    model, told = build(**PAPER), stories()
    with watching(model) as views:
        seen = model(**told)
    assert torch.equal(seen, model(**told))
    assert list(views) == ["hops.0", "hops.1", "hops.2"]
    for view in views.values():
        A = view.whole()[:, 0, 0]  # B M+1: what is looked at and finds nothing is the last
        torch.testing.assert_close(A.sum(-1), torch.ones(B, dtype=torch.float64))
        assert not A[:, :-1][told["lines"].sum(-1) == 0].any()
        assert A[4, -1] == 1


def test_a_story_that_fills_the_memory_has_no_blanks_left():
    told = {name: x[:1] for name, x in stories().items()}
    full, without = build(**PAPER, memory=M), build(**{**PAPER, "blanks": False}, memory=M)
    torch.testing.assert_close(full(**told), without(**told))


def test_lines_that_stand_in_many_stories_may_be_read_once():
    model, told = build(**PAPER), stories()
    table, rows = told["lines"].flatten(0, 1).unique(dim=0, return_inverse=True)
    assert len(table) < B * M
    torch.testing.assert_close(model(**{**told, "lines": table}, rows=rows.view(B, M)), model(**told))


@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERS], ids=["lecture", "adjacent", "layerwise"])
def test_lines_written_one_by_one_equal_the_whole_story_and_gradients_reach_each_of_them(fields):
    model, told = build(**fields), {name: x[:1] for name, x in stories().items()}
    written = [model.write(told["lines"][:, n : n + 1]).detach().requires_grad_() for n in range(M)]
    y = model.read(torch.cat(written, 2), told["question"], told["ages"], torch.ones(1, M, dtype=torch.bool))
    torch.testing.assert_close(y, model(**told))
    y[0, 0].backward()
    assert all(float(line.grad.abs().sum()) > 0 for line in written)


@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERS], ids=["lecture", "adjacent", "layerwise"])
def test_every_parameter_gets_a_gradient(fields):
    model = build(**fields)
    model(**stories()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("linear", [False, True], ids=["softmax", "linear"])
@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERS], ids=["lecture", "adjacent", "layerwise"])
def test_models_trained_together_have_the_gradients_of_each_alone(fields, linear):
    models = [build(seed, **fields) for seed in range(3)]
    each = [stories(seed) for seed in range(3)]  # and each its own stories
    weights, buffers = stack_module_state(models)

    def loss(weights, buffers, told) -> Tensor:
        made = functional_call(models[0], (weights, buffers), (), {**told, "linear": linear})
        return made.log_softmax(-1)[:, 1].sum()

    told = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    with sdpa_kernel(SDPBackend.MATH):  # torch's CPU kernel would loop over the models
        together = vmap(grad(loss))(weights, buffers, told)
    for n, model in enumerate(models):
        model(**each[n], linear=linear).log_softmax(-1)[:, 1].sum().backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(together[name][n], p.grad, rtol=1e-9, atol=1e-9)


def test_a_batch_can_be_learned_by_heart():
    model, told = build(**PAPER).float(), stories()
    rule, targets = torch.optim.Adam(model.parameters(), lr=1e-2), torch.arange(B) % len(ANSWERS)
    for _ in range(150):
        rule.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(**told), targets)
        loss.backward()
        rule.step()
    assert float(loss.detach()) < 0.1
