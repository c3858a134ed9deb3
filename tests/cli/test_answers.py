"""Answers in every format: no answer for an empty text, unknown words, low probabilities, several texts."""

import csv
import json
from pathlib import Path

import pytest

import harken as package

TINY = {
    "model.d": 16,
    "model.layers": 1,
    "model.heads": 2,
    "data.tokenizer": "word",
    "train.steps": 2,
    "train.batch": 16,
    "train.threads": 1,
}
KNOWN = "red green blue warm"


def rows_of(path: str | Path) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t" if str(path).endswith(".tsv") else ","))


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Three runs on words: single texts with three labels, the same texts with a number, and pairs with two labels."""
    folder = tmp_path_factory.mktemp("runs")
    words = KNOWN.split()
    with (folder / "single.csv").open("w", newline="") as file:
        rows = [(n, f"{words[n % 4]} {words[n // 4 % 4]}", ("bad", "fair", "good")[n % 3]) for n in range(90)]
        csv.writer(file).writerows([("id", "review", "label"), *rows])
    with (folder / "pairs.csv").open("w", newline="") as file:
        rows = [(f"{words[n % 4]} {n % 7}", f"{words[n // 4 % 4]} {n % 5}", ("yes", "no")[n % 2]) for n in range(90)]
        csv.writer(file).writerows([("premise", "hypothesis", "label"), *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        settings = TINY | {"data.text": "review", "data.label": "label"}
        package.train(folder / "single.csv", out=folder / "single", settings=settings)
        settings |= {"data.label": "id", "data.target_type": "number"}
        package.train(folder / "single.csv", out=folder / "number", settings=settings)
        settings = TINY | {"data.text": ["premise", "hypothesis"], "data.label": "label"}
        package.train(folder / "pairs.csv", out=folder / "pairs", settings=settings)
    return folder


@pytest.fixture
def single(home) -> str:
    return str(home / "single")


def test_a_table_has_the_columns_of_the_user_then_the_answer_and_the_line(harken, single, tmp_path):
    lines = ['7;"red, ""green""";x', "8;;", '9;"blue\nwarm";z']
    (tmp_path / "in.csv").write_text("id;review;note\n" + "\n".join(lines) + "\n")
    done = harken("classify", single, "--in", "in.csv", "--out", "out.tsv")
    assert (done.code, done.out) == (0, "2 answers and 1 row without one in out.tsv\n")
    first, empty, last = rows_of("out.tsv")
    labels = package.load(single).classify(['red, "green"', "blue warm"])
    assert list(first) == ["id", "review", "note", "label", "probability", "reason", "unknown_words", "line"]
    assert [first[name] for name in ("id", "review", "note", "line")] == ["7", 'red, "green"', "x", "2"]
    assert (first["label"], float(first["probability"])) == (labels[0][0]["label"], labels[0][0]["probability"])
    assert (empty["label"], empty["reason"], empty["line"]) == ("", "the text is empty", "3")
    assert (last["review"], last["label"], last["line"]) == ("blue\nwarm", labels[1][0]["label"], "4")


def test_all_adds_the_probability_of_each_label_in_the_order_of_the_run(harken, single, tmp_path):
    (tmp_path / "in.txt").write_text("red\nblue warm\n")
    harken("classify", single, "--in", "in.txt", "--out", "out.csv", "--all")
    first, second = rows_of("out.csv")
    names = ["probability_bad", "probability_fair", "probability_good"]
    assert list(first) == ["input", "label", "probability", *names, "line"]
    assert sum(float(second[name]) for name in names) == pytest.approx(1)
    assert float(second["probability"]) == max(float(second[name]) for name in names)
    assert len(harken("classify", single, "red", "--all").out.split()) == 6
    assert not harken("classify", single, "--in", "in.txt", "--out", "out.csv", "--force").code


def test_a_number_has_a_value_and_no_probability(harken, home, tmp_path):
    (tmp_path / "in.csv").write_text("review\nred\nblue\n")
    done = harken("classify", home / "number", "--in", "in.csv", "--out", "out.csv", "--all")
    assert done.code == 0, done.err
    (value, _) = package.load(home / "number").classify(["red", "blue"])
    row = rows_of("out.csv")[0]
    assert row == {"review": "red", "label": "id", "value": str(value[0]["value"]), "line": "2"}
    done = harken("classify", home / "number", "red", "--min-probability", 0.5)
    assert (done.code, "this run predicts a number, which has no probability" in done.err) == (2, True)


def test_a_low_probability_is_answered_with_unknown(harken, single, tmp_path):
    (labels,) = package.load(single).classify(["red"])
    answers = json.loads(harken("classify", single, "red", "--min-probability", 0.9, "--json").out)["labels"][0]
    assert answers == [{"label": "unknown", "probability": labels[0]["probability"]}, *labels]
    assert harken("classify", single, "red", "--min-probability", 0.9).out.split()[1] == "unknown"
    (tmp_path / "in.txt").write_text("red\n")
    harken("classify", single, "--in", "in.txt", "--out", "out.csv", "--min-probability", 0.9, "--all")
    (row,) = rows_of("out.csv")
    assert (row["label"], float(row["probability"])) == ("unknown", labels[0]["probability"])
    assert float(row[f"probability_{labels[0]['label']}"]) == labels[0]["probability"]
    assert harken("classify", single, "red", "--min-probability", 2).code == 2


