"""Generated simple English stories from a small world model: training text that needs no download.

A thing changes hands: it is given, lent, traded, won, lost, found or hidden. Then a problem occurs that only this
thing can solve, and its holder solves it. So the end of a tale depends on its middle.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files

WORDS = tomllib.loads(files(__package__).joinpath("tales.toml").read_text("utf-8"))
SHE: list[str] = WORDS["she"]
HE: list[str] = WORDS["he"]
DETAILS: dict[str, list[str]] = WORDS["details"]


def tales(count: int, seed: int = 0) -> Iterator[str]:
    """Stories of 60 to 150 words with one paragraph per line; a pure function of the seed."""
    rng = random.Random(seed)
    while count > 0:
        text = _generate_tale(rng)
        if 60 <= len(text.split()) <= 150:
            count -= 1
            yield text


def article(words: str) -> str:
    """The words with the indefinite article, 'a' or 'an' by sound."""
    return f"{'an' if re.match('honest|(?!use)[aeiou]', words) else 'a'} {words}"


@dataclass
class TaleState:
    """The people, the details and the holder of the thing after every sentence."""

    rng: random.Random
    people: list[str]
    details: dict[str, str]
    holder: str
    owner: str = ""  # receives a lent thing at the end
    previous_holder: str = ""
    sentences: list[str] = field(default_factory=list)

    def assign_roles(self) -> None:
        """Make {X} the holder and {R} another person, and redraw the details."""
        self.details |= {key: self.rng.choice(options) for key, options in DETAILS.items()}
        spot, hidden = self.rng.sample(DETAILS["spot"], 2)
        self.details |= {"spot": spot, "hidden": hidden}
        self.details |= {f"the_{key}": re.sub(r"\ban? ", "the ", self.details[key]) for key in ("spot", "hidden")}
        receiver = self.rng.choice([name for name in self.people if name != self.holder])
        roles = {"X": self.holder, "R": receiver, "O": self.owner, "B": self.previous_holder}
        for role, name in roles.items():
            he, his = ("she", "her") if name in SHE else ("he", "his")
            self.details |= {role: name, f"he_{role}": he, f"his_{role}": his}

    def add(self, *steps: str) -> None:
        """Add one sentence per step; a step that starts with '>' transfers the thing."""
        for step in steps:
            if step.startswith(">"):
                transfer, role = step[1:].split()
                self.details |= {"F": self.holder, "T": self.details[role]}
                self.add(WORDS["transfers"][transfer])
                self.owner = (self.owner or self.holder) if transfer in ("lend", "find") else ""
                self.previous_holder, self.holder = self.holder, self.details["T"]
            else:
                self.sentences.append(self.rng.choice(step.split("|")).format(**self.details))


def _generate_tale(rng: random.Random) -> str:
    """Introduction, one or two events, problem, solution, end."""
    people = rng.sample(SHE + HE, rng.choice([2, 2, 3]))
    noun, adjectives, problem, solution, outcome = rng.choice(WORDS["things"])
    event = rng.choice(WORDS["events"])
    tale = TaleState(rng, people, {"thing": noun, "all": " and ".join(people[1:]), "joy": outcome}, people[0])
    tale.assign_roles()
    tale.details["who"] = article(f"{rng.choice(event['traits'])} {tale.details['job']}")
    tale.details["fine"] = article(f"{rng.choice(adjectives)} {noun}")
    tale.add("{time} {X}, {who}, met {all} {where}.|{X} was {who}. {time} {he_X} met {all} {where}.")
    tale.add("{X} had {fine}.|{X} carried {fine}.|{X} had brought {fine}.", *rng.choice([["\n"], []]), *event["steps"])
    if not tale.owner and rng.random() < 0.2:  # a borrowed thing is not given away, traded or bet
        tale.assign_roles()
        tale.add(*rng.choice(WORDS["events"])["steps"])
    tale.assign_roles()
    holder = '"Who has the {thing}?" asked {R}. "I have it," said {X}.|Luckily {X} had the {thing}.|{R} turned to {X}.'
    if tale.previous_holder and rng.random() < 0.5:
        holder = '"I do not have the {thing} any more," said {B}. "{X} has it."'
    thanks = '{R} was {glad} because {joy}.|{R} felt {glad}, for {joy}.|"Thank you, {X}!" said {R}, because {joy}.'
    tale.add("\n", problem, holder, "{X} " + solution + ".", thanks, *([">back O"] if tale.owner else []))
    tale.details["X"] = tale.holder
    tale.add("The {thing} spent that night beside {X}'s bed.|At dusk {X} carried the {thing} home.")
    return " ".join(tale.sentences).replace(" \n ", "\n")
