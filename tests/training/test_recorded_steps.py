"""On a GPU: captured updates equal eager ones, and micro-batches shrink when memory runs out. Run: pytest -m gpu"""

import math

import pytest
import torch
from torch import nn

from harken.data.batch import Batch
from harken.errors import HarkenError
from harken.models.gpt import GPTSettings
from harken.tasks import BoundTask, Loss
from harken.tasks.next_word import nll
from harken.training.loop import Trainer
from harken.training.settings import Train

pytestmark = pytest.mark.gpu
SHAPE = GPTSettings(d=64, layers=2, heads=2, context=32)


class Noise(BoundTask):
    """Next-word prediction on random tokens; each step has its own."""

    steps, splits, tokens_per_batch = 100, (), 256

    def batch(self, epoch: int, step: int) -> Batch:
        rows = torch.randint(100, (8, 33), generator=torch.Generator().manual_seed(step))
        return Batch(rows[:, :-1], rows[:, 1:])

    def loss(self, model: nn.Module, batch: Batch, start: int = 0) -> Loss:
        return Loss(nll(model, batch)[0])

    def state(self) -> dict[str, torch.Tensor]:
        return {}

    def load_state(self, state: dict[str, torch.Tensor]) -> None: ...


def trainer(task=None, listen=lambda *_, **__: None, **settings) -> Trainer:
    torch.manual_seed(0)
    fixed = {"steps": 12, "device": "cuda", "precision": "float32", "lr": 1e-2, "warmup": 0}
    train = Train(**fixed | ({"momentum": 0} if settings.get("optimizer") == "sgd" else {}) | settings)
    return Trainer(SHAPE.build(100), task or Noise(), train, listen=listen)


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("micro", [None, 3])
def test_captured_updates_equal_eager_ones(optimizer, micro):
    eager, captured = (trainer(optimizer=optimizer, micro_batch=micro, compile=mode) for mode in ("no", "yes"))
    losses = [[t.update(12)["loss"] for _ in range(12)] for t in (eager, captured)]
    assert captured.update_step.captured is not None
    assert eager.update_step.captured is None
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)


def test_dropout_masks_differ_between_replays():
    class SameBatch(Noise):
        def batch(self, epoch, step):
            return super().batch(0, 0)

    torch.manual_seed(0)
    shape = SHAPE.model_copy(update={"dropout": 0.5})
    train = Train(steps=12, device="cuda", lr=1e-12, warmup=0, weight_decay=0)
    t = Trainer(shape.build(100), SameBatch(), train)
    losses = [t.update(12)["loss"] for _ in range(10)]
    assert t.update_step.captured is not None
    assert len(set(losses[4:])) == 6


@pytest.mark.parametrize("optimizer", ["muon", "sgd"])
@pytest.mark.parametrize("compiled", ["no", "yes"])
def test_after_a_non_finite_loss_no_weight_changes_and_the_batch_is_named(compiled, optimizer):
    class NonFiniteSeventh(Noise):
        def loss(self, model, batch, start=0):
            loss = super().loss(model, batch)
            factor = torch.where((batch.tokens == 99).all(), math.nan, 1.0)
            return Loss(loss.total * factor)

        def batch(self, epoch, step):
            batch = super().batch(epoch, step)
            return batch if step != 6 else Batch(torch.full_like(batch.tokens, 99), batch.targets)

    t = trainer(NonFiniteSeventh(), compile=compiled, optimizer=optimizer)
    for _ in range(6):
        t.update(12, read=False)
    before = [p.detach().clone() for p in t.model.parameters()]
    t.update(12, read=False)
    t.update(12, read=False)
    with pytest.raises(HarkenError, match=r"^step 7 \(epoch 0, batch 6\): .*the update was skipped"):
        t.update(12)
    assert all(torch.equal(a, b) for a, b in zip(before, t.model.parameters(), strict=True))


def test_out_of_memory_halves_the_micro_batch_and_the_update_is_the_same():
    class Large(Noise):
        def loss(self, model, batch, start=0):
            if len(batch.tokens) > 2:
                raise torch.OutOfMemoryError("too many rows")
            return super().loss(model, batch)

    notices = []
    halved = trainer(Large(), listen=lambda event, **facts: notices.append(facts.get("text")), compile="no")
    full = trainer(compile="no")
    assert halved.update(12)["loss"] == pytest.approx(full.update(12)["loss"], rel=1e-5)
    assert halved.update_step.micro_batch == 2
    assert [text for text in notices if text] == [
        "out of memory: micro-batches of 4 of 8 rows from now on; same updates",
        "out of memory: micro-batches of 2 of 8 rows from now on; same updates",
    ]
