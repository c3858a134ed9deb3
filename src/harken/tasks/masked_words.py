"""Pretraining of BERT: masked language modelling and next-sentence prediction. Loss in nats per masked token."""

from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from harken.core.similarity import precise
from harken.data.batch import IGNORE, Array, Windows
from harken.data.rng import RngStream, rng_for
from harken.data.text.documents import (
    MIN_PASSAGE_TOKENS,
    Documents,
    MaskedBatch,
    Masking,
    PassagePairs,
    SameDocumentPairs,
    SpecialTokens,
)
from harken.data.text.encode import EncodedText
from harken.data.text.source import TextData
from harken.errors import BadInput, BadSetting
from harken.models.bert import BERT, BERTSettings

from . import Baseline, Loss, Score, Task, TaskSettings, evaluating
from .baselines.ngram import frequencies
from .head_task import EVAL_BATCH_TOKENS
from .label_task import example_losses, label_loss
from .metrics import weighted

QUICK_TOKENS = 40_000  # tokens of a quick evaluation
EVAL_SEED = 20_181_011  # of the masks in evaluation
BASELINE_TOKENS = 5_000_000  # training tokens of the baselines


class MaskedWordsSettings(TaskSettings[TextData, BERTSettings]):
    """Settings of masked language modelling and next-sentence prediction."""

    kind: Literal["masked-words"] = "masked-words"
    objective: Literal["mlm", "nsp", "both"] = Field(
        "both", description="masked language modelling (mlm), next-sentence prediction (nsp), or both"
    )
    negatives: Literal["other-document", "same-document"] = Field(
        "other-document",
        description="source of the second passages that do not follow the first: another document, or another place in "
        "the same document (harder)",
    )
    mlm_probability: float = Field(0.15, gt=0, le=0.9, description="fraction of the tokens that are predicted")
    mask_replace_prob: float = Field(0.8, ge=0, le=1, description="fraction of them replaced by [MASK]")
    random_replace_prob: float = Field(0.1, ge=0, le=1, description="fraction of them replaced by a random token")
    keep_prob: float = Field(0.1, ge=0, le=1, validate_default=True, description="fraction of them that is unchanged")
    whole_words: bool = Field(False, description="whole-word masking: mask all pieces of a word together")
    eval_tokens: int = Field(1_000_000, ge=0, description="maximum number of tokens of a split to evaluate; 0: all")

    @field_validator("keep_prob")
    @classmethod
    def _sum_to_one(cls, keep_prob: float, validation: ValidationInfo) -> float:
        replaced = sum(validation.data.get(name, 0.0) for name in ("mask_replace_prob", "random_replace_prob"))
        if abs(replaced + keep_prob - 1) > 1e-6:
            raise ValueError("mask_replace_prob, random_replace_prob and keep_prob must sum to 1")
        return keep_prob

    def bind(self, data: TextData, model: BERTSettings, *, batch: int, seed: int) -> "MaskedWordsTask":
        if data.batching != "sentences":
            raise BadSetting(f"data.batching={data.batching}: masked words need sentences; set data.batching=sentences")
        if model.kind != "bert":
            fix = "set model.kind=bert or task.kind=next-word"
            raise BadSetting(f"model.kind={model.kind}: masked words need a bidirectional model; {fix}")
        if self.objective != "nsp" and not model.mlm_head:
            raise BadSetting(f"task.objective={self.objective}: needs an MLM head; set model.mlm_head=true")
        if self.objective != "mlm" and not (model.nsp_head and model.segments > 1):
            fix = "set model.nsp_head=true, model.segments=2"
            raise BadSetting(f"task.objective={self.objective}: needs an NSP head and segments; {fix}")
        if model.context < MIN_PASSAGE_TOKENS + 3:
            raise BadSetting(f"model.context={model.context}: too short for two passages; set model.context=64")
        return MaskedWordsTask(self, data, model, batch=batch, seed=seed)


