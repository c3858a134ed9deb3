"""Generated simple English stories from a small world model: training text that needs no download.

A thing changes hands: it is given, lent, traded, won, lost, found or hidden. Then a problem occurs that only this
thing can solve, and its holder solves it. So the end of a tale depends on its middle.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

SHE = "Nora|Lucy|Greta|Amina|Ines|Rosa|Hazel|Clara|Mabel|Yuki|Priya|Olive|Thea|Wanda|Zora|Edith|Leila|Bridget|Marta"
HE = "Tom|Ivan|Oscar|Hugo|Pavel|Samir|Felix|Jonas|Ravi|Kofi|Albert|Walter|Emil|Diego|Nils|Otto|Arthur|Boris|Umberto"
# details, redrawn for every part of a tale; options are separated by bars and line breaks
DETAILS = {
    "job": """baker|weaver|shepherd|miller|gardener|carpenter|potter|sailor|farmer|teacher|painter|tailor|beekeeper|cook
librarian|musician|clockmaker|blacksmith|apprentice|inventor|explorer|acrobat|innkeeper|actor|doctor|juggler|poet""",
    "time": """One bright morning|On a windy Saturday|Early one spring day|On the first day of summer|One frosty morning
On market day|The day after the harvest|One quiet Sunday|Before breakfast|On a misty autumn day|Just after sunrise""",
    "where": """in the orchard|in the meadow|in the valley|in the vineyard|in the square|in the courtyard|at the mill
at the harbour|at the station|at the school|at the quarry|at the stable|at the bakery|at the inn|at the crossroads
by the river|by the bridge|by the well|by the lake|by the waterfall|by the canal|by the fountain|at the fair""",
    "spot": """under a bench|behind a barrel|on a flat stone|beside a gate|inside a hollow log|on top of a wall
next to a cart|in a patch of clover|under a heap of straw|on an empty crate|behind an ivy bush|below an arch|on a ledge
beside a rose bush|under an upturned boat|behind a statue|inside an old chimney|beneath an oak tree|near an anthill""",
    "pastime": """watch the swallows|pick blackberries|feed the pigeons|count the clouds|drink some water|toss pebbles
hear a blackbird sing|talk to a stranger|tie a loose shoelace|chase a butterfly|smell the lilacs|look at a rainbow
eat a pear|climb a chestnut tree|draw a picture|whittle a stick|gather acorns|wave at a distant train|pat a dog""",
    "food": """a slice of plum cake|an apple pie|a bag of walnuts|six boiled eggs|a jar of honey|an enormous cheese
