"""Tokenizers: ids equal those of the `tokenizers` library, decoding is lossless, and untrusted files are refused."""

import contextlib
import json
import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harken.data.text.encode import WHITESPACE
from harken.data.tokenizers import spec as spec_module
from harken.data.tokenizers import tokenizer as tokenizer_module
from harken.data.tokenizers.spec import END_OF_TEXT, EOS, TOKENIZER_KINDS, UNK, WORDPIECE_UNK
from harken.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from harken.errors import BadInput, BadRun, BadSetting

TEXT = (
    "The quick brown fox doesn't jump over the lazy dog's 12 bones.\n the fox , the dog and <unk> words \n\n"
    "\tKäse für 3,50 € – “naïve” café…  two  spaces\n日本語 und русский текст; emoji 😀 too <eos> inside\nno newline"
)
NASTY = ["", " ", "\n", "\n\n\n the\n\n \t\n dog\n", "the\r\ndog\r", "  the   dog  ", "I'll don't we've 'S can''t 's'd"]
NASTY += ["the\x1cdog \x1f the\x85dog\xa0fox\u2028the\u3000dog", "\x00\x01\x7f\ufeff\u200b\u180e\u0378²½Ⅷ٣"]
NASTY += ["<unk><eos> <unk> <eos> x<eos>y <|endoftext|>dog<|endoftext|> <|endoftext|", "a" * 300 + "\n" + "the " * 300]
NASTY += ["👩‍👩‍👧 e\u0301 \U0010ffff 日本語\n日本語", "the\n" * 5000, "x" * 40_000 + " dog"]
ORACLE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module", params=TOKENIZER_KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, lambda: [TEXT], 300)


@pytest.fixture(scope="module")
def oracle(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tokenizers.Tokenizer:
    path = tmp_path_factory.mktemp("oracle") / "tokenizer.json"
    path.write_bytes(tokenizer.json)
    return tokenizers.Tokenizer.from_file(str(path))


def spec_of(kind: str) -> dict:
    return json.loads(train_tokenizer(kind, lambda: [TEXT], 300).json)


def open_spec(spec: object, folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(spec if isinstance(spec, str) else json.dumps(spec))
    return Tokenizer.load(path)


@pytest.mark.parametrize("text", [TEXT, *NASTY], ids=range(len(NASTY) + 1))
def test_ids_and_text_equal_those_of_the_library(tokenizer, oracle, text):
    ids = tokenizer.encode(text).tolist()
    assert ids == oracle.encode(text).ids
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=False)


@ORACLE
@given(text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("the dog\n\t 1'€<|>"))))
def test_ids_of_random_text_equal_those_of_the_library(tokenizer, oracle, text):
    assert tokenizer.encode(text).tolist() == oracle.encode(text).ids


@ORACLE
@given(st.data())
def test_random_ids_decode_to_the_text_of_the_library(tokenizer, oracle, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab - 1)))
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=False)


def test_pre_tokens_of_known_characters_equal_those_of_the_library():
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    for c in spec_module._KNOWN_CHARACTERS:
        text = f"a{c}b1{c}2 {c}{c} .{c}!{c}\n{c} {c}  {c}"
        assert [m.span() for m in spec_module.PRE_TOKEN.finditer(text)] == [span for _, span in split(text)], repr(c)


