"""choose: the recipe for data, a catalogue name or a recipe file, and the precedence of settings."""

import io
import json
import sys
from pathlib import Path

import pytest

from harken import recipe, registry
from harken.data import catalogue
from harken.data.synthetic import recall
from harken.data.synthetic.tales import tales
from harken.errors import BadInput, BadSetting
from harken.experiments import choose as choose_module
from harken.experiments.choose import choose, find_data, run_name


@pytest.fixture(autouse=True)
def an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(recall, "SPLIT_SIZES", {"train": 300, "valid": 100, "test": 100})


@pytest.fixture
def text(tmp_path):
    (tmp_path / "my.txt").write_text("\n\n".join(tales(3)))
    return "my.txt"


def notices(what, settings=None):
    events = []
    choose(what, settings, listen=lambda event, **facts: events.append((event, facts.get("text"))))
    return [message for event, message in events if event == "notice"]


# --- precedence -------------------------------------------------------------------------------------------------------


def test_a_text_gets_the_default_recipe_for_text(text, tmp_path):
    choice = choose(text)
    assert (choice.recipe.data.kind, choice.recipe.data.tokenizer, choice.recipe.model.kind) == ("text", "char", "gpt")
    assert choice.recipe.data.path == "my.txt"
    assert choice.recipe.origins["model.kind"] == "default for this data"


def test_settings_override_the_defaults(text):
    choice = choose(text, {"model.layers": 3, "data.tokenizer": "byte"})
    assert (choice.recipe.model.layers, choice.recipe.data.tokenizer) == (3, "byte")
    assert choice.recipe.origins["model.layers"] == "override"


def test_a_recipe_without_a_kind_does_not_read_a_table_as_text(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"the cat {n} sleeps\tle chat {n} dort\n" for n in range(30)))
    (tmp_path / "my.toml").write_text("[data]\npath = 'p.tsv'\n")
    with pytest.raises(BadSetting, match=r"my.toml: data.kind is not set, and data.path=p.tsv .* data.kind=pairs,"):
        choose(str(tmp_path / "my.toml"))
    assert choose(str(tmp_path / "my.toml"), {"data.kind": "text"}).recipe.data.kind == "text"
    assert choose(str(tmp_path / "my.toml"), {"data.kind": "pairs"}).recipe.data.kind == "pairs"


def test_settings_override_the_recipe_file(text):
    with open("lm.toml", "w") as file:
        file.write('[data]\npath = "my.txt"\n[model]\nlayers = 2\nd = 32\n')
    choice = choose("lm.toml", {"model.layers": 3})
    assert (choice.recipe.model.layers, choice.recipe.model.d) == (3, 32)
    assert (choice.recipe.origins["model.d"], choice.detection) == ("lm.toml", None)


def test_paths_in_a_recipe_are_relative_to_its_folder_and_paths_in_settings_to_the_working_directory(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "lm.toml").write_text(
        '[data]\nmix = {a.txt = 1, "/b.txt" = 2}\nvalid = "c/v.txt"\ntest = 0.1\n'
    )
    data = choose("sub/lm.toml").recipe.data
    assert (data.mix, data.valid, data.test) == ({"sub/a.txt": 1, "/b.txt": 2}, "sub/c/v.txt", 0.1)
    assert choose("sub/lm.toml", {"data.valid": "v.txt"}).recipe.data.valid == "v.txt"


def test_source_and_target_of_a_recipe_are_files_unless_it_names_the_data(tmp_path):
    (tmp_path / "sub").mkdir()
    sides = '[data]\nkind = "pairs"\nsource = "a.en"\ntarget = "a.de"\nsha256 = "abc"\n'
    (tmp_path / "sub" / "two.toml").write_text(sides)
    (tmp_path / "sub" / "one.toml").write_text(sides + 'path = "a.tsv"\n')
    for name, expected in (("two", ("sub/a.en", "sub/a.de", "abc")), ("one", ("a.en", "a.de", "abc"))):
        data = choose(f"sub/{name}.toml").recipe.data
        assert (data.source, data.target, data.sha256) == expected
    data = choose("sub/two.toml", {"data.source": "b.en"}).recipe.data
    assert (data.source, data.target, data.sha256) == ("b.en", "sub/a.de", None)
    assert choose("sub/one.toml", {"data.source": "fr"}).recipe.data.sha256 == "abc"  # another column of the same file
    assert choose("sub/two.toml", {"data.path": "b.tsv"}).recipe.data.source == "a.en"


