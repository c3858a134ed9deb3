"""From files to streams of tokens: what is learned from, what is held out, and what is said when it is wrong."""

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

LETTERS = "abcdefghij" * 10 + "\n"


def put(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def opened(path: Path, **settings) -> TextData:
    return TextSource(path=str(path), **settings).load_data()


def told(data: TextData, split: str = "train", text: int = 0) -> str:
    """The text of a split, read back from its tokens."""
    streams = data.train if split == "train" else data.splits[split]
    return data.tokenizer.decode(streams[text].tokens)


# --- splits -----------------------------------------------------------------------------------------------------------


def test_a_file_is_cut_where_nine_tenths_of_its_characters_end(tmp_path):
    text = "".join(chr(97 + n * n % 26) for n in range(10_007))
    data = opened(put(tmp_path, "a.txt", text))
    assert told(data) == text[: int(0.9 * 10_007)]
    assert told(data, "valid") == text[int(0.9 * 10_007) :]


def test_valid_and_test_shares_are_both_taken_from_the_end(tmp_path):
    text = LETTERS * 10
    data = opened(put(tmp_path, "a.txt", text), valid=0.1, test=0.2)
    parts = [told(data), told(data, "valid"), told(data, "test")]
    assert "".join(parts) == text
    assert [round(len(part) / len(text), 2) for part in parts] == [0.7, 0.1, 0.2]


def test_no_share_leaves_no_valid_split(tmp_path):
    assert opened(put(tmp_path, "a.txt", LETTERS), valid=0).splits == {}


@pytest.mark.parametrize("share", [0.03, 0.1, 0.3, 0.34, 0.5])
def test_a_cut_never_splits_a_character(tmp_path, share):
    text = "aé漢😀" * 25
    data = opened(put(tmp_path, "a.txt", text), valid=share)
    assert told(data) + told(data, "valid") == text


def test_a_cut_in_the_last_character_leaves_it_whole(tmp_path):
    assert told(opened(put(tmp_path, "a.txt", "ab漢"), valid=0.3)) == "ab漢"


def test_a_cut_never_splits_a_newline_of_two_bytes(tmp_path):
    path = put(tmp_path, "a.txt", "ab\r\n" * 100)
    for share in (0.1, 0.1025, 0.105, 0.1075):
        assert "\r" not in told(opened(path, valid=share))


@pytest.mark.parametrize("tokens", ["word", "bpe"])
def test_words_and_byte_pairs_are_cut_between_lines(tmp_path, tokens):
    lines = [f"line number {n} of the text\n" for n in range(97)]
    data = opened(put(tmp_path, "a.txt", "".join(lines)), tokens=tokens)
    learned, held = (told(data, split).removesuffix("<|endoftext|>").splitlines() for split in ("train", "valid"))
    assert learned == [line.strip() for line in lines[: len(learned)]]
    assert len(held) == 9


def test_an_endless_line_is_cut_between_characters(tmp_path, monkeypatch):
    monkeypatch.setattr("harken.data.text.source.MAX_LINE_BYTES", 10)
    data = opened(put(tmp_path, "a.txt", "漢" * 1000), tokenizer="bpe")
    assert sum(told(data, split).count("漢") for split in ("train", "valid")) == 1000


@pytest.mark.parametrize("name", ["valid", "validation", "val", "dev"])
def test_files_of_a_folder_are_the_splits_they_are_named_for(tmp_path, name):
    for split in ("train", name, "test"):
        put(tmp_path, f"ptb/ptb.{split}.txt", f"{split} text\n")
    data = opened(tmp_path / "ptb", tokenizer="byte")
    assert [told(data), told(data, "valid"), told(data, "test")] == ["train text\n", f"{name} text\n", "test text\n"]


def test_a_name_counts_only_as_a_whole_word(tmp_path):
    put(tmp_path, "texts/trainspotting.txt", "about trains\n" * 20)
    put(tmp_path, "texts/contest.txt", "about contests\n" * 20)
    data = opened(tmp_path / "texts", valid=0)
    assert told(data) == "about contests\n" * 20 + "about trains\n" * 20


def test_a_folder_without_a_valid_file_holds_out_the_end_of_train(tmp_path):
    put(tmp_path, "d/train.txt", "x" * 90 + "y" * 10)
    put(tmp_path, "d/test.txt", "zz")
    data = opened(tmp_path / "d", tokenizer="byte")
    assert [told(data), told(data, "valid")] == ["x" * 90, "y" * 10]


def test_a_test_share_is_taken_where_no_test_file_is(tmp_path):
    put(tmp_path, "d/train.txt", "x" * 80 + "y" * 20)
    put(tmp_path, "d/valid.txt", "xxxx")
    assert told(opened(tmp_path / "d", test=0.2, tokenizer="byte"), "test") == "y" * 20


def test_given_files_are_taken_as_they_are_given(tmp_path):
    a, b, c = (put(tmp_path, name, text) for name, text in {"1.txt": "aaaa", "2.txt": "bbab", "3.txt": "bb"}.items())
    data = TextSource(train=str(a), valid=str(b), test=str(c)).load_data()
    assert told(data) == "aaaa"
    assert [len(data.splits[s][0].tokens) for s in ("valid", "test")] == [4, 2]


def test_the_vocabulary_is_learned_from_the_training_text_alone(tmp_path):
    data = opened(put(tmp_path, "a.txt", "a" * 90 + "b" * 10))
    assert data.vocab == 2  # a, and <unk>
    assert set(data.splits["valid"][0].tokens.tolist()) == {1}


def test_hidden_files_of_a_folder_are_left_out(tmp_path):
    put(tmp_path, "d/.secret", "no")
    put(tmp_path, "d/a.txt", "yes yes")
    assert told(opened(tmp_path / "d", valid=0)) == "yes yes"


# --- what is read -----------------------------------------------------------------------------------------------------


def test_words_are_counted_as_in_lab_01(tmp_path):
    """One end mark a line; the N most frequent words, the rest <unk>. Counted here by hand."""
    lines = ["the cat saw the dog", "the dog <unk> ran", "", "a cat ran"]
    data = opened(put(tmp_path, "a.txt", "\n".join(lines) + "\n"), tokenizer="word", vocab_size=6, valid=0)
    words = [w for line in lines if line for w in [*line.split(), "<eos>"]]
    often = [w for w, _ in Counter(w for w in words if w not in ("<unk>", "<eos>")).most_common(4)]
    assert len(data.train[0].tokens) == len(words)
    assert data.tokenizer.token_texts(data.train[0].tokens) == [w if w in (*often, "<eos>") else "<unk>" for w in words]


def test_a_byte_order_mark_is_no_character(tmp_path):
    assert told(opened(put(tmp_path, "a.txt", "\ufeffhello\n" * 1), valid=0)) == "hello\n"


def test_windows_line_ends_are_newlines(tmp_path):
    assert told(opened(put(tmp_path, "a.txt", "one\r\ntwo\r\n"), valid=0)) == "one\ntwo\n"


def test_bytes_that_are_not_utf8_are_named_by_file_and_line(tmp_path):
    path = put(tmp_path, "a.txt", b"fine\nfine too\ncaf\xe9\n")
    with pytest.raises(BadInput, match=rf"^{path}:3: byte 0xe9 at column 4 is not UTF-8 .*iconv"):
        opened(path)


def test_examples_are_the_first_lines_of_the_training_text(tmp_path):
    path = put(tmp_path, "a.txt", "".join(f"line {n}\n" for n in range(100)))
    whole, few = opened(path), opened(path, examples=7)
    assert told(few) == "".join(f"line {n}\n" for n in range(7))
    assert len(few.splits["valid"][0].tokens) == len(whole.splits["valid"][0].tokens)


def test_examples_are_counted_over_the_files_of_a_folder(tmp_path):
    put(tmp_path, "d/a.txt", "1\n2\n3\n")
    put(tmp_path, "d/b.txt", "4\n5\n6\n")
    assert told(opened(tmp_path / "d", examples=4, valid=0)) == "1\n2\n3\n4\n"


def test_more_examples_than_lines_are_all_lines(tmp_path):
    assert told(opened(put(tmp_path, "a.txt", "1\n2\n"), examples=99, valid=0)) == "1\n2\n"


# --- mixed texts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def two(tmp_path, monkeypatch) -> Path:
    put(tmp_path, "a.txt", "aaaaaaaaa\n" * 10)
    put(tmp_path, "b.v2.txt", "bbbbbbbbb\n" * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_that_toml_takes_for_tables_are_names_of_files(two):
    mix = tomllib.loads("mix = {a.txt = 0.6, b.v2.txt = 0.4}")["mix"]
    assert TextSource(mix=mix).mix == {"a.txt": 0.6, "b.v2.txt": 0.4}


def test_each_mixed_text_is_a_stream_of_its_own_with_a_held_out_end(two):
    data = TextSource(mix={"a.txt": 0.6, "b.v2.txt": 0.4}).load_data()
    assert [told(data, text=n) for n in (0, 1)] == ["aaaaaaaaa\n" * 9, "bbbbbbbbb\n" * 18]
    assert [told(data, "valid", text=n) for n in (0, 1)] == ["aaaaaaaaa\n", "bbbbbbbbb\n" * 2]
    assert (data.names, data.weights) == (("a.txt", "b.v2.txt"), [0.6, 0.4])


def test_mixed_texts_are_named_without_the_folder_they_share_from_wherever_they_are_opened(two):
    put(two, "c/a.txt", "ccccccccc\n" * 10)
    mix = TextSource(mix={"a.txt": 1, "c/a.txt": 1})
    assert mix.load_data().names == mix.with_absolute_paths().load_data().names == ("a.txt", "c/a.txt")


def test_a_mixed_folder_does_not_learn_from_its_test_file(two):
    for split in ("train", "valid", "test"):
        put(two, f"c/{split}.txt", f"{split}\n" * 5)
    data = TextSource(mix={"a.txt": 1, "c": 1}, tokenizer="byte").load_data()
    assert told(data, text=1) == "train\n" * 5
    assert told(data, "valid", text=1) == "valid\n" * 5


def test_mixed_texts_can_be_judged_on_one_given_file(two):
    data = TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, valid=str(put(two, "v.txt", "abab"))).load_data()
    assert told(data, "valid") == "abab"


def test_examples_count_in_each_mixed_text(two):
    data = TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, examples=2).load_data()
    assert [told(data, text=n) for n in (0, 1)] == ["aaaaaaaaa\n" * 2, "bbbbbbbbb\n" * 2]


