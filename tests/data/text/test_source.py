"""Text files to token streams: splits, mixed texts, documents, cache and errors."""

import tomllib
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from harken.data.synthetic.tales import tales
from harken.data.text import encode
from harken.data.text.source import TextData, TextSource
from harken.errors import BadInput, BadSetting

LINE = "abcdefghij" * 10 + "\n"


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def load(path: Path, **settings) -> TextData:
    return TextSource(path=str(path), **settings).load_data()


def decoded(data: TextData, split: str = "train", text: int = 0) -> str:
    """The text of a split, decoded from its tokens."""
    streams = data.train if split == "train" else data.splits[split]
    return data.tokenizer.decode(streams[text].tokens)


# --- splits -----------------------------------------------------------------------------------------------------------


def test_a_file_is_split_after_nine_tenths_of_its_characters(tmp_path):
    text = "".join(chr(97 + n * n % 26) for n in range(10_007))
    data = load(write(tmp_path, "a.txt", text))
    assert decoded(data) == text[: int(0.9 * 10_007)]
    assert decoded(data, "valid") == text[int(0.9 * 10_007) :]


def test_valid_and_test_fractions_are_taken_from_the_end(tmp_path):
    text = LINE * 10
    data = load(write(tmp_path, "a.txt", text), valid=0.1, test=0.2)
    parts = [decoded(data), decoded(data, "valid"), decoded(data, "test")]
    assert "".join(parts) == text
    assert [round(len(part) / len(text), 2) for part in parts] == [0.7, 0.1, 0.2]


def test_a_fraction_of_0_gives_no_valid_split(tmp_path):
    assert load(write(tmp_path, "a.txt", LINE), valid=0).splits == {}


@pytest.mark.parametrize("fraction", [0.03, 0.1, 0.3, 0.34, 0.5])
def test_a_split_never_divides_a_character(tmp_path, fraction):
    text = "aé漢😀" * 25
    data = load(write(tmp_path, "a.txt", text), valid=fraction)
    assert decoded(data) + decoded(data, "valid") == text


def test_a_split_in_the_last_character_keeps_it_in_train(tmp_path):
    assert decoded(load(write(tmp_path, "a.txt", "ab漢"), valid=0.3)) == "ab漢"


def test_a_split_never_divides_crlf(tmp_path):
    path = write(tmp_path, "a.txt", "ab\r\n" * 100)
    for fraction in (0.1, 0.1025, 0.105, 0.1075):
        assert "\r" not in decoded(load(path, valid=fraction))


@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_word_and_bpe_texts_are_split_between_lines(tmp_path, tokenizer):
    lines = [f"line number {n} of the text\n" for n in range(97)]
    data = load(write(tmp_path, "a.txt", "".join(lines)), tokenizer=tokenizer)
    train_lines, valid_lines = (
        decoded(data, split).removesuffix("<|endoftext|>").splitlines() for split in ("train", "valid")
    )
    assert train_lines == [line.strip() for line in lines[: len(train_lines)]]
    assert len(valid_lines) == 9


def test_a_very_long_line_is_split_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.data.text.source.MAX_LINE_BYTES", 10)
    data = load(write(tmp_path, "a.txt", "漢" * 1000), tokenizer="bpe")
    assert sum(decoded(data, split).count("漢") for split in ("train", "valid")) == 1000


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev"])
def test_files_of_a_folder_are_splits_by_name(tmp_path, name):
    for split in ("train", name, "test"):
        write(tmp_path, f"ptb/ptb.{split}.txt", f"{split} text\n")
    data = load(tmp_path / "ptb", tokenizer="byte")
    assert [decoded(data), decoded(data, "valid"), decoded(data, "test")] == [
        "train text\n",
        f"{name} text\n",
        "test text\n",
    ]


def test_a_split_name_must_be_a_complete_word(tmp_path):
    write(tmp_path, "texts/trainspotting.txt", "about trains\n" * 20)
    write(tmp_path, "texts/contest.txt", "about contests\n" * 20)
    data = load(tmp_path / "texts", valid=0)
    assert decoded(data) == "about contests\n" * 20 + "about trains\n" * 20