def test_the_saved_file_equals_the_one_that_the_library_writes(tokenizer, oracle):
    assert json.loads(tokenizer.json) == json.loads(oracle.to_str())


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_two_trainings_save_the_same_bytes(kind, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(train_tokenizer(kind, lambda: [TEXT, TEXT[::-1]], 320).json)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_loaded_tokenizer_equals_the_saved_one(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.json)
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    for name in ("kind", "vocab", "end_id", "json"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    assert loaded.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_characters_are_sorted_by_code_point_and_unk_is_last():
    tokenizer = train_tokenizer("char", lambda: ["ba\n", "cé"], 0)
    assert tokenizer.token_texts(range(tokenizer.vocab)) == ["\n", "a", "b", "c", "é", "<unk>"]
    assert tokenizer.encode("cab!").tolist() == [3, 1, 2, 5]


def test_the_id_of_a_byte_is_its_value():
    tokenizer = train_tokenizer("byte", lambda: [], 0)
    assert tokenizer.encode("aé😀\n").tolist() == list("aé😀\n".encode())
    assert (tokenizer.vocab, tokenizer.end_id) == (256, None)


def test_words_are_sorted_by_frequency_then_by_first_occurrence():
    tokenizer = train_tokenizer("word", lambda: ["z b a a b\n", "a c <unk>\n"], 5)
    assert tokenizer.token_texts(range(5)) == ["<unk>", "<eos>", "a", "b", "z"]


def test_each_line_with_words_ends_with_eos_and_a_blank_line_does_not():
    tokenizer = train_tokenizer("word", lambda: ["a b"], 10)
    ids = tokenizer.encode("\n a b \n\n  \nb\nnew <unk> <eos>")
    assert " ".join(tokenizer.token_texts(ids)) == "a b <eos> b <eos> <unk> <unk> <eos>"


def test_words_are_joined_by_spaces_and_lines_by_newlines():
    tokenizer = train_tokenizer("word", lambda: ["a b"], 10)
    assert tokenizer.decode(tokenizer.encode("\n  a   b \n\n b a\nb")) == "a b\nb a\nb"


def test_char_counts_sum_to_the_length_of_the_text(tokenizer):
    text = TEXT.replace("<unk>", "words").replace("<eos>", "are")
    trained = train_tokenizer(tokenizer.kind, lambda: [text], 300 if tokenizer.kind == "bpe" else 1000)
    ids = trained.encode(text + "\n")
    leading_space = trained.kind == "wordpiece"  # includes the space before the first word
    assert trained.char_counts[ids].sum() == len(trained.decode(ids)) + leading_space


def test_special_tokens_have_a_char_count_of_0():
    char, word, bpe = (train_tokenizer(kind, lambda: ["a b"], 300) for kind in ("char", "word", "bpe"))
    assert char.char_counts[char.encode("aé")].tolist() == [1, 0]
    assert word.char_counts[word.encode("a zzz\nb\n")].tolist() == [2, 0, 0, 2, 0]
    assert bpe.char_counts[bpe.encode("é<|endoftext|>")].tolist() == [1, 0, 0]


def test_special_ids_are_the_tokens_that_are_not_text(tokenizer):
    expected = {"char": ["<unk>"], "byte": [], "word": ["<unk>"], "bpe": ["<|endoftext|>"]}
    expected["wordpiece"] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.token_texts(tokenizer.special_ids) == expected[tokenizer.kind]


def without_accents(text):
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


@pytest.mark.parametrize("text", [TEXT, *NASTY], ids=range(len(NASTY) + 1))
def test_split_returns_one_piece_per_token(tokenizer, text):
    pieces, ids = tokenizer.split(text), tokenizer.encode(text).tolist()
    assert len(pieces) == len(ids)
    shown = tokenizer.token_texts(ids)
    if tokenizer.kind == "wordpiece":
        pieces, shown = (list(map(without_accents, texts)) for texts in (pieces, shown))  # offsets leave out a mark
        shown = [word.removeprefix("##") for word in shown]
    assert [p for p, i in zip(pieces, ids, strict=True) if i != tokenizer.unk_id] == [
        w for w, i in zip(shown, ids, strict=True) if i != tokenizer.unk_id
    ]


def test_unknown_pieces_are_returned_as_written():
    char, word, byte = (train_tokenizer(kind, lambda: ["the hat\n"], 300) for kind in ("char", "word", "byte"))
    assert char.unknown_pieces("the cat é é") == ["c", "é", "é"]
    assert word.unknown_pieces("the hat. <unk>\nis hat") == ["hat.", "is"]
    assert byte.unknown_pieces("the cat é") == []


def test_words_seen_once_are_dropped_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_COUNTED_WORDS", 3)
    assert train_tokenizer("word", lambda: ["a a b c d", "e e"], 10).token_texts(range(4)) == [
        "<unk>",
        "<eos>",
        "a",
        "e",
    ]


def test_bpe_compresses_and_end_of_text_is_one_id():
    tokenizer = train_tokenizer("bpe", lambda: [TEXT * 3], 400)
    assert len(tokenizer.encode(TEXT)) < len(TEXT.encode()) * 0.7
    assert tokenizer.encode("a<|endoftext|>").tolist()[1:] == [tokenizer.end_id]


def test_bpe_does_not_merge_end_of_text():
    tokenizer = train_tokenizer("bpe", lambda: ["a<|endoftext|>" * 50], 300)
    assert tokenizer.vocab == 257


def test_bpe_trains_on_a_sample_of_a_long_text(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "SAMPLE_BYTES", 1000)
    tokenizer = train_tokenizer("bpe", lambda: ["first " * 100, "second " * 100], 300)
    assert "first" in tokenizer.token_texts(range(tokenizer.vocab))
    assert not any("sec" in word for word in tokenizer.token_texts(range(tokenizer.vocab)))


def test_ids_are_16_bits_wide_until_the_vocabulary_needs_32():
    small = train_tokenizer("word", lambda: ["a"], 10)
    large = train_tokenizer("word", lambda: [" ".join(map(str, range(70_000)))], 100_000)
    assert (small.encode("a").dtype, large.encode("69999").dtype) == (np.uint16, np.uint32)
    assert large.decode(large.encode("69999 3")) == "69999 3"


@settings(max_examples=60, deadline=None)
@given(text=st.text())
@pytest.mark.parametrize("kind", ["byte", "bpe"])
def test_byte_and_bpe_are_lossless(kind, text):
    tokenizer = LOSSLESS[kind]
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode("utf-16", "surrogatepass").decode(
        "utf-16", "replace"
    )


LOSSLESS = {kind: train_tokenizer(kind, lambda: [TEXT], 300) for kind in ("byte", "bpe")}


def test_the_stream_decoder_equals_decode(tokenizer):
    ids, next_text = tokenizer.encode(TEXT).tolist(), tokenizer.stream_decoder()
    assert "".join(map(next_text, ids)) == tokenizer.decode(ids)


def test_the_stream_decoder_never_returns_a_partial_character():
    tokenizer = train_tokenizer("byte", lambda: [], 0)
    assert list(map(tokenizer.stream_decoder(), "é😀!".encode())) == ["", "é", "", "", "", "😀", "!"]


@ORACLE
@given(ids=st.lists(st.integers(0, 255)))
def test_the_stream_of_random_bytes_is_a_prefix_of_their_text(ids):
    streamed = "".join(map(LOSSLESS["byte"].stream_decoder(), ids))
    assert LOSSLESS["byte"].decode([*ids, ord("!")]).startswith(streamed)


def test_two_stream_decoders_are_independent():
    tokenizer = train_tokenizer("word", lambda: ["a b"], 10)
    first, second = tokenizer.stream_decoder(), tokenizer.stream_decoder()
    assert [first(2), second(3), first(3), second(2), first(1), first(2)] == ["a", "b", " b", " a", "\n", "a"]


def test_a_partial_character_is_shown_as_its_bytes():
    tokenizer = train_tokenizer("byte", lambda: [], 0)
    assert tokenizer.token_texts(tokenizer.encode("a€\n")) == ["a", "<0xE2>", "<0x82>", "<0xAC>", "\n"]


def test_bpe_tokens_are_shown_with_their_spaces():
    tokenizer = train_tokenizer("bpe", lambda: ["a fox a fox"], 300)
    assert "".join(tokenizer.token_texts(tokenizer.encode("a fox"))) == "a fox"
    assert " fox" in tokenizer.token_texts(range(tokenizer.vocab))


def test_a_lone_surrogate_is_encoded_as_the_replacement_character(tokenizer):
    assert tokenizer.encode("a\ud800 b").tolist() == tokenizer.encode("a\ufffd b").tolist()
    assert train_tokenizer(tokenizer.kind, lambda: ["a\ud800 b"], 300).json


@pytest.mark.parametrize("token_id", [-1, 66_000])
def test_an_id_out_of_range_is_reported(tokenizer, token_id):
    for call in (tokenizer.decode, tokenizer.token_texts, lambda ids: tokenizer.stream_decoder()(ids[0])):
        with pytest.raises(
            BadInput, match=f"token {token_id}: out of range; the ids of this {tokenizer.kind} tokenizer are 0 to"
        ):
            call([token_id])


def test_training_reports_its_progress():
    events = []
    train_tokenizer(
        "word", lambda: ["a b\n", "c\n"], 9, listen=lambda event, **facts: events.append((event, facts["done"]))
    )
    assert events == [("vocabulary", 4), ("vocabulary", 6)]


def test_an_unknown_kind_suggests_a_similar_one():
    with pytest.raises(BadSetting, match=r"data\.tokenizer=chars: unknown tokenizer; .* Did you mean char"):
        train_tokenizer("chars", lambda: ["a"], 10)


@pytest.mark.parametrize(("kind", "vocab"), [("word", 2), ("bpe", 256), ("word", 300_001)])
def test_an_impossible_vocab_size_is_refused(kind, vocab):
    with pytest.raises(BadSetting, match=rf"data\.vocab_size={vocab}: {kind} tokens need \d+ to 300000"):
        train_tokenizer(kind, lambda: ["a"], vocab)


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_training_on_an_empty_text_is_refused(kind):
    with pytest.raises(BadInput, match="the text is empty"):
        train_tokenizer(kind, lambda: [""], 300)


@pytest.mark.parametrize("kind", ["char", "word", "bpe"])
def test_an_error_of_the_texts_propagates_from_training(kind):
    def texts():
        yield "a b"
        raise BadInput("notes.txt:3: no")

    with pytest.raises(BadInput, match=r"notes\.txt:3: no"):
        train_tokenizer(kind, texts, 300)


def gpt2_spelling() -> dict:
    """A file in the spelling of GPT-2: no model type, merges as strings, other ByteLevel flags."""
    spec = spec_of("bpe")
    model = spec["model"]
    order = sorted(model["vocab"], key=lambda token: (token == "<|endoftext|>", model["vocab"][token]))
    spec["model"] = {"dropout": None, "unk_token": order[-1], "continuing_subword_prefix": "", "fuse_unk": False}
    spec["model"]["vocab"] = {token: i for i, token in enumerate(order)}
    spec["model"]["merges"] = [" ".join(pair) for pair in model["merges"]]
    spec["added_tokens"][0] |= {"id": len(order) - 1, "normalized": True}
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    spec["post_processor"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False}
    spec["decoder"] = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}
    return spec


def test_a_file_in_the_spelling_of_gpt2_loads(tmp_path):
    spec = gpt2_spelling()
    tokenizer, oracle = open_spec(spec, tmp_path), tokenizers.Tokenizer.from_str(json.dumps(spec))
    assert (tokenizer.kind, tokenizer.end_id) == ("bpe", tokenizer.vocab - 1)
    assert tokenizer.encode(TEXT).tolist() == oracle.encode(TEXT).ids


def test_an_added_token_outside_the_vocabulary_is_one_id_and_decodes_to_itself(tmp_path):
    spec = spec_of("bpe")
    new = len(spec["model"]["vocab"])
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": new, "content": "<|é|>"})
    tokenizer = open_spec(spec, tmp_path)
    assert tokenizer.vocab == new + 1
    assert tokenizer.encode("a<|é|>").tolist()[-1] == new
    assert tokenizer.decode(tokenizer.encode("a<|é|>b")) == "a<|é|>b"


def put(path: str, value: object):
    def change(spec: dict) -> None:
        *parents, last = path.split("/")
        for step in parents:
            spec = spec[int(step) if isinstance(spec, list) else step]
        spec[int(last) if isinstance(spec, list) else last] = value

    return change


TWO_IDS = [
    {"id": 0, "content": "new"},
    {"id": train_tokenizer("bpe", lambda: [TEXT], 300).vocab, "content": END_OF_TEXT},
]
HOSTILE = {
    "an unknown pattern": ("char", put("pre_tokenizer/pattern/Regex", "(a+)+$")),
    "a pattern in a normalizer": ("word", put("normalizer/normalizers/1/pattern/Regex", "(a|a)*b")),
    "a foreign normalizer": ("bpe", put("normalizer", {"type": "NFC"})),
    "a foreign pre-tokenizer": ("bpe", put("pre_tokenizer", {"type": "Metaspace", "replacement": "_"})),
    "a prefix space": ("bpe", put("pre_tokenizer/add_prefix_space", True)),
    "a model of another type": ("word", put("model/type", "Unigram")),
    "truncation": ("char", put("truncation", {"max_length": 2})),
    "another version": ("char", put("version", "2.0")),
    "an unknown key": ("char", put("auto_map", "evil.py")),
    "dropout": ("bpe", put("model/dropout", 0.5)),
    "ignored merges": ("bpe", put("model/ignore_merges", True)),
    "a huge id": ("word", put("model/vocab/the", 10**12)),
    "an id that is a float": ("word", put("model/vocab/the", 2.0)),
    "an id that is true": ("word", put("model/vocab/<eos>", True)),
    "a vocabulary that is a list": ("word", put("model/vocab", ["the"])),
    "no model": ("word", put("model", None)),
    "no unk": ("word", put("model/vocab", {"<eos>": 0})),
    "no eos": ("word", put("model/vocab", {"<unk>": 0})),
    "another unk": ("word", put("model/unk_token", "the")),
    "a character of two": ("char", put("model/vocab", {"ab": 0, "<unk>": 1})),
    "a missing byte": ("bpe", put("model/vocab", {"<|endoftext|>": 0, "!": 1})),
    "bytes out of order": ("byte", lambda spec: spec["model"]["vocab"].update({"!": 34, '"': 33})),
    "merges of bytes": ("byte", put("model/merges", [["!", "!"]])),
    "a merge of three": ("bpe", put("model/merges/0", ["a", "b", "c"])),
    "a merge of unknown tokens": ("bpe", put("model/merges/0", "nowhere to")),
    "a merge into nothing": ("bpe", put("model/merges/0", ["!", "!"])),
    "added tokens as text": ("bpe", put("added_tokens", "<|endoftext|>")),
    "an added token without text": ("bpe", put("added_tokens/0/content", None)),
    "an added token with a space": ("bpe", put("added_tokens/0/content", "a b")),
    "an added token without end": ("bpe", put("added_tokens/0/content", "a" * 100)),
    "an added token that takes spaces along": ("bpe", put("added_tokens/0/lstrip", True)),
    "an added token with two ids": ("bpe", put("added_tokens", TWO_IDS)),
    "a list of added tokens without end": ("bpe", lambda spec: spec.update(added_tokens=spec["added_tokens"] * 2000)),
    "an added token among words": ("word", put("added_tokens", [{"id": 0, "content": "<unk>"}])),
    "half a surrogate": ("word", lambda spec: spec["model"]["vocab"].update({"\ud800": len(spec["model"]["vocab"])})),
}
BROKEN = {
    "nothing": "",
    "half a file": json.dumps(spec_of("bpe"))[:-300],
    "a list": "[]",
    "a number": "7",
    "no number": '{"model": NaN}',
    "deep lists": "[" * 100_000,
    "deep maps": '{"a":' * 100_000,
    "deep inside": json.dumps(spec_of("char")).replace('"normalizer": null', '"normalizer": ' + "[" * 500 + "]" * 500),
    "a key twice": '{"version": "1.0", ' + json.dumps(spec_of("char"))[1:],
    "very many items": "[" + "[]," * 2_000_000 + "[]]",
}


def refused(spec: object, folder: Path) -> str:
    with pytest.raises(BadRun) as caught:
        open_spec(spec, folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'tokenizer.json'}: unsupported tokenizer: ")
    assert "\n" not in message
    assert len(message) < 600
    return message


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(name, tmp_path):
    kind, change = HOSTILE[name]
    change(spec := spec_of(kind))
    refused(spec, tmp_path)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_in_one_line(name, tmp_path):
    refused(BROKEN[name], tmp_path)


def test_a_missing_or_binary_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(BadRun, match="it is not a file"):
        Tokenizer.load(path)
    os.mkfifo(path)
    with pytest.raises(BadRun, match="it is not a file"):
        Tokenizer.load(path)
    path.unlink()
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(BadRun, match="codec can't decode byte 0xff"):
        Tokenizer.load(path)


def test_a_file_over_the_size_limit_is_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_FILE_BYTES", 100)
    assert "larger than" in refused(spec_of("char"), tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_file_loads_and_works_or_is_refused(data, tmp_path):
    spec = json.loads(SPECS[data.draw(st.sampled_from(TOKENIZER_KINDS))])
    place, key = {"root": spec}, "root"
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans(), label="deeper"):
        place = place[key]
        key = data.draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just([]), st.just({}))
    )
    if key == "root":
        spec = place[key]
    with contextlib.suppress(BadRun):
        tokenizer = open_spec(spec, tmp_path)
        oracle = tokenizers.Tokenizer.from_buffer(tokenizer.json)
        assert tokenizer.encode(TEXT).tolist() == oracle.encode(TEXT).ids


