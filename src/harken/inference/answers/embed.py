"""Vectors of texts: the mean of a text's states, or the state of one token that stands for it; and what is near them.

v = h / ||h||, so that <v, w> is the cosine of the angle between two texts.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harken.data.cache import cache_folder
from harken.data.detect.preview import not_utf8
from harken.errors import BadInput, near_name
from harken.events import Listener

Vectors = npt.NDArray[np.float32]  # N d
POOLS = ("mean", "cls", "last")
AT_ONCE = 1 << 13  # tokens that are read together, padding counted
BLOCK = 4096  # lines of a file whose vectors are made, or compared, at once


def reader(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The model that reads, and its words: a head with labels may stand on it."""
    return getattr(model, "body", model), getattr(tokenizer, "tokenizer", tokenizer)


def around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The marks before and behind a text."""
    return (list(tokenizer.begin), []) if tokenizer.cls is None else ([tokenizer.cls], [tokenizer.sep])


def encoded(tokenizer: Any, text: str, most: int | None, listen: Listener) -> list[int]:
    """The ids of a text and the marks around it, if its tokens have such; cut where it is longer than the model takes.

    An empty text without marks is the mark, or the new line, that ends one.
    """
    if not isinstance(text, str):
        raise BadInput(f"text={text!r}: a text is accepted, or a list of texts")
    ids: list[int] = tokenizer.encode(text).tolist()
    before, behind = around(tokenizer)
    room = None if most is None else max(0, most - len(before + behind))
    if room is not None and len(ids) > room:
        listen("notice", text=f"{text[:30]!r}...: {len(ids)} tokens, and this run reads {room}; the rest is left out")
    end = tokenizer.end
    return before + ids[:room] + behind or [int(tokenizer.encode("\n")[0]) if end is None else end]


@torch.inference_mode()
def vectors(
    body: nn.Module, texts: Sequence[Sequence[int]], pool: str, *, normalised: bool = True, layer: int | None = None
) -> Vectors:
    """A vector for the ids of each text. Texts of like length are read together; how they lie changes no vector."""
    if pool not in POOLS:
        raise BadInput(f"pool={pool!r}: accepted are {', '.join(POOLS)}")
    states = body if layer is None else partial(_behind, body, _blocks(body, layer), layer)
    d: int = body.embed.embedding_dim  # type: ignore[union-attr, assignment]
    found = np.empty((len(texts), d), np.float32)
    device = next(body.parameters()).device
    for rows in _rows([len(text) for text in texts]):
        lengths = torch.tensor([len(texts[n]) for n in rows], device=device)
        tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, n in zip(tokens, rows, strict=True):
            row[: len(texts[n])] = torch.tensor(texts[n])
        h = _pooled(states(tokens.to(device), lengths=lengths).float(), lengths, pool)
        found[rows] = (F.normalize(h, dim=-1) if normalised else h).cpu().numpy()
    return found


def _blocks(body: nn.Module, layer: int) -> Sequence[nn.Module]:
    """The blocks of a model, if it has so many."""
    blocks: Sequence[nn.Module] = getattr(getattr(body, "stack", None), "blocks", ())
    if not blocks:
        raise BadInput(f"layer={layer}: this run's model is no stack of blocks; leave the layer out")
    if not isinstance(layer, int) or not 0 <= layer <= len(blocks):
        raise BadInput(
            f"layer={layer}: this run has {len(blocks)}; 0 is before the first, {len(blocks)} behind the last"
        )
    return blocks


def _behind(body: nn.Module, blocks: Sequence[nn.Module], layer: int, tokens: Tensor, *, lengths: Tensor) -> Tensor:
    """The states behind so many blocks, as the next one gets them; 0: what the first one gets."""
    kept = list[Tensor]()
    if layer:
        hook = blocks[layer - 1].register_forward_hook(lambda _, given, made: kept.append(made))
    else:
        hook = blocks[0].register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    with hook:
        body(tokens, lengths=lengths)
    return kept[0]


def _rows(lengths: list[int]) -> Iterator[list[int]]:
    """Which texts are read together: the longest first, AT_ONCE tokens at a time."""
    rows: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > AT_ONCE:
            yield rows
            rows = []
        rows.append(n)
    if rows:
        yield rows


def _pooled(h: Tensor, lengths: Tensor, pool: str) -> Tensor:  # B L d, B -> B d
    if pool == "mean":
        real = torch.arange(h.shape[1], device=h.device) < lengths[:, None]
        return (h * real[..., None]).sum(1) / lengths[:, None]
    return h[:, 0] if pool == "cls" else h[torch.arange(len(h), device=h.device), lengths - 1]


@torch.inference_mode()
def nearest(table: Tensor, tokenizer: Any, word: str, k: int) -> list[dict[str, Any]]:
    """The words of a table of word vectors that are nearest to one of them, and their cosines, best first."""
    written = [tokenizer.encode(text).tolist() for text in (word, f" {word}")]  # in a text most words follow a space
    (own,) = next((ids for ids in written if len(ids) == 1), [None])
    if own is None or own == tokenizer.unknown:
        parts = ", ".join(map(repr, tokenizer.split(word)))
        why = "this run does not know it" if own is not None else f"to this run it is {parts}"
        raise BadInput(f"{word!r}: is no word of this run's table ({why}); give another one")
    directions = F.normalize(table[: tokenizer.vocab].float(), dim=-1)
    cosines = directions @ directions[own]
    cosines[[own, *tokenizer.marks]] = -torch.inf
    best = cosines.topk(min(k, int((cosines > -torch.inf).sum())))
    words = tokenizer.words(best.indices.tolist())
    return [{"word": w, "similarity": c} for w, c in zip(words, best.values.tolist(), strict=True)]


# --- the lines of a file ----------------------------------------------------------------------------------------------


class Corpus:
    """The lines of a text file and their vectors, which are made once and kept in the cache.

    `key` says what else than the file decides on a vector: the weights, the tokens, the pool.
    """

    def __init__(self, path: Path, embed: Callable[[Sequence[str]], Vectors], key: str, listen: Listener) -> None:
        self.embed, raw = embed, _read(path)
        try:
            every = raw.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise not_utf8(path, error.start) from None
        self.lines = [(n, text) for n, line in enumerate(every, 1) if (text := line.strip())]
        if not self.lines:
            raise BadInput(f"{path}: nothing but white space; a file with a text in each line is needed")
        digest = hashlib.sha256(f"{key} {hashlib.sha256(raw).hexdigest()}".encode()).hexdigest()
        self.cached = cache_folder("vectors") / f"{digest}.npy"
        if not self._whole():
            beside = self.cached.with_name(f".tmp-{os.getpid()}.npy")
            try:
                self._make(beside, listen)
                beside.replace(self.cached)
            finally:
                beside.unlink(missing_ok=True)
        self.vectors: Vectors = np.load(self.cached, mmap_mode="r", allow_pickle=False)

    def _whole(self) -> bool:
        try:
            return len(np.load(self.cached, mmap_mode="r", allow_pickle=False)) == len(self.lines)
        except (OSError, ValueError):
            return False

    def _make(self, path: Path, listen: Listener) -> None:
        total, made = len(self.lines), None
        for start in range(0, total, BLOCK):
            some = self.embed([text for _, text in self.lines[start : start + BLOCK]])
            if made is None:
                made = np.lib.format.open_memmap(path, "w+", np.float32, (total, some.shape[1]))
            made[start : start + len(some)] = some
            listen("encode", done=start + len(some), total=total, unit="lines")

    def search(self, query: str, k: int = 5) -> list[dict[str, Any]]:
        """The k lines that are nearest, by looking at every one; of equal ones the first."""
        (v,) = self.embed([query])
        scores = np.concatenate([self.vectors[start : start + BLOCK] @ v for start in range(0, len(self.lines), BLOCK)])
        best = np.argsort(-scores, kind="stable")[:k]
        return [{"line": self.lines[n][0], "text": self.lines[n][1], "score": float(scores[n])} for n in best]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); name a text file{near_name(path)}") from None
