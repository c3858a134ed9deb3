"""Vectors of texts: the mean of the hidden states of their tokens, the state of one token, or of a word in its context.

A run reads a text as token ids between special tokens. An encoder-decoder reads the source; its vectors are the states
of the encoder. A run on labelled texts reads a text as in training; tabs are between the texts of several columns.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harken.core import watching
from harken.data.detect.kinds import detect_kind
from harken.data.labelled.source import TextLabelProcessor
from harken.data.labelled.truncation import text_rows
from harken.data.pairs.files import normalize_text
from harken.data.tables.columns import ColumnRef, iter_columns
from harken.data.tables.texts import read_texts
from harken.data.targets import infer_target_type
from harken.data.tokenizers.pairs import Array, PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer, replace_surrogates
from harken.errors import BadInput
from harken.events import Listener, Overflow, report_overflow, warn_of_overflow
from harken.inference.loaded_model import LoadedModel
from harken.models import EncoderDecoder
from harken.suggestions import did_you_mean
from harken.tasks.classify import average_windows

from . import Trace, check_count, check_text, check_texts
from .classify import USE_WINDOWS, split_texts
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors, own_splits, states_at_layer
from .generate import encode_prompt, prompt_overflow

NO_LIMIT = 1 << 30  # tokens
BATCH_TOKENS = {"cpu": 1 << 11, "cuda": 1 << 13}  # tokens of a batch, padding included
Ranges = Sequence[tuple[int, int]]  # of each row: the first token, and the one after the last
RowsOf = Callable[[Any, Any], Iterable[tuple[str, str]]]  # the texts and labels of loaded data and one of its splits
Spans = Sequence[tuple[int, int]]  # of each token: its first character, and the one after the last


@dataclass(frozen=True)
class TextReader:
    """How a run reads an input: the tokens of its texts between special tokens, and their states."""

    encode: Callable[[str], list[Array]]  # of each text of an input
    spans: Callable[[str], tuple[str, Spans]]  # the text that is encoded, and the characters of each token
    prefix: list[int]
    suffix: list[int]
    empty: list[int]  # the ids of a text without tokens
    context: int | None
    states: Callable[..., Tensor]  # of tokens and lengths: B L d
    blocks: Sequence[nn.Module]
    width: int
    separator: Sequence[int] = ()  # between the texts of an input

    @property
    def room(self) -> int:
        """The number of tokens of an input that fit."""
        return NO_LIMIT if self.context is None else max(1, self.context - len(self.prefix) - len(self.suffix))

    def join(self, texts: Sequence[Array]) -> list[int]:
        """The tokens of an input from those of its texts."""
        ids = [token for text in texts for token in [*self.separator, *text.tolist()]]
        return ids[len(self.separator) :]


def boundary_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens before and after a text."""
    if tokenizer.cls_id is None or tokenizer.sep_id is None:
        return list(tokenizer.prefix_ids), []
    return [tokenizer.cls_id], [tokenizer.sep_id]


def text_reader(run: LoadedModel) -> TextReader:
    """The reader of a model of a single text; of a model with a head, that of its body."""
    tokenizer, body = run.text_tokenizer, run.backbone
    prefix, suffix = boundary_tokens(tokenizer)
    end = tokenizer.end_id

    def spans(text: str) -> tuple[str, Spans]:
        return (text := replace_surrogates(text)), tokenizer.spans(text)

    return TextReader(
        lambda text: [tokenizer.encode(text)], spans, prefix, suffix,
        [int(tokenizer.encode("\n")[0]) if end is None else end],
        run.model.context, body, body.transformer_blocks, body.embed.embedding_dim,
    )  # fmt: skip


