"""Pairs are read from every form they come in, split by source sentence, and encoded so that nothing is lost unseen."""

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harken.data.pairs import files
from harken.data.pairs import source as pairs_module
from harken.data.pairs.files import PairFile, clean
from harken.data.pairs.source import PairData, PairSource, key
from harken.data.tables.read import Flaws
from harken.data.tokenizers.pairs import GLUE, Tokenizers, apart, encode_lines, together
from harken.data.tokenizers.tokenizer import train
from harken.errors import BadInput, BadSetting

NOUNS = ["cat", "dog", "bird", "fish", "horse", "cow", "pig", "hen", "duck", "goat"]
MANY = [(f"The {noun} is number {n}.", f"Das {noun} hat Nummer {n}.") for n in range(30) for noun in NOUNS]
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=30).filter(
    lambda line: clean(line)
)


def table(path: Path, rows, between: str = "\t") -> str:
    path.write_text("".join(f"{between.join(row)}\n" for row in rows), encoding="utf-8")
    return str(path)


def read(path: Path, **how) -> list[tuple[str, str]]:
    return list(PairFile(path, **how).pairs())


def opened(path: object, heard: list[str] | None = None, **given) -> PairData:
    def listen(event: str, **facts) -> None:
        if event == "notice" and heard is not None:
            heard.append(facts["text"])

    return PairSource(**{"tokens": "char", "path": path and str(path)} | given).open(listen=listen)


def learned(data: PairData) -> list[tuple[str, str]]:
    return list(data.texts())


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_column_groups_the_held_out_sources_and_is_not_learned_from(tmp_path):
    rows = [(source, target, str(n % 3)) for n, (source, target) in enumerate(MANY)]
    data = opened(table(tmp_path / "a.tsv", [("source", "target", "distance"), *rows]), group="distance")
    where = {source: group for source, _, group in rows}
    for split in data.splits.values():
        assert split.groups == [where[source] for source in split.sources]
    assert learned(data) == learned(opened(tmp_path / "a.tsv"))
    assert not opened(tmp_path / "a.tsv").splits["valid"].groups


def test_a_column_that_is_not_there_or_has_too_many_values_is_refused(tmp_path, monkeypatch):
    path = table(tmp_path / "a.tsv", [("source", "target"), *MANY])
    with pytest.raises(BadInput, match=r"no column 'length'; its columns are source, target; set data\.group to one"):
        opened(path, group="length")
    many = [(*pair, str(n)) for n, pair in enumerate(MANY)]
    path = table(tmp_path / "b.tsv", [("source", "target", "id"), *many])
    monkeypatch.setattr(files, "GROUPS", 2)
    with pytest.raises(BadInput, match=r"data\.group = 'id': \d+ values; name a column with at most 2"):
        opened(path, group="id")


def test_aligned_files_have_no_groups(tmp_path):
    for name, side in (("a.en", 0), ("a.de", 1)):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in MANY))
    with pytest.raises(BadInput, match=r"aligned files have no columns; leave data\.group=length out"):
        opened(None, source=str(tmp_path / "a.en"), target=str(tmp_path / "a.de"), group="length")


def test_other_pairs_without_the_column_are_judged_all_the_same(tmp_path):
    rows = [(*pair, str(n % 3)) for n, pair in enumerate(MANY)]
    data = opened(table(tmp_path / "a.tsv", [("source", "target", "distance"), *rows]), group="distance")
    given = {"tokenizer": data.tokenizer}
    with_it = data.settings.other(
        table(tmp_path / "b.tsv", [("source", "target", "distance"), *rows[:9]]), "test", **given
    )
    without = data.settings.other(table(tmp_path / "c.tsv", [("source", "target"), *MANY[:9]]), "test", **given)
    assert with_it.splits["test"].groups == [row[2] for row in rows[:9]]
    assert not without.splits["test"].groups
    assert len(without.splits["test"]) == 9


# --- the forms --------------------------------------------------------------------------------------------------------

