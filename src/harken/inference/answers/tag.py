"""Tagged spans of plain texts, by a run that was trained on tags."""

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from harken.data.labelled.conll import INSIDE, OUTSIDE, Sentence, entities
from harken.data.labelled.examples import LabelWords
from harken.data.labelled.tags import TagSource, tagged
from harken.errors import BadInput
from harken.tasks.tag import predicted

# words as columns hold them: U.N, 1996-08-22 and Jean-Paul are one, 's and signs stand by themselves
WORD = re.compile(r"\w+(?:[-.,:/&]\w+)*|['’]\w+|[^\w\s]")


def tag_texts(model: Any, words: LabelWords, texts: Sequence[str], how: TagSource) -> list[list[dict[str, Any]]]:
    """The spans of each text: entities, or every word where tags mark none."""
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"text={text!r}: a text is accepted, or a list of texts")
    places = [[match.span() for match in WORD.finditer(text)] for text in texts]
    some = [
        Sentence([text[a:b] for a, b in spots], [words.labels[0]] * len(spots))
        for text, spots in zip(texts, places, strict=True)
    ]
    tags, sure, _ = predicted(model, tagged(some, words, how.max_length), words.labels)
    return [
        [
            {"label": label, "text": text[(a := at[i][0]) : (b := at[j - 1][1])], "start": a, "end": b}
            | {"probability": prod(p[i:j])}
            for label, i, j in spans(found)
        ]
        for text, at, found, p in zip(texts, places, tags, sure, strict=True)
    ]


def spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Entities; where no tag marks one, each word is a span of its own."""
    if any(INSIDE.fullmatch(tag) for tag in tags):
        return [(entity.label, entity.start, entity.stop) for entity in entities(tags)]
    return [(tag, n, n + 1) for n, tag in enumerate(tags) if tag != OUTSIDE]


def marked(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """The spans that given tags mark, as text and label."""
    return [{"label": label, "text": " ".join(words[i:j])} for label, i, j in spans(tags)]