def test_a_mixed_text_with_nothing_to_hold_out_is_not_among_the_judged(two):
    put(two, "c.txt", "one line only\n")
    data = TextSource(mix={"a.txt": 1, "c.txt": 1, "b.v2.txt": 1}, tokenizer="word").load_data()
    assert data.split_names == {"valid": ("a.txt", "b.v2.txt")}
    assert len(data.splits["valid"]) == 2


@pytest.mark.parametrize("weights", [(0, 0), (-1, 2), (float("inf"), 1), (float("nan"), 1)])
def test_weights_that_mix_nothing_are_refused(weights):
    with pytest.raises(ValueError, match="weights are 0 or more"):
        TextSource(mix={"a.txt": weights[0], "b.txt": weights[1]})


def test_mixed_texts_are_windows(two):
    with pytest.raises(BadSetting, match=r"^data.mix: mixed texts are drawn as windows, not as packed"):
        TextSource(mix={"a.txt": 1, "b.v2.txt": 1}, batching="packed").load_data()


# --- documents --------------------------------------------------------------------------------------------------------


def documents(data: TextData) -> list[str]:
    tokens, starts = data.train[0].tokens, data.train[0].documents
    return [data.tokenizer.decode(piece) for piece in np.split(tokens, starts[1:])]


@pytest.mark.parametrize(
    ("what", "pieces"),
    [
        ("line", ["one\n", "two\n", "\n", "three\n"]),
        ("blank", ["one\ntwo\n\n", "three\n"]),
        ("file", ["one\ntwo\n\nthree\n"]),
    ],
)
def test_a_document_is_what_the_setting_says(tmp_path, what, pieces):
    path = put(tmp_path, "a.txt", "one\ntwo\n\nthree\n")
    assert documents(opened(path, batching="packed", documents=what, valid=0)) == pieces


