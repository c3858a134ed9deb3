"""Parser of the bAbI format: numbered lines; a question line has a tab, the answer, a tab and its supporting facts.

    1 Joe went to the kitchen.
    2 Joe picked up the milk.
    3 Where is the milk?	kitchen	2 1

A line with number 1 or a blank line starts the next story. Numbers are optional: they are line numbers only if every
line of a story has one.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(r"(?:(\d{1,6})\s+)?(.*)")
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
TASK = re.compile(r"qa(\d+)(?!\d)")
SPLIT = re.compile(r"[._-]?(train|valid|validation|val|dev|test)(?=[._-]|$)", re.I)


class BabiQuestion(NamedTuple):
    """A question, the story lines before it, and its answer."""

    lines: tuple[str, ...]
    question: str
    answer: str  # several words are joined by commas; empty if unknown
    supporting_facts: tuple[int, ...]  # indices of lines
    task: str
    story: str  # the text of the story: its questions are in one split
    location: str


class StoryLine(NamedTuple):
    """A line of a story."""

    line: int  # in its file
    number: str  # in its story
    text: str

    @property
    def statement(self) -> str:
        return self.text.partition("\t")[0].strip()

    @property
    def is_question(self) -> bool:
        return "\t" in self.text or self.statement.endswith("?")


def normalize_words(line: str) -> str:
    """The words of a line in lower case, without punctuation."""
    return " ".join(WORD.findall(unicodedata.normalize("NFC", line.lower())))


def task_name(path: Path) -> str:
    """The task of a file by its name: task 1 for qa1_single-supporting-fact_train.txt."""
    match = TASK.search(path.name)
    return f"task {match[1]}" if match else SPLIT.sub("", path.stem) or path.stem


def parse_questions(
    path: Path, lines: Iterable[tuple[int, str | None]], on_skip: Callable[[Path, int, str], None]
) -> list[BabiQuestion]:
    """The questions of a file, from its numbered lines; lines without words are skipped and reported."""
    questions = list[BabiQuestion]()
    for story in _split_stories(lines):
        story_text, statements, indices = "\n".join(line.text for line in story), list[str](), dict[str, int]()
        for line in story:
            if not normalize_words(line.statement):
                on_skip(path, line.line, "no words")
            elif not line.is_question:
                indices[line.number] = len(statements)
                statements.append(line.statement)
            else:
                _, answer, facts, *_ = (part.strip() for part in f"{line.text}\t\t".split("\t", 2))
                supporting, location = tuple(indices[n] for n in facts.split() if n in indices), f"{path}:{line.line}"
                context = tuple(statements), line.statement, answer, supporting
                questions.append(BabiQuestion(*context, task_name(path), story_text, location))
    return questions


def parse_statements(lines: Iterable[str]) -> list[list[str]]:
    """The statements of each story, without its questions."""
    stories = [[line for line in story if not line.is_question] for story in _split_stories(enumerate(lines, 1))]
    return [[line.statement for line in story if normalize_words(line.statement)] for story in stories]


def _split_stories(lines: Iterable[tuple[int, str | None]]) -> list[list[StoryLine]]:
    """The lines of each story."""
    stories: list[list[StoryLine]] = [[]]
    for line_number, text in lines:
        if text is None:
            continue
        number, rest = LINE.findall(text.strip())[0]
        numbered = all(line.number for line in stories[-1][:1])  # otherwise "1 apple lay there." is a statement
        if not rest or (number == "1" and numbered):
            stories.append([])
        if rest:
            stories[-1].append(StoryLine(line_number, number, rest))
    for story in stories:
        if not all(line.number for line in story):  # the numbers are part of the text
            story[:] = [StoryLine(line.line, "", f"{line.number} {line.text}".strip()) for line in story]
    return list(filter(None, stories))
