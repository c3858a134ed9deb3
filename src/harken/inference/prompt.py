"""Ask a language model with a prompt: which of some answers is likeliest behind it.

ln p(answer | prompt) is the sum over the answer's tokens. What several prompts begin with (the examples before the
question) is read once, and so is what several answers begin with: labels of one token cost no more than the prompt.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harken.core import Memory
from harken.data.batch import dice
from harken.errors import BadInput, did_you_mean
from harken.events import Listener, silent

from .answers.classify import parted

SLOT = re.compile(r"\{(text|other|question|label)\}")
PLACES = 4096  # rows x tokens read at a time
SHARED = 16  # from so many tokens on, what all begin with is read once
DRAW = 8  # the place of these draws among all that a seed decides (data.batch.dice)
Fields = Mapping[str, str]  # what stands in the template's slots
Example = tuple[Fields, str]  # and its answer
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Template:
    """How a text is asked about: what stands before the answer, and what behind it where more examples follow."""

    before: str
    behind: str

    @classmethod
    def of(cls, said: str, slots: Sequence[str] = ("text",)) -> "Template":
        """From "Review: {text} Sentiment: {label}"; without {label} the answer follows behind a space."""
        if not isinstance(said, str):
            raise BadInput(f"prompt={said!r}: a text is accepted, such as 'Review: {{text}} Sentiment:'")
        before, label, behind = said.partition("{label}")
        if lost := [slot for slot in slots if f"{{{slot}}}" not in before]:
            where = " before {label}" if label else ""
            raise BadInput(f"prompt {said!r}: {{{lost[0]}}} does not stand in it{where}; put it where it is to be read")
        if odd := [
            slot for slot in SLOT.findall(said.replace("{label}", "", 1)) if slot not in slots or slot in behind
        ]:
            may = ", ".join(f"{{{slot}}}" for slot in slots)
            raise BadInput(
                f"prompt {said!r}: {{{odd[0]}}} has no place there; accepted: {may}, and {{label}} behind them"
            )
        space = "" if label or said[-1:].isspace() else " "
        return cls(before + space, behind if behind[-1:].isspace() else behind + "\n\n")

    def question(self, fields: Fields) -> str:
        return SLOT.sub(lambda slot: fields[slot[1]], self.before)

    def example(self, example: Example) -> str:
        fields, answer = example
        return self.question(fields) + answer + self.behind


def drawn(examples: Sequence[Example], shots: int, seed: int, *, balanced: bool) -> list[Example]:
    """So many examples, by this seed; balanced: each label comes as often as any other, as far as there are enough.

    The first that are drawn stand last, nearest to the question: so more shots only add examples before the others.
    """
    order = dice(seed, DRAW).permutation(len(examples)).tolist()
    turns: dict[str, int] = {}  # how often a label came
    if balanced:
        place = {}
        for n in order:
            place[n] = turns[examples[n][1]] = turns.get(examples[n][1], 0) + 1
        order.sort(key=place.__getitem__)  # all firsts of their labels, then all seconds
    if shots > len(order):
        raise BadInput(f"shots={shots}: there are only {len(order)} examples to draw from; take fewer")
    return [examples[n] for n in reversed(order[:shots])]


@dataclass(frozen=True)
class Asked:
    """A question as tokens: with each of its answers, where the answers begin, and what was left out to fit."""

    ids: list[list[int]]
    start: int
    left_out: int  # examples
    cut: bool  # even the question alone was too long

    def rows(self) -> tuple[list[list[int]], list[int]]:
        """What has to be read, nothing twice: an answer's last token is not; and in which row each answer stands."""
        ends, kept = [tuple(ids[self.start : -1]) for ids in self.ids], list[tuple[int, ...]]()
        for end in sorted({*ends}, key=len, reverse=True):
            if not any(row[: len(end)] == end for row in kept):
                kept.append(end)
        where = [next(n for n, row in enumerate(kept) if row[: len(end)] == end) for end in ends]
        return [[*self.ids[0][: self.start], *row] for row in kept], where


