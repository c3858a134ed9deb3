"""Small files of many formats: each has the right kind, or one error line."""

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

from harken.data.detect import preview
from harken.data.detect.kinds import Detection, detect_kind
from harken.errors import BadInput

KINDS = ("text", "pairs", "table", "stories", "tags", "spans", "graph", "images", "trees", "numbers")
FRUIT = ["apple", "pear", "plum", "fig", "lime", "date", "kiwi", "melon", "grape", "peach", "quince", "mango"]


def table(row: str, rows: int = 40) -> str:
    """Distinct rows: {n} is a number, {w} and {v} are words, {ab} is one of two labels, {r} a rating from 1 to 5."""
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
TATOEBA = table("Go to {v} {n}.\tVa au {w} {n} !\tCC-BY 2.0 (France) Attribution: tatoeba.org #{n} (CM) & #{n} (Wit)")
LOG = table("2024-01-02 10:00:{n:02d},123 INFO the {v} was eaten")
REPEATED = "he drives the car\ter fährt das Auto\nI see a big dog\tich sehe einen Hund\n" * 30
REVIEW = table('"He said ""{w}"", twice\nand left {n}",{ab}')

ZOO: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "prose with commas is text": ("a.txt", PROSE, "text", {}),
    "a play is text": ("a.txt", PLAY, "text", {}),
    "a poem with a comma on every line is text": ("a.txt", POEM, "text", {}),
    "a poem without blank lines is text": ("a.txt", "O rose,\nO thorn,\nO day,\nO morn,\n" * 9, "text", {}),
    "an indented poem is text": ("a.txt", "\tO rose\n\tO thorn\n" * 9, "text", {}),
    "source code is text": ("a.py", CODE, "text", {}),
    "C code with a semicolon on every line is text": ("a.c", table("int x{n} = {n};"), "text", {}),
    "Lisp is text": ("a.lisp", "(defun f (x) (car x))\n(print (f '(1 2)))\n" * 9, "text", {}),
    "Markdown is text": ("a.md", "# Title\n\n- one, two\n- three\n\n| a | b |\n|---|---|\n| 1 | 2 |\n" * 5, "text", {}),
    "a Markdown table is text": ("a.md", "| text | label |\n|---|---|\n" + table("| {v} | {ab} |"), "text", {}),
    "a log with a comma in each time is text": ("a.txt", LOG, "text", {}),
    "a log with bars is text": ("a.log", table("2024-01-02 10:00:{n:02d} | INFO | ate {v}"), "text", {}),
    "a numbered list is text": ("a.txt", table("{n} buy {v}, if any"), "text", {}),
    "a list of names is text": ("a.txt", table("{w}, {v}"), "text", {}),
    "two lines with a comma each are text": ("a.txt", "Hello, world\nYes, sir\n", "text", {}),
    "Penn Treebank words are text": ("ptb.train.txt", PTB, "text", {}),
    "a regression target is recognized by its name": (
        *("a.csv", "id,text,price\n" + table("{n},the {v} {n},{n}.5"), "table"),
        {"data.text": "text", "data.label": "price", "data.target_type": "number"},
    ),
    "a regression target with missing values is recognized": (
        *("a.csv", "text,score\n" + table("the {v} {n},{n}.5") + "a,NA\nb,n/a\nc,\n" * 3, "table"),
        {"data.text": "text", "data.label": "score", "data.target_type": "number"},
    ),
    "numbers with gaps under a header of unknown names are recognized": (
        *("a.csv", "kommentar;preis\n" + table("the {v} {n};{n},5") + "a;NA\nb;\n", "table"),
        {"data.text": "kommentar", "data.label": "preis"},
    ),
    "empty columns without a name do not hide the header": (
        *("a.csv", "text,label,,\n" + table("the {v} {n},{ab},,") + ",,,\n", "table"),
        {"data.text": "text", "data.label": "label"},
    ),
    "rare class numbers are no regression target": (
        *("a.csv", "text,other,class\n" + table("the {v} {n},a {w} {n},{n}"), "pairs", {"data.source": "text"}),
    ),
    "a label comes before a regression target": (
        *("a.csv", "text,price,category\n" + table("the {v} {n},{n}.5,{ab}"), "table", {"data.label": "category"}),
    ),
    "edges between names are a graph": ("a.csv", "source,target\n" + "Ann,Bob\nBob,Cid\nCid,Ann\n" * 9, "graph", {}),
    "texts and themselves are pairs": ("a.csv", "source,target\n" + "dog,dog\ncat,cat\n" * 9, "pairs", {}),
    "words and their spelling are pairs": (
        *("a.csv", "source,target\n" + "colour,color\nhonour,honor\ndog,dog\ncat,cat\n" * 9, "pairs", {}),
    ),
    "a headerless CSV with blanks after the commas is a table": (
        *("a.csv", table("the {v} {n}, {ab}"), "table", {"data.text": 1, "data.label": 2}),
    ),
    "one word is text": ("a.txt", "word", "text", {}),
    "words with the letters of magic are text": ("a.txt", "BMW and GGUF are names\n", "text", {}),
    "a CSV of numbers and one text is text": (
        *("a.csv", "id,text\n" + table("{n},the {v} {n}"), "text", {"data.text": "text"}),
    ),
    "JSON lines with text alone are text": (
        *("a.jsonl", table('{{"text": "the {v} {n}"}}'), "text", {"data.text": "text"}),
    ),
    "text that opens with a brace is text": ("a.txt", "{stage left} A room.\nHe sits.\n", "text", {}),
    "bAbI lines are stories": ("qa1.txt", BABI, "stories", {}),
    "a semicolon table with decimal commas is a table": (
        *("a.csv", "x;y;label\n" + table("{n},5;1,{n};{ab}"), "table", {"data.label": "label"}),
    ),
    "a bar table is a table": ("a.txt", "text|label\n" + table("the {v} {n}|{ab}"), "table", {"data.label": "label"}),
    "a label in the first column is found": (
        *("sms.tsv", table("{ab}\tthe {v}, {n}"), "table", {"data.label": 1, "data.text": 2}),
    ),
    "a label in the last column is found": (
        *("a.csv", table('"the {v}, {n}",{ab}'), "table", {"data.label": 2, "data.text": 1}),
    ),
    "ratings are labels": (
        *("a.csv", "review,stars\n" + table("the {v} {n},{r}"), "table"),
        {"data.label": "stars", "data.text": "review"},
    ),
    "unique numbers are no labels": (
        *("a.tsv", "id\ttext\tclass\n" + table("{n}\tthe {v} {n}\t{ab}"), "table", {"data.label": "class"}),
    ),
    "sentence pairs with a label are a table": (
        *("RTE.tsv", "index\tsentence1\tsentence2\tlabel\n" + table("{n}\tthe {v} is {n}\ta {w} is {n}\t{ab}")),
        "table",
        {"data.label": "label", "data.text": ["sentence1", "sentence2"]},
    ),
    "a labelled sentence without a header is a table": (
        *("CoLA.tsv", table("gj04\t{ab}\t\tThe {v} ate {n}."), "table", {"data.label": 2, "data.text": 4}),
    ),
    "lone quotes in a TSV are only characters": (
        *("a.tsv", "label\ttext\n" + table('{ab}\t" the {v} said {n}'), "table", {"data.label": "label"}),
    ),
    "Excel quotes and newlines in cells are read": (
        *("a.csv", "text,label\n" + REVIEW, "table", {"data.label": "label", "data.text": "text"}),
    ),
    "a duplicate header name is replaced by its number": (
        *("a.csv", "text,text,label\n" + table("the {v} {n},a {w} {n} too,{ab}"), "table", {"data.text": [1, 2]}),
    ),
    "CRLF changes nothing": ("a.csv", ("text,label\n" + table("a {v} {n},{ab}")).replace("\n", "\r\n"), "table", {}),
    "old Mac newlines change nothing": (
        *("a.csv", ("text,label\n" + table("a {v} {n},{ab}")).replace("\n", "\r"), "table", {"data.label": "label"}),
    ),
    "JSON lines with a label are a table": (
        *("a.jsonl", table('{{"text": "the {v} {n}", "label": {r}, "x": 1e999}}'), "table", {"data.label": "label"}),
    ),
    "JSON lines called .json are a table": (
        *("a.json", table('{{"text": "a {v} {n}", "ok": true, "y": "{ab}"}}'), "table", {"data.label": "y"}),
    ),
    "numbers with a label are a table": ("iris", table("{n}.5,{r}.{n},{n},{ab}"), "table", {"data.label": 4}),
    "pairs without a header are pairs": (
        *("a.tsv", table("the {v} {n}\tle {w} {n}"), "pairs", {"data.source": 1, "data.target": 2}),
    ),
    "words with a bar between them are pairs": ("a.txt", "apple|Apfel\npear|Birne\nplum|Zwetsche\n", "pairs", {}),
    "sums with few answers are a table": ("a.tsv", table("{n} + {n}\t{r}"), "table", {"data.label": 2, "data.text": 1}),
    "two pairs are sufficient": ("a.tsv", "Go.\tVa !\nRun!\tCours !\n", "pairs", {"data.source": 1, "data.target": 2}),
    "pairs with a header are pairs": (
        *("a.tsv", "english\tfrench\n" + table("the {v} {n}\tle {w} {n}"), "pairs"),
        {"data.source": "english", "data.target": "french"},
    ),
    "target before source is recognized": (
        *("a.csv", "tgt,src\n" + table("the {v} {n},le {w} {n}"), "pairs"),
        {"data.source": "src", "data.target": "tgt"},
    ),
    "an attribution column is not part of pairs": ("fra.txt", TATOEBA, "pairs", {"data.source": 1, "data.target": 2}),
    "sums and their answers are pairs": (
        *("a.tsv", table("{n}+{r}\t{n}9"), "pairs", {"data.source": 1, "data.target": 2}),
    ),
    "sentence pairs seen again and again are pairs": ("a.tsv", REPEATED, "pairs", {"data.source": 1, "data.target": 2}),
    "JSON lines with two texts are pairs": (
        *("a.ndjson", table('{{"question": "who {v} {n}?", "answer": "the {w} {n}"}}'), "pairs"),
        {"data.source": "question", "data.target": "answer"},
    ),
    "Chinese text has words too": (
        *("a.csv", "text,label\n" + table("他喝茶{w}很多{n}次,{ab}"), "table", {"data.text": "text"}),
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
def test_each_example_file_has_its_kind(name: str, tmp_path: Path) -> None:
    file, content, kind, settings = ZOO[name]
    path = tmp_path / file
    path.write_bytes(content.encode())
    detection = detect_kind(path)
    assert detection.kind == kind, detection
    assert settings.items() <= detection.settings.items(), detection
    check_detection(detection)


def check_detection(detection: Detection) -> None:
    assert detection.kind in KINDS
    assert detection.reason
    assert "\n" not in detection.reason
    assert all(setting.startswith("data.") for setting in detection.settings)
    assert all(kind in KINDS and why for kind, why in detection.alternatives)
    assert detection.kind not in {kind for kind, _ in detection.alternatives}


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
def test_arrays_are_detected_by_their_names_and_first_bytes(file: str, data: bytes, kind: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(data)
    assert detect_kind(tmp_path / file).kind == kind


LATIN = "Line one\nLine two\nA small town café\n".encode("latin1")
UNREADABLE: dict[str, tuple[str, bytes, str]] = {
    "Latin-1": ("notes.txt", LATIN, r"notes.txt:3: byte 0xe9 at column 17 is not UTF-8 .*=cp1252, or .*cp1252 "),
    "the Windows encoding": ("n.txt", b"a \x93quote\x94\n", "n.txt:1: byte 0x93 .*Windows-1252.*encoding=cp1252, "),
    "a bad byte behind wide letters": ("n.txt", "日本\n日本".encode() + b"\xff\n", r"n.txt:2: byte 0xff at column 3 "),
    "a cut character at the end": ("n.txt", "caf\u00e9".encode()[:-1], r"n.txt:1: byte 0xc3 at column 4 "),
    "UTF-16 with a mark cut short": ("n.txt", "hello".encode("utf-16")[:-1], r"n.txt:1: byte 0x6f is not utf-16-le"),
    "UTF-16 without a mark": (
        *("n.txt", "hello there".encode("utf-16-le"), "UTF-16LE text.*set data.encoding=utf-16le.*iconv -f utf-16le "),
    ),
    "UTF-32 without a mark": ("n.txt", "hello there".encode("utf-32-be"), "UTF-32BE text"),
    "a NUL byte": ("n.txt", b"one\ntwo \0 three\n", "n.txt:2: a binary file"),
    "control bytes": ("n.txt", bytes(range(1, 32)) * 9, "a binary file"),
    "one image": ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a single image; .* give a folder of images"),
    "gzip of no text": ("a.tar.gz", gzip.compress(b"text"), "a gzip file.*gunzip"),
    "gzip of a text cut short": ("a.txt.gz", gzip.compress(b"text")[:-9], "a damaged gzip file"),
    "a truncated gzip": ("a.gz", gzip.compress(idx(3))[:11], "a gzip file"),
    "a PDF": ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\n", "a PDF.*pdftotext"),
    "SQLite": ("a.db", b"SQLite format 3\0\x10\0", "SQLite"),
    "a damaged Parquet file": ("a.parquet", b"PAR1\x15\0\x15", "no readable Parquet file"),
    "a program": ("a.out", b"\x7fELF\2\1\1\0", "ELF"),
    "a damaged Excel workbook": ("a.xlsx", npz(extra="xl/workbook.xml"), "no readable Excel workbook"),
    "an Excel workbook under another name": ("a.zip", npz(extra="xl/workbook.xml"), ".xlsx.*rename it to a.xlsx"),
    "a Word document": ("a.docx", npz(extra="word/document.xml"), "a Word document"),
    "a zip archive": ("a.zip", npz(extra="a.txt"), "a zip archive"),
    "an empty zip archive": ("a.zip", npz(), "a compressed archive"),
    "an npz of other arrays": ("a.npz", npz("a", "b"), "an .npz file with a, b; edges, or x and y"),
    "an npz cut short": ("a.npz", npz("x", "y")[:-30], "zip archive"),
    "an npz that is text": ("a.npz", b"hello", "zip archive"),
    "a pickle": ("a.pkl", b"\x80\4\x95", "pickle can run code"),
    "a pickle in letters": ("a.pkl", b"cos\nsystem\n(S'true'\ntR.", "pickle can run code"),
    "a pickle under another name": ("a.bin", b"\x80\2}q\0.", "pickle can run code"),
    "torch weights": ("a.bin", npz(extra="archive/data.pkl"), "pickle can run code"),
    "safetensors": ("a.safetensors", struct.pack("<Q", 4) + b'{"a"' + bytes(9), "safetensors"),
    "a NumPy array": ("a.npy", b"\x93NUMPY\1\0", "NumPy array; harken reads UTF-8 text"),
    "an idx file cut short": ("a-ubyte", idx(3, 4, 4)[:-1], r"with 63 bytes; 64 bytes are needed"),
    "an empty file": ("a.txt", b"", "an empty file"),
    "only white space": ("a.txt", b" \n\t\n\r\n", "only white space"),
    "a byte order mark alone": ("a.txt", b"\xef\xbb\xbf", "only white space"),
    "JSON that is deep": ("a.json", b"[" * 100_000, "a.json:1: .*neither an object nor a text"),
    "a JSON line that is deep": ("a.jsonl", b'{"a": 1}\n' + b"[" * 100_000, "a.jsonl:2: JSON nested too deeply"),
    "JSON cut short": ("a.json", SQUAD[:60].encode(), r"a.json: invalid JSON \(.*line 1 column"),
    "SQuAD cut short": ("a.json", SQUAD[:-3].encode(), "a.json: invalid JSON"),
    "a JSON list without text": ("a.json", b'[{"a": 1}, {"a": 2}]', "objects with a; text under one key"),
    "a JSON list of numbers": ("a.json", b"[1, 2]", "a.json:1: .*neither an object nor a text"),
    "a JSON list cut short": ("a.json", b'[{"a": "b"},\n {"a": "c', "a.json:2: invalid JSON"),
    "text after a JSON list": ("a.json", b'[{"a": "b"}]\n]', "a.json:2: invalid JSON .text after the list"),
    "another JSON object": ("a.json", b'{"data": 3}', "a JSON object that is not SQuAD"),
    "an object like SQuAD": ("a.json", b'{"data": 1, "paragraphs": 2, "context": 3, "qas": 4}', "not SQuAD"),
    "a JSON number": ("a.json", b"7" * 9999, "a single JSON value that is not SQuAD"),
    "JSON lines of strings": ("a.jsonl", b'"one"\n"two"\n', "a.jsonl:1: not a JSON object"),
    "a bad JSON line": ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "a.jsonl:3: invalid JSON"),
    "JSON lines without text": ("a.jsonl", b'{"a": [1], "b": {}}\n' * 9, "objects with a, b; text under one key"),
    "a JSON object of very many keys": (
        *("a.jsonl", b"{" + b",".join(b'"k%d":1' % k for k in range(9999)) + b"}\n", "a.jsonl:1: not a JSON object"),
    ),
}  # fmt: skip


def test_no_reader_that_is_not_there_is_promised_to_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for file, data, _ in UNREADABLE.values():
        if b"\0" in data and not file.endswith((".npz", "ubyte")):
            (tmp_path / file).write_bytes(data)
            with pytest.raises(BadInput) as caught:
                detect_kind(tmp_path / file)
            assert not re.search(r"CSV|JSON|idx|npz|harken import", str(caught.value)), caught.value


def test_a_line_longer_than_the_preview_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 300_000)
    assert (
        detect_kind(tmp_path / "a.txt").reason == "plain UTF-8 text, a line of more than 1048576 characters, no columns"
    )


