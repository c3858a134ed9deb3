"""Kinds 4 and 15 to 20: inferences about places, animals, shapes, sizes, paths and motives."""

from collections.abc import Callable
from itertools import pairwise

from .story_builder import PLACES, StoryBuilder
from .tales import article

DIRECTIONS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
SIDES = {"above": (0, 1), "below": (0, -1), "to the right of": (1, 0), "to the left of": (-1, 0)}
ANIMALS = {"cat": "cats", "dog": "dogs", "mouse": "mice", "fox": "foxes", "goose": "geese", "owl": "owls"}
PETS = ("Bella", "Felix", "Hugo", "Ida", "Luna", "Otto", "Pepe", "Zora")
COLORS = ("white", "grey", "brown", "black", "yellow")
SHAPES = ("red square", "blue circle", "green triangle", "yellow star", "red circle", "blue square", "green star")
BOXES = tuple(f"{color} box" for color in ("red", "blue", "green", "white", "black", "yellow"))
MOTIVES = {
    "hungry": ("kitchen", "apple"),
    "thirsty": ("kitchen", "milk"),
    "tired": ("bedroom", "pillow"),
    "bored": ("garden", "ball"),
    "dirty": ("bathroom", "soap"),
}


def _relations(story: StoryBuilder) -> None:
    """Two places next to a third."""
    (first, second), (a, b, c) = story.sample(list(DIRECTIONS), 2), story.sample(PLACES, 3)
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
    species = story.sample(list(ANIMALS), 4)
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
    species, colors = story.sample(list(ANIMALS), 3), story.sample(COLORS, 3)
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
    sides = story.sample(list(SIDES), 2)
    lines = [story.add_line(f"The {x} is {side} the {b}.") for x, side in zip((a, c), sides, strict=True)]
    position = {x: SIDES[side] for x, side in zip((a, c), sides, strict=True)}
    for _ in range(4):
        x, y = story.sample((a, c), 2)
        dx, dy = position[x][0] - position[y][0], position[x][1] - position[y][1]
        side = story.choose(list(SIDES))
        is_true = dx * SIDES[side][0] + dy * SIDES[side][1] > 0
        story.add_question(f"Is the {x} {side} the {y}?", "yes" if is_true else "no", lines)


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
        small, large = chain[i], chain[j]
        x, y = story.sample((small, large), 2)
        question, is_true = story.rng.choice(
            [(f"Does the {x} fit in the {y}?", x == small), (f"Is the {x} bigger than the {y}?", x == large)]
        )
        story.add_question(question, "yes" if is_true else "no", [lines[n] for n in range(i, j)])


def _paths(story: StoryBuilder) -> None:
    """Places on a grid, each described relative to an earlier one; the path has two steps."""
    grid = {(0, 0): story.choose(PLACES)}
    relations = list[tuple[str, str, str]]()
    while len(grid) < 5:
        cell, direction = story.rng.choice(list(grid)), story.choose(list(DIRECTIONS))
        neighbor = cell[0] + DIRECTIONS[direction][0], cell[1] + DIRECTIONS[direction][1]
        if neighbor not in grid:
            grid[neighbor] = story.choose(PLACES, exclude=list(grid.values()))
            relations.append((grid[neighbor], direction, grid[cell]))
    story.rng.shuffle(relations)
    steps = dict[tuple[str, str], tuple[int, str]]()  # start and end -> line and direction
    for x, direction, y in relations:
        line = story.add_line(f"The {x} is {direction} of the {y}.")
        steps[y, x], steps[x, y] = (line, direction), (line, OPPOSITE[direction])
    paths = [(a, b, c) for a, b in steps for b_, c in steps if b == b_ and a != c]
    a, b, c = story.rng.choice(paths)
    (first_line, first), (second_line, second) = steps[a, b], steps[b, c]
    answer = f"{first[0]},{second[0]}"
    story.add_question(f"How do you go from the {a} to the {c}?", answer, [first_line, second_line])


def _motives(story: StoryBuilder) -> None:
    """A person with a motive goes to a place and takes a thing there."""
    motives = dict(zip(story.sample(PETS, 3), story.sample(list(MOTIVES), 3), strict=True))
    steps, lines = dict.fromkeys(motives, 0), dict[str, int]()
    while steps:
        person = story.choose(list(steps))
        motive, (place, thing) = motives[person], MOTIVES[motives[person]]
        if steps[person] == 0:
            lines[person] = story.add_line(f"{person} is {motive}.")
            story.add_question(f"Where will {person} go?", place, [lines[person]])
        elif steps[person] == 1:
            story.add_line(f"{person} went to the {place}.")
            story.add_question(f"Why did {person} go to the {place}?", motive, [lines[person]])
        else:
            story.add_line(f"{person} took the {thing}.")
            story.add_question(f"Why did {person} take the {thing}?", motive, [lines[person]])
            del steps[person]
            continue
        steps[person] += 1


GENERATORS: dict[int, Callable[[StoryBuilder], None]] = {
    4: _relations,
    15: _deduction,
    16: _induction,
    17: _positions,
    18: _sizes,
    19: _paths,
    20: _motives,
}
