"""Kinds 1 to 3 and 5 to 14: people who walk about, take things, put them down and hand them on."""

from collections.abc import Callable
from typing import NamedTuple

from .story_builder import PLACES, Tale

HE, SHE = ("Joe", "Tom"), ("Mary", "Nina")
PEOPLE = (*HE, *SHE)
THINGS = ("milk", "ball", "apple", "book")
GO = ("went to", "walked to", "ran to", "moved to")
TAKE, DROP, GIVE = ("picked up", "took", "grabbed"), ("put down", "dropped", "left"), ("gave", "handed", "passed")
NUMBERS = ("none", "one", "two", "three", "four")
THEN = ("Then", "After that", "Later", "Afterwards")
DAY = ("yesterday", "this morning", "this afternoon", "this evening")


class Seen(NamedTuple):
    """A place, and the lines by which it is known."""

    place: str
    facts: tuple[int, ...]


class Gift(NamedTuple):
    """Who gave what to whom, and the line that tells it."""

    giver: str
    thing: str
    taker: str
    line: int


class World:
    """Where everybody is, what everybody has, and where every thing has been."""

    def __init__(self, tale: Tale) -> None:
        self.tale = tale
        self.at: dict[str, Seen] = {}
        self.has: dict[str, dict[str, int]] = {who: {} for who in PEOPLE}  # a thing, and the line of its taking
        self.been: dict[str, list[Seen]] = {}  # where a thing was, one place after the other
        self.changes: dict[str, list[int]] = {who: [] for who in PEOPLE}  # lines that tell what somebody has
        self.gifts: list[Gift] = []

    def move(self, who: str = "", place: str = "") -> None:
        """Somebody goes to another place, with all that he or she has."""
        who = who or self.tale.pick(PEOPLE)
        place = place or self.tale.pick(PLACES, but=[self.at[who].place] if who in self.at else ())
        line = self.tale.say(f"{who} {self.tale.pick(GO)} the {place}.")
        self.at[who] = Seen(place, (line,))
        for thing, taken in self.has[who].items():
            self._is(thing, place, (taken, line))

    def _is(self, thing: str, place: str, facts: tuple[int, ...]) -> None:
        been = self.been.setdefault(thing, [])
        if been and been[-1].place == place:
            been.pop()
        been.append(Seen(place, facts))

    def take(self) -> bool:
        """Somebody takes a thing that lies where he or she is; one that nobody has seen yet may lie anywhere."""
        held = {thing for things in self.has.values() for thing in things}
        free = [
            (who, thing)
            for who, here in self.at.items()
            for thing in THINGS
            if thing not in held and (thing not in self.been or self.been[thing][-1].place == here.place)
        ]
        if not free:
            return False
        who, thing = self.tale.rng.choice(free)
        line = self.tale.say(f"{who} {self.tale.pick(TAKE)} the {thing}.")
        self.has[who][thing] = line
        self.changes[who].append(line)
        self._is(thing, self.at[who].place, (line, *self.at[who].facts))
        return True

    def drop(self) -> bool:
        held = [(who, thing) for who, things in self.has.items() for thing in things]
        if not held:
            return False
        who, thing = self.tale.rng.choice(held)
        line = self.tale.say(f"{who} {self.tale.pick(DROP)} the {thing}.")
        del self.has[who][thing]
        self.changes[who].append(line)
        self._is(thing, self.at[who].place, (line, *self.at[who].facts))
        return True

    def give(self) -> bool:
        """Somebody hands a thing to somebody who is there, or comes."""
        held = [(who, thing) for who, things in self.has.items() for thing in things]
        if not held:
            return False
        giver, thing = self.tale.rng.choice(held)
        taker, here = self.tale.pick(PEOPLE, but=[giver]), self.at[giver].place
        if taker not in self.at or self.at[taker].place != here:
            self.move(taker, here)
        line = self.tale.say(f"{giver} {self.tale.pick(GIVE)} the {thing} to {taker}.")
        del self.has[giver][thing]
        self.has[taker][thing] = line
        self.gifts.append(Gift(giver, thing, taker, line))
        return True

    def act(self, *acts: Callable[[], object]) -> None:
        """One of these, or a walk if it cannot be."""
        if not self.tale.rng.choice(acts)():
            self.move()

    def carry(self, many: int) -> None:
        """So many acts of people with things."""
        for _ in range(many):
            self.act(self.walk, self.walk, self.take, self.take, self.drop)

    def walk(self) -> bool:
        self.move()
        return True