def asked(
    encode: Encode, shown: Sequence[str], question: str, answers: Sequence[str], most: int | None, *, marks: int = 0
) -> Asked:
    """A question behind its examples; where they are too many for the model, the first of them are left out.

    The first `marks` tokens, which stand before every text, stay even where the question itself is cut.
    The space before an answer is its own, since tokens have it so. Tokens that begin before the answer and end in it
    are counted as the answer's, of all answers alike.
    """
    before, left = question.rstrip(" "), 0
    while True:
        text = "".join(shown[left:])
        ids = [encode(text + question + answer) for answer in answers]
        over = 0 if most is None else max(map(len, ids)) - 1 - most
        if over <= 0 or left == len(shown):
            break
        left += 1
    start = max(1 + marks, min(alike([encode(text + before), *ids]), min(map(len, ids)) - 1))
    cut = min(max(0, over), start - 1 - marks)
    return Asked([each[:marks] + each[marks + cut :] for each in ids], start - cut, left, over > 0)


def alike(rows: Sequence[list[int]]) -> int:
    """How many tokens all of them begin with."""
    low, high = min(rows), max(rows)  # if these begin alike, all between them do
    return next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


def told(some: Sequence[Asked], shots: int, listen: Listener) -> None:
    """Say what did not fit into the model's context."""
    if less := sum(each.left_out > 0 for each in some):
        fewest = shots - max(each.left_out for each in some)
        told = (
            f"the first examples were left out before {less:,} of {len(some):,} texts, so that {fewest} or more stayed"
        )
        listen("notice", text=f"shots={shots}: more than the model's context holds; {told}")
    if cut := sum(each.cut for each in some):
        listen("notice", text=f"prompt: longer than the model's context; its beginning was cut, texts: {cut:,}")


@torch.inference_mode()
def log_probabilities(model: Any, some: Sequence[Asked], listen: Listener = silent) -> Tensor:  # N answers
    """ln p of each answer to each question, in float64."""
    found = torch.zeros(len(some), len(some[0].ids), dtype=torch.float64)
    groups: dict[int, list[int]] = {}  # questions with as many examples before them begin alike
    for n, each in enumerate(some):
        groups.setdefault(each.left_out, []).append(n)
    done = 0
    for group in groups.values():
        group.sort(key=lambda n: max(map(len, some[n].ids)))
        reader = _Reader(model, [some[n] for n in group])
        for part, scores in reader:
            found[[group[n] for n in part]] = scores
            done += len(part)
            listen("answer", done=done, total=len(some))
    return found