a bowl of soup|a bunch of grapes|some warm pancakes|a basket of cherries|three sausages|a pot of jam|two onion tarts""",
    "sad": "sad|worried|upset|miserable|gloomy|ashamed|unhappy|cross|disappointed|heartbroken|anxious|close to tears",
    "glad": "glad|relieved|thrilled|happy|grateful|delighted|joyful|pleased|overjoyed|content|merry|full of joy",
}
# noun | adjectives | problem | what its holder does | outcome
THINGS = """lantern|brass,iron|In the forest it grew quite dark.|lit the lantern and led the way|nobody got lost
rope|long,ancient|A goat had slipped into a ditch.|let down the rope and pulled the goat out|the goat was safe
key|rusty,odd|In the castle the gate fell shut behind them.|turned the key and opened the gate|they were free again
umbrella|yellow,enormous|On the hill heavy rain began to pour.|opened the umbrella and held it high|they stayed dry
whistle|silver,loud|Fog rose on the moor, and a child went missing.|blew the whistle to call it back|no one was missing
pan|black,oily|At the camp nobody had eaten since dawn.|fried mushrooms in the pan|no one was hungry any more
blanket|woollen,soft|On the pasture a newborn lamb lay shivering.|wrapped the blanket around the lamb|it was warm
map|torn,ancient|The road split in three without a signpost.|studied the map and chose a road|they knew the way
needle|sharp,ivory|On the beach lay a boat with a ripped sail.|stitched it with the needle|the boat could sail again
bucket|wooden,empty|Sparks flew over the farm, and hay caught fire.|filled the bucket and quenched it|the farm was saved
herring|smoked,oily|A kitten sat on the church roof.|held up the herring until the kitten came down|the kitten purred
net|wide,patched|A gust blew the mayor's hat into the sea.|fished it out with the net|the mayor had a hat again
saw|sharp,heavy|A fallen branch blocked the lane.|cut the branch apart with the saw|the wagons could pass
bell|copper,tiny|The sheep had wandered off.|rang the bell, and the flock came back|every sheep was there
flute|slender,elegant|In a cottage a baby cried and would not stop.|played a lullaby on the flute|the baby fell asleep
book|dusty,illustrated|Their train stood still, and the long wait was dull.|read aloud from the book|the hours flew by
mirror|oval,polished|A ship drifted toward the cliffs.|flashed sunlight with the mirror|the ship turned in time
spade|strong,short|Fallen earth had trapped a badger in its den.|dug it out with the spade|the badger was unhurt
oar|painted,spare|Their rowing boat began to float away.|paddled it to the shore with the oar|they stood on dry land
jug|clay,blue|A thirsty traveller sank down in the dust.|poured cool water from the jug|the traveller could smile again
hammer|heavy,useful|A plank of the footbridge came loose.|nailed it down with the hammer|everybody could cross
telescope|brass,expensive|No ferry came to the island.|looked for it with the telescope|it was already on its way
ball|leather,bouncy|In the playground a new boy stood alone.|threw the ball to him and began a game|the boy laughed
ring|golden,heavy|The palace guard obeyed only a royal sign.|showed him the ring|the guard let them in
scarf|knitted,warm|A boy fell from a swing and hurt his arm.|tied it up with the scarf|the boy stopped crying
candle|white,beeswax|Something rustled in the pitch-black cellar.|lit the candle and saw a hedgehog|it was not a ghost
basket|wicker,deep|A wagon tipped over, and eggs rolled everywhere.|gathered them in the basket|no egg was lost
drum|loud,round|A bear came much too close to the beehives.|beat the drum until it ran off|the bees had peace
kite|scarlet,huge|They stood on a rock while the tide rose.|flew the kite until a fisherman saw it|help arrived
compass|accurate,golden|In the desert all dunes looked alike.|found north with the compass|they were on the way home"""
# transfers of the thing from {F} to {T}
TRANSFERS = {
    "give": "{F} gave the {thing} to {T}.|{F} handed the {thing} to {T}.|{F} placed the {thing} in {T}'s hands.",
    "lend": "{F} lent the {thing} to {T}.|{F} let {T} take the {thing}.",
    "back": "{F} gave the {thing} back to {T}.|{F} returned the {thing} to {T}.",
    "find": "{T} came along and picked up the {thing}.|A little later {T} found the {thing} and took it.",
    "trade": "So the {thing} went from {F} to {T}.|They shook hands, and {F} passed the {thing} to {T}.",
}
# traits of {X}, who has the thing at first, then the sentences of the event; '>give R' transfers it to {R}
EVENTS = """forgetful|careless|dreamy|sleepy
{X} stopped {where} to {pastime}, put the {thing} {spot} and forgot it.
When {he_X} noticed, {he_X} was {sad}.|Soon {he_X} missed it and felt {sad}.
>find R
"Is this yours, {X}?" asked {R}. "Yes, I left it {the_spot}," said {X}.
>back X

absent-minded|hasty|untidy|clumsy
{X} wanted to {pastime}, laid the {thing} {spot} and walked on without it.
When {he_X} noticed, {he_X} was {sad}.|Soon {he_X} missed it and felt {sad}.
>find R
"Keep it today," said {X}. "It is safer with you."|"Please look after it for me," said {X}.

trusting|cheerful|innocent|calm|easygoing|unworried
{X} left the {thing} {spot} and went to {pastime}.
Meanwhile {R} hid it {hidden}.|While {X} was away, {R} moved it and put it {hidden}.
{X} came back and looked {the_spot}, but it was gone.|{X} thought it was still {the_spot}, and searched in vain.
"Look {the_hidden}," laughed {R}, and there it was.|{R} giggled and told {X} to look {the_hidden}.

sensible|careful|patient|orderly
"May I borrow the {thing} for an hour?" asked {R}.|"Please lend me the {thing} until noon," said {R}.
>lend R
{R} kept {his_R} word.|{R} did not forget.
>back X

busy|practical|honest|obliging
"May I borrow the {thing} overnight?" asked {R}.|"Please lend me the {thing} until tomorrow," said {R}.
>lend R

kind|generous|gentle|warm-hearted|friendly|thoughtful|unselfish
It was {R}'s birthday.|{R} had helped {X} to paint the fence.|{R} had never owned such a thing.|{R} looked lonely.
"This is for you," said {X}.|"I want you to have it," said {X}.|"Now it is yours," said {X}.
>give R
{R} was {glad} and promised to take good care of it.|{R} felt {glad} and hugged {X}.

