"""The lines of a story while it is generated, with questions, answers and supporting lines."""

import random
from collections.abc import Collection, Sequence

PLACES = ("kitchen", "bathroom", "bedroom", "garden", "hallway", "office")


class StoryBuilder:
    """One story. Lines are numbered from 1."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []

    def add_line(self, text: str) -> int:
        """Append a line and return its number."""
        self.lines.append(text)
        return len(self.lines)

    def add_question(self, question: str, answer: str, facts: Sequence[int]) -> None:
        """Append a question with its answer and the numbers of the supporting lines."""
        self.add_line(f"{question}\t{answer}\t{' '.join(map(str, dict.fromkeys(facts)))}")

    def choose(self, options: Sequence[str], exclude: Collection[str] = ()) -> str:
        """A random option."""
        return self.rng.choice([option for option in options if option not in exclude])

    def sample(self, options: Sequence[str], k: int) -> list[str]:
        """k different options in random order."""
        return self.rng.sample(options, k)
