"""A story while it is told: its lines, and questions with the answer and the lines that it follows from."""

import random
from collections.abc import Collection, Sequence

PLACES = ("kitchen", "bathroom", "bedroom", "garden", "hallway", "office")


class Tale:
    """One story. A line is known by its number, from 1."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []

    def say(self, text: str) -> int:
        """Tell a line; its number."""
        self.lines.append(text)
        return len(self.lines)

    def ask(self, question: str, answer: str, facts: Sequence[int]) -> None:
        self.say(f"{question}\t{answer}\t{' '.join(map(str, dict.fromkeys(facts)))}")

    def pick(self, options: Sequence[str], but: Collection[str] = ()) -> str:
        """One of these, by chance."""
        return self.rng.choice([option for option in options if option not in but])

    def some(self, options: Sequence[str], many: int) -> list[str]:
        """So many different ones, in any order."""
        return self.rng.sample(options, many)
