"""A zoo of small files: each is the right kind, or one clear line."""

import gzip
import io
import os
import re
import socket
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harken.data.detect.kinds import Detection, detect_kind
from harken.errors import BadInput

KINDS = ("text", "pairs", "table", "stories", "tags", "spans", "graph", "images", "trees")
FRUIT = ["apple", "pear", "plum", "fig", "lime", "date", "kiwi", "melon", "grape", "peach", "quince", "mango"]


def many(row: str, rows: int = 40) -> str:
    """Rows that differ: {n} is a number, {w} and {v} are words, {ab} is one of two labels, {r} a rating from 1 to 5."""
    lines = []
    for n in range(rows):
        w, v = FRUIT[n % 12], FRUIT[n * 7 % 11]
        lines.append(row.format(n=n, w=f"{w}{'s' * (n // 12)}", v=f"{v} {w}", ab=("pos", "neg")[n % 2], r=n % 5 + 1))
    return "\n".join(lines) + "\n"


PROSE = (
    "It was late, and the rain, which had begun at noon, fell on.\n\nNobody spoke; nobody, at any rate, to me.\n" * 9
)
PLAY = "ROMEO:\nIs the day so young?\n\nBENVOLIO:\nBut new struck nine.\n\nROMEO:\nAy me! sad hours seem long.\n" * 9
POEM = "Tiger, tiger,\nburning bright,\nin the forests,\nof the night,\n\nwhat hand, or eye,\ncould frame thee,\n" * 9
CODE = "def add(a, b):\n\treturn a + b\n\n\nfor x, y in pairs:\n\tprint(add(x, y), end=', ')\n" * 9
BABI = "1 Mary moved to the hall.\n2 John left.\n3 Where is Mary? \thall\t1\n4 Where is John?\tout\t2\n" * 5
PTB = " no it was n't black monday \n but while the <unk> did n't fall apart friday , it fell N points \n" * 9
NER = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\nGerman JJ I-NP I-MISC\n\nPeter NNP I-NP I-PER\n" * 5
UPOS = "the\tDET\ndog\tNOUN\nran\tVERB\n.\tPUNCT\n\na\tDET\ncat\tNOUN\nsat\tVERB\n.\tPUNCT\n\n" * 5
CONLLU = "# text = dogs ran\n1\tdogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tran\trun\tVERB\t_\t_\t0\troot\t_\t_\n\n" * 5
TREES = "( (S (NP-SBJ (DT the) (NN dog) )\n    (VP (VBD ran) )\n    (. .) ))\n" * 5
SQUAD = '{"data": [{"title": "t", "paragraphs": [{"context": "A b.", "qas": [{"question": "A?", "answers": []}]}]}]}'
TATOEBA = many("Go to {v} {n}.\tVa au {w} {n} !\tCC-BY 2.0 (France) Attribution: tatoeba.org #{n} (CM) & #{n} (Wit)")
LOG = many("2024-01-02 10:00:{n:02d},123 INFO the {v} was eaten")
AGAIN = "he drives the car\ter fährt das Auto\nI see a big dog\tich sehe einen Hund\n" * 30
REVIEW = many('"He said ""{w}"", twice\nand left {n}",{ab}')

