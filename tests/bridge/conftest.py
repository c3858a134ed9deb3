"""Runs with random weights, made without a training; and how what means harm has to be refused."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import harken
from harken import run_folder as runs
from harken.bridge.importer import bring
from harken.data.images.source import Lens
from harken.data.labelled.examples import LabelWords
from harken.data.labelled.source import TextLabels
from harken.data.tokenizers.pairs import Tokenizers
from harken.recipe import resolve

MOST_SECONDS, MOST_MIB = 5.0, 300  # 2 s of a machine that has nothing else to do
LABELS = {"table": ["bad", "good", "so so"], "tags": ["O", "B-PER", "I-PER"], "spans": ["start", "end"]}


def told(tokenizer, data, **labels):
    """The tokens of such data."""
    if data == "pairs":
        return Tokenizers(tokenizer, tokenizer)
    if data == "text":
        return tokenizer
    if data == "images":
        return Lens(["bad", "good"], 8, [0.5], [0.5])
    kind = TextLabels if data == "table" else LabelWords
    return kind(tokenizer, **{"labels": LABELS[data], **labels})


def _peak():
    """The most memory since the last reset, in MiB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10


@pytest.fixture
def little():
    @contextmanager
    def watched():
        """What stands in it takes little time and memory."""
        Path("/proc/self/clear_refs").write_text("5")
        before, start = _peak(), time.process_time()
        yield
        assert time.process_time() - start <= MOST_SECONDS
        assert _peak() - before <= MOST_MIB

    return watched


@pytest.fixture
def refused(little, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    monkeypatch.setenv("CANARY", str(canary))

    def refuse(source, said):
        """This source is refused in one such line, fast, with little memory; nothing is executed or left."""
        with little(), pytest.raises(harken.HarkenError, match=said) as error:
            bring(source, tmp_path / "run")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 600
        assert not canary.exists()
        assert not (tmp_path / "run" / "harken.json").exists()
        assert not (tmp_path / "run" / "model.safetensors").exists()

    return refuse


@pytest.fixture(scope="module")
def words(tales):
    from harken.data.tokenizers.tokenizer import train

    text = tales.read_text()
    return {kind: train(kind, lambda: [text], 400) for kind in ("bpe", "wordpiece", "char", "word")}


@pytest.fixture
def made(words, tmp_path):
    def make(settings, **labels):
        """A run folder with random weights, as a training would have left it."""
        recipe, folder = resolve(("test", settings)), tmp_path / "run"
        tokenizer = told(words[settings.get("data.tokenizer", "bpe")], recipe.data.kind, **labels)
        if not settings.get("data.shared_vocab", True):
            tokenizer = Tokenizers(tokenizer.source, words["char"])
        torch.manual_seed(0)
        model = recipe.build(tokenizer.vocab)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape) * 0.1)
        folder.mkdir()
        runs.write_tensors(folder / "model.safetensors", runs.weights(model))
        for name, content in tokenizer.files().items():
            runs.write(folder / name, content)
        runs.write(folder / "recipe.toml", recipe.toml())
        runs.finish(folder, {"metrics": {}})
        return harken.load(folder, device="cpu")

    return make