def test_each_file_of_a_folder_is_a_document(tmp_path):
    for name in ("b", "a", "c"):
        put(tmp_path, f"d/{name}.txt", name * 3)
    assert documents(opened(tmp_path / "d", batching="packed", valid=0)) == ["aaa", "bbb", "ccc"]


# --- the cache, and the same text again -------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["char", "word", "bpe"])
def test_a_text_is_encoded_once(tmp_path, monkeypatch, tokens):
    path = put(tmp_path, "a.txt", "\n".join(tales(20)))
    first = opened(path, tokens=tokens)

    def never(*_):
        raise AssertionError("encoded again")

    monkeypatch.setattr(encode, "_write", never)
    second = opened(path, tokens=tokens)
    assert np.array_equal(first.train[0].tokens, second.train[0].tokens)
    assert isinstance(second.train[0].tokens, np.memmap)


def test_a_changed_text_is_encoded_anew(tmp_path):
    path = put(tmp_path, "a.txt", "aaaa")
    opened(path, valid=0)
    put(tmp_path, "a.txt", "abab")
    assert told(opened(path, valid=0)) == "abab"


def test_a_recipe_made_for_another_text_is_refused(tmp_path):
    path = put(tmp_path, "a.txt", LETTERS)
    digest = opened(path).sha256
    put(tmp_path, "a.txt", LETTERS.replace("a", "b"))
    with pytest.raises(BadInput, match=rf"^{path}: the text is not the one this recipe was made for"):
        opened(path, sha256=digest)


