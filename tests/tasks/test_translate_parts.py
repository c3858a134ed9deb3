"""The full evaluation of a translation: the intervals, and the metric of each group."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from harken.data.pairs.source import PairSource
from harken.tasks.metrics.generation import bleu
from harken.tasks.metrics.intervals import wilson_interval
from harken.tasks.translate import TranslateSettings, TranslateTask

pytest.importorskip("sacrebleu")
NOUNS = ("cat", "dog", "bird", "fish", "horse")
WORDS = {"cat": "chat", "dog": "chien", "bird": "oiseau", "fish": "poisson", "horse": "cheval"}


@pytest.fixture
def evaluate(tmp_path, monkeypatch) -> Any:
    """Evaluate fixed targets; those of long sources are wrong. The column `distance` tells long and short sources."""
    rows = []
    for n in range(200):
        long, noun = n % 2, NOUNS[n % 5]
        source = f"I see the {noun} number {n}" + " now and here again today" * long
        rows.append(
            (source, f"Je vois le {WORDS[noun]} numéro {n}" + " maintenant et ici encore" * long, 10 if long else 2)
        )
    path = tmp_path / "a.tsv"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [("source", "target", "distance"), *rows]))

    def run(*, quick: bool = False, metric: str = "bleu", **settings: Any) -> tuple[Any, Any]:
        data = PairSource(path=str(path), tokenizer="word", valid=0.3, **settings).load_data()
        pairs = data.splits["valid"]
        batches = data.batches(8, 0)
        task = TranslateTask(TranslateSettings(metric=metric), data, batches)
        texts = [refs[0] if len(refs[0].split()) < 8 else f"{refs[0]} non" for refs in pairs.references]
        monkeypatch.setattr(task, "_pair_losses", lambda model, split, max_pairs: (np.ones(9), np.ones(9)))
        monkeypatch.setattr(task, "generate", lambda model, sources, search: texts[: len(sources)])
        return task.evaluate(nn.Identity(), "valid", quick=quick), (texts, pairs)

    return run


def test_a_full_evaluation_has_an_interval_around_each_metric(evaluate):
    score, _ = evaluate()
    assert score.protocol["primary_metric"] == score.primary_metric == "bleu"
    assert score.intervals.keys() == score.metrics.keys()
    for name in ("bleu", "chrf", "exact_match", "rouge_l"):
        assert score.intervals[name][0] < score.metrics[name] < score.intervals[name][1]


def test_a_quick_evaluation_has_neither_intervals_nor_parts(evaluate):
    score, _ = evaluate(quick=True)
    assert not score.intervals
    assert not score.parts


def test_without_a_group_column_the_parts_are_length_bins(evaluate):
    score, (texts, pairs) = evaluate()
    short = [n for n, source in enumerate(pairs.sources) if len(source.split()) == 6]
    assert score.protocol["grouped_by"] == "words"
    assert list(score.parts) == ["6 words", "11 words"]
    assert score.parts["6 words"] == {"bleu": pytest.approx(100.0), "pairs": len(short), "position": 6.0}
    rest = [n for n in range(len(pairs)) if n not in short]
    expected = bleu([texts[n] for n in rest], [pairs.references[n] for n in rest]).score
    assert score.parts["11 words"]["bleu"] == expected < 100


def test_with_a_group_column_the_parts_are_its_values(evaluate):
    score, (_, pairs) = evaluate(metric="exact_match", group="distance")
    assert score.protocol["grouped_by"] == "distance"
    assert score.parts == {
        "distance 2": {"exact_match": 1.0, "pairs": pairs.groups.count("2"), "position": 2.0},
        "distance 10": {"exact_match": 0.0, "pairs": pairs.groups.count("10"), "position": 10.0},
    }
    assert score.intervals["exact_match"] == wilson_interval(pairs.groups.count("2"), len(pairs))