class _Reader:
    """Reads questions that begin alike: their beginning once, if it is long enough to pay, and then batches of them."""

    def __init__(self, model: Any, some: Sequence[Asked]) -> None:
        self.model, self.some, self.device = model, some, next(model.parameters()).device
        self.rows = [each.rows() for each in some]
        self.longest = max(len(row) for rows, _ in self.rows for row in rows)
        begin = [each.ids[0][: each.start - 1] for each in some]
        self.known, self.memory = 0, list[Memory]()
        if len(some) > 1 and (same := alike(begin)) >= SHARED:
            self._remember(begin[0][:same])

    def _remember(self, begin: list[int]) -> None:
        """Read what all begin with, and let every row of a memory have it. Models that carry a state read it anew."""
        most = max(len(rows) for rows, _ in self.rows)
        memory = self.model.memory(max(most, PLACES // self.longest), self.longest)
        if isinstance(memory, list):
            pos = torch.arange(len(begin), device=self.device)
            self.model(torch.tensor([begin], device=self.device), pos=pos, memory=_first(memory, 1))
            for layer in memory:
                layer.reorder(pos.new_zeros(len(layer.k)), len(begin))
            self.known, self.memory = len(begin), memory

    def __iter__(self) -> Any:
        """Some questions at a time: which they are, and their answers' scores."""
        room, part, many = max(1, PLACES // self.longest), list[int](), 0
        for n, (rows, _) in enumerate(self.rows):
            if part and many + len(rows) > room:
                yield part, self._scores(part)
                part, many = [], 0
            part, many = [*part, n], many + len(rows)
        yield part, self._scores(part)

    def _scores(self, part: Sequence[int]) -> Tensor:  # part answers
        rows = [row[self.known :] for n in part for row in self.rows[n][0]]
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for line, row in zip(tokens, rows, strict=True):
            line[: len(row)] = torch.tensor(row)
        pos = torch.arange(self.known, self.known + tokens.shape[1], device=self.device)
        memory = _first(self.memory, len(rows)) if self.known else None
        h = self.model(tokens.to(self.device), pos=pos, memory=memory)  # rows L d; padding stands behind, unseen
        wanted, first = list[tuple[int, int, int, int]](), 0  # row, place, token, answer
        for k, n in enumerate(part):
            each, where = self.some[n], self.rows[n][1]
            for c, ids in enumerate(each.ids):
                at, of = first + where[c], k * len(each.ids) + c
                wanted += [(at, t - 1 - self.known, ids[t], of) for t in range(each.start, len(ids))]
            first += len(self.rows[n][0])
        _, _, token, answer = torch.tensor(wanted).unbind(1)
        spots, which = torch.tensor(wanted)[:, :2].unique(dim=0, return_inverse=True)  # scores of a place once
        logs = self.model.logits(h[spots[:, 0], spots[:, 1]]).float().log_softmax(-1).double().cpu()
        sums = torch.zeros(len(part) * len(self.some[0].ids), dtype=torch.float64)
        return sums.index_add(0, answer, logs[which, token]).view(len(part), -1)


def _first(memory: list[Memory], many: int) -> list[Memory]:
    """The first rows of a memory: what is written into them stays in the whole."""
    return [Memory(layer.k[:many], layer.v[:many]) for layer in memory]


def must_write(run: Any) -> None:
    """Refuse a run that is no language model."""
    if run.verb != "generate":
        way = f"take a run of a text, or use harken {run.verb} without a prompt"
        raise BadInput(f"{run.path}: a prompt asks a run that writes text, which this one does not; {way}")


# --- labels -----------------------------------------------------------------------------------------------------------


def named(labels: Sequence[str]) -> list[str]:
    """The labels that may be answered, each once."""
    found = [label.strip() for label in labels] if not isinstance(labels, str) else []
    if len(found) < 2 or not all(found) or len({*found}) < len(found):
        raise BadInput(f"labels={labels!r}: two different ones or more are accepted, such as positive,negative")
    return found


def wording(labels: Sequence[str], words: Mapping[str, str] | None) -> list[str]:
    """What is written for each label of the data: its own name, or the words that are given for it."""
    for label in words or ():
        if label not in labels:
            there = ", ".join(labels[:12]) + ", ..." * (len(labels) > 12)
            raise BadInput(f"label {label!r}: not in the data, which has {there}.{did_you_mean(label, labels)}")
    return named([(words or {}).get(label, label) for label in labels])


def label_by_prompt(
    run: Any, texts: Sequence[Any], prompt: str, labels: Sequence[str], listen: Listener = silent
) -> list[list[dict[str, Any]]]:
    """For each text the labels with their probabilities among each other, the likeliest first.

    Where the prompt has {other}, a text is a pair of two, or one with a tab between.
    """
    must_write(run)
    slots = ("text", "other") if "{other}" in str(prompt) else ("text",)
    template, names = Template.of(prompt, slots), named(labels)
    if not texts:
        return []
    parts = (parted(text, pair=len(slots) > 1, told="the prompt asks about") for text in texts)
    questions = [template.question(dict(zip(slots, some, strict=True))) for some in parts]
    most, marks = run.model.context, len(run.tokenizer.begin)
    some = [asked(run._prompt, (), question, names, most, marks=marks) for question in questions]
    told(some, 0, listen)
    found = log_probabilities(run.model, some).softmax(-1).tolist()
    each = (sorted(zip(names, row, strict=True), key=lambda said: -said[1]) for row in found)
    return [[{"label": label, "probability": p} for label, p in row] for row in each]
