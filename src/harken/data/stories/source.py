"""Stories with questions; an answer is a word, or several that are one label.

A memory network reads a story line by line; for other models it is one text that ends with the question, truncated to
its latest max_length tokens. All questions about a story are in one split.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE, Array
from harken.data.labelled.batch import EncodedTexts
from harken.data.labelled.examples import ExampleData, ExampleSource, TokenLabelProcessor
from harken.data.tables.read import SkippedRows
from harken.data.tables.text_file import iter_lines
from harken.data.tokenizers.pairs import RaggedTokens
from harken.errors import BadInput
from harken.events import Listener, Overflow
from harken.settings import LabelOutputs

from .babi import TASK, BabiQuestion, normalize_words, parse_questions

DROPPED = "truncated at the start"


@dataclass(frozen=True, eq=False)
class StoryProcessor(TokenLabelProcessor):
    """The vocabulary of stories, and the answers."""

    target_type: ClassVar[str] = "label"

    @property
    def vocab(self) -> LabelOutputs:
        answer_ids = self.tokenizer.encode(" ".join(map(answer_token, self.labels)))
        return LabelOutputs(self.tokenizer.vocab, len(self.labels), answer_ids=tuple(int(i) + 1 for i in answer_ids))

    def encode_line(self, text: str) -> Array:
        """The ids of the words of a line."""
        return self.tokenizer.encode(normalize_words(text)).astype(np.int64)

    def unknown_words(self, text: str) -> list[str]:
        """The words of a line that are not in the vocabulary."""
        return self.tokenizer.unknown_pieces(normalize_words(text))


def answer_token(answer: str) -> str:
    """An answer as one word of the vocabulary, equal to the word in a line if it is a single word."""
    return ",".join(normalize_words(answer).split() or answer.split())


@dataclass(frozen=True, eq=False)
class Stories:
    """Encoded questions. `table` has each distinct line once, padded with 0; row 0 is empty."""

    questions: list[BabiQuestion]
    texts: EncodedTexts  # each story with its question as one text
    table: Array  # lines W
    story: list[Array]  # rows of the lines of each question
    question: Array  # N: row of the question
    n_tokens: Array  # N: of each story with its question, before the truncation of `texts`

    def __len__(self) -> int:
        return len(self.questions)

    def select(self, indices: Array) -> "Stories":
        """These questions."""
        questions, story = [self.questions[n] for n in indices.tolist()], [self.story[n] for n in indices.tolist()]
        question, n_tokens = self.question[indices], self.n_tokens[indices]
        return Stories(questions, self.texts.select(indices), self.table, story, question, n_tokens)

    @property
    def targets(self) -> Array:  # N; IGNORE: the answer is not a label
        return self.texts.targets

    def facts(self) -> dict[str, int]:
        n_stories = len({question.story for question in self.questions})
        return {"questions": len(self), "stories": n_stories, "most lines": max(map(len, self.story), default=0)}


class StoryData(ExampleData):
    """Loaded stories by split."""

    def _facts(self) -> dict[str, object]:
        facts, tasks = super()._facts(), {question.task for question in self.train.questions}
        n_tasks, max_lines = f"{len(tasks)} tasks, " * (len(tasks) > 1), self.train.facts()["most lines"]
        summary = f"{n_tasks}{facts['labels']} answers, {facts['vocab']} words, up to {max_lines} lines"
        words = {word for question in self.train.questions for word in normalize_words(question.question).split()}
        return {**facts, "summary": summary, "question_words": sorted(words)}


class StorySource(ExampleSource[BabiQuestion, StoryProcessor, Stories]):
    """Settings of stories with questions."""

    task: ClassVar[str] = "answer"
    dataset_class: ClassVar[type[StoryData]] = StoryData
    processor_class: ClassVar[type[StoryProcessor]] = StoryProcessor

    kind: Literal["stories"] = "stories"
    tokenizer: Literal["word"] = Field("word", description="tokenizer type: lower-case words without punctuation")
    tasks: int | list[int] | None = Field(None, description="task numbers to use from a folder (qa1_..., qa2_...)")
    max_length: int = Field(
        512, ge=16, description="maximum number of tokens of a story as one text; older tokens are truncated"
    )
    duplicate_questions: Literal["drop", "keep"] = Field(
        "drop", description="training questions that recur about the same lines in valid or test; keep: as in bAbI"
    )

    def read(self, path: Path, listen: Listener) -> list[BabiQuestion]:
        skipped = SkippedRows("not a line of a story")
        questions = parse_questions(path, iter_lines(path, skipped, self.encoding), skipped)
        for question in questions:
            if not question.answer:
                skipped(path, int(question.location.rpartition(":")[2]), "the question has no answer")
        skipped.report(listen)
        if not (answered := [question for question in questions if question.answer]):
            hint = "add lines with a question, a tab and its answer, as in: 3 Where is Joe?<tab>kitchen"
            raise BadInput(f"{path}: no question with an answer; {hint}")
        return answered

    def split_key(self, example: BabiQuestion) -> str:
        return example.story

    def location(self, example: BabiQuestion) -> str:
        return example.location

    def duplicate_key(self, example: BabiQuestion) -> str:
        if self.duplicate_questions == "keep":
            return example.location
        return "\n".join((*example.lines, example.question))

    def examples_in(self, part: Stories) -> list[BabiQuestion]:
        return part.questions

    def _draw_splits(self, by_split: dict[str, list[BabiQuestion]]) -> dict[str, list[BabiQuestion]]:
        """Held-out splits end with a complete story."""
        drawn = super()._draw_splits(by_split)
        for questions in drawn.values():
            last = [q for q in by_split["train"] if questions and q.story == questions[-1].story]
            questions += [q for q in last if q not in questions]
        return drawn

    def texts(self, examples: Iterable[BabiQuestion]) -> Iterator[str]:
        seen = set[str]()
        for question in examples:
            yield answer_token(question.answer)
            for line in (*question.lines, question.question):  # in order: word ids follow first occurrence
                if line not in seen:
                    seen.add(line)
                    yield normalize_words(line)

    def labels(self, examples: list[BabiQuestion]) -> list[str]:
        return sorted({question.answer for question in examples})

    def encode_examples(self, examples: list[BabiQuestion], processor: StoryProcessor) -> Stories:
        return encode_stories(examples, processor, self.max_length)

    def _files(self) -> dict[str, list[Path]]:
        files = super()._files()
        if self.tasks is None:
            return files
        wanted = {self.tasks} if isinstance(self.tasks, int) else {*self.tasks}
        task_of = {p: int(match[1]) for paths in files.values() for p in paths if (match := TASK.search(p.name))}
        if missing := wanted - {*task_of.values()}:
            available = ", ".join(map(str, sorted({*task_of.values()}))) or "not numbered"
            problem = f"{self.train_path} has no file qa{min(missing)}_..."
            raise BadInput(f"data.tasks = {self.tasks}: {problem}; its tasks are {available}")
        chosen = {split: [path for path in paths if task_of.get(path) in wanted] for split, paths in files.items()}
        return {split: paths for split, paths in chosen.items() if paths}


def token_overflow(stories: Stories, max_length: int) -> Overflow:
    """The stories that are truncated as one text."""
    words = {"inputs": "stories", "consequence": DROPPED, "remedy": "train with data.max_length={longest}"}
    return Overflow.of(stories.n_tokens.tolist(), max_length, **words)


def memory_overflow(n_lines: Sequence[int], memory: int) -> Overflow:
    """The stories with more lines than the memory of a model holds."""
    words = {"inputs": "stories", "unit": "lines", "consequence": DROPPED}
    return Overflow.of(n_lines, memory, **words, remedy="train with model.memory={longest}")


def encode_stories(questions: Sequence[BabiQuestion], processor: StoryProcessor, max_length: int) -> Stories:
    """Encode questions and their stories; as one text, every line and the question follow an end token."""
    row_of = dict[str, int]()  # of each distinct line
    story = [np.array([row_of.setdefault(line, len(row_of) + 1) for line in q.lines], np.int64) for q in questions]
    question_rows = np.array([row_of.setdefault(q.question, len(row_of) + 1) for q in questions], np.int64)
    line_ids = [np.zeros(0, np.int64), *map(processor.encode_line, row_of)]
    table = np.zeros((len(line_ids), max(map(len, line_ids))), np.int64)
    for n, ids in enumerate(line_ids):
        table[n, : len(ids)] = ids + 1
    end_id = processor.end_id
    prefixed, texts, second_start = [np.append(end_id, ids) for ids in line_ids], list[Array](), list[int]()
    n_tokens = list[int]()
    for rows, question in zip(story, question_rows, strict=True):
        text = np.concatenate([*(prefixed[n] for n in rows), prefixed[question]])
        n_tokens.append(len(text) + 1)
        texts.append(text[1 - max_length :])  # with the final end token: max_length
        second_start.append(max(0, len(texts[-1]) - len(line_ids[question])))
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    tokens = RaggedTokens(np.concatenate([*texts, line_ids[0]]), starts, end_id)
    label_ids = {label: n for n, label in enumerate(processor.labels)}
    targets = np.array([label_ids.get(question.answer, IGNORE) for question in questions], np.int64)
    encoded = EncodedTexts(tokens, np.array(second_start)[:, None], targets)
    return Stories(list(questions), encoded, table, story, question_rows, np.array(n_tokens))
