"""A table of users, products and texts as one input: what neither the text nor a bag of words predicts is learned."""

import csv
import itertools
import json
import random
import shutil

import numpy as np
import pandas
import pytest
import torch

import harken as library
from harken.errors import BadInput
from harken.events import silent
from harken.inference.answers.embed import ExampleRequest
from harken.inference.answers.text_vectors import encode_words, labelled_reader

WORDS, PRODUCTS = {"bright": 1, "soft": 1, "loud": 0, "heavy": 0}, ["lamp", "chair", "radio", "table", "phone"]
STARTS = ["it is", "very", "quite", "so", "rather", "really"]
COLUMNS = ["user", "product", "text"]
SIZE = {"model.d": 32, "model.heads": 2, "model.layers": 2, "model.dropout": 0.0, "model.head_dropout": 0.0}
TRAINING = {"train.steps": 220, "train.batch": 64, "train.lr": 5e-3, "train.threads": 1, "train.eval_every": 110}


def opinions():
    """Half of the users like what the others dislike, so each text has both labels equally often."""
    rows = [
        (f"u{user}", product, f"{start} {word}", "yes" if (WORDS[word] + user) % 2 else "no")
        for user, product, word, start in itertools.product(range(6), PRODUCTS, WORDS, STARTS)
    ]
    random.Random(0).shuffle(rows)
    return rows


def write(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("opinions")
    table = write(folder / "opinions.csv", [*COLUMNS, "likes"], opinions())
    settings = {"data.text": COLUMNS, "data.label": "likes", "data.tokenizer": "word", "data.test": 0.2}
    return library.train(str(table), out=folder / "run", settings=settings | SIZE | TRAINING, quiet=True)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained.path, tmp_path / "run")


def test_a_label_that_depends_on_user_and_text_is_learned_and_the_report_names_the_segments(trained):
    assert trained.metrics["test"]["accuracy"] > 0.95
    assert trained.facts["baseline"]["test"]["bag of words"]["accuracy"] < 0.6
    assert trained.recipe.model.segments == 3
    page = (trained.path / "report.html").read_text()
    assert any(f"user: {user} | product: {product} | text: {text}" in page for user, product, text, _ in opinions())


def test_one_text_alone_has_both_labels_equally_often():
    labels = {text: [] for _, _, text, _ in opinions()}
    for _, _, text, label in opinions():
        labels[text].append(label)
    assert all(each.count("yes") == each.count("no") for each in labels.values())


def test_texts_with_tabs_tuples_columns_of_a_file_and_of_a_frame_have_the_same_answer(harken, run, trained, tmp_path):
    rows = opinions()[:12]
    expected = [trained.classify(row[:3])[0]["label"] for row in rows]  # one tuple is one input
    assert expected == [row[3] for row in rows]
    assert [labels[0]["label"] for labels in trained.classify([row[:3] for row in rows])] == expected
    answers = json.loads(harken("classify", run, *("\t".join(row[:3]) for row in rows), "--json").out)
    assert [labels[0]["label"] for labels in answers["labels"]] == expected
    shuffled = [(row[2], "x", row[0], row[1]) for row in rows]  # another order, and a column more
    source = write(tmp_path / "in.csv", ["text", "price", "user", "product"], shuffled)
    done = harken("classify", run, "--in", source, "--out", "out.csv")
    assert "price" in done.err
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["label"] for row in csv.DictReader(file)] == expected
    frame = pandas.DataFrame(shuffled, columns=["text", "price", "user", "product"])
    with pytest.warns(UserWarning, match="price"):
        assert trained.predict(frame) == expected


def test_an_input_with_other_columns_is_refused_by_name(harken, run, trained, tmp_path):
    source = write(tmp_path / "in.csv", ["text", "user"], [("very loud", "u1")])
    done = harken("classify", run, "--in", source, "--out", "out.csv")
    assert (done.code, "no column 'product'" in done.err, len(done.err.splitlines())) == (2, True, 1)
    done = harken("classify", run, "--pair", "u1", "very loud")
    assert (done.code, "reads 3 texts (user, product, text)" in done.err) == (2, True)
    done = harken("classify", run, "u1\tvery loud")
    assert (done.code, "3 texts with tabs between them, in this order: user, product, text" in done.err) == (2, True)
    with pytest.raises(BadInput, match="no column 'product'"):
        trained.predict(pandas.DataFrame({"user": ["u1"], "text": ["very loud"]}))