SPECS = {kind: json.dumps(spec_of(kind)) for kind in TOKENIZER_KINDS}


# --- word pieces ------------------------------------------------------------------------------------------------------

STORY = "The players played. He plays, she played; they were playing and replaying in São Paulo.\n" * 3


def test_a_rare_word_is_split_into_pieces_and_a_frequent_one_is_not():
    tokenizer = train_tokenizer("wordpiece", lambda: [STORY], 60, lowercase=True)
    assert tokenizer.token_texts(tokenizer.encode("The saddle played.")) == [
        "the",
        "s",
        "##a",
        "##d",
        "##d",
        "##l",
        "##e",
        "played",
        ".",
    ]
    assert tokenizer.decode(tokenizer.encode("he played, she plays.")) == "he played, she plays."


def test_wordpiece_encodes_special_tokens_in_a_text():
    tokenizer = train_tokenizer("wordpiece", lambda: [STORY], 60)
    assert tokenizer.encode("[CLS] [MASK][SEP] [PAD] 日").tolist() == [
        tokenizer.cls_id,
        tokenizer.mask_id,
        tokenizer.sep_id,
        tokenizer.pad_id,
        tokenizer.unk_id,
    ]
    assert (tokenizer.end_id, tokenizer.unknown_pieces("he 日 [UNK]")) == (tokenizer.sep_id, ["日"])
    assert train_tokenizer("bpe", lambda: [STORY], 300).mask_id is None


