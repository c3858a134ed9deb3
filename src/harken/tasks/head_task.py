"""What tasks share that ask a head on a body: batches, packed where a model keeps texts apart; the scores of words."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from harken.data.labelled.batch import LabelBatch, PackedTexts, PaddedTexts, Texts, scoring
from harken.errors import BadSetting

from . import Stateless

if TYPE_CHECKING:
    from harken.data.labelled.examples import ExampleData

AT_ONCE = 8192  # tokens read at a time, in judging


class HeadTask(Stateless):
    """Such a task on one set of examples: of whole texts, or of each token."""

    def __init__(self, data: "ExampleData", shape: Any, *, batch: int, seed: int) -> None:
        context, longest = getattr(shape, "context", None), data.max_length
        if isinstance(context, int) and longest > context and not getattr(shape, "stateful", False):
            way = f"set model.context={longest} or data.max_length={context}"
            raise BadSetting(f"model.context={context}: a text has {longest} tokens; {way}")
        self.data, self.one_shape = data, bool(getattr(shape, "packs", False))
        self.batches = (PackedTexts if self.one_shape else PaddedTexts)(data.train.texts, batch, seed=seed)
        self.steps, self.splits, self.tokens = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> LabelBatch:
        return self.batches.batch(epoch, step)


@torch.no_grad()
def word_scores(model: Any, texts: Texts) -> Iterator[tuple[int, LabelBatch, Tensor]]:
    """For each text its number, a batch of it alone, and what the head says of each word: words x outputs."""
    was, device = model.training, next(model.parameters()).device
    model.eval()
    for picks, batch in scoring(texts, AT_ONCE):
        here = batch.to(device)
        y = model.answers(model(here.tokens, **here.told())).float().cpu()  # B L outputs
        for row, n in enumerate(picks.tolist()):
            yield n, cast(LabelBatch, batch.rows(row, row + 1)), y[row][batch.asked[row]]
    model.train(was)
