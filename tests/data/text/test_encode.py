"""Files to ids: blocks equal the complete text, cache entries are atomic, and errors name the file and line."""

import hashlib
import io
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harken.data.text import encode as encode_module
from harken.data.text.encode import Span, count_words, encode_files, read_blocks, split_text
from harken.data.tokenizers.spec import TOKENIZER_KINDS
from harken.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from harken.errors import BadInput

TEXT = "The fox doesn't jump.\n\n the dog , 12 “bones” für\tdie  Katze\n日本語 😀 <eos> <|endoftext|> end\n"
WORDS = ["the", "fox", "I'll", "12", "3.5", "für", "“x”", "日本語", "😀", "<eos>", "<|endoftext|>", "!?", "\x1c", "'s"]
GAPS = [" ", " ", " ", "\n", "\n", "\n\n", "  ", " \n", "\n ", "\t", "\n\t\n", "\x0b", "\u3000", "\x85 ", "   \n\n  "]
TEXTS = st.lists(st.tuples(*map(st.sampled_from, (WORDS, ["", *WORDS], GAPS))).map("".join), min_size=40).map("".join)


@pytest.fixture(scope="module", params=TOKENIZER_KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, lambda: [TEXT * 2, " ".join(WORDS)], 300)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(encode_module, "BLOCK_BYTES", 128)


def write_file(folder: Path, content: str | bytes, name: str = "notes.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def encode_complete(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of the complete text; the last line ends even without a newline."""
    ends = tokenizer.kind == "word" and text.rpartition("\n")[2].strip(" \t\n\x0b\x85\u3000") != ""
    return tokenizer.encode(text).tolist() + ([tokenizer.end_id] if ends else [])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_ids_of_blocks_equal_those_of_the_complete_text(tokenizer, small_blocks, tmp_path, text):
    encoded = encode_files([write_file(tmp_path, "x" + text)], tokenizer, tmp_path / "cache", documents=False)
    assert encoded.tokens.tolist() == encode_complete(tokenizer, "x" + text)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text() | TEXTS)
