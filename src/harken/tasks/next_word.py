"""Predict the next word: the language model's task. Loss in nats per token; perplexity and bits per character."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import IGNORE, Batch, Batches, Packed, Streams, Windows, scoring
from harken.models import LanguageModel
from harken.part import Part

from . import Loss, Score
from .ngram import KneserNey, Unigram
from .words import word_loss

if TYPE_CHECKING:
    from harken.data.text import TextData

QUICK = 40_000  # tokens of the valid split that a look during the training costs at most
EVAL_READERS = 16  # of a model with a state: each carries its own
BASELINE_TOKENS = 5_000_000  # what the free baselines learn from at most


class Task(Part):
    """The settings of next-word prediction."""

    kind: Literal["next-word"] = "next-word"
    stride: int | None = Field(
        None, ge=1, description="step of the scoring window; smaller gives each word more context"
    )
    eval_tokens: int = Field(1_000_000, ge=0, description="score at most this many tokens of a split; 0: all")

    def bind(self, data: "TextData", model: Any, *, batch: int, seed: int) -> "NextWord":
        return NextWord(self, data, model, batch=batch, seed=seed)


class NextWord:
    """Next-word prediction on one text."""

    def __init__(self, task: Task, data: "TextData", shape: Any, *, batch: int, seed: int) -> None:
        self.data, self.L, self.limit = data, shape.context, task.eval_tokens or None
        self.stride = min(task.stride or max(1, self.L // 2), self.L)
        self.batches = self._cut(batch, seed)
        self.rows = batch
        self.steps, self.splits = self.batches.steps, tuple(data.splits)
        self.tokens = self.batches.rows * self.batches.L
        self.carry: dict[int, Any] = {}  # what a model with a state remembers, for each part of the batch
        self.saved: dict[str, Tensor] = {}  # the same, from a checkpoint

    def _cut(self, batch: int, seed: int) -> Batches:
        train, how = self.data.train, self.data.batches
        if how == "packed":
            return Packed(train[0].tokens, train[0].documents, self.L, batch, seed=seed)
        if how == "stream":
            return Streams(train[0].tokens, self.L, batch)
        return Windows([s.tokens for s in train], self.L, batch, seed=seed, weights=self.data.weights)

    def batch(self, epoch: int, step: int) -> Batch:
        return self.batches.batch(epoch, step)

    def loss(self, model: LanguageModel, batch: Batch, part: int = 0) -> Loss:
        carries = self.data.batches == "stream" and model.context is None
        if carries and (batch.fresh or part not in self.carry):
            self.carry[part] = model.memory(len(batch.tokens), self.L)
            for n, mine in enumerate(self.carry[part].parts if not batch.fresh else ()):
                mine.copy_(self.saved[f"{part}.{n}"])
        total, rows = nll(model, batch, self.carry.get(part))
        parts = {}
        if batch.source is not None:
            asked = (batch.targets != IGNORE).sum(1)
            for s, name in enumerate(self.data.names):
                mine = batch.source == s
                parts[name] = (rows[mine].sum(), int(asked[mine].sum()))
        return Loss(total, batch.count, parts)

    @torch.no_grad()
    def evaluate(self, model: LanguageModel, split: str, *, quick: bool = False) -> Score:
        """Loss, perplexity and bits per character on the contiguous stream; `quick` looks at less, for the curve."""
        was = model.training
        model.eval()
        limit = min(self.limit or QUICK, QUICK) if quick else self.limit
        stride = self.L if quick else self.stride
        sums = [self._score(model, s.tokens, stride, limit) for s in self.data.splits[split]]
        model.train(was)
        names = self.data.held.get(split, ()) if len(sums) > 1 else ()
        parts = {name: {"loss": total / max(1, n)} for name, (total, n) in zip(names, sums, strict=False)}
        total, asked = sum(t for t, _ in sums), sum(n for _, n in sums)
        protocol: dict[str, Any] = {"tokens": asked, "context": self.L, "stride": stride}
        if model.context is None:
            protocol = {
                "tokens": asked,
                "context": "all before (the state is carried)",
                "readers": self._readers(split),
            }
        return Score(self.metrics(total, asked, split), protocol, parts)

    def _score(self, model: LanguageModel, stream: Any, stride: int, limit: int | None) -> tuple[float, int]:
        stream, device = self._asked(stream, limit), next(model.parameters()).device
        total, count, state = 0.0, 0, None
        batches: Iterator[Batch] = scoring(stream, self.L, stride, max(1, self.rows))
        if model.context is None:
            cut = Streams(stream, self.L, EVAL_READERS)
            state = model.memory(cut.rows, self.L)
            batches = (cut.batch(0, step) for step in range(cut.steps))
        for batch in batches:
            total += float(nll(model, batch.to(device), state)[0])
            count += batch.count
        if state is not None and count < len(stream) - 1:  # the last reader goes on to the end
            rest = torch.from_numpy(np.asarray(stream[count:], np.int64))[None].to(device)
            state.parts = tuple(part[:, -1:].contiguous() for part in state.parts)
            total += float(nll(model, Batch(rest[:, :-1], rest[:, 1:]), state)[0])
            count += rest.shape[1] - 1
        return total, count

    def _asked(self, stream: Any, limit: int | None) -> Any:
        """The tokens to be scored; where there is an end mark, one stands before, so that the first counts too."""
        stream, end = stream[: limit or None], self.data.tokenizer.end
        return stream if end is None else np.concatenate([[end], stream]).astype(stream.dtype)

    def _readers(self, split: str) -> int:
        streams = (self._asked(s.tokens, self.limit) for s in self.data.splits[split])
        return min(Streams(stream, self.L, EVAL_READERS).rows for stream in streams)

    def metrics(self, total: float, asked: int, split: str) -> dict[str, float]:
        streams = self.data.splits[split]
        characters = sum(s.characters for s in streams) / max(1, sum(len(s.tokens) for s in streams))  # a token has
        mean = total / max(1, asked)
        per_character = mean / math.log(2) / characters if characters else math.inf
        return {"loss": mean, "perplexity": math.exp(min(mean, 700)), "bits_per_character": per_character}

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: word frequencies, and a 5-gram with Kneser-Ney smoothing. On the same tokens."""
        train = np.concatenate([s.tokens[:BASELINE_TOKENS] for s in self.data.train])[:BASELINE_TOKENS]
        found = {}
        for name, counts in (("unigram", Unigram), ("5-gram Kneser-Ney", KneserNey)):
            fitted = counts(train, self.data.vocab)
            nats = [fitted.nll(self._asked(s.tokens, self.limit))[1:] for s in self.data.splits[split]]
            found[name] = self.metrics(sum(float(x.sum()) for x in nats), sum(len(x) for x in nats), split)
        return found

    def state(self) -> dict[str, Tensor]:
        return {f"{part}.{n}": t for part, memory in self.carry.items() for n, t in enumerate(memory.parts)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.carry, self.saved = {}, state


def nll(model: LanguageModel, batch: Batch, memory: Any = None) -> tuple[Tensor, Tensor]:
    """The summed -ln p of the batch's targets, with gradients; and of each row's, without: B."""
    h = model(batch.tokens, pos=batch.pos, structure=batch.structure, memory=memory)  # B L d
    total, each = word_loss(h.flatten(0, 1), model.head.weight, batch.targets.flatten(), model.vocab)
    return total, each.view(batch.targets.shape).sum(1)