TWO = [("Go on.", "Mach weiter."), ("I see.", "Aha.")]
FORMS = {
    "tabs": ("a.tsv", "Go on.\tMach weiter.\nI see.\tAha.\n", {}),
    "a byte order mark and CRLF": ("a.tsv", "\ufeffGo on.\tMach weiter.\r\nI see.\tAha.\r\n", {}),
    "an attribution behind": ("a.txt", "Go on.\tMach weiter.\tCC-BY 2.0 #1\nI see.\tAha.\tCC-BY 2.0 #2\n", {}),
    "a header": ("a.csv", "id,de,en\n1,Mach weiter.,Go on.\n2,Aha.,I see.\n", {"source": "en", "target": "de"}),
    "a header that is found": ("a.tsv", "english\tgerman\nGo on.\tMach weiter.\nI see.\tAha.\n", {}),
    "a header told by name": ("a.tsv", "x\ty\nGo on.\tMach weiter.\nI see.\tAha.\n", {"source": "x", "target": "y"}),
    "numbers": ("a.tsv", "Mach weiter.\tGo on.\nAha.\tI see.\n", {"source": 2, "target": "1"}),
    "cells in quotes": ("a.csv", 'src,tgt\n"Go on.","Mach weiter."\nI see.,"Aha."\n', {}),
    "JSON lines": ("a.jsonl", "".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in TWO), {}),
    "nested JSON": (
        *("a.jsonl", "".join(json.dumps({"translation": {"en": s, "de": t}}) + "\n" for s, t in TWO)),
        {"source": "en", "target": "de"},
    ),
    "nested JSON that is found": (
        *("a.json", "".join(json.dumps({"id": n, "t": {"en": s, "de": t}}) + "\n" for n, (s, t) in enumerate(TWO)), {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs(form, tmp_path):
    name, content, how = FORMS[form]
    (tmp_path / name).write_bytes(content.encode())
    assert read(tmp_path / name, **how) == TWO


def test_aligned_files_give_the_same_pairs(tmp_path):
    for name, side in (("a.en", 0), ("a.de", 1)):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in TWO))
    assert read(tmp_path / "a.en", other=tmp_path / "a.de") == TWO


def test_trees_are_pairs_of_words_and_a_line(tmp_path):
    (tmp_path / "a.mrg").write_text("( (S (NP-SBJ (NN dog))\n (VP (VBD ran))) )\n" * 3 + "( (S (NP\n")
    rows = PairFile(tmp_path / "a.mrg")
    assert list(rows.pairs()) == [("dog ran", "(S (NP 1 )NP (VP 2 )VP )S")] * 3


def test_quotes_in_a_table_with_tabs_are_part_of_the_sentence(tmp_path):
    rows = [('"Go!" he said.', '"Geh!", sagte er.'), ('"Go!"', '"Geh!"'), ("It is.", "Es ist.")]
    table(tmp_path / "a.tsv", rows)
    assert read(tmp_path / "a.tsv", source=1, target=2) == rows


def test_a_cell_in_quotes_may_hold_a_newline_and_the_pair_is_one_line(tmp_path):
    (tmp_path / "a.csv").write_text('src,tgt\n"Go\non.","Mach, weiter."\n' + "I see.,Aha.\n" * 5)
    assert read(tmp_path / "a.csv")[0] == ("Go on.", "Mach, weiter.")


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=8))
def test_aligned_files_lose_no_pair(rows, tmp_path_factory):
    home = tmp_path_factory.mktemp("a")
    for name, side in (("a.en", 0), ("a.de", 1)):
        (home / name).write_bytes("".join(row[side] + "\n" for row in rows).encode())
    assert read(home / "a.en", other=home / "a.de") == [(clean(a), clean(b)) for a, b in rows]


# --- what is no pair --------------------------------------------------------------------------------------------------


