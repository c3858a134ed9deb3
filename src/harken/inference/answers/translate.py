"""Generate targets for sources, with a run trained on pairs."""

from collections.abc import Sequence

import torch

from harken.core import View, watching
from harken.data.pairs.trees import is_tree_prefix
from harken.data.tokenizers.pairs import PairTokenizers
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import banned_token_ids, grammar_constraints
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.inference.trace import Trace
from harken.models import EncoderDecoder

from . import Candidate

EDGE = "<edge>"  # how a trace shows the token that starts and ends a target


def translations(
    finder: BeamSearch,
    tokenizers: PairTokenizers,
    texts: Sequence[str],
    search: SearchSettings,
    listen: Listener,
    *,
    prefix: str = "",
    index: int = 0,
    grammar: str = "none",
) -> list[list[Candidate]]:
    """The best targets of each text that start with the prefix; an empty text has an empty target.

    With sampling, each text has its own random stream, numbered from `index`.
    """
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"text={text!r}: must be a string or a list of strings")
    rows = [n for n, text in enumerate(texts) if text.strip()]
    sources = [encode_source(finder.model, tokenizers, texts[n], listen) for n in rows]
    prefixes, numbers = [_prefix_ids(tokenizers, prefix)] * len(rows), [index + n for n in rows]
    constraints = grammar_constraints(grammar, tokenizers.target, [texts[n] for n in rows])
    for n_words in constraints.get("n_words", ()) if prefix else ():
        if not is_tree_prefix(prefix, n_words):
            example = "start as in '(S (NP 1', or shorter"
            raise BadInput(f"prefix={prefix!r}: no tree of {n_words} words starts like this; {example}")
    banned_ids = banned_token_ids(tokenizers.target)
    answers = finder.search_all(
        sources, search, banned_ids=banned_ids, prefixes=prefixes if prefix else None, indices=numbers, **constraints
    )
    answers_by_row = dict(zip(rows, answers, strict=True))
    return [
        [{"text": tokenizers.decode_target(a.tokens), "score": a.score} for a in answers_by_row.get(n, ())]
        or [{"text": "", "score": 0.0}]
        for n in range(len(texts))
    ]


def _prefix_ids(tokenizers: PairTokenizers, prefix: str) -> list[int]:
    if missing := tokenizers.unknown_pieces(prefix, tokenizers.target):
        raise BadInput(f"prefix={prefix!r}: {missing[0]!r} is not in this run's vocabulary; use known words")
    ids: list[int] = tokenizers.encode_target(prefix).tolist()
    return ids


def encode_source(model: EncoderDecoder, tokenizers: PairTokenizers, text: str, listen: Listener) -> list[int]:
    """The ids of a source, truncated to the model's context."""
    if missing := tokenizers.unknown_pieces(text):
        listen("notice", text=f"unknown to this run and read as <unk>: {', '.join(map(repr, missing[:5]))}")
    ids: list[int] = tokenizers.encode_source(text).tolist()
    limit = model.context or len(ids)
    if len(ids) > limit:
        listen("notice", text=f"{text[:30]!r}...: {len(ids)} tokens; this run reads {limit}; the rest is truncated")
        ids = [*ids[: limit - 1], ids[-1]]
    return ids


def trace_translation(model: EncoderDecoder, tokenizers: PairTokenizers, text: str, target: str) -> Trace:
    """The attention of the model while it generates this target for this source."""
    device = next(model.parameters()).device
    source_ids, target_ids = encode_source(model, tokenizers, text, silent), tokenizers.encode_target(target).tolist()
    target_ids = target_ids[: model.context - 1] if model.context else target_ids
    with watching(model) as views:
        model(
            torch.tensor([[model.edge, *target_ids]], device=device), source=torch.tensor([source_ids], device=device)
        )
    name_parts = {"encoder": "encoder.", "cross": "cross", "self": ""}
    by_kind: dict[str, list[View]] = {kind: [] for kind in name_parts}
    for name, view in views.items():
        by_kind[next(kind for kind, part in name_parts.items() if part in name)].append(view)
    return Trace(
        [*tokenizers.target.token_texts(target_ids), EDGE],
        {kind: layers for kind, layers in by_kind.items() if layers},
        [*tokenizers.source.token_texts(source_ids[:-1]), EDGE],
    )
