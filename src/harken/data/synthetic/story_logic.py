"""Kinds 4 and 15 to 20: what follows from what is said of places, animals, shapes, sizes, ways and wishes."""

from collections.abc import Callable
from itertools import pairwise

from .story_builder import PLACES, Tale

WAYS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
SIDES = {"above": (0, 1), "below": (0, -1), "to the right of": (1, 0), "to the left of": (-1, 0)}
ANIMALS = {"cat": "cats", "dog": "dogs", "mouse": "mice", "fox": "foxes", "goose": "geese", "owl": "owls"}
PETS = ("Bella", "Felix", "Hugo", "Ida", "Luna", "Otto", "Pepe", "Zora")
COLOURS = ("white", "grey", "brown", "black", "yellow")
SHAPES = ("red square", "blue circle", "green triangle", "yellow star", "red circle", "blue square", "green star")
SIZED = tuple(f"{colour} box" for colour in ("red", "blue", "green", "white", "black", "yellow"))
WISHES = {
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "tired": ("bedroom", "pillow"),
    "bored": ("garden", "ball"),
    "dirty": ("bathroom", "soap"),
}


def _relations(tale: Tale) -> None:
    """Two places beside a third."""
    (first, second), (a, b, c) = tale.some(list(WAYS), 2), tale.some(PLACES, 3)
    told = [(a, first, b), (c, second, b)]
    lines = [tale.say(f"The {x} is {way} of the {y}.") for x, way, y in told]
    n = tale.rng.randrange(2)
    x, way, y = told[n]
    if tale.rng.random() < 0.5:  # the same seen from the other side
        x, way, y = y, BACK[way], x
    asked = tale.rng.choice([(f"What is {way} of the {y}?", x), (f"What is the {x} {way} of?", y)])
    tale.ask(*asked, [lines[n]])


def _deduction(tale: Tale) -> None:
    """All of a kind fear the same; one of them is named."""
    kinds = tale.some(list(ANIMALS), 4)
    fears = dict(zip(kinds, [*kinds[1:], kinds[0]], strict=True))
    pets = {name: tale.pick(kinds) for name in tale.some(PETS, 4)}
    told = [(f"{ANIMALS[kind].capitalize()} are afraid of {ANIMALS[fears[kind]]}.", kind) for kind in kinds]
    told += [(f"{name} is {_a(kind)}.", name) for name, kind in pets.items()]
    tale.rng.shuffle(told)
    lines = {about: tale.say(text) for text, about in told}
    for name, kind in pets.items():
        tale.ask(f"What is {name} afraid of?", fears[kind], [lines[name], lines[kind]])


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _induction(tale: Tale) -> None:
    """One of a kind has a colour; so has another."""
    kinds, colours = tale.some(list(ANIMALS), 3), tale.some(COLOURS, 3)
    *known, asked = tale.some(PETS, 4)
    kind = tale.pick(kinds)
    told = [(f"{name} is {_a(k)}.", name) for name, k in [*zip(known, kinds, strict=True), (asked, kind)]]
    told += [(f"{name} is {colour}.", f"{name} looks") for name, colour in zip(known, colours, strict=True)]
    tale.rng.shuffle(told)
    lines = {about: tale.say(text) for text, about in told}
    n = kinds.index(kind)
    tale.ask(f"What colour is {asked}?", colours[n], [lines[asked], lines[known[n]], lines[f"{known[n]} looks"]])


def _positions(tale: Tale) -> None:
    """Two shapes beside a third, on a plane; how do the two stand to each other?"""
    a, b, c = tale.some(SHAPES, 3)
    sides = tale.some(list(SIDES), 2)
    lines = [tale.say(f"The {x} is {side} the {b}.") for x, side in zip((a, c), sides, strict=True)]
    at = {x: SIDES[side] for x, side in zip((a, c), sides, strict=True)}
    for _ in range(4):
        x, y = tale.some((a, c), 2)
        dx, dy = at[x][0] - at[y][0], at[x][1] - at[y][1]
        side = tale.pick(list(SIDES))
        right = dx * SIDES[side][0] + dy * SIDES[side][1] > 0
        tale.ask(f"Is the {x} {side} the {y}?", "yes" if right else "no", lines)


def _sizes(tale: Tale) -> None:
    """A chain of things, each larger than the one before, told in any order."""
    chain = tale.some(SIZED, 5)
    steps = list(pairwise(chain))
    told = [(n, tale.pick((f"The {a} fits inside the {b}.", f"The {b} is bigger than the {a}."))) for n, (a, b) in
            enumerate(steps)]  # fmt: skip
    tale.rng.shuffle(told)
    lines = {n: tale.say(text) for n, text in told}
    for _ in range(4):
        i, j = sorted(tale.rng.sample(range(len(chain)), 2))
        small, large = chain[i], chain[j]
        x, y = tale.some((small, large), 2)
        question, right = tale.rng.choice(
            [(f"Does the {x} fit in the {y}?", x == small), (f"Is the {x} bigger than the {y}?", x == large)]
        )
        tale.ask(question, "yes" if right else "no", [lines[n] for n in range(i, j)])


def _paths(tale: Tale) -> None:
    """Places on a grid, each told beside one before it; the way is of two steps."""
    at, said = {(0, 0): tale.pick(PLACES)}, dict[tuple[str, str], tuple[int, str]]()
    told = list[tuple[str, str, str]]()
    while len(at) < 5:
        spot, way = tale.rng.choice(list(at)), tale.pick(list(WAYS))
        to = spot[0] + WAYS[way][0], spot[1] + WAYS[way][1]
        if to not in at:
            at[to] = tale.pick(PLACES, but=list(at.values()))
            told.append((at[to], way, at[spot]))
    tale.rng.shuffle(told)
    for x, way, y in told:
        line = tale.say(f"The {x} is {way} of the {y}.")
        said[y, x], said[x, y] = (line, way), (line, BACK[way])  # how to go from y to x, and back
    tours = [(a, b, c) for a, b in said for b_, c in said if b == b_ and a != c]
    a, b, c = tale.rng.choice(tours)
    (one, first), (other, second) = said[a, b], said[b, c]
    tale.ask(f"How do you go from the {a} to the {c}?", f"{first[0]},{second[0]}", [one, other])


def _motives(tale: Tale) -> None:
    """Who wishes something goes where it is, and takes it."""
    left = {who: [wish, 0] for who, wish in zip(tale.some(PETS, 3), tale.some(list(WISHES), 3), strict=True)}
    lines = dict[str, int]()
    while left:
        who = tale.pick(list(left))
        wish, step = left[who]
        place, thing = WISHES[str(wish)]
        if step == 0:
            lines[who] = tale.say(f"{who} is {wish}.")
            tale.ask(f"Where will {who} go?", place, [lines[who]])
        elif step == 1:
            tale.say(f"{who} went to the {place}.")
            tale.ask(f"Why did {who} go to the {place}?", str(wish), [lines[who]])
        else:
            tale.say(f"{who} took the {thing}.")
            tale.ask(f"Why did {who} take the {thing}?", str(wish), [lines[who]])
            del left[who]
            continue
        left[who][1] = int(step) + 1


TELL: dict[int, Callable[[Tale], None]] = {
    4: _relations,
    15: _deduction,
    16: _induction,
    17: _positions,
    18: _sizes,
    19: _paths,
    20: _motives,
}