def test_an_empty_column_has_an_answer_and_an_empty_row_has_none(harken, run, tmp_path):
    source = write(tmp_path / "in.csv", COLUMNS, [("u1", "", "very loud"), ("", "", "")])
    assert harken("classify", run, "--in", source, "--out", "out.jsonl").code == 0
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first["label"] in ("yes", "no")
    assert (second["label"], second["reason"]) == (None, "the text is empty")


def test_check_names_the_columns_that_are_left_out_and_the_setting_that_reads_them(harken, tmp_path):
    table = write(tmp_path / "my.csv", [*COLUMNS, "likes", "id"], [(*row, n) for n, row in enumerate(opinions()[:90])])
    advice = """left out: column 'user', column 'product'; to read them too, each as a segment of the input: """
    setting = """data.text='["user", "product", "text"]'"""
    size = [f"{path}={value}" for path, value in SIZE.items()]
    assert advice + setting in harken("check", table, *size).out
    assert "left out" not in harken("check", table, *size, 'data.text=["user", "product", "text"]').out


def test_columns_are_embedded_and_searched_as_training_reads_them(harken, run, trained, tmp_path):
    """The vector is that of the head's input: W_y h + b gives the probabilities."""
    rows = ["\t".join(row[:3]) for row in opinions()[:4]]
    vectors = trained.embed(rows, normalize=False)
    outputs = trained.model.predict(torch.from_numpy(vectors)).softmax(-1)
    answers = [{label["label"]: label["probability"] for label in labels} for labels in trained.classify(rows)]
    assert outputs.tolist() == [pytest.approx([row[label] for label in trained.labels], abs=1e-5) for row in answers]
    encoded, product = trained.tokenizer.encode_texts([opinions()[0][:3]], 64), opinions()[0][1]
    ids = torch.tensor([[*encoded.tokens[0].tolist(), trained.tokenizer.end_id]])
    segments = torch.from_numpy((np.arange(ids.shape[1]) >= encoded.segment_starts[0][:, None]).sum(0))[None]
    states = trained.model(ids, segments=segments)[0].detach()
    assert trained.embed(rows[0], word=product, normalize=False) == pytest.approx(states[3].numpy(), abs=1e-5)
    with pytest.raises(BadInput, match="give 3 texts with tabs between them, in this order: user, product, text"):
        trained.embed("u1\tvery loud")
    table = write(tmp_path / "in.csv", ["text", "user", "product"], [(r[2], *r[:2]) for r in opinions()[:4]])
    assert harken("embed", run, "--in", table, "--out", "v.npy", "--raw").code == 0
    assert np.load(tmp_path / "v.npy") == pytest.approx(vectors, abs=1e-5)
    hit, *_ = json.loads(harken("search", run, table, rows[2], "--json").out)["hits"]
    assert (hit["text"], hit["line"]) == (rows[2], 4)
    assert hit["score"] == pytest.approx(1, abs=1e-5)
    examples = trained.embedder.examples(trained, ExampleRequest(str(table)), silent)  # as cluster reads them
    assert (examples.inputs, examples.labels) == (rows, ())
    own = trained.embedder.examples(trained, ExampleRequest(split="test"), silent)
    assert {*own.inputs} <= {"\t".join(row[:3]) for row in opinions()}


def test_a_number_and_a_missing_cell_in_a_tuple_are_read_as_in_a_frame(trained):
    assert trained.classify(("u1", 3, "very bright")) == trained.classify(("u1", "3", "very bright"))
    assert trained.classify(("u1", None, "very bright")) == trained.classify(("u1", "", "very bright"))
    with pytest.raises(BadInput, match="the text is empty"):
        trained.classify((None, float("nan"), ""))


def test_an_empty_column_moves_no_word(trained):
    reader, end = labelled_reader(trained), trained.tokenizer.end_id
    for text, n_before in (("\t\tit is quite loud", 2), ("\tlamp\tit is quite loud", 3), ("u1\t\tit is quite loud", 3)):
        (ids,), ((first, stop),), _ = encode_words(reader, [text], "loud", None)
        assert ids[first:stop] == reader.encode("loud")[0].tolist()
        assert ids[1 : 1 + n_before].count(end) == 2
