"""Kinds 1 to 3 and 5 to 14: people who move, take things, drop them and give them away."""

from collections.abc import Callable
from typing import NamedTuple

from .story_builder import PLACES, StoryBuilder

HE, SHE = ("Joe", "Tom"), ("Mary", "Nina")
PEOPLE = (*HE, *SHE)
THINGS = ("milk", "ball", "apple", "book")
GO = ("went to", "walked to", "ran to", "moved to")
TAKE, DROP, GIVE = ("picked up", "took", "grabbed"), ("put down", "dropped", "left"), ("gave", "handed", "passed")
NUMBERS = ("none", "one", "two", "three", "four")
THEN = ("Then", "After that", "Later", "Afterwards")
TIMES = ("yesterday", "this morning", "this afternoon", "this evening")


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


class PeopleWorld:
    """The places of people and things, and who holds which thing."""

    def __init__(self, story: StoryBuilder) -> None:
        self.story = story
        self.places: dict[str, KnownPlace] = {}  # by person
        self.held: dict[str, dict[str, int]] = {person: {} for person in PEOPLE}  # thing -> line in which it was taken
        self.history: dict[str, list[KnownPlace]] = {}  # places of each thing in order
        self.changes: dict[str, list[int]] = {person: [] for person in PEOPLE}  # lines about what a person holds
        self.gifts: list[Gift] = []

    def move(self, person: str = "", place: str = "") -> None:
        """A person goes to another place with everything that he or she holds."""
        person = person or self.story.choose(PEOPLE)
        current = [self.places[person].place] if person in self.places else ()
        place = place or self.story.choose(PLACES, exclude=current)
        line = self.story.add_line(f"{person} {self.story.choose(GO)} the {place}.")
        self.places[person] = KnownPlace(place, (line,))
        for thing, taken_line in self.held[person].items():
            self._set_place(thing, place, (taken_line, line))

    def _set_place(self, thing: str, place: str, facts: tuple[int, ...]) -> None:
        history = self.history.setdefault(thing, [])
        if history and history[-1].place == place:
            history.pop()
        history.append(KnownPlace(place, facts))

    def take(self) -> bool:
        """A person takes a thing at the same place; a thing that was not mentioned yet may be anywhere."""
        held = {thing for things in self.held.values() for thing in things}
        options = [
            (person, thing)
            for person, known in self.places.items()
            for thing in THINGS
            if thing not in held and (thing not in self.history or self.history[thing][-1].place == known.place)
        ]
        if not options:
            return False
        person, thing = self.story.rng.choice(options)
        line = self.story.add_line(f"{person} {self.story.choose(TAKE)} the {thing}.")
        self.held[person][thing] = line
        self.changes[person].append(line)
        self._set_place(thing, self.places[person].place, (line, *self.places[person].facts))
        return True

    def drop(self) -> bool:
        held = [(person, thing) for person, things in self.held.items() for thing in things]
        if not held:
            return False
        person, thing = self.story.rng.choice(held)
        line = self.story.add_line(f"{person} {self.story.choose(DROP)} the {thing}.")
        del self.held[person][thing]
        self.changes[person].append(line)
        self._set_place(thing, self.places[person].place, (line, *self.places[person].facts))
        return True

    def give(self) -> bool:
        """A person gives a thing to another, who first comes to the same place."""
        held = [(person, thing) for person, things in self.held.items() for thing in things]
        if not held:
            return False
        giver, thing = self.story.rng.choice(held)
        receiver, place = self.story.choose(PEOPLE, exclude=[giver]), self.places[giver].place
        if receiver not in self.places or self.places[receiver].place != place:
            self.move(receiver, place)
        line = self.story.add_line(f"{giver} {self.story.choose(GIVE)} the {thing} to {receiver}.")
        del self.held[giver][thing]
        self.held[receiver][thing] = line
        self.gifts.append(Gift(giver, thing, receiver, line))
        return True

    def act(self, *actions: Callable[[], object]) -> None:
        """Perform a random action, or a move if it is impossible."""
        if not self.story.rng.choice(actions)():
            self.move()

    def carry(self, n_actions: int) -> None:
        """Perform random actions with things."""
        for _ in range(n_actions):
            self.act(self.walk, self.walk, self.take, self.take, self.drop)

    def walk(self) -> bool:
        self.move()
        return True


