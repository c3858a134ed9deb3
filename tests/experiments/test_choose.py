"""From what the user names to a recipe: what was found, what was chosen for it, and whose word counts."""

import io
import json
import sys
from pathlib import Path

import pytest

from harken import recipe, registry
from harken.data import catalogue
from harken.data.synthetic import recall
from harken.data.synthetic.tales import tales
from harken.errors import BadInput
from harken.experiments import choose as room
from harken.experiments.choose import choose, located, run_name


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recall, "MANY", {"train": 300, "valid": 100, "test": 100})


@pytest.fixture
def text(tmp_path):
    (tmp_path / "my.txt").write_text("\n\n".join(tales(3)))
    return "my.txt"


def notices(what, settings=None):
    heard = []
    choose(what, settings, listen=lambda event, **facts: heard.append((event, facts.get("text"))))
    return [said for event, said in heard if event == "notice"]


# --- whose word counts ------------------------------------------------------------------------------------------------


def test_a_text_gets_harkens_choice_for_texts(text, tmp_path):
    chosen = choose(text)
    assert (chosen.recipe.data.kind, chosen.recipe.data.tokens, chosen.recipe.model.kind) == ("text", "char", "gpt")
    assert chosen.recipe.data.path == "my.txt"
    assert chosen.recipe.origins["model.kind"] == "harken's choice for such data"


def test_what_is_given_beats_harkens_choice(text):
    chosen = choose(text, {"model.layers": 3, "data.tokenizer": "byte"})
    assert (chosen.recipe.model.layers, chosen.recipe.data.tokens) == (3, "byte")
    assert chosen.recipe.origins["model.layers"] == "given"


def test_what_is_given_beats_the_recipe_file(text):
    with open("lm.toml", "w") as file:
        file.write('[data]\npath = "my.txt"\n[model]\nlayers = 2\nd = 32\n')
    chosen = choose("lm.toml", {"model.layers": 3})
    assert (chosen.recipe.model.layers, chosen.recipe.model.d) == (3, 32)
    assert (chosen.recipe.origins["model.d"], chosen.guess) == ("lm.toml", None)


def test_relative_paths_of_a_recipe_are_seen_from_its_folder_and_given_ones_from_here(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "lm.toml").write_text(
        '[data]\nmix = {a.txt = 1, "/b.txt" = 2}\nvalid = "c/v.txt"\ntest = 0.1\n'
    )
    data = choose("sub/lm.toml").recipe.data
    assert (data.mix, data.valid, data.test) == ({"sub/a.txt": 1, "/b.txt": 2}, "sub/c/v.txt", 0.1)
    assert choose("sub/lm.toml", {"data.valid": "v.txt"}).recipe.data.valid == "v.txt"


def test_sides_of_a_recipe_are_files_beside_it_unless_it_names_what_is_read(tmp_path):
    (tmp_path / "sub").mkdir()
    sides = '[data]\nkind = "pairs"\nsource = "a.en"\ntarget = "a.de"\nsha256 = "abc"\n'
    (tmp_path / "sub" / "two.toml").write_text(sides)
    (tmp_path / "sub" / "one.toml").write_text(sides + 'path = "a.tsv"\n')
    for name, found in (("two", ("sub/a.en", "sub/a.de", "abc")), ("one", ("a.en", "a.de", "abc"))):
        data = choose(f"sub/{name}.toml").recipe.data
        assert (data.source, data.target, data.sha256) == found
    data = choose("sub/two.toml", {"data.source": "b.en"}).recipe.data
    assert (data.source, data.target, data.sha256) == ("b.en", "sub/a.de", None)
    assert choose("sub/one.toml", {"data.source": "fr"}).recipe.data.sha256 == "abc"  # another column of the same file
    assert choose("sub/two.toml", {"data.path": "b.tsv"}).recipe.data.source == "a.en"


def test_a_recipe_for_other_data_loses_the_fingerprint_of_its_own(text):
    with open("lm.toml", "w") as file:
        file.write('[data]\npath = "old.txt"\nsha256 = "abc"\n')
    assert choose("lm.toml").recipe.data.sha256 == "abc"
    assert choose("lm.toml", {"data.path": "my.txt"}).recipe.data.sha256 is None


def test_a_recipe_that_comes_with_harken_is_taken_by_its_name(text):
    chosen = choose("word", {"data.path": "my.txt"})
    assert chosen.recipe.data.tokens == "word"
    assert chosen.recipe.origins["data.tokenizer"] == "recipe word"


def test_a_name_of_a_recipe_and_of_the_catalogue_is_the_recipe_if_data_is_named_else_the_set(tmp_path):
    assert choose("stories", {"data.path": "my.txt"}).recipe.data.path == "my.txt"
    for given in ({}, {"data.test": 0.2}):
        assert choose("stories", given).recipe.data.path == str(catalogue.fetch("stories").path)


