"""Tagged spans of plain texts, with a run trained on tags."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TypedDict, cast

from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.tags import ENTITY_TAG, OUTSIDE, WORD, Sentence, encode_sentences, extract_entities
from harken.events import Listener, report_overflow, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.heads import ModelWithHead
from harken.tasks.tag import predict_tags

from . import check_texts
from .unknown import UNKNOWN, check_probability


class TaggedSpan(TypedDict):
    """A tagged span; `start` and `end` are character offsets."""

    label: str
    text: str
    start: int
    end: int
    probability: float


def tag_texts(
    run: LoadedModel, texts: Sequence[str], min_probability: float = 0.0, listen: Listener = silent
) -> list[list[TaggedSpan]]:
    """The spans of each text: entities for IOB tags, otherwise one span per word; `unknown` below the probability.

    A long text is read in overlapping windows; a word has the tag of the window in which it is most central.
    """
    run.require("tag")
    check_probability(min_probability)
    check_texts(texts, allow_empty=True)
    processor: TokenLabelProcessor = run.tokenizer
    offsets = [[match.span() for match in WORD.finditer(text)] for text in texts]
    words = [[text[a:b] for a, b in positions] for text, positions in zip(texts, offsets, strict=True)]
    sentences = [Sentence(row, [processor.labels[0]] * len(row)) for row in words]
    max_length = run.recipe.data.max_length
    encoded = encode_sentences(sentences, processor, max_length, overlapping=True)
    report_overflow(listen, replace(encoded.overflow, remedy=f"the run reads data.max_length={max_length} tokens"))
    tags, probabilities, _ = predict_tags(cast(ModelWithHead, run.model), encoded, processor.labels)
    spans: list[list[TaggedSpan]] = [[] for _ in texts]
    for tagged, text, positions, row, p in zip(spans, texts, offsets, tags, probabilities, strict=True):
        for label, i, j in tag_spans(row):
            a, b, probability = positions[i][0], positions[j - 1][1], prod(p[i:j])
            label = label if probability >= min_probability else UNKNOWN
            tagged.append({"label": label, "text": text[a:b], "start": a, "end": b, "probability": probability})
    return spans


def tag_spans(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(label, start, stop) of each entity; without IOB tags every tagged word is a span."""
    if any(ENTITY_TAG.fullmatch(tag) for tag in tags):
        return [(entity.label, entity.start, entity.stop) for entity in extract_entities(tags)]
    return [(tag, n, n + 1) for n, tag in enumerate(tags) if tag != OUTSIDE]


def labelled_spans(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, str]]:
    """The spans of a tagged sentence, as text and label."""
    return [{"label": label, "text": " ".join(words[i:j])} for label, i, j in tag_spans(tags)]