hungry|greedy|clever|thrifty|cunning|shrewd
"I will swap {food} for that {thing}," said {R}.|{R} offered {food} for the {thing}.
"Agreed," said {X}.|{X} nodded at once.|{X} thought about it and nodded.
>trade R
{X} ate with delight.|{X} licked {his_X} fingers and was {glad}.|{X} shared the food with a sparrow.

proud|ambitious|boastful|overconfident
"Let us race to the next milestone," said {X}. "The winner gets the {thing}."
They ran like hares, but {R} was faster.|{X} stumbled, and {R} won.
>give R

quick|lively|eager|sporty
"Let us race to the next milestone," said {X}. "The winner gets the {thing}."
{R} tired early, so {X} won.|It was close, yet {X} came first.
{X} kept the {thing}, and {R} was {sad}."""


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
        self.details |= {key: self.rng.choice(re.split(r"[|\n]", options)) for key, options in DETAILS.items()}
        spot, hidden = self.rng.sample(re.split(r"[|\n]", DETAILS["spot"]), 2)
        self.details |= {"spot": spot, "hidden": hidden}
        self.details |= {f"the_{key}": re.sub(r"\ban? ", "the ", self.details[key]) for key in ("spot", "hidden")}
        receiver = self.rng.choice([name for name in self.people if name != self.holder])
        roles = {"X": self.holder, "R": receiver, "O": self.owner, "B": self.previous_holder}
        for role, name in roles.items():
            is_female = name in SHE.split("|")
            pronouns = ("she", "her") if is_female else ("he", "his")
            self.details |= {role: name, f"he_{role}": pronouns[0], f"his_{role}": pronouns[1]}

    def add(self, *steps: str) -> None:
        """Add one sentence per step; a step that starts with '>' transfers the thing."""
        for step in steps:
            if step.startswith(">"):
                transfer, role = step[1:].split()
                self.details |= {"F": self.holder, "T": self.details[role]}
                self.add(TRANSFERS[transfer])
                self.owner = (self.owner or self.holder) if transfer in ("lend", "find") else ""
                self.previous_holder, self.holder = self.holder, self.details["T"]
            else:
                self.sentences.append(self.rng.choice(step.split("|")).format(**self.details))


def _generate_tale(rng: random.Random) -> str:
    """Introduction, one or two events, problem, solution, end."""
    people = rng.sample(f"{SHE}|{HE}".split("|"), rng.choice([2, 2, 3]))
    noun, adjectives, problem, solution, outcome = rng.choice(THINGS.split("\n")).split("|")
    traits, *steps = rng.choice(EVENTS.split("\n\n")).split("\n")
    tale = TaleState(rng, people, {"thing": noun, "all": " and ".join(people[1:]), "joy": outcome}, people[0])
    tale.assign_roles()
    tale.details["who"] = article(f"{rng.choice(traits.split('|'))} {tale.details['job']}")
    tale.details["fine"] = article(f"{rng.choice(adjectives.split(','))} {noun}")
    tale.add("{time} {X}, {who}, met {all} {where}.|{X} was {who}. {time} {he_X} met {all} {where}.")
    tale.add("{X} had {fine}.|{X} carried {fine}.|{X} had brought {fine}.", *rng.choice([["\n"], []]), *steps)
    if not tale.owner and rng.random() < 0.2:  # a borrowed thing is not given away, traded or bet
        tale.assign_roles()
        tale.add(*rng.choice(EVENTS.split("\n\n")).split("\n")[1:])
    tale.assign_roles()
    holder = '"Who has the {thing}?" asked {R}. "I have it," said {X}.|Luckily {X} had the {thing}.|{R} turned to {X}.'
    if tale.previous_holder and rng.random() < 0.5:
        holder = '"I do not have the {thing} any more," said {B}. "{X} has it."'
    thanks = '{R} was {glad} because {joy}.|{R} felt {glad}, for {joy}.|"Thank you, {X}!" said {R}, because {joy}.'
    tale.add("\n", problem, holder, "{X} " + solution + ".", thanks, *([">back O"] if tale.owner else []))
    tale.details["X"] = tale.holder
    tale.add("The {thing} spent that night beside {X}'s bed.|At dusk {X} carried the {thing} home.")
    return " ".join(tale.sentences).replace(" \n ", "\n")