def test_lines_that_are_no_pair_are_counted_and_told_by_their_place(tmp_path):
    path = tmp_path / "a.tsv"
    table(path, MANY[:20])
    lines = path.read_bytes().splitlines()
    lines[3:7] = [b"one column", b"\tnur rechts", b"caf\xe9\tKaffee", b""]
    path.write_bytes(b"\n".join(lines) + b"\n")
    heard: list[str] = []
    facts = opened(path, heard, source=1, target=2, valid=0.0, test=0.0).facts()
    assert facts["pairs"]["train"] == 16
    assert facts["bad"]["count"] == sum(facts["bad"]["reasons"].values()) == 4
    reasons = ["4: 1 column only", "5: the source is empty", "6: byte 0xe9 is not UTF-8", "7: an empty line"]
    assert facts["bad"]["first"] == [f"{path}:{reason}" for reason in reasons]
    assert heard == [f"lines left out because they are no pair: 4 ({', '.join(facts['bad']['first'])})"]


def flaws(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    found = Flaws()
    return list(PairFile(path).pairs(found)), [place.removeprefix(f"{path}:") for place in found.first]


def test_a_row_with_more_cells_than_the_table_has_columns_is_no_pair(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("english,french\n" + "go on,va\n" * 30 + "well hello,ja, hallo du\n" + "I see,ah,\n")
    pairs, told = flaws(path)
    assert told == ["32: 3 columns instead of 2"]
    assert pairs == [("go on", "va")] * 30 + [("I see", "ah")]  # an empty cell behind the last takes nothing away


LONE = {
    "which no other follows": ("", []),
    "before cells in quotes": ('"I see","ah"\n', [("I see", "ah")]),
    "and much later its end": ("I see,ah\n" * 60 + 'so",so\n', [("I see", "ah")] * 60 + [('so"', "so")]),
}


@pytest.mark.parametrize("case", LONE)
def test_a_lone_quote_costs_its_own_line_only(case, tmp_path):
    path, (behind, kept) = tmp_path / "a.csv", LONE[case]
    # what is read before the form is known holds no lone quote
    path.write_text("src,tgt\n" + '"go, go","va, va"\n' * 70_000 + '"well,eh\n' + "oh,oh\n" * 3 + behind)
    pairs, told = flaws(path)
    assert told == ["70002: a quote is not closed"]
    assert pairs[70_000:] == [("oh", "oh")] * 3 + kept


def test_a_lone_quote_in_a_table_with_tabs_ends_with_its_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("src\ttgt\n" + '"go ""on"""\t"va, va"\n' * 70_000 + '"well\teh\noh"\toh\n')
    pairs, told = flaws(path)
    assert told == ["70002: a quote is not closed"]
    assert pairs[69_999:] == [('go "on"', "va, va"), ('oh"', "oh")]


def test_a_file_with_more_flaws_than_pairs_is_refused_with_the_first(tmp_path):
    table(tmp_path / "a.tsv", [("Go on.", "Mach weiter."), ("", "a"), ("b", ""), ("c", "")])
    with pytest.raises(BadInput, match=r"3 of its 4 lines are no pair \(.*a\.tsv:2: the source is empty\); check"):
        read(tmp_path / "a.tsv", source=1, target=2)


def test_aligned_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a.en").write_text("a\nb\nc\n")
    (tmp_path / "a.de").write_text("a\nb\n")
    with pytest.raises(BadInput, match=r"a\.en has 3 lines and .*a\.de has 2;"):
        read(tmp_path / "a.en", other=tmp_path / "a.de")


def test_a_column_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    table(tmp_path / "a.tsv", [("english", "german"), *MANY[:9]])
    with pytest.raises(BadInput, match=r"there is no column 'fr'; its columns are english, german; set data.target"):
        read(tmp_path / "a.tsv", source="english", target="fr")
    table(tmp_path / "b.tsv", MANY[:9])
    with pytest.raises(BadInput, match=r"\(it has no header\); .*, or give it a header with 'english'$"):
        read(tmp_path / "b.tsv", source="english", target="fr")


def test_a_key_that_is_given_leaves_the_other_to_the_other_side(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": s, "y": t}) + "\n" for s, t in TWO))
    turned = [(t, s) for s, t in TWO]
    assert read(tmp_path / "a.jsonl", source="y") == turned
    assert read(tmp_path / "a.jsonl", target="x") == turned
    assert read(tmp_path / "a.jsonl", target="y") == TWO
    with pytest.raises(
        BadInput, match=r"column 'y' is asked for twice; set data\.source and data\.target to different"
    ):
        read(tmp_path / "a.jsonl", source="y", target="y")


def test_half_a_character_in_json_is_no_end_of_the_reading(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"src": "a \\ud800 b", "tgt": "c"}\n{"src": "d", "tgt": 12}\n')
    assert read(tmp_path / "a.jsonl") == [("a ? b", "c"), ("d", "12")]


def test_a_table_of_a_header_alone_is_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("english\tgerman\n")
    with pytest.raises(BadInput, match=r"a\.tsv: no pair in it; lines with two sides are needed"):
        read(tmp_path / "a.tsv", source="english", target="german")


def test_a_text_without_columns_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one line\nanother line\n")
    with pytest.raises(BadInput, match="no columns in it; a table with two columns, two aligned files"):
        read(tmp_path / "a.txt")


# --- the splits -------------------------------------------------------------------------------------------------------

SOURCES = st.integers(0, 60).map(lambda n: f"source {n}")
KEPT = next((f"kept {n}", "1") for n in range(99) if 0.45 < key(f"kept {n}") / 2**64 < 0.55)  # held out by no share


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(SOURCES, st.integers(0, 9).map(str)), min_size=1, max_size=150), data=st.data())
def test_no_source_stands_on_two_sides_and_no_pair_is_lost(rows, data, tmp_path_factory):
    path = table(tmp_path_factory.mktemp("a") / "a.tsv", [*rows, KEPT])
    valid, test = data.draw(st.sampled_from([(0.1, 0.05), (0.4, 0.4), (0.0, 0.3)]))
    found = opened(path, source=1, target=2, valid=valid, test=test)
    sides = {"train": {source for source, _ in learned(found)}}
    sides |= {split: set(pairs.sources) for split, pairs in found.splits.items()}
    assert sum(map(len, sides.values())) == len(set.union(*sides.values()))
    held = {(s, r) for p in found.splits.values() for s, rs in zip(p.sources, p.references, strict=True) for r in rs}
    assert held | set(learned(found)) == {*rows, KEPT}
    assert found.facts()["overlap"] == 0


def test_other_lines_in_the_file_move_no_source(tmp_path):
    few, more = (opened(table(tmp_path / f"{n}.tsv", MANY[:n]), source=1, target=2) for n in (200, 300))
    for split in ("valid", "test"):
        assert set(few.splits[split].sources) <= set(more.splits[split].sources)
        assert set(few.splits[split].sources) == set(more.splits[split].sources) & {source for source, _ in MANY[:200]}


def test_another_share_of_one_split_moves_nothing_in_the_other(tmp_path):
    path = table(tmp_path / "a.tsv", MANY)
    one, other = (opened(path, source=1, target=2, valid=valid) for valid in (0.1, 0.5))
    assert one.splits["test"].sources == other.splits["test"].sources
    assert 0 < len(one.splits["valid"]) < len(other.splits["valid"])


def test_a_share_holds_out_so_many_sources_at_most(tmp_path, monkeypatch):
    path = table(tmp_path / "a.tsv", MANY)
    free = opened(path, source=1, target=2, valid=0.5).splits["valid"].sources
    monkeypatch.setattr(pairs_module, "MOST", 10)
    assert opened(path, source=1, target=2, valid=0.5).splits["valid"].sources == free[:10]


def test_fewer_examples_leave_the_held_out_splits_as_they_are(tmp_path):
    path = table(tmp_path / "a.tsv", MANY)
    every, few = (opened(path, source=1, target=2, examples=n) for n in (None, 20))
    assert learned(few) == learned(every)[:20]
    assert few.splits["test"].sources == every.splits["test"].sources


def test_all_translations_of_a_source_are_its_references_once_each(tmp_path):
    path = table(tmp_path / "valid.tsv", [("Hi.", "Hallo."), ("Go.", "Geh."), (" Hi. ", "Hallo!"), ("Hi.", "Hallo.")])
    found = opened(table(tmp_path / "a.tsv", MANY), source=1, target=2, valid=path).splits["valid"]
    assert dict(zip(found.sources, found.references, strict=True)) == {"Hi.": ["Hallo.", "Hallo!"], "Go.": ["Geh."]}


def test_a_source_is_the_same_however_its_accents_are_written(tmp_path):
    apart_, whole = unicodedata.normalize("NFD", "Übung"), "Übung"
    path = table(tmp_path / "valid.tsv", [(apart_, "practice"), ("Go.", "Geh.")])
    found = opened(table(tmp_path / "a.tsv", [*MANY, (whole, "exercise")]), source=1, target=2, valid=path)
    assert whole in found.splits["valid"].sources
    assert whole not in {source for source, _ in learned(found)}


def test_sources_of_a_given_split_are_taken_out_of_the_training_and_that_is_said(tmp_path):
    path, heard = table(tmp_path / "held.tsv", MANY[:5]), []
    found = opened(table(tmp_path / "a.tsv", MANY), heard, source=1, target=2, valid=path, test=0.0)
    assert found.splits["valid"].sources == [source for source, _ in MANY[:5]]
    assert learned(found) == MANY[5:]
    assert found.facts()["taken"] == 5
    assert heard == ["training pairs left out because their sources are held out: 5"]


def test_sources_of_both_held_out_files_are_counted(tmp_path):
    heard: list[str] = []
    given = {"valid": table(tmp_path / "v.tsv", MANY[:9]), "test": table(tmp_path / "t.tsv", MANY[6:12])}
    opened(table(tmp_path / "a.tsv", MANY[20:]), heard, source=1, target=2, **given)
    assert heard == ["sources that are in both valid and test: 3; weights chosen by the one know the other"]
    heard.clear()
    opened(tmp_path / "a.tsv", heard, source=1, target=2, valid=given["valid"])
    assert not heard


def test_overlap_is_counted_where_other_pairs_are_judged(tmp_path):
    source = PairSource(path=table(tmp_path / "a.tsv", MANY), source=1, target=2, tokenizer="char", valid=0.0, test=0.0)
    data = source.other(
        table(tmp_path / "b.tsv", [*MANY[:4], ("New.", "Neu.")]), "test", tokenizer=source.open().tokenizers
    )
    assert data.splits["test"].sources[-1] == "New."
    assert data.facts()["overlap"] == 4


def test_pairs_to_judge_stand_alone_where_those_of_the_run_are_gone(tmp_path):
    source = PairSource(path=table(tmp_path / "a.tsv", MANY), source=1, target=2, tokenizer="char")
    tokenizers = source.open().tokenizers
    (tmp_path / "a.tsv").unlink()
    data = source.other(table(tmp_path / "b.tsv", MANY[:9]), "test", tokenizer=tokenizers)
    assert not data.learned
    assert len(data.splits["test"]) == 9
    assert data.facts()["pairs"]["test"] == 9


# --- folders and names ------------------------------------------------------------------------------------------------


def languages(folder: Path, **parts) -> Path:
    folder.mkdir()
    for stem, rows in parts.items():
        for ending, side in (("en", 0), ("de", 1), ("fr", 1)):
            (folder / f"{stem}.{ending}").write_text("".join(row[side] + "\n" for row in rows))
    return folder


SPLIT = {"train": MANY[:90], "val": MANY[90:95], "test_2016_flickr": MANY[95:99]}


@pytest.mark.parametrize("how", ["language", "file", "found"])
def test_a_folder_with_a_file_for_each_language_and_split_is_read(how, tmp_path):
    home = languages(tmp_path / "m", **SPLIT)
    sides = {"language": ("de", "en"), "file": (str(home / "train.de"), str(home / "train.en")), "found": (None, None)}
    found = opened(home, source=sides[how][0], target=sides[how][1])
    turned = [row if how == "found" else row[::-1] for row in MANY]
    assert learned(found) == turned[:90]
    assert found.splits["valid"].sources == [source for source, _ in turned[90:95]]
    assert found.splits["test"].references == [[target] for _, target in turned[95:99]]


def test_a_folder_of_tables_is_read_by_the_names_of_its_files(tmp_path):
    for name, rows in (("train", MANY[:90]), ("dev", MANY[90:95]), ("test", MANY[95:99])):
        table(tmp_path / f"{name}.tsv", rows)
    found = opened(tmp_path, source=1, target=2)
    assert (len(found.train), len(found.splits["valid"]), len(found.splits["test"])) == (90, 5, 4)


@pytest.mark.parametrize("valid", ["val", "val.de", "val.en"])
def test_two_aligned_files_find_their_like(valid, tmp_path):
    home = languages(tmp_path / "m", **SPLIT)
    given = {"path": None, "source": str(home / "train.en"), "target": str(home / "train.de"), "test": 0.0}
    found = opened(**given, valid=str(home / valid))
    assert learned(found) == MANY[:90]
    assert found.splits["valid"].sources == [source for source, _ in MANY[90:95]]


def test_paths_are_made_absolute_and_columns_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    languages(tmp_path / "m", **SPLIT)
    table(tmp_path / "a.tsv", MANY)
    (tmp_path / "en").write_text("not this one")
    assert PairSource(path="a.tsv", source="en", target=2).located().source == "en"
    assert PairSource(path="m", source="de", target="en").located().source == "de"
    assert PairSource(source="m/train.en", target="m/train.de").located().target == str(tmp_path / "m" / "train.de")
    assert PairSource(path="m", source="m/train.en", target="de", valid="m/val").located().source.startswith("/")


def test_other_files_than_those_of_the_recipe_are_refused(tmp_path):
    path = table(tmp_path / "a.tsv", MANY)
    digest = opened(path, source=1, target=2).sha256
    table(tmp_path / "a.tsv", MANY[1:])
    with pytest.raises(BadInput, match=r"a\.tsv: the text is not the one this recipe was made for"):
        opened(path, source=1, target=2, sha256=digest)


REFUSED = {
    "no path": ({"path": None}, "data.path is not given; name a file or a folder"),
    "all too long": ({"longest": 1}, "there is nothing to learn from"),
    "one column twice": ({"target": 1}, "a.tsv: column 1 is asked for twice; set data.source and data.target"),
    "no such file": ({"valid": "nowhere.tsv"}, "nowhere.tsv: there is no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(case, tmp_path):
    change, says = REFUSED[case]
    given = {"path": table(tmp_path / "a.tsv", MANY[:30]), "source": 1, "target": 2, "tokens": "char"} | change
    with pytest.raises((BadInput, BadSetting), match=says) as error:
        PairSource(**given | ({"source": None} if case == "no path" else {})).open()
    assert "\n" not in str(error.value)


WRONG = {
    "a share above 1": {"valid": 1.5},
    "shares of all": {"valid": 0.6, "test": 0.5},
    "a share that leaves none for the test": {"valid": 0.97},
    "dropout without merges": {"split_dropout": 0.1, "tokens": "char"},
}


@pytest.mark.parametrize("case", WRONG)
def test_settings_that_cannot_be_are_refused_before_anything_is_read(case):
    with pytest.raises(ValidationError, match=r"shares of the sources lie|only byte pairs have merges"):
        PairSource(**WRONG[case])


def test_one_language_for_both_sides_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"m: de is both sides; set data.source and data.target to two languages"):
        opened(languages(tmp_path / "m", **SPLIT), source="de", target=str(tmp_path / "m" / "train.de"))


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("tokens", ["char", "word", "bpe"])
def test_training_pairs_are_written_back_as_they_were_and_a_run_can_load_the_tokens(tokens, joint, tmp_path):
    rows = [("He's (very) fast!", "Il est « très » rapide !"), ("l'été - 5,5 %", "« 5,5 % »"), *MANY[:40]]
    found = opened(table(tmp_path / "a.tsv", rows), source=1, target=2, tokens=tokens, joint=joint, valid=0.0, test=0.0)
    assert learned(found) == rows
    for name, content in found.tokenizers.files().items():
        (tmp_path / name).write_bytes(content)
    again = Tokenizers.load(tmp_path)
    assert again.vocab == found.vocab == (found.tokenizers.source.vocab + 1, found.tokenizers.target.vocab + 1)
    assert (again.source is again.target) == joint
    source, target = again.encode_source(rows[0][0]), again.encode_target(rows[0][1])
    assert source.tolist() == [*found.train.source[0], again.source.vocab]
    assert target.tolist() == found.train.target[0].tolist()
    assert again.decode_target([*target, again.target.vocab, 0, 0]) == rows[0][1]


def test_a_sign_is_a_word_of_its_own():
    assert apart("I am a student.").split() == ["I", "am", "a", "student", f"{GLUE}."]
    assert apart("« l'été »").split() == ["«", "l", f"{GLUE}'{GLUE}", "été", "»"]


@settings(max_examples=300, deadline=None)
@given(text=LINE.filter(lambda text: GLUE not in text))
def test_signs_are_put_together_as_they_stood(text):
    assert together(apart(text)) == text


@pytest.mark.parametrize("written", ["\uffed. le chat", "le chat (\uffed", "le (\uffed \uffed.\uffed chat"])
def test_a_glue_that_a_model_writes_out_of_place_is_not_seen(written):
    assert "\uffed" not in together(written)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINE.map(clean), min_size=1, max_size=6), kind=st.sampled_from(["char", "word", "bpe"]))
