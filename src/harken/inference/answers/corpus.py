"""Search: the inputs of a corpus whose vectors have the largest cosine similarity to that of a query, exhaustively."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from harken.data.cache import cache_folder
from harken.data.detect.preview import decode_utf8
from harken.data.tables.texts import read_texts
from harken.errors import BadInput
from harken.events import Listener, Overflow, OverflowSum, report_overflow
from harken.files import atomic_file, write_atomic
from harken.inference.loaded_model import LoadedModel
from harken.suggestions import similar_path

from .embed import CHUNK, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors


class SearchHit(TypedDict):
    """An input of a corpus with its cosine similarity: the line (from 1) and text of a file, else a name and label."""

    score: float
    line: NotRequired[int]
    text: NotRequired[str]
    name: NotRequired[str]
    label: NotRequired[str]


class Corpus:
    """Inputs of a run that are not texts, such as images or nodes, with their vectors."""

    vectors: Vectors

    def __init__(self, examples: NamedInputs, embed: Callable[..., Vectors], listen: Listener) -> None:
        self.embed, self.listen, self.examples = embed, listen, examples
        self.vectors = embed([*examples.place, *examples.inputs], listen=listen)

    def search(self, query: object, k: int = 5) -> list[SearchHit]:
        """The k most similar inputs, by exhaustive search; ties in the order of the corpus."""
        v = self.embed([*self.examples.place, query], listen=self.listen)
        if len(v) != 1:
            raise BadInput(f"{query}: selects {len(v):,} inputs; a query is one input, so name one of them")
        starts = range(0, len(self.vectors), CHUNK)
        scores = np.concatenate([self.vectors[start : start + CHUNK] @ v[0] for start in starts])
        best: Sequence[int] = np.argsort(-scores, kind="stable")[:k].tolist()
        return [self.hit(n, float(scores[n])) for n in best]

    def hit(self, n: int, score: float) -> SearchHit:
        """The result for the input with this index."""
        names, labels = self.examples.names, self.examples.labels
        hit: SearchHit = {"name": names[n], "score": score}
        if labels:
            hit["label"] = labels[n]
        return hit


def _piped_texts(path: Path) -> dict[int, str]:
    """The lines of a pipe, which can be read only once."""
    return dict(enumerate(decode_utf8(path.read_bytes(), path).split("\n"), 1))


class LineCorpus(Corpus):
    """The texts of a file, the lines or the columns of a table, and their vectors, which are cached on disk.

    `key` identifies everything besides the file that determines a vector: weights, tokenizer, pooling. A second file
    of the cache counts the truncated lines.
    """

    def __init__(
        self,
        path: Path,
        embed: Callable[..., Vectors],
        key: str,
        listen: Listener,
        column: str | None = None,
        trained_on: Sequence[int | str] = (),
    ) -> None:
        self.embed, self.listen, self.examples = embed, listen, NamedInputs((), ())
        try:
            texts = read_texts(path, listen, column, trained_on) if path.is_file() else _piped_texts(path)
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
        self.vectors = np.load(self.cache_file, mmap_mode="r", allow_pickle=False)

    def _is_complete(self) -> bool:
        try:
            is_complete = self.cache_file.with_suffix(".json").exists()
            return is_complete and len(np.load(self.cache_file, mmap_mode="r", allow_pickle=False)) == len(self.lines)
        except (OSError, ValueError):
            return False

    def _embed_lines(self, path: Path, listen: Listener) -> None:
        total, array = len(self.lines), None
        for start in range(0, total, CHUNK):
            chunk = self.embed([text for _, text in self.lines[start : start + CHUNK]], listen=listen)
            if array is None:
                array = np.lib.format.open_memmap(path, "w+", np.float32, (total, chunk.shape[1]))
            array[start : start + len(chunk)] = chunk
            listen("encode", done=start + len(chunk), total=total, unit="lines")

    def hit(self, n: int, score: float) -> SearchHit:
        line, text = self.lines[n]
        return {"line": line, "text": text, "score": score}


def open_corpus(
    run: LoadedModel,
    path: str | Path | None,
    column: str | None,
    embed: Callable[..., Vectors],
    settings: EmbeddingSettings,
    listen: Listener,
) -> Corpus:
    """The lines of a text file; for a run whose inputs are not texts the inputs of a file, or of its own data."""
    run.require("embed")
    run.embedder.check(settings)
    if path is None or not run.embedder.reads_lines:
        request = ExampleRequest(None if path is None else str(path), column)
        return Corpus(run.embedder.examples(run, request, listen), embed, listen)
    dtypes = sorted({str(tensor.dtype) for tensor in [*run.model.parameters(), *run.model.buffers()]})
    key = f"{settings} {run.facts['sha256']} {dtypes}"  # quantized weights give other vectors
    return LineCorpus(Path(path), embed, key, listen, column, run.text_columns)
