"""Runs with random weights, made without a training."""

import pytest
import torch

import harken
from harken import run as runs
from harken.data.examples import LabelWords
from harken.data.images import Lens
from harken.data.pair_tokens import Tokenizers
from harken.data.table import TextLabels
from harken.recipe import resolve

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


@pytest.fixture(scope="module")
def words(tales):
    from harken.data.tokens import train

    text = tales.read_text()
    return {kind: train(kind, lambda: [text], 400) for kind in ("bpe", "wordpiece", "char", "word")}


@pytest.fixture
def made(words, tmp_path):
    def make(settings, **labels):
        """A run folder with random weights, as a training would have left it."""
        recipe, folder = resolve(("test", settings)), tmp_path / "run"
        tokenizer = told(words[settings.get("data.tokens", "bpe")], recipe.data.kind, **labels)
        if not settings.get("data.joint", True):
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
