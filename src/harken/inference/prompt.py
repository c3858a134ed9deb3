"""Score candidate answers to a prompt with a language model.

ln p(answer | prompt) is the sum over the answer's tokens. A prefix shared by several prompts (the few-shot examples) is
processed once, and so is a prefix shared by several answers: one-token labels cost no more than the prompt.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from harken.core import Memory
from harken.errors import BadInput
from harken.events import Listener, Overflow, report_overflow, silent
from harken.models import LanguageModel

from .answers import LabelScore
from .answers.classify import TextOrPair, rank_labels, split_texts
from .answers.generate import encode_prompt
from .loaded_model import LoadedModel

SLOT = re.compile(r"\{(text|other|question|label)\}")
BATCH_TOKENS = 4096  # rows x tokens of a batch
MIN_SHARED_PREFIX = 16  # tokens from which a shared prefix is processed once
Texts = Sequence[str]
Fields = Mapping[str, str]  # slot of the template: its text
Example = tuple[Fields, str]  # fields and answer
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Template:
    """A prompt template: the text before the answer, and the text after it when more examples follow."""

    prefix: str
    suffix: str

    @classmethod
    def parse(cls, prompt: str, slots: Sequence[str] = ("text",)) -> "Template":
        """From "Review: {text} Sentiment: {label}"; without {label} the answer follows after a space."""
        if not isinstance(prompt, str):
            raise BadInput(f"prompt={prompt!r}: must be a string, such as 'Review: {{text}} Sentiment:'")
        prefix, label, suffix = prompt.partition("{label}")
        if missing := [slot for slot in slots if f"{{{slot}}}" not in prefix]:
            where = " before {label}" if label else ""
            raise BadInput(f"prompt {prompt!r}: has no {{{missing[0]}}}{where}; add it where the input belongs")
        used = SLOT.findall(prompt.replace("{label}", "", 1))
        if misplaced := [slot for slot in used if slot not in slots or slot in suffix]:
            accepted = ", ".join(f"{{{slot}}}" for slot in slots)
            problem = f"{{{misplaced[0]}}} is not allowed there; accepted: {accepted}, then {{label}}"
            raise BadInput(f"prompt {prompt!r}: {problem}")
        space = "" if label or prompt[-1:].isspace() else " "
        return cls(prefix + space, suffix if suffix[-1:].isspace() else suffix + "\n\n")

    def question(self, fields: Fields) -> str:
        return SLOT.sub(lambda slot: fields[slot[1]], self.prefix)

    def example(self, example: Example) -> str:
        fields, answer = example
        return self.question(fields) + answer + self.suffix


@dataclass(frozen=True)
class ScoredPrompt:
    """A prompt as tokens, once with each candidate answer, and what was dropped to fit the context."""

    ids: list[list[int]]
    start: int  # of the answers
    n_dropped: int  # examples
    truncated: bool  # the question alone was too long
    n_tokens: int = 0  # before that

    def rows(self) -> tuple[list[list[int]], list[int]]:
        """The distinct model inputs (an answer without its last token, no prefix of another), and each answer's row."""
        inputs, distinct = [tuple(ids[self.start : -1]) for ids in self.ids], list[tuple[int, ...]]()
        for tail in sorted({*inputs}, key=len, reverse=True):
            if not any(row[: len(tail)] == tail for row in distinct):
                distinct.append(tail)
        row_of = [next(n for n, row in enumerate(distinct) if row[: len(tail)] == tail) for tail in inputs]
        return [[*self.ids[0][: self.start], *row] for row in distinct], row_of


