"""Answers that are one of some labels, several at once, or a number: their loss, their metrics, the free ones."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from harken.data.batch import IGNORE
from harken.errors import BadSetting

from . import Score
from .metrics import classification

MEASURES = {
    "label": ("accuracy", "f1", "matthews"),
    "multilabel": ("f1", "accuracy"),
    "number": ("pearson", "spearman"),
}  # by what is asked; the first picks the weights that are kept


class Answering:
    """What such a task knows of its answers. Whoever derives from it calls `asks` first."""

    unit = "texts"  # what is answered

    def asks(self, labels: list[str], answer: str, measure: str) -> None:
        """What may be answered, and by which metric weights are kept."""
        self.labels, self.target_type, fitting = labels, answer, MEASURES[answer]
        self.by = fitting[0] if measure == "auto" else measure
        if self.by not in (*fitting, "loss"):
            way = f"take one of {', '.join(fitting)}, loss"
            raise BadSetting(f"task.metric={self.by}: does not fit, as the data asks for a {self.target_type}; {way}")

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def judged(self, y: Tensor, some: Any, *, parts: bool = True) -> Score:  # N C
        """What these outputs for `some` (which has `targets`) are worth, whoever gave them."""
        protocol: dict[str, Any] = {self.unit: len(some), "judged_by": self.by}
        if self.target_type != "number":
            binary = self.target_type == "label" and self.outputs == 2
            protocol["f1"] = f"of {self.labels[1]}" if binary else "mean over the labels"
        apart = self._parts(y, some.targets) if parts else {}
        return Score(self.metrics(y, some.targets), protocol, apart, by=self.by)

    def metrics(self, y: Tensor, targets: Any) -> dict[str, float]:
        """Of these outputs, N C."""
        mean = float(loss_of(y, torch.from_numpy(targets), self.target_type)) / max(1, targets.size)
        if self.target_type == "number":
            gold, found = targets[:, 0].astype(float), y[:, 0].double().numpy()
            return {
                "loss": mean,
                "pearson": classification.pearson(gold, found),
                "spearman": classification.spearman(gold, found),
            }
        gold, found = self._chosen(y, targets)
        f1, binary = classification.by_label(gold, found)[2], self.target_type == "label" and self.outputs == 2
        if self.target_type == "label" and not binary:  # one that is nowhere is neither found nor missed
            f1 = f1[(gold | found).any(0)]
        said = {
            "loss": mean,
            "accuracy": classification.accuracy(gold, found),
            "f1": float(f1[1] if binary else f1.mean()),
        }
        if self.target_type == "multilabel":
            return said
        return {**said, "matthews": classification.matthews(gold.argmax(1), found.argmax(1), self.outputs)}

    def _chosen(self, y: Tensor, targets: Any) -> tuple[Any, Any]:
        """Which labels are right, and which were said: N C each."""
        if self.target_type == "multilabel":
            return targets > 0.5, (y > 0).numpy()
        return classification.one_hot(targets, self.outputs), classification.one_hot(y.argmax(1).numpy(), self.outputs)

    def _parts(self, y: Tensor, targets: Any) -> dict[str, dict[str, float]]:
        """Precision, recall and F1 of each label."""
        if self.target_type == "number":
            return {}
        gold, found = self._chosen(y, targets)
        each = zip(self.labels, *(x.tolist() for x in classification.by_label(gold, found)), gold.sum(0), strict=True)
        return {name: {"f1": f, "precision": p, "recall": r, self.unit: int(n)} for name, p, r, f, n in each}

    def frequent(self, targets: Any) -> Tensor:  # 1 C
        """The outputs that say how often each label was seen; of numbers, their mean."""
        if self.target_type == "number":
            return torch.from_numpy(targets.mean(0, keepdims=True))
        share = (
            classification.one_hot(targets, self.outputs).mean(0) if self.target_type == "label" else targets.mean(0)
        )
        p = torch.from_numpy(np.clip(share, 1e-6, 1 - 1e-6)).float()[None]
        return p.log() if self.target_type == "label" else p.logit()


def loss_of(
    y: Tensor, targets: Tensor, answer: str, weight: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:  # N C
    """The summed loss of these outputs: cross entropy, that of each label by itself, or squares. NaN is not asked."""
    if answer == "label":
        how = {"ignore_index": IGNORE, "reduction": "sum", "weight": weight, "label_smoothing": smoothing}
        return F.cross_entropy(y, targets, **how)  # type: ignore[arg-type]
    asked = ~targets.isnan()
    wanted = torch.where(asked, targets, 0.0)
    if answer == "number":
        each = (y - wanted).square()
    else:
        soft = wanted * (1 - smoothing) + smoothing / 2
        each = F.binary_cross_entropy_with_logits(y, soft, pos_weight=weight, reduction="none")
    return torch.where(asked, each, 0.0).sum()