def labelled_reader(run: LoadedModel) -> TextReader:
    """The reader of labelled texts: that of training. A text without tabs is one segment."""
    processor, body = cast(TextLabelProcessor, run.tokenizer), run.backbone
    side, end = PairTokenizers(processor.tokenizer, processor.tokenizer), processor.end_id

    def columns(text: str) -> tuple[str, ...]:
        if processor.n_texts == 1 or "\t" not in text:
            return (text,)
        (texts,) = split_texts([text], processor.n_texts, subject="this run was trained on", names=run.text_names)
        return texts

    def encode(text: str) -> list[Array]:
        return processor.encode_column([*map(normalize_text, columns(text))])

    def spans(text: str) -> tuple[str, Spans]:
        joined, places = "", list[tuple[int, int]]()
        for n, (line, own) in enumerate(map(side.source_spans, columns(text))):
            joined += "\t" * (n > 0)
            places += [(len(joined), len(joined))] * (n > 0)  # the end token between two texts, which may be empty
            places += [(a + len(joined), b + len(joined)) for a, b in own]
            joined += line
        return joined, places

    def states(tokens: Tensor, *, lengths: Tensor) -> Tensor:
        is_end = (tokens == end).long()
        is_end[:, 0] = 0  # the start token, which may be the same one
        return run.model(tokens, lengths=lengths, segments=is_end.cumsum(1) - is_end)

    return TextReader(
        encode, spans, processor.start_ids or [end], [end], [end], run.model.context, states, body.transformer_blocks,
        body.embed.embedding_dim, [end],
    )  # fmt: skip


def source_reader(run: LoadedModel) -> TextReader:
    """The reader of the sources of an encoder-decoder; of a line with a tab, the source is the text before it."""
    model, tokenizers = cast(EncoderDecoder, run.model), cast(PairTokenizers, run.tokenizer)
    (prefix, suffix), edge = boundary_tokens(tokenizers.source), tokenizers.vocab[0] - 1

    def states(tokens: Tensor, *, lengths: Tensor) -> Tensor:
        return model.encoder_states(tokens, model.source_mask(tokens, lengths))

    def encode(text: str) -> list[Array]:
        ids = tokenizers.encode_source(text.partition("\t")[0])
        return [ids[len(prefix) : len(ids) - len(suffix) - 1]]

    def spans(text: str) -> tuple[str, Spans]:
        return tokenizers.source_spans(text.partition("\t")[0])

    return TextReader(
        encode, spans, prefix, [*suffix, *[edge] * model.encodes_edge], [edge], model.context, states,
        model.encoder_blocks, model.embed.embedding_dim,
    )  # fmt: skip


# --- vectors ----------------------------------------------------------------------------------------------------------


def embed_texts(
    run: LoadedModel,
    texts: Sequence[str],
    settings: EmbeddingSettings,
    listen: Listener,
    *,
    reader_of: Callable[[LoadedModel], TextReader] = text_reader,
) -> Vectors:
    """The vectors of texts, or of a word in each of them."""
    reader, pool = reader_of(run), settings.token_pool()
    states = states_at_layer(reader.blocks, settings.layer, reader.states)
    if settings.word is not None:
        ids, ranges, text_index = encode_words(reader, texts, settings.word, settings.occurrence)
    else:
        ids, text_index = encode_texts(reader, texts, listen, windows=settings.overflow == "windows")
        ranges = pool_ranges(ids, pool)
    vectors = embed_token_ids(states, ids, ranges, reader.width, run.device)
    if len(ids) == len(texts):
        return vectors
    return np.asarray(average_windows(torch.from_numpy(vectors), np.array(text_index)))


def encode_texts(
    reader: TextReader, texts: Sequence[str], listen: Listener, *, windows: bool = False
) -> tuple[list[list[int]], list[int]]:
    """The ids of each text with its special tokens, truncated to the context; an empty text is refused.

    With `windows` a longer text is split into windows that overlap by half. Also the index of the text of each window.
    """
    check_texts(texts)
    inputs, n_special = [reader.encode(text) for text in texts], len(reader.prefix) + len(reader.suffix)
    if not windows:
        lengths = [len(reader.join(parts)) + n_special for parts in inputs]
        report_overflow(listen, Overflow.of(lengths, reader.context, remedy=USE_WINDOWS))
    ids, text_index = list[list[int]](), list[int]()
    for n, parts in enumerate(inputs):
        for row in text_rows(parts, reader.room - len(reader.separator) * (len(parts) - 1), windows=windows):
            ids.append([*reader.prefix, *reader.join(row), *reader.suffix] or reader.empty)
            text_index.append(n)
    return ids, text_index


