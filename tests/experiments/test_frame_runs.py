"""Training on a DataFrame and prediction for the rows of another one."""

import re

import numpy as np
import pytest

import harken
from harken.data.tables.columns import MAX_QUOTED_LINES
from harken.data.tables.frame import save_frame
from harken.errors import BadInput
from harken.events import SkippedRowsWarning
from harken.experiments.choose import choose, target_settings

SMALL = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 16, "train.threads": 1}
LABELS = {**SMALL, "train.steps": 40, "train.lr": 0.02, "data.vocab_size": 200}


class StandInFrame:
    """The two members of a DataFrame that harken uses."""

    def __init__(self, **cells):
        self.cells = cells

    @property
    def columns(self):
        return list(self.cells)

    def __getitem__(self, name):
        return self.cells[name]


def reviews(n_rows: int = 160) -> dict[str, list]:
    lines = "\n" * (MAX_QUOTED_LINES + 5)  # more lines than a quoted cell of a file may have
    texts = [f"a {'good' if n % 2 else 'bad'} film,{lines if n % 40 == 0 else ' '}number {n}" for n in range(n_rows)]
    return {"id": list(range(n_rows)), "review": texts, "opinion": ["pos" if n % 2 else "neg" for n in range(n_rows)]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a stand-in DataFrame, and the folder it was trained in."""
    home = tmp_path_factory.mktemp("frames")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.chdir(home)
        frame = StandInFrame(**reviews())
        run = harken.train(frame, target="opinion", settings={**LABELS, "data.text": "review"})
        again = harken.train(frame, target="opinion", resume=True)
        assert again.path == run.path  # the same rows are the same data
        yield run


def test_every_row_of_a_frame_is_used(trained):
    assert sum(trained.facts["data"]["texts"].values()) == 160
    assert trained.recipe.settings()["data.label"] == "opinion"


def test_the_recipe_of_a_run_on_a_frame_can_be_repeated(trained, tmp_path):
    again = harken.train(trained.path / "recipe.toml", out=tmp_path / "again")
    assert (again.path / "model.safetensors").read_bytes() == (trained.path / "model.safetensors").read_bytes()


def test_predictions_are_aligned_with_the_rows(trained):
    texts = ["a good film, number 3", "", "a bad film, number 4", None, "a good film, number 5", float("nan")]
    with pytest.warns(UserWarning, match=r"^columns that did not occur in training and have no influence: other$"):
        answers = trained.predict(StandInFrame(other=[0] * 6, review=texts))
    assert answers == ["pos", None, "neg", None, "pos", None]
    assert answers[::2] == [labels[0]["label"] for labels in trained.classify(texts[::2])]


def test_the_rows_of_another_frame_are_evaluated(trained):
    texts = [f"a {word} film, row {n}" for n in range(30) for word in ("good", "bad")]
    frame = StandInFrame(review=texts, opinion=["pos", "neg"] * 30)
    score, _ = trained.evaluate(data=frame)
    assert score.protocol["texts"] == 60
    predicted = np.array(trained.predict(StandInFrame(review=texts)))
    assert score.metrics["accuracy"] == pytest.approx(np.mean(predicted == np.array(frame["opinion"])))


def test_an_unknown_label_of_another_frame_is_named_by_its_row(trained):
    frame = StandInFrame(review=["a good film", "a bad film"], opinion=["pos", "meh"])
    with pytest.raises(BadInput, match=r"^DataFrame, row 1: unknown label 'meh'"):
        trained.evaluate(data=frame)


def test_labels_that_did_not_occur_in_training_are_named_with_their_counts(trained):
    frame = StandInFrame(review=["a good film", "a bad film", "a film"], opinion=["meh", "pos", "meh"])
    notices = []
    trained.predict(frame, listen=lambda event, **facts: notices.append(facts["text"]))
    assert notices == ["labels that did not occur in training and are never predicted: 'meh' (2)"]


def test_predictions_below_the_minimum_probability_are_unknown(trained):
    frame = StandInFrame(review=["a good film, number 3", ""])
    (labels,) = trained.classify([frame["review"][0]])
    assert trained.predict(frame, min_probability=labels[0]["probability"]) == ["pos", None]
    assert trained.predict(frame, min_probability=1.0) == ["unknown", None]
    assert trained.predict(frame, min_probability=np.float64(1)) == ["unknown", None]
    (first, *others) = trained.classify(frame["review"][0], min_probability=1.0)
    assert (first, others) == ({"label": "unknown", "probability": labels[0]["probability"]}, labels)


def test_an_empty_or_missing_text_is_no_input_of_classify(trained):
    with pytest.raises(BadInput, match=r"^the text is empty; give a text with words$"):
        trained.classify("")
    for texts, problem in ((["a good film", " "], "item 1: the text is empty"), ([None, "a"], "item 0: the text is m")):
        with pytest.raises(BadInput, match=f"^{problem}"):
            trained.classify(texts)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_pandas_and_polars_frames_are_accepted(trained, library):
    frame = pytest.importorskip(library).DataFrame(reviews(20))
    assert trained.predict(frame) == reviews(20)["opinion"]
    assert trained.classify(frame["review"]) == trained.classify(reviews(20)["review"])
    with pytest.raises(BadInput, match=r"^DataFrame: give one column of it, such as df\['text'\], or use run.predict"):
        trained.classify(frame)


def test_a_frame_without_the_trained_column_is_refused(trained):
    message = r"^StandInFrame: no column 'review'; its columns are reviews, label\. Did you mean reviews\?$"
    with pytest.raises(BadInput, match=message):
        trained.predict(StandInFrame(reviews=["a"], label=["b"]))
    with pytest.raises(BadInput, match=r"^list: a DataFrame is accepted; use run.classify for texts$"):
        trained.predict(["a good film"])


def test_a_frame_in_place_of_texts_is_refused(trained):
    with pytest.raises(BadInput, match=r"^StandInFrame: give one column of it, such as df\['text'\], or use run.pred"):
        trained.classify(StandInFrame(review=["a"]))


def test_an_unknown_target_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"^target='label': no such column; the columns are id, review, opinion\."
    with pytest.raises(BadInput, match=message):
        harken.train(StandInFrame(**reviews()), target="label")
    assert not (tmp_path / "runs").exists()


def test_a_numeric_target_is_predicted_as_a_number(tmp_path):
    rows = reviews(60)
    frame = StandInFrame(review=rows["review"], price=[n / 8 for n in range(60)])
    run = harken.train(frame, target="price", out=tmp_path / "run", settings={**LABELS, "train.steps": 2})
    answers = run.predict(frame)
    assert len(answers) == 60
    assert all(isinstance(answer, float) for answer in answers)


@pytest.mark.parametrize("name", ["height", "label"])
def test_fractions_in_a_small_frame_are_a_regression_target(tmp_path, name):
    path = save_frame(StandInFrame(review=reviews(60)["review"], **{name: [n / 8 for n in range(60)]}))
    settings = target_settings(path, name, {})
    assert settings == {"data.label": name, "data.text": "review"}
    choice = choose(str(path), settings)
    assert choice.recipe.data.kind == "table"


@pytest.mark.parametrize("quiet", [False, True])
def test_rows_that_are_left_out_are_a_warning_and_in_the_report_by_their_position(tmp_path, quiet):
    rows = reviews(60)
    frame = StandInFrame(review=[*rows["review"][:59], ""], opinion=[*rows["opinion"][:5], None, *rows["opinion"][6:]])
    message = "skipped 2 rows (no text with a label): DataFrame, row 5: the label is empty, DataFrame, row 59"
    with pytest.warns(SkippedRowsWarning, match=re.escape(message)) as caught:
        run = harken.train(
            frame, target="opinion", out=tmp_path / "run", settings={**LABELS, "train.steps": 2}, quiet=quiet
        )
    assert caught[0].filename == __file__
    assert any(message in text for text in run.facts["notices"])
    assert "DataFrame, row 59" in (run.path / "report.html").read_text()


def test_errors_about_a_frame_name_its_row_and_not_the_saved_table(tmp_path):
    prices = [f"{n},5" for n in range(59)]
    frame = StandInFrame(review=reviews(60)["review"], price=[*prices[:7], "1.2.3", *prices[7:]])
    settings = {**LABELS, "data.decimal": ",", "data.target_type": "number"}
    with pytest.raises(BadInput, match=r"^DataFrame, row 7: '1.2.3' is not a number"):
        harken.train(frame, target="price", out=tmp_path / "run", settings=settings)
    with pytest.raises(BadInput, match=r"^DataFrame, row 0: '0,5' has a decimal comma"):
        harken.train(frame, target="price", out=tmp_path / "run", settings={**LABELS, "data.target_type": "number"})


def test_a_target_of_texts_makes_pairs(tmp_path):
    rows = {"en": [f"the {n} red cats sleep" for n in range(120)], "de": [f"die {n} roten Katzen" for n in range(120)]}
    pairs = {**SMALL, "train.steps": 2, "data.tokenizer": "word", "task.eval_pairs": 4, "task.max_new_tokens": 4}
    run = harken.train(StandInFrame(**rows), target="de", out=tmp_path / "run", settings=pairs)
    assert run.verb == "translate"
    sources = StandInFrame(de=["", ""], en=["the 3 red cats sleep", ""])
    assert run.predict(sources) == [run.translate("the 3 red cats sleep"), None]
    with pytest.warns(UserWarning, match="columns that did not occur in training and have no influence: author"):
        run.predict(StandInFrame(en=["the cats"], author=["Ada"]))
    with pytest.raises(BadInput, match="min_probability: only labels have a probability; leave it out"):
        run.predict(sources, min_probability=0.5)
    with pytest.raises(BadInput, match="overflow='windows': only texts with labels are read in windows; leave it out"):
        run.predict(sources, overflow="windows")


def test_a_language_model_predicts_no_rows(char):
    with pytest.raises(BadInput, match=r"was not trained on columns of a table; use run.generate for one column of it"):
        char.predict(StandInFrame(text=["a"]))


@pytest.mark.parametrize("labels", [[3, 7], [True, False], [1.0, 2.0], ["3", "7"]])
def test_predicted_labels_have_the_type_of_the_target(tmp_path, monkeypatch, labels):
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    frame = StandInFrame(review=reviews(80)["review"], target=[labels[n % 2] for n in range(80)])
    settings = {**LABELS, "train.steps": 1, "data.text": "review"}
    run = harken.train(frame, target="target", out=tmp_path / "run", settings=settings)
    answers = run.predict(StandInFrame(review=["a good film", ""]))
    assert answers[0] in labels
    assert type(answers[0]) is type(labels[0])
    assert answers[1] is None
    assert run.predict(StandInFrame(review=["a good film"]), min_probability=1.0) == ["unknown"]


@pytest.mark.parametrize("data", [[1, 2], np.zeros((3, 2)), {"text": ["a", "b"], "label": [0, 1]}])
def test_data_that_is_no_frame_is_refused_in_one_line(data):
    name = type(data).__name__
    message = rf"^{name}: a path, a recipe, a DataFrame or a networkx graph is accepted; pandas"
    with pytest.raises(BadInput, match=message):
        harken.train(data)


def test_a_lazy_frame_is_refused_with_the_call_that_collects_it():
    lazy = pytest.importorskip("polars").LazyFrame({"text": ["a"], "label": ["b"]})
    with pytest.raises(BadInput, match=r"^LazyFrame: has no rows yet; give a DataFrame: df\.collect\(\)$"):
        harken.train(lazy, target="label")


def test_options_of_predict_are_checked(trained):
    frame = StandInFrame(review=["a good film"])
    with pytest.raises(BadInput, match=r"^min_probability=None: must be between 0 and 1$"):
        trained.predict(frame, min_probability=None)
    with pytest.raises(BadInput, match=r"^foo is not an option; accepted: min_probability, overflow\.$"):
        trained.predict(frame, foo=3)
    with pytest.raises(BadInput, match=r"^text=array\('good'.*\): must be a string or a list of strings$"):
        trained.classify(np.array("good"))


@pytest.mark.parametrize("function", [harken.load, harken.audit, harken.compare])
def test_a_missing_path_is_refused(function):
    with pytest.raises(BadInput, match=r"^(path|what)=None: must be a path, as a string or a pathlib\.Path$"):
        function(None)


def test_texts_without_a_run_are_not_clustered(trained):
    for texts in (["a film", "a book"], pytest.importorskip("pandas").DataFrame({"review": ["a", "b"]})):
        with pytest.raises(BadInput, match=r"an array of numbers is expected; to cluster texts, give a run"):
            harken.cluster(texts)
    with pytest.raises(BadInput, match=r"^StandInFrame: give one column of it"):
        harken.cluster(trained, StandInFrame(review=["a", "b"]))


def test_a_frame_can_be_compared(tmp_path):
    frame = StandInFrame(**reviews(40))
    settings = {**SMALL, "train.steps": 1, "data.text": "review", "data.label": "opinion", "data.vocab_size": 200}
    comparison = harken.compare(frame, {"train.lr": [0.02]}, settings=settings, seeds=1, out=tmp_path / "c")
    assert [row["settings"] for row in comparison.rows] == [{"train.lr": 0.02}]


@pytest.mark.parametrize(("text", "target"), [(" text", "label "), ('the "text"', "a,b\tc"), (0, 1)])
def test_columns_of_any_name_are_trained_on(tmp_path, text, target):
    rows = reviews(60)
    frame = pytest.importorskip("pandas").DataFrame({text: rows["review"], target: rows["opinion"]})
    run = harken.train(frame, target=target, out=tmp_path / "run", settings={**LABELS, "train.steps": 1})
    assert sum(run.facts["data"]["texts"].values()) == 60
    assert {*run.predict(frame)} <= {"pos", "neg"}
