"""Translation as a task: loss, metrics and free baselines, each against a computation by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from harken import registry
from harken.data.batch import IGNORE
from harken.data.pairs.source import PairSource
from harken.errors import BadSetting
from harken.experiments import train
from harken.experiments.choose import choose
from harken.models import EncoderDecoder
from harken.tasks.metrics import generation
from harken.tasks.translate import TranslateSettings, TranslateTask


@pytest.fixture(scope="module")
def source(pair_file) -> PairSource:
    return PairSource(path=str(pair_file), tokenizer="word")


def bound(source: PairSource, **task) -> TranslateTask:
    return TranslateSettings(**task).bind(source.load_data(), None, batch=8, seed=0)


def model(task: TranslateTask) -> EncoderDecoder:
    torch.manual_seed(0)
    shape = registry.find_kind("model", "transformer", " of pairs")(d=16, layers=1, heads=2)
    return shape.build(task.data.vocab).double().eval()


def scores(net: EncoderDecoder, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """ln p of every word at each place that is asked, and the answers there."""
    asked = batch.targets != IGNORE
    return net.scores(batch.tokens, **batch.model_inputs())[asked].log_softmax(-1), batch.targets[asked]


def test_the_loss_is_the_summed_cross_entropy_of_the_targets_and_their_edges(source):
    task = bound(source, label_smoothing=0.0)
    net, batch = model(task), task.batch(0, 0)
    logs, answers = scores(net, batch)
    found = task.loss(net, batch)
    torch.testing.assert_close(found.total, F.nll_loss(logs, answers, reduction="sum"))
    assert found.model_inputs is None
    assert int((answers == net.edge).sum()) == len(batch.tokens)


def test_a_look_scores_no_more_pairs_than_it_may_and_the_judgement_all(source, monkeypatch):
    task = bound(source)
    net, pairs = model(task), task.data.splits["valid"]
    monkeypatch.setattr("harken.tasks.translate.SCORED", 5)
    few, total = (task.evaluate(net, "valid", quick=quick).protocol["tokens"] for quick in (True, False))
    assert few == int(pairs.target.lengths[:5].sum()) + 5
    assert total == int(pairs.target.lengths.sum()) + len(pairs)


def test_the_tokens_of_a_packed_batch_are_those_that_are_asked(source):
    shape = registry.find_kind("model", "transformer", " of pairs")()
    task = TranslateSettings(packed=True).bind(source.load_data(), shape, batch=8, seed=0)
    sizes = [task.batch(0, n).n_tokens for n in range(task.steps)]
    assert sum(sizes) == int(task.data.train.target.lengths.sum()) + len(task.data.train)


def test_held_out_sentences_are_cut_where_the_model_ends_and_that_is_told(pair_file, tmp_path):
    shape = registry.find_kind("model", "transformer", " of pairs")(d=16, layers=1, heads=2, context=12)
    (tmp_path / "valid.tsv").write_text("she saw the cat.\telle a vu le chat.\n" + "he saw " * 12 + "it.\til a vu.\n")
    data = PairSource(path=str(pair_file), tokenizer="word", valid=str(tmp_path / "valid.tsv")).load_data()
    for opened in (data, replace(data, train=data.splits["valid"], has_train=False)):
        task = TranslateSettings().bind(opened, shape, batch=8, seed=0)
        assert task.data.splits["valid"].source.lengths.tolist() == [5, 11]
        assert data.splits["valid"].source[1][:11].tolist() == task.data.splits["valid"].source[1].tolist()
        assert task.evaluate(model(task), "valid").protocol["truncated_sentences"] == 1
    assert (
        "truncated_sentences"
        not in bound(PairSource(path=str(pair_file), tokenizer="word")).evaluate(model(task), "valid").protocol
    )


def test_smoothing_spreads_a_share_over_all_words_and_what_is_told_is_without_it(source):
    task = bound(source, label_smoothing=0.2)
    net, batch = model(task), task.batch(0, 0)
    logs, answers = scores(net, batch)
    found, plain = task.loss(net, batch), F.nll_loss(logs, answers, reduction="sum")
    torch.testing.assert_close(found.total, 0.8 * plain - 0.2 * logs.mean(-1).sum())
    torch.testing.assert_close(found.model_inputs, plain)


def test_packed_rows_have_the_loss_and_the_gradients_of_padded_ones(source):
    sums = []
    for task in (
        bound(source, label_smoothing=0.1),
        TranslateTask(TranslateSettings(packed=True), source.load_data(), batch=8, seed=0),
    ):
        net = model(task)
        losses = [task.loss(net, task.batch(0, step)) for step in range(task.steps)]
        sum(loss.total for loss in losses).backward()
        sums.append(
            [sum(loss.model_inputs for loss in losses), *(w.grad for w in net.parameters() if w.grad is not None)]
        )
    torch.testing.assert_close(*sums)


def test_packed_rows_are_refused_where_pairs_would_see_each_other_or_change_their_lengths(source):
    with pytest.raises(BadSetting, match="only a Transformer"):
        TranslateSettings(packed=True).bind(
            source.load_data(), registry.find_kind("model", "rnn", " of pairs")(), batch=8, seed=0
        )
    pieces = source.model_copy(update={"tokens": "bpe", "split_dropout": 0.1})
    with pytest.raises(BadSetting, match=r"data\.bpe_dropout"):
        TranslateSettings(packed=True).bind(
            pieces.load_data(), registry.find_kind("model", "transformer", " of pairs")(), batch=8, seed=0
        )


def test_the_loss_of_a_split_is_the_mean_over_its_first_references(source):
    task = bound(source)
    net, pairs = model(task), task.data.splits["valid"]
    total, count = 0.0, 0
    with torch.no_grad():
        for n in range(len(pairs)):
            ids = pairs.target[n].astype(int).tolist()
            told = torch.tensor([[*pairs.source[n].astype(int).tolist(), net.source_vocab - 1]])
            logs = net.scores(torch.tensor([[net.edge, *ids]]), source=told)[0].log_softmax(-1)
            total -= float(logs.gather(1, torch.tensor([*ids, net.edge])[:, None]).sum())
            count += len(ids) + 1
    found = task.evaluate(net, "valid")
    assert found.protocol["tokens"] == count
    assert found.metrics["loss"] == pytest.approx(total / count, rel=1e-9)
    assert found.metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-9)


def test_answers_that_are_the_references_have_full_marks_and_their_metric_chooses(source, monkeypatch):
    pytest.importorskip("sacrebleu")
    task = bound(source)
    pairs = task.data.splits["valid"]
    monkeypatch.setattr(task, "answers", lambda *_: [references[0] for references in pairs.references])
    found = task.evaluate(model(task), "valid")
    assert found.primary_metric == "bleu"
    assert {name: found.metrics[name] for name in ("exact_match", "rouge_l")} == {"exact_match": 1, "rouge_l": 1}
    assert [found.metrics[name] for name in ("bleu", "chrf")] == pytest.approx([100, 100])


def test_without_sacrebleu_bleu_is_left_out_with_a_word_and_the_loss_chooses(source, monkeypatch):
    monkeypatch.setattr(generation, "available", lambda: False)
    task = bound(source, eval_pairs=5)
    found = task.evaluate(model(task), "valid")
    assert found.primary_metric == "loss"
    assert not {"bleu", "chrf"} & found.metrics.keys()
    assert found.protocol["bleu"] == "not computed (pip install 'harken[text]')"
    assert all("bleu" not in free for free in task.baselines("valid").values())


def test_another_measure_chooses_where_it_is_asked_to(source):
    assert (
        bound(source, metric="exact_match", eval_pairs=5).evaluate(model(bound(source)), "valid").primary_metric
        == "exact_match"
    )


def test_answers_are_counted_exactly_beside_their_f1(source, monkeypatch):
    task = bound(source, metric="answer_f1")
    pairs = task.data.splits["valid"]
    monkeypatch.setattr(task, "answers", lambda *_: [f"The {texts[0]}!" for texts in pairs.references])
    metrics = task.evaluate(model(task), "valid").metrics
    assert (metrics["answer_f1"], metrics["answer_exact"], metrics["exact_match"]) == (1, 1, 0)


def test_an_answer_is_as_long_as_the_task_says(source, monkeypatch):
    task, asked = bound(source, max_new_tokens=3), []
    monkeypatch.setattr(task, "answers", lambda _, sources, how: [asked.append(how.longest) or ""] * len(sources))
    task.evaluate(model(task), "valid")
    assert asked == [3]


def test_targets_that_no_answer_can_reach_are_refused_with_the_setting(tmp_path):
    file = tmp_path / "a.mrg"
    file.write_text("".join(f"(S (NP (NP (NN a{n}))) (VP (VP (VB b{n}) (NP (NP (NN c))))))\n" for n in range(40)))
    source = PairSource(path=str(file), tokenizer="word")
    with pytest.raises(BadSetting, match=r"^task.max_new_tokens is not given, and most targets are longer .*=32$"):
        bound(source)
    assert bound(source, max_new_tokens=32).task.max_new_tokens == 32


@pytest.mark.parametrize("kind", ["conv", "transformer"])
def test_sentences_longer_than_the_model_reads_are_refused_by_both_settings(source, kind):
    shape, data = registry.find_kind("model", kind, " of pairs"), source.load_data()
    parts = (data.train, *data.splits.values())
    most = max(int(side.lengths.max()) for part in parts for side in (part.source, part.target))
    says = f"model.context={most}: a sentence has {most} tokens .*set model.context={most + 1} or data.max_length={most - 1}"
    with pytest.raises(BadSetting, match=says):
        TranslateSettings().bind(data, shape(context=most), batch=8, seed=0)
    for net in (shape(context=most + 1), registry.find_kind("model", "rnn", " of pairs")(context="start")):
        TranslateSettings().bind(data, net, batch=8, seed=0)


def test_what_costs_nothing_is_judged_as_the_model_is(source):
    task = bound(source)
    free, pairs = task.baselines("valid"), task.data.splits["valid"]
    assert free.keys() == {"copy of the source", "most frequent target"}
    assert free["copy of the source"]["exact_match"] == generation.exact_match(pairs.sources, pairs.references)
    assert free["copy of the source"]["rouge_l"] == generation.rouge_l(pairs.sources, pairs.references)
    assert all("loss" not in row for row in free.values())


def test_judging_leaves_the_model_in_the_mode_it_was_in(source):
    task = bound(source, eval_pairs=3)
    for mode in (True, False):
        net = model(task).train(mode)
        task.evaluate(net, "valid", quick=True)
        assert net.training is mode


def test_the_weights_of_the_best_bleu_are_kept_even_if_a_later_loss_is_lower(pair_file, tmp_path, monkeypatch):
    pytest.importorskip("sacrebleu")
    judged = TranslateTask.evaluate
    looks = iter([(10.0, 3.0), (30.0, 2.0), (20.0, 1.0)])

    def planned(self, model, split, *, quick=False):
        found = judged(self, model, split, quick=quick)
        if quick and (now := next(looks, None)):
            found.metrics["bleu"], found.metrics["loss"] = now
        return found

    monkeypatch.setattr(TranslateTask, "evaluate", planned)
    settings = {"model.d": 16, "model.layers": 1, "model.heads": 2, "data.tokenizer": "word", "task.eval_pairs": 5}
    settings |= {"train.steps": 3, "train.eval_every": 1, "train.threads": 1}
    run = train.train(pair_file, out=tmp_path / "run", settings=settings)
    assert run.facts["best_step"] == 2
    assert 0 <= run.facts["data"]["padding"] < 1


def test_two_vocabularies_share_no_word_vectors(pair_file):
    apart = {"data.shared_vocab": False, "data.vocab_size": 300}
    recipe = choose(str(pair_file), apart).recipe
    with pytest.raises(BadSetting, match=r"model\.share_embeddings"):
        recipe.bind(recipe.load_data())
    recipe = choose(str(pair_file), apart | {"model.share_embeddings": False}).recipe
    assert recipe.bind(recipe.load_data()).steps > 0