def test_a_recipe_for_other_data_drops_the_checksum(text):
    with open("lm.toml", "w") as file:
        file.write('[data]\npath = "old.txt"\nsha256 = "abc"\n')
    assert choose("lm.toml").recipe.data.sha256 == "abc"
    assert choose("lm.toml", {"data.path": "my.txt"}).recipe.data.sha256 is None


def test_a_shipped_recipe_is_used_by_its_name(text):
    choice = choose("word", {"data.path": "my.txt"})
    assert choice.recipe.data.tokenizer == "word"
    assert choice.recipe.origins["data.tokenizer"] == "recipe word"


def test_a_name_shared_with_the_catalogue_is_the_recipe_if_the_settings_name_the_data(tmp_path):
    assert choose("stories", {"data.path": "my.txt"}).recipe.data.path == "my.txt"
    for settings in ({}, {"data.test": 0.2}):
        assert choose("stories", settings).recipe.data.path == str(catalogue.fetch("stories").path)


def test_a_file_takes_precedence_over_a_shipped_recipe(text, tmp_path):
    (tmp_path / "word").write_text("A plain text. " * 40)
    assert choose("word").recipe.data.path == "word"


def test_a_recurrent_model_gets_its_recipe_with_the_tokenizer_of_the_text(text):
    choice = choose(text, {"model.kind": "lstm"})
    assert (choice.recipe.model.kind, choice.recipe.data.tokenizer) == ("lstm", "char")
    assert choice.recipe.origins["train.lr"] == "default for this data"


@pytest.mark.parametrize("name", ["data.path", "data.train", "data.mix"])
def test_data_given_twice_is_refused(text, name):
    with pytest.raises(BadInput, match=rf"^my.txt: {name} also names the data; remove one of them, "):
        choose(text, {name: {"my.txt": 1} if name == "data.mix" else "my.txt"})
    assert choose("char", {name: {"my.txt": 1} if name == "data.mix" else "my.txt"}).recipe.model.kind == "gpt"


def test_a_missing_recipe_is_reported_as_a_recipe(tmp_path):
    (tmp_path / "runs" / "my").mkdir(parents=True)
    (tmp_path / "runs" / "my" / "recipe.toml").write_text("")
    for path in ("runs/mi/recipe.toml", "runs/my/recip.toml"):
        with pytest.raises(BadInput, match=rf"^{path}: no such recipe; .* Did you mean runs/my/recipe.toml\?$"):
            choose(path)


# --- detection --------------------------------------------------------------------------------------------------------


def test_a_text_with_unk_marks_is_tokenized_into_words(tmp_path):
    (tmp_path / "ptb.txt").write_text("the <unk> of the year was <unk> again\n" * 50)
    assert choose("ptb.txt").recipe.data.tokenizer == "word"


def test_a_long_text_is_tokenized_into_byte_pairs(text, monkeypatch):
    monkeypatch.setattr(choose_module, "LARGE", 100)
    assert choose(text).recipe.data.tokenizer == "bpe"


def test_each_pair_model_has_its_recipe():
    names = {"transformer": "translate", "gru": "pairs-rnn", "lstm": "pairs-rnn"}
    for kind in registry.MODELS["pairs"]:
        shipped = recipe.shipped(names.get(kind, f"pairs-{kind}"))
        settings = choose("copy", {"model.kind": kind}).recipe.settings()
        chosen = {"train.lr"} | {name for name in shipped if name.startswith("model.")} - {"model.kind", "model.cell"}
        assert {name: settings[name] for name in chosen} == {name: shipped[name] for name in chosen}


