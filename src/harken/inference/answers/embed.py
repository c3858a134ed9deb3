"""Text embeddings: the mean of the hidden states, or the state of one token; and nearest-neighbor search.

v = h / ||h||, so <v, w> is the cosine similarity of two texts.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.core import watching
from harken.data.cache import cache_folder
from harken.data.detect.preview import decode_utf8
from harken.data.tables.texts import read_texts
from harken.data.tokenizers.tokenizer import Tokenizer, window_starts
from harken.errors import BadInput
from harken.events import Listener, Overflow, OverflowSum, report_overflow, warn_of_overflow
from harken.files import atomic_file, write_atomic
from harken.inference.loaded_model import LoadedModel
from harken.models import LanguageModel
from harken.suggestions import similar_path
from harken.tasks.classify import average_windows

from . import Trace, check_texts
from .classify import USE_WINDOWS
from .generate import encode_prompt, prompt_overflow

Vectors = npt.NDArray[np.float32]  # N d
POOLS = ("mean", "cls", "last")
BATCH_TOKENS = 1 << 13  # tokens of a batch, padding included
CHUNK_LINES = 4096  # lines of a file that are embedded, or compared, at once


class NearbyWord(TypedDict):
    """A word and its cosine similarity."""

    word: str
    similarity: float


class SearchHit(TypedDict):
    """A line of a corpus: line number from 1, text, cosine similarity."""

    line: int
    text: str
    score: float


def boundary_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        return list(tokenizer.prefix_ids), []
    return [tokenizer.cls_id], [tokenizer.sep_id]


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], context: int | None, listen: Listener, *, windows: bool = False
) -> tuple[list[list[int]], list[int]]:
    """The ids of each text with its special tokens, truncated to the context; an empty text is refused.

    With `windows` a longer text is split into windows that overlap by half. Also the index of the text of each window.
    """
    check_texts(texts)
    prefix, suffix = boundary_tokens(tokenizer)
    rows, n_special = [tokenizer.encode(text).tolist() for text in texts], len(prefix) + len(suffix)
    room = max([1, *map(len, rows)]) if context is None else max(1, context - n_special)
    if not windows:
        overflow = Overflow.of([len(row) + n_special for row in rows], context, remedy=USE_WINDOWS)
        report_overflow(listen, overflow)
    end = tokenizer.end_id
    empty = [int(tokenizer.encode("\n")[0]) if end is None else end]
    ids, text_index = list[list[int]](), list[int]()
    for n, row in enumerate(rows):
        for start in window_starts(len(row), room) if windows else [0]:
            ids.append([*prefix, *row[start : start + room], *suffix] or empty)
            text_index.append(n)
    return ids, text_index


@torch.inference_mode()
def embed_token_ids(
    body: LanguageModel,
    texts: Sequence[Sequence[int]],
    pool: str,
    *,
    normalize: bool = True,
    layer: int | None = None,
    text_index: Sequence[int] | None = None,
) -> Vectors:
    """A vector for the ids of each text. Texts of similar length share a batch; batching changes no vector.

    With `text_index`, the ids are a window of the text with this index; its vector is the mean over its windows.
    """
    if pool not in POOLS:
        raise BadInput(f"pool={pool!r}: not a pooling; accepted: {', '.join(POOLS)}")
    states = body if layer is None else _hidden_states(body, layer)
    vectors = np.empty((len(texts), body.embed.embedding_dim), np.float32)
    device = next(body.parameters()).device
    for rows in length_batches([len(text) for text in texts], BATCH_TOKENS):
        tokens, lengths = pad_rows([texts[n] for n in rows], device)
        h = _pool(states(tokens, lengths=lengths).float(), lengths, pool)
        vectors[rows] = (F.normalize(h, dim=-1) if normalize and text_index is None else h).cpu().numpy()
    if text_index is None:
        return vectors
    means = average_windows(torch.from_numpy(vectors), np.array(text_index))
    return np.asarray(F.normalize(means, dim=-1) if normalize else means)


def trace_text(run: LoadedModel, text: str) -> Trace:
    """The attention between the tokens of a text; of a prompt that is too long, between its last tokens."""
    context, listen = run.model.context, warn_of_overflow
    if run.verb == "generate":
        ids = encode_prompt(run, text)
        report_overflow(listen, prompt_overflow(run, [ids]))
        ids = ids[-(context or 10**9) :]
    else:
        (ids,), _ = encode_texts(run.tokenizer, [text], context, listen)
    with watching(run.model) as views:
        run.model(torch.tensor([ids], device=run.device))
    return Trace(run.tokenizer.token_texts(ids), {"self": list(views.values())})


def _hidden_states(body: LanguageModel, layer: int) -> Callable[..., Tensor]:
    """The function for the output of a block, as the next block receives it; 0: the input of the first block."""
    if not (blocks := body.transformer_blocks):
        raise BadInput(f"layer={layer}: this run's model has no stack of blocks; omit layer")
    if not isinstance(layer, int) or not 0 <= layer <= len(blocks):
        raise BadInput(f"layer={layer}: this run has {len(blocks)} layers; 0 (the embeddings) to {len(blocks)}")

    def run_to_layer(tokens: Tensor, *, lengths: Tensor) -> Tensor:
        states = list[Tensor]()
        if layer:
            hook = blocks[layer - 1].register_forward_hook(lambda _, inputs, output: states.append(output))
        else:
            hook = blocks[0].register_forward_pre_hook(lambda _, inputs: states.append(inputs[0]))
        with hook:
            body(tokens, lengths=lengths)
        return states[0]

    return run_to_layer


def length_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of texts by batch, longest first, at most `max_tokens` each, padding included."""
    rows: list[int] = []
    for n in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        if rows and (len(rows) + 1) * lengths[rows[0]] > max_tokens:
            yield rows
            rows = []
        rows.append(n)
    if rows:
        yield rows


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:  # B L, B
    """The ids of several texts as one batch, padded with 0, and their lengths."""
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    return tokens.to(device), torch.tensor([len(row) for row in rows], device=device)


