"""Tasks with a head on a text model: packed or padded batches, and the outputs of every token."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from harken.data.labelled.batch import EncodedTexts, LabelBatch, PackedTexts, PaddedTexts, eval_batches
from harken.errors import BadSetting
from harken.models import ModelSettings

from . import BoundTask, evaluating

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData
    from harken.models.heads import ModelWithHead

EVAL_BATCH_TOKENS = 8192


class HeadTask(BoundTask):
    """A task on examples with targets per text or per token."""

    def __init__(self, data: "ExampleData", model: ModelSettings, *, batch: int, seed: int) -> None:
        context, longest = model.max_context, data.max_length
        if context is not None and longest > context and not model.stateful:
            raise BadSetting(
                f"model.context={context}: a text has {longest} tokens; "
                f"set model.context={longest} or data.max_length={context}"
            )
        self.data, self.fixed_shapes = data, model.supports_packing
        self.batches = (PackedTexts if self.fixed_shapes else PaddedTexts)(data.train.texts, batch, seed=seed)
        self.steps, self.splits, self.tokens_per_batch = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> LabelBatch:
        return self.batches.batch(epoch, step)


@torch.no_grad()
def token_outputs(model: "ModelWithHead", texts: EncodedTexts) -> Iterator[tuple[int, LabelBatch, Tensor]]:
    """Of each text its index, a batch with this text alone, and the outputs of its tokens with a target."""
    device = next(model.parameters()).device
    with evaluating(model):
        for indices, batch in eval_batches(texts, EVAL_BATCH_TOKENS):
            on_device = batch.to(device)
            y = model.predict(model(on_device.tokens, **on_device.model_inputs())).float().cpu()  # B L outputs
            for row, n in enumerate(indices.tolist()):
                yield n, cast(LabelBatch, batch.slice_rows(row, row + 1)), y[row][batch.target_mask[row]]