def test_recall_is_evaluated_by_exact_match_and_distance_by_default():
    resolved = choose("recall").recipe
    assert (resolved.data.group, resolved.data.tokenizer, resolved.task.metric) == ("distance", "word", "exact_match")
    assert resolved.data.max_length >= max(len(source.split()) for source, *_ in recall.recall("test", 500))
    assert {choose("recall", {"model.kind": kind}).recipe.train.lr for kind in ("transformer", "lstm")} == {3e-3}
    assert choose("recall", {"train.lr": 1.0}).recipe.train.lr == 1
    assert choose("recall", {"task.metric": "bleu"}).recipe.task.metric == "bleu"
    assert choose("recall", {"data.kind": "text"}).recipe.data.kind == "text"


def test_a_comparison_folder_does_not_hide_a_catalogue_entry(tmp_path):
    (tmp_path / "recall").mkdir()
    (tmp_path / "recall" / "compare.json").write_text("{}")
    assert choose("recall").recipe.data.kind == "pairs"
    assert find_data("recall").name == "recall"


@pytest.mark.parametrize("kind", ["transformer", "conv"])
def test_the_context_covers_the_longest_sentence_of_the_catalogue_entry(kind, tmp_path):
    context = lambda **settings: choose("recall", {"model.kind": kind, **settings}).recipe.model.context  # noqa: E731
    assert context() == 1025
    assert context(**{"data.max_length": 20}) == 512
    assert context(**{"model.context": 700}) == 700
    assert choose("recall", {"model.kind": "rnn"}).recipe.model.context == "each"


def test_trees_are_evaluated_by_bracket_f1_by_default(tmp_path):
    (tmp_path / "a.mrg").write_text("( (S (NP-SBJ (NN dog)) (VP (VBD ran))) )\n" * 30)
    resolved = choose("a.mrg").recipe
    assert (resolved.data.kind, resolved.task.metric) == ("pairs", "bracket_f1")
    assert (resolved.data.max_length, resolved.task.max_new_tokens) == (300, 301)
    assert resolved.origins["task.metric"] == "a.mrg"
    assert choose("a.mrg", {"task.metric": "bleu"}).recipe.task.metric == "bleu"
    assert choose("a.mrg", {"data.kind": "text"}).recipe.data.kind == "text"


def test_split_files_in_a_folder_are_detected(tmp_path):
    (tmp_path / "corpus").mkdir()
    for name in ("train", "valid", "test"):
        (tmp_path / "corpus" / f"{name}.txt").write_text("A plain line of text.\n" * 30)
    data = choose("corpus").recipe.data
    assert (data.train, data.valid, data.test) == tuple(f"corpus/{name}.txt" for name in ("train", "valid", "test"))


def test_a_detection_has_a_reason(text):
    assert choose(text).detection.reason.startswith("plain UTF-8 text")