class MaskedWordsTask(Task[MaskedWordsSettings, TextData, BERT, MaskedBatch]):
    """Masked language modelling and next-sentence prediction on one text."""

    def __init__(
        self, settings: MaskedWordsSettings, data: TextData, model: BERTSettings, *, batch: int, seed: int
    ) -> None:
        self.seed, self.L = seed, model.context
        self.mlm, self.nsp = settings.objective != "nsp", settings.objective != "mlm"
        self.pairs_class = SameDocumentPairs if settings.negatives == "same-document" else PassagePairs
        self.special = SpecialTokens(data.tokenizer)
        replace_probs = settings.mask_replace_prob, settings.random_replace_prob
        self.masking = Masking(settings.mlm_probability, *replace_probs, settings.whole_words)
        self.max_masked = max(1, round(settings.mlm_probability * (self.L - 3)))  # masked tokens per row
        self.train = self._documents(data.train[0])
        self.settings, self.data, self.passages = settings, data, self._build_passages(batch)
        self.steps, self.tokens_per_batch = self.passages.steps, self.passages.rows * self.L
        texts = {split: map(self._documents, streams) for split, streams in data.splits.items()}
        windows = self.pairs_class.usable_windows if self.nsp else Documents.windows
        usable = {split: [t for t in part if len(windows(t, self.L - 3)) > 1] for split, part in texts.items()}
        self.held_out = {split: part for split, part in usable.items() if part}
        self.splits = tuple(self.held_out)

    def _documents(self, stream: EncodedText) -> Documents:
        return Documents.from_marked_ids(np.asarray(stream.tokens), self.special.sep, self.special.cls)

    def _build_passages(self, rows: int) -> Windows | PassagePairs:
        if self.nsp:
            return self.pairs_class(self.train, self.L - 3, rows, seed=self.seed)
        if len(self.train.ids) < 2:
            raise BadInput("data: the training text has fewer than two words; use a longer text")
        return Windows([self.train.ids], self.L - 2, rows, seed=self.seed)

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch(self, epoch: int, step: int) -> MaskedBatch:
        rng = rng_for(self.seed, RngStream.MASKING, epoch, step)
        if isinstance(self.passages, Windows):
            rows = self.passages.batch(epoch, step).tokens.numpy()
            return self._collate(rows, np.arange(len(rows)), rng)
        return self._collate(self.passages, self.passages.picks(epoch, step), rng)

    def _mask(self, rows: Array, rng: np.random.Generator) -> tuple[Array, ...]:
        return self.special.mask_tokens(rows, self.masking, self.max_masked, rng)

    def _collate(self, passages: PassagePairs | Array, indices: Array, rng: np.random.Generator) -> MaskedBatch:
        """The batch of these pairs of passages, or of these rows of tokens."""
        if not isinstance(passages, PassagePairs):
            return MaskedBatch.collate(self._mask(self.special.frame(passages[indices]), rng))
        first, second, is_next = passages.pairs(indices, rng)
        rows, segments, lengths = self.special.frame_pairs(passages.documents.ids, first, second, self.L)
        labels = (~is_next).astype(np.int64)
        masked = self._mask(rows, rng)
        if not self.mlm:
            masked = rows, np.zeros((len(rows), 1), np.int64), labels[:, None]
        return MaskedBatch.collate(masked, segments=segments, lengths=lengths, next_sentence_labels=labels)

    def _eval_batches(self, split: str, limit: int | None) -> Iterator[MaskedBatch]:
        """The passages of a split in order, with the same masks every time."""
        return (self._collate(*draw) for draw in self._eval_draws(split, limit))

    def _eval_draws(
        self, split: str, limit: int | None
    ) -> Iterator[tuple[PassagePairs | Array, Array, np.random.Generator]]:
        """Of each batch: the passage pairs or rows of its text, the indices of the batch, and the generator."""
        rows, max_rows = max(1, EVAL_BATCH_TOKENS // self.L), None if limit is None else -(-limit // self.L)
        for n, text in enumerate(self.held_out[split]):
            width = min(self.L - 2, len(text.ids))
            windows = text.ids[: len(text.ids) // width * width].reshape(-1, width).astype(np.int64)
            passages = self.pairs_class(text, self.L - 3, rows, seed=EVAL_SEED) if self.nsp else windows
            count = len(passages.windows if isinstance(passages, PassagePairs) else windows)
            indices = np.arange(count)[:max_rows]
            for step, start in enumerate(range(0, len(indices), rows)):
                yield passages, indices[start : start + rows], rng_for(EVAL_SEED, n, step)

    # --- loss ---------------------------------------------------------------------------------------------------------

    def loss(self, model: BERT, batch: MaskedBatch, start: int = 0) -> Loss:
        h = model(batch.tokens, **batch.model_inputs())
        if not self.mlm:
            return Loss(_cross_entropy(model.next_sentence_scores(h[:, 0]), batch.targets[:, 0]))
        mlm_loss = _cross_entropy(_masked_logits(model, h, batch), batch.targets.flatten())
        if not self.nsp:
            return Loss(mlm_loss)
        nsp_loss = _cross_entropy(model.next_sentence_scores(h[:, 0]), cast(Tensor, batch.next_sentence_labels))
        # the NSP loss of a row has the weight of all its masked tokens
        return Loss(mlm_loss + self.max_masked * nsp_loss, reported=mlm_loss.detach())

    def evaluate(self, model: BERT, split: str, *, quick: bool = False) -> Score:
        """Loss and accuracy of masked tokens, accuracy of next sentences; `quick` evaluates fewer tokens."""
        device, batches = next(model.parameters()).device, self._eval_batches(split, self._max_tokens(quick))
        with evaluating(model):
            rows = np.concatenate([self._row_sums(model, batch.to(device)) for batch in batches])
        mlm_loss, mlm_correct, n_masked, nsp_loss, nsp_correct, n_rows = rows.sum(0).tolist()
        protocol: dict[str, Any] = {}
        if self.mlm:
            metrics = {"loss": mlm_loss / max(1, n_masked), "accuracy": mlm_correct / max(1, n_masked)}
            protocol = {"words": int(n_masked), "mlm_probability": self.settings.mlm_probability}
        else:
            metrics = {"loss": nsp_loss / n_rows}
        if self.nsp:
            metrics["next_sentence_accuracy"] = nsp_correct / n_rows
        outcomes = {} if quick else self._outcomes(*rows.T)
        return Score(metrics, {**protocol, "passages": int(n_rows), "context": self.L}, outcomes=outcomes)

    def _outcomes(self, *columns: Array) -> dict[str, weighted.WeightedMetric]:
        """The metrics as functions of the weights of the passages."""
        mlm_loss, mlm_correct, n_masked, nsp_loss, nsp_correct, _ = columns
        outcomes: dict[str, weighted.WeightedMetric] = {"loss": weighted.mean(nsp_loss)}
        if self.mlm:
            outcomes["loss"] = weighted.ratio(mlm_loss, n_masked)
            outcomes["accuracy"] = weighted.ratio(mlm_correct, n_masked)
        return outcomes | ({"next_sentence_accuracy": weighted.mean(nsp_correct)} if self.nsp else {})

    def _max_tokens(self, quick: bool) -> int | None:
        limit = self.settings.eval_tokens or None
        return min(limit or QUICK_TOKENS, QUICK_TOKENS) if quick else limit

    def _row_sums(self, model: BERT, batch: MaskedBatch) -> Array:  # B 6
        """Of each row: loss, correct predictions and targets, of the masked tokens and of the next sentence."""
        h = model(batch.tokens, **batch.model_inputs())
        mlm = nsp = torch.zeros(len(h), 3)
        if self.mlm:
            mlm = _loss_and_correct(_masked_logits(model, h, batch), batch.targets)
        if batch.next_sentence_labels is not None:
            nsp = _loss_and_correct(model.next_sentence_scores(h[:, 0]), batch.next_sentence_labels[:, None])
        nsp = torch.cat([nsp[:, :2], torch.ones(len(h), 1)], 1)
        return torch.cat([mlm, nsp], 1).double().numpy()

    # --- baselines ----------------------------------------------------------------------------------------------------

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """Token frequencies; the majority label of next sentences, and whether the second passage ends a sentence.

        The last one detects a data leak: random second passages that end differently from true ones.
        """
        if not self.data.has_train:
            return {}
        batches = list(self._eval_batches(split, self._max_tokens(quick=False)))
        baselines: dict[str, Baseline] = {}
        if self.mlm:
            counts = frequencies(self.train.ids[:BASELINE_TOKENS], self.data.tokenizer.vocab)
            logs = np.log((counts + 1) / (counts + 1).sum())  # unseen tokens have a probability above 0
            targets = np.concatenate([batch.targets.numpy() for batch in batches])  # passages M
            masked = targets != IGNORE
            losses, n = np.where(masked, -logs[targets * masked], 0.0).sum(1), masked.sum(1)
            correct = (targets == counts.argmax()).sum(1)
            metrics = {"loss": float(losses.sum() / n.sum()), "accuracy": float(correct.sum() / n.sum())}
            outcomes = {"loss": weighted.ratio(losses, n), "accuracy": weighted.ratio(correct, n)}
            baselines["unigram"] = Baseline(metrics, outcomes)
        if self.nsp:
            labels = torch.cat([cast(Tensor, batch.next_sentence_labels) for batch in batches])
            loss, mean = {} if self.mlm else {"loss": float(np.log(2))}, labels.double().mean().item()
            agreement = self._sentence_end_agreement(split)
            correct = {"majority": labels.numpy() == (mean > 0.5)}
            correct["whole sentences follow"] = agreement == (agreement.mean() > 0.5)
            for name, rows in correct.items():
                next_sentence_accuracy = {"next_sentence_accuracy": weighted.mean(rows)}
                baselines[name] = Baseline(
                    loss | {"next_sentence_accuracy": float(rows.mean())}, next_sentence_accuracy
                )
        return baselines

    def _sentence_end_agreement(self, split: str) -> Array:
        """Whether each second passage ends at a sentence end if and only if it follows the first passage."""
        agreements = list[Array]()
        for passages, indices, rng in self._eval_draws(split, self._max_tokens(quick=False)):
            _, second, is_next = cast(PassagePairs, passages).pairs(indices, rng)  # the first use of rng, as in a batch
            agreements.append(cast(PassagePairs, passages).is_sentence_start(second[:, 1]) == is_next)
        return np.concatenate(agreements)

    def sentences(self, n: int) -> list[Array]:
        """The token ids of n held-out sentences of medium length, evenly spaced over the text."""
        text = next((texts[0] for texts in self.held_out.values() if self.mlm), None)
        if text is None:
            return []
        medium = np.flatnonzero(np.abs(np.diff(text.sentences) - 13) <= min(7, self.L - 15))
        return [text.ids[text.sentences[k] : text.sentences[k + 1]] for k in medium[:: max(1, len(medium) // n)][:n]]


def _masked_logits(model: BERT, h: Tensor, batch: MaskedBatch) -> Tensor:  # B L d -> B*M vocab
    """The logits at the masked positions."""
    masked = h.gather(1, batch.positions[..., None].expand(-1, -1, h.shape[-1]))
    return model.logits(masked.flatten(0, 1))


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return label_loss(precise(logits), targets, "label")


def _loss_and_correct(logits: Tensor, targets: Tensor) -> Tensor:  # B*M C, B M -> B 3
    losses = example_losses(precise(logits), targets.flatten(), "label").view(targets.shape)
    correct = logits.argmax(-1).view(targets.shape) == targets
    return torch.stack([losses.sum(1), correct.sum(1), (targets != IGNORE).sum(1)], 1).float().cpu()
