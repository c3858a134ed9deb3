"""Contract of language models, checked for every registered kind, plug-ins included."""

import copy
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harken import registry, run_folder
from harken.core import same
from harken.data.batch import Batch
from harken.models import LanguageModel
from harken.tasks.next_word import nll

VOCAB, L = 37, 12
KINDS = registry.kind_names("model")
every_kind = pytest.mark.parametrize("kind", KINDS)
# models that generate: bert has another task and its own tests
every_causal_kind = pytest.mark.parametrize(
    "kind", [k for k in KINDS if registry.find_kind("model", k).task == "next-word"]
)
# attention models: positions and masks are inputs, so documents can be packed
PACKING = pytest.mark.parametrize(
    "fields",
    [{"positions": p} for p in ("sinusoid", "learned", "rotary", "alibi", "none")]
    + [{"similarity": "additive"}, {"style": "llama", "kv_heads": 1}, {"window": 3}],
    ids=lambda fields: "-".join(map(str, fields.values())),
)


def build(kind: str, seed: int = 0, **fields) -> LanguageModel:
    """A tiny model of this kind, with the settings that it has."""
    settings = registry.find_kind("model", kind)
    tiny = {"d": 16, "layers": 2, "heads": 2, "context": 16, **fields}
    torch.manual_seed(seed)
    return settings(**{name: value for name, value in tiny.items() if name in settings.model_fields}).build(VOCAB)


def random_tokens(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def scores(model: LanguageModel, tokens: Tensor, **inputs) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens, **inputs))


def perturbed(kind: str, **fields) -> LanguageModel:
    """A model with large weights: the initial weights are too small to show many errors."""
    model = build(kind, **fields).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    return model


