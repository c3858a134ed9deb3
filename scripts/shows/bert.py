"""BERT: its sizes, its hidden words, and a small one trained on generated sentences about cats and drivers."""

import itertools
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from harken.data.text.documents import IGNORE, Masking, SpecialTokens
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.events import silent
from harken.experiments.train import train
from harken.models.bert import BERTSettings

from . import Measurement, private_cache, show

ANIMALS = ("cat", "dog", "horse", "mouse", "rabbit", "fox", "goat", "bear")
PEOPLE = ("John", "Mary", "Anna", "Paul", "Emma", "Tom")
ANIMAL_VERBS, DRIVER_VERBS = ("sleeps", "rests", "dreams", "dozes"), ("drives", "parks", "brakes", "steers")
PLACES, WAYS = ("in the hay", "by the fire", "under a tree", "all day"), ("fast", "slowly", "well", "badly")
AFTER_REST, AFTER_DRIVE = (
    ("it wakes up", "it yawns", "it stretches"),
    ("the car stops", "the car turns", "the wheels spin"),
)
HELD_OUT = "the cat sleeps"


def sentences(count: int) -> Iterator[str]:
    """Documents of two sentences: an animal at rest and its waking, or a driver and the car. No cat sleeps."""
    rng = random.Random(0)
    while count:
        rest = f"the {rng.choice(ANIMALS)} {rng.choice(ANIMAL_VERBS)} {rng.choice(PLACES)}"
        drive = f"{rng.choice(PEOPLE)} {rng.choice(DRIVER_VERBS)} {rng.choice(WAYS)}"
        first, after = rng.choice([(rest, AFTER_REST), (drive, AFTER_DRIVE)])
        if not first.startswith(HELD_OUT):
            count -= 1
            yield f"{first}.\n{rng.choice(after)}.\n"


@show()
def bert_weights() -> Measurement:
    """BERT base: 12 blocks of width 768 with 12 heads; BERT large: 24 blocks of width 1024. 30,522 word pieces."""
    with torch.device("meta"):
        models = [BERTSettings(size=size).build(30_522) for size in ("base", "large")]
    base, large = (sum(p.numel() for p in model.parameters()) for model in models)
    words = f"weights of BERT base, {large:,} of BERT large; printed 110 and 340 million"
    return Measurement(base, words, round(base / 1e7) == 11 and round(large / 1e7) == 34)


@show()
def hidden_words() -> Measurement:
    """15 % of the words are predicted: 80 % of these become [MASK], 10 % a random word, 10 % stay as they are."""
    text = "\n".join(sentences(300))
    tokenizer = train_tokenizer("wordpiece", lambda: [text], 300)
    rows = np.asarray(tokenizer.encode(text), np.int64)[:2000].reshape(20, 100)
    special = SpecialTokens(tokenizer)
    masked, positions, targets = special.mask_tokens(rows, Masking(0.15, 0.8, 0.1, False), 20, np.random.default_rng(0))
    shown = np.take_along_axis(masked, positions, 1)[targets != IGNORE]
    is_mask, same = shown == special.mask, shown == targets[targets != IGNORE]
    words = f"% of the predicted words are [MASK], {100 * (~is_mask & ~same).mean():.0f} % another word, "
    words += f"{100 * same.mean():.0f} % the same word; {100 * len(shown) / rows.size:.0f} % are predicted"
    return Measurement(100 * float(is_mask.mean()), words, abs(is_mask.mean() - 0.8) < 0.05)


@show(slow=True)
def cat_sleeps() -> Measurement:
    """A small BERT fills "The [MASK] sleeps" with an animal; no cat sleeps in its training text."""
    settings = {"model.kind": "bert", "model.size": "tiny", "model.context": 20, "data.vocab_size": 300}
    settings |= {"train.steps": 100, "train.batch": 32, "train.threads": 1, "train.device": "cpu"}
    with tempfile.TemporaryDirectory() as folder, private_cache(folder):
        text = Path(folder) / "rest.txt"
        text.write_text("\n".join(sentences(2000)), "utf-8")
        run = train(str(text), out=Path(folder) / "run", settings=settings, listen=silent)
        fillings = run.fill("the [MASK] sleeps all day.", k=len(ANIMALS))[0]
    probability = {filling["word"]: filling["probability"] for filling in fillings}
    words = f'of the probability of [MASK] in "the [MASK] sleeps" is on the {len(ANIMALS)} animals, '
    words += f'{probability.get("cat", 0.0):.2f} on cat; "{HELD_OUT}" is not in the training text'
    return Measurement(sum(probability.get(animal, 0.0) for animal in ANIMALS), words, {*probability} == {*ANIMALS})


def _opinions() -> Iterator[tuple[str, str, str, str]]:
    """User, product, text, and whether the user likes it: half of the users like what the others dislike."""
    words, starts = ("bright", "soft", "loud", "heavy"), ("it is", "very", "quite", "so", "rather", "really")
    for user, product, n, start in itertools.product(range(6), ("lamp", "chair", "radio", "phone"), range(4), starts):
        yield f"user{user}", product, f"{start} {words[n]}", "yes" if (user + n) % 2 else "no"


@show(slow=True)
def user_and_product() -> Measurement:
    """A text whose sentiment depends on its user: it is learned with user and product as segments of the input."""
    size = {"model.d": 32, "model.heads": 2, "model.layers": 2, "model.dropout": 0.0, "model.head_dropout": 0.0}
    training = {"train.steps": 220, "train.batch": 64, "train.lr": 5e-3, "train.threads": 1, "train.eval_every": 110}
    rows = random.Random(0).sample(list(_opinions()), 576)
    accuracies = []
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "opinions.csv"
        table.write_text("".join(f"{','.join(row)}\n" for row in [("user", "product", "text", "likes"), *rows]))
        for columns in (["user", "product", "text"], ["text"]):
            data = {"data.text": columns, "data.label": "likes", "data.tokenizer": "word", "data.test": 0.2}
            run = train(table, out=Path(folder) / "-".join(columns), settings=data | size | training)
            accuracies.append(float(run.metrics["test"]["accuracy"]))
    words = f"accuracy with user and product as segments of the input; {accuracies[1]:.2f} with the text alone"
    return Measurement(accuracies[0], words, accuracies[0] > 0.9 and accuracies[1] < 0.65)