# --- where somebody, or something, is ---------------------------------------------------------------------------------


def _where_somebody_is(tale: Tale) -> None:
    world = World(tale)
    for _ in range(5):
        world.move()
        world.move()
        who = tale.pick(list(world.at))
        tale.ask(f"Where is {who}?", *world.at[who])


def _where_something_is(tale: Tale) -> None:
    world = World(tale)
    for _ in range(5):
        world.carry(tale.rng.randint(3, 6))
        while not world.been:
            world.carry(1)
        thing = tale.pick(list(world.been))
        tale.ask(f"Where is the {thing}?", *world.been[thing][-1])


def _where_something_was(tale: Tale) -> None:
    world = World(tale)
    for _ in range(5):
        world.carry(tale.rng.randint(4, 8))
        while not any(len(been) > 1 for been in world.been.values()):
            world.carry(1)
        thing = tale.pick([name for name, been in world.been.items() if len(been) > 1])
        been = world.been[thing]
        places = [seen.place for seen in been]
        n = tale.rng.choice([n for n in range(1, len(been)) if places[n] not in places[n + 1 :]])
        tale.ask(f"Where was the {thing} before the {places[n]}?", places[n - 1], been[n].facts + been[n - 1].facts)


def _is_it_so(tale: Tale) -> None:
    world = World(tale)
    for _ in range(5):
        world.carry(2)
        while not world.at:
            world.move()
        _yes_or_no(tale, tale.pick(list(world.at)), world.at)


def _yes_or_no(tale: Tale, who: str, at: dict[str, Seen]) -> None:
    """Whether somebody is where he or she is, or elsewhere."""
    place = at[who].place if tale.rng.random() < 0.5 else tale.pick(PLACES, but=[at[who].place])
    tale.ask(f"Is {who} in the {place}?", "yes" if place == at[who].place else "no", at[who].facts)


# --- what somebody has ------------------------------------------------------------------------------------------------


def _counting(tale: Tale) -> None:
    _carrying(tale, "How many things is {who} carrying?", lambda things: NUMBERS[len(things)])


def _lists(tale: Tale) -> None:
    _carrying(tale, "What is {who} carrying?", lambda things: ",".join(things) or "nothing")


def _carrying(tale: Tale, question: str, answer: Callable[[list[str]], str]) -> None:
    world = World(tale)
    for _ in range(5):
        world.carry(tale.rng.randint(2, 4))
        while not any(world.changes.values()):
            world.carry(1)
        who = tale.pick([who for who, changes in world.changes.items() if changes])
        tale.ask(question.format(who=who), answer(list(world.has[who])), world.changes[who])


def _giving(tale: Tale) -> None:
    world = World(tale)
    for _ in range(5):
        before = len(world.gifts)
        while len(world.gifts) == before:
            world.act(world.walk, world.take, world.take, world.give, world.give)
        gift = tale.rng.choice(world.gifts)
        a, thing, b, line = next(g for g in reversed(world.gifts) if g.thing == gift.thing)  # its last one
        between = next(g for g in reversed(world.gifts) if (g.giver, g.taker) == (a, b))
        tale.ask(
            *tale.rng.choice(
                [
                    (f"What did {a} give to {b}?", between.thing, [between.line]),
                    (f"Who gave the {thing} to {b}?", a, [line]),
                    (f"Who did {a} give the {thing} to?", b, [line]),
                    (f"Who received the {thing}?", b, [line]),
                    (f"Who gave the {thing}?", a, [line]),
                ]
            )
        )


# --- what is said in other ways ---------------------------------------------------------------------------------------