def test_a_file_of_the_same_name_beats_a_recipe_that_comes_with_harken(text, tmp_path):
    (tmp_path / "word").write_text("A plain text. " * 40)
    assert choose("word").recipe.data.path == "word"


def test_a_recurrent_model_gets_the_recipe_of_its_kind_with_the_tokens_of_the_text(text):
    chosen = choose(text, {"model.kind": "lstm"})
    assert (chosen.recipe.model.kind, chosen.recipe.data.tokens) == ("lstm", "char")
    assert chosen.recipe.origins["train.lr"] == "harken's choice for such data"


@pytest.mark.parametrize("name", ["data.path", "data.train", "data.mix"])
def test_a_text_and_a_setting_that_names_another_are_refused_together(text, name):
    with pytest.raises(BadInput, match=rf"^my.txt: {name} says too what is read; leave one of them out; "):
        choose(text, {name: {"my.txt": 1} if name == "data.mix" else "my.txt"})
    assert choose("char", {name: {"my.txt": 1} if name == "data.mix" else "my.txt"}).recipe.model.kind == "gpt"


def test_a_recipe_that_is_not_there_is_named_as_a_recipe(tmp_path):
    (tmp_path / "runs" / "my").mkdir(parents=True)
    (tmp_path / "runs" / "my" / "recipe.toml").write_text("")
    for given in ("runs/mi/recipe.toml", "runs/my/recip.toml"):
        with pytest.raises(
            BadInput, match=rf"^{given}: there is no such recipe; .* Did you mean runs/my/recipe.toml\?$"
        ):
            choose(given)


# --- what was found ---------------------------------------------------------------------------------------------------


def test_a_text_with_marked_unknown_words_is_learned_in_words(tmp_path):
    (tmp_path / "ptb.txt").write_text("the <unk> of the year was <unk> again\n" * 50)
    assert choose("ptb.txt").recipe.data.tokens == "word"


def test_a_long_text_is_learned_in_byte_pairs(text, monkeypatch):
    monkeypatch.setattr(room, "LARGE", 100)
    assert choose(text).recipe.data.tokens == "bpe"


def test_each_kind_of_model_of_pairs_brings_its_own_recipe():
    names = {"transformer": "translate", "gru": "pairs-rnn", "lstm": "pairs-rnn"}
    for kind in registry.BUILT_IN["model of pairs"]:
        own = recipe.shipped(names.get(kind, f"pairs-{kind}"))
        settings = choose("copy", {"model.kind": kind}).recipe.settings()
        assert settings["train.lr"] == own["train.lr"]
        assert settings["model.d"] == own["model.d"]


def test_recall_is_judged_exactly_and_by_distance_unless_other_settings_are_given():
    found = choose("recall").recipe
    assert (found.data.group, found.data.tokens, found.task.measure) == ("distance", "word", "exact_match")
    assert found.data.longest >= max(len(source.split()) for source, *_ in recall.recall("test", 500))
    assert {choose("recall", {"model.kind": kind}).recipe.train.lr for kind in ("transformer", "lstm")} == {3e-3}
    assert choose("recall", {"train.lr": 1.0}).recipe.train.lr == 1
    assert choose("recall", {"task.metric": "bleu"}).recipe.task.measure == "bleu"
    assert choose("recall", {"data.kind": "text"}).recipe.data.kind == "text"


def test_a_comparison_that_was_written_under_its_name_does_not_hide_a_set_of_the_catalogue(tmp_path):
    (tmp_path / "recall").mkdir()
    (tmp_path / "recall" / "compare.json").write_text("{}")
    assert choose("recall").recipe.data.kind == "pairs"
    assert located("recall").name == "recall"


@pytest.mark.parametrize("kind", ["transformer", "conv"])
def test_a_model_of_pairs_has_room_for_the_longest_sentence_of_the_catalogue(kind, tmp_path):
    context = lambda **said: choose("recall", {"model.kind": kind, **said}).recipe.model.context  # noqa: E731
    assert context() == 1025
    assert context(**{"data.max_length": 20}) == 512
    assert context(**{"model.context": 700}) == 700
    assert choose("recall", {"model.kind": "rnn"}).recipe.model.context == "each"


def test_trees_are_judged_by_their_brackets_unless_other_settings_are_given(tmp_path):
    (tmp_path / "a.mrg").write_text("( (S (NP-SBJ (NN dog)) (VP (VBD ran))) )\n" * 30)
    found = choose("a.mrg").recipe
    assert (found.data.kind, found.task.measure) == ("pairs", "bracket_f1")
    assert (found.data.longest, found.task.longest) == (300, 301)
    assert found.origins["task.metric"] == "a.mrg"
    assert choose("a.mrg", {"task.metric": "bleu"}).recipe.task.measure == "bleu"
    assert choose("a.mrg", {"data.kind": "text"}).recipe.data.kind == "text"