def test_a_folder_without_a_valid_file_holds_out_the_end_of_train(tmp_path):
    write(tmp_path, "d/train.txt", "x" * 90 + "y" * 10)
    write(tmp_path, "d/test.txt", "zz")
    data = load(tmp_path / "d", tokenizer="byte")
    assert [decoded(data), decoded(data, "valid")] == ["x" * 90, "y" * 10]


def test_a_test_fraction_is_used_without_a_test_file(tmp_path):
    write(tmp_path, "d/train.txt", "x" * 80 + "y" * 20)
    write(tmp_path, "d/valid.txt", "xxxx")
    assert decoded(load(tmp_path / "d", test=0.2, tokenizer="byte"), "test") == "y" * 20


def test_files_named_by_settings_are_the_splits(tmp_path):
    a, b, c = (write(tmp_path, name, text) for name, text in {"1.txt": "aaaa", "2.txt": "bbab", "3.txt": "bb"}.items())
    data = TextSource(train=str(a), valid=str(b), test=str(c)).load_data()
    assert decoded(data) == "aaaa"
    assert [len(data.splits[s][0].tokens) for s in ("valid", "test")] == [4, 2]


def test_the_vocabulary_comes_from_the_training_text_only(tmp_path):
    data = load(write(tmp_path, "a.txt", "a" * 90 + "b" * 10))
    assert data.vocab == 2  # a, and <unk>
    assert set(data.splits["valid"][0].tokens.tolist()) == {1}


def test_hidden_files_of_a_folder_are_skipped(tmp_path):
    write(tmp_path, "d/.secret", "no")
    write(tmp_path, "d/a.txt", "yes yes")
    assert decoded(load(tmp_path / "d", valid=0)) == "yes yes"


# --- reading ----------------------------------------------------------------------------------------------------------


def test_words_are_counted_as_in_lab_01(tmp_path):
    """One <eos> per line; the N most frequent words, the rest <unk>. Counted by hand."""
    lines = ["the cat saw the dog", "the dog <unk> ran", "", "a cat ran"]
    data = load(write(tmp_path, "a.txt", "\n".join(lines) + "\n"), tokenizer="word", vocab_size=6, valid=0)
    words = [w for line in lines if line for w in [*line.split(), "<eos>"]]
    frequent = [w for w, _ in Counter(w for w in words if w not in ("<unk>", "<eos>")).most_common(4)]
    assert len(data.train[0].tokens) == len(words)
    assert data.tokenizer.token_texts(data.train[0].tokens) == [
        w if w in (*frequent, "<eos>") else "<unk>" for w in words
    ]


def test_a_byte_order_mark_is_skipped(tmp_path):
    assert decoded(load(write(tmp_path, "a.txt", "\ufeffhello\n" * 1), valid=0)) == "hello\n"


def test_windows_line_ends_are_newlines(tmp_path):
    assert decoded(load(write(tmp_path, "a.txt", "one\r\ntwo\r\n"), valid=0)) == "one\ntwo\n"


def test_invalid_utf8_is_reported_with_file_and_line(tmp_path):
    path = write(tmp_path, "a.txt", b"fine\nfine too\ncaf\xe9\n")
    with pytest.raises(BadInput, match=rf"^{path}:3: byte 0xe9 at column 4 is not UTF-8 .*iconv"):
        load(path)


def test_examples_are_the_first_lines_of_the_training_text(tmp_path):
    path = write(tmp_path, "a.txt", "".join(f"line {n}\n" for n in range(100)))
    complete, limited = load(path), load(path, examples=7)
    assert decoded(limited) == "".join(f"line {n}\n" for n in range(7))
    assert len(limited.splits["valid"][0].tokens) == len(complete.splits["valid"][0].tokens)


