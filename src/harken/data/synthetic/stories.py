"""Generated stories with questions of 20 kinds of reasoning; the supporting lines of each answer are known.

The kinds, their numbers and the file format are those of bAbI (Weston 2015); people, vocabulary and worlds are new.
"""

import random
import re
from collections.abc import Callable, Iterator

from harken.errors import BadInput

from . import story_logic, story_people
from .story_builder import StoryBuilder

KIND_NAMES = {
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
QUESTIONS_PER_FILE = 1000
GENERATORS: dict[int, Callable[[StoryBuilder], None]] = {**story_people.GENERATORS, **story_logic.GENERATORS}


def stories(kind: int, questions: int, seed: int = 0) -> Iterator[str]:
    """The lines of stories of this kind, up to this number of questions; a pure function of the arguments."""
    if kind not in GENERATORS:
        raise BadInput(f"stories of kind {kind}: accepted are kinds 1 to {len(GENERATORS)}")
    rng = random.Random(f"{kind} {seed}")
    while questions > 0:
        story = StoryBuilder(rng)
        GENERATORS[kind](story)
        for number, line in enumerate(story.lines, 1):
            yield f"{number} {line}\n"
            questions -= "\t" in line
            if not questions:
                return


def story_files(*kinds: int) -> tuple[str, ...]:
    """The names of the training and test files of these kinds, in the style of bAbI."""
    names = (f"qa{n}_{KIND_NAMES[n].replace(' ', '-')}" for n in kinds)
    return tuple(f"{name}_{split}.txt" for name in names for split in ("train", "test"))


def story_file(name: str) -> Iterator[str]:
    """The lines of the file with this name."""
    kind, split = re.findall(r"qa(\d+)_.*_(train|test)", name)[0]
    return stories(int(kind), QUESTIONS_PER_FILE, seed=("train", "test").index(split))
