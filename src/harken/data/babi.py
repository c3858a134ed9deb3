"""Stories as bAbI writes them: numbered lines, among them questions with a tab, the answer, a tab and its facts.

    1 Joe went to the kitchen.
    2 Joe picked up the milk.
    3 Where is the milk?	kitchen	2 1

A line numbered 1, or one behind a blank line, begins the next story. A story without numbers is read too.
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
        whole, said, numbers = "\n".join(text for _, _, text in story), list[str](), dict[str, int]()
        for line, number, text in story:
            statement, tab, rest = text.partition("\t")
            if not words_of(statement):
                flawed(path, line, "there is no word in it")
            elif not tab and not statement.rstrip().endswith("?"):
                numbers[number] = len(said)
                said.append(statement.strip())
            else:
                answer, _, facts = (part.strip() for part in rest.partition("\t"))
                known = tuple(numbers[n] for n in facts.split() if n in numbers)
                found.append(
                    Told(tuple(said), statement.strip(), answer, known, task_of(path), whole, f"{path}:{line}")
                )
    return found


def statements(lines: Iterable[str]) -> list[list[str]]:
    """What is told in each story of these lines, its questions left out."""
    every = ([text for _, _, text in story] for story in _stories(enumerate(lines, 1)))
    return [[text.strip() for text in story if "\t" not in text and not text.endswith("?")] for story in every]


def _stories(lines: Iterable[tuple[int, str | None]]) -> list[list[tuple[int, str, str]]]:
    """The lines of each story: where it stands in the file, its number in the story, its text."""
    stories: list[list[tuple[int, str, str]]] = [[]]
    for line, text in lines:
        if text is None:
            continue
        number, rest = LINE.findall(text.strip())[0]
        if number == "1" or not rest:
            stories.append([])
        if rest:
            stories[-1].append((line, number, rest))
    return [story for story in stories if story]