# --- places of people and things --------------------------------------------------------------------------------------


def _place_of_person(story: StoryBuilder) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        world.move()
        world.move()
        person = story.choose(list(world.places))
        story.add_question(f"Where is {person}?", *world.places[person])


def _place_of_thing(story: StoryBuilder) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        world.carry(story.rng.randint(3, 6))
        while not world.history:
            world.carry(1)
        thing = story.choose(list(world.history))
        story.add_question(f"Where is the {thing}?", *world.history[thing][-1])


def _previous_place_of_thing(story: StoryBuilder) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        world.carry(story.rng.randint(4, 8))
        while not any(len(history) > 1 for history in world.history.values()):
            world.carry(1)
        thing = story.choose([name for name, history in world.history.items() if len(history) > 1])
        history = world.history[thing]
        places = [known.place for known in history]
        n = story.rng.choice([n for n in range(1, len(history)) if places[n] not in places[n + 1 :]])
        question = f"Where was the {thing} before the {places[n]}?"
        story.add_question(question, places[n - 1], history[n].facts + history[n - 1].facts)


def _yes_no(story: StoryBuilder) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        world.carry(2)
        while not world.places:
            world.move()
        _ask_yes_no(story, story.choose(list(world.places)), world.places)


def _ask_yes_no(story: StoryBuilder, person: str, places: dict[str, KnownPlace]) -> None:
    """Ask whether a person is at the true place or at another."""
    known = places[person]
    place = known.place if story.rng.random() < 0.5 else story.choose(PLACES, exclude=[known.place])
    story.add_question(f"Is {person} in the {place}?", "yes" if place == known.place else "no", known.facts)


# --- possessions ------------------------------------------------------------------------------------------------------


def _counting(story: StoryBuilder) -> None:
    _possessions(story, "How many things is {who} carrying?", lambda things: NUMBERS[len(things)])


def _lists(story: StoryBuilder) -> None:
    _possessions(story, "What is {who} carrying?", lambda things: ",".join(things) or "nothing")


def _possessions(story: StoryBuilder, question: str, answer: Callable[[list[str]], str]) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        world.carry(story.rng.randint(2, 4))
        while not any(world.changes.values()):
            world.carry(1)
        person = story.choose([person for person, changes in world.changes.items() if changes])
        story.add_question(question.format(who=person), answer(list(world.held[person])), world.changes[person])


def _giving(story: StoryBuilder) -> None:
    world = PeopleWorld(story)
    for _ in range(5):
        n_gifts = len(world.gifts)
        while len(world.gifts) == n_gifts:
            world.act(world.walk, world.take, world.take, world.give, world.give)
        gift = story.rng.choice(world.gifts)
        a, thing, b, line = next(g for g in reversed(world.gifts) if g.thing == gift.thing)  # its last transfer
        last = next(g for g in reversed(world.gifts) if (g.giver, g.receiver) == (a, b))
        options = [
            (f"What did {a} give to {b}?", last.thing, [last.line]),
            (f"Who gave the {thing} to {b}?", a, [line]),
            (f"Who did {a} give the {thing} to?", b, [line]),
            (f"Who received the {thing}?", b, [line]),
            (f"Who gave the {thing}?", a, [line]),
        ]
        story.add_question(*story.rng.choice(options))


# --- negation, uncertainty, coreference and time ----------------------------------------------------------------------


def _negation(story: StoryBuilder) -> None:
    present, absent = dict[str, KnownPlace](), dict[str, KnownPlace]()  # where a person is, or is known not to be
    for _ in range(5):
        for _ in range(2):
            person = story.choose(PEOPLE)
            if person in present and story.rng.random() < 0.5:
                place = present.pop(person).place
                line = story.add_line(f"{person} is {story.choose(('no longer', 'not'))} in the {place}.")
                absent[person] = KnownPlace(place, (line,))
            else:
                place = story.choose(PLACES)
                text = story.choose((f"{person} is in the {place}.", f"{person} {story.choose(GO)} the {place}."))
                present[person] = KnownPlace(place, (story.add_line(text),))
                absent.pop(person, None)
        person = story.choose([*present, *absent])
        if person in present:
            _ask_yes_no(story, person, present)
        else:
            story.add_question(f"Is {person} in the {absent[person].place}?", "no", absent[person].facts)


