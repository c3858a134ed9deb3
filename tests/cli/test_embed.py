"""harken embed and harken search: vectors as lines, as JSON and as a file; the nearest lines of a file."""

import json

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