ZOO: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "prose with commas is text": ("a.txt", PROSE, "text", {}),
    "a play is text": ("a.txt", PLAY, "text", {}),
    "a poem with a comma on every line is text": ("a.txt", POEM, "text", {}),
    "a poem without blank lines is text": ("a.txt", "O rose,\nO thorn,\nO day,\nO morn,\n" * 9, "text", {}),
    "an indented poem is text": ("a.txt", "\tO rose\n\tO thorn\n" * 9, "text", {}),
    "source code is text": ("a.py", CODE, "text", {}),
    "C code with a semicolon on every line is text": ("a.c", many("int x{n} = {n};"), "text", {}),
    "Lisp is text": ("a.lisp", "(defun f (x) (car x))\n(print (f '(1 2)))\n" * 9, "text", {}),
    "Markdown is text": ("a.md", "# Title\n\n- one, two\n- three\n\n| a | b |\n|---|---|\n| 1 | 2 |\n" * 5, "text", {}),
    "a Markdown table is text": ("a.md", "| text | label |\n|---|---|\n" + many("| {v} | {ab} |"), "text", {}),
    "a log with a comma in each time is text": ("a.txt", LOG, "text", {}),
    "a log with bars is text": ("a.log", many("2024-01-02 10:00:{n:02d} | INFO | ate {v}"), "text", {}),
    "a numbered list is text": ("a.txt", many("{n} buy {v}, if any"), "text", {}),
    "a list of names is text": ("a.txt", many("{w}, {v}"), "text", {}),
    "two lines with a comma each are text": ("a.txt", "Hello, world\nYes, sir\n", "text", {}),
    "Penn Treebank words are text": ("ptb.train.txt", PTB, "text", {}),
    "a one-column CSV is text": ("a.csv", "text\n" + many("the {v} of {w}"), "text", {}),
    "one word is text": ("a.txt", "word", "text", {}),
    "words with the letters of magic are text": ("a.txt", "BMW and GGUF are names\n", "text", {}),
    "a CSV of numbers and one text is text": (
        *("a.csv", "id,text\n" + many("{n},the {v} {n}"), "text", {"data.text": "text"}),
    ),
    "JSON lines with text alone are text": (
        *("a.jsonl", many('{{"text": "the {v} {n}"}}'), "text", {"data.text": "text"}),
    ),
    "text that opens with a brace is text": ("a.txt", "{stage left} A room.\nHe sits.\n", "text", {}),
    "bAbI lines are stories": ("qa1.txt", BABI, "stories", {}),
    "a semicolon table with decimal commas is a table": (
        *("a.csv", "x;y;label\n" + many("{n},5;1,{n};{ab}"), "table", {"data.label": "label"}),
    ),
    "a bar table is a table": ("a.txt", "text|label\n" + many("the {v} {n}|{ab}"), "table", {"data.label": "label"}),
    "a label in the first column is found": (
        *("sms.tsv", many("{ab}\tthe {v}, {n}"), "table", {"data.label": 1, "data.text": 2}),
    ),
    "a label in the last column is found": (
        *("a.csv", many('"the {v}, {n}",{ab}'), "table", {"data.label": 2, "data.text": 1}),
    ),
    "ratings are labels": (
        *("a.csv", "review,stars\n" + many("the {v} {n},{r}"), "table", {"data.label": "stars", "data.text": "review"}),
    ),
    "unique numbers are no labels": (
        *("a.tsv", "id\ttext\tclass\n" + many("{n}\tthe {v} {n}\t{ab}"), "table", {"data.label": "class"}),
    ),
    "sentence pairs with a label are a table": (
        *("RTE.tsv", "index\tsentence1\tsentence2\tlabel\n" + many("{n}\tthe {v} is {n}\ta {w} is {n}\t{ab}"), "table"),
        {"data.label": "label", "data.text": ["sentence1", "sentence2"]},
    ),
    "a judged sentence without a header is a table": (
        *("CoLA.tsv", many("gj04\t{ab}\t\tThe {v} ate {n}."), "table", {"data.label": 2, "data.text": 4}),
    ),
    "lone quotes in a TSV are only characters": (
        *("a.tsv", "label\ttext\n" + many('{ab}\t" the {v} said {n}'), "table", {"data.label": "label"}),
    ),
    "Excel quotes and newlines in cells are read": (
        *("a.csv", "text,label\n" + REVIEW, "table", {"data.label": "label", "data.text": "text"}),
    ),
    "a header taken twice is told by number": (
        *("a.csv", "text,text,label\n" + many("the {v} {n},a {w} {n} too,{ab}"), "table", {"data.text": [1, 2]}),
    ),
    "CRLF changes nothing": ("a.csv", ("text,label\n" + many("a {v} {n},{ab}")).replace("\n", "\r\n"), "table", {}),
    "old Mac newlines change nothing": (
        *("a.csv", ("text,label\n" + many("a {v} {n},{ab}")).replace("\n", "\r"), "table", {"data.label": "label"}),
    ),
    "JSON lines with a label are a table": (
        *("a.jsonl", many('{{"text": "the {v} {n}", "label": {r}, "x": 1e999}}'), "table", {"data.label": "label"}),
    ),
    "JSON lines called .json are a table": (
        *("a.json", many('{{"text": "a {v} {n}", "ok": true, "y": "{ab}"}}'), "table", {"data.label": "y"}),
    ),
    "numbers with a label are a table": ("iris", many("{n}.5,{r}.{n},{n},{ab}"), "table", {"data.label": 4}),
    "pairs without a header are pairs": (
        *("a.tsv", many("the {v} {n}\tle {w} {n}"), "pairs", {"data.source": 1, "data.target": 2}),
    ),
    "words with a bar between them are pairs": ("a.txt", "apple|Apfel\npear|Birne\nplum|Zwetsche\n", "pairs", {}),
    "sums with few answers are a table": ("a.tsv", many("{n} + {n}\t{r}"), "table", {"data.label": 2, "data.text": 1}),
    "two pairs are enough": ("a.tsv", "Go.\tVa !\nRun!\tCours !\n", "pairs", {"data.source": 1, "data.target": 2}),
    "pairs with a header are pairs": (
        *("a.tsv", "english\tfrench\n" + many("the {v} {n}\tle {w} {n}"), "pairs"),
        {"data.source": "english", "data.target": "french"},
    ),
    "target before source is turned": (
        *("a.csv", "tgt,src\n" + many("the {v} {n},le {w} {n}"), "pairs", {"data.source": "src", "data.target": "tgt"}),
    ),
    "an attribution column is left out of pairs": ("fra.txt", TATOEBA, "pairs", {"data.source": 1, "data.target": 2}),
    "sums and their answers are pairs": (
        *("a.tsv", many("{n}+{r}\t{n}9"), "pairs", {"data.source": 1, "data.target": 2}),
    ),
    "sentence pairs seen again and again are pairs": ("a.tsv", AGAIN, "pairs", {"data.source": 1, "data.target": 2}),
    "JSON lines with two texts are pairs": (
        *("a.ndjson", many('{{"question": "who {v} {n}?", "answer": "the {w} {n}"}}'), "pairs"),
        {"data.source": "question", "data.target": "answer"},
    ),
    "Chinese text has words too": (
        *("a.csv", "text,label\n" + many("他喝茶{w}很多{n}次,{ab}"), "table", {"data.text": "text"}),
    ),
    "two short words are no header": ("a.tsv", "No\tNon\nIt\tIl\n", "pairs", {"data.source": 1, "data.target": 2}),
    "CoNLL 2003 is tags": ("eng.train", NER, "tags", {"data.text": 1, "data.label": 4}),
    "tokens with parts of speech are tags": ("a.txt", UPOS, "tags", {"data.text": 1, "data.label": 2}),
    "CoNLL-U is tags": ("a.conllu", CONLLU, "tags", {"data.text": 2, "data.label": 4}),
    "lower-case tags in a .conll file are tags": ("a.conll", "the at\ndog nn\n\na at\ncat nn\n\n" * 5, "tags", {}),
    "SQuAD JSON is spans": ("dev.json", SQUAD, "spans", {}),
    "SQuAD JSON under another name is spans": ("dev", SQUAD.replace(", ", ",\n"), "spans", {}),
    "bracketed trees are trees": ("wsj.mrg", TREES, "trees", {}),
    "trees with a blank line first are trees": ("wsj.txt", "\n" + TREES, "trees", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ZOO)