def test_lines_encoded_at_once_are_those_encoded_alone(lines, kind):
    tokenizer = train(kind, lambda: [f"{line}\n" for line in lines], 300)
    ids, lengths = encode_lines(tokenizer, lines)
    alone = [tokenizer.encode(apart(line) if kind == "word" else line).tolist() for line in lines]
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == alone


def test_sources_of_too_many_words_are_in_no_split(tmp_path):
    rows = [*MANY, *((f"{s} It is not a small one.", t) for s, t in MANY)]
    data = opened(table(tmp_path / "a.tsv", rows), max_words=5)
    assert sum(data.facts()["pairs"].values()) == len(MANY)
    valid = table(tmp_path / "valid.tsv", rows[-5:] + rows[:2])
    assert opened(tmp_path / "a.tsv", valid=valid, max_words=5).splits["valid"].sources == [s for s, _ in MANY[:2]]


def test_pairs_that_are_too_long_are_not_learned_from_and_held_out_ones_are_cut(tmp_path):
    path, heard = table(tmp_path / "v.tsv", [("x" * 50, "y" * 9), ("z", "b" * 50)]), []
    rows = [("a" * 20, "b"), ("a", "b" * 21), ("c", "d"), ("e" * 21, "f")]
    found = opened(table(tmp_path / "a.tsv", rows), heard, source=1, target=2, valid=path, test=0.0, longest=20)
    assert learned(found) == [rows[0], rows[2]]
    assert found.splits["valid"].source.lengths.tolist() == [20, 1]
    assert found.splits["valid"].target.lengths.tolist() == [9, 20]
    assert found.splits["valid"].references == [["y" * 9], ["b" * 50]]
    assert heard == ["training pairs left out because they have more than 20 tokens on a side (data.max_length): 2"]
