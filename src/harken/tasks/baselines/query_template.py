"""Baseline for SQL: the query of the training question with the most similar words, with the names of this schema.

Names and values become slots, numbered in the order in which the question mentions them: "how many <table> have
<column> above <value> ?". The names that fill them are those that this question mentions.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from harken.tasks.metrics.execution import find_schema

MIN_FREQUENCY = 0.001  # of the training questions; a rarer word is a value
WORD = re.compile(r"\w+|[^\w\s]")
Slots = dict[str, str]  # name or value -> slot


class QueryTemplates:
    """The distinct training questions with slots, and the query of each."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        pairs = list(pairs)
        counts = Counter(word for source, _ in pairs for word in set(_question_words(source)))
        self.known = {word for word, n in counts.items() if n >= MIN_FREQUENCY * len(pairs) and not word.isdigit()}
        self.queries: dict[tuple[str, ...], str] = {}
        for source, query in pairs:
            words, slots = self._with_slots(source)
            self.queries.setdefault(words, _replace(query, slots))
        self.index = {word: n for n, word in enumerate(sorted({w for words in self.queries for w in words}))}
        self.vectors = np.stack([self._vector(words) for words in self.queries])

    def predict(self, source: str) -> str:
        """The query of the nearest training question, with the names of this source."""
        words, slots = self._with_slots(source)
        nearest = int((self.vectors @ self._vector(words)).argmax())
        return _replace([*self.queries.values()][nearest], {slot: name for name, slot in slots.items()})

    def _with_slots(self, source: str) -> tuple[tuple[str, ...], Slots]:
        """The words of the question with slots, and the slot of each name and value."""
        schema, slots, counts = find_schema(source), Slots(), Counter[str]()
        for word in (words := _question_words(source)):
            kind = "value"
            if schema and word in (schema.table, *schema.columns):
                kind = "table" if word == schema.table else "column"
            elif word in self.known or not word[0].isalnum():
                continue
            if word not in slots:
                slots[word] = f"{kind}_{counts[kind]}_slot"
                counts[kind] += 1
        if schema:
            slots.setdefault(schema.table, "table_0_slot")
        return tuple(slots.get(word, word) for word in words), slots

    def _vector(self, words: Sequence[str]) -> np.ndarray:
        """The counts of the words, of length 1."""
        vector = np.zeros(len(self.index))
        for word in words:
            if word in self.index:
                vector[self.index[word]] += 1
        return vector / max(1.0, float(np.linalg.norm(vector)))


def _question_words(source: str) -> list[str]:
    """The words after the schema."""
    return WORD.findall(source.partition("):")[2] or source)


def _replace(query: str, names: Slots) -> str:
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), query)