def test_each_file_of_the_zoo_is_its_kind(name: str, tmp_path: Path) -> None:
    file, content, kind, settings = ZOO[name]
    path = tmp_path / file
    path.write_bytes(content.encode())
    guess = detect_kind(path)
    assert guess.kind == kind, guess
    assert settings.items() <= guess.settings.items(), guess
    whole_sentence(guess)


def whole_sentence(guess: Detection) -> None:
    assert guess.kind in KINDS
    assert guess.reason
    assert "\n" not in guess.reason
    assert all(setting.startswith("data.") for setting in guess.settings)
    assert all(kind in KINDS and why for kind, why in guess.alternatives)
    assert guess.kind not in {kind for kind, _ in guess.alternatives}


def npz(*names: str, extra: str = "") -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in names:
            archive.writestr(f"{name}.npy", b"\x93NUMPY")
        if extra:
            archive.writestr(extra, b"x")
    return data.getvalue()


def idx(*shape: int) -> bytes:
    size = 1
    for length in shape:
        size *= length
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + bytes(size)


@pytest.mark.parametrize(
    ("file", "data", "kind"),
    [
        ("g.npz", npz("edges", "label"), "graph"),
        ("d.npz", npz("x", "y"), "images"),
        ("t10k-images-idx3-ubyte", idx(3, 4, 4), "images"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(idx(3), mtime=0), "images"),
        ("train.gz", gzip.compress(idx(9, 28, 28), mtime=0), "images"),
    ],
)
def test_arrays_are_known_by_their_names_and_first_bytes(file: str, data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(data)
    assert detect_kind(tmp_path / file).kind == kind


LATIN = "Line one\nLine two\nA small town café\n".encode("latin1")
BAD: dict[str, tuple[str, bytes, str]] = {
    "Latin-1": ("notes.txt", LATIN, r"notes.txt:3: byte 0xe9 at column 17 is not UTF-8 \(it looks like Latin-1\); "),
    "the Windows encoding": ("n.txt", b"a \x93quote\x94\n", "n.txt:1: byte 0x93 at column 3 .*Windows-1252.* cp1252"),
    "a bad byte behind wide letters": ("n.txt", "日本\n日本".encode() + b"\xff\n", r"n.txt:2: byte 0xff at column 3 "),
    "a cut character at the end": ("n.txt", "caf\u00e9".encode()[:-1], r"n.txt:1: byte 0xc3 at column 4 "),
    "UTF-16 with a mark": ("n.txt", "hello there".encode("utf-16"), r"n.txt: UTF-16 text; .*iconv -f utf-16 "),
    "UTF-16 without a mark": ("n.txt", "hello there".encode("utf-16-le"), "UTF-16LE text.*iconv -f utf-16le "),
    "UTF-32": ("n.txt", "hello there".encode("utf-32"), "UTF-32 text.*iconv -f utf-32 "),
    "UTF-32 without a mark": ("n.txt", "hello there".encode("utf-32-be"), "UTF-32BE text"),
    "a NUL byte": ("n.txt", b"one\ntwo \0 three\n", "n.txt:2: a binary file"),
    "control bytes": ("n.txt", bytes(range(1, 32)) * 9, "a binary file"),
    "one picture": ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "one picture; .* give a folder of pictures"),
    "gzip": ("a.txt.gz", gzip.compress(b"text"), "a gzip file.*gunzip"),
    "a truncated gzip": ("a.gz", gzip.compress(idx(3))[:11], "a gzip file"),
    "a PDF": ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\n", "a PDF.*pdftotext"),
    "SQLite": ("a.db", b"SQLite format 3\0\x10\0", "SQLite"),
    "Parquet": ("a.parquet", b"PAR1\x15\0\x15", "Parquet"),
    "a program": ("a.out", b"\x7fELF\2\1\1\0", "ELF"),
    "an Excel workbook": ("a.xlsx", npz(extra="xl/workbook.xml"), "an Excel workbook"),
    "a Word document": ("a.docx", npz(extra="word/document.xml"), "a Word document"),
    "a zip archive": ("a.zip", npz(extra="a.txt"), "a zip archive"),
    "an empty zip archive": ("a.zip", npz(), "a packed archive"),
    "an npz of other arrays": ("a.npz", npz("a", "b"), "an .npz file with a, b; edges, or x and y"),
    "an npz cut short": ("a.npz", npz("x", "y")[:-30], "zip archive"),
    "an npz that is text": ("a.npz", b"hello", "zip archive"),
    "a pickle": ("a.pkl", b"\x80\4\x95", "pickle can run code"),
    "a pickle in letters": ("a.pkl", b"cos\nsystem\n(S'true'\ntR.", "pickle can run code"),
    "a pickle under another name": ("a.bin", b"\x80\2}q\0.", "pickle can run code"),
    "torch weights": ("a.bin", npz(extra="archive/data.pkl"), "pickle can run code"),
    "safetensors": ("a.safetensors", struct.pack("<Q", 4) + b'{"a"' + bytes(9), "safetensors"),
    "a NumPy array": ("a.npy", b"\x93NUMPY\1\0", "NumPy array; harken reads UTF-8 text"),
    "an idx file cut short": ("a-ubyte", idx(3, 4, 4)[:-1], r"63 bytes long; 64 bytes are needed"),
    "an empty file": ("a.txt", b"", "an empty file"),
    "white space alone": ("a.txt", b" \n\t\n\r\n", "nothing but white space"),
    "a byte order mark alone": ("a.txt", b"\xef\xbb\xbf", "nothing but white space"),
    "JSON that is deep": ("a.json", b"[" * 100_000, "a.json: JSON nested too deeply"),
    "a JSON line that is deep": ("a.jsonl", b'{"a": 1}\n' + b"[" * 100_000, "a.jsonl:2: JSON nested too deeply"),
    "JSON cut short": ("a.json", SQUAD[:60].encode(), r"a.json: not JSON \(.*line 1 column"),
    "SQuAD cut short": ("a.json", SQUAD[:-3].encode(), "a.json: not JSON"),
    "a JSON list": ("a.json", b'[{"a": 1e999}, {"a": NaN}]', "a JSON list that is not SQuAD; SQuAD .* one object per"),
    "another JSON object": ("a.json", b'{"data": 3}', "a JSON object that is not SQuAD"),
    "an object like SQuAD": ("a.json", b'{"data": 1, "paragraphs": 2, "context": 3, "qas": 4}', "not SQuAD"),
    "a JSON number": ("a.json", b"7" * 9999, "a single JSON value that is not SQuAD"),
    "JSON lines of strings": ("a.jsonl", b'"one"\n"two"\n', "a.jsonl:1: not a JSON object"),
    "a bad JSON line": ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "a.jsonl:3: not JSON"),
    "JSON lines without text": ("a.jsonl", b'{"a": [1], "b": {}}\n' * 9, "objects with a, b; text under one key"),
    "a JSON object of very many keys": (
        *("a.jsonl", b"{" + b",".join(b'"k%d":1' % k for k in range(9999)) + b"}\n", "a.jsonl:1: not a JSON object"),
    ),
}  # fmt: skip