def check_error(path: Path, pattern: str) -> None:
    with pytest.raises(BadInput) as caught:
        detect_kind(path)
    message = str(caught.value)
    assert re.search(pattern, message), message
    assert "\n" not in message
    assert path.name in message
    assert message.count("; ") >= 2, message


@pytest.mark.parametrize("name", UNREADABLE)
def test_each_unreadable_file_is_reported_in_one_line(name: str, tmp_path: Path) -> None:
    file, data, pattern = UNREADABLE[name]
    (tmp_path / file).write_bytes(data)
    check_error(tmp_path / file, pattern)


def test_a_missing_file_suggests_a_similar_one(tmp_path: Path) -> None:
    (tmp_path / "reviews.csv").write_text("a")
    check_error(tmp_path / "review.csv", r"no such file or folder; .* Did you mean .*reviews.csv\?")
    check_error(tmp_path / "nowhere" / "a.txt", "no such file")
    check_error(tmp_path / "reviews.csv" / "a.txt", "no such file")


def test_an_invalid_path_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    check_error(tmp_path / "loop", "symbolic links")
    check_error(tmp_path / "dangling", "a broken link to .*gone")
    check_error(tmp_path / ("long" * 999), "too long")
    for path in ("", "a\0b"):
        with pytest.raises(BadInput, match=r"path|null"):
            detect_kind(path)


