"""Input files as UTF-8 text: encodings, gzip, conversions in the cache."""

import codecs
import gzip
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from harken.data.labelled.spans import SpanSource
from harken.data.labelled.tags import TagSource
from harken.data.stories.source import StorySource
from harken.data.tables import text_file as module
from harken.data.tables.text_file import check_encoding, iter_lines, read_text, text_file
from harken.data.text.source import TextSource
from harken.errors import BadInput
from harken.events import silent

TEXT = "eins\nzwei ä€\n\ndrei\n"


def write(folder: Path, content: bytes, name: str = "a.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def content(path: Path, encoding: str | None = None) -> str:
    return text_file(path, encoding).path.read_text("utf-8-sig")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_unicode_is_recognized_by_its_mark(encoding, packed, tmp_path):
    raw = TEXT.encode(encoding)
    path = write(tmp_path, gzip.compress(raw) if packed else raw, "a.txt" + ".gz" * packed)
    assert content(path) == TEXT
    assert text_file(path).suffix == ".txt"


@pytest.mark.parametrize("encoding", ["cp1252", "iso8859-15", "cp1250", "gb18030", "utf-16-le", "utf-7"])
def test_a_text_in_the_encoding_of_the_setting_is_read_with_its_lines(encoding, tmp_path):
    path = write(tmp_path, TEXT.encode(encoding))
    assert content(path, encoding) == read_text(path, encoding) == TEXT
    assert list(iter_lines(path, lambda *_: None, encoding)) == [*enumerate(TEXT.split("\n")[:-1], 1)]


def test_a_utf8_file_is_read_where_it_is_whatever_the_setting(tmp_path):
    path = write(tmp_path, TEXT.encode())
    assert text_file(path).path == text_file(path, "cp1252").path == path


def test_a_large_text_is_converted_in_little_memory_and_once(tmp_path):
    path = write(tmp_path, ("wörd and words\n" * 500_000).encode("utf-16"))
    tracemalloc.start()
    first = text_file(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    before = first.path.stat().st_mtime_ns
    module._convert.cache_clear()
    assert text_file(path).path.stat().st_mtime_ns == before
    assert first.path.stat().st_size == len("wörd and words\n".encode()) * 500_000


def test_a_changed_file_is_converted_again(tmp_path):
    path = write(tmp_path, "alt".encode("utf-16"))
    assert content(path) == "alt"
    write(tmp_path, "neu!".encode("utf-16"))
    assert content(path) == "neu!"


def test_a_cache_that_was_deleted_is_written_again(tmp_path):
    path = write(tmp_path, TEXT.encode("utf-16"))
    shutil.rmtree(text_file(path).path.parent)
    assert content(path) == TEXT


def test_an_undecodable_byte_is_refused_with_its_line(tmp_path):
    path = write(tmp_path, "eins\nzwei\n".encode("cp1252") * 400_000 + b"\x81")
    with pytest.raises(BadInput, match=r"a\.txt:800001: byte 0x81 is not cp1252 .*; set data\.encoding"):
        text_file(path, "cp1252")


def test_a_gzip_file_is_unpacked_up_to_a_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_UNPACKED", 3 << 20)
    path = write(tmp_path, gzip.compress(b"a" * (4 << 20)), "a.csv.gz")
    with pytest.raises(BadInput, match="a larger gzip file; at most 3 MiB are unpacked; unpack it yourself"):
        text_file(path)
    assert [*(tmp_path / "cache" / "converted").iterdir()] == []


def test_invalid_utf8_in_gzip_affects_only_its_line(tmp_path):
    path, skipped = write(tmp_path, gzip.compress(b"one\ncaf\xe9\ntwo\n"), "a.txt.gz"), []
    lines = list(iter_lines(path, lambda *place: skipped.append(place)))
    assert lines == [(1, "one"), (2, None), (3, "two")]
    assert skipped == [(path, 2, "byte 0xe9 is not UTF-8")]


@pytest.mark.parametrize("name", ["nonsense", "hex", "rot13", "", "undefined"])
def test_a_name_that_is_no_text_encoding_is_refused(name):
    with pytest.raises(ValueError, match="is no text encoding; cp1252"):
        check_encoding(name)
    with pytest.raises(ValueError, match="is no text encoding"):
        TextSource(encoding=name)


def test_a_binary_file_with_the_bytes_of_a_line_end_is_not_converted(tmp_path):
    path = write(tmp_path, b"\0\r" * 5000, "a.npz")
    assert text_file(path).path == path


def test_a_full_disk_is_reported_in_one_line(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(module, "_write_text", fail)
    with pytest.raises(BadInput, match=r"cannot be converted to UTF-8 text \(No space left on device\); .*free disk"):
        text_file(write(tmp_path, codecs.BOM_UTF16_LE + b"a\0"))


# --- the other kinds of text ------------------------------------------------------------------------------------------

SQUAD = [{"context": "Zoë lives in Kölln.", "qas": [{"question": "Where?", "answers": [{"text": "Kölln"}]}]}]
KINDS = {
    "tags": (TagSource(text=1, label=2), "Zoë NAME\nlives O\n\nJürgen NAME\nsleeps O\n"),
    "spans": (SpanSource(), json.dumps({"data": [{"paragraphs": SQUAD}]}, ensure_ascii=False)),
    "stories": (StorySource(), "1 Zoë went to the café.\n2 Where is Zoë?\tcafé\t1\n"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_text_is_read_in_utf_16_and_in_the_encoding_of_the_setting(kind, tmp_path):
    source, text = KINDS[kind]
    expected = source.read(write(tmp_path, text.encode()), silent)
    assert expected
    path = write(tmp_path, text.encode("utf-16"))
    assert source.read(path, silent) == expected
    write(tmp_path, text.encode("cp1252"))
    assert source.model_copy(update={"encoding": "cp1252"}).read(path, silent) == expected


def test_a_text_model_reads_the_same_text_in_every_encoding(tmp_path):
    text, splits = "Ein schöner Satz.\n" * 40, []
    for name, raw in {
        "a.txt": text.encode(),
        "b.txt": text.encode("utf-16"),
        "c.txt.gz": gzip.compress(text.encode()),
    }.items():
        data = TextSource(path=str(write(tmp_path, raw, name)), valid=0.2).load_data()
        splits.append([data.tokenizer.decode(part[0].tokens) for part in data.parts.values()])
    data = TextSource(path=str(write(tmp_path, text.encode("cp1252"))), valid=0.2, encoding="cp1252").load_data()
    splits.append([data.tokenizer.decode(part[0].tokens) for part in data.parts.values()])
    assert splits == [splits[0]] * 4
    assert "".join(splits[0]) == text
