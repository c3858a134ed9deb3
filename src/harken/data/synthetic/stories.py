"""Generated stories with questions of 20 kinds of reasoning; the supporting lines of each answer are known.

The kinds, their numbers and the file format are those of bAbI (Weston 2015); people, vocabulary and worlds are new.
"""

import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

from harken.errors import BadInput

from .story_builder import GO, MEN, PEOPLE, PLACES, KnownPlace, StoryBuilder
from .tales import article

QUESTIONS_PER_FILE = 1000
NUMBERS = ("none", "one", "two", "three", "four")
THEN = ("Then", "After that", "Later", "Afterwards")
TIMES = ("yesterday", "this morning", "this afternoon", "this evening")
DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
SIDES = {"above": (0, 1), "below": (0, -1), "to the right of": (1, 0), "to the left of": (-1, 0)}
ANIMALS = {"cat": "cats", "dog": "dogs", "mouse": "mice", "fox": "foxes", "goose": "geese", "owl": "owls"}
PETS = ("Bella", "Felix", "Hugo", "Ida", "Luna", "Otto", "Pepe", "Zora")
COLORS = ("white", "grey", "brown", "black", "yellow")
SHAPES = ("red square", "blue circle", "green triangle", "yellow star", "red circle", "blue square", "green star")
BOXES = tuple(f"{color} box" for color in ("red", "blue", "green", "white", "black", "yellow"))
PLACE_OF = {"hungry": "kitchen", "thirsty": "kitchen", "tired": "bedroom", "bored": "garden", "dirty": "bathroom"}
THING_OF = {"hungry": "apple", "thirsty": "milk", "tired": "pillow", "bored": "ball", "dirty": "soap"}


def stories(kind: int, questions: int, seed: int = 0) -> Iterator[str]:
    """The lines of stories of this kind, up to this number of questions; a pure function of the arguments."""
    if kind not in KINDS:
        raise BadInput(f"stories of kind {kind}: accepted are kinds 1 to {len(KINDS)}")
    rng, generate = random.Random(f"{kind} {seed}"), KINDS[kind][1]
    while questions > 0:
        story = StoryBuilder(rng)
        generate(story)
        for number, line in enumerate(story.lines, 1):
            yield f"{number} {line}\n"
            questions -= "\t" in line
            if not questions:
                return


def story_files(*kinds: int) -> tuple[str, ...]:
    """The names of the training and test files of these kinds, in the style of bAbI."""
    names = (f"qa{n}_{KINDS[n][0].replace(' ', '-')}" for n in kinds)
    return tuple(f"{name}_{split}.txt" for name in names for split in ("train", "test"))


def story_file(stem: str) -> Iterator[str]:
    """The lines of the file with this name."""
    kind, split = re.findall(r"qa(\d+)_.*_(train|test)", stem)[0]
    return stories(int(kind), QUESTIONS_PER_FILE, seed=("train", "test").index(split))


# --- places of people and things --------------------------------------------------------------------------------------


def _place_of_person(story: StoryBuilder) -> None:
    for _ in range(5):
        story.move()
        story.move()
        person = story.choose(story.places)
        story.add_question(f"Where is {person}?", *story.places[person])


def _place_of_thing(story: StoryBuilder) -> None:
    for _ in range(5):
        story.carry(story.rng.randint(3, 6))
        while not story.history:
            story.carry(1)
        thing = story.choose(story.history)
        story.add_question(f"Where is the {thing}?", *story.history[thing][-1])


def _previous_place_of_thing(story: StoryBuilder) -> None:
    for _ in range(5):
        story.carry(story.rng.randint(4, 8))
        while not (moved := [thing for thing, history in story.history.items() if len(history) > 1]):
            story.carry(1)
        thing = story.choose(moved)
        history = story.history[thing]
        places = [known.place for known in history]
        n = story.rng.choice([n for n in range(1, len(history)) if places[n] not in places[n + 1 :]])
        question = f"Where was the {thing} before the {places[n]}?"
        story.add_question(question, places[n - 1], history[n].facts + history[n - 1].facts)