def test_a_pipe_a_socket_and_a_device_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_error(tmp_path / "pipe", "a pipe; a file or a folder is accepted")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "plug"))
        check_error(tmp_path / "plug", "a socket or a device")
    check_error(Path("/dev/zero"), "a socket or a device")


def test_a_name_with_a_newline_still_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines.txt"
    path.write_bytes(b"")
    with pytest.raises(BadInput, match=r"two\\nlines.txt: an empty file") as caught:
        detect_kind(path)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_not_in_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("label,text\n" + table("{ab},the {v} {n}"), encoding="utf-8-sig")
    detection = detect_kind(tmp_path / "a.csv")
    assert (detection.kind, detection.settings["data.label"]) == ("table", "label")


def test_a_few_irregular_rows_are_reported_and_more_are_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + table("a {v} {n},{ab}", 99) + "one,two,three\n")
    detection = detect_kind(path)
    assert detection.kind == "table"
    assert "1.0% of the rows are empty or have another number of cells" in detection.reason
    path.write_text("text,label\n" + table("a {v} {n},{ab}", 99) + "one,two,three\n" * 9)
    check_error(path, r"a\.csv:101: 3 columns instead of 2; .* 92% have 2; .*data.kind=text")


def test_a_label_has_at_most_100_values_with_at_least_5_occurrences(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    cases = [(100, 5, "table"), (101, 5, "pairs"), (100, 4, "pairs"), (2, 4, "pairs"), (2, 5, "table")]
    for values, times, kind in cases:
        labels = [f"label-{'abcdefghij'[k % 10]}{'x' * (k // 10)}" for k in range(values)]
        path.write_text("".join(f"the text {label} {turn}\t{label}\n" for label in labels for turn in range(times)))
        assert detect_kind(path).kind == kind, (values, times)


def test_the_reason_states_the_number_of_label_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + table("a {v} {n},{ab}"))
    assert "column 'label' has 2 values with 20 occurrences on average" in detect_kind(tmp_path / "a.csv").reason


