"""Stories that ask for 20 kinds of reasoning, made here; the lines that each answer follows from are known.

The kinds are those of bAbI (Weston 2015), numbered alike, and so is the layout; people, words and worlds are our own.
"""

import random
import re
from collections.abc import Callable, Iterator

from harken.errors import BadInput

from . import story_logic, story_people
from .story_builder import Tale

NAMES = {
    1: "one supporting fact",
    2: "two supporting facts",
    3: "three supporting facts",
    4: "relations of two things",
    5: "relations of three",
    6: "yes or no",
    7: "counting",
    8: "lists",
    9: "negation",
    10: "indefinite knowledge",
    11: "coreference",
    12: "conjunction",
    13: "compound coreference",
    14: "time",
    15: "deduction",
    16: "induction",
    17: "positions",
    18: "sizes",
    19: "paths",
    20: "motives",
}
QUESTIONS = 1000  # in a file
TELL: dict[int, Callable[[Tale], None]] = {**story_people.TELL, **story_logic.TELL}


def stories(task: int, questions: int, seed: int = 0) -> Iterator[str]:
    """The lines of stories of this kind with so many questions in all; the same seed tells the same."""
    if task not in TELL:
        raise BadInput(f"stories of kind {task}: there are kinds 1 to {len(TELL)}")
    rng = random.Random(f"{task} {seed}")
    while questions > 0:
        tale = Tale(rng)
        TELL[task](tale)
        for number, line in enumerate(tale.lines, 1):
            yield f"{number} {line}\n"
            questions -= "\t" in line
            if not questions:
                return


def story_files(*tasks: int) -> tuple[str, ...]:
    """The names of the files of these kinds, one to learn from and one to test, as bAbI names its own."""
    names = (f"qa{n}_{NAMES[n].replace(' ', '-')}" for n in tasks)
    return tuple(f"{name}_{split}.txt" for name in names for split in ("train", "test"))


def story_file(name: str) -> Iterator[str]:
    """What stands in the file of this name."""
    task, split = re.findall(r"qa(\d+)_.*_(train|test)", name)[0]
    return stories(int(task), QUESTIONS, seed=("train", "test").index(split))