@pytest.mark.parametrize("lowercase", [True, False])
def test_lowercase_decides_whether_capitals_and_accents_remain(lowercase):
    tokenizer = train_tokenizer("wordpiece", lambda: [STORY], 200, lowercase=lowercase)
    assert tokenizer.decode(tokenizer.encode("São Paulo")) == ("sao paulo" if lowercase else "São Paulo")


UMLAUTS = "Das Auto ist schön. Das ist schon gut. Schön! Ein Café in Köln, Cafe " * 20


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_learned_tokenizer_keeps_umlauts_in_composed_and_decomposed_form(form, tmp_path):
    tokenizer = train_tokenizer("wordpiece", lambda: [unicodedata.normalize(form, UMLAUTS)], 90)
    words = {word: tokenizer.encode(word).tolist() for word in ("schön", "schon", "Schön", "Café", "Cafe")}
    assert len({*map(tuple, words.values())}) == 5
    assert tokenizer.unk_id not in words["schön"] + words["Café"]
    for word, ids in words.items():
        assert tokenizer.encode(unicodedata.normalize("NFD", word)).tolist() == ids
        assert tokenizer.decode(ids) == word
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.json)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (UMLAUTS, unicodedata.normalize("NFD", UMLAUTS)):
        ids = tokenizer.encode(text).tolist()
        assert Tokenizer.load(tmp_path / "tokenizer.json").encode(text).tolist() == ids
        assert library.encode(text, add_special_tokens=False).ids == ids


