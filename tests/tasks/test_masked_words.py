"""Masked language modelling and next-sentence prediction: loss, metrics, baselines, and a run from end to end."""

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
from harken.data.text.documents import Masking
from harken.errors import BadInput, BadSetting
from harken.events import silent
from harken.experiments.audit import audit
from harken.experiments.train import train
from harken.tasks.masked_words import MaskedWordsTask
from harken.training.settings import Train
from harken.training.step import UpdateStep

TINY = {"model.kind": "bert", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 24}
TINY |= {"data.tokenizer": "wordpiece", "data.vocab_size": 300, "data.batching": "sentences", "train.batch": 8}


def bind(tales: Path, **settings) -> tuple[MaskedWordsTask, torch.nn.Module]:
    layer = TINY | {"data.path": str(tales)} | {k.replace("__", "."): v for k, v in settings.items()}
    recipe = recipes.resolve(("test", layer))
    data = recipe.load_data()
    torch.manual_seed(0)
    return recipe.bind(data), recipe.build(data.vocab)


def test_masked_words_is_the_default_task_of_bert(tales):
    assert recipes.resolve(("test", {"model.kind": "bert"})).task.kind == "masked-words"
    assert recipes.resolve(("test", {"model.kind": "gpt"})).task.kind == "next-word"
    with pytest.raises(BadSetting, match=r"model.kind=bert: the model is bidirectional.*task.kind=masked-words"):
        bind(tales, task__kind="next-word")


def test_every_batch_has_the_same_shape_and_depends_on_epoch_and_step_only(tales):
    task, _ = bind(tales)
    shapes = {tuple((n, x.shape) for n, x in task.batch(0, s).tensors().items()) for s in range(task.steps)}
    assert len(shapes) == 1
    assert task.batch(0, 0).static_shape
    same, _ = bind(tales)
    for name, x in task.batch(3, 1).tensors().items():
        assert torch.equal(x, same.batch(3, 1).tensors()[name])
    assert not torch.equal(task.batch(3, 1).positions, task.batch(4, 1).positions)


def test_the_objective_is_the_mlm_loss_plus_the_weighted_nsp_loss(tales):
    task, model = bind(tales)
    model, batch = model.double().eval(), task.batch(0, 0)
    with torch.no_grad():
        h = model(batch.tokens, segments=batch.segments, lengths=batch.lengths)
    model.requires_grad_(False)
    mlm_loss = nsp_loss = 0.0
    for r in range(len(batch.tokens)):
        for position, target in zip(batch.positions[r], batch.targets[r], strict=True):
            if target != IGNORE:
                mlm_loss -= float(model.logits(h[r, position]).log_softmax(-1)[target])
        nsp_loss -= float(model.next_sentence_scores(h[r, 0]).log_softmax(-1)[batch.next_sentence_labels[r]])
    loss = task.loss(model, batch)
    assert float(loss.reported) == pytest.approx(mlm_loss)
    assert float(loss.total) == pytest.approx(mlm_loss + task.max_masked * nsp_loss)


@pytest.mark.parametrize(
    ("objective", "metrics"),
    [
        ("mlm", {"loss", "accuracy"}),
        ("nsp", {"loss", "next_sentence_accuracy"}),
        ("both", {"loss", "accuracy", "next_sentence_accuracy"}),
    ],
)
def test_the_metrics_are_those_of_the_objective(tales, objective, metrics):
    task, model = bind(tales, task__objective=objective)
    score = task.evaluate(model, "valid")
    assert score.metrics.keys() == metrics
    assert set().union(*task.baselines("valid").values()) == metrics
    assert math.isfinite(float(task.loss(model, task.batch(0, 0)).total.detach()))


@pytest.mark.parametrize("objective", ["mlm", "nsp"])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_unused_head_is_not_updated(tales, objective, optimizer):
    task, model = bind(tales, task__objective=objective)
    unused = model.nsp_head if objective == "mlm" else model.transform
    step = UpdateStep(model, task, Train(optimizer=optimizer, weight_decay=0.0), listen=silent)
    before = unused.weight.clone()
    step(task.batch(0, 0), 0.1)
    assert torch.equal(unused.weight, before)
    assert float(step.grad_norm) > 0


