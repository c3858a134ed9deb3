"""train.precision=auto on a CPU, with injected measurements."""

import pytest
import torch
from torch import nn

from harken import machine
from harken.core import products
from harken.data.batch import Batch
from harken.data.cache import cache_folder
from harken.tasks import Loss
from harken.training import precision
from harken.training.precision import faster_precision, step_seconds

from .test_loop import Toy, text_trainers

BATCH = Batch(torch.zeros(4, 8, dtype=torch.long), torch.zeros(4, 8, dtype=torch.long))


def timer(float32: float, bfloat16: float):
    """A measurement with these results, and the list of its calls."""
    calls = []

    def seconds(model, task, batch, dtype):
        calls.append((dtype, len(batch.tokens)))
        return float32 if dtype == torch.float32 else bfloat16

    return seconds, calls


@pytest.mark.parametrize(("ratio", "expected"), [(1.19, torch.float32), (1.21, torch.bfloat16), (0.9, torch.float32)])
def test_bfloat16_is_chosen_where_it_is_at_least_a_fifth_faster(ratio, expected):
    assert faster_precision(nn.Linear(2, 2), Toy(), BATCH, seconds=timer(ratio, 1.0)[0]) is expected


def test_a_model_is_measured_once_on_a_machine():
    model, (first, calls), (second, repeated) = nn.Linear(2, 2), timer(2.0, 1.0), timer(1.0, 2.0)
    faster_precision(model, Toy(), BATCH, seconds=first)
    assert faster_precision(model, Toy(), BATCH, seconds=second) is torch.bfloat16
    assert calls
    assert not repeated
    assert faster_precision(nn.Linear(3, 2), Toy(), BATCH, seconds=second) is torch.float32
    assert repeated


def test_a_damaged_measurement_is_measured_again():
    faster_precision(nn.Linear(2, 2), Toy(), BATCH, seconds=timer(2.0, 1.0)[0])
    (path,) = cache_folder("precision").iterdir()
    path.write_text('{"float32": 1')
    assert faster_precision(nn.Linear(2, 2), Toy(), BATCH, seconds=timer(1.0, 1.0)[0]) is torch.float32


def test_a_large_batch_is_measured_on_a_part_of_its_rows():
    seconds, calls = timer(1.0, 1.0)
    large = torch.zeros(1024, 8, dtype=torch.long)
    faster_precision(nn.Linear(2, 2), Toy(), Batch(large, large), seconds=seconds)
    assert {rows for _, rows in calls} == {precision.TOKENS // 8}


class Dropped(Toy):
    """A loss that draws random numbers."""

    def loss(self, model, batch, start=0):
        return Loss(nn.functional.dropout(model(torch.ones(len(batch.tokens), 2)), 0.5).sum())


def test_measuring_changes_neither_weights_nor_gradients_nor_random_numbers():
    model = nn.Linear(2, 2)
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    assert all(step_seconds(model, Dropped(), BATCH, dtype) > 0 for dtype in machine.PRECISIONS.values())
    assert all(map(torch.equal, model.parameters(), before))
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_training_uses_the_measured_precision_of_a_large_model(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr(machine, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "faster_precision", lambda *_: measured.append(1) or torch.bfloat16)
    trainer = text_trainers(tmp_path)
    assert trainer(precision="auto").precision is torch.float32  # small: not measured
    monkeypatch.setattr(precision, "MIN_PARAMETERS", 0)
    assert not measured
    assert trainer(precision="auto").precision is torch.bfloat16
    assert trainer(precision="float32").precision is torch.float32


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN")
def test_losses_are_equal_with_and_without_onednn_and_repeat_bitwise_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(products, "MIN_WORK", 0)
    trainer = text_trainers(tmp_path)

    def losses(onednn: bool) -> list[float]:
        monkeypatch.setattr(machine, "prefers_onednn", lambda: onednn)
        training = trainer(optimizer="muon", lr=1e-2)
        assert products.enabled is onednn
        return [training.update(12)["loss"] for _ in range(12)]

    with_onednn = losses(True)
    assert with_onednn[-1] < with_onednn[0]
    assert with_onednn == pytest.approx(losses(False), rel=1e-4)
    assert with_onednn == losses(True)