def test_unknown_words_are_named_with_the_answer_and_once_on_stderr(harken, single, tmp_path):
    done = harken("classify", single, "red zebra", "blue", "--json")
    assert json.loads(done.out)["unknown_words"] == [["zebra"], None]
    assert done.err == "unknown to this run and read as <unk>: 'zebra'\n"
    assert "unknown_words" not in json.loads(harken("classify", single, "red", "--json").out)
    (tmp_path / "in.txt").write_text("".join(f"red{n}, blue\n" for n in range(9)))
    done = harken("classify", single, "--in", "in.txt", "--out", "out.csv")
    shown = ", ".join(f"'{word}'" for word in ("red0", ",", "red1", "red2", "red3"))
    assert done.err == f"unknown to this run and read as <unk>: {shown}, ... (10 in 9 texts)\n"
    assert json.loads(rows_of("out.csv")[1]["unknown_words"]) == ["red1", ","]


def test_each_of_several_texts_is_printed_beside_its_labels(harken, single):
    first, second = harken("classify", single, "red", "blue\nwarm").out.splitlines()
    assert (first.split()[-1], second.split()[-2:]) == ("red", ["blue", "warm"])


def test_columns_and_labels_that_were_never_seen_are_named(harken, single, tmp_path):
    (tmp_path / "in.csv").write_text("id,review,label,extra\n1,red,bad,x\n2,blue,awful,x\n3,warm,awful,x\n")
    done = harken("classify", single, "--in", "in.csv", "--out", "out.csv")
    assert done.err.splitlines() == [
        "columns that did not occur in training and have no influence: extra",
        "labels that did not occur in training and are never predicted: 'awful' (2)",
    ]
    assert [row["label"] for row in rows_of("out.csv")] == ["bad", "awful", "awful"]


@pytest.mark.parametrize("name", ["in.csv", "in.tsv"])
def test_both_columns_of_a_pair_are_taken_by_name(harken, home, tmp_path, name):
    tab = "\t" if name == "in.tsv" else ","
    rows = [("id", "hypothesis", "premise"), ("1", "blue 2", "red 1"), ("2", "", "red 1")]
    (tmp_path / name).write_text("".join(tab.join(row) + "\n" for row in rows))
    done = harken("classify", home / "pairs", "--in", name, "--out", "out.jsonl")
    assert done.code == 0, done.err
    first, empty = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert first["labels"] == package.load(home / "pairs").classify([("red 1", "blue 2")])[0]
    assert (empty["label"], empty["reason"], empty["line"]) == (None, "the text is empty", 3)


def test_the_verbs_of_a_language_model_work_through_a_table(harken, run, tmp_path):
    (tmp_path / "in.csv").write_text('id,text\n1,"Tom had"\n2,\n')
    for verb, keys in {
        "generate": ["predicted_text", "tokens"],
        "score": ["perplexity", "tokens", "unknown"],
        "embed": ["vector"],
    }.items():
        done = harken(verb, run, "--in", "in.csv", "--out", f"{verb}.csv")
        assert (done.code, done.err) == (0, "")
        first, empty = rows_of(f"{verb}.csv")
        assert list(first) == ["id", "text", *keys, "reason", "line"]
        assert (empty[keys[0]], empty["reason"], empty["line"]) == ("", "the text is empty", "3")
    model = package.load(run)
    assert json.loads(rows_of("embed.csv")[0]["vector"]) == pytest.approx(model.embed("Tom had").tolist(), abs=1e-6)
    assert float(rows_of("score.csv")[0]["perplexity"]) == pytest.approx(model.score("Tom had")["perplexity"])
    assert harken("embed", run, "--in", "in.csv", "--out", "v.npy").out == "2 vectors in v.npy\n"
    assert harken("embed", run, "a", "--out", "v.csv").err.startswith(
        "harken: --out v.csv: the ending '.csv'; accepted: "
    )


def test_unknown_words_of_a_scored_text_are_named(harken, run):
    done = harken("score", run, "Tom had 5€", "--json")
    assert json.loads(done.out)["unknown_words"] == ["5", "€"]
    assert done.err == "unknown to this run and read as <unk>: '5', '€'\n"


def test_unknown_words_of_several_prompts_are_named_once(harken, run, tmp_path):
    (tmp_path / "in.txt").write_text("Tom had 5\nTom had €\n")
    done = harken("generate", run, "--in", "in.txt", "--out", "g.csv", "--tokens", 2)
    assert done.err == "unknown to this run and read as <unk>: '5', '€' (2 in 2 texts)\n"
