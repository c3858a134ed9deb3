"""Stories with questions; an answer is a word, or several that are one label.

A memory network reads a story line by line; for other models it is one text that ends with the question, truncated to
its latest max_length tokens. All questions about a story are in one split.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE, Array
from harken.data.labelled.batch import EncodedTexts
from harken.data.labelled.examples import ExampleData, ExampleSource, TokenLabelProcessor
from harken.data.tables.read import SkippedRows, iter_lines
from harken.data.tokenizers.pairs import RaggedTokens
from harken.errors import BadInput
from harken.events import Listener
from harken.settings import LabelOutputs

from .babi import TASK, BabiQuestion, normalize_words, parse_questions


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

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def targets(self) -> Array:  # N; IGNORE: the answer is not a label
        return self.texts.targets

    def facts(self) -> dict[str, Any]:
        return {
            "questions": len(self.questions),
            "stories": len({question.story for question in self.questions}),
            "most lines": max(map(len, self.story), default=0),
        }


class StoryData(ExampleData):
    """Loaded stories by split."""

    def facts(self) -> dict[str, Any]:
        facts, tasks = super().facts(), {question.task for question in self.train.questions}
        n_tasks = f"{len(tasks)} tasks, " * (len(tasks) > 1)
        max_lines = facts["most lines"]["train"]
        summary = f"{n_tasks}{facts['labels']} answers, {facts['vocab']} words, up to {max_lines} lines"
        return {**facts, "unit": "questions", "summary": summary}


class StorySource(ExampleSource):
    """Settings of stories with questions."""

    model: ClassVar[str] = "memnet"
    task: ClassVar[str] = "answer"
    model_group: ClassVar[str] = " of stories"
    dataset_class: ClassVar[type[Any]] = StoryData

    kind: Literal["stories"] = "stories"
    tokenizer: Literal["word"] = Field("word", description="tokenizer type: lower-case words without punctuation")
    tasks: int | list[int] | None = Field(None, description="task numbers to use from a folder (qa1_..., qa2_...)")
    max_length: int = Field(
        512, ge=16, description="maximum number of tokens of a story as one text; older tokens are truncated"
    )
    duplicate_questions: Literal["drop", "keep"] = Field(
        "drop",
        description="training questions that recur about the same lines in valid or test; keep: as published for bAbI",
    )

    def load_processor(self, folder: Path) -> StoryProcessor:
        return StoryProcessor.load(folder)  # type: ignore[return-value]

    def read(self, path: Path, listen: Listener) -> list[BabiQuestion]:
        skipped = SkippedRows("not a line of a story")
        questions = parse_questions(path, iter_lines(path, skipped), skipped)
        for question in questions:
            if not question.answer:
                skipped(path, int(question.location.rpartition(":")[2]), "the question has no answer")
        if skipped.count:
            listen("notice", text=str(skipped))
        if not (answered := [question for question in questions if question.answer]):
            hint = "add lines with a question, a tab and its answer, as in: 3 Where is Joe?<tab>kitchen"
            raise BadInput(f"{path}: no question with an answer; {hint}")
        return answered

    def split_key(self, example: BabiQuestion) -> str:
        return example.story

    def duplicate_key(self, example: BabiQuestion) -> str:
        if self.duplicate_questions == "keep":
            return example.location
        return "\n".join((*example.lines, example.question))

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

    def labels(self, examples: Iterable[BabiQuestion]) -> list[str]:
        return sorted({question.answer for question in examples})

    def encode_examples(self, examples: list[BabiQuestion], processor: TokenLabelProcessor, *, learn: bool) -> Stories:
        assert isinstance(processor, StoryProcessor)
        return encode_stories(examples, processor, self.max_length)

    def _files(self) -> dict[str, list[Path]]:
        files = super()._files()
        if self.tasks is None:
            return files
        wanted = {self.tasks} if isinstance(self.tasks, int) else {*self.tasks}
        task_of = {p: int(match[1]) for paths in files.values() for p in paths if (match := TASK.search(p.name))}
        if missing := wanted - {*task_of.values()}:
            available = ", ".join(map(str, sorted({*task_of.values()}))) or "not numbered"
            problem = f"{self._home} has no file qa{min(missing)}_..."
            raise BadInput(f"data.tasks = {self.tasks}: {problem}; its tasks are {available}")
        chosen = {split: [path for path in paths if task_of.get(path) in wanted] for split, paths in files.items()}
        return {split: paths for split, paths in chosen.items() if paths}

    def _build_processor(self, examples: list[BabiQuestion], known: Any, listen: Listener) -> StoryProcessor:
        fitted = super()._build_processor(examples, known, listen)
        return fitted if isinstance(fitted, StoryProcessor) else StoryProcessor(fitted.tokenizer, fitted.labels)


def encode_stories(questions: Sequence[BabiQuestion], processor: StoryProcessor, max_length: int) -> Stories:
    """Encode questions and their stories."""
    line_ids: list[Array] = [np.zeros(0, np.int64)]
    rows = dict[str, int]()

    def row(line: str) -> int:
        if line not in rows:
            rows[line] = len(line_ids)
            line_ids.append(processor.encode_line(line))
        return rows[line]

    story = [np.array([row(line) for line in question.lines], np.int64) for question in questions]
    question_rows = np.array([row(question.question) for question in questions], np.int64)
    table = np.zeros((len(line_ids), max(map(len, line_ids))), np.int64)
    for n, ids in enumerate(line_ids):
        table[n, : len(ids)] = ids + 1
    label_ids = {label: n for n, label in enumerate(processor.labels)}
    targets = np.array([label_ids.get(question.answer, IGNORE) for question in questions], np.int64)
    tokens, second_start = _as_texts(line_ids, story, question_rows, processor.end_id, max_length)
    return Stories(list(questions), EncodedTexts(tokens, second_start, targets), table, story, question_rows)


def _as_texts(
    line_ids: list[Array], story: list[Array], question_rows: Array, end_id: int, max_length: int
) -> tuple[RaggedTokens, Array]:
    """Each story as one text, with an end token before every line and before the question."""
    prefixed, texts, second_start = [np.append(end_id, ids) for ids in line_ids], list[Array](), list[int]()
    for rows, question in zip(story, question_rows, strict=True):
        text = np.concatenate([*(prefixed[n] for n in rows), prefixed[question]])
        texts.append(text[1 - max_length :])  # with the final end token: max_length
        second_start.append(max(0, len(texts[-1]) - len(line_ids[question])))
    starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return RaggedTokens(np.concatenate([*texts, line_ids[0]]), starts, end_id), np.array(second_start)
