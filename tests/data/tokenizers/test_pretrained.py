"""Tokenizers of others: the same ids as the `tokenizers` library by their own file, and what is known of them."""

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


def learned(library: tokenizers.Tokenizer, *, byte_level: bool, marks: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    first = [*marks] if byte_level else [*marks, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(tales(60), trainer)
    spec = json.loads(library.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] in marks]
    if not byte_level:
        spec["model"] |= {"byte_fallback": True, "fuse_unk": True}
    return tokenizers.Tokenizer.from_str(json.dumps(spec))


def llama3() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERNS["llama-bpe"]), "isolated")
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence([cut, BYTES]), decoders.ByteLevel()
    library = learned(library, byte_level=True, marks=("<|begin_of_text|>", "<|end_of_text|>"))
    begin = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)])
    library.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return library


def qwen2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERNS["qwen2"]), "isolated")
    library.pre_tokenizer, library.decoder = pre_tokenizers.Sequence([cut, BYTES]), decoders.ByteLevel()
    library.normalizer = normalizers.NFC()
    return learned(library, byte_level=True, marks=("<|endoftext|>",))


def smollm() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    library.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    library.decoder = decoders.ByteLevel()
    return learned(library, byte_level=True, marks=("<|endoftext|>", "<|im_start|>", "<|im_end|>"))


def llama2() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library = learned(library, byte_level=False, marks=("<unk>", "<s>", "</s>"))
    library.pre_tokenizer, library.normalizer = None, normalizers.Sequence(SPACED)  # type: ignore[assignment]
    library.decoder = decoders.Sequence([*UNSPACED, decoders.Strip(" ", 1, 0)])
    library.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return library


def gemma() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    library = learned(library, byte_level=False, marks=("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"))
    library.normalizer = normalizers.Replace(" ", "▁")
    library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence(UNSPACED)
    library.post_processor = processors.TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 2)])
    return library


LIBRARIES = {made.__name__: made for made in (llama3, qwen2, smollm, llama2, gemma)}


@pytest.fixture(scope="module", params=LIBRARIES)
def both(request: pytest.FixtureRequest) -> tuple[tokenizers.Tokenizer, Tokenizer]:
    library = LIBRARIES[request.param]()
    return library, PretrainedTokenizer.from_spec(json.loads(library.to_str()), request.param)


def test_ids_are_those_of_the_library(both: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    library, ours = both
    assert isinstance(ours, PretrainedTokenizer)
    for text in TEXTS:
        assert [*ours.prefix_ids, *ours.encode(text).tolist()] == library.encode(text).ids, text
        assert ours.decode(ours.encode(text)) == library.decode(library.encode(text, add_special_tokens=False).ids)


def test_a_stream_of_ids_is_the_text(both: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    _, ours = both
    for text in TEXTS[:3]:
        said = "".join(map(ours.stream_decoder(), ours.encode(text).tolist()))
        assert said.lstrip(" ") == text.lstrip(" ")


def test_the_file_of_a_run_alone_gives_the_same(both: tuple[tokenizers.Tokenizer, Tokenizer], tmp_path: Path) -> None:
    library, ours = both
    ours.save(tmp_path / "tokenizer.json")
    again, alone = pretrained.load_tokenizer(tmp_path / "tokenizer.json"), tokenizers.Tokenizer.from_buffer(ours.json)
    for text in TEXTS:
        assert again.encode(text).tolist() == ours.encode(text).tolist()
        assert alone.encode(text).ids == library.encode(text).ids
    assert (again.vocab, again.end_id, again.special_ids, again.prefix_ids) == (
        ours.vocab,
        ours.end_id,
        ours.special_ids,
        ours.prefix_ids,
    )


def test_letters_of_all_tokens_add_up_to_the_text(both: tuple[tokenizers.Tokenizer, Tokenizer]) -> None:
    _, ours = both
    text = "Once upon a time, there was a fox."
    assert ours.char_counts[ours.encode(text)].sum() - len(text) in (0, 1)  # one for the space some put before it


def test_tokens_of_our_own_are_ours(tmp_path: Path) -> None:
    made = train_tokenizer("bpe", lambda: list(tales(10)), 300)
    made.save(tmp_path / "tokenizer.json")
    assert type(pretrained.load_tokenizer(tmp_path / "tokenizer.json")) is Tokenizer
    with pytest.raises(BadRun, match="is not a file"):
        pretrained.load_tokenizer(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "its normalizer 'Lowercase' is not known"),
        ({"decoder": {"type": "Strip", "content": " ", "start": 9, "stop": 0}}, "its decoder Strip has start = 9"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}}, "has add_prefix_space = True"),
        ({"post_processor": {"type": "Sequence", "processors": "x"}}, "post_processor is odd"),
        ({"added_tokens": {}}, "not a short list"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}}, "a byte has no token"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": [], "dropout": 0.5}}, "its model has dropout"),
    ],
)
def test_what_is_not_known_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        PretrainedTokenizer.from_spec(json.loads(llama3().to_str()) | change, "x")


@pytest.mark.parametrize("make", [llama3, smollm])
def test_labels_beside_tokens_of_others_are_read_back_and_texts_have_the_marks_before_them(tmp_path, make):
    own = PretrainedTokenizer.from_spec(json.loads(make().to_str()), "it")
    for kind in (TokenLabelProcessor, TextLabelProcessor):
        for name, content in kind(own, ["a", "b"]).files().items():
            (tmp_path / name).write_bytes(content)
        assert kind.load(tmp_path).tokenizer.files() == own.files()
    side, second, _ = TextLabelProcessor(own, ["a", "b"], pair=True).texts(
        [("A fox ran.", "It slept."), ("One", "two")], 64
    )
    ids, mark = side[0].tolist(), list(own.prefix_ids) or [own.end_id]
    assert ids == [*mark, *own.encode("A fox ran."), own.end_id, *own.encode("It slept.")]
    assert ids[second[0] :] == own.encode("It slept.").tolist()