def test_lowercase_maps_umlauts_to_letters_as_bert_does():
    tokenizer = train_tokenizer("wordpiece", lambda: [UMLAUTS], 90, lowercase=True)
    assert tokenizer.encode("Schön").tolist() == tokenizer.encode("schon").tolist()
    assert (tokenizer.lowercase, train_tokenizer("wordpiece", lambda: [UMLAUTS], 90).lowercase) == (True, False)
    assert json.loads(tokenizer.json)["normalizer"] == spec_module.BERT_NORMALIZER


@pytest.mark.parametrize("normalizers", [[], [{"type": "NFC"}], [{"type": "NFD"}, {"type": "BertNormalizer"}], [1, 2]])
def test_another_sequence_of_normalizers_is_refused(normalizers, tmp_path):
    content = json.loads(train_tokenizer("wordpiece", lambda: [STORY], 60).json)
    content["normalizer"]["normalizers"] = normalizers
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(BadRun, match="its model, normalizer, pre-tokenizer or decoder"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_the_stream_decoder_of_wordpiece_equals_decode(tmp_path):
    tokenizer = train_tokenizer("wordpiece", lambda: [STORY], 60)
    ids = tokenizer.encode(STORY).tolist()
    assert "".join(map(tokenizer.stream_decoder(), ids)) == tokenizer.decode(ids)


def test_the_tokenizer_of_bert_loads_and_gives_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(train_tokenizer("wordpiece", lambda: [STORY], 70).token_texts(range(70))))
    for lowercase in (True, False):
        reference = transformers.BertTokenizerFast(str(vocab), do_lower_case=lowercase)
        reference.backend_tokenizer.enable_truncation(8)
        reference.backend_tokenizer.enable_padding()
        reference.save_pretrained(tmp_path)
        tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
        reference.backend_tokenizer.no_truncation()
        assert [tokenizer.cls_id, *tokenizer.encode(STORY), tokenizer.sep_id] == reference(STORY)["input_ids"]


def test_the_specs_of_kinds_json_agree_with_the_constants():
    unknown = {kind: content["model"]["unk_token"] for kind, content in spec_module.SPECS.items()}
    assert unknown == {"char": UNK, "byte": None, "word": UNK, "bpe": None, "wordpiece": WORDPIECE_UNK}
    word = spec_module.SPECS["word"]
    line_ends, decoded = word["normalizer"]["normalizers"][1], word["decoder"]["decoders"][2]
    assert line_ends["pattern"] == {"Regex": rf"\n[{WHITESPACE}]*"}
    assert line_ends["content"] == f" {EOS} "
    assert decoded["pattern"] == {"Regex": rf" ?(?<!\S){EOS}(?!\S) ?"}


def test_a_wordpiece_file_without_the_unknown_token_is_refused(tmp_path):
    spec = json.loads(train_tokenizer("wordpiece", lambda: ["the cat sat on the mat"], 60).json)
    spec["model"]["vocab"] = {}
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(BadRun, match=r"\[UNK\] is missing from its vocabulary"):
        Tokenizer.load(tmp_path / "tokenizer.json")
