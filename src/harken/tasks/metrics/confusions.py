"""The commonest confusions of tags and of answer spans: what was predicted in place of what, and how often."""

from collections import Counter
from collections.abc import Iterable, Sequence

from harken.data.labelled.spans import SquadQuestion
from harken.data.labelled.tags import Entity, Sentence, extract_entities
from harken.tasks import Confusion

from . import generation

MAX_CONFUSIONS = 20
NOTHING, NO_ANSWER, AN_ANSWER = "nothing", "no answer", "an answer"
Case = tuple[str, str, str]  # actual, predicted, where


def commonest(cases: Iterable[Case]) -> list[Confusion]:
    """The most frequent pairs of actual and predicted, each with its first example."""
    counts, examples = Counter[tuple[str, str]](), dict[tuple[str, str], str]()
    for actual, predicted, example in cases:
        counts[actual, predicted] += 1
        examples.setdefault((actual, predicted), example)
    return [Confusion(*pair, n, examples[pair]) for pair, n in counts.most_common(MAX_CONFUSIONS)]


def tag_confusions(sentences: Sequence[Sentence], predictions: Sequence[Sequence[str]]) -> list[Confusion]:
    """Words with the wrong tag; the example is the word."""
    return commonest(
        (actual, predicted, word)
        for sentence, tags in zip(sentences, predictions, strict=True)
        for word, actual, predicted in zip(sentence.words, sentence.tags, tags, strict=True)
        if actual != predicted
    )


def entity_confusions(sentences: Sequence[Sentence], predictions: Sequence[Sequence[str]]) -> list[Confusion]:
    """Entities with the wrong label or boundaries, missed entities, and predicted ones where there is none."""
    pairs = zip(sentences, predictions, strict=True)
    return commonest(case for sentence, tags in pairs for case in _entity_cases(sentence, tags))


def _entity_cases(sentence: Sentence, tags: Sequence[str]) -> Iterable[Case]:
    actual, predicted = extract_entities(sentence.tags), extract_entities(tags)
    wrong = [entity for entity in predicted if entity not in actual]
    for entity in actual:
        if entity in predicted:
            continue
        nearest = max(wrong, key=lambda other: _overlap(entity, other), default=None)
        where = " ".join(sentence.words[entity.start : entity.stop])
        if nearest is None or not _overlap(entity, nearest):
            yield entity.label, NOTHING, where
        else:
            same_words = entity[1:] == nearest[1:]
            yield entity.label, nearest.label if same_words else f"{nearest.label}, other boundaries", where
    for entity in wrong:
        if not any(_overlap(entity, other) for other in actual):
            yield NOTHING, entity.label, " ".join(sentence.words[entity.start : entity.stop])


def _overlap(a: Entity, b: Entity) -> int:
    """Number of common words."""
    return max(0, min(a.stop, b.stop) - max(a.start, b.start))


def span_confusions(questions: Sequence[SquadQuestion], answers: Sequence[str]) -> list[Confusion]:
    """Wrong answers by what is wrong with them; the example is a question with both answers."""
    return commonest(
        (AN_ANSWER if question.answers else NO_ANSWER, outcome, _span_example(question, answer))
        for question, answer in zip(questions, answers, strict=True)
        if (outcome := _span_outcome(answer, question.answers))
    )


def _span_outcome(answer: str, references: Sequence[str]) -> str:
    """What is wrong with an answer; "" for a correct one."""
    if not references or not answer:
        return "" if not references and not answer else AN_ANSWER if answer else NO_ANSWER
    if generation.answer_exact([answer], [references]):
        return ""
    if any(reference in answer for reference in references):
        return "a longer span"
    if any(answer in reference for reference in references):
        return "a shorter span"
    return "an overlapping span" if generation.answer_f1([answer], [references]) else "another place"


def _span_example(question: SquadQuestion, answer: str) -> str:
    return f"{question.text} {(*question.answers, NO_ANSWER)[0]} → {answer or NO_ANSWER}"
