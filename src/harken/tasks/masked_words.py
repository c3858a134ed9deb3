"""Fill in hidden words, and say whether one passage follows another: what BERT learns. Loss in nats per hidden word."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from harken.data.batch import IGNORE, Array, Windows
from harken.data.rng import RngStream, rng_for
from harken.data.text.documents import MIN_PASSAGE_TOKENS, Documents, PassagePairs
from harken.data.text.masked_batch import MaskingSettings, SpecialTokens, MaskedBatch, mask_tokens, collate_masked
from harken.errors import BadInput, BadSetting
from harken.settings import Settings

from . import Loss, Score, BoundTask
from .baselines.ngram import frequencies
from .head_task import EVAL_BATCH_TOKENS as AT_ONCE

if TYPE_CHECKING:
    from harken.data.text.encode import EncodedText
    from harken.data.text.source import TextData

QUICK = 40_000  # tokens of the valid split that a look during the training costs at most
JUDGED = 20_181_011  # the seed of what is hidden from a model that is judged: always the same
BASELINE_TOKENS = 5_000_000  # what the frequencies are counted from at most


class MaskedWordsSettings(Settings):
    """The settings of masked words."""

    kind: Literal["masked-words"] = "masked-words"
    objective: Literal["mlm", "nsp", "both"] = Field(
        "both", description="hidden words, whether the second of two passages follows the first, or both"
    )
    mlm_probability: float = Field(0.15, gt=0, le=0.9, description="share of the words that are asked")
    mask_replace_prob: float = Field(0.8, ge=0, le=1, description="of these, the share that is hidden behind [MASK]")
    random_replace_prob: float = Field(
        0.1, ge=0, le=1, description="the share that is shown as another word, drawn from all"
    )
    keep_prob: float = Field(0.1, ge=0, le=1, validate_default=True, description="the share that is shown as it is")
    whole_words: bool = Field(False, description="hide all pieces of a word at once")
    eval_tokens: int = Field(1_000_000, ge=0, description="judge at most this many tokens of a split; 0: all")

    @field_validator("keep_prob")
    @classmethod
    def _sum_to_one(cls, keep_prob: float, info: ValidationInfo) -> float:
        if (
            abs(sum(info.data.get(name, 0.0) for name in ("mask_replace_prob", "random_replace_prob")) + keep_prob - 1)
            > 1e-6
        ):
            raise ValueError("mask_replace_prob, random_replace_prob and keep_prob must sum to 1")
        return keep_prob

    def bind(self, data: "TextData", model: Any, *, batch: int, seed: int) -> "MaskedWordsTask":
        if data.batching != "sentences":
            raise BadSetting("task.kind=masked-words: it reads sentences; set data.batching=sentences")
        if model.kind != "bert":
            way = "set model.kind=bert, or task.kind=next-word"
            raise BadSetting(f"model.kind={model.kind}: its words see no later ones, and masked words do; {way}")
        if self.objective != "nsp" and not model.mlm_head:
            raise BadSetting(f"task.objective={self.objective}: it asks for hidden words; set model.mlm_head=true")
        if self.objective != "mlm" and not (model.nsp_head and model.segments > 1):
            raise BadSetting(
                f"task.objective={self.objective}: it asks what follows; set model.nsp_head=true, model.segments=2"
            )
        if model.context < MIN_PASSAGE_TOKENS + 3:
            raise BadSetting(f"model.context={model.context}: no room for two passages; set model.context=64")
        return MaskedWordsTask(self, data, model, batch=batch, seed=seed)


class MaskedWordsTask(BoundTask):
    """Masked words and what follows, on one text."""

    def __init__(self, task: MaskedWordsSettings, data: "TextData", shape: Any, *, batch: int, seed: int) -> None:
        self.task, self.data, self.seed, self.L = task, data, seed, shape.context
        self.words, self.pairs = task.objective != "nsp", task.objective != "mlm"
        self.marks = SpecialTokens(data.tokenizer)
        self.how = MaskingSettings(task.mlm_probability, task.mask_replace_prob, task.random_replace_prob, task.whole_words)
        self.most = max(1, round(task.mlm_probability * (self.L - 3)))  # places asked in a row
        self.train = self._read(data.train[0])
        self.cut: Windows | PassagePairs = self._cut(self.train, batch)
        self.steps, self.rows = self.cut.steps, self.cut.rows
        self.held = {split: some for split, streams in data.splits.items() if (some := self._held(streams))}
        self.splits, self.tokens_per_batch = tuple(self.held), self.rows * self.L

    def _read(self, stream: "EncodedText") -> Documents:
        return Documents.from_marked_ids(np.asarray(stream.tokens), self.marks.sep, self.marks.cls)

    def _cut(self, text: Documents, rows: int) -> Windows | PassagePairs:
        if self.pairs:
            return PassagePairs(text, self.L - 3, rows, seed=self.seed)
        if len(text.ids) < 2:
            raise BadInput("data: there are fewer than two words to learn from; give a longer text")
        return Windows([text.ids], self.L - 2, rows, seed=self.seed)

    def _held(self, streams: "list[EncodedText]") -> list[Documents]:
        read = [self._read(stream) for stream in streams]
        return [text for text in read if len(text.windows(self.L - 3)) > 1]

    # --- batches ------------------------------------------------------------------------------------------------------

    def batch(self, epoch: int, step: int) -> MaskedBatch:
        rng = rng_for(self.seed, RngStream.MASKING, epoch, step)
        if isinstance(self.cut, Windows):
            rows = self.cut.batch(epoch, step).tokens.numpy()
            return collate_masked(self._hidden(self.marks.frame(rows), rng))
        return self._asked(self.cut, self.cut.picks(epoch, step), rng)

    def _hidden(self, rows: Array, rng: np.random.Generator) -> tuple[Array, ...]:
        return mask_tokens(rows, self.marks, self.how, self.most, rng)

    def _asked(self, passages: PassagePairs, picks: Array, rng: np.random.Generator) -> MaskedBatch:
        first, second, follows = passages.pairs(picks, rng)
        rows, segments, lengths = self.marks.frame_pairs(passages.documents.ids, first, second, self.L)
        answer = (~follows).astype(np.int64)
        seen = self._hidden(rows, rng)
        if not self.words:
            seen = rows, np.zeros((len(rows), 1), np.int64), answer[:, None]
        return collate_masked(seen, segments=segments, lengths=lengths, next_sentence_labels=answer)

    def _judged(self, split: str, limit: int | None) -> Iterator[MaskedBatch]:
        """The passages of a split in their order, with the same words hidden every time."""
        for passages, picks, rng in self._picked(split, limit):
            if isinstance(passages, PassagePairs):
                yield self._asked(passages, picks, rng)
            else:
                yield collate_masked(self._hidden(self.marks.frame(passages[picks]), rng))

    def _picked(self, split: str, limit: int | None) -> Iterator[tuple[PassagePairs | Array, Array, np.random.Generator]]:
        """The pairs or the rows of each text, those of them that are judged at once, and what chance hides by."""
        rows, most = max(1, AT_ONCE // self.L), None if limit is None else -(-limit // self.L)
        for n, text in enumerate(self.held[split]):
            wide = min(self.L - 2, len(text.ids))
            alone = text.ids[: len(text.ids) // wide * wide].reshape(-1, wide).astype(np.int64)
            passages = PassagePairs(text, self.L - 3, rows, seed=JUDGED) if self.pairs else alone
            every = np.arange(len(passages.windows if isinstance(passages, PassagePairs) else alone))[:most]
            for step, picks in enumerate(every[a : a + rows] for a in range(0, len(every), rows)):
                yield passages, picks, rng_for(JUDGED, n, step)

    # --- loss ---------------------------------------------------------------------------------------------------------

    def loss(self, model: Any, batch: MaskedBatch, start: int = 0) -> Loss:
        h = model(batch.tokens, **batch.model_inputs())
        if not self.words:
            return Loss(_sum(model.next_sentence_scores(h[:, 0]), batch.targets[:, 0]))
        told = _sum(_scores(model, h, batch), batch.targets.flatten())
        if not self.pairs:
            return Loss(told)
        follows = _sum(model.next_sentence_scores(h[:, 0]), cast(Tensor, batch.next_sentence_labels))
        return Loss(told + self.most * follows, reported=told.detach())  # a row's answer weighs as all its hidden words

    @torch.no_grad()
    def evaluate(self, model: Any, split: str, *, quick: bool = False) -> Score:
        """Loss and accuracy of hidden words, accuracy of what follows; `quick` looks at less, for the curve."""
        was, device, sums = model.training, next(model.parameters()).device, np.zeros(6)
        model.eval()
        for batch in self._judged(split, self._limit(quick)):
            sums += self._right(model, cast(MaskedBatch, batch.to(device)))
        model.train(was)
        loss, right, asked, follow_loss, follow_right, rows = sums.tolist()
        metrics = {"loss": loss / max(1, asked), "accuracy": right / max(1, asked)} if self.words else {}
        if self.pairs:
            metrics |= {} if self.words else {"loss": follow_loss / rows}
            metrics |= {"next_accuracy": follow_right / rows}
        asks: dict[str, Any] = {"words": int(asked), "share": self.task.mlm_probability} if self.words else {}
        return Score(metrics, {**asks, "passages": int(rows), "context": self.L})

    def _limit(self, quick: bool) -> int | None:
        limit = self.task.eval_tokens or None
        return min(limit or QUICK, QUICK) if quick else limit

    def _right(self, model: Any, batch: MaskedBatch) -> Array:
        """Summed loss, right answers, answers asked: of hidden words, and of what follows."""
        h, found = model(batch.tokens, **batch.model_inputs()), [torch.zeros(3), torch.zeros(3)]
        if self.words:
            found[0] = _marked(_scores(model, h, batch), batch.targets.flatten())
        if batch.next_sentence_labels is not None:
            found[1] = _marked(model.next_sentence_scores(h[:, 0]), batch.next_sentence_labels)
        found[1][2] = len(batch.tokens)
        return torch.cat([part.double().cpu() for part in found]).numpy()

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the frequencies of words, without looking around; of what follows the commoner answer.

        And whether a passage ends with a sentence: that would tell much if those that follow were cut otherwise.
        """
        if not self.data.has_train:
            return {}
        batches = list(self._judged(split, self._limit(quick=False)))
        found: dict[str, dict[str, float]] = {}
        if self.words:
            counts = frequencies(self.train.ids[:BASELINE_TOKENS], self.data.vocab)
            logs = np.log((counts + 1) / (counts + 1).sum())  # a word that was not seen is still possible
            asked = np.concatenate([batch.targets[batch.targets != IGNORE].numpy() for batch in batches])
            right = float((asked == counts.argmax()).mean())
            found["unigram"] = {"loss": -float(logs[asked].mean()), "accuracy": right}
        if self.pairs:
            follows = torch.cat([cast(Tensor, batch.next_sentence_labels) for batch in batches]).double().mean().item()
            loss = {} if self.words else {"loss": float(np.log(2))}
            found["majority"] = loss | {"next_accuracy": max(follows, 1 - follows)}
            rule = self._by_end(split)
            found["whole sentences follow"] = loss | {"next_accuracy": max(rule, 1 - rule)}
        return found

    def _by_end(self, split: str) -> float:
        """The share of passages that end with a sentence and follow, or do neither."""
        right = list[Array]()
        for passages, picks, rng in self._picked(split, self._limit(quick=False)):
            _, second, follows = cast(PassagePairs, passages).pairs(picks, rng)  # the first that this chance decides
            right.append(cast(PassagePairs, passages).ends_at_sentence(second) == follows)
        return float(np.concatenate(right).mean())

    def sentences(self, n: int) -> list[Array]:
        """The ids of some sentences of a common length, from all over the text that is held out."""
        text = next((some[0] for some in self.held.values() if self.words), None)
        if text is None:
            return []
        fit = np.flatnonzero(np.abs(np.diff(text.sentences) - 13) <= min(7, self.L - 15))
        return [text.ids[text.sentences[k] : text.sentences[k + 1]] for k in fit[:: max(1, len(fit) // n)][:n]]


def _scores(model: Any, h: Tensor, batch: MaskedBatch) -> Tensor:  # B L d -> B*M vocab
    """Of all words, at the places that are asked."""
    asked = h.gather(1, batch.positions[..., None].expand(-1, -1, h.shape[-1]))
    scores: Tensor = model.logits(asked.flatten(0, 1))
    return scores


def _sum(scores: Tensor, answers: Tensor) -> Tensor:
    exact = scores if scores.dtype == torch.float64 else scores.float()
    return F.cross_entropy(exact, answers, ignore_index=IGNORE, reduction="sum")


def _marked(scores: Tensor, answers: Tensor) -> Tensor:  # 3
    right = (scores.argmax(-1) == answers).sum()
    return torch.stack([_sum(scores, answers), right, (answers != IGNORE).sum()])
