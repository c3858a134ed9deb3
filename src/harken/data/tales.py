"""Simple English stories made by a small world model: text to learn from when nothing can be fetched.

A thing changes hands: it is given, lent, traded, lost, found or hidden. Then something happens that only this thing can
mend, and whoever holds it by then is the one who mends it. So the end of a tale can be told only by remembering its middle.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

SHE = "Nora Lucy Greta Amina Ines Rosa Hazel Clara Mabel Yuki Priya Olive Thea Wanda Zora Edith Fatima Leila Bridget Marta"
HE = "Tom Ivan Oscar Hugo Pavel Samir Felix Jonas Ravi Kofi Albert Walter Emil Diego Nils Otto Arthur Boris Simon Umberto"
JOBS = """baker weaver shepherd miller gardener carpenter potter sailor farmer teacher painter tailor fisher beekeeper
librarian musician clockmaker blacksmith cook apprentice inventor explorer acrobat innkeeper actor doctor juggler poet"""
TRAITS = {
    "lose": "forgetful careless dreamy sleepy absent-minded hasty restless untidy",
    "give": "kind generous gentle warm-hearted friendly thoughtful unselfish big-hearted",
    "lend": "sensible careful patient busy tidy practical honest orderly",
    "trade": "hungry greedy clever thrifty cunning shrewd",
    "race": "quick lively proud eager ambitious sporty",
    "hide": "trusting cheerful innocent calm easygoing merry",
}
PLACES = {
    "in": "orchard meadow forest valley garden vineyard market square courtyard churchyard",
    "at": "mill harbour station school lighthouse quarry windmill stable bakery inn crossroads fair",
    "by": "river bridge well lake pond waterfall canal fountain sea railway hedge tower",
}
TIMES = """One bright morning|On a windy Saturday|Early one spring day|On the first day of summer|One frosty morning
On market day|The day after the harvest|One quiet Sunday|Before breakfast|On a misty autumn day|Just after sunrise"""
SPOTS = """under a bench|behind a barrel|on a flat stone|beside the gate|inside a hollow log|on top of a wall|beneath an oak tree
next to a cart|between two sacks|in a patch of clover|under a heap of straw|on an empty crate|behind an ivy bush|below an arch
near an anthill|beside a rose bush|under an upturned boat|on a window ledge|behind a statue|inside an old chimney"""
PASTIMES = """watch the swans|pick blackberries|feed the ducks|count the clouds|drink some water|listen to a blackbird
talk to a stranger|tie a loose shoelace|chase a butterfly|smell the lilacs|look at a rainbow|pat a dog|rest for a while
skip stones|eat a pear|climb a chestnut tree|draw a picture|whittle a stick|gather acorns|wave at a passing train"""
FOODS = """a slice of plum cake|an apple pie|a bag of walnuts|six boiled eggs|a jar of honey|an enormous cheese|a bowl of soup
a bunch of grapes|an onion tart|some warm pancakes|a basket of cherries|two sausages|a pot of jam|a dozen biscuits"""
REASONS = """It was {R}'s birthday.|{R} had helped {H} to paint the fence.|{R} had never owned such a thing.
{R} had lost a tooth and felt awful.|{R} had told {H} a wonderful secret.|{R} was about to leave on a long journey.
{R} had nursed {H} through a fever.|{R} looked lonely.|{R} had carried the firewood all week.|{R} had won a spelling prize."""
SAD = "sad worried upset miserable gloomy ashamed unhappy cross disappointed heartbroken"
GLAD = "glad relieved thrilled happy grateful delighted joyful pleased overjoyed content"
# noun | what it may be like | what goes wrong | what its holder does | why all are glad
THINGS = """lantern|brass,old,iron|Soon it grew so dark that nobody could see the path.|lit the lantern and led the way|nobody got lost
rope|long,thick,ancient|A small goat had slipped into a ditch.|let down the rope and pulled the goat out|the goat was safe
key|rusty,golden,odd|The iron gate fell shut, and it was locked.|turned the key and opened the gate|they were free again
umbrella|yellow,enormous,striped|Suddenly heavy rain began to pour.|opened the umbrella and held it over everyone|they stayed dry
whistle|silver,tin,loud|A thick fog rose, and a child went missing.|blew the whistle until the child came running|no one was missing
loaf|crusty,round,enormous|Nobody had eaten since dawn, and every stomach growled.|broke the loaf and shared it|no one was hungry now
blanket|woollen,blue,soft|A newborn lamb lay shivering in the cold wind.|wrapped the blanket around the lamb|the lamb was warm
map|torn,ancient,folded|The road split in three, and there was no signpost.|studied the map and chose the right road|they knew the way
needle|sharp,thin,ivory|A storm had ripped the sail of a little boat.|stitched the sail with the needle|the boat could sail again
bucket|wooden,empty,dented|Sparks flew, and a haystack caught fire.|filled the bucket and put out the flames|the fire was out
ladder|tall,wobbly,orange|A kitten sat on the roof and did not dare to come down.|leaned the ladder there and fetched the kitten|the kitten purred
net|wide,green,patched|A gust blew the mayor's hat into deep water.|fished it out with the net|the mayor got the hat back
saw|sharp,heavy,rusty|A fallen branch blocked the whole road.|cut the branch apart with the saw|the wagons could pass
bell|copper,tiny,old|The sheep had wandered off among the hills.|rang the bell, and the flock came back|every sheep was there
flute|slender,wooden,elegant|A baby cried and would not stop.|played a lullaby on the flute|the baby fell asleep
book|dusty,illustrated,red|The wheel broke, and the long wait was dull.|read funny chapters aloud from the book|the hours flew by
mirror|oval,cracked,polished|A ship drifted toward the rocks without seeing them.|flashed sunlight with the mirror|the ship turned in time
spade|strong,short,iron|A badger was trapped by a pile of fallen earth.|dug it out with the spade|the badger crawled out unhurt
oar|painted,light,spare|Their rowing boat began to float away.|paddled it to the shore with the oar|they stood on dry land
jug|clay,blue,old|A thirsty traveller sank down in the dust.|poured cool water from the jug|the traveller could smile again
hammer|heavy,small,useful|A plank of the footbridge came loose.|nailed it down with the hammer|everybody could cross
telescope|brass,expensive,folding|No one knew whether the ferry was coming.|spotted its smoke with the telescope|the ferry was near
ball|leather,bouncy,red|A new boy stood alone and had no one to play with.|threw the ball to him and began a game|the boy laughed
coin|silver,shiny,foreign|The ferryman would not move without his fare.|paid him with the coin|they reached the other side
cart|green,squeaky,sturdy|An old woman could not lift her heavy potatoes.|loaded them onto the cart|she could rest her back
scarf|knitted,purple,warm|A boy fell from a wall and hurt his arm.|tied it up with the scarf|the boy stopped crying
candle|white,short,beeswax|Something rustled in the pitch-black cellar.|lit the candle and showed that it was a hedgehog|there was no ghost
axe|sharp,ordinary,sturdy|The stove was cold, for there was no wood left.|split some logs with the axe|the room grew warm
basket|wicker,deep,handy|A wagon tipped over, and eggs rolled everywhere.|gathered them in the basket|not a single egg was lost
drum|loud,painted,round|A bear came much too close to the beehives.|beat the drum until the bear ran away|the bees were left in peace
kite|scarlet,huge,paper|The rescuers could not tell where they were.|flew the kite high above the trees|help arrived at last
broom|stiff,new,straw|Broken glass covered the dancing floor.|swept it up with the broom|the dance could begin
magnet|strong,tiny,odd|A locksmith had dropped his pins into a crack.|drew them out with the magnet|the locksmith could go on working
pen|inky,elegant,feather|Grandfather wanted to send a letter before the mail left.|wrote it for him with the pen|the letter went out in time
stool|low,oak,unsteady|A little girl could not see the puppet show.|let her stand on the stool|she could see everything
compass|tiny,accurate,golden|Snow had covered every footprint.|found north with the compass|they were on the right track"""
ENDINGS = """The {thing} spent that night beside {H}'s bed.|At dusk {H} carried the {thing} home.
In the evening {H} put the {thing} on a shelf and smiled.|{H} went to sleep that night with the {thing} close by."""
# every way in which a thing comes into someone's hands: F had it, T has it now
PASSES = {
    "give": "{F} gave the {thing} to {T}.|{F} handed the {thing} to {T}.|{F} placed the {thing} in {T}'s hands.",
    "lend": "{F} lent the {thing} to {T}.|{F} let {T} take the {thing}.",
    "back": "{F} gave the {thing} back to {T}.|{F} returned the {thing} to {T}.",
    "find": "{T} came along and picked up the {thing}.|A little later {T} found the {thing} and took it.",
    "trade": "So the {thing} went from {F} to {T}.|They shook hands, and {F} passed the {thing} to {T}.",
}


def article(words: str) -> str:
    """The words behind 'a' or 'an', as they sound."""
    vowel = words[0] in "aeiou" and not words.startswith("use")
    return f"{'an' if vowel or words.startswith('honest') else 'a'} {words}"


def tales(count: int, seed: int = 0) -> Iterator[str]:
    """That many stories of 60 to 150 words; paragraphs stand on lines of their own. The same seed tells the same tales."""
    rng = random.Random(seed)
    while count > 0:
        text = _tell(rng)
        if 60 <= len(text.split()) <= 150:
            count -= 1
            yield text


@dataclass
class World:
    """Who is in the tale, what it is about, and, after every sentence, who holds the thing."""

    rng: random.Random
    people: list[str]
    thing: str
    holder: str
    owner: str = ""  # who gets a lent thing back at the end
    before: list[str] = field(default_factory=list)
    lines: list[list[str]] = field(default_factory=lambda: [[]])

    def pick(self, options: str) -> str:
        """One of the options, which are parted by bars or line ends."""
        return self.rng.choice(options.replace("\n", "|").split("|"))

    def say(self, options: str, **facts: str) -> None:
        """Add one of the sentences, its names and pronouns filled in."""
        facts = {"H": self.holder, "thing": self.thing, **facts}
        for role in [role for role in facts if len(role) == 1]:
            she = facts[role] in SHE.split()
            facts |= {f"he_{role}": "she" if she else "he", f"his_{role}": "her" if she else "his"}
        self.lines[-1].append(self.pick(options).format(**facts))

    def move(self, way: str, to: str) -> None:
        """The thing changes hands: the one place where it does."""
        self.say(PASSES[way], F=self.holder, T=to)
        self.before.append(self.holder)
        self.holder = to

    def other(self) -> str:
        """Someone who does not hold the thing."""
        return self.rng.choice([name for name in self.people if name != self.holder])


def _lose(w: World) -> None:
    """Put down, forgotten, found by someone who gives it back or is asked to keep it."""
    loser, finder, spot = w.holder, w.other(), w.pick(SPOTS)
    where = _where(w)[0]
    w.say("{H} stopped {where} to {pastime}, put the {thing} {spot} and forgot it.|To {pastime}, {H} stopped {where},"
          " laid the {thing} {spot} and walked on without it.", where=where, pastime=w.pick(PASTIMES), spot=spot)  # fmt: skip
    w.say("When {he_H} noticed, {he_H} was very {sad}.|Soon {he_H} missed it and felt {sad}.", sad=w.pick(SAD.replace(" ", "|")))
    w.move("find", finder)
    if w.rng.random() < 0.5:
        w.say('"Is this yours, {L}?" asked {H}. "Yes, I forgot it {spot}," said {L}.', L=loser, spot=spot)
        w.move("back", loser)
    else:
        w.say('"Keep it today," said {L}. "It is safer with you."|"Please look after it for me," said {L}.', L=loser)
        w.owner = w.owner or loser


def _give(w: World) -> None:
    """A present, with its reason."""
    friend = w.other()
    w.say(REASONS, R=friend)
    w.say('"This is for you," said {H}.|"I want you to have this," said {H}.|"Now it is yours," said {H}.')
    w.owner = ""
    w.move("give", friend)
    w.say("{H} was {glad} and promised to take good care of it.|{H} felt {glad} and hugged {F}.", F=w.before[-1],
          glad=w.pick(GLAD.replace(" ", "|")))  # fmt: skip


def _lend(w: World) -> None:
    """A loan: for an hour it comes back at once, until tomorrow it comes back at the end."""
    lender, friend = w.holder, w.other()
    short = w.rng.random() < 0.4
    term = w.pick("for an hour|for a moment|until noon" if short else "until tomorrow|overnight|for the whole day")
    w.say('"May I borrow the {thing} {term}?" asked {R}. "Of course," said {H}.|"Could you lend me the {thing} {term}?"'
          ' asked {R}. "Yes, but bring it back," said {H}.', R=friend, term=term)  # fmt: skip
    w.move("lend", friend)
    if short:
        w.say("{H} kept {his_H} word.|{H} did not forget.|{H} needed it only briefly.")
        w.move("back", lender)
    else:
        w.owner = w.owner or lender


def _trade(w: World) -> None:
    """Something to eat for it."""
    friend, food = w.other(), w.pick(FOODS)
    w.say('"I will swap {food} for that {thing}," said {R}.|{R} offered {food} for the {thing}.', R=friend, food=food)
    w.say('"Agreed," said {H}.|{H} was hungry and agreed.|{H} thought about it and nodded.')
    w.owner = ""
    w.move("trade", friend)
    w.say("{F} ate with delight.|{F} licked {his_F} fingers and was content.|{F} shared the food with a sparrow.", F=w.before[-1])


def _race(w: World) -> None:
    """The faster one wins it."""
    rival, (_, goal) = w.other(), _where(w)
    w.say('"Let us race to the {goal}," said {H}. "The winner gets the {thing}."', goal=goal)
    winner = w.rng.choice([rival, w.holder])
    w.say("They ran like hares, but {W} was faster.|{L} stumbled, and {W} won.|It was close, yet {W} came first.", W=winner,
          L=rival if winner == w.holder else w.holder)  # fmt: skip
    if winner == rival:
        w.owner = ""
        w.move("give", rival)
    else:
        w.say("So {H} kept the {thing}, and {L} was {sad}.", L=rival, sad=w.pick(SAD.replace(" ", "|")))


def _hide(w: World) -> None:
    """A joke: the thing is not where its holder believes it to be."""
    joker, spot, hidden = w.other(), *w.rng.sample(SPOTS.replace("\n", "|").split("|"), 2)
    w.say("{H} left the {thing} {spot} and went to {pastime}.", spot=spot, pastime=w.pick(PASTIMES))
    w.say("Meanwhile {J} hid it {hidden}.|While {H} was away, {J} moved it and put it {hidden}.", J=joker, hidden=hidden)
    w.say("{H} came back and looked {spot}, but it was gone.|{H} still thought it was {spot}, and searched there in vain.", spot=spot)
    w.say('"Look {hidden}," laughed {J}, and there {H} found it.|{J} giggled and pointed. There it was, {hidden}!', J=joker, hidden=hidden)


EVENTS: dict[str, Callable[[World], None]] = {
    "lose": _lose, "give": _give, "lend": _lend, "trade": _trade, "race": _race, "hide": _hide,
}  # fmt: skip


def _where(w: World) -> tuple[str, str]:
    """A place, as 'by the river' and as 'river'."""
    near = w.rng.choice(list(PLACES))
    place = w.rng.choice(PLACES[near].split())
    return f"{near} the {place}", place


def _tell(rng: random.Random) -> str:
    """One tale: who and what, one or two events, the need, the help, the end."""
    people = rng.sample(SHE.split() + HE.split(), rng.choice([2, 2, 3]))
    noun, looks, need, help_, joy = rng.choice(THINGS.split("\n")).split("|")
    w = World(rng, people, noun, people[0])
    event = rng.choice(list(EVENTS))
    who = article(f"{rng.choice(TRAITS[event].split())} {rng.choice(JOBS.split())}")
    fine = article(f"{rng.choice(looks.split(','))} {noun}")
    w.say("{time} {H}, {who}, met {B} {where}.|{H} was {who}. {time} {he_H} met {B} {where}.", time=w.pick(TIMES), who=who,
          B=" and ".join(people[1:]), where=_where(w)[0])  # fmt: skip
    w.say("{H} had {fine}.|{H} carried {fine}.|{H} had brought {fine}.", fine=fine)
    w.lines.append([])
    EVENTS[event](w)
    if rng.random() < 0.3:
        EVENTS[rng.choice([key for key in EVENTS if key != event])](w)
    w.lines.append([])
    _end(w, need, help_, joy)
    if rng.random() < 0.3:
        w.lines[:2] = [w.lines[0] + w.lines[1]]
    return "\n".join(" ".join(paragraph) for paragraph in w.lines)


def _end(w: World, need: str, help_: str, joy: str) -> None:
    """The need, the question who holds the thing, the help, the thanks; a loan goes back."""
    helper, friend = w.holder, w.other()
    w.say("Later they went to the {place} together.|After that they all walked to the {place}.|", place=_where(w)[1])
    w.say(need)
    w.say('"Who has the {thing}?" asked {O}. "I have it," said {H}.|Luckily {H} had the {thing}.|"{H}, quick, the {thing}!"'
          " cried {O}.|Everyone turned to {H}, who had the {thing}.", O=friend)  # fmt: skip
    if w.before and w.before[-1] != helper and w.rng.random() < 0.4:
        w.lines[-1].pop()
        w.say('"I do not have the {thing} any more," said {E}. "{H} has it."', E=w.before[-1])
    w.say("{H} " + help_ + ".")
    w.say("{O} was {glad} because {joy}.|{O} felt {glad}, for {joy}.|\"Thank you, {H}!\" said {O}, because {joy}.", O=friend, joy=joy,
          glad=w.pick(GLAD.replace(" ", "|")))  # fmt: skip
    if w.owner and w.owner != helper:
        w.move("back", w.owner)
    w.say(ENDINGS)
