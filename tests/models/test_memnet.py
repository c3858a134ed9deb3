"""The memory network equals loops over words, lines and hops in float64."""

import math
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from harken.core import watching
from harken.models.memnet import MemNet, MemNetSettings
from harken.settings import LabelOutputs

VOCAB, ANSWERS, B, M, W = 17, (3, 1, 9, 14), 5, 6, 4
OUTPUTS = LabelOutputs(VOCAB, len(ANSWERS), answer_ids=ANSWERS)
LECTURE = {"words": "bag", "tying": "layerwise"}
PAPER = {"residual": True, "time": True, "words": "position", "tying": "adjacent"}
PAPER |= {"mlp_width": 0, "attend_empty_slots": True}
LAYERWISE = {**PAPER, "tying": "layerwise"}
COMBINATIONS = [
    {"residual": r, "time": t, "words": w, "tying": y, "mlp_width": m, "attend_empty_slots": e}
    for r, t, w, y, m, e in product(
        (False, True), (False, True), ("bag", "position"), ("adjacent", "layerwise"), (0, None), (False, True)
    )
]


def build(seed: int = 0, **fields) -> MemNet:
    torch.manual_seed(seed)
    model = MemNetSettings(**{"d": 6, "hops": 3, "memory": 9, **fields}).build(OUTPUTS).double()
    with torch.no_grad():  # the initial weights are too small to show many errors
        for weight in model.parameters():
            weight += torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())) * 0.5
    return model


def stories(seed: int = 1) -> dict[str, Tensor]:
    """Stories of 6, 5, 3, 1 and 0 lines, of 1 to 4 words each."""
    rng = torch.Generator().manual_seed(seed)
    lines, question = (torch.randint(1, VOCAB + 1, shape, generator=rng) for shape in ((B, M, W), (B, W)))
    longest = torch.randint(1, W + 1, (B, M, 1), generator=rng)
    counts = torch.tensor([6, 5, 3, 1, 0])
    lines = lines * (torch.arange(W) < longest) * (torch.arange(M)[:, None] < counts[:, None, None])
    question[:, 3] = 0
    return {"lines": lines, "question": question, "ages": (counts[:, None] - 1 - torch.arange(M)).clamp_min(0)}


def by_hand(model: MemNet, lines: Tensor, question: Tensor, ages: Tensor, *, linear: bool = False) -> list[list[float]]:
    """The network as in the papers, without matrix products."""
    settings, d, E = model.settings, model.d, model.embed.weight.tolist()
    adjacent = settings.tying == "adjacent"

    def vector(words: list[int], table: int, age: int | None = None) -> list[float]:
        real_words = [word for word in words if word]
        x = [0.0] * d
        for j, word in enumerate(real_words, 1):
            for k in range(d):
                late, high = (j - (len(real_words) + 1) / 2) / len(real_words), (k + 1 - (d + 1) / 2) / d
                weight = 1.0 if settings.words == "bag" else 1 + 4 * late * high
                x[k] += weight * E[word][table * d + k]
        if age is not None and model.ages is not None:
            x = [x[k] + model.ages.weight[age, table * d + k].item() for k in range(d)]
        return x

    outputs = []
    for story, question_words, line_ages in zip(lines.tolist(), question.tolist(), ages.tolist(), strict=True):
        memory = [(line, age) for line, age in zip(story, line_ages, strict=True) if any(line)]
        q = vector(question_words, 0 if adjacent else 2)
        for hop in range(settings.hops):
            keys, values = (
                [vector(line, (hop if adjacent else 0) + side, age) for line, age in memory] for side in (0, 1)
            )
            scores = [sum(a * b for a, b in zip(q, key, strict=True)) for key in keys]
            if settings.attend_empty_slots:
                scores += [0.0] * (settings.memory - len(memory))
                values += [[0.0] * d] * (settings.memory - len(memory))
            a = scores if linear else [math.exp(s) / sum(map(math.exp, scores)) for s in scores]
            o = [sum(w * v[k] for w, v in zip(a, values, strict=True)) for k in range(d)]
            if settings.residual:
                H = torch.eye(d).tolist() if model.H is None else model.H.weight.tolist()
                o = [o[k] + sum(H[k][i] * q[i] for i in range(d)) for k in range(d)]
            q = o
        if model.mlp is not None:
            q = model.mlp(torch.tensor(q, dtype=torch.float64)).tolist()
        rows = [E[word][settings.hops * d :] for word in ANSWERS] if adjacent else model.W_y.weight.tolist()
        outputs.append([sum(a * b for a, b in zip(q, row, strict=True)) for row in rows])
    return outputs