def pool_ranges(ids: Sequence[Sequence[int]], pool: str) -> Ranges:
    """The tokens of which the vector of a text is the mean."""
    if pool == "mean":
        return [(0, len(row)) for row in ids]
    return [(0, 1) if pool == "cls" else (len(row) - 1, len(row)) for row in ids]


@torch.inference_mode()
def embed_token_ids(
    states: Callable[..., Tensor], rows: Sequence[Sequence[int]], ranges: Ranges, width: int, device: torch.device
) -> Vectors:
    """For each row of token ids the mean of the states in its range. Rows of similar length share a batch; batching
    changes no vector."""
    vectors = np.empty((len(rows), width), np.float32)
    for batch in length_batches([len(row) for row in rows], BATCH_TOKENS[device.type]):
        tokens, lengths = pad_rows([rows[n] for n in batch], device)
        h, pos = states(tokens, lengths=lengths).float(), torch.arange(tokens.shape[1], device=device)
        start, end = torch.tensor([ranges[n] for n in batch], device=device)[..., None].unbind(1)
        pooled = (h * ((start <= pos) & (pos < end))[..., None]).sum(1) / (end - start)
        vectors[batch] = pooled.cpu().numpy()
    return vectors


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


# --- words in their context -------------------------------------------------------------------------------------------


