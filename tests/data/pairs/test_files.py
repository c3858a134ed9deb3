"""Pairs are read from every supported form, and lines that are not pairs are reported."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.pairs.files import PairFile, find_pair_file, normalize_text
from harken.data.tables.read import SkippedRows
from harken.errors import BadInput

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"), max_size=30).filter(normalize_text)
TWO = [("Go on.", "Mach weiter."), ("I see.", "Aha.")]
FORMS = {
    "tabs": ("a.tsv", "Go on.\tMach weiter.\nI see.\tAha.\n", {}),
    "a byte order mark and CRLF": ("a.tsv", "\ufeffGo on.\tMach weiter.\r\nI see.\tAha.\r\n", {}),
    "an attribution column": ("a.txt", "Go on.\tMach weiter.\tCC-BY 2.0 #1\nI see.\tAha.\tCC-BY 2.0 #2\n", {}),
    "a header": ("a.csv", "id,de,en\n1,Mach weiter.,Go on.\n2,Aha.,I see.\n", {"source": "en", "target": "de"}),
    "a detected header": ("a.tsv", "english\tgerman\nGo on.\tMach weiter.\nI see.\tAha.\n", {}),
    "a header with set names": ("a.tsv", "x\ty\nGo on.\tMach weiter.\nI see.\tAha.\n", {"source": "x", "target": "y"}),
    "numbers": ("a.tsv", "Mach weiter.\tGo on.\nAha.\tI see.\n", {"source": 2, "target": "1"}),
    "quoted cells": ("a.csv", 'src,tgt\n"Go on.","Mach weiter."\nI see.,"Aha."\n', {}),
    "JSON lines": ("a.jsonl", "".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in TWO), {}),
    "nested JSON": (
        *("a.jsonl", "".join(json.dumps({"translation": {"en": s, "de": t}}) + "\n" for s, t in TWO)),
        {"source": "en", "target": "de"},
    ),
    "detected nested JSON": (
        *("a.json", "".join(json.dumps({"id": n, "t": {"en": s, "de": t}}) + "\n" for n, (s, t) in enumerate(TWO)), {}),
    ),
}  # fmt: skip


def write_table(path: Path, rows) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def read(path: Path, **columns) -> list[tuple[str, str]]:
    return list(PairFile(path, **columns).pairs())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_pairs(form, tmp_path):
    name, content, columns = FORMS[form]
    (tmp_path / name).write_bytes(content.encode())
    assert read(tmp_path / name, **columns) == TWO


def test_aligned_files_give_the_same_pairs(tmp_path):
    for name, side in (("a.en", 0), ("a.de", 1)):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in TWO))
    assert read(tmp_path / "a.en", target_path=tmp_path / "a.de") == TWO


def test_trees_are_pairs_of_words_and_linear_form(tmp_path):
    (tmp_path / "a.mrg").write_text("( (S (NP-SBJ (NN dog))\n (VP (VBD ran))) )\n" * 3 + "( (S (NP\n")
    assert read(tmp_path / "a.mrg") == [("dog ran", "(S (NP 1 )NP (VP 2 )VP )S")] * 3


def test_quotes_in_a_tab_separated_table_are_part_of_the_sentence(tmp_path):
    rows = [('"Go!" he said.', '"Geh!", sagte er.'), ('"Go!"', '"Geh!"'), ("It is.", "Es ist.")]
    write_table(tmp_path / "a.tsv", rows)
    assert read(tmp_path / "a.tsv", source=1, target=2) == rows


def test_a_newline_in_a_quoted_cell_becomes_a_space(tmp_path):
    (tmp_path / "a.csv").write_text('src,tgt\n"Go\non.","Mach, weiter."\n' + "I see.,Aha.\n" * 5)
    assert read(tmp_path / "a.csv")[0] == ("Go on.", "Mach, weiter.")


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=8))
def test_aligned_files_lose_no_pair(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("a")
    for name, side in (("a.en", 0), ("a.de", 1)):
        (folder / name).write_bytes("".join(row[side] + "\n" for row in rows).encode())
    pairs = [(normalize_text(a), normalize_text(b)) for a, b in rows]
    assert read(folder / "a.en", target_path=folder / "a.de") == pairs


# --- lines that are not pairs -----------------------------------------------------------------------------------------


def read_with_skipped(path: Path) -> tuple[list[tuple[str, str]], list[str]]:
    skipped = SkippedRows()
    return list(PairFile(path).pairs(skipped)), [reason.removeprefix(f"{path}:") for reason in skipped.first]


def test_a_row_with_more_cells_than_columns_is_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("english,french\n" + "go on,va\n" * 30 + "well hello,ja, hallo du\n" + "I see,ah,\n")
    pairs, reasons = read_with_skipped(path)
    assert reasons == ["32: 3 columns instead of 2"]
    assert pairs == [("go on", "va")] * 30 + [("I see", "ah")]  # a trailing empty cell is ignored


LONE_QUOTE = {
    "at the end": ("", []),
    "before quoted cells": ('"I see","ah"\n', [("I see", "ah")]),
    "closed much later": ("I see,ah\n" * 60 + 'so",so\n', [("I see", "ah")] * 60 + [('so"', "so")]),
}


@pytest.mark.parametrize("case", LONE_QUOTE)
def test_a_lone_quote_costs_only_its_own_line(case, tmp_path):
    path, (rest, pairs_after) = tmp_path / "a.csv", LONE_QUOTE[case]
    # the preview that detects the form has no lone quote
    path.write_text("src,tgt\n" + '"go, go","va, va"\n' * 70_000 + '"well,eh\n' + "oh,oh\n" * 3 + rest)
    pairs, reasons = read_with_skipped(path)
    assert reasons == ["70002: a quote is not closed"]
    assert pairs[70_000:] == [("oh", "oh")] * 3 + pairs_after


def test_a_lone_quote_in_a_tab_separated_table_ends_with_its_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("src\ttgt\n" + '"go ""on"""\t"va, va"\n' * 70_000 + '"well\teh\noh"\toh\n')
    pairs, reasons = read_with_skipped(path)
    assert reasons == ["70002: a quote is not closed"]
    assert pairs[69_999:] == [('go "on"', "va, va"), ('oh"', "oh")]