def _pool(h: Tensor, lengths: Tensor, pool: str) -> Tensor:  # B L d, B -> B d
    if pool == "mean":
        real = torch.arange(h.shape[1], device=h.device) < lengths[:, None]
        return (h * real[..., None]).sum(1) / lengths[:, None]
    return h[:, 0] if pool == "cls" else h[torch.arange(len(h), device=h.device), lengths - 1]


@torch.inference_mode()
def nearest_words(table: Tensor, tokenizer: Tokenizer, word: str, k: int) -> list[NearbyWord]:
    """The k words of an embedding table with the highest cosine similarity to a word, best first."""
    encodings = [tokenizer.encode(text).tolist() for text in (word, f" {word}")]  # in a text most words follow a space
    (word_id,) = next((ids for ids in encodings if len(ids) == 1), [None])
    if word_id is None or word_id == tokenizer.unk_id:
        pieces = ", ".join(map(repr, tokenizer.split(word)))
        reason = "it is unknown" if word_id is not None else f"it is split into {pieces}"
        raise BadInput(f"{word!r}: not a word of this run's vocabulary ({reason}); give another word")
    directions = F.normalize(table[: tokenizer.vocab].float(), dim=-1)
    cosines = directions @ directions[word_id]
    cosines[[word_id, *tokenizer.special_ids]] = -torch.inf
    best = cosines.topk(min(k, int((cosines > -torch.inf).sum())))
    words = tokenizer.token_texts(best.indices.tolist())
    return [{"word": w, "similarity": c} for w, c in zip(words, best.values.tolist(), strict=True)]


# --- the texts of a file ----------------------------------------------------------------------------------------------


def _piped_texts(path: Path) -> dict[int, str]:
    """The lines of a pipe, which can be read only once."""
    return dict(enumerate(decode_utf8(path.read_bytes(), path).split("\n"), 1))


class Corpus:
    """The texts of a file, the lines or the column of a table, and their embeddings, which are cached on disk.

    `key` identifies everything besides the file that determines a vector: weights, tokenizer, pooling. A second file
    of the cache counts the truncated lines.
    """

    def __init__(
        self, path: Path, embed: Callable[..., Vectors], key: str, listen: Listener, column: str | None = None
    ) -> None:
        self.embed, self.listen = embed, listen
        try:
            texts = read_texts(path, listen, column) if path.is_file() else _piped_texts(path)
        except OSError as error:
            raise BadInput(f"{path}: cannot be read ({error.strerror}); name a text file{similar_path(path)}") from None
        self.lines = [(n, line.strip()) for n, line in texts.items() if line.strip()]
        if not self.lines:
            raise BadInput(f"{path}: contains only white space; give a file with one text per line")
        digest = hashlib.sha256(f"{key} {json.dumps(self.lines)}".encode()).hexdigest()
        self.cache_file = cache_folder("vectors") / f"{digest}.npy"
        if not self._is_complete():
            lengths = OverflowSum(listen)
            with atomic_file(self.cache_file) as temporary:
                self._embed_lines(temporary, lengths)
            write_atomic(self.cache_file.with_suffix(".json"), json.dumps([asdict(each) for each in lengths.overflows]))
        report_overflow(
            listen, *(Overflow(**each) for each in json.loads(self.cache_file.with_suffix(".json").read_bytes()))
        )
        self.vectors: Vectors = np.load(self.cache_file, mmap_mode="r", allow_pickle=False)

    def _is_complete(self) -> bool:
        try:
            is_complete = self.cache_file.with_suffix(".json").exists()
            return is_complete and len(np.load(self.cache_file, mmap_mode="r", allow_pickle=False)) == len(self.lines)
        except (OSError, ValueError):
            return False

    def _embed_lines(self, path: Path, listen: Listener) -> None:
        total, array = len(self.lines), None
        for start in range(0, total, CHUNK_LINES):
            chunk = self.embed([text for _, text in self.lines[start : start + CHUNK_LINES]], listen=listen)
            if array is None:
                array = np.lib.format.open_memmap(path, "w+", np.float32, (total, chunk.shape[1]))
            array[start : start + len(chunk)] = chunk
            listen("encode", done=start + len(chunk), total=total, unit="lines")

    def search(self, query: str, k: int = 5) -> list[SearchHit]:
        """The k most similar lines, by exhaustive search; ties in the order of the file."""
        (v,) = self.embed([query], listen=self.listen)
        starts = range(0, len(self.lines), CHUNK_LINES)
        scores = np.concatenate([self.vectors[start : start + CHUNK_LINES] @ v for start in starts])
        best = np.argsort(-scores, kind="stable")[:k]
        return [{"line": self.lines[n][0], "text": self.lines[n][1], "score": float(scores[n])} for n in best]