def build_prompt(
    encode: Encode, examples: Texts, question: str, answers: Texts, context: int | None, *, n_special: int = 0
) -> ScoredPrompt:
    """A question after its examples. The first examples are dropped if the context is too short.

    The first `n_special` tokens start every text and stay even if the question is truncated. The space before an
    answer belongs to the answer, as in the tokenizer. A token that spans the border counts as part of every answer.
    """
    before, n_dropped = question.rstrip(" "), 0
    while True:
        text = "".join(examples[n_dropped:])
        ids = [encode(text + question + answer) for answer in answers]
        excess = 0 if context is None else max(map(len, ids)) - 1 - context
        if excess <= 0 or n_dropped == len(examples):
            break
        n_dropped += 1
    shared = common_prefix_length([encode(text + before), *ids])
    start = max(1 + n_special, min(shared, min(map(len, ids)) - 1))
    n_cut = min(max(0, excess), start - 1 - n_special)
    truncated = [row[:n_special] + row[n_special + n_cut :] for row in ids]
    return ScoredPrompt(truncated, start - n_cut, n_dropped, excess > 0, max(map(len, ids)) - 1)


def common_prefix_length(rows: Sequence[list[int]]) -> int:
    """Number of leading tokens that all rows share."""
    low, high = min(rows), max(rows)  # every other row lies between them in lexicographic order
    return next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))


def build_prompts(
    run: LoadedModel, examples: Texts, questions: Texts, answers: Texts, context: int | None, listen: Listener
) -> list[ScoredPrompt]:
    """The prompt of each question; examples and questions that do not fit the context are reported."""
    encode, n_special, shots = partial(encode_prompt, run), len(run.tokenizer.prefix_ids), len(examples)
    prompts = [build_prompt(encode, examples, each, answers, context, n_special=n_special) for each in questions]
    if n_shortened := sum(prompt.n_dropped > 0 for prompt in prompts):
        fewest = shots - max(prompt.n_dropped for prompt in prompts)
        dropped = f"dropped the first examples for {n_shortened:,} of {len(prompts):,} texts, at least {fewest} remain"
        listen("notice", text=f"shots={shots}: exceeds the model's context; {dropped}")
    words = {"inputs": "prompts", "consequence": "truncated at the start", "remedy": "give shorter texts"}
    report_overflow(listen, Overflow.of([prompt.n_tokens for prompt in prompts], context, **words))
    return prompts


@torch.inference_mode()
def log_probabilities(model: LanguageModel, prompts: Sequence[ScoredPrompt], listen: Listener = silent) -> Tensor:
    """ln p of each answer to each prompt (N answers), in float64."""
    log_probs = torch.zeros(len(prompts), len(prompts[0].ids), dtype=torch.float64)
    groups: dict[int, list[int]] = {}  # prompts with the same number of examples share a prefix
    for n, prompt in enumerate(prompts):
        groups.setdefault(prompt.n_dropped, []).append(n)
    done = 0
    for group in groups.values():
        group.sort(key=lambda n: max(map(len, prompts[n].ids)))
        for batch, scores in _PromptScorer(model, [prompts[n] for n in group]).batches():
            log_probs[[group[n] for n in batch]] = scores
            done += len(batch)
            listen("answer", done=done, total=len(prompts))
    return log_probs


