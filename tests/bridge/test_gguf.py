"""GGUF files made by the gguf package, read by ours: numbers, rope order, scores and ids beside transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from harken.bridge.certificate import TEXTS, greedy
from harken.bridge.gguf import GGUF, KINDS
from harken.bridge.importer import bring
from harken.data.synthetic.tales import tales
from harken.data.tokenizers.pretrained import Foreign
from harken.data.tokenizers.tokenizer import Tokenizer, train
from harken.decode.sampling import Choice
from harken.errors import BadInput

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]
gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

TYPES = {kind: number for number, (kind, *_) in KINDS.items()}
SHAPE = {"embedding_length": 64, "block_count": 2, "feed_forward_length": 96, "context_length": 256}


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    return train("bpe", lambda: ["\n".join(tales(50))], 400)


def written(path: Path, tokens: Tokenizer, kind: str, *, arch: str = "llama", **facts: Any) -> Path:
    """A tiny model in a GGUF file, its matrices as this kind."""
    torch.manual_seed(3)
    made = gguf.GGUFWriter(path, arch)
    for name, value in SHAPE.items():
        made.add_uint32(f"{arch}.{name}", value)
    made.add_head_count(4)
    made.add_head_count_kv(2)
    made.add_layer_norm_rms_eps(1e-5)
    made.add_rope_freq_base(10_000.0)
    made.add_rope_dimension_count(16)
    made.add_vocab_size(tokens.vocab)
    add_pairs(made, tokens, facts.pop("pre", "gpt-2"), facts.pop("bos", False))
    d, wide, narrow = 64, 64, 32
    shapes = {"attn_q": (wide, d), "attn_k": (narrow, d), "attn_v": (narrow, d), "attn_output": (d, wide)}
    shapes |= {"ffn_gate": (96, d), "ffn_up": (96, d), "ffn_down": (d, 96)}
    number = gguf.GGMLQuantizationType(TYPES[kind])
    tied = facts.pop("tied", True)

    def add(name: str, *shape: int, size: float = 0.3, norm: bool = False) -> None:
        numbers = (torch.randn(*shape) * size + norm).numpy()
        if norm or kind == "F32":
            made.add_tensor(name, numbers)
        elif kind == "F16":
            made.add_tensor(name, numbers.astype(np.float16))
        else:
            made.add_tensor(name, gguf.quantize(numbers, number), raw_dtype=number)

    if (factor := facts.pop("slower", None)) is not None:
        made.add_tensor("rope_freqs.weight", slower(factor))
    add("token_embd.weight", tokens.vocab, d, size=0.05)
    add("output_norm.weight", d, size=0.1, norm=True)
    if not tied:
        add("output.weight", tokens.vocab, d, size=0.05)
    for n in range(2):
        add(f"blk.{n}.attn_norm.weight", d, size=0.1, norm=True)
        add(f"blk.{n}.ffn_norm.weight", d, size=0.1, norm=True)
        for name, shape in shapes.items():
            add(f"blk.{n}.{name}.weight", *shape)
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    return path


def slower(factor: float) -> Any:
    """By how much each turn of Llama 3 is slowed, as llama.cpp writes it."""
    found = []
    for n in range(8):
        wave = 2 * np.pi * 10_000 ** (2 * n / 16)
        smooth = (8192 / wave - 1) / (4 - 1)
        between = 1 / ((1 - smooth) / factor + smooth)
        found.append(1.0 if wave < 8192 / 4 else factor if wave > 8192 / 1 else between)
    return np.array(found, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_slower_turns_of_llama_3_are_recognised(factor: float, tokens: Tokenizer, tmp_path: Path) -> None:
    run = bring(written(tmp_path / "a.gguf", tokens, "F32", slower=factor), tmp_path / "run")
    assert run.recipe.model.scaling == {"factor": factor, "low": 1.0, "high": 4.0, "context": 8192}


def test_turns_that_are_slowed_otherwise_are_refused(tokens: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="slowed by no known rule"):
        bring(written(tmp_path / "a.gguf", tokens, "F32", slower=5.0), tmp_path / "run")


def add_pairs(made: Any, tokens: Tokenizer, pre: str, bos: bool) -> None:
    """Byte pairs as GGUF writes them."""
    spec = json.loads(tokens.json)
    ids = spec["model"]["vocab"] | {token["content"]: token["id"] for token in spec["added_tokens"]}
    made.add_tokenizer_model("gpt2")
    made.add_tokenizer_pre(pre)
    made.add_token_list(sorted(ids, key=lambda name: ids[name]))
    made.add_token_types([3 if n == tokens.end else 1 for n in range(tokens.vocab)])
    made.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
    made.add_bos_token_id(tokens.end)
    made.add_eos_token_id(tokens.end)
    made.add_add_bos_token(bos)


def test_pieces_of_sentences_give_the_ids_of_transformers(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, show_progress=False)
    library.train_from_iterator(tales(50), trainer)
    learned = sorted(library.get_vocab(), key=lambda name: library.get_vocab()[name])
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *learned]
    made = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    for name, value in SHAPE.items():
        made.add_uint32(f"llama.{name}", value)
    made.add_head_count(4)
    made.add_tokenizer_model("llama")
    made.add_token_list(names)
    made.add_token_scores([0.0] * 259 + [-float(n) for n in range(len(learned))])
    made.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(learned))
    made.add_bos_token_id(1)
    made.add_eos_token_id(2)
    made.add_unk_token_id(0)
    made.add_tensor("token_embd.weight", np.zeros((len(names), 64), np.float32))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    ours = Foreign.of(GGUF(tmp_path / "a.gguf").tokenizer(), "a")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="a.gguf")
    assert ours.begin == (1,)
    assert ours.end == 2
    for text in (*TEXTS, "Once upon a time there was a fox.", " a", "a  b"):
        if "<s>" not in text:
            ids = ours.encode(text).tolist()
            assert ids == theirs(text, add_special_tokens=False).input_ids, text
            assert ours.decode(ids) == text or text[:1] == " "  # of which one is lost


@pytest.mark.parametrize("kind", TYPES)
def test_numbers_are_unpacked_as_the_gguf_package_does(kind: str, tokens: Tokenizer, tmp_path: Path) -> None:
    source = GGUF(written(tmp_path / "a.gguf", tokens, kind))
    expected = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(tmp_path / "a.gguf").tensors}
    for theirs, ours in {"token_embd.weight": "model.embed_tokens.weight",
                         "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight"}.items():  # fmt: skip
        assert np.array_equal(source.read(ours).numpy(), expected[theirs].reshape(source.shapes[ours]))


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q8_0"])
def test_scores_and_100_greedy_tokens_are_those_of_transformers(kind: str, tokens: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", tokens, kind, tie_embeddings=kind != "Q8_0")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    ).eval()
    run = bring(path, tmp_path / "run")
    drawn = torch.randint(0, tokens.vocab, (2, 100))
    start = tokens.encode("Once upon a time").tolist()
    with torch.inference_mode():
        assert (run.model.scores(drawn) - theirs(drawn).logits).abs().max() <= 1e-5
        expected = greedy(theirs, start, 100, tokens.vocab)
    found = [int(t) for t in run.writer.write([start], 100, Choice(temperature=0.0), seed=0)]
    assert found == expected
    assert len(set(found)) >= 20


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@pytest.mark.parametrize("bos", [False, True])
def test_its_tokenizer_gives_the_ids_of_transformers(pre: str, bos: bool, tokens: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", tokens, "F16", pre=pre, bos=bos, arch="qwen2" if pre == "qwen2" else "llama")
    ours = Foreign.of(GGUF(path).tokenizer(), "a")
    assert ours.begin == ((tokens.end,) if bos else ())
    library = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    mine = [ours.encode(text).tolist() for text in TEXTS]
    assert mine == [library(text, add_special_tokens=False).input_ids for text in TEXTS]


@pytest.mark.parametrize("size", [0, 3, 8, 23, 24, 100, 1000, 5000, -1, -1000])
def test_a_file_that_is_cut_is_refused(size: int, tokens: Tokenizer, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", tokens, "Q4_0")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(BadInput, match=r"a\.gguf: "):
        bring(path, tmp_path / "run")
    assert not (tmp_path / "run" / "harken.json").exists()