def test_examples_are_counted_over_the_files_of_a_folder(tmp_path):
    write(tmp_path, "d/a.txt", "1\n2\n3\n")
    write(tmp_path, "d/b.txt", "4\n5\n6\n")
    assert decoded(load(tmp_path / "d", examples=4, valid=0)) == "1\n2\n3\n4\n"


def test_more_examples_than_lines_use_all_lines(tmp_path):
    assert decoded(load(write(tmp_path, "a.txt", "1\n2\n"), examples=99, valid=0)) == "1\n2\n"


# --- mixed texts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed_folder(tmp_path, monkeypatch) -> Path:
    write(tmp_path, "a.txt", "aaaaaaaaa\n" * 10)
    write(tmp_path, "b.v2.txt", "bbbbbbbbb\n" * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_file_names_that_toml_parses_as_tables_are_restored(mixed_folder):
    mix = tomllib.loads("mix = {a.txt = 0.6, b.v2.txt = 0.4}")["mix"]
    assert TextSource(mix=mix).mix == {"a.txt": 0.6, "b.v2.txt": 0.4}


def test_each_mixed_text_is_a_separate_stream_with_a_held_out_end(mixed_folder):
    data = TextSource(mix={"a.txt": 0.6, "b.v2.txt": 0.4}).load_data()
    assert [decoded(data, text=n) for n in (0, 1)] == ["aaaaaaaaa\n" * 9, "bbbbbbbbb\n" * 18]
    assert [decoded(data, "valid", text=n) for n in (0, 1)] == ["aaaaaaaaa\n", "bbbbbbbbb\n" * 2]
    assert (data.names, data.weights) == (("a.txt", "b.v2.txt"), [0.6, 0.4])


def test_mixed_texts_are_named_relative_to_their_common_folder(mixed_folder):
    write(mixed_folder, "c/a.txt", "ccccccccc\n" * 10)
    mix = TextSource(mix={"a.txt": 1, "c/a.txt": 1})
    assert mix.load_data().names == mix.with_absolute_paths().load_data().names == ("a.txt", "c/a.txt")


def test_a_mixed_folder_does_not_train_on_its_test_file(mixed_folder):
    for split in ("train", "valid", "test"):
        write(mixed_folder, f"c/{split}.txt", f"{split}\n" * 5)
    data = TextSource(mix={"a.txt": 1, "c": 1}, tokenizer="byte").load_data()
    assert decoded(data, text=1) == "train\n" * 5
    assert decoded(data, "valid", text=1) == "valid\n" * 5


def test_mixed_texts_can_use_one_valid_file(mixed_folder):
    data = TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, valid=str(write(mixed_folder, "v.txt", "abab"))).load_data()
    assert decoded(data, "valid") == "abab"


def test_examples_apply_to_each_mixed_text(mixed_folder):
    data = TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, examples=2).load_data()
    assert [decoded(data, text=n) for n in (0, 1)] == ["aaaaaaaaa\n" * 2, "bbbbbbbbb\n" * 2]


def test_a_mixed_text_too_short_to_hold_out_is_not_in_valid(mixed_folder):
    write(mixed_folder, "c.txt", "one line only\n")
    data = TextSource(mix={"a.txt": 1, "c.txt": 1, "b.v2.txt": 1}, tokenizer="word").load_data()
    assert data.split_names == {"valid": ("a.txt", "b.v2.txt")}
    assert len(data.splits["valid"]) == 2


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (float("inf"), 1), (float("nan"), 1)])
def test_invalid_weights_are_refused(weights):
    with pytest.raises(ValueError, match="weights must be at least 0"):
        TextSource(mix={"a.txt": weights[0], "b.txt": weights[1]})


def test_mixed_texts_need_windows(mixed_folder):
    with pytest.raises(BadSetting, match=r"^data.mix: mixed texts need data.batching=windows, not packed"):
        TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, batching="packed").load_data()


# --- documents --------------------------------------------------------------------------------------------------------


