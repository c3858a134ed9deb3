"""Predict the next word: the language model's task. Loss in nats per token; perplexity and bits per character."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from harken.data.batch import IGNORE, Batch, Batches, Packed, Streams, Windows, scoring
from harken.errors import BadSetting
from harken.models import LanguageModel
from harken.settings import Part

from . import Loss, Score
from .baselines.ngram import KneserNey, Unigram, frequencies
from .linear_cross_entropy import word_loss

if TYPE_CHECKING:
    from harken.data.text.source import TextData

QUICK = 40_000  # tokens of the valid split that a look during the training costs at most
AT_ONCE = 4096  # tokens judged at a time, however many rows a training step computes
EVAL_READERS = 16  # of a model with a state: each carries its own
BASELINE_TOKENS = 5_000_000  # what the free baselines learn from at most


class Task(Part):
    """The settings of next-word prediction."""

    kind: Literal["next-word"] = "next-word"
    stride: int | None = Field(
        None, ge=1, description="step of the scoring window; smaller gives each word more context"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of each target spread over all words in training; losses told are without"
    )
    eval_tokens: int = Field(1_000_000, ge=0, description="score at most this many tokens of a split; 0: all")

    def bind(self, data: "TextData", model: Any, *, batch: int, seed: int) -> "NextWord":
        if (own := getattr(model, "task", self.kind)) != self.kind:
            told = f"model.kind={model.kind}: its words look at later ones, so the next is no riddle"
            raise BadSetting(f"{told}; set task.kind={own}, or model.kind=gpt")
        return NextWord(self, data, model, batch=batch, seed=seed)


class NextWord:
    """Next-word prediction on one text."""

    def __init__(self, task: Task, data: "TextData", shape: Any, *, batch: int, seed: int) -> None:
        self.data, self.L, self.limit = data, shape.context, task.eval_tokens or None
        self.smoothing = task.label_smoothing
        self.stride = min(task.stride or max(1, self.L // 2), self.L)
        self.batches = self._cut(batch, seed)
        self.steps, self.splits = self.batches.steps, tuple(data.splits)
        self.tokens = self.batches.rows * self.batches.L
        self.carry: Any = None  # what a model with a state remembers
        self.saved: list[Tensor] = []  # the same, from a checkpoint

    def _cut(self, batch: int, seed: int) -> Batches:
        train, how = self.data.train, self.data.batching
        if how == "packed":
            return Packed(train[0].tokens, train[0].documents, self.L, batch, seed=seed)
        if how == "stream":
            return Streams(train[0].tokens, self.L, batch)
        return Windows([s.tokens for s in train], self.L, batch, seed=seed, weights=self.data.weights)

    def batch(self, epoch: int, step: int) -> Batch:
        return self.batches.batch(epoch, step)

    def loss(self, model: LanguageModel, batch: Batch, start: int = 0) -> Loss:
        memory = None
        if self.data.batching == "stream" and model.context is None:
            if self.carry is None:
                self.carry = model.memory(self.batches.rows, self.L)
                for mine, saved in zip(self.carry.parts, self.saved, strict=False):
                    mine.copy_(saved)
            memory = self.carry.rows(start, start + len(batch.tokens))
            for mine in memory.parts if batch.fresh else ():
                mine.zero_()
        total, rows = nll(model, batch, memory, smoothing=self.smoothing)
        parts = {}
        if batch.origin is not None:
            asked = (batch.targets != IGNORE).sum(1)
            for s, name in enumerate(self.data.names):
                mine = batch.origin == s
                parts[name] = (rows[mine].sum(), int(asked[mine].sum()))
        return Loss(total, parts, rows.sum() if self.smoothing else None)

    @torch.no_grad()
    def evaluate(self, model: LanguageModel, split: str, *, quick: bool = False) -> Score:
        """Loss, perplexity and bits per character on the contiguous stream; `quick` looks at less, for the curve."""
        was = model.training
        model.eval()
        stride = self.L if quick else self.stride
        streams = self._asked(split, min(self.limit or QUICK, QUICK) if quick else self.limit)
        sums = [self._score(model, stream, stride) for stream in streams]
        model.train(was)
        names = self.data.held.get(split, ()) if len(sums) > 1 else ()
        parts = {name: {"loss": total / max(1, n)} for name, (total, n) in zip(names, sums, strict=False)}
        how: dict[str, Any] = {"context": self.L, "stride": stride}
        if model.context is None:
            readers = min(Streams(stream, self.L, EVAL_READERS).rows for stream in streams)
            how = {"context": "all before (the state is carried)", "readers": readers}
        counts, unknown = self._counts(streams), self.data.tokenizer.unknown
        if unknown is not None:  # the share of <unk>
            how["unknown"] = float(f"{counts[unknown] / max(1, counts.sum()):.4g}")
        if self.data.learned:
            how["baseline_tokens"] = min(BASELINE_TOKENS, sum(len(s.tokens) for s in self.data.train))
        return Score(self._metrics(sum(t for t, _ in sums), counts), {"tokens": sum(n for _, n in sums), **how}, parts)

    def _score(self, model: LanguageModel, stream: Any, stride: int) -> tuple[float, int]:
        device = next(model.parameters()).device
        total, count, state = 0.0, 0, None
        batches: Iterator[Batch] = scoring(stream, self.L, stride, max(1, AT_ONCE // self.L))
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

    def _asked(self, split: str, limit: int | None) -> list[Any]:
        """The tokens to be scored, behind one that is only read: the end mark, or where there is none the first."""
        texts, end = self.data.splits[split], self.data.tokenizer.end
        each = limit and max(1, limit // len(texts))  # of every mixed text as many
        streams = [s.tokens[:each] for s in texts]
        return streams if end is None else [np.concatenate([[end], s]).astype(s.dtype) for s in streams]

    def _counts(self, streams: list[Any]) -> Any:
        """How often each token is asked."""
        return sum(frequencies(stream[1:], self.data.vocab) for stream in streams)

    def _metrics(self, total: float, counts: Any) -> dict[str, float]:
        """From the summed loss. An <unk> says not which characters it stands for, so it counts as none of them."""
        mean, characters = total / max(1, int(counts.sum())), int(counts @ self.data.tokenizer.letters)
        per_character = total / math.log(2) / characters if characters else math.inf
        return {"loss": mean, "perplexity": math.exp(min(mean, 700)), "bits_per_character": per_character}

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: word frequencies, and a 5-gram with Kneser-Ney smoothing. On the same tokens."""
        if not self.data.learned:
            return {}
        train = np.concatenate([s.tokens[:BASELINE_TOKENS] for s in self.data.train])[:BASELINE_TOKENS]
        streams, found = self._asked(split, self.limit), {}
        counts = self._counts(streams)
        for name, kind in (("unigram", Unigram), ("5-gram Kneser-Ney", KneserNey)):
            fitted = kind(train, self.data.vocab)
            found[name] = self._metrics(sum(float(fitted.nll(stream)[1:].sum()) for stream in streams), counts)
        return found

    def state(self) -> dict[str, Tensor]:
        return {str(n): t for n, t in enumerate(self.saved if self.carry is None else self.carry.parts)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.carry, self.saved = None, [state[str(n)] for n in range(len(state))]


def nll(model: LanguageModel, batch: Batch, memory: Any = None, *, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The summed -ln p of the batch's targets, smoothed, with gradients; and of each row's, plain, without: B."""
    h = model(batch.tokens, memory=memory, **batch.told())  # B L d
    h = getattr(model.head, "rounded", lambda h: h)(h)  # lighter weights round what they are multiplied with
    W, targets = model.head.weight, batch.targets.flatten()
    total, each = word_loss(h.flatten(0, 1), W, targets, model.vocab, bias=model.head_bias, smoothing=smoothing)
    return total, each.view(batch.targets.shape).sum(1)
