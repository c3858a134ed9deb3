"""Runs with random weights, made without a training."""

import pytest
import torch

import harken
from harken import run as runs
from harken.recipe import resolve


@pytest.fixture(scope="module")
def words(tales):
    from harken.data.tokens import train

    text = tales.read_text()
    return {kind: train(kind, lambda: [text], 400) for kind in ("bpe", "wordpiece", "char")}


@pytest.fixture
def made(words, tmp_path):
    def make(settings):
        """A run folder with random weights, as a training would have left it."""
        recipe, folder = resolve(("test", settings)), tmp_path / "run"
        tokenizer = words[settings.get("data.tokens", "bpe")]
        torch.manual_seed(0)
        model = recipe.build(tokenizer.vocab)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape) * 0.1)
        folder.mkdir()
        runs.write_tensors(folder / "model.safetensors", runs.weights(model))
        tokenizer.save(folder / "tokenizer.json")
        runs.write(folder / "recipe.toml", recipe.toml())
        runs.finish(folder, {"metrics": {}})
        return harken.load(folder, device="cpu")

    return make