def _indefinite(story: StoryBuilder) -> None:
    candidates: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}  # possible places and supporting lines
    for _ in range(5):
        for _ in range(2):
            person, places = story.choose(PEOPLE), tuple(story.sample(PLACES, story.rng.randint(1, 2)))
            either = f"{person} is either in the {' or the '.join(places)}."
            certain = story.choose(
                (f"{person} is in the {places[0]}.", f"{person} {story.choose(GO)} the {places[0]}.")
            )
            candidates[person] = places, (story.add_line(certain if len(places) == 1 else either),)
        person = story.choose(list(candidates))
        places, facts = candidates[person]
        place = story.choose(places) if story.rng.random() < 0.6 else story.choose(PLACES, exclude=places)
        answer = "no" if place not in places else ("yes", "maybe")[len(places) - 1]
        story.add_question(f"Is {person} in the {place}?", answer, facts)


def _coreference(story: StoryBuilder) -> None:
    _group_moves(story, 1, with_pronoun=True)


def _conjunction(story: StoryBuilder) -> None:
    _group_moves(story, 2, with_pronoun=False)


def _compound(story: StoryBuilder) -> None:
    _group_moves(story, 2, with_pronoun=True)


def _group_moves(story: StoryBuilder, group_size: int, *, with_pronoun: bool) -> None:
    """People go to a place together and, `with_pronoun`, to another in a line that does not name them."""
    places = dict[str, KnownPlace]()
    for _ in range(5):
        for _ in range(1 if with_pronoun else 2):
            group = story.sample(PEOPLE, group_size)
            place = story.choose(PLACES)
            facts: tuple[int, ...] = (story.add_line(f"{' and '.join(group)} {story.choose(GO)} the {place}."),)
            if with_pronoun:
                pronoun = "they" if group_size > 1 else "he" if group[0] in HE else "she"
                place = story.choose(PLACES, exclude=[place])
                facts += (story.add_line(f"{story.choose(THEN)} {pronoun} {story.choose(GO)} the {place}."),)
            places |= dict.fromkeys(group, KnownPlace(place, facts))
        person = story.choose(list(places))
        story.add_question(f"Where is {person}?", *places[person])


def _time(story: StoryBuilder) -> None:
    """Places by time of day, described in random order."""
    visits: dict[str, dict[int, KnownPlace]] = {person: {} for person in PEOPLE}
    for _ in range(3):
        for _ in range(3):
            person, time = story.choose(PEOPLE), story.rng.randrange(len(TIMES))
            if time in visits[person]:
                continue
            place = story.choose(PLACES, exclude=[known.place for known in visits[person].values()])
            clause = f"{person} {story.choose(GO)} the {place}"
            time_first = f"{TIMES[time].capitalize()} {clause}."
            text = story.choose((time_first, f"{clause} {TIMES[time]}."))
            visits[person][time] = KnownPlace(place, (story.add_line(text),))
        if people := [person for person in PEOPLE if len(visits[person]) > 1]:
            person = story.choose(people)
            order = sorted(visits[person])
            n = story.rng.randrange(1, len(order))
            later, earlier = visits[person][order[n]], visits[person][order[n - 1]]
            question = f"Where was {person} before the {later.place}?"
            story.add_question(question, earlier.place, later.facts + earlier.facts)


GENERATORS: dict[int, Callable[[StoryBuilder], None]] = {
    1: _place_of_person,
    2: _place_of_thing,
    3: _previous_place_of_thing,
    5: _giving,
    6: _yes_no,
    7: _counting,
    8: _lists,
    9: _negation,
    10: _indefinite,
    11: _coreference,
    12: _conjunction,
    13: _compound,
    14: _time,
}