def test_no_reader_that_is_not_there_is_promised_to_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file, data, _ in BAD.values():
        if b"\0" in data and not file.endswith((".npz", "ubyte")):
            (tmp_path / file).write_bytes(data)
            with pytest.raises(BadInput) as caught:
                detect_kind(tmp_path / file)
            assert not re.search(r"CSV|JSON|idx|npz|harken import", str(caught.value)), caught.value


def test_a_line_longer_than_what_is_read_is_not_measured_by_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 300_000)
    assert (
        detect_kind(tmp_path / "a.txt").reason == "plain UTF-8 text, a line of more than 1048576 characters, no columns"
    )


def one_line(path: Path, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        detect_kind(path)
    message = str(caught.value)
    assert re.search(says, message), message
    assert "\n" not in message
    assert path.name in message
    assert message.count("; ") >= 2, message


@pytest.mark.parametrize("name", BAD)
def test_each_unreadable_file_is_named_in_one_clear_line(name: str, tmp_path: Path) -> None:
    file, data, says = BAD[name]
    (tmp_path / file).write_bytes(data)
    one_line(tmp_path / file, says)


def test_a_missing_file_brings_its_neighbour_to_mind(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("a")
    one_line(tmp_path / "review.csv", r"no such file or folder; .* Did you mean .*reviews.csv\?")
    one_line(tmp_path / "nowhere" / "a.txt", "no such file")
    one_line(tmp_path / "reviews.csv" / "a.txt", "no such file")


def test_a_path_that_leads_nowhere_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    one_line(tmp_path / "loop", "symbolic links")
    one_line(tmp_path / "dangling", "a link to .*gone, which does not exist")
    one_line(tmp_path / ("long" * 999), "too long")
    for path in ("", "a\0b"):
        with pytest.raises(BadInput, match=r"path|null"):
            detect_kind(path)


def test_a_pipe_a_socket_and_a_device_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    one_line(tmp_path / "pipe", "a pipe; a file or a folder is accepted")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "plug"))
        one_line(tmp_path / "plug", "a socket or a device")
    one_line(Path("/dev/zero"), "a socket or a device")


