"""What every language model owes, whatever its family: checked for each kind that is registered, plug-ins included."""

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
KINDS = registry.names("model")
every_kind = pytest.mark.parametrize("kind", KINDS)
# those that say what comes next: a model that looks both ways (bert) names another task, and has tests of its own
every_writer = pytest.mark.parametrize("kind", [k for k in KINDS if not hasattr(registry.find("model", k), "task")])
# attention families: places and masks are given, so documents may be packed and rows may be stacked
PACKING = pytest.mark.parametrize(
    "fields",
    [{"positions": p} for p in ("sinusoid", "learned", "rotary", "alibi", "none")]
    + [{"similarity": "additive"}, {"style": "llama", "kv_heads": 1}, {"window": 3}],
    ids=lambda fields: "-".join(map(str, fields.values())),
)


def build(kind: str, seed: int = 0, **fields) -> LanguageModel:
    """A tiny model of this kind; settings that the kind does not have are left out."""
    shape = registry.find("model", kind)
    tiny = {"d": 16, "layers": 2, "heads": 2, "context": 16, **fields}
    torch.manual_seed(seed)
    return shape(**{name: value for name, value in tiny.items() if name in shape.model_fields}).build(VOCAB)


def words(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def scores(model: LanguageModel, tokens: Tensor, **given) -> Tensor:
    with torch.no_grad():
        return model.logits(model(tokens, **given))


def spoken(kind: str, **fields) -> LanguageModel:
    """A model whose scores differ clearly: fresh weights are so small that many mistakes would not show."""
    model = build(kind, **fields).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    return model


@every_writer
def test_a_deep_copy_takes_the_same_route_to_the_same_numbers(kind, monkeypatch):
    seen, kernel = [], F.scaled_dot_product_attention

    def noted(q, k, v, mask=None, dropout=0.0, causal=False, **options):
        seen.append((mask is None, causal))
        return kernel(q, k, v, mask, dropout, causal, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noted)
    model = spoken(kind)
    assert torch.equal(scores(copy.deepcopy(model), words(2, L)), scores(model, words(2, L)))
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :] == [(True, True)] * (len(seen) // 2)


@every_kind
def test_there_is_a_score_for_each_word_after_each_token(kind):
    assert scores(build(kind), words(3, L)).shape == (3, L, VOCAB)


@every_kind
def test_fresh_weights_know_nothing(kind):
    loss = F.cross_entropy(scores(build(kind), words(4, L)).flatten(0, 1), words(4, L, seed=2).flatten())
    assert abs(float(loss) - math.log(VOCAB)) < 0.3


@every_writer
def test_every_parameter_gets_a_gradient(kind):
    model = build(kind)
    F.cross_entropy(model.logits(model(words(3, L))).flatten(0, 1), words(3, L, seed=2).flatten()).backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []


@every_writer
def test_a_batch_can_be_learned_by_heart(kind):
    model = build(kind, d=32)
    batch = Batch(words(4, L), words(4, L, seed=2))
    rule = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    for _ in range(120):
        rule.zero_grad()
        total, _ = nll(model, batch)
        (total / batch.count).backward()
        rule.step()
    assert float(total.detach()) / batch.count < 0.5


@every_kind
def test_the_same_seed_gives_the_same_weights(kind):
    a, b = (dict(build(kind, seed=7).named_parameters()) for _ in range(2))
    assert all(torch.equal(a[name], b[name]) for name in a)


@every_kind
def test_another_seed_gives_other_weights(kind):
    a, b = build(kind, seed=7), build(kind, seed=8)
    assert not torch.equal(a.embed.weight, b.embed.weight)


@every_writer
def test_a_later_token_changes_nothing_before_it(kind):
    model, tokens = spoken(kind), words(2, L)
    before = scores(model, tokens)
    for place in range(1, L):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % VOCAB
        after = scores(model, changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert not torch.equal(after[:, place:], before[:, place:])


@every_kind
def test_saved_and_loaded_gives_the_same_numbers(kind, tmp_path: Path):
    model, other = spoken(kind), build(kind, seed=3).eval()
    run_folder.write_tensors(tmp_path / "model.safetensors", run_folder.weights(model))
    run_folder.load_weights(other, run_folder.read_tensors(tmp_path / "model.safetensors"))
    assert torch.equal(scores(other, words(2, L)), scores(model, words(2, L)))


@every_writer
@pytest.mark.parametrize("pieces", [[1] * L, [4, 1, 1, 1, 3, 2], [L]], ids=["one-by-one", "uneven", "whole"])
def test_decoding_in_pieces_equals_the_full_pass(kind, pieces):
    model, tokens = spoken(kind), words(2, L)
    memory, place, told = model.memory(2, L), 0, []
    for n in pieces:
        told.append(scores(model, tokens[:, place : place + n], pos=torch.arange(place, place + n), memory=memory))
        place += n
    torch.testing.assert_close(torch.cat(told, 1), scores(model, tokens), rtol=1e-4, atol=1e-4)


@every_kind
def test_rows_of_different_length_equal_each_row_alone(kind):
    model, tokens, lengths = spoken(kind), words(3, L), torch.tensor([L, 5, 8])
    together = scores(model, tokens, lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        alone = scores(model, tokens[row : row + 1, :n])
        torch.testing.assert_close(together[row, :n], alone[0], rtol=1e-4, atol=1e-4)


@every_writer
def test_rows_of_different_length_go_on_as_each_row_alone(kind):
    """The padding of a short prompt leaves no trace in what is remembered."""
    model, tokens, lengths = spoken(kind), words(3, L), torch.tensor([7, 3, 5])
    memory = model.memory(3, L)
    scores(model, tokens[:, :7], pos=torch.arange(7), memory=memory, lengths=lengths)
    more = words(3, 3, seed=5)
    told = [scores(model, more[:, n : n + 1], pos=lengths[:, None] + n, memory=memory) for n in range(3)]
    for row, n in enumerate(lengths.tolist()):
        alone = scores(model, torch.cat([tokens[row, :n], more[row]])[None])
        torch.testing.assert_close(torch.cat(told, 1)[row], alone[0, n:], rtol=1e-4, atol=1e-4)


@every_writer
def test_the_memory_follows_the_rows_that_are_kept(kind):
    model, tokens, rows = spoken(kind), words(3, L), torch.tensor([2, 2, 0])
    memory = model.memory(3, L)
    scores(model, tokens[:, :-1], pos=torch.arange(L - 1), memory=memory)
    for one in memory if isinstance(memory, list) else [memory]:
        one.reorder(rows)
    told = scores(model, tokens[rows, -1:], pos=torch.arange(L - 1, L), memory=memory)
    torch.testing.assert_close(told, scores(model, tokens)[rows, -1:], rtol=1e-4, atol=1e-4)


@every_kind
def test_dropout_is_of_the_training_alone(kind):
    model = build(kind, dropout=0.5)
    assert not torch.equal(scores(model.train(), words(2, L)), scores(model, words(2, L)))
    assert torch.equal(scores(model.eval(), words(2, L)), scores(model, words(2, L)))


# --- packed documents -------------------------------------------------------------------------------------------------

LENGTHS = [5, 1, 6]


def packed(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Places and documents of a row that holds documents of these lengths."""
    pos = torch.cat([torch.arange(n) for n in LENGTHS])
    doc = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])
    return pos.expand(len(tokens), -1), doc.expand(len(tokens), -1)


@PACKING
def test_packed_documents_equal_each_document_alone(fields):
    model, tokens = spoken("gpt", **fields), words(2, sum(LENGTHS))
    pos, doc = packed(tokens)
    together = scores(model, tokens, pos=pos, structure=same(doc))
    alone = torch.cat([scores(model, piece) for piece in tokens.split(LENGTHS, 1)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_packed_documents_have_the_gradients_of_each_document_alone():
    model, tokens, targets = spoken("gpt").double(), words(2, sum(LENGTHS)), words(2, sum(LENGTHS), seed=2)
    pos, doc = packed(tokens)
    nll(model, Batch(tokens, targets, pos, doc))[0].backward()
    together = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    for x, y in zip(tokens.split(LENGTHS, 1), targets.split(LENGTHS, 1), strict=True):
        nll(model, Batch(x, y))[0].backward()
    torch.testing.assert_close(together, [p.grad for p in model.parameters()])


# --- many models at once ----------------------------------------------------------------------------------------------


@PACKING
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's CPU kernel loops over the models
def test_models_trained_together_have_the_gradients_of_each_alone(fields):
    """Parameters stacked along a leading model axis, one call under vmap (HOUSE, "Many small models at once")."""
    models = [build("gpt", seed=seed, **fields) for seed in range(3)]
    tokens, targets = words(3, 2, L), words(3, 2, L, seed=2)

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        h = torch.func.functional_call(models[0], weights, (x,))
        head = weights.get("head.weight", weights["embed.weight"])[:VOCAB]
        return F.cross_entropy((h @ head.mT).flatten(0, 1), y.flatten())

    names = [name for name, _ in models[0].named_parameters()]
    stacked = {name: torch.stack([m.get_parameter(name).detach() for m in models]) for name in names}
    together = torch.func.vmap(torch.func.grad(loss))(stacked, tokens, targets)
    for n, model in enumerate(models):
        F.cross_entropy(model.logits(model(tokens[n])).flatten(0, 1), targets[n].flatten()).backward()
        alone = {name: p.grad for name, p in model.named_parameters()}
        torch.testing.assert_close({name: together[name][n] for name in names}, alone, rtol=1e-4, atol=1e-6)