def test_the_masks_of_an_evaluation_do_not_depend_on_the_seed(tales):
    task, model = bind(tales)
    reseeded, _ = bind(tales, train__seed=7, train__batch=4)
    assert task.evaluate(model, "valid").metrics == reseeded.evaluate(model, "valid").metrics


def test_a_model_that_knows_all_targets_is_always_correct(tales):
    task, model = bind(tales)
    targets_of = {}
    for batch in task._eval_batches("valid", None):
        for row, positions, targets in zip(batch.tokens, batch.positions, batch.targets, strict=True):
            targets_of[tuple(row.tolist())] = dict(zip(positions.tolist(), targets.tolist(), strict=True))

    class Oracle(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, **inputs):
            h = torch.full((*tokens.shape, 1), -1.0)
            for r, row in enumerate(tokens):
                for position, target in targets_of[tuple(row.tolist())].items():
                    h[r, position] = target
            return h

        def logits(self, h):
            return 50 * F.one_hot(h[:, 0].long().clamp_min(0), model.vocab).float()

        def next_sentence_scores(self, h):
            return torch.zeros(len(h), 2)

    metrics = task.evaluate(Oracle(), "valid").metrics
    assert metrics["accuracy"] == 1.0
    assert metrics["loss"] < 1e-6
    assert metrics["next_sentence_accuracy"] < 0.7


def test_the_baselines_are_the_most_frequent_token_and_the_majority_label(tales):
    task, _ = bind(tales)
    batches = list(task._eval_batches("valid", None))
    targets = torch.cat([b.targets[b.targets != IGNORE] for b in batches]).numpy()
    counts = np.bincount(task.train.ids, minlength=task.data.vocab)
    baselines = task.baselines("valid")
    assert baselines["unigram"]["accuracy"] == pytest.approx((targets == counts.argmax()).mean())
    mean = torch.cat([b.next_sentence_labels for b in batches]).double().mean().item()
    assert baselines["majority"] == {"next_sentence_accuracy": max(mean, 1 - mean)}


def test_the_end_of_a_passage_reveals_little_about_the_next_sentence(tales):
    task, _ = bind(tales)
    ends = task.data.tokenizer.encode('. ! ? "')
    task.masking = Masking(1e-9, 0.0, 0.0, whole_words=False)  # unmasked rows show the ends of their passages
    agreements = [
        (row[length - 2].item() in ends) == (label == 0)
        for batch in task._eval_batches("valid", None)
        for row, length, label in zip(batch.tokens, batch.lengths, batch.next_sentence_labels, strict=True)
    ]
    accuracy = task.baselines("valid")["whole sentences follow"]["next_sentence_accuracy"]
    mean = np.mean(agreements)
    assert accuracy == pytest.approx(max(mean, 1 - mean), abs=1.5 / len(agreements))  # the text may end anywhere
    assert accuracy < 0.65


def test_negatives_of_the_same_document_have_a_metric_and_baselines_near_one_half(tmp_path):
    path, sentences = tmp_path / "long.txt", [f"the {a} saw {b} {c}." for a in "abcdef" for b in "ghij" for c in "kl"]
    path.write_text("\n\n".join("\n".join(sentences[n % 7 :]) for n in range(40)))
    task, model = bind(path, task__negatives="same-document")
    score = task.evaluate(model, "valid")
    weighted = score.outcomes["next_sentence_accuracy"](np.ones((1, score.protocol["passages"])))
    assert weighted.tolist() == pytest.approx([score.metrics["next_sentence_accuracy"]])
    for name in ("majority", "whole sentences follow"):
        assert task.baselines("valid")[name]["next_sentence_accuracy"] < 0.65


