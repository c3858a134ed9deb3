"""Hostile GGUF files are refused in one line, fast, with little memory."""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

U8, U16, U32, F32, BOOL, TEXT, LIST, U64 = 0, 2, 4, 6, 7, 8, 9, 10
CODES = {U8: "B", U16: "H", U32: "I", F32: "f", BOOL: "?", U64: "Q"}
Entry = tuple[int, Any]


def text(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: Any) -> bytes:
    """The content of a list: item type and items; or the claimed number of items and their bytes."""
    if kind == TEXT:
        return text(content)
    if kind != LIST:
        return struct.pack(f"<{CODES[kind]}", content)
    item_type, items = content
    n_items, raw = (
        items if isinstance(items, tuple) else (len(items), b"".join(value(item_type, item) for item in items))
    )
    return struct.pack("<IQ", item_type, n_items) + raw


TOKENS = [*(f"<0x{byte:02X}>" for byte in range(256)), "a", "b", "c"]
METADATA: dict[str, Entry] = {
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


def write_gguf(
    path: Path,
    metadata: dict[str, Entry] | None = None,
    shapes: Any = None,
    *,
    n_entries: int | None = None,
    sparse: bool = False,
) -> Path:
    """A file with this metadata and F32 tensors; `sparse`: their bytes are holes."""
    metadata, shapes = METADATA | (metadata or {}), SHAPES | (shapes or {})
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata) if n_entries is None else n_entries)
    raw += b"".join(
        text(name) + struct.pack("<I", kind) + value(kind, content) for name, (kind, content) in metadata.items()
    )
    offset = 0
    for name, shape in shapes.items():
        raw += (
            text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape)) + struct.pack("<IQ", 0, offset)
        )
        size = 4
        for n in shape:
            size *= n
        offset += -(-size // 32) * 32
    raw += b"\0" * (-len(raw) % 32)
    path.write_bytes(raw if sparse else raw + b"\0" * offset)
    if sparse:
        os.truncate(path, len(raw) + offset)
    return path


def entry(name: str, kind: int, content: Any) -> Callable[[Path], Path]:
    return lambda path: write_gguf(path, {name: (kind, content)})


def tokenizer_entry(name: str, kind: int, content: Any) -> Callable[[Path], Path]:
    return entry(f"tokenizer.ggml.{name}", kind, content)


def number_lists(n_lists: int, items: int) -> Callable[[Path], Path]:
    """Lists of numbers, which become one Python object per number."""
    raw = b"\xff\x7f" * items
    return lambda path: write_gguf(path, {f"x{n}": (LIST, (U16, (items, raw))) for n in range(n_lists)})


def token_texts(n_texts: int, length: int) -> Callable[[Path], Path]:
    return tokenizer_entry("tokens", LIST, (TEXT, (n_texts, text("x" * length) * n_texts)))


def long_tokens(path: Path) -> Path:
    """Tokens that could be split at any position."""
    tokens = [f"{n:064d}" for n in range(200_000)]
    scores = (len(tokens), b"\0" * 4 * len(tokens))
    return write_gguf(
        path,
        {"tokenizer.ggml.tokens": (LIST, (TEXT, tokens)), "tokenizer.ggml.scores": (LIST, (F32, scores))},
        {"token_embd.weight": (len(tokens), 8)},
    )


def raw(change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def corrupt(path: Path) -> Path:
        path.write_bytes(change(write_gguf(path).read_bytes()))
        return path

    return corrupt


WIDE = 60_000
CORRUPTIONS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "two lists of a million numbers": (number_lists(2, 1_000_000), "list of 1000000 items; at most 1500000"),
    "a thousand lists of numbers": (number_lists(900, 2000), "items; at most 1500000 are accepted in total"),
    "a list of 2^60 numbers": (entry("x", LIST, (U8, (1 << 60, b""))), "list of 1152921504606846976 items"),
    "a list longer than the file": (entry("x", LIST, (U64, (1_000_000, b""))), "metadata is truncated"),
    "two million strings": (token_texts(2_000_000, 1), "list of 2000000 items"),
    "half a million strings": (token_texts(500_000, 3), "tokens must be a list of at most 300000 strings"),
    "66 MB of strings": (token_texts(66, 1 << 20), "larger than 64 MiB"),
    "a string of 2 MB": (entry("x", TEXT, "x" * (2 << 20)), "string of 2097152 bytes"),
    "2^63 bytes": (raw(lambda r: r[:24] + struct.pack("<Q", 1 << 63) + r[32:]), "string of 9223372036854775808"),
    "lists in lists": (entry("x", LIST, (LIST, (1, value(LIST, (U8, [1]))))), "metadata value of invalid type 9"),
    "an entry of no type": (
        raw(lambda r: r.replace(b"block_count\4", b"block_count\x63")),
        "metadata value of invalid type 99",
    ),
    "an entry twice": (
        raw(lambda r: r.replace(b"ggml.scores", b"ggml.tokens").replace(b"ggml.model", b"ggml.other")),
        "metadata key 'tokenizer.ggml.tokens' occurs twice",
    ),
    "2^40 metadata entries": (lambda path: write_gguf(path, n_entries=1 << 40), "at most 50000 and 1000 are accepted"),
    "more metadata entries than exist": (lambda path: write_gguf(path, n_entries=900), "string of|is truncated"),
    "another magic": (raw(lambda r: b"GGML" + r[4:]), "is not a GGUF file of version 2 or 3"),
    "another version": (raw(lambda r: r[:4] + b"\x09" + r[5:]), "is not a GGUF file of version 2 or 3"),
    "a list as family": (entry("general.architecture", LIST, (TEXT, ["llama"])), "architecture .* is not supported"),
    "an alignment of 0": (entry("general.alignment", U32, 0), "general.alignment is '0'"),
    "an alignment that is a string": (entry("general.alignment", TEXT, "32"), "general.alignment"),
    "layers as a string": (entry("llama.block_count", TEXT, "1"), "num_hidden_layers = '1'"),
    "a billion layers": (entry("llama.block_count", U32, 10**9), "num_hidden_layers = 1000000000"),
    "heads of an odd width": (entry("llama.attention.key_length", U32, 3), "D=3 is odd"),
    "heads for each layer": (entry("llama.attention.head_count", LIST, (U32, [2])), "num_attention_heads = \\[2\\]"),
    "scores that are strings": (tokenizer_entry("scores", LIST, (TEXT, TOKENS)), "scores must have one number"),
    "fewer scores than tokens": (tokenizer_entry("scores", LIST, (F32, [0.0])), "scores must have one number"),
    "a token twice": (tokenizer_entry("tokens", LIST, (TEXT, ["a", "b", "a"])), "must be unique"),
    "tokens that are numbers": (tokenizer_entry("tokens", LIST, (U8, [1, 2, 3])), "tokens must be a list"),
    "200,000 long tokens": (long_tokens, "characters in total"),
    "a bad tokenizer": (tokenizer_entry("model", LIST, (TEXT, ["gpt2"])), "is not supported; accepted: gpt2, llama"),
    "a tensor of terabytes": (
        lambda path: write_gguf(path, shapes={"token_embd.weight": (len(TOKENS), 1 << 30)}, sparse=True),
        "has shape",
    ),
    "terabytes of rope factors": (
        lambda path: write_gguf(path, shapes={"rope_freqs.weight": (1 << 38,)}, sparse=True),
        "a list of at most 1024 is accepted",
    ),
    "a tensor behind the end": (raw(lambda r: r[:-64]), "exceeds the file"),
    "a tensor of 2^96": (
        raw(lambda r: r.replace(struct.pack("<QQ", 8, len(TOKENS)), struct.pack("<QQ", 1 << 48, 1 << 48))),
        "has shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_hostile_gguf_is_refused_in_one_line(name: str, tmp_path: Path, assert_refused: Any) -> None:
    corrupt, message = CORRUPTIONS[name]
    assert_refused(corrupt(tmp_path / "a.gguf"), message)


def test_there_are_at_least_20_hostile_files() -> None:
    assert len(CORRUPTIONS) >= 20
