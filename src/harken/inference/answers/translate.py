"""Targets for sources, by a run that was trained on pairs."""

from collections.abc import Sequence
from typing import Any

import torch

from harken.core import watching
from harken.data.pairs.trees import begins
from harken.data.tokenizers.pairs import Tokenizers
from harken.decode.beam import Finder, Search
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.inference.trace import Trace
from harken.models import EncoderDecoder
from harken.tasks.translate import ruled, unwritten

EDGE = "<edge>"  # how the mark is shown that begins and ends a target


def translations(
    finder: Finder,
    tokens: Tokenizers,
    texts: Sequence[str],
    how: Search,
    listen: Listener,
    *,
    prefix: str = "",
    index: int = 0,
    grammar: str = "none",
) -> list[list[dict[str, Any]]]:
    """The best targets of each text, which begin with the prefix; an empty text has an empty one.

    Where chance is asked, the texts are told apart by their places, counted from `index`.
    """
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"text={text!r}: a text is accepted, or a list of texts")
    there = [n for n, text in enumerate(texts) if text.strip()]
    sources = [source(finder.model, tokens, texts[n], listen) for n in there]
    begun, numbers = [_begun(tokens, prefix)] * len(there), [index + n for n in there]
    rules = ruled(grammar, tokens.target, [texts[n] for n in there])
    for words in rules.get("words", ()) if prefix else ():
        if not begins(prefix, words):
            raise BadInput(f"prefix={prefix!r}: no tree of {words} words begins so; begin as in '(S (NP 1', or shorter")
    never = unwritten(tokens.target)
    answers = finder.search_all(sources, how, never=never, prefixes=begun if prefix else None, numbers=numbers, **rules)
    found = dict(zip(there, answers, strict=True))
    return [
        [{"text": tokens.decode_target(a.tokens), "score": a.score} for a in found.get(n, ())]
        or [{"text": "", "score": 0.0}]
        for n in range(len(texts))
    ]


def _begun(tokens: Tokenizers, prefix: str) -> list[int]:
    """The ids of how a target begins."""
    if missing := tokens.missing(prefix, tokens.target):
        raise BadInput(f"prefix={prefix!r}: this run cannot write {missing[0]!r}; begin with words that it knows")
    ids: list[int] = tokens.encode_target(prefix).tolist()
    return ids


def source(model: EncoderDecoder, tokens: Tokenizers, text: str, listen: Listener) -> list[int]:
    """The ids of a source, cut where it is longer than the model takes."""
    if missing := tokens.missing(text):
        listen("notice", text=f"unknown to this run, and read as <unk>: {', '.join(map(repr, missing[:5]))}")
    ids: list[int] = tokens.encode_source(text).tolist()
    most = model.context or len(ids)
    if len(ids) > most:
        listen("notice", text=f"{text[:30]!r}...: {len(ids)} tokens, and this run reads {most}; the rest is left out")
        ids = [*ids[: most - 1], ids[-1]]
    return ids


def traced(model: EncoderDecoder, tokens: Tokenizers, text: str, target: str) -> Trace:
    """What the model looks at while it writes this target for this source."""
    device = next(model.parameters()).device
    given, written = source(model, tokens, text, silent), tokens.encode_target(target).tolist()
    written = written[: model.context - 1] if model.context else written
    with watching(model) as views:
        model(torch.tensor([[model.edge, *written]], device=device), source=torch.tensor([given], device=device))
    kinds = {"encoder": "encoder.", "cross": "cross", "self": ""}
    sorted_: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for name, view in views.items():
        sorted_[next(kind for kind, part in kinds.items() if part in name)].append(view)
    shown = [*tokens.target.words(written), EDGE]
    return Trace(
        shown, {kind: some for kind, some in sorted_.items() if some}, [*tokens.source.words(given[:-1]), EDGE]
    )