def test_a_name_with_a_newline_still_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines.txt"
    path.write_bytes(b"")
    with pytest.raises(BadInput, match=r"two\\nlines.txt: an empty file") as caught:
        detect_kind(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_not_in_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,text\n" + many("{ab},the {v} {n}"), encoding="utf-8-sig")
    guess = detect_kind(tmp_path / "a.csv")
    assert (guess.kind, guess.settings["data.label"]) == ("table", "label")


def test_a_few_ragged_rows_are_told_and_more_make_it_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + many("a {v} {n},{ab}", 99) + "one,two,three\n")
    guess = detect_kind(path)
    assert guess.kind == "table"
    assert "1.0% of the rows have another number of cells" in guess.reason
    path.write_text("text,label\n" + many("a {v} {n},{ab}", 99) + "one,two,three\n" * 9)
    guess = detect_kind(path)
    assert guess.kind == "text"
    assert guess.alternatives[0][0] == "table"


def test_a_label_has_at_most_100_values_each_seen_5_times(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    cases = [(100, 5, "table"), (101, 5, "pairs"), (100, 4, "pairs"), (2, 4, "pairs"), (2, 5, "table")]
    for values, times, kind in cases:
        labels = [f"label-{'abcdefghij'[k % 10]}{'x' * (k // 10)}" for k in range(values)]
        path.write_text("".join(f"the text {label} {turn}\t{label}\n" for label in labels for turn in range(times)))
        assert detect_kind(path).kind == kind, (values, times)


def test_the_reason_counts_the_values_of_the_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + many("a {v} {n},{ab}"))
    assert "column 'label' has 2 values, each seen 20 times on average" in detect_kind(tmp_path / "a.csv").reason