def encode_words(
    reader: TextReader, texts: Sequence[str], word: str, occurrence: int | None
) -> tuple[list[list[int]], Ranges, list[int]]:
    """For each text and occurrence of a word: the ids of the text, the range of the word, and the index of the text.

    A text that exceeds the context is read in a window around the word.
    """
    check_text(word=word)
    check_texts(texts)
    if occurrence is not None:
        check_count(1, occurrence=occurrence)
    ids, ranges, text_index = list[list[int]](), list[tuple[int, int]](), list[int]()
    for n, text in enumerate(texts):
        row, (encoded_text, spans) = reader.join(reader.encode(text)), reader.spans(text)
        for first, end in word_tokens(word, encoded_text, spans, occurrence):
            room = reader.room
            start = max(0, min((first + end - room) // 2, len(row) - room))
            ids.append([*reader.prefix, *row[start : start + room], *reader.suffix])
            shift = len(reader.prefix) - start
            ranges.append((max(first, start) + shift, min(end, start + room) + shift))
            text_index.append(n)
    return ids, ranges, text_index


def word_tokens(word: str, text: str, spans: Spans, occurrence: int | None) -> Ranges:
    """The tokens of each occurrence of a word in a text, or of the one with this number."""
    parts = r"\s+".join(map(re.escape, word.split()))
    places = [match.span() for match in re.finditer(rf"(?<!\w){parts}(?!\w)", text)] if parts else []
    covered = [[k for k, (a, b) in enumerate(spans) if a < end and start < b] for start, end in places]
    ranges = [(tokens[0], tokens[-1] + 1) for tokens in covered if tokens]
    if not ranges:
        words = list(dict.fromkeys(re.findall(r"\w+(?:['’-]\w+)*", text)))
        same = [other for other in words if other.lower() == word.lower()]
        hint = f" Did you mean {same[0]}?" if same else did_you_mean(word, words)
        raise BadInput(f"word={word!r}: does not occur in {_shorten(text)!r}; give a word of the text.{hint}")
    if occurrence is None:
        return ranges
    if occurrence > len(ranges):
        raise BadInput(f"occurrence={occurrence}: {word!r} occurs {_times(len(ranges))} in {_shorten(text)!r}")
    return ranges[occurrence - 1 : occurrence]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _shorten(text: str, size: int = 60) -> str:
    return text if len(text) <= size else f"{text[:size]}..."


def trace_text(run: LoadedModel, text: str) -> Trace:
    """The attention between the tokens of a text; of a prompt that is too long, between its last tokens."""
    context, listen = run.model.context, warn_of_overflow
    if run.verb == "generate":
        ids = encode_prompt(run, text)
        report_overflow(listen, prompt_overflow(run, [ids]))
        ids = ids[-(context or 10**9) :]
    else:
        (ids,), _ = encode_texts(text_reader(run), [text], listen)
    with watching(run.model) as views:
        run.model(torch.tensor([ids], device=run.device))
    return Trace(run.tokenizer.token_texts(ids), {"self": list(views.values())})


# --- the texts of a file or of the training data ----------------------------------------------------------------------


def line_examples(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The lines of a file, or the text column of a table with its label column."""
    path = request.path if request.path is not None else vars(run.recipe.data).get("path")
    if path is None:
        raise BadInput(f"{run.path}: was not trained on a file of texts; name one")
    if request.split is not None:
        raise BadInput(f"split={request.split}: has no effect on the lines of a file; leave it out")
    return labelled_texts(Path(path), request.column, listen, run.text_columns)


def row_examples(run: LoadedModel, request: ExampleRequest, listen: Listener, *, rows: RowsOf) -> NamedInputs:
    """The lines of a file; without one the texts and labels of the training data, which `rows` reads from a split."""
    if request.path is not None:
        return line_examples(run, request, listen)
    data, parts = own_splits(run, request.split, listen)
    names, labels = zip(*(row for part in parts for row in rows(data, part)), strict=True)
    return NamedInputs(names, names, labels if any(labels) else ())


def labelled_texts(
    path: Path, column: str | None, listen: Listener, trained_on: Sequence[ColumnRef] = ()
) -> NamedInputs:
    """The texts of a file with their lines, and their labels where it has some; rows without a text are left out."""
    rows = read_texts(path, listen, column, trained_on)
    present = {line: text for line, text in rows.items() if text.strip()}
    if n_empty := len(rows) - len(present):
        listen("notice", text=f"{path}: {n_empty:,} row{'s have' if n_empty > 1 else ' has'} no text and no cluster")
    by_line = _labels(path)
    labels = [by_line.get(line, "") for line in present]
    has_labels = any(labels) and infer_target_type(labels) == "label"
    texts = [*present.values()]
    return NamedInputs(texts, texts, labels if has_labels else (), [*present])


def _labels(path: Path) -> dict[int, str]:
    """The label of each line of a table of texts with labels; empty for another file."""
    with suppress(BadInput):
        detected = detect_kind(path)
        label = detected.settings.get("data.label")
        if detected.kind == "table" and isinstance(label, str | int):
            rows = iter_columns(path, [("data.label", label)], lambda *_: None)
            return {line: cells[0] for line, cells in rows}
    return {}


def _labelled_rows(data: Any, part: Any) -> Iterator[tuple[str, str]]:
    is_label = data.processor.target_type == "label"
    return (("\t".join(row.texts), row.labels[0] if is_label else "") for row in part.rows)


def _sources(data: Any, part: Any) -> Iterator[tuple[str, str]]:
    words = part.words or [()] * len(part)
    return ((data.tokenizers.decode_source(part.source[n], words[n]), "") for n in range(len(part)))


TEXT_OPTIONS = frozenset({"pool", "layer", "word", "occurrence", "overflow"})
TEXTS = Embedder(embed_texts, line_examples, options=TEXT_OPTIONS)
LABELLED_TEXTS = Embedder(
    partial(embed_texts, reader_of=labelled_reader), partial(row_examples, rows=_labelled_rows), options=TEXT_OPTIONS
)
TAGGED_TEXTS = Embedder(
    embed_texts,
    partial(row_examples, rows=lambda _, part: ((" ".join(each.words), "") for each in part.sentences)),
    options=TEXT_OPTIONS,
)
PARAGRAPHS = Embedder(
    embed_texts,
    partial(row_examples, rows=lambda _, part: dict.fromkeys((each.context, "") for each in part.questions)),
    options=TEXT_OPTIONS,
)
SOURCES = Embedder(
    partial(embed_texts, reader_of=source_reader), partial(row_examples, rows=_sources), options=TEXT_OPTIONS
)
PROBLEMS = Embedder(
    partial(embed_texts, reader_of=source_reader),
    line_examples,
    inputs="problems",
    options=frozenset({"pool", "layer"}),
)