def test_a_recipe_made_for_this_text_is_accepted(tmp_path):
    path = put(tmp_path, "a.txt", LETTERS)
    assert opened(path, sha256=opened(path).sha256).sha256 == opened(path).sha256


def test_located_settings_name_absolute_paths(two):
    put(two, "v.txt", "aa")
    source = TextSource(mix={"a.txt": 1, "b.v2.txt": 2}, valid="v.txt", test=0.1).with_absolute_paths()
    assert source.mix == {str(two / "a.txt"): 1, str(two / "b.v2.txt"): 2}
    assert (source.valid, source.test) == (str(two / "v.txt"), 0.1)


# --- what cannot be read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", ["char", "byte", "word", "bpe"])
def test_an_empty_file_has_nothing_to_learn_from(tmp_path, tokens):
    path = put(tmp_path, "a.txt", "")
    with pytest.raises(BadInput, match=rf"^{path}: there is nothing to learn from; give a longer text$"):
        opened(path, tokens=tokens)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=rf"^{tmp_path}/no.txt: there is no such file; check the name$"):
        opened(tmp_path / "no.txt")


def test_an_empty_folder_is_named(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(BadInput, match=r"d: a folder without data files; "):
        opened(tmp_path / "d")


def test_a_text_that_is_not_named_is_asked_for():
    with pytest.raises(BadSetting, match=r"^data.path is not given; name a file or a folder"):
        TextSource().load_data()


@pytest.mark.parametrize("shares", [{"valid": 1.0}, {"valid": -0.1}, {"valid": 0.6, "test": 0.5}])
def test_shares_that_leave_nothing_to_learn_are_refused(tmp_path, shares):
    with pytest.raises(BadSetting, match=r"^data.valid = .* shares of the text lie between 0 and 1$"):
        opened(put(tmp_path, "a.txt", LETTERS), **shares)


# --- another text -----------------------------------------------------------------------------------------------------

TABLE = "text,label\n" + "".join(f"the cat {n} sat,{'ab'[n % 2]}\n" for n in range(100))


def other(path: Path, given: Path, **settings) -> TextData:
    source = TextSource(path=str(path), **settings)
    return source.load_split(str(given), "test", tokenizer=source.load_data().tokenizer)


def test_another_text_is_a_split_beside_the_text_learned_from(tmp_path):
    data = other(put(tmp_path, "a.txt", LETTERS[:100]), put(tmp_path, "b.txt", "jihgfedcba"))
    assert (told(data), told(data, "valid"), told(data, "test")) == (LETTERS[:90], LETTERS[90:100], "jihgfedcba")
    assert data.has_train


def test_another_text_stands_alone_when_the_text_learned_from_is_gone(tmp_path):
    source, heard = TextSource(path=str(tmp_path / "gone.txt")), []
    tokenizer, given = opened(put(tmp_path, "a.txt", LETTERS)).tokenizer, put(tmp_path, "b.txt", "abc\n")
    data = source.load_split(str(given), "test", tokenizer=tokenizer, listen=lambda event, **facts: heard.append(facts))
    assert list(data.splits) == ["test"]
    assert not data.has_train
    assert heard[-1]["text"].startswith("the free baselines are left out, for lack of what they learn from: ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            TABLE,
            r"b\.txt: this is table \(2 columns split at commas, .*\), and this run reads text; give it a plain text$",
        ),
        (b"caf\xe9 au lait\n", r"b\.txt:1: byte 0xe9 at column 4 is not UTF-8 \(it looks like Latin-1\); "),
        (b"", r"b\.txt: an empty file; "),
        ("a", r"b\.txt: there are fewer than 2 tokens to judge; give a longer text$"),
    ],
)
def test_another_text_that_is_none_is_refused_in_one_line(tmp_path, content, said):
    with pytest.raises(BadInput, match=said):
        other(put(tmp_path, "a.txt", LETTERS), put(tmp_path, "b.txt", content))


