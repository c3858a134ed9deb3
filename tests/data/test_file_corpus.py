"""Malformed and unusual files of real life, read by every reader: the right rows, or one line that says what to do."""

import datetime
import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import openpyxl
import pyarrow as pa
import pytest
from pyarrow import parquet

from harken.cli.inputs import Inputs
from harken.data.detect.kinds import detect_kind
from harken.data.graphs.read import read_graph
from harken.data.labelled.examples import ExampleSource
from harken.data.labelled.source import TableSource
from harken.data.labelled.spans import SpanSource
from harken.data.labelled.tags import TagSource
from harken.data.pairs.source import PairSource
from harken.data.sets.source import SetSource
from harken.data.stories.source import StorySource
from harken.data.tables.texts import read_texts
from harken.data.tables.vectors import read_vectors
from harken.data.text.encode import Span, read_blocks
from harken.errors import BadInput
from harken.events import silent

Rows = list[tuple[str, str]]
WORDS = ["erste", "alte", "neue", "rote", "blaue", "kalte", "warme", "laute", "stille", "große", "kleine", "letzte"]
ROWS: Rows = [(f"Das {word} Stück", "gut" if n % 2 else "böse") for n, word in enumerate(WORDS)]
TEXTS = [text for text, _ in ROWS]
READERS = ("labelled", "pairs", "text", "sets", "graph", "in")


class Case(NamedTuple):
    """Files of one folder; the first is read. What a reader returns: rows, or a pattern of its refusal."""

    files: dict[str, bytes]
    expected: dict[str, Any] = {}  # noqa: RUF012  # reader -> rows, or a pattern of the error
    encoding: str | None = None
    notice: str = ""  # part of a notice of the labelled reader
    loose: bool = False  # a refusal is as good as the rows


def table(rows: Sequence[Sequence[str]] = ROWS, sep: str = ",", end: str = "\n", header: str = "text,label") -> str:
    lines = ([header.replace(",", sep)] if header else []) + [sep.join(row) for row in rows]
    return end.join(lines) + end