def test_pairs_say_what_keeps_them_from_being_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + many("a {v} {n},{ab}", 8))
    kind, why = detect_kind(tmp_path / "a.csv").alternatives[0]
    assert kind == "table"
    assert "column 'label' has 2 values, each seen 4.0 times on average" in why


def test_sentences_that_repeat_are_told_to_have_too_many_words_for_a_label(tmp_path: Path) -> None:
    rows = [f"the cat number {n % 30} sat down\tun chat {n} dort" for n in range(600)]
    (tmp_path / "dup.tsv").write_text("\n".join(rows))
    guess = detect_kind(tmp_path / "dup.tsv")
    assert (guess.kind, guess.alternatives[0][0]) == ("pairs", "table")
    seen = "column 1 has 30 values, each seen 20.0 times on average"
    assert guess.alternatives[0][1] == f"{seen}, but a label has 3 words at most, and these 6.0"


def test_a_column_that_could_be_a_label_beside_two_named_sides_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("en,de,note\n" + many("a {v} {n},ein {v} {n},{ab}"))
    kind, why = detect_kind(tmp_path / "a.csv").alternatives[0]
    assert kind == "table"
    assert why == "column 'note' could be a label, but column 'en' and column 'de' are named as two sides"


def test_a_table_of_one_line_is_refused_and_not_taken_for_text(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a cat sat\tun chat dort\n")
    with pytest.raises(BadInput) as error:
        detect_kind(tmp_path / "one.tsv")
    assert str(error.value) == (
        f"{tmp_path}/one.tsv: a table of one line, of 2 cells; two lines or more are needed; "
        "add lines, or take it for text: data.kind=text"
    )
    (tmp_path / "one.txt").write_text("a cat sat\tun chat dort\n")
    assert detect_kind(tmp_path / "one.txt").kind == "text"
    assert (
        detect_kind(tmp_path / "one.txt")
        .alternatives[0][1]
        .endswith(", but a table has 95 % of them, and two lines or more")
    )


def test_a_label_sorted_over_a_large_file_is_found(tmp_path: Path) -> None:
    rows = [f"{('pos', 'neg')[n // 2000]}\t{FRUIT[n % 12]} {n} " + "and so on " * 100 for n in range(4000)]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    guess = detect_kind(tmp_path / "a.tsv")
    assert (guess.kind, guess.settings["data.label"]) == ("table", 1)


def test_a_bad_byte_far_into_the_file_is_found_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a line of text\n" * 200_000 + b"caf\xe9 noir\n")
    one_line(tmp_path / "a.txt", "a.txt:200001: byte 0xe9 at column 4 ")


def test_wide_letters_at_every_bound_are_not_bad_bytes(tmp_path: Path) -> None:
    for shift in range(4):
        (tmp_path / "a.txt").write_bytes(b"x" * shift + "日本語\U0001f600\n".encode() * 200_000)
        assert detect_kind(tmp_path / "a.txt").kind == "text"


def make_line(path: Path) -> None:
    with path.open("wb") as file:
        for _ in range(100):
            file.write(b"word, and " * 100_000)


def make_wide(path: Path) -> None:
    path.write_bytes((b",".join(b"%d" % n for n in range(10)) + b",1" * 100_000 + b"\n") * 10)


def make_holes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 33)