def test_a_kind_that_is_set_is_reported_with_the_detected_one(tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    choice = choose("p.tsv", {"data.kind": "text"})
    assert (choice.recipe.data.kind, choice.detection.kind, choice.detection.user_specified) == ("text", "text", True)
    assert choice.detection.reason.startswith("set by data.kind; detected as pairs: 2 columns separated by tabs, ")


def test_a_column_of_only_one_kind_determines_the_kind(tmp_path):
    rows = "".join(f"{n},ein Hund {n},a dog {n},{'ab'[n % 2]}\n" for n in range(40))
    (tmp_path / "named.csv").write_text("id,Deutsch,English,note\n" + rows)
    assert choose("named.csv").recipe.data.kind == "table"
    choice = choose("named.csv", {"data.source": "English", "data.target": "Deutsch"})
    assert (choice.recipe.data.kind, choice.recipe.task.kind) == ("pairs", "translate")
    assert choice.detection.reason.startswith("set by data.source; detected as table: ")
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    assert choose("p.tsv").recipe.data.kind == "pairs"
    assert choose("p.tsv", {"data.label": 2}).recipe.data.kind == "table"


def test_a_kind_that_is_set_is_not_refused_because_of_the_detection(tmp_path):
    (tmp_path / "blob").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(BadInput, match="binary"):
        choose("blob")
    assert choose("blob", {"data.kind": "text"}).recipe.data.path == "blob"


def test_a_setting_without_a_field_in_the_reader_is_ignored_with_a_notice(tmp_path):
    rows = (json.dumps({"id": n, "body": f"line {n} of a long and winding text"}) for n in range(30))
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    assert notices("t.jsonl", {"data.kind": "text"}) == [
        't.jsonl: ignored data.text="body": the reader of text has no such setting'
    ]


def test_a_text_without_settings_gives_no_notice(text):
    assert notices(text) == []


# --- location of the data ---------------------------------------------------------------------------------------------


def test_a_catalogue_name_is_downloaded(monkeypatch):
    monkeypatch.setitem(catalogue.ENTRIES["tales"].arguments, "count", 3)
    assert choose("tales").recipe.data.path == str(catalogue.fetch("tales").path)


def test_a_file_takes_precedence_over_a_catalogue_name(tmp_path):
    (tmp_path / "tales").write_text("A plain text. " * 40)
    assert find_data("tales") == Path("tales")


def test_standard_input_is_stored_so_the_run_can_be_repeated(monkeypatch):
    paths = []
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Tom had a hat. " * 9)))
        paths.append(find_data("-"))
    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == b"Tom had a hat. " * 9


@pytest.mark.parametrize(
    ("what", "settings", "name"),
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
def test_a_run_is_named_after_its_data(what, settings, name):
    assert run_name(what, settings) == name


def test_a_run_of_a_mixture_is_named_after_its_recipe(tmp_path):
    (tmp_path / "mix.toml").write_text('[data]\nmix = {"a.txt" = 0.5, "b.txt" = 0.5}\n')
    assert run_name("mix.toml", {}) == "mix"


def test_a_run_on_the_current_or_parent_folder_has_the_name_of_that_folder(tmp_path):
    assert run_name(".", {}) == tmp_path.stem
    assert run_name("..", {}) == tmp_path.parent.stem


def test_gru_and_lstm_for_pairs_use_the_recurrent_recipe_with_that_cell(pair_file):
    models = {kind: choose(str(pair_file), {"model.kind": kind}).recipe.model for kind in ("rnn", "gru", "lstm")}
    assert {kind: (model.kind, model.cell, model.d) for kind, model in models.items()} == {
        "rnn": ("rnn", "gru", 192),
        "gru": ("gru", "gru", 192),
        "lstm": ("lstm", "lstm", 192),
    }


# --- tables that fit no model -----------------------------------------------------------------------------------------


def write_rows(path, header, row, rows=40):
    path.write_text(
        "\n".join([header, *(row.format(n=n, word=["one", "two", "three", "four"][n % 4]) for n in range(rows))])
    )
    return str(path)


def test_a_table_of_numbers_is_refused_and_never_becomes_a_language_model(tmp_path):
    file = write_rows(tmp_path / "a.csv", "x0,x1,y", "{n}.5,1.{n},0.{n}")
    with pytest.raises(BadInput, match=r"every column holds numbers .*harken cluster .*a\.csv; .*data\.kind=sets"):
        choose(file)
    with pytest.raises(BadInput, match=r"every column holds numbers"):
        choose(file, {"data.decimal": "."})
    assert choose(file, {"data.kind": "text"}).recipe.data.kind == "text"
    assert choose(file, {"data.group": "x0", "data.label": "y"}).recipe.data.kind == "sets"


def test_a_refused_table_is_accepted_with_the_settings_that_the_message_names(tmp_path):
    label = write_rows(tmp_path / "label.csv", "text,label", "the {word} of {n} is here,good")
    assert choose(label, {"data.kind": "pairs"}).recipe.data.kind == "pairs"
    vqa = write_rows(tmp_path / "vqa.csv", "image,question,answer", "{n}.png,what is the {word}?,the number {n} there")
    with pytest.raises(BadInput, match="picture questions are not supported yet"):
        choose(vqa)
    settings = {"data.kind": "captions", "data.image": "image", "data.caption": "answer"}
    assert choose(vqa, settings).recipe.data.caption == "answer"
    settings = {"data.kind": "pairs", "data.source": "question", "data.target": "answer"}
    assert choose(vqa, settings).recipe.data.source == "question"


def test_a_regression_target_is_detected_and_another_label_overrules_it(tmp_path):
    file = write_rows(tmp_path / "b.csv", "text,price", "the {word} of {n} is here,{n}.5")
    data = choose(file).recipe.data
    assert (data.kind, data.text, data.label, data.target_type) == ("table", "text", "price", "number")
    assert choose(file, {"data.target_type": "label"}).recipe.data.target_type == "label"
    assert choose(file, {"data.label": "text"}).recipe.data.target_type == "auto"


def test_the_kind_of_a_file_in_another_encoding_is_detected(tmp_path):
    rows = "".join(f"schön {n};{'gut' if n % 2 else 'böse'}\n" for n in range(20))
    (tmp_path / "a.csv").write_bytes(f"text;label\n{rows}".encode("cp1252"))
    with pytest.raises(BadInput, match=r"data\.encoding=cp1252"):
        choose("a.csv")
    data = choose("a.csv", {"data.encoding": "cp1252"}).recipe.data
    assert (data.kind, data.label, data.encoding) == ("table", "label", "cp1252")
    with pytest.raises(BadSetting, match=r"data\.encoding: 'cp125' is no text encoding; cp1252"):
        choose("a.csv", {"data.encoding": "cp125"})


def test_the_encoding_of_matrices_is_not_that_of_a_text():
    assert choose("maths:transposition", {"data.encoding": "P10"}).recipe.data.encoding == "P10"


def test_a_group_of_a_table_with_texts_decides_the_split_and_of_another_table_the_sets(tmp_path):
    rows = [f"c{n // 4},{n * 7 % 11},{n % 7},{'near' if n // 4 % 2 else 'far'}" for n in range(200)]
    Path("sets.csv").write_text("cloud,x,y,where\n" + "\n".join(rows))
    rows = [f"c{n % 9},{n % 50},the text has number {n},{'ab'[n % 2]}" for n in range(200)]
    Path("texts.csv").write_text("customer,age,note,label\n" + "\n".join(rows))
    settings = {"data.group": "cloud", "data.label": "where"}
    assert choose("sets.csv", settings).recipe.data.kind == "sets"
    texts = choose("texts.csv", {"data.group": "customer"}).recipe.data
    assert (texts.kind, texts.group) == ("table", "customer")


def test_a_text_column_is_searched_for_in_the_encoding_of_the_data(tmp_path):
    rows = "".join(f"un café très agréable {n},oui,writer {n % 5}\n" for n in range(40))
    (tmp_path / "g.csv").write_text(f"text,label,author\n{rows}", "cp1252")
    data = choose("g.csv", {"data.encoding": "cp1252", "data.group": "author"}).recipe.data
    assert (data.kind, data.group, data.encoding) == ("table", "author", "cp1252")


def test_a_first_row_read_as_data_that_could_be_the_header_gives_a_notice(tmp_path):
    rows = "".join(f"ein Hund läuft {n},un chien court {n + 100}\n" for n in range(40))
    (tmp_path / "a.csv").write_text("Lektion,Zielwort\n" + rows, "utf-8")
    assert [text.endswith("data.source=Lektion data.target=Zielwort") for text in notices("a.csv")] == [True]
    assert notices("a.csv", {"data.source": 1}) == notices("a.csv", {"data.label": "Zielwort"}) == []


@pytest.mark.parametrize("label", ["height", "autre"])
def test_a_labelled_table_keeps_the_detected_text_although_a_setting_names_the_label(label, tmp_path):
    numbers = ((f"{n}.5", f"un texte {n}") for n in range(30))
    rows = "".join(
        f"a text of words {n},{height if label == 'height' else text}\n" for n, (height, text) in enumerate(numbers)
    )
    (tmp_path / "a.csv").write_text(f"Aufsatz,{label}\n{rows}")
    recipe = choose(str(tmp_path / "a.csv"), {"data.label": label}).recipe
    assert (recipe.data.kind, recipe.data.text) == ("table", "Aufsatz")


def test_the_header_of_pairs_is_found_by_the_column_of_the_groups(tmp_path):
    rows = "".join(f"der Hund {n};le chien {n};D{n // 4}\n" for n in range(40))
    (tmp_path / "a.csv").write_text(f"hin;her;doc\n{rows}")
    data = choose(str(tmp_path / "a.csv"), {"data.split_group": "doc"}).recipe.data
    assert (data.source, data.target) == ("hin", "her")