def test_a_file_with_more_skipped_lines_than_pairs_is_refused_with_the_first(tmp_path):
    write_table(tmp_path / "a.tsv", [("Go on.", "Mach weiter."), ("", "a"), ("b", ""), ("c", "")])
    with pytest.raises(
        BadInput, match=r"3 of its 4 rows are skipped: no pair \(.*a\.tsv:2: the source is empty\); check"
    ):
        read(tmp_path / "a.tsv", source=1, target=2)


def test_aligned_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    (tmp_path / "a.en").write_text("a\nb\nc\n")
    (tmp_path / "a.de").write_text("a\nb\n")
    with pytest.raises(BadInput, match=r"a\.en has 3 lines and .*a\.de has 2;"):
        read(tmp_path / "a.en", target_path=tmp_path / "a.de")


def test_a_missing_column_is_refused_with_the_columns_of_the_file(tmp_path):
    rows = [(f"a house {n}", f"ein Haus {n}") for n in range(9)]
    write_table(tmp_path / "a.tsv", [("english", "german"), *rows])
    with pytest.raises(BadInput, match=r"no column 'fr'; its columns are english, german; set data.target"):
        read(tmp_path / "a.tsv", source="english", target="fr")
    write_table(tmp_path / "b.tsv", rows)
    with pytest.raises(BadInput, match=r"b\.tsv: no column 'english'; .*, or add a header with 'english'$"):
        read(tmp_path / "b.tsv", source="english", target="fr")


def test_a_key_set_for_one_side_leaves_the_other_key_to_the_other_side(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": s, "y": t}) + "\n" for s, t in TWO))
    swapped = [(t, s) for s, t in TWO]
    assert read(tmp_path / "a.jsonl", source="y") == swapped
    assert read(tmp_path / "a.jsonl", target="x") == swapped
    assert read(tmp_path / "a.jsonl", target="y") == TWO
    with pytest.raises(BadInput, match=r"column 'y' is used twice; set data\.source and data\.target to different"):
        read(tmp_path / "a.jsonl", source="y", target="y")


def test_columns_by_number_are_the_detected_keys_of_json_lines(tmp_path):
    lines = [json.dumps({"target": f"le chat numéro {n}", "source": f"the cat number {n}"}) for n in range(9)]
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    pairs = find_pair_file(str(tmp_path / "p.jsonl"), 1, 2).pairs()
    assert next(iter(pairs)) == ("the cat number 0", "le chat numéro 0")


def test_a_lone_surrogate_in_json_is_replaced(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"src": "a \\ud800 b", "tgt": "c"}\n{"src": "d", "tgt": 12}\n')
    assert read(tmp_path / "a.jsonl") == [("a ? b", "c"), ("d", "12")]


def test_a_table_with_only_a_header_is_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("english\tgerman\n")
    with pytest.raises(BadInput, match=r"a\.tsv: has no rows of data"):
        read(tmp_path / "a.tsv", source="english", target="german")


def test_a_text_without_columns_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one line\nanother line\n")
    with pytest.raises(
        BadInput, match=r"a\.txt: contains no columns; accepted: a table with two columns, two aligned files"
    ):
        read(tmp_path / "a.txt")