def quoted(rows: Sequence[Sequence[str]], sep: str = ",", end: str = "\n") -> str:
    return table([['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows], sep, end)


def changed(row: int, text: str, rows: Rows = ROWS) -> Rows:
    """The rows with another text in this row."""
    return [*rows[:row], (text, rows[row][1]), *rows[row + 1 :]]


def without(*indices: int) -> Rows:
    return [row for n, row in enumerate(ROWS) if n not in indices]


def with_line(row: int, line: str, content: str = "") -> bytes:
    """The table with this line instead of a row."""
    lines = (content or table()).split("\n")
    return "\n".join([*lines[: row + 1], line, *lines[row + 2 :]]).encode()


def both(rows: Rows) -> dict[str, Any]:
    return {"labelled": rows, "in": [text for text, _ in rows]}


def csv(content: str, expected: Any = None, name: str = "a.csv", **more: Any) -> Case:
    return Case({name: content.encode()}, both(ROWS) if expected is None else expected, **more)


def encoded(name: str, content: str, codec: str, rows: Rows = ROWS, **more: Any) -> Case:
    return Case({name: content.encode(codec)}, both(rows), **more)


def xlsx(*sheets: Sequence[Sequence[object]]) -> bytes:
    workbook = openpyxl.Workbook()
    workbook.remove(workbook.active)
    for n, rows in enumerate(sheets, 1):
        sheet = workbook.create_sheet(f"Sheet{n}")
        for row in rows:
            sheet.append(row)
    file = io.BytesIO()
    workbook.save(file)
    return file.getvalue()


def parquet_bytes(**columns: Any) -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    return file.getvalue()


def objects(rows: Rows = ROWS) -> list[dict[str, str]]:
    return [{"text": text, "label": label} for text, label in rows]


def json_lines(rows: Rows = ROWS) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in objects(rows))


def packed(content: str, codec: str = "utf-8") -> bytes:
    return gzip.compress(content.encode(codec))


def archive(name: str) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as zip_file:
        zip_file.writestr(name, "x")
    return file.getvalue()


JAPANESE: Rows = [(f"日本語 {n}", "是非"[n % 2]) for n in range(12)]
CHINESE: Rows = [(f"文字 {n}", "是非"[n % 2]) for n in range(12)]
RUSSIAN: Rows = [(f"слово {n}", "да" if n % 2 else "нет") for n in range(12)]
NUMBERED: Rows = [(text, str(len(label))) for text, label in ROWS]
HEAD = [["text", "label"]]
LONG = "wort " * 40_000 + "Ende"  # longer than the limit of the csv module
LINES = "eins\nzwei ä\n\ndrei\n"
PAIRS: Rows = [(f"the house number {n} is big", f"das Haus Nummer {n} ist groß") for n in range(8)]
SETS = [[f"s{k}", str(x), f"{x / 2}", "AB"[k % 2]] for k in range(12) for x in range(4)]
SET_NAMES = [f"s{k}" for k in range(12)]
EDGES: Rows = [(str(n), str((n + 1) % 6)) for n in range(6)]
LABELLED_FOLDER = {
    f"news/{label}/{n}.txt": f"{label} text {n}\nline two".encode() for label in ("a", "b") for n in range(5)
}
FOLDER_ROWS = [(f"{label} text {n} line two", label) for label in ("a", "b") for n in range(5)]
CASES: dict[str, Case] = {
    # line ends and encodings
    "CSV": csv(table()),
    "CRLF": csv(table(end="\r\n")),
    "CR of old Macs": csv(table(end="\r")),
    "CR in a text": Case({"a.txt": LINES.replace("\n", "\r").encode()}, {"text": LINES, "in": LINES.split("\n")[:-1]}),
    "no line end after the last row": csv(table().rstrip("\n")),
    "UTF-8 with a mark": encoded("a.csv", table(), "utf-8-sig"),
    "UTF-16": encoded("a.csv", table(end="\r\n"), "utf-16"),
    "UTF-16, big endian": Case({"a.csv": b"\xfe\xff" + table().encode("utf-16-be")}, both(ROWS)),
    "UTF-32": encoded("a.csv", table(), "utf-32"),
    "Excel's Unicode text": Case({"a.txt": table(sep="\t", end="\r\n").encode("utf-16")}, {"labelled": ROWS}),
    "UTF-16 text": Case({"a.txt": LINES.encode("utf-16")}, {"text": LINES, "in": LINES.split("\n")[:-1]}),
    "UTF-16 cut short": Case(
        {"a.csv": table().encode("utf-16")[:-1]}, dict.fromkeys(READERS, "a.csv:13: byte .* utf-16")
    ),
    "UTF-16 without a mark": Case({"a.csv": table().encode("utf-16-le")}, dict.fromkeys(READERS, "encoding.utf-16le")),
    "UTF-16 without a mark, set": encoded("a.csv", table(), "utf-16-le", encoding="utf-16-le"),
    "cp1252": encoded("a.csv", table(), "cp1252", encoding="cp1252"),
    "cp1252, not set": Case(
        {"a.csv": table().encode("cp1252")},
        {
            "text": "a.csv:2: byte 0xfc .* is not UTF-8 .*data.encoding=cp1252",
            "labelled": "a.csv:2: byte 0xfc .*data.encoding=cp1252",
            "in": "a.csv:2: byte 0xfc .*--encoding cp1252",
        },
    ),
    "cp1252 lines, not set": Case({"a.txt": "grün\n".encode("cp1252")}, {"in": "a.txt:1: .*set --encoding cp1252"}),
    "cp1252 with another byte": Case(
        {"a.csv": table().encode("cp1252") + b"x\x81,gut\n"},
        dict.fromkeys(READERS, "a.csv:14: byte 0x81 is not cp1252"),
        "cp1252",
    ),
    "cp1252 set for a UTF-8 file": csv(table(), encoding="cp1252"),
    "Latin-1 text": Case({"a.txt": LINES.encode("latin1")}, {"text": LINES, "in": LINES.split("\n")[:-1]}, "latin1"),
    "Shift JIS": encoded("a.csv", table(JAPANESE), "shift_jis", JAPANESE, encoding="shift_jis"),
    "KOI8-R": encoded("a.tsv", table(RUSSIAN, "\t"), "koi8-r", RUSSIAN, encoding="koi8-r"),
    "GB 18030": encoded("a.csv", table(CHINESE), "gb18030", CHINESE, encoding="gb18030"),
    # delimiters, and lines before the table
    "semicolons": csv(table(sep=";")),
    "semicolons with commas inside": csv(
        table(changed(3, "gut, wirklich"), sep=";"), both(changed(3, "gut, wirklich"))
    ),
    "tabs in a .csv": csv(table(sep="\t")),
    "bars": csv(table(sep="|"), name="a.psv"),
    "sep=;": csv("sep=;\n" + table(sep=";")),
    "sep=; in UTF-16": encoded("a.csv", "sep=;\r\n" + table(sep=";", end="\r\n"), "utf-16"),
    '"sep=\t"': csv('"sep=\t"\n' + table(sep="\t")),
    "sep=; alone": csv("sep=;\n", dict.fromkeys(("labelled", "in"), "a.csv[:0-9]*: ")),
    "sep=; and comments alone": csv("sep=;\n# a, b\n#;\n", dict.fromkeys(("labelled", "in"), "a.csv[:0-9]*: ")),
    "comments": csv("# made by hand\n# text, label, and more\n" + table()),
    "blank lines before the header": csv("\n\n" + table()),
    "a header with blanks": csv(table(header=" text , label ")),
    "a quoted header with blanks": csv(table(header='" text "," label "')),
    "no header": csv(table(header=""), {"labelled": ROWS}),
    "a header alone": csv("text,label\n", {"labelled": "a.csv: "}),
    "two columns of one name": csv(table([(*row, "x") for row in ROWS], header="text,label,label"), {}),
    "an empty column name": csv(table([(*row, "") for row in ROWS], header="text,label,"), loose=True),
    "one column": csv("text\n" + "\n".join(TEXTS) + "\n", {"in": TEXTS}),
    # quotes
    "quoted cells": csv(quoted(ROWS)),
    "quotes in quotes": csv(quoted(changed(2, 'sagt "ja" dazu')), both(changed(2, 'sagt "ja" dazu'))),
    "commas in quotes": csv(quoted(changed(2, "gut, wirklich")), both(changed(2, "gut, wirklich"))),
    "a line break in quotes": csv(
        quoted(changed(2, "eins\nzwei")),
        {"labelled": changed(2, "eins zwei"), "in": [text for text, _ in changed(2, "eins\nzwei")]},
    ),
    "a line break after a comma in every quoted cell": csv(
        quoted([(f"{text},\nso heißt es", label) for text, label in ROWS]),
        {"labelled": [(f"{t}, so heißt es", b) for t, b in ROWS], "in": [f"{t},\nso heißt es" for t in TEXTS]},
    ),
    "CR line breaks in quotes": csv(
        quoted([(f"{text},\nso heißt es", label) for text, label in ROWS], end="\r").replace("\n", "\r"),
        {"labelled": [(f"{t}, so heißt es", b) for t, b in ROWS]},
    ),
    "a CRLF line break in quotes": csv(
        quoted(changed(2, "eins\r\nzwei"), end="\r\n"), {"labelled": changed(2, "eins zwei")}, loose=True
    ),
    "Excel's tabs with line breaks in quotes": csv(
        quoted(changed(2, "eins\nzwei"), "\t"), {"labelled": changed(2, "eins zwei")}, "a.tsv"
    ),
    "inches in a tab-separated table": csv(
        table(changed(2, 'ein 5" Rohr'), "\t"), both(changed(2, 'ein 5" Rohr')), "a.tsv"
    ),
    "a cell of 200,000 characters": csv(table(changed(4, LONG)), both(changed(4, LONG))),
    # bad rows: training skips and names them, answers need them
    "an unclosed quote": Case(
        {"a.csv": with_line(4, '"Das blaue Stück,böse', quoted(ROWS))},
        dict.fromkeys(("labelled", "in"), "a.csv:6: a quote is not closed"),
    ),
    "an unclosed quote in many rows": Case(
        {"a.csv": with_line(4, '"Das blaue Stück,böse', quoted(ROWS * 2))},
        {"labelled": without(4) + ROWS, "in": "a.csv:6: a quote is not closed"},
        notice="a.csv:6: a quote is not closed",
    ),
    "an unclosed quote at the end": Case(
        {"a.csv": with_line(11, '"Das letzte Stück,gut', quoted(ROWS))},
        dict.fromkeys(("labelled", "in"), "a.csv:13: a quote is not closed"),
    ),
    "a single quote mark": Case({"a.csv": with_line(4, '"Das blaue Stück,böse')}, both(changed(4, '"Das blaue Stück'))),
    "an unquoted comma": Case(
        {"a.csv": with_line(4, "Das, blaue Stück,böse") + table(ROWS, header="").encode()},
        {"labelled": without(4) + ROWS, "in": "a.csv:6: 3 columns instead of 2"},
        notice="a.csv:6: 3 columns instead of 2",
    ),
    "a short row": Case(
        {"a.csv": with_line(4, "Das blaue Stück") + table(ROWS, header="").encode()},
        {"labelled": without(4) + ROWS, "in": "a.csv:6: only 1 column"},
        notice="a.csv:6: only 1 column",
    ),
    "an empty label": Case(
        {"a.csv": with_line(4, "Das blaue Stück,")},
        {"labelled": without(4), "in": TEXTS[:4] + TEXTS[4:]},
        notice="a.csv:6: the label is empty",
    ),
    "an invalid byte": Case({"a.csv": table().encode() + b"caf\xe9,gut\n"}, {"in": "a.csv:14: byte 0xe9 is not UTF-8"}),
    "many ragged rows": csv(table([(*row, *["x"] * (n % 3)) for n, row in enumerate(ROWS)]), {"labelled": "a.csv:"}),
    "blank lines between rows": csv(table().replace("\n", "\n\n"), {"in": TEXTS}, loose=True),
    "empty rows at the end": csv(table() + ",\n" * 3, {"labelled": ROWS}, loose=True),
    "a delimiter at the end of each row": csv(table(end=",\n"), loose=True),
    "vectors with decimal commas": csv("x;y\n" + "1,5;2,5\n3,5;4,5\n" * 6, {}),
    # no tables
    "an empty file": Case(
        {"a.csv": b""}, dict.fromkeys(("labelled", "sets", "graph"), "empty file|no data|no rows|at least one row")
    ),
    "white space": Case({"a.csv": b" \n\n"}, {"labelled": "only white space"}),
    "zero bytes": Case({"a.csv": table().encode() + b"\0" * 50}, {"labelled": "a.csv:14: a binary file"}),
    "HTML": Case({"a.html": b"<html><body>\n<p>Login, please</p>\n</body></html>\n"}),
    "a PDF": Case({"a.csv": b"%PDF-1.7\n%\xe2\xe3\0"}, {"labelled": "a PDF"}),
    "a zip archive": Case({"a.csv": archive("a.txt")}, {"labelled": "a zip archive"}),
    # gzip
    "gzip": Case({"a.csv.gz": packed(table())}, both(ROWS)),
    "gzip of tabs": Case({"a.tsv.gz": packed(table(sep="\t"))}, both(ROWS)),
    "gzip of a text": Case({"a.txt.gz": packed(LINES)}, {"text": LINES, "in": LINES.split("\n")[:-1]}),
    "gzip of JSON lines": Case({"a.jsonl.gz": packed(json_lines())}, both(ROWS)),
    "gzip of cp1252": Case({"a.csv.gz": packed(table(), "cp1252")}, both(ROWS), "cp1252"),
    "gzip of UTF-16": Case({"a.csv.gz": packed(table(), "utf-16")}, both(ROWS)),
    "gzip cut short": Case({"a.csv.gz": packed(table())[:-9]}, dict.fromkeys(READERS, "a damaged gzip file")),
    "gzip with a changed byte": Case(
        {"a.csv.gz": packed(table())[:-6] + b"\0" * 6}, dict.fromkeys(READERS, "a damaged gzip file")
    ),
    "a .gz that is unpacked": Case({"a.csv.gz": table().encode()}, both(ROWS)),
    "a bad row in gzip": Case(
        {"a.csv.gz": gzip.compress(with_line(4, '"Das blaue Stück,böse', quoted(ROWS)))},
        dict.fromkeys(("labelled", "in"), "a.csv.gz:6: a quote"),
    ),
    # JSON
    "JSON lines": csv(json_lines(), name="a.jsonl"),
    "JSON lines with a mark": encoded("a.jsonl", json_lines(), "utf-8-sig"),
    "JSON lines with blank lines": csv(json_lines().replace("\n", "\n\n"), name="a.jsonl"),
    "JSON lines with a bad line": csv(
        json_lines() + '{"text": \n', {"labelled": "a.jsonl:13: invalid JSON", "in": "a.jsonl:13: "}, "a.jsonl"
    ),
    "a JSON list": csv(json.dumps(objects()), name="a.json"),
    "a JSON list on many lines": csv(json.dumps(objects(), indent=2), name="a.json"),
    "a JSON list in UTF-16": encoded("a.json", json.dumps(objects(), indent=1, ensure_ascii=False), "utf-16"),
    "a JSON list with numbers": csv(
        json.dumps([{"text": t, "label": len(x)} for t, x in ROWS]), both(NUMBERED), "a.json"
    ),
    "a JSON list with a comma too many": csv(
        '[{"text": "a", "label": "b"},\n]', {"labelled": "a.json:2: invalid JSON"}, "a.json"
    ),
    "a JSON list cut short": csv(
        json.dumps(objects(), indent=0)[:-40], dict.fromkeys(("labelled", "in"), "a.json:.*: invalid JSON"), "a.json"
    ),
    "a JSON object of columns": csv(
        '{"text": {"0": "a"}, "label": {"0": "b"}}', {"labelled": "a list of objects"}, "a.json"
    ),
    "nested JSON translations": csv(
        "".join(json.dumps({"translation": {"en": a, "de": b}}) + "\n" for a, b in PAIRS), {"pairs": PAIRS}, "a.jsonl"
    ),
    # Excel
    "Excel": Case({"a.xlsx": xlsx(HEAD + [[*row] for row in ROWS])}, both(ROWS)),
    "Excel with a second sheet": Case(
        {"a.xlsx": xlsx(HEAD + [[*row] for row in ROWS], [["Notizen"]])},
        both(ROWS),
        notice="reads the sheet 'Sheet1'; not read: 'Sheet2'",
    ),
    "Excel with a cover sheet": Case(
        {"a.xlsx": xlsx([["Class 7b"]], HEAD + [[*row] for row in ROWS])},
        both(ROWS),
        notice="reads the sheet 'Sheet2'; not read: 'Sheet1'",
    ),
    "an empty file named .xlsx": Case({"a.xlsx": b""}, dict.fromkeys(("labelled", "in"), "an empty file")),
    "Excel with an empty first sheet": Case({"a.xlsx": xlsx([], HEAD + [[*row] for row in ROWS])}, both(ROWS)),
    "Excel with a title": Case({"a.xlsx": xlsx([["Bericht 2024"], [], *HEAD, *([*row] for row in ROWS)])}, both(ROWS)),
    "Excel with a remark beside the table": Case(
        {"a.xlsx": xlsx([*HEAD, [*ROWS[0], None, "geprüft"], *([*row] for row in ROWS[1:])])}, both(ROWS)
    ),
    "Excel with blank rows": Case(
        {"a.xlsx": xlsx([*HEAD, *([*row] for row in ROWS[:5]), [], *([*row] for row in ROWS[5:])])},
        {"labelled": ROWS},
        notice="a.xlsx:7: an empty line",
    ),
    "Excel with a line break": Case(
        {"a.xlsx": xlsx(HEAD + [[*row] for row in changed(2, "eins\nzwei")])}, {"labelled": changed(2, "eins zwei")}
    ),
    "Excel with commas and quotes": Case(
        {"a.xlsx": xlsx(HEAD + [[*row] for row in changed(2, 'er sagt: "a, b"')])}, both(changed(2, 'er sagt: "a, b"'))
    ),
    "Excel with an empty label": Case(
        {"a.xlsx": xlsx(HEAD + [[t, None if n == 3 else x] for n, (t, x) in enumerate(ROWS)])},
        {"labelled": without(3), "in": TEXTS},
        notice="a.xlsx:5: the label is empty",
    ),
    "Excel with whole numbers": Case({"a.xlsx": xlsx(HEAD + [[t, len(x)] for t, x in ROWS])}, both(NUMBERED)),
    "Excel without a header": Case({"a.xlsx": xlsx([[*row] for row in ROWS])}, {"labelled": ROWS}),
    "Excel with a header alone": Case({"a.xlsx": xlsx(HEAD)}, {"labelled": "a.xlsx: "}),
    "Excel without data": Case(
        {"a.xlsx": xlsx([])}, dict.fromkeys(("labelled", "in"), "an Excel workbook without data")
    ),
    "damaged Excel": Case(
        {"a.xlsx": xlsx(HEAD)[:-200]}, dict.fromkeys(("labelled", "in"), "no readable Excel workbook")
    ),
    "CSV named .xlsx": Case(
        {"a.xlsx": table().encode()}, dict.fromkeys(("labelled", "in"), "it starts with the text .* rename it to a.csv")
    ),
    "an old Excel workbook": Case(
        {"a.xls": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)},
        {"labelled": "an old or encrypted Office file.*xlsx"},
    ),
    # Parquet
    "Parquet": Case({"a.parquet": parquet_bytes(text=TEXTS, label=[x for _, x in ROWS])}, both(ROWS)),
    "Parquet with types": Case(
        {
            "a.parquet": parquet_bytes(
                text=TEXTS,
                label=pa.array([1, 2] * 5 + [None, 2]),
                day=[datetime.date(2024, 1, 2)] * 12,
                image=[b"\1"] * 12,
            )
        },
        {"labelled": [(t, "12"[n % 2]) for n, t in enumerate(TEXTS) if n != 10], "in": TEXTS},
        notice="not read, because they hold no text or number: image",
    ),
    "Parquet of translations": Case(
        {"a.parquet": parquet_bytes(translation=[{"en": a, "de": b} for a, b in PAIRS])}, {"pairs": PAIRS}
    ),
    "damaged Parquet": Case(
        {"a.parquet": parquet_bytes(text=TEXTS)[:-10]},
        dict.fromkeys(("labelled", "pairs", "in"), "no readable Parquet file"),
    ),
    # folders, pairs, sets, graphs
    "a folder of texts": Case({"news": b"", **LABELLED_FOLDER}, {"labelled": FOLDER_ROWS}),
    "a folder with an empty text": Case(
        {"news": b"", **LABELLED_FOLDER, "news/b/5.txt": b" \n"},
        {"labelled": FOLDER_ROWS},
        notice="5.txt:1: the text is empty",
    ),
    "a folder of cp1252": Case(
        {"news": b"", **LABELLED_FOLDER, "news/b/5.txt": "grün".encode("cp1252")},
        {"labelled": [*FOLDER_ROWS, ("grün", "b")]},
        "cp1252",
    ),
    "a folder of cp1252, not set": Case(
        {"news": b"", **LABELLED_FOLDER, "news/b/5.txt": "grün".encode("cp1252")},
        {"labelled": "5.txt:1: byte 0xfc .*data.encoding=cp1252"},
    ),
    "pairs": csv(table(PAIRS, "\t", header=""), {"pairs": PAIRS}, "a.tsv"),
    "pairs in UTF-16": Case({"a.tsv": table(PAIRS, "\t", header="").encode("utf-16")}, {"pairs": PAIRS}),
    "pairs in cp1252": Case({"a.tsv": table(PAIRS, "\t", header="").encode("cp1252")}, {"pairs": PAIRS}, "cp1252"),
    "pairs in Excel": Case({"a.xlsx": xlsx([["source", "target"], *([*row] for row in PAIRS)])}, {"pairs": PAIRS}),
    "sets": csv(table(SETS, header="set,x,y,label"), {"sets": SET_NAMES}),
    "sets in Excel": Case(
        {"a.xlsx": xlsx([["set", "x", "y", "label"], *([s, int(x), float(y), label] for s, x, y, label in SETS)])},
        {"sets": SET_NAMES},
    ),
    "sets in UTF-16": Case({"a.csv": table(SETS, ";", header="set,x,y,label").encode("utf-16")}, {"sets": SET_NAMES}),
    "sets with a bad number": csv(table([*SETS, ["s0", "x7", "1", "A"]], header="set,x,y,label"), {"sets": SET_NAMES}),
    "edges": csv(table(EDGES, header="source,target"), {"graph": EDGES}),
    "edges after sep=;": csv("sep=;\n" + table(EDGES, ";", header="source,target"), {"graph": EDGES}),
    "edges after a comment": csv("# edges, of a graph\n" + table(EDGES, header=" source , target "), {"graph": EDGES}),
    "edges in UTF-16": Case({"a.csv": table(EDGES, header="source,target").encode("utf-16")}, {"graph": EDGES}),
    "edges in Excel": Case(
        {"a.xlsx": xlsx([["source", "target"], *([int(a), int(b)] for a, b in EDGES)])}, {"graph": EDGES}
    ),
    "edges in JSON lines": csv(
        "".join(json.dumps({"target": int(b), "source": int(a)}) + "\n" for a, b in EDGES), {"graph": EDGES}, "a.jsonl"
    ),
    "edges in Parquet": Case(
        {"a.parquet": parquet_bytes(source=[int(a) for a, _ in EDGES], target=[int(b) for _, b in EDGES])},
        {"graph": EDGES},
    ),
    "edges in gzip": Case({"a.csv.gz": packed(table(EDGES, header="source,target"))}, {"graph": EDGES}),
    "edges with an unclosed quote": csv(
        table([*EDGES, ('"0', "3"), ("1", "4")], header="source,target"), {"graph": "a.csv:8: a quote is not closed"}
    ),
    "edges in cp1252": Case(
        {"a.csv": table([("Zoë", "Jürgen"), ("Jürgen", "Al")], header="source,target").encode("cp1252")},
        {"graph": [("Zoë", "Jürgen"), ("Jürgen", "Al")]},
        "cp1252",
    ),
}


def read_labelled(path: Path, case: Case, notices: list[str]) -> Rows:
    def listen(event: str, **facts: Any) -> None:
        notices.append(str(facts.get("text")))

    source = TableSource(path=str(path), encoding=case.encoding)
    files = source._files()["train"]
    rows = [(*row.texts, *row.labels) for file in files for row in source.read(file, listen)]
    if any(".xlsx" in file.name or ".parquet" in file.name for file in files):
        source.model_copy(update={"tokenizer": "char"}).load_data(listen=listen)
    return rows


def read_pairs(path: Path, case: Case, notices: list[str]) -> Rows:
    return [
        pair for file in PairSource(path=str(path), encoding=case.encoding)._files()["train"] for pair in file.pairs()
    ]


def read_text(path: Path, case: Case, notices: list[str]) -> str:
    return "".join(read_blocks(Span(path, encoding=case.encoding)))


def read_sets(path: Path, case: Case, notices: list[str]) -> list[str]:
    return [item.name for item in SetSource(path=str(path), encoding=case.encoding).read(path, lambda *_, **__: None)]


def read_edges(path: Path, case: Case, notices: list[str]) -> Rows:
    tables = read_graph(path, {"encoding": case.encoding})
    return [(tables.node_names[a], tables.node_names[b]) for a, b in tables.edges]


def read_inputs(path: Path, case: Case, notices: list[str]) -> list[str]:
    inputs = Inputs([], in_=str(path), out_=str(path.parent / "answers.jsonl"), encoding=case.encoding)
    return [text for batch in inputs.batches(100, ("text",)) for text in batch]


def read_examples(source: type[ExampleSource[Any, Any, Any]]) -> Callable[[Path, Case, list[str]], Any]:
    """A reader of files that are seldom of its kind."""

    def read(path: Path, case: Case, notices: list[str]) -> list[object]:
        examples = source(path=str(path), encoding=case.encoding)
        return [row for file in examples._files()["train"] for row in examples.read(file, silent)]

    return read


READ: dict[str, Callable[[Path, Case, list[str]], Any]] = dict(
    zip(READERS, (read_labelled, read_pairs, read_text, read_sets, read_edges, read_inputs), strict=True)
)
READ |= {"tags": read_examples(TagSource), "spans": read_examples(SpanSource), "stories": read_examples(StorySource)}
READ |= {"vectors": lambda path, *_: read_vectors(path, silent), "corpus": lambda path, *_: read_texts(path, silent)}


def write_files(case: Case, folder: Path) -> Path:
    for name, content in case.files.items():
        path = folder / name
        if name == "news":
            path.mkdir()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
    return folder / next(iter(case.files))


@pytest.mark.parametrize("name", CASES)
def test_every_reader_returns_the_rows_or_says_in_one_line_what_to_do(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = write_files(case, tmp_path)
    for reader, read in {"detect": lambda path, case, _: detect_kind(path, case.encoding), **READ}.items():
        notices: list[str] = []
        refusal = ""
        try:
            rows = read(path, case, notices)
        except BadInput as error:
            rows, refusal = None, str(error)
        expected = case.expected.get(reader)
        if refusal:
            assert "\n" not in refusal, reader
            assert ";" in refusal or reader == "in", (reader, refusal)
            assert case.loose or expected is None or isinstance(expected, str), (reader, refusal)
            assert not isinstance(expected, str) or re.search(expected, refusal), (reader, refusal)
        elif expected is not None:
            assert rows == expected, reader
        if reader == "labelled" and case.notice:
            assert any(case.notice in notice for notice in notices), notices


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 60