def documents(data: TextData) -> list[str]:
    tokenizer, starts = data.train[0].tokens, data.train[0].documents
    return [data.tokenizer.decode(piece) for piece in np.split(tokenizer, starts[1:])]


@pytest.mark.parametrize(
    ("boundary", "pieces"),
    [
        ("line", ["one\n", "two\n", "\n", "three\n"]),
        ("blank", ["one\ntwo\n\n", "three\n"]),
        ("file", ["one\ntwo\n\nthree\n"]),
    ],
)
def test_the_documents_setting_decides_the_boundary(tmp_path, boundary, pieces):
    path = write(tmp_path, "a.txt", "one\ntwo\n\nthree\n")
    assert documents(load(path, batching="packed", documents=boundary, valid=0)) == pieces


def test_each_file_of_a_folder_is_a_document(tmp_path):
    for name in ("b", "a", "c"):
        write(tmp_path, f"d/{name}.txt", name * 3)
    assert documents(load(tmp_path / "d", batching="packed", valid=0)) == ["aaa", "bbb", "ccc"]


# --- cache and hash ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
def test_a_text_is_encoded_once(tmp_path, monkeypatch, tokenizer):
    path = write(tmp_path, "a.txt", "\n".join(tales(20)))
    first = load(path, tokenizer=tokenizer)

    def fail(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(encode, "_write_cache", fail)
    second = load(path, tokenizer=tokenizer)
    assert np.array_equal(first.train[0].tokens, second.train[0].tokens)
    assert isinstance(second.train[0].tokens, np.memmap)


def test_a_changed_text_is_encoded_anew(tmp_path):
    path = write(tmp_path, "a.txt", "aaaa")
    load(path, valid=0)
    write(tmp_path, "a.txt", "abab")
    assert decoded(load(path, valid=0)) == "abab"


def test_a_recipe_for_another_text_is_refused(tmp_path):
    path = write(tmp_path, "a.txt", LINE)
    digest = load(path).sha256
    write(tmp_path, "a.txt", LINE.replace("a", "b"))
    with pytest.raises(BadInput, match=rf"^{path}: SHA-256 mismatch: the files differ from those of this recipe"):
        load(path, sha256=digest)


def test_a_recipe_for_this_text_is_accepted(tmp_path):
    path = write(tmp_path, "a.txt", LINE)
    assert load(path, sha256=load(path).sha256).sha256 == load(path).sha256


def test_with_absolute_paths_makes_paths_absolute(mixed_folder):
    write(mixed_folder, "v.txt", "aa")
    source = TextSource(mix={"a.txt": 1, "b.v2.txt": 2}, valid="v.txt", test=0.1).with_absolute_paths()
    assert source.mix == {str(mixed_folder / "a.txt"): 1, str(mixed_folder / "b.v2.txt"): 2}
    assert (source.valid, source.test) == (str(mixed_folder / "v.txt"), 0.1)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["char", "byte", "word", "bpe"])
def test_an_empty_file_is_refused(tmp_path, tokenizer):
    path = write(tmp_path, "a.txt", "")
    with pytest.raises(BadInput, match=rf"^{path}: no training text; give a longer text$"):
        load(path, tokenizer=tokenizer)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(BadInput, match=rf"^{tmp_path}/no.txt: no such file; check the name$"):
        load(tmp_path / "no.txt")


