"""Generate targets for sources, with a run trained on pairs."""

from collections.abc import Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from harken.core import View, watching
from harken.data.pairs.files import normalize_text
from harken.data.pairs.trees import is_tree_prefix
from harken.data.tokenizers.pairs import PairTokenizers
from harken.decode.beam import SearchSettings
from harken.decode.grammar import banned_token_ids, grammar_constraints
from harken.errors import BadInput
from harken.events import Listener, Overflow, report_overflow, warn_of_overflow
from harken.inference.loaded_model import LoadedModel
from harken.models import EncoderDecoder

from . import SearchOptions, Trace, check_count, check_text, check_texts

EDGE = "<edge>"  # how a trace shows the token that starts and ends a target


class Candidate(TypedDict):
    """A generated target with its score (mean ln p)."""

    text: str
    score: float


class TranslationOptions(SearchOptions, total=False):
    """Options of `translate`; `index` numbers the first text among those that share a seed."""

    prefix: str
    index: int
    listen: Listener


def translations(
    run: LoadedModel,
    texts: Sequence[str],
    *,
    prefix: str = "",
    index: int = 0,
    listen: Listener = warn_of_overflow,
    **options: Unpack[SearchOptions],
) -> list[list[Candidate]]:
    """The best targets of each text that start with the prefix; an empty text has an empty target.

    With sampling, each text has its own random stream, numbered from `index`.
    """
    run.require("translate")
    check_text(prefix=prefix)
    check_count(index=index)
    finder, task = run.beam_search, run.recipe.task
    tokenizers: PairTokenizers = run.tokenizer
    limit = {"max_new_tokens": task.max_new_tokens}
    search = SearchSettings.from_options({**limit, **options}, "prefix", beam=task.default_beam)
    check_texts(texts, allow_empty=True)
    rows = [n for n, text in enumerate(texts) if text.strip()]
    sources = encode_sources(finder.model, tokenizers, [texts[n] for n in rows], listen)
    targets = grammar_constraints(task.grammar, tokenizers.target, [texts[n] for n in rows])
    targets |= {"banned_ids": banned_token_ids(tokenizers.target), "indices": [index + n for n in rows]}
    words = [_words_of(tokenizers, texts[n], source) for n, source in zip(rows, sources, strict=True)]
    targets["prefixes"] = [_prefix_ids(tokenizers, prefix, known) for known in words] if prefix else None
    for n_words in targets.get("n_words") or ():
        if prefix and not is_tree_prefix(prefix, n_words):
            example = "start as in '(S (NP 1', or shorter"
            raise BadInput(f"prefix={prefix!r}: no tree of {n_words} words starts like this; {example}")
    best: list[list[Candidate]] = [[{"text": "", "score": 0.0}] for _ in texts]
    for n, row, known in zip(rows, finder.search_all(sources, search, **targets), words, strict=True):
        decoded = ((tokenizers.decode_target(each.tokens, known), each.score) for each in row)
        best[n] = [{"text": text, "score": score} for text, score in decoded] or best[n]
    return best


def _words_of(tokenizers: PairTokenizers, text: str, source: Sequence[int]) -> tuple[str, ...]:
    """The temporary words of a source whose ids are in its row, which the context of the model may have truncated."""
    n_present = len({i for i in source if i >= tokenizers.source.vocab}) - 1  # 1: the edge token
    return tokenizers.temporary_words(normalize_text(text))[:n_present]


def _prefix_ids(tokenizers: PairTokenizers, prefix: str, words: Sequence[str]) -> list[int]:
    """The ids of a prefix of a target; `words` are the temporary words of its source."""
    if missing := [piece for piece in tokenizers.unknown_pieces(prefix, tokenizers.target) if piece not in words]:
        fix = "use words of the source as far as it fits into model.context, or known ones"
        fix = fix if tokenizers.n_temporary else "use known words"
        raise BadInput(f"prefix={prefix!r}: {missing[0]!r} is not in this run's vocabulary; {fix}")
    ids: list[int] = tokenizers.encode_target(prefix, words).tolist()
    return ids


def encode_sources(
    model: EncoderDecoder, tokenizers: PairTokenizers, texts: Sequence[str], listen: Listener
) -> list[list[int]]:
    """The ids of each source, truncated to the model's context."""
    rows: list[list[int]] = [tokenizers.encode_source(text).tolist() for text in texts]
    remedy = "split them, or train with model.context={longest}"
    report_overflow(listen, Overflow.of(list(map(len, rows)), model.context, inputs="sources", remedy=remedy))
    limit = model.context
    return [row if limit is None or len(row) <= limit else [*row[: limit - 1], row[-1]] for row in rows]


def trace_target(
    model: EncoderDecoder,
    tokenizers: PairTokenizers,
    target: str,
    source: Tensor,
    source_names: list[str],
    words: Sequence[str] = (),
) -> Trace:
    """The attention of the model while it generates this target for this source with these temporary words."""
    ids = tokenizers.encode_target(target, words).tolist()
    ids = ids[: model.context - 1] if model.context else ids
    device = next(model.parameters()).device
    with watching(model) as views:
        model(torch.tensor([[model.edge, *ids]], device=device), source=source.to(device))
    by_kind: dict[str, list[View]] = {"encoder": [], "cross": [], "pointer": [], "self": []}
    for name, view in views.items():
        kind = "encoder" if "encoder." in name else "cross" if "cross" in name else "self"
        by_kind["pointer" if name == "pointer" else kind].append(view)
    present = {kind: layers for kind, layers in by_kind.items() if layers}
    return Trace([*tokenizers.token_texts(tokenizers.target, ids, words), EDGE], present, source_names)


def trace_translation(model: EncoderDecoder, tokenizers: PairTokenizers, text: str, target: str) -> Trace:
    """The attention of each target token to the tokens of the source."""
    (ids,) = encode_sources(model, tokenizers, [text], warn_of_overflow)
    words = _words_of(tokenizers, text, ids)
    source_names = [*tokenizers.token_texts(tokenizers.source, ids[:-1], words), EDGE]
    return trace_target(model, tokenizers, target, torch.tensor([ids]), source_names, words)