def test_pairs_state_why_they_are_not_a_table(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,word\n" + table("a {v} {n},{ab}", 8))
    kind, why = detect_kind(tmp_path / "a.csv").alternatives[0]
    assert kind == "table"
    assert "column 'word' has 2 values with 4.0 occurrences on average" in why


def test_repeated_sentences_have_too_many_words_for_a_label(tmp_path: Path) -> None:
    rows = [f"the cat number {n % 30} sat down\tun chat {n} dort" for n in range(600)]
    (tmp_path / "dup.tsv").write_text("\n".join(rows))
    detection = detect_kind(tmp_path / "dup.tsv")
    assert (detection.kind, detection.alternatives[0][0]) == ("pairs", "table")
    observed = "column 1 has 30 values with 20.0 occurrences on average"
    assert detection.alternatives[0][1] == f"{observed}, but a label has at most 3 words, and these have 6.0"


def test_a_possible_label_next_to_two_named_sides_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("en,de,note\n" + table("a {v} {n},ein {v} {n},{ab}"))
    kind, why = detect_kind(tmp_path / "a.csv").alternatives[0]
    assert kind == "table"
    assert why == "column 'note' could be a label, but column 'en' and column 'de' are named as two sides"


def test_a_table_of_one_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.tsv").write_text("a cat sat\tun chat dort\n")
    with pytest.raises(BadInput) as error:
        detect_kind(tmp_path / "one.tsv")
    assert str(error.value) == (
        f"{tmp_path}/one.tsv: a table of one line with 2 cells; two or more lines are needed; "
        "add lines, or set data.kind=text"
    )
    (tmp_path / "one.txt").write_text("a cat sat\tun chat dort\n")
    assert detect_kind(tmp_path / "one.txt").kind == "text"
    assert (
        detect_kind(tmp_path / "one.txt")
        .alternatives[0][1]
        .endswith(", but a table needs 95 %, and at least two lines")
    )


def test_a_sorted_label_in_a_large_file_is_detected(tmp_path: Path) -> None:
    rows = [f"{('pos', 'neg')[n // 2000]}\t{FRUIT[n % 12]} {n} " + "and so on " * 100 for n in range(4000)]
    (tmp_path / "a.tsv").write_text("\n".join(rows))
    detection = detect_kind(tmp_path / "a.tsv")
    assert (detection.kind, detection.settings["data.label"]) == ("table", 1)


def test_an_invalid_byte_late_in_a_file_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a line of text\n" * 200_000 + b"caf\xe9 noir\n")
    check_error(tmp_path / "a.txt", "a.txt:200001: byte 0xe9 at column 4 ")


def test_multibyte_characters_at_preview_bounds_are_valid(tmp_path: Path) -> None:
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


LARGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "one line of 100 MB": (make_line, "text"),
    "100,000 columns": (make_wide, "a table of 100010 columns; at most 1000 are accepted"),
    "8 GB of nothing": (make_holes, "a binary file"),
    "newlines alone": (lambda path: path.write_bytes(b"\n" * (1 << 22)), "only white space"),
    "commas alone": (lambda path: path.write_bytes(b"," * (1 << 22)), "text"),
    "quotes alone": (lambda path: path.write_bytes(b'"' * (1 << 22)), "text"),
    "brackets alone": (lambda path: path.write_bytes(b"(" * (1 << 22)), "text"),
    "digits in one cell": (lambda path: path.write_bytes((b"1" * 300_000 + b" \t1 2 3 .\n") * 3), "pairs"),
    "tiny cells": (lambda path: path.write_bytes(b"a\tb\tc\td\n" * (1 << 19)), "pairs"),
    "two letters per line": (lambda path: path.write_bytes(b"ab\n" * (1 << 20)), "text"),
    "a lone quote before many rows": (
        lambda path: path.write_text('"a,b\n' + table("c {v} {n},{ab}", 60_000)),
        "table",
    ),
    "small objects": (lambda path: path.with_suffix(".jsonl").write_bytes(b"{}\n" * (1 << 19)), "objects with"),
    "an object longer than the preview": (
        lambda path: path.with_suffix(".jsonl").write_bytes(b'{"text": "' + b"a" * (1 << 22) + b'"}\n'),
        "a.jsonl:1: invalid JSON",
    ),
    "a list of lists": (
        lambda path: path.with_suffix(".json").write_bytes(b"[" + b"[]," * 300_000 + b"1]"),
        "a.json:1: invalid JSON (a value that is neither an object nor a text)",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_huge_file_is_detected_fast_and_in_little_memory(name: str, tmp_path: Path) -> None:
    write, pattern = LARGE[name]
    write(tmp_path / "a.txt")
    (path,) = tmp_path.iterdir()
    tracemalloc.start()
    try:
        started = time.perf_counter()
        try:
            outcome = detect_kind(path).kind
        except BadInput as error:
            outcome = str(error)
        seconds, (_, peak) = time.perf_counter() - started, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert pattern in outcome
    assert "\n" not in outcome
    assert seconds < 10  # fails if the complete file is read; generous because tracing is slow
    assert peak < 64 << 20


def write_files(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_a_folder_of_text_files_is_text(tmp_path: Path) -> None:
    assert detect_kind(write_files(tmp_path, one_txt=PROSE, two_txt=PLAY)).kind == "text"


def test_splits_in_a_folder_become_settings_and_train_decides_the_kind(tmp_path: Path) -> None:
    rows = table("{ab}\tthe {v} {n}")
    detection = detect_kind(write_files(tmp_path, dev_tsv=rows, train_tsv=rows, test_tsv=rows, README_md=PROSE))
    assert detection.kind == "table"
    assert detection.reason.startswith("based on train.tsv: ")
    names = {f"data.{split}": str(tmp_path / f"{file}.tsv") for split, file in
             [("train", "train"), ("valid", "dev"), ("test", "test")]}  # fmt: skip
    assert names.items() <= detection.settings.items()


def test_a_mixed_folder_is_text_unless_a_file_is_binary(tmp_path: Path) -> None:
    assert detect_kind(write_files(tmp_path, notes_txt=PROSE, a_md=PLAY, b_csv="a,b\n")).kind == "text"
    with pytest.raises(BadInput, match=r"c\.bin:1: a binary file"):
        detect_kind(write_files(tmp_path, c_bin=b"\0\1\2"))


def test_a_folder_of_images_with_a_table_is_images(tmp_path: Path) -> None:
    images: dict[str, str | bytes] = {
        "cat__1_png": b"\x89PNG\r\n\x1a\n", "cat__2_jpg": b"\xff\xd8\xff\xe0",
        "dog__3_gif": b"GIF89a..", "dog__4_bmp": b"BM\x46\0\0\0\0\0\0\0\x36", "labels_csv": "a,b\n",
    }  # fmt: skip
    detection = detect_kind(write_files(tmp_path, **images))
    assert detection.kind == "images"
    assert "cat, dog" in detection.reason


def test_an_image_suffix_alone_does_not_make_an_image(tmp_path: Path) -> None:
    assert detect_kind(write_files(tmp_path, a_png="words", b_png="more words")).kind == "text"


def test_two_aligned_files_in_a_folder_are_pairs(tmp_path: Path) -> None:
    detection = detect_kind(
        write_files(tmp_path, train_de="Hallo.\n", train_en="Hello.\n", val_de="Ja.\n", val_en="Yes.\n")
    )
    assert detection.kind == "pairs"
    assert detection.settings == {"data.source": str(tmp_path / "train.en"), "data.target": str(tmp_path / "train.de")}


def test_idx_files_and_stories_in_a_folder_are_detected(tmp_path: Path) -> None:
    digits = write_files(
        tmp_path / "digits", **{"train-images-idx3-ubyte": idx(2, 4, 4), "train-labels-idx1-ubyte": idx(2)}
    )
    assert detect_kind(digits).kind == "images"
    assert detect_kind(write_files(tmp_path / "babi", qa1_test_txt=BABI, qa1_train_txt=BABI)).kind == "stories"


def test_a_folder_without_data_is_reported_in_one_line(tmp_path: Path) -> None:
    check_error(tmp_path, "a folder without data files")
    check_error(write_files(tmp_path, _hidden="x", empty_txt=""), "a folder without data files")
    check_error(write_files(tmp_path, a__x_csv="a,b\n", b__y_csv="a,b\n"), "a folder of folders; .*give one of a, b")


def test_a_folder_skips_pipes_and_links_that_loop(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b").symlink_to(tmp_path)
    (tmp_path / "c.txt").symlink_to(tmp_path / "c.txt")
    assert detect_kind(write_files(tmp_path, d_txt=PROSE)).kind == "text"


def test_detection_restores_the_csv_field_size_limit(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    (tmp_path / "a.csv").write_text('text,label\n"' + "long " * 50_000 + '",a\n' + table('"{v} {n}",{ab}'))
    assert detect_kind(tmp_path / "a.csv").kind == "table"
    assert csv.field_size_limit() == before


def test_a_table_of_image_paths_with_labels_is_images(tmp_path):
    rows = "".join(f"{n},shots/{n}.{('jpg', 'PNG')[n % 2]},{('ant', 'bee')[n % 2]}\n" for n in range(40))
    (tmp_path / "shots.csv").write_text("id,file,kind\n" + rows)
    detection = detect_kind(tmp_path / "shots.csv")
    assert detection.kind == "images"
    assert detection.settings == {"data.image": "file", "data.label": "kind"}
    (tmp_path / "shots.csv").write_text(("id,file,kind\n" + rows).replace("0.jpg", "0.txt"))
    assert detect_kind(tmp_path / "shots.csv").kind == "table"


@pytest.mark.parametrize("header", ["source,target", "from,to,weight", "u,v"])
def test_a_table_of_node_numbers_is_a_graph(header, tmp_path):
    file = tmp_path / "edges.csv"
    width = header.count(",") + 1
    file.write_text("\n".join([header, *(",".join(str((n * k) % 7) for k in range(1, width + 1)) for n in range(30))]))
    assert detect_kind(file).kind == "graph"


@pytest.mark.parametrize("header", ["a,b,label", "x,y", "a,b", "start,end"])
def test_numbers_under_other_names_are_not_edges(header, tmp_path):
    file = tmp_path / "numbers.csv"
    width = header.count(",") + 1
    file.write_text("\n".join([header, *(",".join(str((n * k) % 7) for k in range(1, width + 1)) for n in range(30))]))
    assert detect_kind(file).kind != "graph"


def test_named_sides_of_text_or_unshared_numbers_are_pairs(tmp_path):
    (tmp_path / "p.csv").write_text("source,target\n" + "one,eins\ntwo,zwei\n" * 20)
    assert detect_kind(tmp_path / "p.csv").kind == "pairs"
    reversed_numbers = "".join(f"{n},{str(n)[::-1]}\n" for n in range(12340, 12390))
    (tmp_path / "n.csv").write_text("source,target\n" + reversed_numbers)
    assert detect_kind(tmp_path / "n.csv").kind == "pairs"


@pytest.mark.parametrize(("name", "magic"), [(name, magic) for name, all_ in preview.MAGIC.items() for magic in all_])
def test_a_file_with_the_first_bytes_of_a_refused_format_gets_its_message(tmp_path, name, magic):
    (tmp_path / "a.bin").write_bytes(magic + b"\0\0")
    with pytest.raises(BadInput, match=re.escape(preview.TABLES["refused"][name]["what"])):
        preview.refuse_binary(preview.read_head(tmp_path / "a.bin"))


def test_every_refused_format_has_first_bytes():
    assert preview.TABLES["refused"].keys() == preview.MAGIC.keys()


NOT_TRAINABLE = {
    "one column": ("a.csv", "text\n" + table("the {v} of {w}"), r"only one column .* data\.kind=text$"),
    "one column of quoted cells": ("a.csv", "text\n" + table('"the {v}, {w}"'), r"only one column .* data\.kind=text$"),
    "numbers with a numeric target": (
        *("a.csv", "x0,x1,x2,y\n" + table("{n}.5,{r},1.{n},{n}.25")),
        r"every column holds numbers \(x0, x1, x2, y\); .*harken cluster .*/a.csv; .*data\.kind=sets data\.group=",
    ),
    "numbers with a 0/1 target": (
        *("a.csv", "x0,x1,y\n" + table("{n}.5,1.{n},1") + "1.5,2,0\n" * 30, "every column holds numbers"),
    ),
    "two numeric columns": ("a.csv", "x,y\n" + table("{n}.5,{n}.25"), "every column holds numbers"),
    "numbers with a text label": (
        *("a.csv", "x0,x1,species\n" + table("{n}.5,1.{n},{ab}")),
        "column 'species' has 2 values .* no column holds text; .*harken cluster .*/a.csv",
    ),
    "a label with one value": (
        *("a.csv", "text,label\n" + table("the {v} {n},pos")),
        r"column 'label' has one value; a label needs at least two values; .*data\.label=.*data\.kind=pairs",
    ),
    "an empty label": ("a.csv", "text,label\n" + table("the {v} {n},"), "column 'label' is empty"),
    "a label with one value beside another possible label": (
        *("a.csv", "text,label,lang\n" + table("the {v} {n},pos,{ab}")),
        "column 'label' has one value",
    ),
    "picture questions": (
        *("a.csv", "image,question,answer\n" + table("{n}.png,what is the {v} here?,the {w} thing of {n}")),
        r"picture questions are not supported yet; .*data\.caption=answer; .*data\.source=question",
    ),
    "picture questions with few answers": (
        *("a.csv", "file,asked,answer\n" + table("{n}.png,what is the {v} here?,{ab}")),
        "picture questions are not supported yet",
    ),
    "picture questions with a label": (
        *("a.csv", "file,text,label\n" + table("{n}.png,what is the {v} here?,{ab}")),
        "picture questions are not supported yet",
    ),
    "codes and dates": ("a.csv", "code,day\n" + table("A-{n},2024-01-{n}"), "no column holds text"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_TRAINABLE)
def test_a_table_that_fits_no_model_states_what_fits_it(name: str, tmp_path: Path) -> None:
    file, content, refusal = NOT_TRAINABLE[name]
    (tmp_path / file).write_text(content)
    detection = detect_kind(tmp_path / file)
    assert re.search(refusal, detection.refusal), detection
    assert "\n" not in detection.refusal


def test_a_column_of_numbers_that_is_read_as_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("code,store\n" + "".join(f"{n / 2},{'abc'[n % 3]}\n" for n in range(60)))
    detection = detect_kind(path)
    assert (detection.settings["data.text"], detection.settings["data.label"]) == ("code", "store")
    assert "column 'code' holds numbers, which are read as text" in detection.notice
    path.write_text("code,store\n" + table("{n} {v},{ab}"))
    assert not detect_kind(path).notice


@pytest.mark.parametrize("share", [10, 5, 2])
def test_a_ragged_table_is_never_text(share: int, tmp_path: Path) -> None:
    rows = [line + ",more" * (n % share == 0) for n, line in enumerate(table("a {v} {n},{ab}", 200).splitlines())]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    check_error(tmp_path / "a.csv", r"a\.csv:\d+: \d columns instead of \d; .*data\.kind=text")


def test_prose_with_the_suffix_of_a_table_is_never_text(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("A line\nanother\tone\nand more\nand more\n" * 9)
    check_error(tmp_path / "a.tsv", r"a\.tsv:2: 2 columns instead of 1; .* most have 1; .*data\.kind=text")


def test_an_open_quote_does_not_make_a_table_text(tmp_path: Path) -> None:
    rows = table("a {v} {n},{ab}", 200).splitlines()
    rows[100] = f'"{rows[100]}'
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]))
    assert detect_kind(tmp_path / "a.csv").kind == "table"


def test_rows_of_empty_cells_are_not_reported_as_another_number_of_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + table("a {v} {n},{ab}") + ",\n,\n")
    detection = detect_kind(tmp_path / "a.csv")
    assert detection.kind == "table"
    assert "number of cells" not in detection.reason


def test_edges_between_names_and_pairs_that_may_be_edges_name_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("source,target\n" + "Ann,Bob\nBob,Cid\nCid,Ann\n" * 9)
    (tmp_path / "b.csv").write_text("source,target\n" + "Ann,tea\nBob,milk\nCid,tea\n" * 9)
    graph, pairs = map(detect_kind, sorted(tmp_path.iterdir()))
    assert (graph.kind, pairs.kind) == ("graph", "pairs")
    assert "pairs" in dict(graph.alternatives)
    assert "repeat names, but share few of them" in dict(pairs.alternatives)["graph"]


def test_a_regression_states_the_settings_that_overrule_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,note\n" + table("the {v} {n},{n}.5"))
    detection = detect_kind(tmp_path / "a.csv")
    assert "column 'note' holds numbers and is named like a target (regression)" in detection.reason
    assert detection.override_hint == "override with data.label=..., data.target_type=..., data.kind=..."


def test_pairs_of_a_text_and_a_number_name_the_settings_of_a_regression(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(table("the {v} {n}\t{n}.5"))
    detection = detect_kind(tmp_path / "a.tsv")
    assert detection.kind == "pairs"
    assert dict(detection.alternatives)["table"].endswith("data.text=1 data.label=2 data.target_type=number")


PHRASES = "".join(f"der {v} {n} schläft;le {v} {n} dort\n" for n, v in enumerate(FRUIT * 3))


@pytest.mark.parametrize(
    "header",
    [
        "Deutsch;Französisch",
        "Wort;Übersetzung",
        "Antwort;Themen",
        "Español;English",
        "Franc\u0327ais;Deutsch",
        "Mot;Traduction",
    ],
)
def test_languages_and_common_words_of_other_languages_are_a_header(header, tmp_path):
    (tmp_path / "a.csv").write_text(f"{header}\n{PHRASES}", "utf-8")
    detection = detect_kind(tmp_path / "a.csv")
    assert list(detection.settings.values()) == header.split(";")
    assert detection.kind == "pairs"
    assert not detection.notice


@pytest.mark.parametrize("first", ["Wort;le mot", "die Sprache;la langue", "Deutsch;allemand vite"])
def test_a_single_common_word_does_not_make_a_header(first, tmp_path):
    (tmp_path / "a.csv").write_text(f"{first}\n{PHRASES}", "utf-8")
    assert set(detect_kind(tmp_path / "a.csv").settings.values()) == {1, 2}


def test_a_first_row_of_titles_above_sentences_is_reported_and_a_named_column_makes_it_the_header(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"Lektion eins;Zielwort\n{PHRASES}", "utf-8")
    notice = detect_kind(path).notice
    assert "the first row 'Lektion eins; Zielwort' is read as data" in notice
    assert notice.endswith("data.source='Lektion eins' data.target=Zielwort")
    named = detect_kind(path, None, ["Zielwort"])
    assert named.settings == {"data.source": "Lektion eins", "data.target": "Zielwort"}
    assert not named.notice


@pytest.mark.parametrize("first", ["der Hund bellt;le chien aboie", "Der Hund bellt heute.;Le chien aboie."])
def test_a_first_row_like_the_others_is_not_reported(first, tmp_path):
    (tmp_path / "a.csv").write_text(f"{first}\n{PHRASES}", "utf-8")
    assert not detect_kind(tmp_path / "a.csv").notice


def test_capitalized_words_in_every_row_are_not_reported(tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"Wort{v} {n}\tMot{n}\n" for n, v in enumerate(FRUIT * 3)), "utf-8")
    assert not detect_kind(tmp_path / "a.tsv").notice


def test_a_file_of_a_folder_is_not_to_be_converted_next_to_the_others(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(LATIN)
    with pytest.raises(BadInput, match=r"harken reads UTF-8; set data\.encoding=cp1252$"):
        detect_kind(tmp_path)


@pytest.mark.parametrize(
    ("labels", "kind", "target_type"),
    [
        ("pn" * 3, "table", None),
        ("abcdefghijklmnopqrstuvwxyz" * 3, "table", None),
        ([n / 8 for n in range(30)], "table", "number"),
        ([f"the letter {n}" for n in range(30)], "pairs", None),
    ],
)
def test_a_column_named_label_is_one_although_its_values_are_rare(labels, kind, target_type, tmp_path):
    rows = (f"a sentence of words {n},{label}\n" for n, label in enumerate(labels))
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(rows))
    detection = detect_kind(tmp_path / "a.csv")
    assert (detection.kind, detection.settings.get("data.target_type")) == (kind, target_type)
    if kind == "table":
        assert (detection.settings["data.text"], detection.settings["data.label"]) == ("text", "label")


@pytest.mark.parametrize("name", ["Name", "Author", "Schüler", "E-Mail"])
def test_a_column_of_persons_is_no_text_beside_another_one_and_the_text_is_named(name, tmp_path):
    rows = "".join(f"Müller, Jörg {n};the {word} word {n};{n % 2}\n" for n, word in enumerate(FRUIT * 3))
    (tmp_path / "a.csv").write_text(f"{name};Aufsatz;label\n{rows}", "utf-8")
    detection = detect_kind(tmp_path / "a.csv")
    assert detection.settings == {"data.label": "label", "data.text": "Aufsatz"}
    assert detection.reason.endswith("on average; the text is column 'Aufsatz'")
    (tmp_path / "a.csv").write_text(f"{name};label\n{rows.replace(';the', ' the')}", "utf-8")
    assert detect_kind(tmp_path / "a.csv").settings == {"data.label": "label", "data.text": name}


@pytest.mark.parametrize("rows", ["{city};{n}0;{n}.5", "{city};{n}0;{n},5"])
def test_a_target_among_numbers_is_not_predicted_from_a_category(rows, tmp_path):
    content = "".join(rows.format(city=f"Stadt {n % 3}", n=n) + "\n" for n in range(40))
    texts = "".join(f"Stadt {n} und;{n}.5\n" for n in range(40))
    (tmp_path / "a.csv").write_text(f"Ort;Fläche;Preis\n{content}", "utf-8")
    refusal = detect_kind(tmp_path / "a.csv").refusal
    assert "column 'Preis' holds numbers and is named like a target (regression)" in refusal
    assert ", and no column holds text; " in refusal
    assert f"to predict it from the numbers: harken cluster {tmp_path / 'a.csv'} --regress Preis; " in refusal
    assert "; from the words: data.text=Ort data.label=Preis; " in refusal
    (tmp_path / "a.csv").write_text(f"Frage;Punkte\n{texts}", "utf-8")
    assert detect_kind(tmp_path / "a.csv").settings["data.label"] == "Punkte"


def test_a_header_with_one_word_beside_known_ones_is_a_header(tmp_path):
    rows = "".join(f"der {word} {n};le {word} {n};D{n // 4}\n" for n, word in enumerate(FRUIT * 3))
    (tmp_path / "a.csv").write_text(f"quelle;ziel;doc\n{rows}", "utf-8")
    assert detect_kind(tmp_path / "a.csv").settings == {"data.source": "quelle", "data.target": "ziel"}


def test_numbers_beside_a_text_are_named_as_not_used_and_numbers_are_no_language(tmp_path):
    rows = "".join(f"{n},the {word} {n},{n}.5,{n % 2}\n" for n, word in enumerate(FRUIT * 3))
    (tmp_path / "a.csv").write_text(f"id,text,age,label\n{rows}")
    assert detect_kind(tmp_path / "a.csv").reason.endswith("; the text is column 'text'; numbers are not used: age")
    (tmp_path / "b.csv").write_text("sl,pl,species\n" + "".join(f"{n}.5,{n}.1,{'ab'[n % 2]}\n" for n in range(40)))
    assert "no column holds text" in detect_kind(tmp_path / "b.csv").refusal
