"""What the last judgement of a translation keeps beside its metrics: an interval, and the metric of each group."""

from typing import Any

import pytest

from harken.data.pairs.source import PairSource
from harken.tasks.metrics.generation import bleu, bootstrap
from harken.tasks.translate import TranslateSettings, TranslateTask

pytest.importorskip("sacrebleu")
NOUNS = ("cat", "dog", "bird", "fish", "horse")
WORDS = {"cat": "chat", "dog": "chien", "bird": "oiseau", "fish": "poisson", "horse": "cheval"}


class Silent:
    """No model: the answers of these tests are written by hand."""

    training = False

    def eval(self) -> None: ...
    def train(self, mode: bool) -> None: ...


@pytest.fixture
def judged(tmp_path, monkeypatch) -> Any:
    """Judge answers of which those to long sources are wrong; the column says how long a source is."""
    rows = []
    for n in range(200):
        long, noun = n % 2, NOUNS[n % 5]
        source = f"I see the {noun} number {n}" + " now and here again today" * long
        rows.append(
            (source, f"Je vois le {WORDS[noun]} numéro {n}" + " maintenant et ici encore" * long, 10 if long else 2)
        )
    path = tmp_path / "a.tsv"
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [("source", "target", "distance"), *rows]))

    def judge(*, quick: bool = False, measure: str = "bleu", **given: Any) -> tuple[Any, Any]:
        data = PairSource(path=str(path), tokenizer="word", valid=0.3, **given).load_data()
        pairs = data.splits["valid"]
        task = TranslateTask(TranslateSettings(metric=measure), data, batch=8, seed=0)
        answers = [refs[0] if len(refs[0].split()) < 8 else f"{refs[0]} non" for refs in pairs.references]
        monkeypatch.setattr(task, "_score", lambda model, pairs, most: (1.0, 1))
        monkeypatch.setattr(task, "answers", lambda model, sources, how: answers[: len(sources)])
        return task.evaluate(Silent(), "valid", quick=quick), (answers, pairs)

    return judge


def test_the_last_judgement_keeps_the_interval_of_bleu_over_the_sentences(judged):
    score, (answers, pairs) = judged()
    assert score.protocol["primary_metric"] == score.primary_metric == "bleu"
    assert score.protocol["bleu_interval"] == bootstrap(answers, pairs.references)[1] > 0


def test_a_quick_look_keeps_neither_interval_nor_parts(judged):
    score, _ = judged(quick=True)
    assert "bleu_interval" not in score.protocol
    assert not score.parts


def test_without_a_column_the_parts_are_stretches_of_length(judged):
    score, (answers, pairs) = judged()
    short = [n for n, source in enumerate(pairs.sources) if len(source.split()) == 6]
    assert score.protocol["grouped_by"] == "words"
    assert list(score.parts) == ["6 words", "11 words"]
    assert score.parts["6 words"] == {"bleu": pytest.approx(100.0), "pairs": len(short), "position": 6.0}
    rest = [n for n in range(len(pairs)) if n not in short]
    own = bleu([answers[n] for n in rest], [pairs.references[n] for n in rest]).score
    assert score.parts["11 words"]["bleu"] == own < 100


def test_with_a_column_the_parts_are_its_values_and_the_tasks_metric(judged):
    score, (_, pairs) = judged(metric="exact_match", group="distance")
    assert score.protocol["grouped_by"] == "distance"
    assert score.parts == {
        "distance 2": {"exact_match": 1.0, "pairs": pairs.groups.count("2"), "position": 2.0},
        "distance 10": {"exact_match": 0.0, "pairs": pairs.groups.count("10"), "position": 10.0},
    }
    assert "bleu_interval" not in score.protocol
