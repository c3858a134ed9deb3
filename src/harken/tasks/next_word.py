"""Next-word prediction: language modelling. Loss in nats per token; perplexity and bits per character."""

import math
from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from harken.data.batch import IGNORE, Array, Batch, PackedDocuments, Streams, Windows, eval_batches
from harken.data.text.source import TextData
from harken.errors import BadSetting
from harken.models import EncoderDecoder, LanguageModel, ModelSettings
from harken.models.pointer import CopyStates
from harken.models.rnn import RecurrentState

from . import Baseline, Loss, Metrics, Score, Task, TaskSettings, evaluating
from .baselines.ngram import KneserNey, Unigram, frequencies
from .linear_cross_entropy import linear_cross_entropy
from .metrics import weighted

QUICK_TOKENS = 40_000  # tokens of a quick evaluation
EVAL_BATCH_TOKENS = 4096  # independent of train.batch
EVAL_STREAMS = 16  # parallel streams in the evaluation of a recurrent model
BASELINE_TOKENS = 5_000_000  # training tokens of the baselines
BLOCK_TOKENS = 256  # at least; successive tokens that a bootstrap draws together, because their losses are similar


class NextWordSettings(TaskSettings[TextData, ModelSettings]):
    """Settings of next-word prediction."""

    kind: Literal["next-word"] = "next-word"
    stride: int | None = Field(
        None, ge=1, description="stride of the evaluation window; smaller gives each token more context"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    eval_tokens: int = Field(1_000_000, ge=0, description="maximum number of tokens of a split to evaluate; 0: all")

    def bind(self, data: TextData, model: ModelSettings, *, batch: int, seed: int) -> "NextWordTask":
        if model.task != self.kind:
            kind, fix = dict(model)["kind"], f"set task.kind={model.task} or model.kind=gpt"
            raise BadSetting(f"model.kind={kind}: the model is bidirectional, so it would see the next word; {fix}")
        return NextWordTask(self, data, model, batch=batch, seed=seed)


class NextWordTask(Task[NextWordSettings, TextData, LanguageModel, Batch]):
    """Next-word prediction on one text, or on a mixture of texts."""

    def __init__(self, settings: NextWordSettings, data: TextData, model: ModelSettings, batch: int, seed: int) -> None:
        assert model.max_context is not None  # all models of text have a context
        self.L, self.max_eval_tokens = model.max_context, settings.eval_tokens or None
        self.stride = min(settings.stride or max(1, self.L // 2), self.L)
        batches = _training_batches(data, self.L, batch, seed)
        self.rows, self.smoothing = batches.rows, settings.label_smoothing
        self.set_up(settings, data, batches, self.rows * batches.L)
        self.memory: RecurrentState | None = None  # state of a recurrent model, carried from batch to batch
        self.loaded_state: list[Tensor] = []  # the same from a checkpoint, until the first batch

    def loss(self, model: LanguageModel, batch: Batch, start: int = 0) -> Loss:
        memory = None
        if self.data.batching == "stream" and model.context is None:
            if self.memory is None:
                self.memory = cast(RecurrentState, model.memory(self.rows, self.L))
                for tensor, loaded in zip(self.memory.parts, self.loaded_state, strict=False):
                    tensor.copy_(loaded)
            memory = self.memory.rows(start, start + len(batch.tokens))
            for tensor in memory.parts if batch.reset_state else ():
                tensor.zero_()
        total, row_losses = nll(model, batch, memory, smoothing=self.smoothing)
        parts = {}
        if batch.origin is not None:
            row_targets = (batch.targets != IGNORE).sum(1)
            for n, name in enumerate(self.data.names):
                rows = batch.origin == n
                parts[name] = (row_losses[rows].sum(), int(row_targets[rows].sum()))
        return Loss(total, parts, row_losses.sum() if self.smoothing else None)

    def evaluate(self, model: LanguageModel, split: str, *, quick: bool = False) -> Score:
        """Loss, perplexity and bits per character on the contiguous stream; `quick` evaluates fewer tokens."""
        stride, limit = self.L if quick else self.stride, self.max_eval_tokens
        streams = self._eval_streams(split, min(limit or QUICK_TOKENS, QUICK_TOKENS) if quick else limit)
        with evaluating(model):
            blocks = [self._block_losses(model, stream, stride) for stream in streams]
        sums = [(float(losses.sum()), len(stream) - 1) for losses, stream in zip(blocks, streams, strict=True)]
        names = self.data.split_names.get(split, ()) if len(sums) > 1 else ()
        parts = {name: {"loss": total / max(1, n)} for name, (total, n) in zip(names, sums, strict=False)}
        protocol: dict[str, Any] = {"tokens": sum(n for _, n in sums), "context": self.L, "stride": stride}
        if model.context is None:
            n_streams = min(Streams(stream, self.L, EVAL_STREAMS).rows for stream in streams)
            context = "all preceding tokens (recurrent state)"
            protocol = {"tokens": protocol["tokens"], "context": context, "parallel_streams": n_streams}
        counts, unk_id = self._token_counts(streams), self.data.tokenizer.unk_id
        if unk_id is not None:  # fraction of <unk>
            protocol["unknown"] = float(f"{counts[unk_id] / max(1, counts.sum()):.4g}")
        if self.data.has_train:
            protocol["baseline_tokens"] = min(BASELINE_TOKENS, sum(len(s.tokens) for s in self.data.train))
        outcomes = {} if quick else self._outcomes(blocks, streams)
        return Score(self._metrics(sum(total for total, _ in sums), counts), protocol, parts, outcomes=outcomes)

    @property
    def _block(self) -> int:
        """Number of tokens of a block: a multiple of the context, so that windows do not cross its ends."""
        return self.L * -(-BLOCK_TOKENS // self.L)

    def _outcomes(self, losses: list[Array], streams: list[Array]) -> dict[str, weighted.WeightedMetric]:
        """The metrics as functions of the weights of blocks of successive tokens."""
        characters = self.data.tokenizer.char_counts
        tokens = [sum_blocks(np.ones(len(stream) - 1), self._block) for stream in streams]
        n_characters = [sum_blocks(characters[stream[1:]], self._block) for stream in streams]
        total, n, n_chars = (np.concatenate(rows) for rows in (losses, tokens, n_characters))
        bits = weighted.ratio(total / math.log(2), n_chars)
        return {
            "loss": weighted.ratio(total, n),
            "perplexity": weighted.perplexity(total, n),
            "bits_per_character": bits,
        }

    def _block_losses(self, model: LanguageModel, stream: Array, stride: int) -> Array:
        """The summed loss of each block of the targets of a stream."""
        device = next(model.parameters()).device
        memory, positions, losses = None, list[Array](), list[Array]()  # of rows: index of the first target, and loss
        count, n = 0, len(stream) - 1
        batches: Iterator[Batch] = eval_batches(stream, self.L, stride, max(1, EVAL_BATCH_TOKENS // self.L))
        if model.context is None:
            parallel = Streams(stream, self.L, EVAL_STREAMS)
            memory = cast(RecurrentState, model.memory(parallel.rows, self.L))
            batches = (parallel.batch(0, step) for step in range(parallel.steps))
        for step, batch in enumerate(batches):
            losses.append(nll(model, batch.to(device), memory)[1].double().cpu().numpy())
            n_targets = (batch.targets != IGNORE).sum(1).numpy()
            if memory is None:
                positions.append(count + np.cumsum(n_targets) - n_targets)
            else:
                positions.append(np.arange(parallel.rows) * parallel.length + step * self.L)
            count += int(n_targets.sum())
        if memory is not None and count < n:  # the last row continues to the end of the stream
            rest = torch.from_numpy(np.asarray(stream[count:], np.int64))[None].to(device)
            memory.parts = tuple(part[:, -1:].contiguous() for part in memory.parts)
            losses.append(nll(model, Batch(rest[:, :-1], rest[:, 1:]), memory)[1].double().cpu().numpy())
            positions.append(np.array([count]))
        blocks = np.concatenate(positions) // self._block
        return np.bincount(blocks, np.concatenate(losses), minlength=-(-n // self._block))

    def _eval_streams(self, split: str, limit: int | None) -> list[Array]:
        """The tokens to score after one token of context: the end token, or else the first token."""
        texts, end_id = self.data.splits[split], self.data.tokenizer.end_id
        per_text = limit and max(1, limit // len(texts))
        streams = [s.tokens[:per_text] for s in texts]
        return streams if end_id is None else [np.concatenate([[end_id], s]).astype(s.dtype) for s in streams]

    def _token_counts(self, streams: list[Array]) -> Array:
        """Number of occurrences of each scored token."""
        return np.sum([frequencies(stream[1:], self.data.tokenizer.vocab) for stream in streams], axis=0)

    def _metrics(self, total: float, counts: Array) -> Metrics:
        """Metrics of a summed loss. An <unk> counts as no characters, because they are unknown."""
        mean, n_characters = total / max(1, int(counts.sum())), int(counts @ self.data.tokenizer.char_counts)
        per_character = total / math.log(2) / n_characters if n_characters else math.inf
        return {"loss": mean, "perplexity": math.exp(min(mean, 700)), "bits_per_character": per_character}

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """Token frequencies, and a 5-gram model with Kneser-Ney smoothing, on the same tokens."""
        if not self.data.has_train:
            return {}
        train = np.concatenate([s.tokens[:BASELINE_TOKENS] for s in self.data.train])[:BASELINE_TOKENS]
        streams = self._eval_streams(split, self.max_eval_tokens)
        counts, baselines = self._token_counts(streams), {}
        for name, kind in (("unigram", Unigram), ("5-gram Kneser-Ney", KneserNey)):
            model = kind(train, self.data.tokenizer.vocab)
            blocks = [sum_blocks(model.nll(stream)[1:], self._block) for stream in streams]
            metrics = self._metrics(sum(float(losses.sum()) for losses in blocks), counts)
            baselines[name] = Baseline(metrics, self._outcomes(blocks, streams))
        return baselines

    def state(self) -> dict[str, Tensor]:
        return {str(n): t for n, t in enumerate(self.loaded_state if self.memory is None else self.memory.parts)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.memory, self.loaded_state = None, [state[str(n)] for n in range(len(state))]


def sum_blocks(values: Array, block: int) -> Array:
    """The sum of each block of successive values; the last block may be shorter."""
    return np.add.reduceat(values, np.arange(0, len(values), block)) if len(values) else np.zeros(0)


def _training_batches(data: TextData, L: int, rows: int, seed: int) -> Windows | PackedDocuments | Streams:
    if data.batching == "packed":
        return PackedDocuments(data.train[0].tokens, data.train[0].documents, L, rows, seed=seed)
    if data.batching == "stream":
        return Streams(data.train[0].tokens, L, rows)
    return Windows([s.tokens for s in data.train], L, rows, seed=seed, weights=data.weights)


def nll(model: LanguageModel, batch: Batch, memory: object = None, *, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
    """The summed -ln p of the targets, smoothed and with gradients; and that of each row, plain and without: B."""
    h = model(batch.tokens, memory=memory, **batch.model_inputs())  # B L d
    if isinstance(h, CopyStates):
        real = batch.targets != IGNORE
        copier = cast(EncoderDecoder, model)  # or compiled: a module with its attributes
        losses, smoothed = copier.copy_losses(h, batch.targets.clamp_min(0), smoothing)
        return (smoothed * real).sum(), (losses.detach() * real).sum(1)
    if not isinstance(model.head, nn.Linear):  # a quantized head rounds its input, too
        h = model.head.rounded(h)
    W, targets, bias = model.head.weight, batch.targets.flatten(), model.head_bias
    total, losses = linear_cross_entropy(h.flatten(0, 1), W, targets, model.vocab, bias=bias, smoothing=smoothing)
    return total, losses.view(batch.targets.shape).sum(1)
