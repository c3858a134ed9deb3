"""Recorded updates, without a GPU: a stand-in for CUDA's graph makes the same call again."""

from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from harken.data.batch import Batch
from harken.training.cuda_graph import Recording


@dataclass(frozen=True)
class Pairs(Batch):
    """A batch of a task to come: a tensor more."""

    french: Tensor | None = None  # B L


def pairs(seed: int, L: int = 4) -> Pairs:
    tokens, targets, french = torch.randint(9, (3, 2, 4), generator=torch.Generator().manual_seed(seed))
    return Pairs(tokens, targets, french=french[:, :L])


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    def update(batch: Batch) -> tuple[Tensor, Tensor]:
        told.copy_(torch.stack([x.sum() for x in batch.tensors().values()]))
        return told, told

    class Graph:
        def replay(self) -> None:
            update(made.batch)

    @contextmanager
    def graph(*_, **__):
        yield

    told = torch.zeros(3, dtype=torch.long)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    made = Recording(pairs(0), update)
    return made


def test_a_recording_reads_every_tensor_of_the_batch_it_plays(recording):
    batch = pairs(1)
    assert recording.fits(batch)
    assert recording.play(batch)[0].tolist() == [int(x.sum()) for x in (batch.tokens, batch.targets, batch.french)]


def test_a_recording_fits_only_where_every_tensor_has_its_shape(recording):
    assert not recording.fits(pairs(1, L=3))
    assert not recording.fits(Batch(pairs(1).tokens, pairs(1).targets))