BIG: dict[str, tuple[Callable[[Path], object], str]] = {
    "one line of 100 MB": (make_line, "text"),
    "100,000 columns": (make_wide, "a table of 100010 columns; up to 1000 are accepted"),
    "8 GB of nothing": (make_holes, "a binary file"),
    "newlines alone": (lambda path: path.write_bytes(b"\n" * (1 << 22)), "nothing but white space"),
    "commas alone": (lambda path: path.write_bytes(b"," * (1 << 22)), "text"),
    "quotes alone": (lambda path: path.write_bytes(b'"' * (1 << 22)), "text"),
    "brackets alone": (lambda path: path.write_bytes(b"(" * (1 << 22)), "text"),
    "digits in one cell": (lambda path: path.write_bytes((b"1" * 300_000 + b" \t1 2 3 .\n") * 3), "pairs"),
    "tiny cells": (lambda path: path.write_bytes(b"a\tb\tc\td\n" * (1 << 19)), "pairs"),
    "two letters per line": (lambda path: path.write_bytes(b"ab\n" * (1 << 20)), "text"),
    "a lone quote before many rows": (lambda path: path.write_text('"a,b\n' + many("c {v} {n},{ab}", 60_000)), "table"),
    "small objects": (lambda path: path.with_suffix(".jsonl").write_bytes(b"{}\n" * (1 << 19)), "objects with"),
    "an object too long for one look": (
        lambda path: path.with_suffix(".jsonl").write_bytes(b'{"text": "' + b"a" * (1 << 22) + b'"}\n'),
        "a.jsonl:1: not JSON",
    ),
    "a list of lists": (
        lambda path: path.with_suffix(".json").write_bytes(b"[" + b"[]," * 300_000 + b"1]"),
        "JSON list",
    ),
}


@pytest.mark.parametrize("name", BIG)
def test_a_huge_file_is_answered_at_once_and_in_little_memory(name: str, tmp_path: Path) -> None:
    make, says = BIG[name]
    make(tmp_path / "a.txt")
    (path,) = tmp_path.iterdir()
    tracemalloc.start()
    try:
        began = time.perf_counter()
        try:
            answer = detect_kind(path).kind
        except BadInput as error:
            answer = str(error)
        seconds, (_, peak) = time.perf_counter() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert says in answer
    assert "\n" not in answer
    assert seconds < 10  # a guard against reading it all, generous because tracing slows and the machine may be busy
    assert peak < 64 << 20


