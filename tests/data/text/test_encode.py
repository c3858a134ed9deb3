"""Files to ids: block by block as in one piece, found again, never half written, clear about what cannot be read."""

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

from harken.data.text import encode as module
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
    monkeypatch.setattr(module, "BLOCK", 128)


def written(folder: Path, content: str | bytes, name: str = "notes.txt") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in one piece; its last line ends even without a newline."""
    ends = tokenizer.kind == "word" and text.rpartition("\n")[2].strip(" \t\n\x0b\x85\u3000") != ""
    return tokenizer.encode(text).tolist() + ([tokenizer.end_id] if ends else [])


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_ids_block_by_block_are_the_ids_of_the_whole_text(tokenizer, small_blocks, tmp_path, text):
    encoded = encode_files([written(tmp_path, "x" + text)], tokenizer, tmp_path / "cache", documents=False)
    assert encoded.tokens.tolist() == whole(tokenizer, "x" + text)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=st.text() | TEXTS)
@pytest.mark.parametrize("kind", ["char", "byte"])
def test_characters_and_bytes_may_be_cut_anywhere(kind, text, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "BLOCK", 5)
    text = "x" + text.encode("utf-8", "replace").decode().replace("\r", "")
    tokenizer = train_tokenizer(kind, lambda: [TEXT], 0)
    encoded = encode_files([written(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert encoded.tokens.tolist() == tokenizer.encode(text).tolist()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=TEXTS)
def test_pieces_of_a_text_have_the_ids_of_the_text(tokenizer, text):
    assert "".join(split_text(text, 20)) == text
    if tokenizer.kind != "word":
        assert (
            np.concatenate([tokenizer.encode(p) for p in split_text(text, 20)]).tolist()
            == tokenizer.encode(text).tolist()
        )


def test_a_line_that_ends_in_a_later_block_has_one_eos(small_blocks, tmp_path):
    tokenizer = train_tokenizer("word", lambda: ["a b"], 10)
    text = "a" + " " * 2000 + "\n" + " " * 2000 + "\n\nb" + "\n" * 2000 + "a"
    encoded = encode_files([written(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert tokenizer.token_texts(encoded.tokens) == ["a", "<eos>", "b", "<eos>", "a", "<eos>"]


def test_blocks_end_with_a_line_where_they_can(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 1024)
    blocks = list(read_blocks(Span(written(tmp_path, "some words\nin lines\n" * 500))))
    assert len(blocks) > 5
    assert all(block.endswith("\n") for block in blocks)


def test_a_block_stays_small_without_any_white_space(tmp_path):
    path = written(tmp_path, "ab" * (5 << 20))
    assert max(len(block) for block in read_blocks(Span(path))) <= 2 << 20


def test_carriage_returns_before_newlines_and_a_byte_order_mark_are_not_text(tmp_path, monkeypatch):
    path = written(tmp_path, b"\xef\xbb\xbfa\r\n\r\r\nb\rc\r\n\xef\xbb\xbfd\r")
    for size in range(1, 25):
        monkeypatch.setattr(module, "BLOCK", size)
        assert "".join(read_blocks(Span(path))) == "a\n\r\nb\rc\n\ufeffd\r"


def test_spans_of_a_file_give_its_parts(tokenizer, tmp_path):
    path = written(tmp_path, TEXT)
    cut = TEXT.encode().index("日".encode())
    for span, part in ((Span(path, 0, cut), TEXT.encode()[:cut]), (Span(path, cut), TEXT.encode()[cut:])):
        encoded = encode_files([span], tokenizer, tmp_path / "cache", documents=False)
        assert encoded.tokens.tolist() == whole(tokenizer, part.decode())
        assert encoded.sha256 == hashlib.sha256(part).hexdigest()


def test_each_document_has_its_start_and_byte_pairs_end_it(tokenizer, tmp_path):
    paths = [written(tmp_path, text, name) for text, name in (("the fox\n", "a"), ("", "b"), ("the dog", "c"))]
    encoded = encode_files(paths, tokenizer, tmp_path / "cache", documents=True)
    ends = [tokenizer.end_id] if tokenizer.kind == "bpe" else []
    first, last = whole(tokenizer, "the fox\n") + ends, whole(tokenizer, "the dog") + ends
    assert encoded.tokens.tolist() == first + ends + last
    assert encoded.documents.tolist() == [0, len(first), len(first + ends)]
    joined = encode_files(paths, tokenizer, tmp_path / "cache", documents=False)
    assert joined.documents.tolist() == [0]
    assert joined.tokens.tolist() == whole(tokenizer, "the fox\n") + whole(tokenizer, "the dog")


def test_characters_words_and_bytes_are_counted(tokenizer, small_blocks, tmp_path):
    text = TEXT * 20
    encoded = encode_files([written(tmp_path, text)], tokenizer, tmp_path / "cache", documents=False)
    assert (encoded.n_characters, encoded.n_words, encoded.n_bytes) == (
        len(text),
        len(text.split()),
        len(text.encode()),
    )
    assert encoded.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert encoded.tokens.dtype == np.dtype("<u2")


@given(text=st.text() | st.text("a \n\t\x1c\x08\x0e"))
def test_counting_words_is_splitting_them(text):
    for given_ in (text, text * 300):
        assert count_words(given_) == len(module.WORD.findall(given_))


def test_a_second_call_encodes_nothing(tokenizer, tmp_path, monkeypatch):
    path = written(tmp_path, TEXT)
    first = encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("encoded again"))
    second = encode_files([Span(path)], tokenizer, tmp_path / "cache", documents=False)
    assert isinstance(second.tokens, np.memmap)
    assert second.tokens.tolist() == first.tokens.tolist()
    assert (second.n_words, second.sha256) == (first.n_words, first.sha256)


def test_another_text_tokenizer_cut_or_kind_of_documents_is_another_entry(tmp_path):
    one, two = (train_tokenizer("char", lambda text=text: [text], 0) for text in ("the fox", "the fax"))
    a, b, ab, nothing = (written(tmp_path, t, f"{n}.txt") for n, t in enumerate(["the", " fox", "the fox", ""]))
    calls = [
        ([a, b], one, True),
        ([a, b], one, False),
        ([a, b], two, True),
        ([ab], one, True),
        ([a, nothing, b], one, True),
    ]
    calls += [([Span(ab, 0, 2), Span(ab, 2)], one, True), ([b, a], one, True)]
    for files, tokenizer, documents in calls:
        encode_files(files, tokenizer, tmp_path / "cache", documents=documents)
    assert len(list((tmp_path / "cache").glob("*.bin"))) == len(calls)


@pytest.mark.parametrize(
    "damage", [(".bin", b"1"), (".bin", b"12"), (".bin", b""), (".json", b"{"), (".json", b"[]"), (".json", b"{}")]
)
def test_a_damaged_entry_is_written_anew(damage, tmp_path):
    path, tokenizer = written(tmp_path, TEXT), train_tokenizer("char", lambda: [TEXT], 0)
    encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    next((tmp_path / "cache").glob(f"*{damage[0]}")).write_bytes(damage[1])
    encoded = encode_files([path], tokenizer, tmp_path / "cache", documents=False)
    assert tokenizer.decode(encoded.tokens) == TEXT


def test_ids_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        act = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, act=act: (order.append(name), act(*a)))
    encode_files([written(tmp_path, TEXT)], train_tokenizer("byte", lambda: [], 0), tmp_path / "cache", documents=False)
    assert order == ["fsync", "replace", "replace"]


def test_writers_of_the_same_entry_do_not_harm_each_other(tmp_path):
    path, tokenizer, start = (
        written(tmp_path, TEXT * 500),
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


def test_encoding_tells_how_far_it_is(small_blocks, tmp_path):
    heard = []
    encode_files(
        [written(tmp_path, "a b\r\n" * 500)],
        train_tokenizer("char", lambda: [TEXT], 0),
        tmp_path / "cache",
        documents=False,
        listen=lambda event, **facts: heard.append((event, facts["done"], facts["total"])),
    )
    assert [event for event, *_ in heard] == ["encode"] * len(heard)
    assert len(heard) > 3
    assert heard == sorted(heard)
    assert heard[-1] == ("encode", 2500, 2500)


def test_a_file_is_opened_no_more_often_for_many_spans_than_for_one(tmp_path, monkeypatch):
    path, tokenizer, opened = written(tmp_path, "ab\n" * 100), train_tokenizer("char", lambda: ["ab\n"], 0), []
    opens = Path.open

    def noted(self, *given, **options):
        opened.append(self)
        return opens(self, *given, **options)

    monkeypatch.setattr(Path, "open", noted)
    found = []
    for spans in ([Span(path)], [Span(path, n, n + 3) for n in range(0, 300, 3)]):
        opened.clear()
        encode_files(spans, tokenizer, tmp_path / "cache", documents=True)
        found.append(opened.count(path))
    assert found[0] == found[1]


def test_a_disk_that_fails_while_it_is_read_is_told_as_that(tmp_path, monkeypatch):
    class Failing(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    path = written(tmp_path, TEXT)
    monkeypatch.setattr(Path, "open", lambda *_: Failing())
    with pytest.raises(BadInput, match=r"notes\.txt: cannot be read \(Input/output error\); "):
        encode_files([Span(path, 0, 4)], train_tokenizer("byte", lambda: [], 0), tmp_path / "cache", documents=False)


@pytest.mark.parametrize("size", [7, 1 << 20])
@pytest.mark.parametrize("start", [0, 8])
def test_a_byte_that_is_not_utf8_is_named_with_its_line(size, start, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", size)
    path = written(tmp_path, "one\ntwo\nthré".encode("latin1"))
    with pytest.raises(BadInput) as caught:
        list(read_blocks(Span(path, start)))
    assert str(caught.value) == (
        f"{path}:3: byte 0xe9 at column 4 is not UTF-8 (it looks like Latin-1); harken reads UTF-8; "
        f"convert it: iconv -f latin1 -t utf-8 {path} > {path.with_name('notes.utf8.txt')}"
    )


def test_half_a_character_at_the_end_is_not_utf8(tmp_path):
    with pytest.raises(BadInput, match=r"notes\.txt:2: byte 0xe2 at column 1 is not UTF-8"):
        list(read_blocks(Span(written(tmp_path, b"one\n\xe2\x82"))))


def test_a_file_of_wide_characters_is_told_as_utf16(tmp_path):
    with pytest.raises(BadInput, match=r"notes\.txt:1: byte 0xff .* \(it looks like UTF-16\); .* iconv -f utf-16 "):
        list(read_blocks(Span(written(tmp_path, "text".encode("utf-16")))))


def test_nothing_is_left_of_a_text_that_cannot_be_read(small_blocks, tmp_path):
    path = written(tmp_path, b"good words\n" * 500 + b"\xff")
    with pytest.raises(BadInput, match=r"notes\.txt:501: byte 0xff"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), tmp_path / "cache", documents=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_is_no_file_is_refused_in_one_line(tokenizer, tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("nothing", "folder", "pipe", "loop"):
        with pytest.raises(BadInput, match=f"{name}: no such file; a regular text file is needed"):
            encode_files([tmp_path / name], tokenizer, tmp_path / "cache", documents=False)


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_refused(content, tmp_path):
    with pytest.raises(BadInput, match=r"notes\.txt: no text in it"):
        encode_files(
            [written(tmp_path, content)], train_tokenizer("char", lambda: ["a"], 0), tmp_path / "cache", documents=False
        )


def test_a_text_that_changes_while_it_is_read_is_not_kept(tmp_path, monkeypatch):
    path, write = written(tmp_path, "before"), module._write_cache

    def late(*arguments):
        path.write_text("behind")
        return write(*arguments)

    monkeypatch.setattr(module, "_write", late)
    with pytest.raises(BadInput, match=r"notes\.txt: changed while it was read"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), tmp_path / "cache", documents=False)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    path, place = written(tmp_path, TEXT), written(tmp_path, "", "taken")
    with pytest.raises(BadInput, match="taken: cannot keep the ids of a text"):
        encode_files([path], train_tokenizer("char", lambda: [TEXT], 0), place, documents=False)


PEAK = """
import resource, sys
from pathlib import Path
from harken.data.encode import Span, encode_files, read_blocks
from harken.data.tokens import train
folder = Path(sys.argv[1])
kinds = [train(kind, lambda: read_blocks(Span(folder / "small")), 1000) for kind in ("char", "word")]
for name in ("small", "large"):
    for tokenizer in kinds:
        encode_files([folder / name], tokenizer, folder / "cache", documents=False)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.process
def test_memory_does_not_grow_with_the_text(tmp_path):
    text = "".join(f"{TEXT} line {n}\n" for n in range(20_000))
    written(tmp_path, text, "small")
    written(tmp_path, text * (32_000_000 // len(text.encode())), "large")
    answer = subprocess.run([sys.executable, "-c", PEAK, tmp_path], capture_output=True, check=True, text=True)
    small, large = map(int, answer.stdout.split())
    assert large - small < 24_000
