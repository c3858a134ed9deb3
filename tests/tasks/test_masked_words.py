"""Masked words and what follows: the loss by hand, what is judged, what costs nothing, and the run from end to end."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import harken
from harken import recipe as recipes
from harken.data.batch import IGNORE
from harken.data.text.masked_batch import MaskingSettings
from harken.errors import BadInput, BadSetting
from harken.events import silent
from harken.experiments.audit import audit
from harken.experiments.train import train
from harken.tasks.masked_words import MaskedWordsTask
from harken.training.settings import Train
from harken.training.step import UpdateStep

TINY = {"model.kind": "bert", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 24}
TINY |= {"data.tokenizer": "wordpiece", "data.vocab_size": 300, "data.batching": "sentences", "train.batch": 8}


def bound(tales: Path, **settings) -> tuple[MaskedWordsTask, torch.nn.Module]:
    given = TINY | {"data.path": str(tales)} | {k.replace("__", "."): v for k, v in settings.items()}
    recipe = recipes.resolve(("test", given))
    opened = recipe.load_data()
    torch.manual_seed(0)
    return recipe.bind(opened), recipe.build(opened.vocab)


def test_a_bert_learns_masked_words_unless_another_task_is_named(tales):
    assert recipes.resolve(("test", {"model.kind": "bert"})).task.kind == "masked-words"
    assert recipes.resolve(("test", {"model.kind": "gpt"})).task.kind == "next-word"
    with pytest.raises(BadSetting, match=r"model.kind=bert: its words look at later ones.*task.kind=masked-words"):
        bound(tales, task__kind="next-word")


def test_every_batch_has_the_same_shape_and_is_a_pure_function_of_its_place(tales):
    task, _ = bound(tales)
    shapes = {tuple((n, x.shape) for n, x in task.batch(0, s).tensors().items()) for s in range(task.steps)}
    assert len(shapes) == 1
    assert task.batch(0, 0).static_shape
    again, _ = bound(tales)
    for name, x in task.batch(3, 1).tensors().items():
        assert torch.equal(x, again.batch(3, 1).tensors()[name])
    assert not torch.equal(task.batch(3, 1).places, task.batch(4, 1).places)


def test_the_loss_is_that_of_the_hidden_words_and_as_much_of_what_follows(tales):
    task, model = bound(tales)
    model, batch = model.double().eval(), task.batch(0, 0)
    with torch.no_grad():
        h = model(batch.tokens, segments=batch.segments, lengths=batch.lengths)
    model.requires_grad_(False)
    words = follows = 0.0
    for r in range(len(batch.tokens)):
        for place, answer in zip(batch.positions[r], batch.targets[r], strict=True):
            if answer != IGNORE:
                words -= float(model.logits(h[r, place]).log_softmax(-1)[answer])
        follows -= float(model.next_sentence_scores(h[r, 0]).log_softmax(-1)[batch.next_sentence_labels[r]])
    loss = task.loss(model, batch)
    assert float(loss.model_inputs) == pytest.approx(words)
    assert float(loss.total) == pytest.approx(words + task.most * follows)


@pytest.mark.parametrize(
    ("learns", "asked"),
    [
        ("words", {"loss", "accuracy"}),
        ("next", {"loss", "next_accuracy"}),
        ("both", {"loss", "accuracy", "next_accuracy"}),
    ],
)
def test_only_what_is_learned_is_judged(tales, learns, asked):
    task, model = bound(tales, task__objective=learns)
    score = task.evaluate(model, "valid")
    assert score.metrics.keys() == asked
    assert set().union(*task.baselines("valid").values()) == asked
    assert math.isfinite(float(task.loss(model, task.batch(0, 0)).total.detach()))


@pytest.mark.parametrize("learns", ["words", "next"])
@pytest.mark.parametrize("rule", ["muon", "adamw"])
def test_a_head_that_is_not_asked_stays_as_it_is(tales, learns, rule):
    task, model = bound(tales, task__objective=learns)
    idle = model.nsp_head if learns == "words" else model.transform
    before, step = idle.weight.clone(), UpdateStep(model, task, Train(optimizer=rule, weight_decay=0.0), listen=silent)
    step(task.batch(0, 0), 0.1)
    assert torch.equal(idle.weight, before)
    assert float(step.norm) > 0


def test_the_same_words_are_hidden_whenever_a_split_is_judged_whatever_the_seed(tales):
    task, model = bound(tales)
    other, _ = bound(tales, train__seed=7, train__batch=4)
    assert task.evaluate(model, "valid").metrics == other.evaluate(model, "valid").metrics


def test_a_model_that_knows_all_is_always_right(tales):
    task, model = bound(tales)
    answers = {}
    for batch in task._eval_batches("valid", None):
        for row, places, targets in zip(batch.tokens, batch.positions, batch.targets, strict=True):
            answers[tuple(row.tolist())] = dict(zip(places.tolist(), targets.tolist(), strict=True))

    class Knows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, **told):
            h = torch.full((*tokens.shape, 1), -1.0)
            for r, row in enumerate(tokens):
                for place, answer in answers[tuple(row.tolist())].items():
                    h[r, place] = answer
            return h

        def logits(self, h):
            return 50 * F.one_hot(h[:, 0].long().clamp_min(0), model.vocab).float()

        def follows(self, h):
            return torch.zeros(len(h), 2)

    found = task.evaluate(Knows(), "valid").metrics
    assert found["accuracy"] == 1.0
    assert found["loss"] < 1e-6
    assert found["next_accuracy"] < 0.7


def test_the_free_baselines_are_the_commonest_word_and_the_commoner_answer(tales):
    task, _ = bound(tales)
    batches = list(task._eval_batches("valid", None))
    asked = torch.cat([b.targets[b.targets != IGNORE] for b in batches]).numpy()
    often = np.bincount(task.train.ids, minlength=task.data.vocab)
    found = task.baselines("valid")
    assert found["unigram"]["accuracy"] == pytest.approx((asked == often.argmax()).mean())
    apart = torch.cat([b.elsewhere for b in batches]).double().mean().item()
    assert found["majority"] == {"next_accuracy": max(apart, 1 - apart)}


def test_what_the_end_of_a_passage_tells_is_a_free_baseline_and_little(tales):
    task, _ = bound(tales)
    ends = task.data.tokenizer.encode('. ! ? "')
    task.how = MaskingSettings(
        1e-9, 0.0, 0.0, whole_words=False
    )  # nothing is hidden: a row tells where its passage ends
    right = [
        (row[length - 2].item() in ends) == (apart == 0)
        for batch in task._eval_batches("valid", None)
        for row, length, apart in zip(batch.tokens, batch.lengths, batch.next_sentence_labels, strict=True)
    ]
    found = task.baselines("valid")["whole sentences follow"]["next_accuracy"]
    assert found == pytest.approx(
        max(np.mean(right), 1 - np.mean(right)), abs=1.5 / len(right)
    )  # the text may end anywhere
    assert found < 0.65


def test_a_model_can_learn_to_fill_in_words_and_what_follows(tales):
    task, model = bound(tales, train__batch=16, task__mlm_probability=0.3)
    batch, optimizer = task.batch(0, 0), torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(150):
        optimizer.zero_grad()
        (loss := task.loss(model, batch)).total.backward()
        optimizer.step()
    assert float(loss.model_inputs) / batch.n_targets < 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data__batching": "windows"}, "set data.batching=sentences"),
        ({"model__nsp_head": False}, "set model.nsp_head=true"),
        ({"model__mlm_head": False}, "set model.mlm_head=true"),
        ({"model__context": 5}, "no room for two passages"),
        ({"task__mask_replace_prob": 0.5}, "together they are 1"),
        ({"model__kind": "gpt", "task__kind": "masked-words"}, "set model.kind=bert"),
    ],
)
def test_what_cannot_be_learned_is_refused_with_a_way_out(tales, settings, said):
    with pytest.raises(BadSetting, match=said):
        bound(tales, **settings)


# --- from end to end --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tales) -> Path:
    home = tmp_path_factory.mktemp("bert")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        small = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 24, "train.batch": 8}
        some = {"model.kind": "bert", "data.vocab_size": 300, "train.steps": 12, "train.checkpoint_every": 5}
        train(tales, out=home / "run", settings=small | some)
    return home / "run"


def test_a_text_and_a_bert_make_a_judged_and_reported_run(folder):
    facts = json.loads((folder / "harken.json").read_text())
    assert facts["task"] == "masked-words"
    assert facts["metrics"]["valid"].keys() >= {"accuracy", "next_accuracy"}
    passed = {check["name"] for check in facts["audit"]["checks"] if check["outcome"] == "passed"}
    assert passed == {"padding", "packing", "batching", "accumulation"}
    assert "[MASK]" in (folder / "report.html").read_text()


def test_it_is_judged_again_as_it_was(folder):
    score, baseline = harken.load(folder).evaluate("valid")
    assert score.metrics == pytest.approx(json.loads((folder / "harken.json").read_text())["metrics"]["valid"])
    assert baseline.keys() == {"unigram", "majority", "whole sentences follow"}


def test_it_goes_on_bit_for_bit(folder, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(folder, again)
    whole = (again / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "harken.json"):
        (again / name).unlink()
    shutil.rmtree(max((again / "checkpoints").glob("step-*")))
    train(again, resume=True)
    assert (again / "model.safetensors").read_bytes() == whole


def test_fill_answers_each_mask_with_words_and_their_probabilities(folder):
    run = harken.load(folder)
    tokens, every = run.tokenizer, run.tokenizer.vocab - len(run.tokenizer.special_ids)
    found = run.fill("the [MASK] sat on [MASK].", k=10**6)
    assert [len(words) for words in found] == [every, every]
    assert sum(word["probability"] for word in found[0]) == pytest.approx(1, abs=1e-4)
    ids = torch.tensor([[tokens.cls_id, *tokens.encode("the [MASK] sat on [MASK].").tolist(), tokens.sep_id]])
    with torch.no_grad():
        scores = run.model.scores(ids)[0][ids[0] == tokens.mask_id]
    scores[:, tokens.special_ids] = -math.inf
    assert [words[0]["word"] for words in found] == tokens.token_texts(scores.argmax(-1).tolist())


@pytest.mark.parametrize(
    ("text", "said"), [("the cat sat.", r"no \[MASK\] in it"), ("[MASK] " * 30, "reads 24 at once; give a shorter one")]
)
def test_what_cannot_be_filled_in_is_refused(folder, text, said):
    with pytest.raises(BadInput, match=said):
        harken.load(folder).fill(text)


def test_such_a_run_does_not_write_but_has_vectors_and_can_be_looked_into(folder):
    run = harken.load(folder)
    with pytest.raises(BadInput, match="use harken fill"):
        run.generate("the")
    assert run.embed("the cat").shape == (16,)
    weights = run.trace("the cat").attention("self", layer=0, head=0)
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[0]), atol=1e-5)


def test_a_fresh_bert_is_audited_by_its_recipe(tales):
    found = audit.audit(str(tales), settings={**TINY, "train.batch": 6})
    assert found.passed
    assert "causal, gradient, cache do not apply" in str(found)
