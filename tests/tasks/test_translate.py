"""Translation: loss, metrics and baselines against direct computations."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harken import registry
from harken.data.batch import IGNORE
from harken.data.pairs.batch import eval_batches
from harken.data.pairs.source import PairSource
from harken.errors import BadSetting
from harken.experiments import train
from harken.experiments.choose import choose
from harken.models import EncoderDecoder
from harken.tasks.metrics import generation
from harken.tasks.next_word import nll
from harken.tasks.translate import TranslateSettings, TranslateTask


@pytest.fixture(scope="module")
def source(pair_file) -> PairSource:
    return PairSource(path=str(pair_file), tokenizer="word")


def model_settings(kind: str = "transformer", **settings):
    return registry.find_kind("model", kind, "pairs")(**settings)


def bind(source: PairSource, **settings) -> TranslateTask:
    return TranslateSettings(**settings).bind(source.load_data(), model_settings(), batch=8, seed=0)


def build(task: TranslateTask) -> EncoderDecoder:
    torch.manual_seed(0)
    return model_settings(d=16, layers=1, heads=2).build(task.data.vocab).double().eval()


def target_logs(model: EncoderDecoder, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """ln p of every token at each position with a target, and the targets."""
    mask = batch.targets != IGNORE
    return model.scores(batch.tokens, **batch.model_inputs())[mask].log_softmax(-1), batch.targets[mask]


def test_the_loss_is_the_summed_cross_entropy_of_the_targets_and_their_edge_marks(source):
    task = bind(source, label_smoothing=0.0)
    model, batch = build(task), task.batch(0, 0)
    logs, targets = target_logs(model, batch)
    loss = task.loss(model, batch)
    torch.testing.assert_close(loss.total, F.nll_loss(logs, targets, reduction="sum"))
    assert loss.reported is None
    assert int((targets == model.edge).sum()) == len(batch.tokens)


def test_a_quick_evaluation_scores_a_limited_number_of_pairs_and_a_full_one_all(source, monkeypatch):
    task = bind(source)
    model, pairs = build(task), task.data.splits["valid"]
    monkeypatch.setattr("harken.tasks.translate.QUICK_PAIRS", 5)
    quick, full = (task.evaluate(model, "valid", quick=quick).protocol["tokens"] for quick in (True, False))
    assert quick == int(pairs.target.lengths[:5].sum()) + 5
    assert full == int(pairs.target.lengths.sum()) + len(pairs)


def test_the_tokens_of_a_packed_batch_are_its_targets(source):
    task = bind(source, packed=True)
    sizes = [task.batch(0, n).n_tokens for n in range(task.steps)]
    assert sum(sizes) == int(task.data.train.target.lengths.sum()) + len(task.data.train)


def test_held_out_sentences_are_truncated_to_the_context_and_counted(pair_file, tmp_path):
    settings = model_settings(d=16, layers=1, heads=2, context=12)
    (tmp_path / "valid.tsv").write_text("she saw the cat.\telle a vu le chat.\n" + "he saw " * 12 + "it.\til a vu.\n")
    data = PairSource(path=str(pair_file), tokenizer="word", valid=str(tmp_path / "valid.tsv")).load_data()
    for loaded in (data, replace(data, train=data.splits["valid"], has_train=False)):
        task = TranslateSettings().bind(loaded, settings, batch=8, seed=0)
        assert task.data.splits["valid"].source.lengths.tolist() == [5, 11]
        assert data.splits["valid"].source[1][:11].tolist() == task.data.splits["valid"].source[1].tolist()
        assert task.evaluate(build(task), "valid").protocol["truncated_sentences"] == 1
    untruncated = bind(PairSource(path=str(pair_file), tokenizer="word"))
    assert "truncated_sentences" not in untruncated.evaluate(build(task), "valid").protocol


def test_label_smoothing_changes_the_objective_and_not_the_reported_loss(source):
    task = bind(source, label_smoothing=0.2)
    model, batch = build(task), task.batch(0, 0)
    logs, targets = target_logs(model, batch)
    loss, plain = task.loss(model, batch), F.nll_loss(logs, targets, reduction="sum")
    torch.testing.assert_close(loss.total, 0.8 * plain - 0.2 * logs.mean(-1).sum())
    torch.testing.assert_close(loss.reported, plain)


def test_packed_rows_have_the_loss_and_the_gradients_of_padded_ones(source):
    rows = []
    for packed in (False, True):
        task = bind(source, packed=packed)
        model = build(task)
        losses = [task.loss(model, task.batch(0, step)) for step in range(task.steps)]
        sum(loss.total for loss in losses).backward()
        gradients = [w.grad for w in model.parameters() if w.grad is not None]
        rows.append([sum(loss.reported for loss in losses), *gradients])
    torch.testing.assert_close(*rows)


def test_packing_is_rejected_for_recurrent_models_and_with_bpe_dropout(source):
    with pytest.raises(BadSetting, match="needs a Transformer model"):
        TranslateSettings(packed=True).bind(source.load_data(), model_settings("rnn"), batch=8, seed=0)
    with pytest.raises(BadSetting, match=r"not compatible with data\.bpe_dropout"):
        bind(source.model_copy(update={"tokenizer": "bpe", "bpe_dropout": 0.1}), packed=True)


def test_the_loss_of_a_split_is_the_mean_over_its_first_references(source):
    task = bind(source)
    model, pairs = build(task), task.data.splits["valid"]
    total, count = 0.0, 0
    with torch.no_grad():
        for n in range(len(pairs)):
            ids = pairs.target[n].astype(int).tolist()
            source_ids = torch.tensor([[*pairs.source[n].astype(int).tolist(), model.source_vocab - 1]])
            logs = model.scores(torch.tensor([[model.edge, *ids]]), source=source_ids)[0].log_softmax(-1)
            total -= float(logs.gather(1, torch.tensor([*ids, model.edge])[:, None]).sum())
            count += len(ids) + 1
    score = task.evaluate(model, "valid")
    assert score.protocol["tokens"] == count
    assert score.metrics["loss"] == pytest.approx(total / count, rel=1e-9)
    assert score.metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-9)


def test_the_references_have_perfect_metrics_and_bleu_is_the_primary_metric(source, monkeypatch):
    pytest.importorskip("sacrebleu")
    task = bind(source)
    pairs = task.data.splits["valid"]
    monkeypatch.setattr(task, "generate", lambda *_: [references[0] for references in pairs.references])
    score = task.evaluate(build(task), "valid")
    assert score.primary_metric == "bleu"
    assert {name: score.metrics[name] for name in ("exact_match", "rouge_l")} == {"exact_match": 1, "rouge_l": 1}
    assert [score.metrics[name] for name in ("bleu", "chrf")] == pytest.approx([100, 100])


def test_without_sacrebleu_there_is_no_bleu_and_the_loss_is_the_primary_metric(source, monkeypatch):
    monkeypatch.setattr(generation, "has_sacrebleu", lambda: False)
    task = bind(source, eval_pairs=5)
    score = task.evaluate(build(task), "valid")
    assert score.primary_metric == "loss"
    assert not {"bleu", "chrf"} & score.metrics.keys()
    assert score.protocol["bleu"] == "not computed (pip install 'harken[text]')"
    assert all("bleu" not in metrics for metrics in task.baselines("valid").values())


def test_task_metric_sets_the_primary_metric(source):
    task = bind(source, metric="exact_match", eval_pairs=5)
    assert task.evaluate(build(task), "valid").primary_metric == "exact_match"


def test_answer_f1_comes_with_the_exact_match_of_answers(source, monkeypatch):
    task = bind(source, metric="answer_f1")
    pairs = task.data.splits["valid"]
    monkeypatch.setattr(task, "generate", lambda *_: [f"The {texts[0]}!" for texts in pairs.references])
    metrics = task.evaluate(build(task), "valid").metrics
    assert (metrics["answer_f1"], metrics["answer_exact"], metrics["exact_match"]) == (1, 1, 0)


def test_max_new_tokens_limits_the_generated_targets(source, monkeypatch):
    task, limits = bind(source, max_new_tokens=3), []
    monkeypatch.setattr(
        task, "generate", lambda _, sources, search: [limits.append(search.max_new_tokens) or ""] * len(sources)
    )
    task.evaluate(build(task), "valid")
    assert limits == [3]


def test_targets_longer_than_the_default_limit_are_rejected_with_the_setting(tmp_path):
    file = tmp_path / "a.mrg"
    file.write_text("".join(f"(S (NP (NP (NN a{n}))) (VP (VP (VB b{n}) (NP (NP (NN c))))))\n" for n in range(40)))
    source = PairSource(path=str(file), tokenizer="word")
    with pytest.raises(BadSetting, match=r"^task.max_new_tokens is not set, and most targets are longer .*=32$"):
        bind(source)
    assert bind(source, max_new_tokens=32).settings.max_new_tokens == 32


@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_sentences_longer_than_the_context_are_rejected_with_both_remedies(source, kind):
    data = source.load_data()
    parts = (data.train, *data.splits.values())
    longest = max(int(side.lengths.max()) for part in parts for side in (part.source, part.target))
    problem = f"model.context={longest}: a sentence has {longest} tokens and its end"
    remedies = f"set model.context={longest + 1} or data.max_length={longest - 1}"
    with pytest.raises(BadSetting, match=f"{problem}; {remedies}"):
        TranslateSettings().bind(data, model_settings(kind, context=longest), batch=8, seed=0)
    for settings in (model_settings(kind, context=longest + 1), model_settings("rnn", context="start")):
        TranslateSettings().bind(data, settings, batch=8, seed=0)


def test_baselines_have_the_text_metrics_of_the_model(source):
    task = bind(source)
    baselines, pairs = task.baselines("valid"), task.data.splits["valid"]
    assert baselines.keys() == {"copy of the source", "most frequent target"}
    assert baselines["copy of the source"]["exact_match"] == generation.exact_match(pairs.sources, pairs.references)
    assert baselines["copy of the source"]["rouge_l"] == generation.rouge_l(pairs.sources, pairs.references)
    assert all("loss" not in metrics for metrics in baselines.values())


def test_intervals_of_pairs_count_the_documents_of_data_split_group(tmp_path):
    rows = [f"{n % 7} red cats {'sleep ' * (n % 5)}{n}\t{n % 7} rote Katzen\td{n // 8}" for n in range(160)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["en\tde\tdocument", *rows]) + "\n")
    options = {"source": "en", "target": "de", "split_group": "document", "valid": 0.5, "test": 0.0}
    task = bind(PairSource(path=str(tmp_path / "pairs.tsv"), tokenizer="word", **options), max_new_tokens=3)
    model, pairs = build(task), task.data.splits["valid"]
    score, baselines = task.evaluate(model, "valid"), task.evaluate_baselines("valid")
    documents = list(dict.fromkeys(pairs.units))
    assert score.n_units == len(documents) < score.n_examples == len(pairs)
    alone = replace(task.data, splits={"valid": replace(pairs, units=[])})
    losses = TranslateTask(task.settings, alone, task.batches).evaluate(model, "valid").outcomes["loss"]
    for batch in islice(eval_batches(pairs, 1), 5):
        expected = nll(model, batch)[1].sum() / (batch.targets != IGNORE).sum()
        assert losses(np.eye(len(pairs))[batch.index]) == pytest.approx(float(expected))
    assert {outcome.n for row in (score, *baselines.values()) for outcome in row.outcomes.values()} == {len(documents)}
    differences = score.compare(baselines)["copy of the source"]
    assert all(row["needed"] for row in differences.values())


def test_evaluation_restores_the_training_mode(source):
    task = bind(source, eval_pairs=3)
    for mode in (True, False):
        model = build(task).train(mode)
        task.evaluate(model, "valid", quick=True)
        assert model.training is mode


def test_the_weights_with_the_best_bleu_are_kept_even_if_a_later_loss_is_lower(pair_file, tmp_path, monkeypatch):
    pytest.importorskip("sacrebleu")
    evaluate = TranslateTask.evaluate
    values = iter([(10.0, 3.0), (30.0, 2.0), (20.0, 1.0)])

    def planned_evaluate(self, model, split, *, quick=False):
        score = evaluate(self, model, split, quick=quick)
        if quick and (planned := next(values, None)):
            score.metrics["bleu"], score.metrics["loss"] = planned
        return score

    monkeypatch.setattr(TranslateTask, "evaluate", planned_evaluate)
    settings = {"model.d": 16, "model.layers": 1, "model.heads": 2, "data.tokenizer": "word", "task.eval_pairs": 5}
    settings |= {"train.steps": 3, "train.eval_every": 1, "train.threads": 1}
    run = train.train(pair_file, out=tmp_path / "run", settings=settings)
    assert run.facts["best_step"] == 2
    assert 0 <= run.facts["data"]["padding"] < 1


def test_two_vocabularies_cannot_share_embeddings(pair_file):
    separate = {"data.shared_vocab": False, "data.vocab_size": 300}
    recipe = choose(str(pair_file), separate).recipe
    with pytest.raises(BadSetting, match=r"model\.share_embeddings"):
        recipe.bind(recipe.load_data())
    recipe = choose(str(pair_file), separate | {"model.share_embeddings": False}).recipe
    assert recipe.bind(recipe.load_data()).steps > 0
