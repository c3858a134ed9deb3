"""Say what a picture shows: one of some labels. Loss in nats."""

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from harken.data.images.batch import Change, ImageBatch, Shuffled
from harken.settings import Part

from . import Apart, Loss, Score
from .baselines.linear import Rows, fit
from .label_task import Answering, loss_of

if TYPE_CHECKING:
    from harken.data.images.source import ImageData, Lens, Pictures

QUICK = 2000  # pictures that a look during the training answers
AT_ONCE = 256  # pictures judged at a time
THUMB, LEARNED = 28, 20_000  # pixels of a side, and pictures, that the regression sees at most


class Task(Part):
    """The settings of the classification of pictures."""

    kind: Literal["image"] = "image"
    metric: Literal["auto", "loss", "accuracy", "f1", "matthews"] = Field(
        "auto", description="what picks the weights that are kept; auto: accuracy"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each label spread over all, in training")
    shift: float = Field(
        0.0,
        ge=0,
        le=1,
        description="how far a picture is moved at most, in training, as a share of its side: in whole pixels",
    )
    zoom: float = Field(0.0, ge=0, le=3, description="how much smaller or larger it is made at most: 0.2 is a fifth")
    rotation: float = Field(0.0, ge=0, le=180, description="how far it is turned at most, to either side: degrees")
    flip: bool = Field(False, description="half of the pictures are mirrored, left and right")
    erase: float = Field(0.0, ge=0, le=1, description="share of the pictures of which a box is erased")
    mixup: float = Field(0.0, ge=0, description="a of Beta(a, a): two pictures, and their labels, in one; 0: never")
    cutmix: float = Field(0.0, ge=0, description="the same with a box out of another picture; 0: never")

    def bind(self, data: "ImageData", model: Any, *, batch: int, seed: int) -> "Image":
        return Image(self, data, model, batch=batch, seed=seed)


class Image(Apart, Answering):
    """The classification of one set of pictures."""

    unit = "images"

    def __init__(self, task: Task, data: "ImageData", shape: Any, *, batch: int, seed: int) -> None:
        self.task, self.data, self.splits = task, data, tuple(data.splits)
        self.asks(data.lens.labels, "label", task.metric)
        change = Change(**task.model_dump(exclude={"kind", "metric", "label_smoothing"}))
        places = getattr(shape, "places", lambda side: 1)(data.lens.image_size)  # a plug-in's may have none
        self.batches = Shuffled(data.train, batch, places=places, change=change, seed=seed)
        self.steps, self.tokens = self.batches.steps, self.batches.rows * places

    def batch(self, epoch: int, step: int) -> ImageBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: Any, batch: ImageBatch, start: int = 0) -> Loss:
        y = model(batch.seen(self.data.lens).to(model.W_y.weight.dtype))
        y = y if y.dtype == torch.float64 else y.float()
        told, share = loss_of(y, batch.targets, "label"), batch.share()
        if share is None and not self.task.label_smoothing:
            return Loss(told)
        smooth = self.task.label_smoothing
        if share is None or batch.other_targets is None:
            return Loss(loss_of(y, batch.targets, "label", smoothing=smooth), told=told.detach())
        own, other = (
            F.cross_entropy(y, targets, reduction="none", label_smoothing=smooth)
            for targets in (batch.targets, batch.other_targets)
        )
        return Loss((share * own + (1 - share) * other).sum(), told=told.detach())

    # --- judge --------------------------------------------------------------------------------------------------------

    def outputs_of(self, model: Any, split: str, *, quick: bool = False) -> Tensor:  # N outputs
        return answers(model, self._some(split, quick=quick).pixels, self.data.lens)

    def judged_of(self, y: Tensor, split: str, *, quick: bool = False) -> Score:
        """Accuracy, F1, Matthews' correlation and the loss; `quick` answers few pictures, for the curve."""
        return self.judged(y, self._some(split, quick=quick), parts=not quick)

    def _some(self, split: str, *, quick: bool) -> "Pictures":
        part: Pictures = self.data.parts[split]
        return part.some(QUICK) if quick else part

    # --- what costs nothing -------------------------------------------------------------------------------------------

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """The most frequent label, the label whose mean picture is nearest, and logistic regression on the pixels."""
        if not self.data.learned:
            return {}
        part, train = self.data.splits[split], self.data.train
        x, means = thumbs(part.pixels), self._means
        return {
            "most frequent label": self.metrics(self.frequent(train.targets).expand(len(part), -1), part.targets),
            "nearest mean picture": self.metrics(-torch.cdist(x, means).square().float(), part.targets),
            "regression on pixels": self.metrics(self._regression(Rows(x)).float(), part.targets),
        }

    @cached_property
    def _few(self) -> "Pictures":
        return self.data.train.some(LEARNED)

    @cached_property
    def _means(self) -> Tensor:  # C pixels
        x, targets = thumbs(self._few.pixels), torch.from_numpy(self._few.targets)
        one_hot = F.one_hot(targets, self.outputs).T.to(x.dtype)
        return one_hot @ x / one_hot.sum(1, keepdim=True).clamp_min(1)

    @cached_property
    def _regression(self) -> Any:
        targets = torch.from_numpy(self._few.targets)
        return fit(Rows(thumbs(self._few.pixels)), self.outputs, lambda y: loss_of(y, targets, "label"))


def thumbs(pixels: Tensor, most: int = THUMB) -> Tensor:  # N C S S -> N pixels
    """Small pictures as rows of pixels."""
    side = min(most, pixels.shape[-1])
    made = [F.adaptive_avg_pool2d(x.double() / 255, side).flatten(1) for x in pixels.split(AT_ONCE)]
    return torch.cat(made)


@torch.no_grad()
def answers(model: Any, pixels: Tensor, lens: "Lens") -> Tensor:  # N C S S -> N outputs
    """What the model says of each picture."""
    was, weight = model.training, next(model.parameters())
    model.eval()
    found = [model(lens.numbers(x.to(weight.device)).to(weight.dtype)).float().cpu() for x in pixels.split(AT_ONCE)]
    model.train(was)
    return torch.cat(found)