@pytest.mark.parametrize("fields", COMBINATIONS, ids=lambda f: "-".join(map(str, f.values())))
def test_every_combination_of_settings_equals_the_loops(fields):
    model, inputs = build(**fields), stories()
    expected = torch.tensor(by_hand(model, **inputs), dtype=torch.float64)
    torch.testing.assert_close(model(**inputs), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("fields", [PAPER, LAYERWISE], ids=["adjacent", "layerwise"])
def test_linear_mode_has_no_softmax(fields):
    model, inputs = build(**fields), stories()
    expected = torch.tensor(by_hand(model, **inputs, linear=True), dtype=torch.float64)
    torch.testing.assert_close(model(**inputs, linear=True), expected, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(model(**inputs), expected)


def test_the_default_is_the_network_of_the_lecture():
    settings = MemNetSettings()
    assert (settings.residual, settings.time, settings.words, settings.tying) == (False, False, "bag", "layerwise")


def test_without_residual_the_last_q_is_a_weighted_mean_of_values():
    model, inputs = build(**LECTURE, hops=1, mlp_width=0), stories()
    one_line = {name: x[3:4] for name, x in inputs.items()}  # the line has all the weight for every question
    changed = one_line | {"question": (one_line["question"] + 1) % VOCAB + 1}
    torch.testing.assert_close(model(**one_line), model(**changed))


@pytest.mark.parametrize("fields", [LECTURE, PAPER], ids=["lecture", "paper"])
def test_padding_lines_and_words_have_no_effect(fields):
    model, inputs = build(**fields), stories()
    padded = torch.nn.functional.pad(inputs["lines"], (0, 3, 0, 2))
    wider = {"lines": padded, "question": torch.nn.functional.pad(inputs["question"], (0, 2))}
    ages = torch.nn.functional.pad(inputs["ages"], (0, 2))
    torch.testing.assert_close(model(**wider, ages=ages), model(**inputs), rtol=0, atol=1e-12)


def test_the_order_of_lines_is_encoded_by_their_ages_only():
    order = torch.arange(M - 1, -1, -1)
    for time in (False, True):
        model, inputs = build(**{**PAPER, "time": time}), {name: x[:1] for name, x in stories().items()}
        moved = {**inputs, "lines": inputs["lines"][:, order]}
        assert torch.allclose(model(**moved), model(**inputs)) is not time
        torch.testing.assert_close(model(**moved | {"ages": inputs["ages"][:, order]}), model(**inputs))


def test_watching_records_the_weights_of_every_hop_and_changes_no_bit():
    model, inputs = build(**PAPER), stories()
    with watching(model) as views:
        watched = model(**inputs)
    assert torch.equal(watched, model(**inputs))
    assert list(views) == ["hops.0", "hops.1", "hops.2"]
    for view in views.values():
        A = view.full()[:, 0, 0]  # B M+1: the last column is the empty slots
        torch.testing.assert_close(A.sum(-1), torch.ones(B, dtype=torch.float64))
        assert not A[:, :-1][inputs["lines"].sum(-1) == 0].any()
        assert A[4, -1] == 1


def test_a_full_memory_has_no_empty_slots():
    inputs = {name: x[:1] for name, x in stories().items()}
    full, without = build(**PAPER, memory=M), build(**{**PAPER, "attend_empty_slots": False}, memory=M)
    torch.testing.assert_close(full(**inputs), without(**inputs))


def test_a_table_of_distinct_lines_gives_the_same_outputs():
    model, inputs = build(**PAPER), stories()
    table, rows = inputs["lines"].flatten(0, 1).unique(dim=0, return_inverse=True)
    assert len(table) < B * M
    torch.testing.assert_close(model(**{**inputs, "lines": table}, rows=rows.view(B, M)), model(**inputs))


@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERWISE], ids=["lecture", "adjacent", "layerwise"])
def test_lines_written_one_by_one_equal_one_pass_and_get_gradients(fields):
    model, inputs = build(**fields), {name: x[:1] for name, x in stories().items()}
    written = [model.write(inputs["lines"][:, n : n + 1]).detach().requires_grad_() for n in range(M)]
    y = model.read(torch.cat(written, 2), inputs["question"], inputs["ages"], torch.ones(1, M, dtype=torch.bool))
    torch.testing.assert_close(y, model(**inputs))
    y[0, 0].backward()
    assert all(float(line.grad.abs().sum()) > 0 for line in written)


@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERWISE], ids=["lecture", "adjacent", "layerwise"])
def test_every_parameter_gets_a_gradient(fields):
    model = build(**fields)
    model(**stories()).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("linear", [False, True], ids=["softmax", "linear"])
@pytest.mark.parametrize("fields", [LECTURE, PAPER, LAYERWISE], ids=["lecture", "adjacent", "layerwise"])
def test_stacked_models_have_the_gradients_of_single_models(fields, linear):
    models = [build(seed, **fields) for seed in range(3)]
    batches = [stories(seed) for seed in range(3)]
    weights, buffers = stack_module_state(models)

    def loss(weights, buffers, inputs) -> Tensor:
        y = functional_call(models[0], (weights, buffers), (), {**inputs, "linear": linear})
        return y.log_softmax(-1)[:, 1].sum()

    inputs = {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}
    with sdpa_kernel(SDPBackend.MATH):  # the CPU kernel of torch would loop over the models
        stacked_grads = vmap(grad(loss))(weights, buffers, inputs)
    for n, model in enumerate(models):
        model(**batches[n], linear=linear).log_softmax(-1)[:, 1].sum().backward()
        for name, p in model.named_parameters():
            torch.testing.assert_close(stacked_grads[name][n], p.grad, rtol=1e-9, atol=1e-9)


def test_a_batch_can_be_memorized():
    model, inputs = build(**PAPER).float(), stories()
    optimizer, targets = torch.optim.Adam(model.parameters(), lr=1e-2), torch.arange(B) % len(ANSWERS)
    for _ in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(**inputs), targets)
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.1