def test_a_run_that_took_a_table_for_text_is_judged_on_tables(tmp_path):
    data = other(put(tmp_path, "a.csv", TABLE), put(tmp_path, "b.csv", TABLE.replace("cat", "sat")))
    assert told(data, "test") == TABLE.replace("cat", "sat")


def test_a_reader_of_another_format_overrides_files_alone(tmp_path):
    class Shouted(TextSource):
        """Reads what is written in capitals as if it were not."""

        kind: str = "shouted"

        def files(self, path: Path) -> list[Path]:
            return [put(tmp_path, f"read/{f.name}", f.read_text().lower()) for f in super().files(path)]

    for name in ("a", "b", "c"):
        put(tmp_path, f"{name}.txt", f"{name.upper()}{TABLE.upper()}")
    a, b, c = (str(tmp_path / f"{name}.txt") for name in "abc")
    one = Shouted(path=a, valid=b).load_data()
    assert (told(one), told(one, "valid")) == (f"a{TABLE}", f"b{TABLE}")
    mixed = Shouted(mix={a: 1, b: 1}, valid=c)
    assert [told(mixed.load_data(), text=n)[0] for n in (0, 1)] == ["a", "b"]
    assert told(mixed.load_split(c, "test", tokenizer=mixed.load_data().tokenizer), "test") == f"c{TABLE}"


# --- size -------------------------------------------------------------------------------------------------------------


def test_memory_does_not_grow_with_the_text(tmp_path):
    def most(lines: int) -> int:
        path = put(tmp_path, f"{lines}.txt", LETTERS * lines)
        tracemalloc.start()
        try:
            data = opened(path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert len(data.train[0].tokens) == int(0.9 * 101 * lines)

    opened(put(tmp_path, "first.txt", LETTERS))
    assert most(200_000) - most(40_000) < 1e6  # 20 MB and 4 MB of text
