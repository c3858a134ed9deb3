"""transfer=4-shot: rows of a comparison that prompt a language model, next to trainings."""

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


def reviews(n, seed):
    """Different texts with random labels."""
    rng = Random(seed)
    for i in range(n):
        label = rng.choice([*WORDS])
        yield f"{i % 200} a {rng.choice(WORDS[label])} {rng.choice(['day', 'film', 'book', 'meal'])}", label


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A language model trained on reviews with their sentiment, so it can complete the prompt."""
    home = tmp_path_factory.mktemp("writer")
    (home / "reviews.txt").write_text(
        "".join(f"Review: {text} Sentiment: {label}\n\n" for text, label in reviews(900, 0))
    )
    model = {"model.kind": "gpt", "model.d": 64, "model.layers": 2, "model.heads": 2, "model.context": 32}
    options = {"data.tokenizer": "word", "train.steps": 200, "train.batch": 16, "train.lr": 1e-2, "train.threads": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        harken.train(str(home / "reviews.txt"), out=home / "run", settings={**model, **options})
    return home / "run"


@pytest.fixture
def table(tmp_path):
    lines = [f"{text}\t{label}" for text, label in reviews(120, 1)]
    (tmp_path / "t.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    return str(tmp_path / "t.tsv")


def test_one_comparison_has_prompts_and_trainings(language_model, table, tmp_path):
    axes = {"transfer": ["0-shot", "2-shot", "frozen", "finetune", "scratch"]}
    comparison = compare(table, axes, settings={**TINY, "from": str(language_model)}, seeds=2, out=tmp_path / "out")
    rows = {row["settings"]["transfer"]: row for row in comparison.rows}
    assert not any(row["failed"] for row in comparison.rows)
    assert rows["0-shot"]["metrics"]["accuracy"] > 0.9 > comparison.facts["baseline"]["most frequent label"]["accuracy"]
    assert [rows[name]["steps"] for name in axes["transfer"]] == [0, 0, 3, 3, 3]
    assert rows["0-shot"]["flops"] is rows["0-shot"]["tokens_per_second"] is None
    assert rows["0-shot"]["seconds"] > 0
    assert comparison.facts["baseline"].keys() == {"most frequent label", "bag of words"}  # equal for all rows
    report = (comparison.path / "report.html").read_text()
    assert "transfer=2-shot" in report


def test_a_resumed_comparison_reads_the_stored_prompt_evaluation(language_model, table, tmp_path, monkeypatch):
    options = {"settings": {**TINY, "from": str(language_model)}, "seeds": 1, "out": tmp_path / "out"}
    first = compare(table, {"transfer": ["0-shot", "4-shot"]}, **options)
    monkeypatch.setattr(few_shot, "evaluate_prompt", lambda *_: pytest.fail("evaluated again"))
    resumed = compare(table, {"transfer": ["0-shot", "4-shot"]}, **options, resume=True)
    assert [row["metrics"] for row in resumed.rows] == [row["metrics"] for row in first.rows]


def test_a_few_shot_row_equals_eval_with_a_prompt(language_model, table, tmp_path):
    recipe = choose(table, {**TINY, "from": str(language_model), "transfer": "2-shot", "train.seed": 5}).recipe
    facts, _, outcomes = few_shot.evaluate_few_shot(recipe, tmp_path / "row", lambda *_, **__: None)
    task, _ = few_shot.load_task(recipe, None, processor=few_shot.transfer.inherited_processor(recipe))
    score = evaluate_prompt(harken.load(language_model), task, "valid", few_shot.prompt_from_recipe(recipe))
    assert facts["metrics"]["valid"] == pytest.approx(score.metrics)
    assert outcomes["valid"].keys() == facts["intervals"]["valid"].keys() == score.metrics.keys()
    assert score.protocol["seed"] == 5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"transfer": "4-shot", "task.prompt": None}, "needs a prompt"),
        ({"transfer": "4-shot", "from": "none"}, "needs from="),
        ({"transfer": "four-shot"}, "accepted: finetune, frozen, scratch, 4-shot"),
    ],
)
def test_an_invalid_few_shot_row_is_refused_before_any_training(language_model, table, tmp_path, overrides, message):
    settings = {**TINY, "from": str(language_model), **overrides}
    settings = {path: value for path, value in settings.items() if value is not None}
    with pytest.raises(BadSetting, match=message):
        compare(table, settings=settings, seeds=1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_training_from_a_gpt_uses_a_gpt_recipe(language_model, table):
    recipe = choose(table, {"from": str(language_model)}).recipe
    assert (recipe.model.kind, recipe.model.d) == ("gpt", 64)