def test_splits_that_are_named_in_a_folder_are_found(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "corpus" / f"{name}.txt").write_text("A plain line of text.\n" * 30)
    data = choose("corpus").recipe.data
    assert (data.train, data.valid, data.test) == tuple(f"corpus/{name}.txt" for name in ("train", "valid", "test"))


def test_a_guess_comes_with_its_reason(text):
    assert choose(text).guess.reason.startswith("plain UTF-8 text")


def test_a_kind_that_was_named_is_told_beside_what_the_data_looks_like(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    chosen = choose("p.tsv", {"data.kind": "text"})
    assert (chosen.recipe.data.kind, chosen.guess.kind, chosen.guess.named) == ("text", "text", True)
    assert chosen.guess.reason.startswith("as data.kind says; it looks like pairs: 2 columns split at tabs, ")


def test_a_column_that_only_one_kind_has_decides_for_it(tmp_path):
    rows = "".join(f"{n},ein Hund {n},a dog {n},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "named.csv").write_text("id,Deutsch,English,note\n" + rows)
    assert choose("named.csv").recipe.data.kind == "table"
    chosen = choose("named.csv", {"data.source": "English", "data.target": "Deutsch"})
    assert (chosen.recipe.data.kind, chosen.recipe.task.kind) == ("pairs", "translate")
    assert chosen.guess.reason.startswith("as data.source says; it looks like table: ")
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    assert choose("p.tsv").recipe.data.kind == "pairs"
    assert choose("p.tsv", {"data.label": 2}).recipe.data.kind == "table"


def test_a_kind_that_was_named_is_not_refused_for_what_it_looks_like(tmp_path):
    (tmp_path / "blob").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(BadInput, match="binary"):
        choose("blob")
    assert choose("blob", {"data.kind": "text"}).recipe.data.path == "blob"


def test_a_setting_the_reader_does_not_have_is_left_aside_and_said(tmp_path):
    rows = (json.dumps({"id": n, "body": f"line {n} of a long and winding text"}) for n in range(30))
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    assert notices("t.jsonl", {"data.kind": "text"}) == [
        't.jsonl: data.text="body" would fit, but the reader of text has no such setting; the data is read as it is'
    ]


def test_a_text_that_needs_no_setting_is_taken_without_a_word(text):
    assert notices(text) == []


# --- where it lies ----------------------------------------------------------------------------------------------------


def test_a_name_of_the_catalogue_is_fetched(monkeypatch):
    monkeypatch.setattr(catalogue, "TALES", 3)
    assert choose("tales").recipe.data.path == str(catalogue.fetch("tales").path)


def test_a_file_beats_a_name_of_the_catalogue(tmp_path):
    (tmp_path / "tales").write_text("A plain text. " * 40)
    assert located("tales") == Path("tales")


def test_standard_input_is_kept_so_that_the_run_can_be_repeated(monkeypatch):
    places = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Tom had a hat. " * 9)))
        places.append(located("-"))
    assert places[0] == places[1]
    assert places[0].read_bytes() == b"Tom had a hat. " * 9


@pytest.mark.parametrize(
    ("what", "given", "name"),
    [
        ("my.txt", {}, "my"),
        ("some/where/war.and.peace.txt", {}, "war.and.peace"),
        ("folder/", {}, "folder"),
        ("-", {}, "stdin"),
        ("shakespeare", {}, "shakespeare"),
        ("word", {}, "word"),
        ("word", {"data.path": "x/novel.txt"}, "novel"),
        (None, {"data.train": "a.txt"}, "a"),
        (None, {}, "run"),
    ],
)
def test_a_run_is_named_after_its_data(what, given, name):
    assert run_name(what, given) == name


def test_a_run_by_a_recipe_that_mixes_texts_has_the_recipes_name(tmp_path):
    (tmp_path / "mix.toml").write_text('[data]\nmix = {"a.txt" = 0.5, "b.txt" = 0.5}\n')
    assert run_name("mix.toml", {}) == "mix"


def test_a_run_on_the_folder_one_stands_in_or_above_has_that_folders_name(tmp_path):
    assert run_name(".", {}) == tmp_path.stem
    assert run_name("..", {}) == tmp_path.parent.stem


def test_a_gru_and_an_lstm_of_pairs_are_the_recurrent_recipe_with_that_cell(pair_file):
    shapes = {kind: choose(str(pair_file), {"model.kind": kind}).recipe.model for kind in ("rnn", "gru", "lstm")}
    assert {kind: (shape.kind, shape.cell, shape.d) for kind, shape in shapes.items()} == {
        "rnn": ("rnn", "gru", 192),
        "gru": ("gru", "gru", 192),
        "lstm": ("lstm", "lstm", 192),
    }
