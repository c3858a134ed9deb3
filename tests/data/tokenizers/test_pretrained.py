"""Pretrained tokenizers: ids equal those of the `tokenizers` library for the same file; unsupported parts are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.source import TextLabelProcessor
from harken.data.synthetic.tales import tales
from harken.data.tokenizers import pretrained
from harken.data.tokenizers.pretrained import SPLIT_PATTERNS, PretrainedTokenizer
from harken.data.tokenizers.tokenizer import Tokenizer, train_tokenizer
from harken.errors import BadInput, BadRun

TEXTS = (
    "Once upon a time, there was a fox.",
    "It's 12:45, isn't it? WE'LL pay $1,234.56!",
    " a  b\t\tc\n\n\r\nd ",
    "naïve café, Größe, привет, שלום, नमस्ते",
    "你好 こんにちは 👩‍👩‍👧 e\u0301 \u200b",
    "",
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPACED = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
UNSPACED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def trained(
    library: tokenizers.Tokenizer, *, byte_level: bool, special_tokens: tuple[str, ...] = ()
) -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    first = [*special_tokens] if byte_level else [*special_tokens, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(tales(60), trainer)
    spec = json.loads(library.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in special_tokens]
    if not byte_level:
        spec["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def llama3() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERNS["llama-bpe"]), "isolated")
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence([split, BYTES]), decoders.ByteLevel()
    library = trained(library, byte_level=True, special_tokens=("<|begin_of_text|>", "<|end_of_text|>"))
    begin = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return library


def qwen2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERNS["qwen2"]), "isolated")
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence([split, BYTES]), decoders.ByteLevel()
    library.normalizer = normalizers.NFC()
    return trained(library, byte_level=True, special_tokens=("<|endoftext|>",))


def smollm() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    return trained(library, byte_level=True, special_tokens=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))


def llama2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library = trained(library, byte_level=False, special_tokens=("<unk>", "<s>", "</s>"))
    library.pre_tokenizer, library.normalizer = None, normalizers.Sequence(SPACED)  # type: ignore[assignment]
    library.decoder = decoders.Sequence([*UNSPACED, decoders.Strip(" ", 1, 0)])
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return library


def gemma() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    library = trained(
        library, byte_level=False, special_tokens=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
    )
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence(UNSPACED)
    library.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return library


LIBRARIES = {build.__name__: build for build in (llama3, qwen2, smollm, llama2, gemma)}


@pytest.fixture(scope="module", params=LIBRARIES)
def pair(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    library = LIBRARIES[request.param]()
    return library, PretrainedTokenizer.from_spec(json.loads(library.to_str()), request.param)


def test_ids_equal_those_of_the_library(pair: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    library, tokenizer = pair
    assert isinstance(tokenizer, PretrainedTokenizer)
    for text in TEXTS:
        assert [*tokenizer.prefix_ids, *tokenizer.encode(text).tolist()] == library.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == library.decode(
            library.encode(text, add_special_tokens=False).ids
        )


def test_the_stream_decoder_returns_the_text(pair: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    _, tokenizer = pair
    for text in TEXTS[:3]:
        streamed = "".join(map(tokenizer.stream_decoder(), tokenizer.encode(text).tolist()))
        assert streamed.lstrip(" ") == text.lstrip(" ")


def test_the_saved_file_gives_the_same_ids(pair: tuple[tokenizers.Tokenizer, Tokenizer], tmp_path: Path) -> None:
    library, tokenizer = pair
    (tmp_path / "tokenizer.json").write_bytes(tokenizer.json)
    loaded, from_file = (
        pretrained.load_tokenizer(tmp_path / "tokenizer.json"),
        tokenizers.Tokenizer.from_buffer(tokenizer.json),
    )
    for text in TEXTS:
        assert loaded.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert from_file.encode(text).ids == library.encode(text).ids
    assert (loaded.vocab, loaded.end_id, loaded.special_ids, loaded.prefix_ids) == (
        tokenizer.vocab,
        tokenizer.end_id,
        tokenizer.special_ids,
        tokenizer.prefix_ids,
    )


def test_char_counts_sum_to_the_length_of_the_text(pair: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    _, tokenizer = pair
    text = "Once upon a time, there was a fox."
    assert tokenizer.char_counts[tokenizer.encode(text)].sum() - len(text) in (0, 1)  # one for a space before it


def test_a_tokenizer_trained_by_harken_loads_as_such(tmp_path: Path) -> None:
    build = train_tokenizer("bpe", lambda: list(tales(10)), 300)
    (tmp_path / "tokenizer.json").write_bytes(build.json)
    assert type(pretrained.load_tokenizer(tmp_path / "tokenizer.json")) is Tokenizer
    with pytest.raises(BadRun, match="is not a file"):
        pretrained.load_tokenizer(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer 'Lowercase' is not supported"),
        ({"decoder": {"type": "Strip", "content": " ", "start": 9, "stop": 0}}, "its decoder Strip has start = 9"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "has add_prefix_space = True"),
        ({"post_processor": {"type": "Sequence", "processors": "x"}}, "post_processor is malformed"),
        ({"added_tokens": {}}, "not a short list"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "a byte has no token"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, "its model sets dropout"),
    ],
)
def test_an_unsupported_part_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        PretrainedTokenizer.from_spec(json.loads(llama3().to_str()) | change, "x")


@pytest.mark.parametrize("make", [llama3, smollm])
def test_label_processors_with_pretrained_tokenizers_load_and_add_prefix_ids(tmp_path, make):
    tokenizer = PretrainedTokenizer.from_spec(json.loads(make().to_str()), "it")
    for kind in (TokenLabelProcessor, TextLabelProcessor):
        for name, content in kind(tokenizer, ["a", "b"]).files().items():
            (tmp_path / name).write_bytes(content)
        assert kind.load(tmp_path).tokenizer.files() == tokenizer.files()
    side, starts, *_ = TextLabelProcessor(tokenizer, ["a", "b"], n_texts=2).encode_texts(
        [("A fox ran.", "It slept."), ("One", "two")], 64
    )
    ids, mark = side[0].tolist(), list(tokenizer.prefix_ids) or [tokenizer.end_id]
    assert ids == [*mark, *tokenizer.encode("A fox ran."), tokenizer.end_id, *tokenizer.encode("It slept.")]
    assert ids[starts[0, 0] :] == tokenizer.encode("It slept.").tolist()


def test_the_accepted_split_patterns_are_a_copy_of_the_table():
    regexes = [{"Regex": pattern} for pattern in SPLIT_PATTERNS.values()]
    table = pretrained._TABLES["accepted"]["pre_tokenizer"]["Split"]["pattern"]
    assert pretrained.ACCEPTED["pre_tokenizer"]["Split"]["pattern"] == [*table, *regexes]
    assert not any(regex in table for regex in regexes)