@every_causal_kind
def test_a_deep_copy_uses_the_same_kernels_and_gives_the_same_scores(kind, monkeypatch):
    calls, kernel = [], F.scaled_dot_product_attention

    def spy(q, k, v, mask=None, dropout=0.0, causal=False, **options):
        calls.append((mask is None, causal))
        return kernel(q, k, v, mask, dropout, causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    model = perturbed(kind)
    assert torch.equal(scores(copy.deepcopy(model), random_tokens(2, L)), scores(model, random_tokens(2, L)))
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :] == [(True, True)] * (len(calls) // 2)


@every_kind
def test_every_position_has_a_score_for_each_token_of_the_vocabulary(kind):
    assert scores(build(kind), random_tokens(3, L)).shape == (3, L, VOCAB)


@every_kind
def test_the_initial_loss_is_uniform(kind):
    loss = F.cross_entropy(
        scores(build(kind), random_tokens(4, L)).flatten(0, 1), random_tokens(4, L, seed=2).flatten()
    )
    assert abs(float(loss) - math.log(VOCAB)) < 0.3


@every_causal_kind
def test_every_parameter_gets_a_gradient(kind):
    model = build(kind)
    F.cross_entropy(
        model.logits(model(random_tokens(3, L))).flatten(0, 1), random_tokens(3, L, seed=2).flatten()
    ).backward()
    without_gradient = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without_gradient == []


@every_causal_kind
def test_a_batch_can_be_memorized(kind):
    model = build(kind, d=32)
    batch = Batch(random_tokens(4, L), random_tokens(4, L, seed=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    for _ in range(120):
        optimizer.zero_grad()
        total, _ = nll(model, batch)
        (total / batch.n_targets).backward()
        optimizer.step()
    assert float(total.detach()) / batch.n_targets < 0.5


@every_kind
def test_the_same_seed_gives_the_same_weights(kind):
    a, b = (dict(build(kind, seed=7).named_parameters()) for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


@every_kind
def test_another_seed_gives_other_weights(kind):
    a, b = build(kind, seed=7), build(kind, seed=8)
    assert not torch.equal(a.embed.weight, b.embed.weight)


@every_causal_kind
def test_a_later_token_has_no_effect_on_earlier_scores(kind):
    model, tokens = perturbed(kind), random_tokens(2, L)
    before = scores(model, tokens)
    for n in range(1, L):
        changed = tokens.clone()
        changed[:, n] = (changed[:, n] + 1) % VOCAB
        after = scores(model, changed)
        assert torch.equal(after[:, :n], before[:, :n])
        assert not torch.equal(after[:, n:], before[:, n:])


@every_kind
def test_saved_and_loaded_weights_give_the_same_scores(kind, tmp_path: Path):
    model, loaded = perturbed(kind), build(kind, seed=3).eval()
    run_folder.write_tensors(tmp_path / "model.safetensors", run_folder.weights(model))
    run_folder.load_weights(loaded, run_folder.read_tensors(tmp_path / "model.safetensors"))
    assert torch.equal(scores(loaded, random_tokens(2, L)), scores(model, random_tokens(2, L)))


@every_causal_kind
@pytest.mark.parametrize("pieces", [[1] * L, [4, 1, 1, 1, 3, 2], [L]], ids=["one-by-one", "uneven", "one-pass"])
def test_decoding_in_pieces_equals_the_full_pass(kind, pieces):
    model, tokens = perturbed(kind), random_tokens(2, L)
    memory, start, outputs = model.memory(2, L), 0, []
    for n in pieces:
        pos = torch.arange(start, start + n)
        outputs.append(scores(model, tokens[:, start : start + n], pos=pos, memory=memory))
        start += n
    torch.testing.assert_close(torch.cat(outputs, 1), scores(model, tokens), rtol=1e-4, atol=1e-4)


@every_kind
def test_padded_rows_equal_single_rows(kind):
    model, tokens, lengths = perturbed(kind), random_tokens(3, L), torch.tensor([L, 5, 8])
    batch_scores = scores(model, tokens, lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        alone = scores(model, tokens[row : row + 1, :n])
        torch.testing.assert_close(batch_scores[row, :n], alone[0], rtol=1e-4, atol=1e-4)


@every_causal_kind
def test_padded_prompts_continue_like_single_prompts(kind):
    """The padding of a short prompt is not stored in the memory."""
    model, tokens, lengths = perturbed(kind), random_tokens(3, L), torch.tensor([7, 3, 5])
    memory = model.memory(3, L)
    scores(model, tokens[:, :7], pos=torch.arange(7), memory=memory, lengths=lengths)
    next_tokens = random_tokens(3, 3, seed=5)
    outputs = [scores(model, next_tokens[:, n : n + 1], pos=lengths[:, None] + n, memory=memory) for n in range(3)]
    for row, n in enumerate(lengths.tolist()):
        alone = scores(model, torch.cat([tokens[row, :n], next_tokens[row]])[None])
        torch.testing.assert_close(torch.cat(outputs, 1)[row], alone[0, n:], rtol=1e-4, atol=1e-4)


@every_causal_kind
def test_reorder_selects_the_rows_of_the_memory(kind):
    model, tokens, rows = perturbed(kind), random_tokens(3, L), torch.tensor([2, 2, 0])
    memory = model.memory(3, L)
    scores(model, tokens[:, :-1], pos=torch.arange(L - 1), memory=memory)
    for layer in memory if isinstance(memory, list) else [memory]:
        layer.reorder(rows)
    output = scores(model, tokens[rows, -1:], pos=torch.arange(L - 1, L), memory=memory)
    torch.testing.assert_close(output, scores(model, tokens)[rows, -1:], rtol=1e-4, atol=1e-4)


@every_kind
def test_dropout_is_active_in_training_only(kind):
    model = build(kind, dropout=0.5)
    assert not torch.equal(scores(model.train(), random_tokens(2, L)), scores(model, random_tokens(2, L)))
    assert torch.equal(scores(model.eval(), random_tokens(2, L)), scores(model, random_tokens(2, L)))


# --- packed documents -------------------------------------------------------------------------------------------------

LENGTHS = [5, 1, 6]


def packed(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and document indices of a row with documents of LENGTHS."""
    pos = torch.cat([torch.arange(n) for n in LENGTHS])
    doc = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])
    return pos.expand(len(tokens), -1), doc.expand(len(tokens), -1)


@PACKING
def test_packed_documents_equal_single_documents(fields):
    model, tokens = perturbed("gpt", **fields), random_tokens(2, sum(LENGTHS))
    pos, doc = packed(tokens)
    batch_scores = scores(model, tokens, pos=pos, structure=same(doc))
    alone = torch.cat([scores(model, piece) for piece in tokens.split(LENGTHS, 1)], 1)
    torch.testing.assert_close(batch_scores, alone, rtol=1e-4, atol=1e-4)


def test_packed_documents_have_the_gradients_of_single_documents():
    model, tokens, targets = (
        perturbed("gpt").double(),
        random_tokens(2, sum(LENGTHS)),
        random_tokens(2, sum(LENGTHS), seed=2),
    )
    pos, doc = packed(tokens)
    nll(model, Batch(tokens, targets, pos, doc))[0].backward()
    batch_scores = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for x, y in zip(tokens.split(LENGTHS, 1), targets.split(LENGTHS, 1), strict=True):
        nll(model, Batch(x, y))[0].backward()
    torch.testing.assert_close(batch_scores, [p.grad for p in model.parameters()])


# --- stacked models ---------------------------------------------------------------------------------------------------


@PACKING
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's CPU kernel loops over the models
def test_stacked_models_have_the_gradients_of_single_models(fields):
    """Parameters stacked along a leading model axis, one call under vmap."""
    models = [build("gpt", seed=seed, **fields) for seed in range(3)]
    tokens, targets = random_tokens(3, 2, L), random_tokens(3, 2, L, seed=2)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        h = torch.func.functional_call(models[0], weights, (x,))
        head = weights.get("head.weight", weights["embed.weight"])[:VOCAB]
        return F.cross_entropy((h @ head.mT).flatten(0, 1), y.flatten())

    names = [name for name, _ in models[0].named_parameters()]
    stacked = {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}
    batch_scores = torch.func.vmap(torch.func.grad(loss))(stacked, tokens, targets)
    for n, model in enumerate(models):
        F.cross_entropy(model.logits(model(tokens[n])).flatten(0, 1), targets[n].flatten()).backward()
        alone = {name: p.grad for name, p in model.named_parameters()}
        torch.testing.assert_close({name: batch_scores[name][n] for name in names}, alone, rtol=1e-4, atol=1e-6)
