"""Runs with random weights, built without training; and a check that hostile sources are refused."""

import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import harken
from harken import run_folder as runs
from harken.bridge.importer import import_model
from harken.data.images.source import ImageProcessor
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.source import TextLabelProcessor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.files import write_atomic
from harken.recipe import resolve

MAX_SECONDS, MAX_MIB = 5.0, 300  # about 2 s on an idle machine
LABELS = {"table": ["bad", "good", "so so"], "tags": ["O", "B-PER", "I-PER"], "spans": ["start", "end"]}


def make_processor(tokenizer, data_kind, **labels):
    """The processor of this kind of data."""
    if data_kind == "pairs":
        return PairTokenizers(tokenizer, tokenizer)
    if data_kind == "text":
        return tokenizer
    if data_kind == "images":
        return ImageProcessor(["bad", "good"], 8, [0.5], [0.5])
    processor_class = TextLabelProcessor if data_kind == "table" else TokenLabelProcessor
    return processor_class(tokenizer, **{"labels": LABELS[data_kind], **labels})


def _peak():
    """Peak memory since the last reset, in MiB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10


@pytest.fixture
def limited_resources():
    @contextmanager
    def measured():
        """Assert limits on time and memory."""
        Path("/proc/self/clear_refs").write_text("5")
        peak_before, start = _peak(), time.process_time()
        yield
        assert time.process_time() - start <= MAX_SECONDS
        assert _peak() - peak_before <= MAX_MIB

    return measured


@pytest.fixture
def assert_refused(limited_resources, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    monkeypatch.setenv("CANARY", str(canary))

    def check(source, message):
        """Importing fails with one line like this, fast, with little memory; nothing is executed or left behind."""
        with limited_resources(), pytest.raises(harken.HarkenError, match=message) as error:
            import_model(source, tmp_path / "run")
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 600
        assert not canary.exists()
        assert not (tmp_path / "run" / "harken.json").exists()
        assert not (tmp_path / "run" / "model.safetensors").exists()

    return check


@pytest.fixture(scope="module")
def tokenizers_by_kind(tales):
    from harken.data.tokenizers.tokenizer import train_tokenizer

    text = tales.read_text()
    return {kind: train_tokenizer(kind, lambda: [text], 400) for kind in ("bpe", "wordpiece", "char", "word")}


@pytest.fixture
def build_run(tokenizers_by_kind, tmp_path):
    def build(settings, **labels):
        """A run folder with random weights, as training would write it."""
        recipe, folder = resolve(("test", settings)), tmp_path / "run"
        tokenizer = make_processor(
            tokenizers_by_kind[settings.get("data.tokenizer", "bpe")], recipe.data.kind, **labels
        )
        if not settings.get("data.shared_vocab", True):
            tokenizer = PairTokenizers(tokenizer.source, tokenizers_by_kind["char"])
        torch.manual_seed(0)
        model = recipe.build(tokenizer.vocab)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape) * 0.1)
        folder.mkdir()
        runs.write_tensors(folder / "model.safetensors", runs.weights(model))
        for name, content in tokenizer.files().items():
            write_atomic(folder / name, content)
        write_atomic(folder / "recipe.toml", recipe.toml())
        runs.write_manifest(folder, {"metrics": {}})
        return harken.load(folder, device="cpu")

    return build