def fill(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_a_folder_of_text_files_is_text(tmp_path: Path) -> None:
    assert detect_kind(fill(tmp_path, one_txt=PROSE, two_txt=PLAY)).kind == "text"


def test_splits_in_a_folder_are_settings_and_train_is_judged(tmp_path: Path) -> None:
    rows = many("{ab}\tthe {v} {n}")
    guess = detect_kind(fill(tmp_path, dev_tsv=rows, train_tsv=rows, test_tsv=rows, README_md=PROSE))
    assert guess.kind == "table"
    assert guess.reason.startswith("judged by train.tsv: ")
    names = {f"data.{split}": str(tmp_path / f"{file}.tsv") for split, file in
             [("train", "train"), ("valid", "dev"), ("test", "test")]}  # fmt: skip
    assert names.items() <= guess.settings.items()


def test_a_mixed_folder_is_text_if_all_of_it_is_and_else_names_the_file(tmp_path: Path) -> None:
    assert detect_kind(fill(tmp_path, notes_txt=PROSE, a_md=PLAY, b_csv="a,b\n")).kind == "text"
    with pytest.raises(BadInput, match=r"c\.bin:1: a binary file"):
        detect_kind(fill(tmp_path, c_bin=b"\0\1\2"))


def test_a_folder_of_pictures_is_images_also_with_a_list_beside(tmp_path: Path) -> None:
    pictures: dict[str, str | bytes] = {
        "cat__1_png": b"\x89PNG\r\n\x1a\n", "cat__2_jpg": b"\xff\xd8\xff\xe0",
        "dog__3_gif": b"GIF89a..", "dog__4_bmp": b"BM\x46\0\0\0\0\0\0\0\x36", "labels_csv": "a,b\n",
    }  # fmt: skip
    guess = detect_kind(fill(tmp_path, **pictures))
    assert guess.kind == "images"
    assert "cat, dog" in guess.reason


def test_a_picture_by_name_alone_is_not_a_picture(tmp_path: Path) -> None:
    assert detect_kind(fill(tmp_path, a_png="words", b_png="more words")).kind == "text"


def test_two_aligned_files_in_a_folder_are_pairs(tmp_path: Path) -> None:
    guess = detect_kind(fill(tmp_path, train_de="Hallo.\n", train_en="Hello.\n", val_de="Ja.\n", val_en="Yes.\n"))
    assert guess.kind == "pairs"
    assert guess.settings == {"data.source": str(tmp_path / "train.en"), "data.target": str(tmp_path / "train.de")}


def test_idx_files_and_stories_in_a_folder_are_known(tmp_path: Path) -> None:
    digits = fill(tmp_path / "digits", **{"train-images-idx3-ubyte": idx(2, 4, 4), "train-labels-idx1-ubyte": idx(2)})
    assert detect_kind(digits).kind == "images"
    assert detect_kind(fill(tmp_path / "babi", qa1_test_txt=BABI, qa1_train_txt=BABI)).kind == "stories"


def test_a_folder_without_data_is_one_clear_line(tmp_path: Path) -> None:
    one_line(tmp_path, "a folder without data files")
    one_line(fill(tmp_path, _hidden="x", empty_txt=""), "a folder without data files")
    one_line(fill(tmp_path, a__x_csv="a,b\n", b__y_csv="a,b\n"), "a folder of folders; .*give one of a, b")


def test_a_folder_skips_pipes_and_links_that_loop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b").symlink_to(tmp_path)
    (tmp_path / "c.txt").symlink_to(tmp_path / "c.txt")
    assert detect_kind(fill(tmp_path, d_txt=PROSE)).kind == "text"


def test_sniffing_changes_no_setting_of_the_csv_module(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text('text,label\n"' + "long " * 50_000 + '",a\n' + many('"{v} {n}",{ab}'))
    assert detect_kind(tmp_path / "a.csv").kind == "table"
    assert csv.field_size_limit() == before


def test_a_table_of_paths_to_pictures_with_labels_is_images(tmp_path):
    rows = "".join(f"{n},shots/{n}.{('jpg', 'PNG')[n % 2]},{('ant', 'bee')[n % 2]}\n" for n in range(40))
    (tmp_path / "shots.csv").write_text("id,file,kind\n" + rows)
    guess = detect_kind(tmp_path / "shots.csv")
    assert guess.kind == "images"
    assert guess.settings == {"data.image": "file", "data.label": "kind"}
    (tmp_path / "shots.csv").write_text(("id,file,kind\n" + rows).replace("0.jpg", "0.txt"))
    assert detect_kind(tmp_path / "shots.csv").kind == "table"


@pytest.mark.parametrize("head", ["source,target", "from,to,weight", "u,v"])
def test_a_table_of_numbered_ends_is_a_graph(head, tmp_path):
    file = tmp_path / "edges.csv"
    width = head.count(",") + 1
    file.write_text("\n".join([head, *(",".join(str((n * k) % 7) for k in range(1, width + 1)) for n in range(30))]))
    assert detect_kind(file).kind == "graph"


@pytest.mark.parametrize("head", ["a,b,label", "x,y", "a,b", "start,end"])
def test_numbers_under_other_names_are_no_edges(head, tmp_path):
    file = tmp_path / "numbers.csv"
    width = head.count(",") + 1
    file.write_text("\n".join([head, *(",".join(str((n * k) % 7) for k in range(1, width + 1)) for n in range(30))]))
    assert detect_kind(file).kind != "graph"


def test_named_sides_of_words_and_of_other_numbers_are_still_pairs(tmp_path):
    (tmp_path / "p.csv").write_text("source,target\n" + "one,eins\ntwo,zwei\n" * 20)
    assert detect_kind(tmp_path / "p.csv").kind == "pairs"
    turned = "".join(f"{n},{str(n)[::-1]}\n" for n in range(12340, 12390))
    (tmp_path / "n.csv").write_text("source,target\n" + turned)
    assert detect_kind(tmp_path / "n.csv").kind == "pairs"
