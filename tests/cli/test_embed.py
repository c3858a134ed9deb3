"""harken embed and harken search: vectors as lines, as JSON and as a file; the nearest lines of a file."""

import json
from pathlib import Path

import numpy as np
import pytest

import harken as package


@pytest.fixture
def model(run):
    return package.load(run)


def test_each_text_gets_a_line_of_numbers(harken, run, model):
    output = harken("embed", run, "Tom", "a hat")
    actual = [list(map(float, line.split())) for line in output.out.splitlines()]
    assert np.array(actual) == pytest.approx(model.embed(["Tom", "a hat"]), abs=1e-5)


def test_json_of_embed_has_all_vectors(harken, run, model):
    output = harken("embed", run, "Tom", "a hat", "--pool", "last", "--raw", "--json")
    expected = model.embed(["Tom", "a hat"], pool="last", normalize=False)
    assert np.array(json.loads(output.out)["vectors"]) == pytest.approx(expected, abs=1e-6)


def test_each_line_of_stdin_is_a_text_including_empty_lines(harken, run, model):
    output = harken("embed", run, "--json", stdin=b"Tom\n\na hat\n")
    first, empty, last = (answers := json.loads(output.out))["vectors"]
    assert np.array([first, last]) == pytest.approx(model.embed(["Tom", "a hat"]), abs=1e-6)
    assert (empty, answers["reasons"]) == (None, [None, "the text is empty", None])
    assert harken("embed", run, stdin=b"Tom\n\n").out.splitlines()[1] == "null  (the text is empty)"


def test_a_file_of_vectors_is_read_without_pickle(harken, run, model):
    output = harken("embed", run, "Tom", "a", "--out", "v.npy")
    assert output.out == "2 vectors in v.npy\n"
    assert np.load("v.npy", allow_pickle=False) == pytest.approx(model.embed(["Tom", "a"]), abs=1e-6)
    assert harken("embed", run, "Tom", "--out", "v.npy").err.startswith(
        "harken: --out v.npy: the file exists; overwrite it with --force, or choose another name"
    )
    assert harken("embed", run, "--out", "v.npy", "--force", stdin=b"Tom\n\n").code == 0
    vectors = np.load("v.npy", allow_pickle=False)
    assert vectors[0] == pytest.approx(model.embed("Tom"), abs=1e-6)
    assert np.isnan(vectors[1]).all()


