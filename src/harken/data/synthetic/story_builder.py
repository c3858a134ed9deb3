"""A story while it is generated: its lines and questions, and the places and things of its people."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

PLACES = ("kitchen", "bathroom", "bedroom", "garden", "hallway", "office")
MEN, WOMEN = ("Joe", "Tom"), ("Mary", "Nina")
PEOPLE = (*MEN, *WOMEN)
THINGS = ("milk", "ball", "apple", "book")
GO = ("went to", "walked to", "ran to", "moved to")
TAKE, DROP, GIVE = ("picked up", "took", "grabbed"), ("put down", "dropped", "left"), ("gave", "handed", "passed")


class KnownPlace(NamedTuple):
    """A place and the numbers of the lines from which it follows."""

    place: str
    facts: tuple[int, ...]


class Gift(NamedTuple):
    """A transfer of a thing and the number of its line."""

    giver: str
    thing: str
    receiver: str
    line: int


class StoryBuilder:
    """One story. Lines are numbered from 1."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.places: dict[str, KnownPlace] = {}  # by person
        self.held: dict[str, dict[str, int]] = {person: {} for person in PEOPLE}  # thing -> line in which it was taken
        self.history: dict[str, list[KnownPlace]] = {}  # places of each thing in order
        self.changes: dict[str, list[int]] = {person: [] for person in PEOPLE}  # lines about what a person holds
        self.gifts: list[Gift] = []

    def add_line(self, text: str) -> int:
        """Append a line and return its number."""
        self.lines.append(text)
        return len(self.lines)

    def add_question(self, question: str, answer: str, facts: Sequence[int]) -> None:
        """Append a question with its answer and the numbers of the supporting lines."""
        self.add_line(f"{question}\t{answer}\t{' '.join(map(str, dict.fromkeys(facts)))}")

    def choose(self, options: Collection[str], exclude: Collection[str] = ()) -> str:
        """A random option."""
        return self.rng.choice([option for option in options if option not in exclude])

    def sample(self, options: Collection[str], k: int) -> list[str]:
        """k different options in random order."""
        return self.rng.sample(list(options), k)

    # --- actions of people --------------------------------------------------------------------------------------------

    def move(self, person: str = "", place: str = "") -> bool:
        """A person goes to another place with everything that he or she holds."""
        person = person or self.choose(PEOPLE)
        current = [self.places[person].place] if person in self.places else []
        place = place or self.choose(PLACES, exclude=current)
        line = self.add_line(f"{person} {self.choose(GO)} the {place}.")
        self.places[person] = KnownPlace(place, (line,))
        for thing, taken_line in self.held[person].items():
            self._set_place(thing, place, (taken_line, line))
        return True

    def _set_place(self, thing: str, place: str, facts: tuple[int, ...]) -> None:
        history = self.history.setdefault(thing, [])
        if history and history[-1].place == place:
            history.pop()
        history.append(KnownPlace(place, facts))

    def take(self) -> bool:
        """A person takes a thing at the same place; a thing that was not mentioned yet may be anywhere."""
        held = {thing for _, thing in self._possessions()}
        options = [
            (person, thing)
            for person, known in self.places.items()
            for thing in THINGS
            if thing not in held and (thing not in self.history or self.history[thing][-1].place == known.place)
        ]
        if options:
            person, thing = self.rng.choice(options)
            self.held[person][thing] = self._take_or_drop(person, TAKE, thing)
        return bool(options)

    def drop(self) -> bool:
        if held := self._possessions():
            person, thing = self.rng.choice(held)
            self._take_or_drop(person, DROP, thing)
            del self.held[person][thing]
        return bool(held)

    def _possessions(self) -> list[tuple[str, str]]:
        return [(person, thing) for person, things in self.held.items() for thing in things]

    def _take_or_drop(self, person: str, verbs: Sequence[str], thing: str) -> int:
        line = self.add_line(f"{person} {self.choose(verbs)} the {thing}.")
        self.changes[person].append(line)
        self._set_place(thing, self.places[person].place, (line, *self.places[person].facts))
        return line

    def give(self) -> bool:
        """A person gives a thing to another, who first comes to the same place."""
        if held := self._possessions():
            giver, thing = self.rng.choice(held)
            receiver, place = self.choose(PEOPLE, exclude=[giver]), self.places[giver].place
            if receiver not in self.places or self.places[receiver].place != place:
                self.move(receiver, place)
            line = self.add_line(f"{giver} {self.choose(GIVE)} the {thing} to {receiver}.")
            del self.held[giver][thing]
            self.held[receiver][thing] = line
            self.gifts.append(Gift(giver, thing, receiver, line))
        return bool(held)

    def act(self, *actions: Callable[[], bool]) -> None:
        """Perform a random action, or a move if it is impossible."""
        if not self.rng.choice(actions)():
            self.move()

    def carry(self, n_actions: int) -> None:
        """Perform random actions with things."""
        for _ in range(n_actions):
            self.act(self.move, self.move, self.take, self.take, self.drop)
