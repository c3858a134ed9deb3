"""GGUF files that mean harm: refused in one line, fast, with little memory."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

U8, U16, U32, F32, BOOL, TEXT, LIST, U64 = 0, 2, 4, 6, 7, 8, 9, 10
CODES = {U8: "B", U16: "H", U32: "I", F32: "f", BOOL: "?", U64: "Q"}
Fact = tuple[int, Any]


def text(said: str | bytes) -> bytes:
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, what: Any) -> bytes:
    """`what` of a list: the kind of its items, and these; or how many are said to be there, and their bytes."""
    if kind == TEXT:
        return text(what)
    if kind != LIST:
        return struct.pack(f"<{CODES[kind]}", what)
    inner, items = what
    many, raw = items if isinstance(items, tuple) else (len(items), b"".join(value(inner, one) for one in items))
    return struct.pack("<IQ", inner, many) + raw


TOKENS = [*(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "c"]
FACTS: dict[str, Fact] = {
    "general.architecture": (TEXT, "llama"),
    "llama.block_count": (U32, 1),
    "llama.context_length": (U32, 16),
    "llama.embedding_length": (U32, 8),
    "llama.feed_forward_length": (U32, 8),
    "llama.attention.head_count": (U32, 2),
    "tokenizer.ggml.model": (TEXT, "llama"),
    "tokenizer.ggml.tokens": (LIST, (TEXT, TOKENS)),
    "tokenizer.ggml.scores": (LIST, (F32, [0.0] * len(TOKENS))),
}
SHAPES = {"token_embd.weight": (len(TOKENS), 8), "output_norm.weight": (8,)}
SHAPES |= {f"blk.0.{name}.weight": (8, 8) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
SHAPES |= {f"blk.0.{name}.weight": (8, 8) for name in ("ffn_gate", "ffn_up", "ffn_down")}
SHAPES |= {f"blk.0.{name}.weight": (8,) for name in ("attn_norm", "ffn_norm")}


def written(
    path: Path,
    facts: dict[str, Fact] | None = None,
    shapes: Any = None,
    *,
    many: int | None = None,
    holes: bool = False,
) -> Path:
    """A file with these facts and tensors of F32; `holes`: their bytes are not really there."""
    facts, shapes = FACTS | (facts or {}), SHAPES | (shapes or {})
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(facts) if many is None else many)
    raw += b"".join(text(name) + struct.pack("<I", kind) + value(kind, what) for name, (kind, what) in facts.items())
    at = 0
    for name, shape in shapes.items():
        raw += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", 0, at)
        size = 4
        for n in shape:
            size *= n
        at += -(-size // 32) * 32
    raw += b"\0" * (-len(raw) % 32)
    path.write_bytes(raw if holes else raw + b"\0" * at)
    if holes:
        os.truncate(path, len(raw) + at)
    return path


def fact(name: str, kind: int, what: Any) -> Callable[[Path], Path]:
    return lambda path: written(path, {name: (kind, what)})


def said(name: str, kind: int, what: Any) -> Callable[[Path], Path]:
    return fact(f"tokenizer.ggml.{name}", kind, what)


def lists(many: int, items: int) -> Callable[[Path], Path]:
    """So many lists of numbers, of which each has an object of its own in Python."""
    raw = b"\xff\x7f" * items
    return lambda path: written(path, {f"x{n}": (LIST, (U16, (items, raw))) for n in range(many)})


def texts(many: int, letters: int) -> Callable[[Path], Path]:
    return said("tokens", LIST, (TEXT, (many, text("x" * letters) * many)))


def long_tokens(path: Path) -> Path:
    """Tokens that could be cut anywhere."""
    tokens = [f"{n:064d}" for n in range(200_000)]
    scores = (len(tokens), b"\0" * 4 * len(tokens))
    return written(
        path,
        {"tokenizer.ggml.tokens": (LIST, (TEXT, tokens)), "tokenizer.ggml.scores": (LIST, (F32, scores))},
        {"token_embd.weight": (len(tokens), 8)},
    )


def raw(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def harm(path: Path) -> Path:
        path.write_bytes(change(written(path).read_bytes()))
        return path

    return harm


WIDE = 60_000
HARMS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "two lists of a million numbers": (lists(2, 1_000_000), "a list of 1000000 items; at most 1500000"),
    "a thousand lists of numbers": (lists(900, 2000), "items; at most 1500000 are read in all"),
    "a list of 2^60 numbers": (fact("x", LIST, (U8, (1 << 60, b""))), "a list of 1152921504606846976 items"),
    "a list longer than the file": (fact("x", LIST, (U64, (1_000_000, b""))), "ends before its facts do"),
    "two million texts": (texts(2_000_000, 1), "a list of 2000000 items"),
    "half a million texts": (texts(500_000, 3), "tokens is no list of at most 300000 texts"),
    "66 MB of texts": (texts(66, 1 << 20), "longer than 64 MiB"),
    "a text of 2 MB": (fact("x", TEXT, "x" * (2 << 20)), "a text of 2097152 bytes"),
    "a text of 2^63 bytes": (raw(lambda r: r[:24] + struct.pack("<Q", 1 << 63) + r[32:]), "9223372036854775808 bytes"),
    "lists in lists": (fact("x", LIST, (LIST, (1, value(LIST, (U8, [1]))))), "a fact of type 9"),
    "a fact of no type": (
        raw(lambda r: r.replace(b"block_count\4", b"block_count\x63")),
        "a fact of type 99",
    ),
    "a fact twice": (
        raw(lambda r: r.replace(b"ggml.scores", b"ggml.tokens").replace(b"ggml.model", b"ggml.other")),
        "the fact 'tokenizer.ggml.tokens' stands twice",
    ),
    "2^40 facts": (lambda path: written(path, many=1 << 40), "that is too many"),
    "more facts than there are": (lambda path: written(path, many=900), "a text of|ends before"),
    "another magic": (raw(lambda r: b"GGML" + r[4:]), "is no GGUF file of version 2 or 3"),
    "another version": (raw(lambda r: r[:4] + b"\x09" + r[5:]), "is no GGUF file of version 2 or 3"),
    "a family that is a list": (fact("general.architecture", LIST, (TEXT, ["llama"])), "architecture .* is not read"),
    "an alignment of 0": (fact("general.alignment", U32, 0), "general.alignment is '0'"),
    "an alignment of a text": (fact("general.alignment", TEXT, "32"), "general.alignment"),
    "layers as a text": (fact("llama.block_count", TEXT, "1"), "num_hidden_layers = '1'"),
    "a billion layers": (fact("llama.block_count", U32, 10**9), "num_hidden_layers = 1000000000"),
    "heads of an odd width": (fact("llama.attention.key_length", U32, 3), "D=3 is odd"),
    "heads for each layer": (fact("llama.attention.head_count", LIST, (U32, [2])), "num_attention_heads = \\[2\\]"),
    "scores that are texts": (said("scores", LIST, (TEXT, TOKENS)), "scores has not one number"),
    "fewer scores than tokens": (said("scores", LIST, (F32, [0.0])), "scores has not one number"),
    "a token twice": (said("tokens", LIST, (TEXT, ["a", "b", "a"])), "stand twice"),
    "tokens that are numbers": (said("tokens", LIST, (U8, [1, 2, 3])), "tokens is no list"),
    "200,000 long tokens": (long_tokens, "letters together; that is too many"),
    "a tokenizer of no kind": (said("model", LIST, (TEXT, ["gpt2"])), "is not read; gpt2 and llama are"),
    "a tensor of terabytes": (
        lambda path: written(path, shapes={"token_embd.weight": (len(TOKENS), 1 << 30)}, holes=True),
        "has shape",
    ),
    "terabytes of slower turns": (
        lambda path: written(path, shapes={"rope_freqs.weight": (1 << 38,)}, holes=True),
        "a list of at most 1024 turns",
    ),
    "a tensor behind the end": (raw(lambda r: r[:-64]), "behind the end"),
    "a tensor of 2^96": (
        raw(lambda r: r.replace(struct.pack("<QQ", 8, len(TOKENS)), struct.pack("<QQ", 1 << 48, 1 << 48))),
        "has shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMS)
def test_a_hostile_gguf_is_refused_in_one_line(name: str, tmp_path: Path, refused: Any) -> None:
    harm, why = HARMS[name]
    refused(harm(tmp_path / "a.gguf"), why)


def test_there_are_at_least_20_hostile_files() -> None:
    assert len(HARMS) >= 20