class _PromptScorer:
    """Scores prompts with a common prefix: the prefix once, if it is long enough to pay, then batches of the rest."""

    def __init__(self, model: LanguageModel, prompts: Sequence[ScoredPrompt]) -> None:
        self.model, self.prompts, self.device = model, prompts, next(model.parameters()).device
        self.rows = [prompt.rows() for prompt in prompts]
        self.max_length = max(len(row) for rows, _ in self.rows for row in rows)
        questions = [prompt.ids[0][: prompt.start - 1] for prompt in prompts]
        self.prefix_length, self.memory = 0, list[Memory]()
        if len(prompts) > 1 and (shared := common_prefix_length(questions)) >= MIN_SHARED_PREFIX:
            self._cache_prefix(questions[0][:shared])

    def _cache_prefix(self, prefix: list[int]) -> None:
        """Fill every row of the key-value memory with the prefix. Recurrent models process it anew instead."""
        max_rows = max(len(rows) for rows, _ in self.rows)
        memory = self.model.memory(max(max_rows, BATCH_TOKENS // self.max_length), self.max_length)
        if isinstance(memory, list):
            pos = torch.arange(len(prefix), device=self.device)
            self.model(torch.tensor([prefix], device=self.device), pos=pos, memory=_memory_rows(memory, 1))
            for layer in memory:
                layer.reorder(pos.new_zeros(len(layer.k)), len(prefix))
            self.prefix_length, self.memory = len(prefix), memory

    def batches(self) -> Iterator[tuple[list[int], Tensor]]:
        """Batches of prompts: their indices and the scores of their answers."""
        max_rows, batch, n_rows = max(1, BATCH_TOKENS // self.max_length), list[int](), 0
        for n, (rows, _) in enumerate(self.rows):
            if batch and n_rows + len(rows) > max_rows:
                yield batch, self._scores(batch)
                batch, n_rows = [], 0
            batch, n_rows = [*batch, n], n_rows + len(rows)
        yield batch, self._scores(batch)

    def _scores(self, batch: Sequence[int]) -> Tensor:  # batch answers
        rows = [row[self.prefix_length :] for n in batch for row in self.rows[n][0]]
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for padded, row in zip(tokens, rows, strict=True):
            padded[: len(row)] = torch.tensor(row)
        pos = torch.arange(self.prefix_length, self.prefix_length + tokens.shape[1], device=self.device)
        memory = _memory_rows(self.memory, len(rows)) if self.prefix_length else None
        h = self.model(tokens.to(self.device), pos=pos, memory=memory)  # rows L d; causal, so padding has no effect
        targets, first_row = list[tuple[int, int, int, int]](), 0  # row, position, token, answer
        for k, n in enumerate(batch):
            prompt, row_of = self.prompts[n], self.rows[n][1]
            for c, ids in enumerate(prompt.ids):
                n_row, answer, offset = first_row + row_of[c], k * len(prompt.ids) + c, 1 + self.prefix_length
                targets += [(n_row, t - offset, ids[t], answer) for t in range(prompt.start, len(ids))]
            first_row += len(self.rows[n][0])
        _, _, token, answers = torch.tensor(targets).unbind(1)
        positions, which = torch.tensor(targets)[:, :2].unique(dim=0, return_inverse=True)  # logits once per position
        log_p = self.model.logits(h[positions[:, 0], positions[:, 1]]).float().log_softmax(-1).double().cpu()
        sums = torch.zeros(len(batch) * len(self.prompts[0].ids), dtype=torch.float64)
        return sums.index_add(0, answers, log_p[which, token]).view(len(batch), -1)


def _memory_rows(memory: list[Memory], n: int) -> list[Memory]:
    """Views of the first n rows of a memory."""
    return [Memory(layer.k[:n], layer.v[:n]) for layer in memory]


def require_language_model(run: LoadedModel) -> None:
    """Refuse a run that does not generate text."""
    if run.verb != "generate":
        hint = f"use a language model, or harken {run.verb} without a prompt"
        raise BadInput(f"{run.path}: a prompt needs a run that generates text; {hint}")


def check_labels(labels: Texts) -> list[str]:
    """The candidate labels, stripped; at least two, all different."""
    names = [label.strip() for label in labels] if not isinstance(labels, str) else []
    if len(names) < 2 or not all(names) or len({*names}) < len(names):
        raise BadInput(f"labels={labels!r}: give two or more different labels, such as positive,negative")
    return names


def classify_by_prompt(
    run: LoadedModel, texts: Sequence[TextOrPair], prompt: str, labels: Sequence[str], listen: Listener = silent
) -> list[list[LabelScore]]:
    """For each text the labels with their relative probabilities, most probable first.

    If the prompt has {other}, a text is a pair, or one string with a tab between the two.
    """
    require_language_model(run)
    slots = ("text", "other") if "{other}" in str(prompt) else ("text",)
    template, names = Template.parse(prompt, slots), check_labels(labels)
    if not texts:
        return []
    parts = split_texts(texts, len(slots), subject="the prompt takes")
    questions = [template.question(dict(zip(slots, fields, strict=True))) for fields in parts]
    prompts = build_prompts(run, (), questions, names, run.model.context, listen)
    return rank_labels(names, log_probabilities(run.model, prompts).softmax(-1))