@pytest.mark.parametrize("kind", ["char", "byte"])
def test_char_and_byte_blocks_may_end_anywhere(kind, text, monkeypatch, tmp_path):
    monkeypatch.setattr(encode_module, "BLOCK_BYTES", 5)
    text = "x" + text.encode("utf-8", "replace").decode().replace("\r", "")
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 0)
    encoded = encode_files([write_file(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert encoded.tokens.tolist() == tokenizer.encode(text).tolist()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_split_text_keeps_the_ids(tokenizer, text):
    assert "".join(split_text(text, 20)) == text
    if tokenizer.kind != "word":
        assert (
            np.concatenate([tokenizer.encode(p) for p in split_text(text, 20)]).tolist()
            == tokenizer.encode(text).tolist()
        )


def test_a_line_that_ends_in_a_later_block_has_one_eos(small_blocks, tmp_path):
    tokenizer = train_tokenizer("word", lambda: ["a b"], 10)
    text = "a" + " " * 2000 + "\n" + " " * 2000 + "\n\nb" + "\n" * 2000 + "a"
    encoded = encode_files([write_file(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert tokenizer.token_texts(encoded.tokens) == ["a", "<eos>", "b", "<eos>", "a", "<eos>"]


def test_blocks_end_at_a_line_end_if_possible(tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "BLOCK_BYTES", 1024)
    blocks = list(read_blocks(Span(write_file(tmp_path, "some words\nin lines\n" * 500))))
    assert len(blocks) > 5
    assert all(block.endswith("\n") for block in blocks)


def test_a_block_stays_small_without_any_white_space(tmp_path):
    path = write_file(tmp_path, "ab" * (5 << 20))
    assert max(len(block) for block in read_blocks(Span(path))) <= 2 << 20


def test_crlf_and_a_byte_order_mark_are_normalized(tmp_path, monkeypatch):
    path = write_file(tmp_path, b"\xef\xbb\xbfa\r\n\r\r\nb\rc\r\n\xef\xbb\xbfd\r")
    for size in range(1, 25):
        monkeypatch.setattr(encode_module, "BLOCK_BYTES", size)
        assert "".join(read_blocks(Span(path))) == "a\n\r\nb\rc\n\ufeffd\r"


def test_spans_encode_parts_of_a_file(tokenizer, tmp_path):
    path = write_file(tmp_path, TEXT)
    offset = TEXT.encode().index("日".encode())
    for span, part in ((Span(path, 0, offset), TEXT.encode()[:offset]), (Span(path, offset), TEXT.encode()[offset:])):
        encoded = encode_files([span], tokenizer, tmp_path / "cache", documents=False)
        assert encoded.tokens.tolist() == encode_complete(tokenizer, part.decode())
        assert encoded.sha256 == hashlib.sha256(part).hexdigest()


def test_each_document_has_a_start_and_bpe_ends_it(tokenizer, tmp_path):
    paths = [write_file(tmp_path, text, name) for text, name in (("the fox\n", "a"), ("", "b"), ("the dog", "c"))]
    encoded = encode_files(paths, tokenizer, tmp_path / "cache", documents=True)
    ends = [tokenizer.end_id] if tokenizer.kind == "bpe" else []
    first, last = encode_complete(tokenizer, "the fox\n") + ends, encode_complete(tokenizer, "the dog") + ends
    assert encoded.tokens.tolist() == first + ends + last
    assert encoded.documents.tolist() == [0, len(first), len(first + ends)]
    joined = encode_files(paths, tokenizer, tmp_path / "cache", documents=False)
    assert joined.documents.tolist() == [0]
    assert joined.tokens.tolist() == encode_complete(tokenizer, "the fox\n") + encode_complete(tokenizer, "the dog")


def test_characters_words_and_bytes_are_counted(tokenizer, small_blocks, tmp_path):
    text = TEXT * 20
    encoded = encode_files([write_file(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert (encoded.n_characters, encoded.n_words, encoded.n_bytes) == (
        len(text),
        len(text.split()),
        len(text.encode()),
    )
    assert encoded.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert encoded.tokens.dtype == np.dtype("<u2")


@given(text=st.text() | st.text("a \n\t\x1c\x08\x0e"))
def test_count_words_equals_the_number_of_split_words(text):
    for repeated in (text, text * 300):
        assert count_words(repeated) == len(encode_module.WORD.findall(repeated))


def test_a_second_call_encodes_nothing(tokenizer, tmp_path, monkeypatch):
    path = write_file(tmp_path, TEXT)
    first = encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("encoded again"))
    second = encode_files([Span(path)], tokenizer, tmp_path / "cache", documents=False)
    assert isinstance(second.tokens, np.memmap)
    assert second.tokens.tolist() == first.tokens.tolist()
    assert (second.n_words, second.sha256) == (first.n_words, first.sha256)


def test_text_tokenizer_spans_and_documents_decide_the_cache_entry(tmp_path):
    first, second = (train_tokenizer("char", lambda text=text: [text], 0) for text in ("the fox", "the fax"))
    a, b, ab, nothing = (write_file(tmp_path, t, f"{n}.txt") for n, t in enumerate(["the", " fox", "the fox", ""]))
    calls = [
        ([a, b], first, True),
        ([a, b], first, False),
        ([a, b], second, True),
        ([ab], first, True),
        ([a, nothing, b], first, True),
    ]
    calls += [([Span(ab, 0, 2), Span(ab, 2)], first, True), ([b, a], first, True)]
    for files, tokenizer, documents in calls:
        encode_files(files, tokenizer, tmp_path / "cache", documents=documents)
    assert len(list((tmp_path / "cache").glob("*.bin"))) == len(calls)


@pytest.mark.parametrize(
    "damage", [(".bin", b"1"), (".bin", b"12"), (".bin", b""), (".json", b"{"), (".json", b"[]"), (".json", b"{}")]
)
def test_a_damaged_cache_entry_is_rewritten(damage, tmp_path):
    path, tokenizer = write_file(tmp_path, TEXT), train_tokenizer("char", lambda: [TEXT], 0)
    encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    next((tmp_path / "cache").glob(f"*{damage[0]}")).write_bytes(damage[1])
    encoded = encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    assert tokenizer.decode(encoded.tokens) == TEXT


def test_ids_are_synced_before_the_rename(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, function=function: (order.append(name), function(*a)))
    encode_files(
        [write_file(tmp_path, TEXT)], train_tokenizer("byte", lambda: [], 0), tmp_path / "cache", documents=False
    )
    assert order == ["fsync", "replace", "fsync"] * 2  # file, rename, folder


def test_concurrent_writers_of_one_entry_are_safe(tmp_path):
    path, tokenizer, start = (
        write_file(tmp_path, TEXT * 500),
        train_tokenizer("char", lambda: [TEXT], 0),
        threading.Barrier(4),
    )

    def write(_: int) -> bool:
        start.wait()
        encoded = encode_files([path], tokenizer, tmp_path / "cache", documents=False)
        return tokenizer.decode(encoded.tokens) == TEXT * 500

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(write, range(4)))
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == [".bin", ".json"]


def test_encoding_reports_its_progress(small_blocks, tmp_path):
    events = []
    encode_files(
        [write_file(tmp_path, "a b\r\n" * 500)],
        train_tokenizer("char", lambda: [TEXT], 0),
        tmp_path / "cache",
        documents=False,
        listen=lambda event, **facts: events.append((event, facts["done"], facts["total"])),
    )
    assert [event for event, *_ in events] == ["encode"] * len(events)
    assert len(events) > 3
    assert events == sorted(events)
    assert events[-1] == ("encode", 2500, 2500)


def test_many_spans_of_a_file_open_it_as_often_as_one(tmp_path, monkeypatch):
    path, tokenizer, paths = write_file(tmp_path, "ab\n" * 100), train_tokenizer("char", lambda: ["ab\n"], 0), []
    original_open = Path.open

    def counting_open(self, *args, **options):
        paths.append(self)
        return original_open(self, *args, **options)

    monkeypatch.setattr(Path, "open", counting_open)
    counts = []
    for spans in ([Span(path)], [Span(path, n, n + 3) for n in range(0, 300, 3)]):
        paths.clear()
        encode_files(spans, tokenizer, tmp_path / "cache", documents=True)
        counts.append(paths.count(path))
    assert counts[0] == counts[1]


def test_a_read_error_of_the_disk_is_reported(tmp_path, monkeypatch):
    class Failing(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    path = write_file(tmp_path, TEXT)
    monkeypatch.setattr(Path, "open", lambda *_: Failing())
    with pytest.raises(BadInput, match=r"notes\.txt: cannot be read \(Input/output error\); "):
        encode_files([Span(path, 0, 4)], train_tokenizer("byte", lambda: [], 0), tmp_path / "cache", documents=False)


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("start", [0, 8])
def test_invalid_utf8_is_reported_with_its_line(size, start, tmp_path, monkeypatch):
    monkeypatch.setattr(encode_module, "BLOCK_BYTES", size)
    path = write_file(tmp_path, "one\ntwo\nthré".encode("latin1"))
    with pytest.raises(BadInput) as caught:
        list(read_blocks(Span(path, start)))
    assert str(caught.value) == (
        f"{path}:3: byte 0xe9 at column 4 is not UTF-8 (probably Windows-1252); harken reads UTF-8; "
        f"set data.encoding=cp1252, or convert it: iconv -f cp1252 -t utf-8 {path} > {path.with_name('notes.utf8.txt')}"
    )


def test_a_partial_character_at_the_end_is_invalid_utf8(tmp_path):
    with pytest.raises(BadInput, match=r"notes\.txt:2: byte 0xe2 at column 1 is not UTF-8"):
        list(read_blocks(Span(write_file(tmp_path, b"one\n\xe2\x82"))))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_a_text_with_a_byte_order_mark_is_read_in_its_encoding(encoding, tmp_path):
    path = write_file(tmp_path, "eins\r\nzwei ü\n".encode(encoding))
    assert list(read_blocks(Span(path))) == ["eins\nzwei ü\n"]


def test_an_unreadable_text_leaves_no_cache_files(small_blocks, tmp_path):
    path = write_file(tmp_path, b"good words\n" * 500 + b"\xff")
    with pytest.raises(BadInput, match=r"notes\.txt:501: byte 0xff"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), tmp_path / "cache", documents=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_path_that_is_not_a_file_is_refused_in_one_line(tokenizer, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("nothing", "folder", "pipe", "loop"):
        with pytest.raises(BadInput, match=f"{name}: no such file; give the path of a text file"):
            encode_files([tmp_path / name], tokenizer, tmp_path / "cache", documents=False)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_refused(content, tmp_path):
    with pytest.raises(BadInput, match=r"notes\.txt: contains no tokens"):
        encode_files(
            [write_file(tmp_path, content)],
            train_tokenizer("char", lambda: ["a"], 0),
            tmp_path / "cache",
            documents=False,
        )


def test_a_text_that_changes_while_it_is_read_is_not_cached(tmp_path, monkeypatch):
    path, write = write_file(tmp_path, "before"), encode_module._write_cache

    def change_then_write(*arguments):
        path.write_text("behind")
        return write(*arguments)

    monkeypatch.setattr(encode_module, "_write_cache", change_then_write)
    with pytest.raises(BadInput, match=r"notes\.txt: changed while it was read"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), tmp_path / "cache", documents=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_folder_that_cannot_be_written_is_reported(tmp_path):
    path, cache = write_file(tmp_path, TEXT), write_file(tmp_path, "", "taken")
    with pytest.raises(BadInput, match="taken: cannot write the cached token ids"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), cache, documents=False)


PEAK = """
import resource, sys
from pathlib import Path
from harken.data.text.encode import Span, encode_files, read_blocks
from harken.data.tokenizers.tokenizer import train_tokenizer
folder = Path(sys.argv[1])
kinds = [train_tokenizer(kind, lambda: read_blocks(Span(folder / "small")), 1000) for kind in ("char", "word")]
for name in ("small", "large"):
    for tokenizer in kinds:
        encode_files([folder / name], tokenizer, folder / "cache", documents=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.process
def test_memory_does_not_grow_with_the_text(tmp_path):
    text = "".join(f"{TEXT} line {n}\n" for n in range(20_000))
    write_file(tmp_path, text, "small")
    write_file(tmp_path, text * (32_000_000 // len(text.encode())), "large")
    process = subprocess.run([sys.executable, "-c", PEAK, tmp_path], capture_output=True, check=True, text=True)
    small, large = map(int, process.stdout.split())
    assert large - small < 24_000