def _yes_no(story: StoryBuilder) -> None:
    for _ in range(5):
        story.carry(2)
        while not story.places:
            story.move()
        _ask_yes_no(story, story.choose(story.places), story.places)


def _ask_yes_no(story: StoryBuilder, person: str, places: dict[str, KnownPlace]) -> None:
    """Ask whether a person is at the true place or at another."""
    known = places[person]
    place = known.place if story.rng.random() < 0.5 else story.choose(PLACES, exclude=[known.place])
    story.add_question(f"Is {person} in the {place}?", "yes" if place == known.place else "no", known.facts)


# --- possessions ------------------------------------------------------------------------------------------------------


def _possessions(story: StoryBuilder, *, count: bool) -> None:
    """The number of things that a person carries, or their list."""
    for _ in range(5):
        story.carry(story.rng.randint(2, 4))
        while not any(story.changes.values()):
            story.carry(1)
        person = story.choose([person for person, changes in story.changes.items() if changes])
        what, things = "How many things" if count else "What", list(story.held[person])
        answer = NUMBERS[len(things)] if count else ",".join(things) or "nothing"
        story.add_question(f"{what} is {person} carrying?", answer, story.changes[person])


def _giving(story: StoryBuilder) -> None:
    for _ in range(5):
        n_gifts = len(story.gifts)
        while len(story.gifts) == n_gifts:
            story.act(story.move, story.take, story.take, story.give, story.give)
        gift = story.rng.choice(story.gifts)
        a, thing, b, line = next(g for g in reversed(story.gifts) if g.thing == gift.thing)  # its last transfer
        last = next(g for g in reversed(story.gifts) if (g.giver, g.receiver) == (a, b))
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
                present[person] = KnownPlace(place, (story.add_line(_presence(story, person, place)),))
                absent.pop(person, None)
        person = story.choose([*present, *absent])
        if person in present:
            _ask_yes_no(story, person, present)
        else:
            story.add_question(f"Is {person} in the {absent[person].place}?", "no", absent[person].facts)


def _presence(story: StoryBuilder, person: str, place: str) -> str:
    return story.choose((f"{person} is in the {place}.", f"{person} {story.choose(GO)} the {place}."))


def _indefinite(story: StoryBuilder) -> None:
    candidates: dict[str, tuple[list[str], int]] = {}  # possible places and the line
    for _ in range(5):
        for _ in range(2):
            person, places = story.choose(PEOPLE), story.sample(PLACES, story.rng.randint(1, 2))
            certain = _presence(story, person, places[0])
            either = f"{person} is either in the {' or the '.join(places)}."
            candidates[person] = places, story.add_line(certain if len(places) == 1 else either)
        person = story.choose(candidates)
        places, line = candidates[person]
        place = story.choose(places) if story.rng.random() < 0.6 else story.choose(PLACES, exclude=places)
        answer = "no" if place not in places else ("yes", "maybe")[len(places) - 1]
        story.add_question(f"Is {person} in the {place}?", answer, [line])


def _group_moves(story: StoryBuilder, group_size: int, *, with_pronoun: bool) -> None:
    """People go to a place together and, `with_pronoun`, to another in a line that does not name them."""
    places = dict[str, KnownPlace]()
    for _ in range(5):
        for _ in range(1 if with_pronoun else 2):
            group = story.sample(PEOPLE, group_size)
            place = story.choose(PLACES)
            facts: tuple[int, ...] = (story.add_line(f"{' and '.join(group)} {story.choose(GO)} the {place}."),)
            if with_pronoun:
                pronoun = "they" if group_size > 1 else "he" if group[0] in MEN else "she"
                place = story.choose(PLACES, exclude=[place])
                facts += (story.add_line(f"{story.choose(THEN)} {pronoun} {story.choose(GO)} the {place}."),)
            places |= dict.fromkeys(group, KnownPlace(place, facts))
        person = story.choose(places)
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
            text = story.choose((f"{TIMES[time].capitalize()} {clause}.", f"{clause} {TIMES[time]}."))
            visits[person][time] = KnownPlace(place, (story.add_line(text),))
        if people := [person for person in PEOPLE if len(visits[person]) > 1]:
            person = story.choose(people)
            order = sorted(visits[person])
            n = story.rng.randrange(1, len(order))
            later, earlier = visits[person][order[n]], visits[person][order[n - 1]]
            question = f"Where was {person} before the {later.place}?"
            story.add_question(question, earlier.place, later.facts + earlier.facts)


