"""Captured updates without a GPU: a fake CUDA graph repeats the call."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from harken.data.batch import Batch
from harken.training.step import CapturedUpdate


@dataclass(frozen=True)
class Pairs(Batch):
    """A batch with an additional tensor."""

    source: Tensor | None = None  # B L


def pairs(seed: int, L: int = 4) -> Pairs:
    tokens, targets, source = torch.randint(9, (3, 2, 4), generator=torch.Generator().manual_seed(seed))
    return Pairs(tokens, targets, source=source[:, :L])


@pytest.fixture
def captured_update(monkeypatch: pytest.MonkeyPatch) -> CapturedUpdate:
    def update(batch: Batch) -> tuple[Tensor, Tensor]:
        sums.copy_(torch.stack([x.sum() for x in batch.tensors().values()]))
        return sums, sums

    class Graph:
        def replay(self) -> None:
            update(captured.batch)

    @contextmanager
    def graph(*_, **__):
        yield

    sums = torch.zeros(3, dtype=torch.long)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    captured = CapturedUpdate(pairs(0), update)
    return captured


def test_a_replay_reads_every_tensor_of_its_batch(captured_update):
    batch = pairs(1)
    assert captured_update.matches(batch)
    assert captured_update.replay(batch)[0].tolist() == [
        int(x.sum()) for x in (batch.tokens, batch.targets, batch.source)
    ]


def test_a_captured_update_matches_only_equal_shapes(captured_update):
    assert not captured_update.matches(pairs(1, L=3))
    assert not captured_update.matches(Batch(pairs(1).tokens, pairs(1).targets))
