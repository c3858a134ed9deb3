"""Copy and reverse are learned exactly, with the expected attention."""

import pytest
import torch

from harken.data.synthetic import recall
from harken.experiments.train import train

TINY = {
    "data.tokenizer": "word", "data.valid": 0.03, "data.test": 0.0, "model.d": 64, "model.layers": 1, "model.heads": 2,
    "model.d_ff": 256, "task.metric": "exact_match", "task.beam": 1, "task.label_smoothing": 0.0,
    "train.batch": 64, "train.lr": 1e-2, "train.threads": 1, "train.eval_every": 150, "model.positions": "learned",
}  # fmt: skip


def train_on(name, folder, steps):
    rows = getattr(recall, name)(6000, lengths=(3, 6))
    file = folder / f"{name}.tsv"
    file.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in rows))
    return train(file, out=folder / name, settings={**TINY, "train.steps": steps})


@pytest.mark.slow
def test_copying_is_learned_exactly(tmp_path):
    run = train_on("copy", tmp_path, 350)
    assert run.metrics["valid"]["exact_match"] == 1.0


@pytest.mark.slow
def test_reversing_is_learned_exactly_with_anti_diagonal_attention(tmp_path):
    run = train_on("reverse", tmp_path, 550)
    assert run.metrics["valid"]["exact_match"] == 1.0
    trace = run.trace("a b c d e f")
    assert trace.source == ["a", "b", "c", "d", "e", "f", "<edge>"]
    heads = [trace.attention("cross", layer=0, head=head) for head in range(2)]
    argmax = [A[:6].argmax(-1).tolist() for A in heads]  # position with the largest weight
    assert [5, 4, 3, 2, 1, 0] in argmax
    best = torch.stack([A[:6, :6].flip(1).diagonal().mean() for A in heads]).max()
    assert best > 0.5