# --- inferences about places, animals, shapes, sizes, paths and motives -----------------------------------------------


def _relations(story: StoryBuilder) -> None:
    """Two places next to a third."""
    (first, second), (a, b, c) = story.sample(DIRECTIONS, 2), story.sample(PLACES, 3)
    relations = [(a, first, b), (c, second, b)]
    lines = [story.add_line(f"The {x} is {direction} of the {y}.") for x, direction, y in relations]
    n = story.rng.randrange(2)
    x, direction, y = relations[n]
    if story.rng.random() < 0.5:  # the inverse relation
        x, direction, y = y, OPPOSITE[direction], x
    options = [(f"What is {direction} of the {y}?", x), (f"What is the {x} {direction} of?", y)]
    story.add_question(*story.rng.choice(options), [lines[n]])


def _deduction(story: StoryBuilder) -> None:
    """A property of a species applies to an individual."""
    species = story.sample(ANIMALS, 4)
    fears = dict(zip(species, [*species[1:], species[0]], strict=True))
    pets = {name: story.choose(species) for name in story.sample(PETS, 4)}
    facts = [(f"{ANIMALS[kind].capitalize()} are afraid of {ANIMALS[fears[kind]]}.", kind) for kind in species]
    facts += [(f"{name} is {article(kind)}.", name) for name, kind in pets.items()]
    story.rng.shuffle(facts)
    lines = {key: story.add_line(text) for text, key in facts}
    for name, kind in pets.items():
        story.add_question(f"What is {name} afraid of?", fears[kind], [lines[name], lines[kind]])


def _induction(story: StoryBuilder) -> None:
    """The color of one animal applies to another of the same species."""
    species, colors = story.sample(ANIMALS, 3), story.sample(COLORS, 3)
    *known, unknown = story.sample(PETS, 4)
    kind = story.choose(species)
    pets = [*zip(known, species, strict=True), (unknown, kind)]
    facts = [(f"{name} is {article(k)}.", (name, "species")) for name, k in pets]
    facts += [(f"{name} is {color}.", (name, "color")) for name, color in zip(known, colors, strict=True)]
    story.rng.shuffle(facts)
    lines = {key: story.add_line(text) for text, key in facts}
    n = species.index(kind)
    support = [lines[unknown, "species"], lines[known[n], "species"], lines[known[n], "color"]]
    story.add_question(f"What colour is {unknown}?", colors[n], support)


def _positions(story: StoryBuilder) -> None:
    """The relation of two shapes that are both next to a third."""
    a, b, c = story.sample(SHAPES, 3)
    sides = dict(zip((a, c), story.sample(SIDES, 2), strict=True))
    lines = [story.add_line(f"The {x} is {side} the {b}.") for x, side in sides.items()]
    for _ in range(4):
        x, y = story.sample(sides, 2)
        side = story.choose(SIDES)
        terms = ((p - q) * d for p, q, d in zip(SIDES[sides[x]], SIDES[sides[y]], SIDES[side], strict=True))
        story.add_question(f"Is the {x} {side} the {y}?", "yes" if sum(terms) > 0 else "no", lines)


