"""Tagged spans of plain texts, with a run trained on tags."""

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from harken.data.labelled.conll import ENTITY_TAG, OUTSIDE, Sentence, extract_entities
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.tags import TagSource, encode_sentences
from harken.errors import BadInput
from harken.tasks.tag import predict_tags

from . import TaggedSpan

# tokenization as in CoNLL columns: U.N, 1996-08-22 and Jean-Paul are one word, 's and punctuation are separate
WORD = re.compile(r"\w+(?:[-.,:/&]\w+)*|['’]\w+|[^\w\s]")


def tag_texts(
    model: Any, processor: TokenLabelProcessor, texts: Sequence[str], settings: TagSource
) -> list[list[TaggedSpan]]:
    """The spans of each text: entities for IOB tags, otherwise one span per word."""
    for text in texts:
        if not isinstance(text, str):
            raise BadInput(f"text={text!r}: must be a string or a list of strings")
    offsets = [[match.span() for match in WORD.finditer(text)] for text in texts]
    sentences = [
        Sentence([text[a:b] for a, b in positions], [processor.labels[0]] * len(positions))
        for text, positions in zip(texts, offsets, strict=True)
    ]
    encoded = encode_sentences(sentences, processor, settings.max_length)
    tags, probabilities, _ = predict_tags(model, encoded, processor.labels)
    return [
        [
            {
                "label": label,
                "text": text[(a := positions[i][0]) : (b := positions[j - 1][1])],
                "start": a,
                "end": b,
                "probability": prod(p[i:j]),
            }
            for label, i, j in tag_spans(sentence_tags)
        ]
        for text, positions, sentence_tags, p in zip(texts, offsets, tags, probabilities, strict=True)
    ]


def tag_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(label, start, stop) of each entity; without IOB tags every tagged word is a span."""
    if any(ENTITY_TAG.fullmatch(tag) for tag in tags):
        return [(entity.label, entity.start, entity.stop) for entity in extract_entities(tags)]
    return [(tag, n, n + 1) for n, tag in enumerate(tags) if tag != OUTSIDE]


def labelled_spans(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """The spans of a tagged sentence, as text and label."""
    return [{"label": label, "text": " ".join(words[i:j])} for label, i, j in tag_spans(tags)]