def test_an_empty_folder_is_reported(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(BadInput, match=r"d: a folder without data files; "):
        load(tmp_path / "d")


def test_a_missing_path_is_reported():
    with pytest.raises(BadSetting, match=r"^data.path is missing; name a file or a folder"):
        TextSource().load_data()


@pytest.mark.parametrize("fractions", [{"valid": 1.0}, {"valid": -0.1}, {"valid": 0.6, "test": 0.5}])
def test_fractions_that_leave_no_training_text_are_refused(tmp_path, fractions):
    with pytest.raises(BadSetting, match=r"^data.valid = .* fractions and their sum must lie in \[0, 1\)$"):
        load(write(tmp_path, "a.txt", LINE), **fractions)


# --- another text -----------------------------------------------------------------------------------------------------

TABLE = "text,label\n" + "".join(f"the cat {n} sat,{'ab'[n % 2]}\n" for n in range(100))


def load_other(path: Path, other_path: Path, **settings) -> TextData:
    source = TextSource(path=str(path), **settings)
    return source.load_split(str(other_path), "test", tokenizer=source.load_data().tokenizer)


def test_another_text_becomes_a_split_of_the_data(tmp_path):
    data = load_other(write(tmp_path, "a.txt", LINE[:100]), write(tmp_path, "b.txt", "jihgfedcba"))
    assert (decoded(data), decoded(data, "valid"), decoded(data, "test")) == (LINE[:90], LINE[90:100], "jihgfedcba")
    assert data.has_train


def test_another_text_is_used_alone_if_the_training_text_is_missing(tmp_path):
    source, notices = TextSource(path=str(tmp_path / "gone.txt")), []
    tokenizer, other_path = load(write(tmp_path, "a.txt", LINE)).tokenizer, write(tmp_path, "b.txt", "abc\n")
    data = source.load_split(
        str(other_path), "test", tokenizer=tokenizer, listen=lambda event, **facts: notices.append(facts)
    )
    assert list(data.splits) == ["test"]
    assert not data.has_train
    assert notices[-1]["text"].startswith("no baselines: they need the training data, which cannot be loaded (")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            TABLE,
            r"b\.txt: detected as table \(2 columns separated by commas, .*\); this run needs plain text; "
            r"give a text file$",
        ),
        (b"caf\xe9 au lait\n", r"b\.txt:1: byte 0xe9 at column 4 is not UTF-8 \(probably Windows-1252\); "),
        (b"", r"b\.txt: an empty file; "),
        ("a", r"b\.txt: fewer than 2 tokens to evaluate; give a longer text$"),
    ],
)
def test_another_file_that_is_not_text_is_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(BadInput, match=message):
        load_other(write(tmp_path, "a.txt", LINE), write(tmp_path, "b.txt", content))


def test_a_run_that_trained_on_a_table_as_text_is_evaluated_on_tables(tmp_path):
    data = load_other(write(tmp_path, "a.csv", TABLE), write(tmp_path, "b.csv", TABLE.replace("cat", "sat")))
    assert decoded(data, "test") == TABLE.replace("cat", "sat")


def test_a_plugin_for_another_format_overrides_only_files(tmp_path):
    class LowercasedText(TextSource):
        """Reads text in lowercase."""

        kind: str = "lowercased"

        def files(self, path: Path) -> list[Path]:
            return [write(tmp_path, f"read/{f.name}", f.read_text().lower()) for f in super().files(path)]

    for name in ("a", "b", "c"):
        write(tmp_path, f"{name}.txt", f"{name.upper()}{TABLE.upper()}")
    a, b, c = (str(tmp_path / f"{name}.txt") for name in "abc")
    single = LowercasedText(path=a, valid=b).load_data()
    assert (decoded(single), decoded(single, "valid")) == (f"a{TABLE}", f"b{TABLE}")
    mixed = LowercasedText(mix={a: 1, b: 1}, valid=c)
    assert [decoded(mixed.load_data(), text=n)[0] for n in (0, 1)] == ["a", "b"]
    assert decoded(mixed.load_split(c, "test", tokenizer=mixed.load_data().tokenizer), "test") == f"c{TABLE}"


# --- size -------------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_text(tmp_path):
    def peak_memory(lines: int) -> int:
        path = write(tmp_path, f"{lines}.txt", LINE * lines)
        tracemalloc.start()
        try:
            data = load(path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert len(data.train[0].tokens) == int(0.9 * 101 * lines)

    load(write(tmp_path, "first.txt", LINE))
    assert peak_memory(200_000) - peak_memory(40_000) < 1e6  # 20 MB and 4 MB of text