def _sizes(story: StoryBuilder) -> None:
    """A chain of boxes of increasing size, described in random order."""
    chain = story.sample(BOXES, 5)
    facts = [
        (n, story.choose((f"The {a} fits inside the {b}.", f"The {b} is bigger than the {a}.")))
        for n, (a, b) in enumerate(pairwise(chain))
    ]
    story.rng.shuffle(facts)
    lines = {n: story.add_line(text) for n, text in facts}
    for _ in range(4):
        i, j = sorted(story.rng.sample(range(len(chain)), 2))
        x, y = story.sample((chain[i], chain[j]), 2)
        options = [(f"Does the {x} fit in the {y}?", chain[i]), (f"Is the {x} bigger than the {y}?", chain[j])]
        question, true_x = story.rng.choice(options)
        story.add_question(question, "yes" if x == true_x else "no", [lines[n] for n in range(i, j)])


def _paths(story: StoryBuilder) -> None:
    """Places on a grid, each described relative to an earlier one; the path has two steps."""
    grid = {(0, 0): story.choose(PLACES)}
    relations = list[tuple[str, str, str]]()
    while len(grid) < 5:
        cell, direction = story.rng.choice(list(grid)), story.choose(DIRECTIONS)
        neighbor = cell[0] + DIRECTIONS[direction][0], cell[1] + DIRECTIONS[direction][1]
        if neighbor not in grid:
            grid[neighbor] = story.choose(PLACES, exclude=grid.values())
            relations.append((grid[neighbor], direction, grid[cell]))
    story.rng.shuffle(relations)
    steps = dict[tuple[str, str], tuple[int, str]]()  # start and end -> line and direction
    for x, direction, y in relations:
        line = story.add_line(f"The {x} is {direction} of the {y}.")
        steps[y, x], steps[x, y] = (line, direction), (line, OPPOSITE[direction])
    a, b, c = story.rng.choice([(a, b, c) for a, b in steps for b_, c in steps if b == b_ and a != c])
    (first_line, first), (second_line, second) = steps[a, b], steps[b, c]
    question = f"How do you go from the {a} to the {c}?"
    story.add_question(question, f"{first[0]},{second[0]}", [first_line, second_line])


def _motives(story: StoryBuilder) -> None:
    """A person with a motive goes to a place and takes a thing there."""
    motives = dict(zip(story.sample(PETS, 3), story.sample(PLACE_OF, 3), strict=True))
    steps, lines = dict.fromkeys(motives, 0), dict[str, int]()
    while steps:
        person = story.choose(steps)
        motive, step = motives[person], steps[person]
        place, thing = PLACE_OF[motive], THING_OF[motive]
        text, question = (
            (f"{person} is {motive}.", f"Where will {person} go?"),
            (f"{person} went to the {place}.", f"Why did {person} go to the {place}?"),
            (f"{person} took the {thing}.", f"Why did {person} take the {thing}?"),
        )[step]
        line = story.add_line(text)
        story.add_question(question, motive if step else place, [lines.setdefault(person, line)])
        steps[person] += 1
        if step == 2:
            del steps[person]


KINDS: dict[int, tuple[str, Callable[[StoryBuilder], None]]] = {
    1: ("one supporting fact", _place_of_person),
    2: ("two supporting facts", _place_of_thing),
    3: ("three supporting facts", _previous_place_of_thing),
    4: ("relations of two things", _relations),
    5: ("relations of three", _giving),
    6: ("yes or no", _yes_no),
    7: ("counting", partial(_possessions, count=True)),
    8: ("lists", partial(_possessions, count=False)),
    9: ("negation", _negation),
    10: ("indefinite knowledge", _indefinite),
    11: ("coreference", partial(_group_moves, group_size=1, with_pronoun=True)),
    12: ("conjunction", partial(_group_moves, group_size=2, with_pronoun=False)),
    13: ("compound coreference", partial(_group_moves, group_size=2, with_pronoun=True)),
    14: ("time", _time),
    15: ("deduction", _deduction),
    16: ("induction", _induction),
    17: ("positions", _positions),
    18: ("sizes", _sizes),
    19: ("paths", _paths),
    20: ("motives", _motives),
}
