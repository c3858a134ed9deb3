"""The documented uses of a run, which `make check` type-checks, and the types of the overloads behind them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, assert_type, get_overloads, get_type_hints

import numpy as np

from harken.inference.answers import LabelScore, OverflowMode
from harken.inference.answers.rows import Prediction
from harken.inference.run import Run
from harken.tasks import Evaluation

if TYPE_CHECKING:
    from harken.data.tables.frame import Frame

Pixels = np.zeros((2, 8, 8), np.uint8)


def documented_uses(run: Run, frame: "Frame", texts: Sequence[str], folder: Path) -> None:
    """Never called: the uses of docs/guide.md and the pages of the verbs."""
    assert_type(run.generate("Once upon a time", max_new_tokens=100, temperature=0.8), str)
    assert_type(run.score("The miller had a rope.")["perplexity"], float)
    assert_type(run.next("Once upon a", 5)[0]["probability"], float)
    assert_type(run.classify("a good film")[0]["label"], str)
    assert_type(run.classify("a good film", min_probability=0.6, overflow="windows")[0]["probability"], float)
    assert_type(run.classify("A day.", prompt="Review: {text} Sentiment:", labels=["good", "bad"])[0]["label"], str)
    assert_type(run.classify(("the cat sleeps", "it wakes up"))[0]["label"], str)
    assert_type(run.classify(folder / "rose.jpg")[0]["label"], str)
    assert_type(run.classify(texts), list[list[LabelScore]])
    assert_type(run.classify([("a", "b"), ("c", "d")])[0][0]["label"], str)
    assert_type(run.classify(Pixels), list[list[LabelScore]])
    assert_type(run.predict(frame), list[Prediction])
    assert_type(run.tag("Ada lives in Rome")[0]["text"], str)
    assert_type(run.tag(texts)[0][0]["probability"], float)
    assert_type(run.ask("Where does John live?", "John lives in Paris.")["answer"], str)
    assert_type(run.story(["Mary went out."]).ask("Where is Mary?")["answer"], str)
    assert_type(run.fill("Tom had a [MASK].", k=1)[0][0]["word"], str)
    assert_type(run.translate("I have a red car.", prefix="Je", beam=8), str)
    assert_type(run.translate(texts), list[str])
    assert_type(run.alternatives(["I have a red car."], alternatives=3)[0][0]["score"], float)
    assert_type(run.caption("my.png"), str)
    assert_type(run.caption([folder / "my.png"], beam=2), list[str])
    assert run.embed(texts, pool="cls", normalize=False, layer=2).shape
    assert_type(run.nearest("king", 5)[0]["similarity"], float)
    assert_type(run.corpus("notes.txt").search("a query", 3)[0]["text"], str)
    assert_type(run.evaluate("valid"), Evaluation)
    mode: OverflowMode = "windows"
    assert_type(run.evaluate(data="more.csv", overflow=mode).metrics["accuracy"], float)


def test_one_text_has_one_list_of_labels_and_a_list_has_one_for_each() -> None:
    one, several = (get_type_hints(each)["return"] for each in get_overloads(Run.classify))
    assert one == list[LabelScore]
    assert several == list[list[LabelScore]]


def test_a_caption_is_a_text_unless_alternatives_are_wanted() -> None:
    returned = [get_type_hints(each)["return"] for each in get_overloads(Run.caption)]
    assert returned[:2] == [str, list[str]]
