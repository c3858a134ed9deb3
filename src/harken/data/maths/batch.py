"""Batches of newly drawn examples, all of one shape: a pure function of (seed, epoch, step).

Examples are drawn on the device of the model for several steps at once, so that a GPU need not wait in every step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from harken.data.batch import IGNORE
from harken.data.pairs.batch import PairBatch
from harken.data.rng import RngStream, rng_for

from .problem import Examples, IndexedRng, UniformRng

if TYPE_CHECKING:
    from .source import MathsData

TRUNCATED = {"source": "source", "tokens": "tokens", "targets": "tokens"}  # tensor -> side
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # a stride of this fraction spreads over the whole curriculum
MIN_DIFFICULTY = 0.25  # exponent of the largest operand at the start of a curriculum


@dataclass(frozen=True, kw_only=True)
class SampledBatch(PairBatch):
    """Pairs that were drawn for one step."""

    fixed_size: ClassVar[bool] = True
    static_shape: ClassVar[bool] = True

    known_n_targets: int | None = None  # saves a synchronization with the GPU

    @property
    def n_targets(self) -> int:
        return super().n_targets if self.known_n_targets is None else self.known_n_targets

    def slice_rows(self, start: int, stop: int) -> Self:
        return replace(super().slice_rows(start, stop), known_n_targets=None)


@dataclass(frozen=True)
class Curriculum:
    """Difficulty of the examples: increasing over some epochs, or the same difficulties shuffled."""

    epochs: int = 0  # 0: no curriculum
    shuffled: bool = False

    def example_indices(self, positions: range, epoch_size: int) -> list[int]:
        """The indices of the examples at these positions; none after the curriculum."""
        total = self.epochs * epoch_size
        if positions.start >= total:
            return []
        stride = next(k for k in count(int(total * GOLDEN_RATIO) or 1) if math.gcd(k, total) == 1)
        return [n * stride % total if self.shuffled and n < total else n for n in positions]

    def difficulty(self, indices: Sequence[int], epoch_size: int) -> Tensor:
        """The difficulty of these examples, from MIN_DIFFICULTY to 1."""
        progress = torch.tensor(indices, dtype=torch.float64) / (self.epochs * epoch_size)
        return (MIN_DIFFICULTY + (1 - MIN_DIFFICULTY) * progress).clamp_max(1)


class SampledBatches:
    """Training batches with new examples. Rows with a held-out example have no targets."""

    def __init__(self, data: "MathsData", rows: int, seed: int) -> None:
        settings = data.settings
        self.data, self.rows, self.seed, self.device = data, rows, seed, torch.device("cpu")
        self.distribution = settings.operand_distribution()
        self.curriculum = Curriculum(settings.curriculum, settings.shuffle_curriculum)
        self.steps = max(1, settings.examples // rows)
        self.steps_per_chunk = min(self.steps, max(1, data.problem.chunk_size // rows))
        self._chunk: tuple[Any, dict[str, Tensor], list[int]] = (None, {}, [])
        tensors = self._draw_chunk(0, 0)
        n_positions = tensors["tokens"].numel() + tensors["source"].numel()
        n_filled = int((tensors["targets"] != IGNORE).sum()) + int(tensors["lengths"].sum())
        self.tokens, self.padding = max(1, self._chunk[2][0]), 1 - n_filled / n_positions

    def batch(self, epoch: int, step: int) -> SampledBatch:
        chunk, n = divmod(step, self.steps_per_chunk)
        tensors = {name: x[n].clone() for name, x in self._draw_chunk(epoch, chunk).items()}  # CUDA graphs overwrite it
        if self.device.type == "cpu":  # only CUDA graphs need a fixed shape
            target_length = max(1, int((tensors["targets"] != IGNORE).sum(1).max()))
            lengths = {"source": int(tensors["lengths"].max()), "tokens": target_length}
            tensors |= {name: tensors[name][:, : lengths[side]] for name, side in TRUNCATED.items()}
        return SampledBatch(**tensors, known_n_targets=self._chunk[2][n])  # type: ignore[arg-type]

    def _draw_chunk(self, epoch: int, chunk: int) -> Mapping[str, Tensor]:
        """The tensors of several steps: step, rows, ..."""
        if self._chunk[0] != (epoch, chunk, self.device):
            n, first = self.steps_per_chunk * self.rows, (epoch * self.steps + chunk * self.steps_per_chunk) * self.rows
            rng, difficulty = UniformRng(rng_for(self.seed, RngStream.MATHS_TRAIN, epoch, chunk), self.device), None
            epoch_size = self.steps * self.rows
            if indices := self.curriculum.example_indices(range(first, first + n), epoch_size):
                rng = IndexedRng(self.seed, indices, self.device)
                difficulty = self.curriculum.difficulty(indices, epoch_size).to(self.device)
            tensors = self._collate(self.data.problem.draw(rng, n, self.distribution, difficulty))
            n_targets = (tensors["targets"] != IGNORE).flatten(1).sum(1).tolist()
            self._chunk = (epoch, chunk, self.device), tensors, n_targets
        return self._chunk[1]

    def _collate(self, examples: Examples) -> dict[str, Tensor]:
        tensors = collate_examples(examples, self.data.vocab[0] - 1)
        if len(self.data.held_out_keys):
            held_out = self.data.held_out_keys.to(self.device)  # sorted
            nearest = torch.searchsorted(held_out, examples.key).clamp_max(len(held_out) - 1)
            tensors["targets"].masked_fill_((held_out[nearest] == examples.key)[:, None], IGNORE)
        return {name: x.unflatten(0, (self.steps_per_chunk, self.rows)) for name, x in tensors.items()}


def collate_examples(examples: Examples, edge_id: int) -> dict[str, Tensor]:
    """The tensors of a batch: the edge token ends a source, and starts and ends a target."""
    n, (source_lengths, target_lengths) = len(examples.source), examples.lengths.unbind(1)
    device = source_lengths.device
    source_pos, target_pos = (torch.arange(x.shape[1] + 1, device=device) for x in (examples.source, examples.target))
    edge = examples.source.new_full((n, 1), edge_id)
    source = torch.where(source_pos < source_lengths[:, None], torch.cat([examples.source, edge], 1), edge_id)
    targets = torch.cat([examples.target, edge], 1)
    targets = torch.where(target_pos < target_lengths[:, None], targets, edge_id)
    tokens = torch.cat([edge, targets[:, :-1]], 1)
    targets = targets.masked_fill(target_pos > target_lengths[:, None], IGNORE)
    index = torch.arange(n, device=device)
    return {"tokens": tokens, "targets": targets, "source": source, "lengths": source_lengths + 1, "index": index}
