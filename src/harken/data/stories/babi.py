"""Stories as bAbI writes them: numbered lines, among them questions with a tab, the answer, a tab and its facts.

    1 Joe went to the kitchen.
    2 Joe picked up the milk.
    3 Where is the milk?	kitchen	2 1

A line numbered 1, or one behind a blank line, begins the next story. A story without numbers is read too; numbers are
line numbers only where every line of a story has one.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

LINE = re.compile(r"(?:(\d{1,6})\s+)?(.*)")
WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")
TASK = re.compile(r"qa(\d+)(?!\d)")
SPLIT = re.compile(r"[._-]?(train|valid|validation|val|dev|test)(?=[._-]|$)", re.I)


class Told(NamedTuple):
    """A question, the lines that were told before it, and what is known of its answer."""

    lines: tuple[str, ...]
    question: str
    answer: str  # several that belong together are one, with commas; empty where it is not known
    facts: tuple[int, ...]  # the lines it follows from, counted from 0
    task: str
    story: str  # all of the story: questions about one stand on one side
    place: str


class Line(NamedTuple):
    """A line of a story."""

    place: int  # in its file
    number: str  # in its story
    text: str

    @property
    def statement(self) -> str:
        return self.text.partition("\t")[0].strip()

    @property
    def asks(self) -> bool:
        return "\t" in self.text or self.statement.endswith("?")


def words_of(line: str) -> str:
    """The words of a line in small letters, without its signs."""
    return " ".join(WORD.findall(line.lower()))


def task_of(path: Path) -> str:
    """The task that a file is of, by its name: task 1 of qa1_single-supporting-fact_train.txt."""
    found = TASK.search(path.name)
    return f"task {found[1]}" if found else SPLIT.sub("", path.stem) or path.stem


def told(path: Path, lines: Iterable[tuple[int, str | None]], flawed: Callable[[Path, int, str], None]) -> list[Told]:
    """The questions of a file, from its numbered lines; what is none is told and left out."""
    found = list[Told]()
    for story in _stories(lines):
        whole, said, numbers = "\n".join(line.text for line in story), list[str](), dict[str, int]()
        for line in story:
            if not words_of(line.statement):
                flawed(path, line.place, "there is no word in it")
            elif not line.asks:
                numbers[line.number] = len(said)
                said.append(line.statement)
            else:
                _, answer, facts, *_ = (part.strip() for part in f"{line.text}\t\t".split("\t", 2))
                known, place = tuple(numbers[n] for n in facts.split() if n in numbers), f"{path}:{line.place}"
                found.append(Told(tuple(said), line.statement, answer, known, task_of(path), whole, place))
    return found


def statements(lines: Iterable[str]) -> list[list[str]]:
    """What is told in each story of these lines, its questions left out."""
    stories = _stories(enumerate(lines, 1))
    return [[line.statement for line in story if words_of(line.statement) and not line.asks] for story in stories]


def _stories(lines: Iterable[tuple[int, str | None]]) -> list[list[Line]]:
    """The lines of each story."""
    stories: list[list[Line]] = [[]]
    for place, text in lines:
        if text is None:
            continue
        number, rest = LINE.findall(text.strip())[0]
        counted = all(line.number for line in stories[-1][:1])  # else "1 apple lay there." goes on
        if not rest or (number == "1" and counted):
            stories.append([])
        if rest:
            stories[-1].append(Line(place, number, rest))
    return [story if all(line.number for line in story) else _unnumbered(story) for story in stories if story]


def _unnumbered(story: list[Line]) -> list[Line]:
    """The same lines with all that stands in them as their text."""
    return [Line(line.place, "", f"{line.number} {line.text}".strip()) for line in story]