def _negation(tale: Tale) -> None:
    at, out = dict[str, Seen](), dict[str, Seen]()  # where somebody is, or is known not to be
    for _ in range(5):
        for _ in range(2):
            who = tale.pick(PEOPLE)
            if who in at and tale.rng.random() < 0.5:
                place = at.pop(who).place
                line = tale.say(f"{who} is {tale.pick(('no longer', 'not'))} in the {place}.")
                out[who] = Seen(place, (line,))
            else:
                place = tale.pick(PLACES)
                said = tale.pick((f"{who} is in the {place}.", f"{who} {tale.pick(GO)} the {place}."))
                at[who] = Seen(place, (tale.say(said),))
                out.pop(who, None)
        who = tale.pick([*at, *out])
        if who in at:
            _yes_or_no(tale, who, at)
        else:
            tale.ask(f"Is {who} in the {out[who].place}?", "no", out[who].facts)


def _indefinite(tale: Tale) -> None:
    maybe: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}
    for _ in range(5):
        for _ in range(2):
            who, places = tale.pick(PEOPLE), tuple(tale.some(PLACES, tale.rng.randint(1, 2)))
            either = f"{who} is either in the {' or the '.join(places)}."
            sure = tale.pick((f"{who} is in the {places[0]}.", f"{who} {tale.pick(GO)} the {places[0]}."))
            maybe[who] = places, (tale.say(sure if len(places) == 1 else either),)
        who = tale.pick(list(maybe))
        places, facts = maybe[who]
        place = tale.pick(places) if tale.rng.random() < 0.6 else tale.pick(PLACES, but=places)
        tale.ask(f"Is {who} in the {place}?", "no" if place not in places else ("yes", "maybe")[len(places) - 1], facts)


def _coreference(tale: Tale) -> None:
    _together(tale, 1, again=True)


def _conjunction(tale: Tale) -> None:
    _together(tale, 2, again=False)


def _compound(tale: Tale) -> None:
    _together(tale, 2, again=True)


def _together(tale: Tale, many: int, *, again: bool) -> None:
    """So many people go somewhere and, `again`, somewhere else, where a line no longer has their names."""
    at = dict[str, Seen]()
    for _ in range(5):
        for _ in range(1 if again else 2):
            who = tale.some(PEOPLE, many)
            place = tale.pick(PLACES)
            facts: tuple[int, ...] = (tale.say(f"{' and '.join(who)} {tale.pick(GO)} the {place}."),)
            if again:
                he = "they" if many > 1 else "he" if who[0] in HE else "she"
                place = tale.pick(PLACES, but=[place])
                facts += (tale.say(f"{tale.pick(THEN)} {he} {tale.pick(GO)} the {place}."),)
            at |= dict.fromkeys(who, Seen(place, facts))
        one = tale.pick(list(at))
        tale.ask(f"Where is {one}?", *at[one])


def _time(tale: Tale) -> None:
    """Places by the time of day, told in any order."""
    went: dict[str, dict[int, Seen]] = {who: {} for who in PEOPLE}
    for _ in range(3):
        for _ in range(3):
            who, when = tale.pick(PEOPLE), tale.rng.randrange(len(DAY))
            if when in went[who]:
                continue
            place = tale.pick(PLACES, but=[seen.place for seen in went[who].values()])
            walk = f"{who} {tale.pick(GO)} the {place}"
            early = f"{DAY[when].capitalize()} {walk}."
            went[who][when] = Seen(place, (tale.say(tale.pick((early, f"{walk} {DAY[when]}."))),))
        known = [who for who in PEOPLE if len(went[who]) > 1]
        if known:
            days = went[tale_who := tale.pick(known)]
            order = sorted(days)
            n = tale.rng.randrange(1, len(order))
            late, early_ = days[order[n]], days[order[n - 1]]
            tale.ask(f"Where was {tale_who} before the {late.place}?", early_.place, late.facts + early_.facts)


TELL: dict[int, Callable[[Tale], None]] = {
    1: _where_somebody_is,
    2: _where_something_is,
    3: _where_something_was,
    5: _giving,
    6: _is_it_so,
    7: _counting,
    8: _lists,
    9: _negation,
    10: _indefinite,
    11: _coreference,
    12: _conjunction,
    13: _compound,
    14: _time,
}
