"""Sequence-to-sequence learning, e.g. translation: generate a target for a source. Loss in nats per target token."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from harken.data.batch import Array, Batch
from harken.data.pairs.batch import PackedPairBatch, PackedPairs, PairBatch, eval_batches
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import banned_token_ids, grammar_constraints
from harken.errors import BadSetting
from harken.models import EncoderDecoder, ModelSettings

from . import BoundTask, Loss, Metrics, Score, TaskSettings, evaluating
from .breakdown import group_by_column, group_by_length
from .metrics import generation
from .next_word import nll

if TYPE_CHECKING:
    from harken.data.pairs.source import PairData, Pairs

QUICK_SOURCES = 200  # sources with generated targets in a quick evaluation
QUICK_PAIRS = 1000  # pairs of its loss
EVAL_BATCH = 64  # pairs
BASELINE_PAIRS = 100_000  # pairs in which the most frequent target is counted
METRICS: dict[str, Callable[[list[str], generation.References], float]] = {
    "exact_match": generation.exact_match,
    "rouge_l": generation.rouge_l,
    "answer_f1": generation.answer_f1,
    "bracket_f1": lambda texts, references: generation.bracket_f1(texts, [row[0] for row in references]).f1,
}


class TranslateSettings(TaskSettings):
    """Settings of translation."""

    kind: Literal["translate"] = "translate"
    metric: Literal["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1"] = Field(
        "bleu", description="metric that selects the best weights; bleu needs harken[text], without it the loss selects"
    )
    grammar: Literal["none", "trees"] = Field(
        "none", description="constrained decoding; trees: bracketed trees over the words of the source"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="label smoothing of the training loss")
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = Field(
        "13a", description="tokenizer of sacreBLEU; none: the texts are tokenized"
    )
    packed: bool = Field(
        False, description="several pairs per row, with fixed shapes: faster on a GPU; Transformer models only"
    )
    beam: int = Field(4, ge=1, le=64, description="beam size of the final evaluation; quick evaluations are greedy")
    max_new_tokens: int | None = Field(
        None, ge=1, description="maximum tokens of a target including its end; none: twice the source plus ten"
    )
    eval_pairs: int = Field(2000, ge=0, description="maximum number of sources of a split to translate; 0: all")

    def bind(self, data: "PairData", model: ModelSettings, *, batch: int, seed: int) -> "TranslateTask":
        context, truncated = model.max_context, dict[str, int]()
        if context is not None:
            data, truncated = _truncate_splits(data, context - 1)  # 1: the edge mark
        longest = data.max_length
        if context is not None and longest >= context:
            raise BadSetting(
                f"model.context={context}: a sentence has {longest} tokens and its end; "
                f"set model.context={longest + 1} or data.max_length={context - 1}"
            )
        if model.shares_embeddings and data.tokenizers.source is not data.tokenizers.target:
            raise BadSetting(
                "model.share_embeddings=true: source and target have different vocabularies; "
                "set model.share_embeddings=false or data.shared_vocab=true"
            )
        if self.packed and not model.supports_packing:
            raise BadSetting("task.packed=true: needs a Transformer model; set task.packed=false")
        if self.packed and data.settings.bpe_dropout:
            raise BadSetting("task.packed=true: not compatible with data.bpe_dropout; set only one of them")
        grammar_constraints(self.grammar, data.tokenizers.target)
        source, target = data.train.source.lengths, data.train.target.lengths
        if self.max_new_tokens is None and (target > 2 * source + 11).mean() > 0.5:  # the default of SearchSettings
            raise BadSetting(
                "task.max_new_tokens is not set, and most targets are longer than twice their source plus ten; "
                f"set task.max_new_tokens={longest + 1}"
            )
        return TranslateTask(self, data, batch=batch, seed=seed, truncated=truncated)


class TranslateTask(BoundTask):
    """Translation of one set of pairs."""

    eval_batches = staticmethod(eval_batches)

    def __init__(
        self,
        settings: TranslateSettings,
        data: "PairData",
        *,
        batch: int,
        seed: int,
        truncated: Mapping[str, int] | None = None,
    ) -> None:
        self.settings, self.data, self.truncated = settings, data, truncated or {}
        self.batches = PackedPairs(data.train, batch, seed=seed) if settings.packed else data.batches(batch, seed)
        self.fixed_shapes = settings.packed
        self.steps, self.splits, self.tokens_per_batch = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> PairBatch | PackedPairBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: EncoderDecoder, batch: Batch, start: int = 0) -> Loss:
        smoothing = self.settings.label_smoothing
        total, rows = nll(model, batch, smoothing=smoothing)
        return Loss(total, reported=rows.sum() if smoothing else None)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, model: EncoderDecoder, split: str, *, quick: bool = False) -> Score:
        """The loss, and the metrics of generated targets; `quick` generates few of them, greedily."""
        settings, pairs = self.settings, self.data.splits[split]
        n_sources = min(QUICK_SOURCES if quick else settings.eval_pairs or len(pairs), len(pairs))
        search = SearchSettings(beam=1 if quick else settings.beam, max_new_tokens=settings.max_new_tokens)
        sources = [pairs.source[n] for n in range(n_sources)]
        constraints = grammar_constraints(settings.grammar, self.data.tokenizers.target, pairs.sources[:n_sources])
        with evaluating(model):
            total, count = self._summed_loss(model, pairs, QUICK_PAIRS if quick else len(pairs))
            texts = self.generate(model, sources, search, **constraints)
            text_metrics, notes = self.text_metrics(texts, pairs)
            if constraints and not quick:
                free = self.text_metrics(self.generate(model, sources[:QUICK_SOURCES], search), pairs)[0]
                names = [name for name in ("bracket_f1", "valid_trees") if name in free]
                notes |= {f"{name}_without_grammar": free[name] for name in names}
        loss, primary = total / max(1, count), settings.metric if settings.metric in text_metrics else "loss"
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700)), **text_metrics}
        notes |= {"truncated_sentences": self.truncated[split]} if self.truncated.get(split) else {}
        protocol = {"pairs": len(texts), "tokens": count, "beam": search.beam, "primary_metric": primary, **notes}
        if quick:
            return Score(metrics, protocol, primary_metric=primary)
        if primary == "bleu":
            references = pairs.references[: len(texts)]
            interval = generation.bootstrap(texts, references, tokenize=settings.bleu_tokenizer)
            protocol["bleu_interval"] = interval[1]
        if parts := self._group_metrics(texts, pairs, "exact_match" if primary == "loss" else primary):
            protocol["grouped_by"] = str(self.data.settings.group) if pairs.groups else "words"
        return Score(metrics, protocol, parts, primary)

    def _summed_loss(self, model: EncoderDecoder, pairs: "Pairs", max_pairs: int) -> tuple[float, int]:
        """Summed loss and number of tokens."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        for batch in self.eval_batches(pairs, EVAL_BATCH, max_pairs):
            total += float(nll(model, batch.to(device))[0])
            count += batch.n_targets
        return total, count

    def generate(
        self, model: EncoderDecoder, sources: list[Array], search: SearchSettings, **constraints: Any
    ) -> list[str]:
        """The best target of each source (token ids without the edge mark)."""
        ids, tokenizers = [[*source.tolist(), self.data.vocab[0] - 1] for source in sources], self.data.tokenizers
        banned_ids = banned_token_ids(tokenizers.target)
        hypotheses = BeamSearch(model).search_all(ids, search, banned_ids=banned_ids, **constraints)
        return [tokenizers.decode_target(best[0].tokens) if best else "" for best in hypotheses]

    def text_metrics(self, texts: list[str], pairs: "Pairs") -> tuple[Metrics, dict[str, Any]]:
        """The metrics of these targets of the first sources of a split, and notes for the protocol."""
        references, metric = pairs.references[: len(texts)], self.settings.metric
        metrics = {name: METRICS[name](texts, references) for name in ("exact_match", "rouge_l")}
        if metric == "answer_f1":
            metrics["answer_f1"] = generation.answer_f1(texts, references)
            metrics["answer_exact"] = generation.answer_exact(texts, references)
        if metric == "bracket_f1":
            trees = generation.bracket_f1(texts, [row[0] for row in references])
            metrics |= {"bracket_f1": trees.f1, "valid_trees": trees.valid}
        if not generation.has_sacrebleu():
            return metrics, {"bleu": "not computed (pip install 'harken[text]')"}
        bleu = generation.bleu(texts, references, tokenize=self.settings.bleu_tokenizer)
        chrf = generation.chrf(texts, references)
        return {"bleu": bleu.score, "chrf": chrf.score, **metrics}, {"signature": bleu.signature}

    def text_metric(self, metric: str, texts: list[str], references: generation.References) -> float:
        if metric == "bleu":
            return generation.bleu(texts, references, tokenize=self.settings.bleu_tokenizer).score
        return METRICS[metric](texts, references)

    def _group_metrics(self, texts: list[str], pairs: "Pairs", metric: str) -> dict[str, Metrics]:
        """The metric of each group of sources: by data.group, or by their length."""
        column, labels = self.data.settings.group, pairs.groups[: len(texts)]
        groups = group_by_column(str(column), labels) if labels else group_by_length(pairs.sources[: len(texts)])
        parts: dict[str, Metrics] = {}
        for group in groups if len(groups) > 1 else ():
            score = self.text_metric(metric, [texts[n] for n in group.rows], [pairs.references[n] for n in group.rows])
            position = {} if group.position is None else {"position": group.position}
            parts[group.name] = {metric: score, "pairs": len(group.rows), **position}
        return parts

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The source itself, its first sentence, and the most frequent target of the training data."""
        pairs = self.data.splits[split]
        sources = pairs.sources[: self.settings.eval_pairs or None]
        baselines = {"copy of the source": sources}
        if (first := generation.lead_1(sources)) != sources:
            baselines["first sentence"] = first
        if self.data.has_train:
            train, tokenizers = self.data.train.target, self.data.tokenizers
            targets = (tokenizers.decode_target(train[n]) for n in range(min(len(train), BASELINE_PAIRS)))
            baselines["most frequent target"] = generation.most_frequent(targets, len(sources))
        return {name: self.text_metrics(texts, pairs)[0] for name, texts in baselines.items()}


def _truncate_splits(data: "PairData", max_length: int) -> tuple["PairData", dict[str, int]]:
    """The data with truncated held-out sentences, and the number of truncated sentences of each split."""
    counts = {
        name: sum(int((side.lengths > max_length).sum()) for side in (pairs.source, pairs.target))
        for name, pairs in data.splits.items()
    }
    if not any(counts.values()):
        return data, {}
    splits = {
        name: replace(pairs, source=pairs.source.truncate(max_length), target=pairs.target.truncate(max_length))
        for name, pairs in data.splits.items()
    }
    train = data.train if data.has_train else next(iter(splits.values()))  # without training data it is a split
    return replace(data, splits=splits, train=train), counts