def test_the_nearest_words_are_printed_with_their_cosines(harken, run, model):
    actual = json.loads(harken("embed", run, "--nearest", "T", "-k", 3, "--json").out)["nearest"]
    assert actual == model.nearest("T", 3)
    assert len(harken("embed", run, "--nearest", "T", "-k", 3).out.splitlines()) == 3


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "give a text"),
        (["a", "--nearest", "T"], "[TEXT...] has no effect with --nearest"),
        (["a", "-k", "3"], "-k has no effect without --nearest"),
        (["a", "--out", "v.txt"], "the ending '.txt'; accepted: .npy"),
        (["--nearest", "Tom"], "'Tom': not a word of this run's vocabulary"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(harken, run, args, message):
    output = harken("embed", run, *args)
    assert output.code == 2
    assert message in output.err
    assert output.err.count("\n") == 1


# --- search -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes.txt").write_text("Tom had a hat.\n\nThe cat ran.\nA dog\n")
    return "notes.txt"


def test_a_line_is_nearest_to_itself(harken, run, notes):
    output = harken("search", run, notes, "The cat ran.", "-k", 2)
    query, best, *others = output.out.splitlines()
    assert (query, best.split(maxsplit=2)) == ("query: The cat ran.", ["1.0000", "3", "The cat ran."])
    assert len(others) == 1


def test_json_of_search_has_the_hits_of_each_query(harken, run, notes, model):
    single = json.loads(harken("search", run, notes, "cat", "--json").out)["hits"]
    assert single == model.corpus(notes).search("cat")
    pair = json.loads(harken("search", run, notes, "cat", "dog", "--json").out)["hits"]
    assert pair == [model.corpus(notes).search(query) for query in ("cat", "dog")]
    assert json.loads(harken("search", run, notes, "--json", stdin=b"cat\n").out)["hits"] == [single]


def test_the_second_search_of_a_file_uses_the_cached_vectors(harken, run, notes, monkeypatch):
    harken("search", run, notes, "cat")
    built, old = [], package.Run.embed
    monkeypatch.setattr(package.Run, "embed", lambda *a, **k: built.append(a[1]) or old(*a, **k))
    harken("search", run, notes, "dog")
    assert built == [["dog"]]


def test_a_search_without_a_query_or_a_file_is_refused(harken, run, notes):
    assert "give a query" in harken("search", run, notes).err
    assert harken("search", run, "note.txt", "a").err == (
        "harken: note.txt: cannot be read (No such file or directory); name a text file. Did you mean notes.txt?\n"
    )
    assert harken("search", run, "the cat ran").err.endswith(
        "the cat ran: no such file; the corpus is a file: one text per line, or a table with a column of texts; "
        f"give it before the query: harken search {run} FILE 'the cat ran'\n"
    )


# --- words in their context, and inputs that are not texts ------------------------------------------------------------


def test_the_vector_of_a_word_is_printed_for_each_text(harken, run, model):
    output = harken("embed", run, "Tom had a hat.", "a hat", "--word", "hat", "--layer", 1)
    actual = [list(map(float, line.split())) for line in output.out.splitlines()]
    assert np.array(actual) == pytest.approx(model.embed(["Tom had a hat.", "a hat"], word="hat", layer=1), abs=1e-5)
    second = harken("embed", run, "a hat, a hat", "--word", "hat", "--occurrence", 2, "--json").out
    assert json.loads(second)["vectors"][0] == pytest.approx(
        model.embed("a hat, a hat", word="hat", occurrence=2), abs=1e-6
    )
    missing = harken("embed", run, "Tom ran", "--word", "hat")
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "word='hat': does not occur in 'Tom ran'; give a word of the text" in missing.err
    assert "--word has no effect with --nearest" in harken("embed", run, "--nearest", "T", "--word", "a").err


def test_a_row_without_the_word_has_a_reason_instead_of_a_vector(harken, run, model, tmp_path):
    (tmp_path / "t.csv").write_text("id,text\n1,a hat\n2,Tom ran\n3,the hat\n")
    output = harken("embed", run, "--in", "t.csv", "--out", "o.jsonl", "--word", "hat")
    assert "2 answers and 1 row without one in o.jsonl" in output.out
    rows = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert rows[0]["vector"] == pytest.approx(model.embed("a hat", word="hat"), abs=1e-6)
    assert rows[1]["vector"] is None
    assert "does not occur in 'Tom ran'" in rows[1]["reason"]


@pytest.fixture(scope="module")
def graph_run(tmp_path_factory):
    """A run on a ring of two groups."""
    home = tmp_path_factory.mktemp("graph")
    (home / "ring").mkdir()
    angles = 2 * np.pi * np.arange(12) / 12  # features, so that the run can read other nodes
    nodes = [f"n{n},{'ab'[n // 6]},{np.cos(angle):.3f},{np.sin(angle):.3f}" for n, angle in enumerate(angles)]
    (home / "ring/nodes.csv").write_text("\n".join(["name,group,x,y", *nodes]) + "\n")
    (home / "ring/edges.csv").write_text("source,target\n" + "".join(f"n{n},n{(n + 1) % 12}\n" for n in range(12)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        package.train(str(home / "ring"), out=home / "run", settings={"train.steps": 2, "model.kind": "gcn"})
    return home / "run"


def test_nodes_are_embedded_searched_and_clustered_by_name(harken, graph_run):
    model = package.load(graph_run)
    answers = json.loads(harken("embed", graph_run, "n3", "n7", "--json").out)
    assert answers["names"] == ["n3", "n7"]
    assert np.array(answers["vectors"]) == pytest.approx(model.embed(["n3", "n7"]), abs=1e-6)
    assert harken("embed", graph_run, "n3", "--out", "v.npy").out == "1 vectors in v.npy\n"
    hits = json.loads(harken("search", graph_run, "n3", "-k", 2, "--json").out)["hits"]
    assert (hits[0]["name"], hits[0]["label"]) == ("n3", "a")
    ring = graph_run.parent / "ring"
    assert json.loads(harken("search", graph_run, ring, "n3", "-k", 2, "--json").out)["hits"] == hits
    assert harken("search", graph_run, ring, "n3").out.splitlines()[1].split() == ["1.0000", "n3", "a"]
    other = Path("other")
    other.mkdir()
    for name in ("nodes.csv", "edges.csv"):
        (other / name).write_text((ring / name).read_text().replace("n", "m").replace("mame", "name"))
    (best,) = json.loads(harken("search", graph_run, other, "m3", "-k", 1, "--json").out)["hits"]
    assert best["name"] == "m3"
    assert np.array(json.loads(harken("embed", graph_run, other, "m3", "--json").out)["vectors"]).shape == (1, 16)
    assert json.loads(harken("cluster", graph_run, other, "--k", 2, "--json").out)["points"] == 12
    facts = json.loads(harken("cluster", graph_run, "--k", 2, "--json").out)
    assert (facts["points"], facts["true_labels"], len(facts["labels"])) == (12, 2, 12)
    assert 0.5 <= facts["purity"] <= 1
    train = json.loads(harken("cluster", graph_run, "--k", 2, "--split", "train", "--json").out)
    assert train["points"] == len(model.recipe.load_data(model.tokenizer).train) < 12


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["embed", "n33"], "'n33': not a node of"),
        (["embed", "n3", "--word", "n"], "word='n': has no effect on vectors of nodes and graphs"),
        (["search", "n33"], "'n33': not a node of"),
        (["cluster", "--split", "tran"], "split tran: not a split of nodes of this run"),
        (["cluster", "--column", "x"], "column=x: is for a table of texts"),
        (["embed", "--nearest", "n3"], "it has no table of the words of one text"),
    ],
)
def test_inputs_that_a_run_does_not_have_are_refused_in_one_line(harken, graph_run, args, message):
    output = harken(args[0], graph_run, *args[1:])
    assert (output.code, output.err.count("\n")) == (2, 1)
    assert message in output.err
