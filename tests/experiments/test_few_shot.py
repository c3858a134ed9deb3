"""transfer=4-shot: rows of a comparison that ask a language model, beside those that learn."""

from random import Random

import pytest

import harken
from harken.errors import BadSetting
from harken.experiments import few_shot
from harken.experiments.choose import choose
from harken.experiments.compare.comparison import compare
from harken.inference.prompt_eval import evaluate_prompt

ASK = "Review: {text} Sentiment:"
WORDS = {"positive": ["good", "nice", "happy"], "negative": ["bad", "sad", "poor"]}
TINY = {"train.steps": 3, "train.batch": 16, "train.threads": 1, "task.prompt": ASK}


def reviews(many, seed):
    """Texts that differ by their numbers, in an order that tells nothing."""
    chance = Random(seed)
    for n in range(many):
        label = chance.choice([*WORDS])
        yield f"{n % 200} a {chance.choice(WORDS[label])} {chance.choice(['day', 'film', 'book', 'meal'])}", label


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """A language model of reviews with their sentiment: it has learned to answer the prompt."""
    home = tmp_path_factory.mktemp("writer")
    (home / "reviews.txt").write_text(
        "".join(f"Review: {text} Sentiment: {label}\n\n" for text, label in reviews(900, 0))
    )
    shape = {"model.kind": "gpt", "model.d": 64, "model.layers": 2, "model.heads": 2, "model.context": 32}
    how = {"data.tokenizer": "word", "train.steps": 200, "train.batch": 16, "train.lr": 1e-2, "train.threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        harken.train(str(home / "reviews.txt"), out=home / "run", settings={**shape, **how})
    return home / "run"


@pytest.fixture
def table(tmp_path):
    lines = [f"{text}\t{label}" for text, label in reviews(120, 1)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return str(tmp_path / "t.tsv")


def test_one_comparison_has_prompts_and_trainings(writer, table, tmp_path):
    axes = {"transfer": ["0-shot", "2-shot", "frozen", "finetune", "scratch"]}
    made = compare(table, axes, settings={**TINY, "from": str(writer)}, seeds=2, out=tmp_path / "out")
    rows = {row["settings"]["transfer"]: row for row in made.rows}
    assert not any(row["failed"] for row in made.rows)
    assert rows["0-shot"]["metrics"]["accuracy"] > 0.9 > made.facts["baseline"]["most frequent label"]["accuracy"]
    assert [rows[name]["steps"] for name in axes["transfer"]] == [0, 0, 3, 3, 3]
    assert rows["0-shot"]["flops"] is rows["0-shot"]["tokens_per_second"] is None
    assert rows["0-shot"]["seconds"] > 0
    assert made.facts["baseline"].keys() == {"most frequent label", "bag of words"}  # the same of all rows
    report = (made.path / "report.html").read_text()
    assert "transfer=2-shot" in report


def test_a_resumed_comparison_reads_the_stored_prompt_evaluation(writer, table, tmp_path, monkeypatch):
    how = {"settings": {**TINY, "from": str(writer)}, "seeds": 1, "out": tmp_path / "out"}
    first = compare(table, {"transfer": ["0-shot", "4-shot"]}, **how)
    monkeypatch.setattr(few_shot, "evaluate_prompt", lambda *_: pytest.fail("asked again"))
    again = compare(table, {"transfer": ["0-shot", "4-shot"]}, **how, resume=True)
    assert [row["metrics"] for row in again.rows] == [row["metrics"] for row in first.rows]


def test_a_few_shot_row_equals_eval_with_a_prompt(writer, table, tmp_path):
    recipe = choose(table, {**TINY, "from": str(writer), "transfer": "2-shot", "train.seed": 5}).recipe
    found = few_shot.evaluate_few_shot(recipe, tmp_path / "row", lambda *_, **__: None)
    task, _ = few_shot.opened(recipe, None, words=few_shot.transfer.words(recipe))
    score = evaluate_prompt(harken.load(writer), task, "valid", few_shot.prompt_from_recipe(recipe))
    assert found["facts"]["metrics"]["valid"] == pytest.approx(score.metrics)
    assert score.protocol["seed"] == 5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"transfer": "4-shot", "task.prompt": None}, "with which prompt"),
        ({"transfer": "4-shot", "from": "none"}, "of which run"),
        ({"transfer": "four-shot"}, "accepted: finetune, frozen, scratch, 4-shot"),
    ],
)
def test_an_invalid_few_shot_row_is_refused_before_any_training(writer, table, tmp_path, given, said):
    settings = {**TINY, "from": str(writer), **given}
    settings = {path: value for path, value in settings.items() if value is not None}
    with pytest.raises(BadSetting, match=said):
        compare(table, settings=settings, seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_training_from_a_gpt_uses_a_gpt_recipe(writer, table):
    recipe = choose(table, {"from": str(writer)}).recipe
    assert (recipe.model.kind, recipe.model.d) == ("gpt", 64)