def test_a_short_training_reduces_the_loss(tales):
    task, model = bind(tales, train__batch=16, task__mlm_probability=0.3)
    batch, optimizer = task.batch(0, 0), torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(150):
        optimizer.zero_grad()
        (loss := task.loss(model, batch)).total.backward()
        optimizer.step()
    assert float(loss.reported) / batch.n_targets < 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__batching": "windows"}, "set data.batching=sentences"),
        ({"model__nsp_head": False}, "set model.nsp_head=true"),
        ({"model__mlm_head": False}, "set model.mlm_head=true"),
        ({"model__context": 5}, "too short for two passages"),
        ({"task__mask_replace_prob": 0.5}, "must sum to 1"),
        ({"model__kind": "gpt", "task__kind": "masked-words"}, "set model.kind=bert"),
    ],
)
def test_incompatible_settings_are_rejected_with_a_remedy(tales, settings, message):
    with pytest.raises(BadSetting, match=message):
        bind(tales, **settings)


# --- from end to end --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tales) -> Path:
    home = tmp_path_factory.mktemp("bert")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        small = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 24, "train.batch": 8}
        settings = {"model.kind": "bert", "data.vocab_size": 300, "train.steps": 12, "train.checkpoint_every": 5}
        train(tales, out=home / "run", settings=small | settings)
    return home / "run"


def test_a_run_has_metrics_an_audit_and_a_report(folder):
    facts = json.loads((folder / "harken.json").read_text())
    assert facts["task"] == "masked-words"
    assert facts["metrics"]["valid"].keys() >= {"accuracy", "next_sentence_accuracy"}
    passed = {check["name"] for check in facts["audit"]["checks"] if check["outcome"] == "passed"}
    assert passed == {"padding", "packing", "batching", "accumulation"}
    assert "[MASK]" in (folder / "report.html").read_text()


def test_a_loaded_run_has_the_metrics_of_its_training(folder):
    score, baseline = harken.load(folder).evaluate("valid")
    assert score.metrics == pytest.approx(json.loads((folder / "harken.json").read_text())["metrics"]["valid"])
    assert baseline.keys() == {"unigram", "majority", "whole sentences follow"}


def test_a_resumed_run_is_bitwise_equal(folder, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    weights = (copy / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "harken.json"):
        (copy / name).unlink()
    shutil.rmtree(max((copy / "checkpoints").glob("step-*")))
    train(copy, resume=True)
    assert (copy / "model.safetensors").read_bytes() == weights


def test_fill_predicts_the_words_and_probabilities_of_each_mask(folder):
    run = harken.load(folder)
    tokenizer, n_words = run.tokenizer, run.tokenizer.vocab - len(run.tokenizer.special_ids)
    predictions = run.fill("the [MASK] sat on [MASK].", k=10**6)
    assert [len(words) for words in predictions] == [n_words, n_words]
    assert sum(word["probability"] for word in predictions[0]) == pytest.approx(1, abs=1e-4)
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode("the [MASK] sat on [MASK].").tolist(), tokenizer.sep_id]])
    with torch.no_grad():
        logits = run.model.scores(ids)[0][ids[0] == tokenizer.mask_id]
    logits[:, tokenizer.special_ids] = -math.inf
    assert [words[0]["word"] for words in predictions] == tokenizer.token_texts(logits.argmax(-1).tolist())


@pytest.mark.parametrize(
    ("text", "message"),
    [("the cat sat.", r"has no \[MASK\]; put one"), ("[MASK] " * 30, "this run reads at most 24; give a shorter text")],
)
def test_a_text_without_mask_or_longer_than_the_context_is_rejected(folder, text, message):
    with pytest.raises(BadInput, match=message):
        harken.load(folder).fill(text)


def test_a_masked_word_run_has_vectors_and_a_trace_and_does_not_generate(folder):
    run = harken.load(folder)
    with pytest.raises(BadInput, match="use harken fill"):
        run.generate("the")
    assert run.embed("the cat").shape == (16,)
    weights = run.trace("the cat").attention("self", layer=0, head=0)
    assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[0]), atol=1e-5)


def test_an_untrained_bert_is_audited_from_its_recipe(tales):
    outcome = audit.audit(str(tales), settings={**TINY, "train.batch": 6})
    assert outcome.passed
    assert "causal, gradient, cache do not apply" in str(outcome)
