"""Sequence-to-sequence learning, e.g. translation: generate a target for a source. Loss in nats per target token."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, repeat
from statistics import fmean
from typing import Any, Literal, NamedTuple, Protocol, Unpack

import numpy as np
from pydantic import Field

from harken.data.batch import IGNORE, Array, Batch
from harken.data.pairs.batch import eval_batches
from harken.data.pairs.source import PairData, Pairs
from harken.data.source import Dataset
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import TargetOptions, banned_token_ids, grammar_constraints
from harken.errors import BadSetting
from harken.events import Overflow
from harken.models import EncoderDecoder, ModelSettings

from . import Baseline, Loss, Metrics, Score, SettingsT, Task, TaskSettings, TrainingBatches, evaluating
from .baselines.query_template import QueryTemplates
from .metrics import generation, weighted
from .metrics.execution import check_references, execution_rows
from .next_word import nll

QUICK_SOURCES = 200  # sources with generated targets in a quick evaluation
QUICK_PAIRS = 1000  # pairs of its loss
EVAL_BATCH = 64  # pairs
MAX_BINS = 8  # length bins; more of them would hold too few sources each
BASELINE_PAIRS = 100_000  # training pairs that the baselines read
METRICS: dict[str, Callable[[list[str], generation.References], float]] = {
    "exact_match": generation.exact_match,
    "rouge_l": generation.rouge_l,
    "answer_f1": generation.answer_f1,
    "bracket_f1": lambda texts, references: generation.bracket_f1(texts, [row[0] for row in references]).f1,
}


class TranslateSettings(TaskSettings[PairData, ModelSettings]):
    """Settings of translation."""

    kind: Literal["translate"] = "translate"
    metric: Literal["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1", "execution"] = Field(
        "bleu",
        description="metric that selects the best weights; bleu needs harken[text], without it the loss selects; "
        "execution: SQL has the same result as the reference on a random table of the schema in the source",
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

    def bind(self, data: PairData, model: ModelSettings, *, batch: int, seed: int) -> "TranslateTask":
        context, truncated, overflow = model.max_context, dict[str, int](), Overflow.of((), None)
        if context is not None:
            overflow = _held_out_overflow(data, context - 1)
            data, truncated = _truncate_splits(data, context - 1)  # 1: the edge mark
        longest = data.max_length
        if context is not None and longest >= context:
            fix = f"set model.context={longest + 1} or data.max_length={context - 1}"
            raise BadSetting(f"model.context={context}: a sentence has {longest} tokens and its end; {fix}")
        if dict(model).get("share_embeddings") and data.tokenizers.source is not data.tokenizers.target:
            fix = "set model.share_embeddings=false or data.shared_vocab=true"
            raise BadSetting(f"model.share_embeddings=true: source and target have different vocabularies; {fix}")
        self._check_copying(data, model)
        if self.metric == "execution":
            for pairs in data.splits.values():
                n_sources = self.eval_pairs or len(pairs)
                check_references(pairs.references[:n_sources], pairs.sources[:n_sources])
        if self.packed and not model.supports_packing:
            raise BadSetting("task.packed=true: needs a Transformer model; set task.packed=false")
        if self.packed and data.settings.bpe_dropout:
            raise BadSetting("task.packed=true: not compatible with data.bpe_dropout; set only one of them")
        grammar_constraints(self.grammar, data.tokenizers.target)
        source, target = data.train.source.lengths, data.train.target.lengths
        if self.max_new_tokens is None and (target > 2 * source + 11).mean() > 0.5:  # the default of SearchSettings
            problem = "is not set, and most targets are longer than twice their source plus ten"
            raise BadSetting(f"task.max_new_tokens {problem}; set task.max_new_tokens={longest + 1}")
        batches = data.batches(batch, seed, packed=self.packed)
        task = TranslateTask(self, data, batches)
        task.truncated, task.overflow, task.fixed_shapes = truncated, overflow, self.packed
        return task

    def _check_copying(self, data: PairData, model: ModelSettings) -> None:
        """Raise for settings that do not fit to copying."""
        copies, n_unknown = dict(model).get("copy", False), data.settings.unknown_words
        if copies and data.tokenizers.source is not data.tokenizers.target:
            problem = "a word must be the same token on both sides"
            tokenizer, shared = data.settings.tokenizer, data.settings.shared_vocab
            fix = f"data.target_tokenizer={tokenizer}" if shared else "data.shared_vocab=true"
            raise BadSetting(f"model.copy=true: {problem}; set {fix}")
        if n_unknown and not copies:
            fix = "set model.copy=true or data.unknown_words=0"
            raise BadSetting(f"data.unknown_words={n_unknown}: only a model that copies can generate them; {fix}")
        if n_unknown and self.grammar != "none":
            fix = f"not compatible with task.grammar={self.grammar}; set data.unknown_words=0 or task.grammar=none"
            raise BadSetting(f"data.unknown_words={n_unknown}: {fix}")


class PaddedBatches(TrainingBatches[Batch], Protocol):
    """Training batches with padding."""

    tokens: int  # per batch, about
    padding: float  # fraction of the positions


class TranslateTask(Task[Any, Any, EncoderDecoder, Batch]):
    """Translation of one set of pairs. A subclass has other data and settings, with the same names."""

    batches: PaddedBatches

    def __init__(self, settings: SettingsT, data: Dataset, batches: PaddedBatches) -> None:
        self.set_up(settings, data, batches, batches.tokens)
        self.truncated = dict[str, int]()  # number of truncated sentences of each split
        self.overflow = Overflow.of((), None)

    def overflows(self) -> list[Overflow]:
        return [self.overflow]

    def eval_batches(self, split: str, max_pairs: int) -> Iterable[Batch]:
        """The first pairs of a split, in batches."""
        return eval_batches(self.data.splits[split], EVAL_BATCH, max_pairs)

    def loss(self, model: EncoderDecoder, batch: Batch, start: int = 0) -> Loss:
        smoothing = self.settings.label_smoothing
        total, rows = nll(model, batch, smoothing=smoothing)
        return Loss(total, reported=rows.sum() if smoothing else None)

    # --- evaluation ---------------------------------------------------------------------------------------------------

    def evaluate(self, model: EncoderDecoder, split: str, *, quick: bool = False) -> Score:
        """The loss, and the metrics of generated targets; `quick` generates few of them, greedily."""
        settings, pairs = self.settings, self.data.splits[split]
        n_sources = min(QUICK_SOURCES if quick else settings.eval_pairs or len(pairs), len(pairs))
        search = SearchSettings(beam=1 if quick else settings.beam, max_new_tokens=settings.max_new_tokens)
        sources = [pairs.source[n] for n in range(n_sources)]
        constraints: dict[str, Any] = {
            **grammar_constraints(settings.grammar, self.data.tokenizers.target, pairs.sources[:n_sources])
        }
        words = {"words": pairs.words[:n_sources]} if self.data.tokenizers.n_temporary else {}
        with evaluating(model):
            losses, counts = self._pair_losses(model, split, QUICK_PAIRS if quick else len(pairs))
            texts = self.generate(model, sources, search, **constraints, **words)
            text_metrics, notes = self.text_metrics(texts, pairs.references, pairs.sources)
            if constraints and not quick:
                texts_without = self.generate(model, sources[:QUICK_SOURCES], search)
                unconstrained = self.text_metrics(texts_without, pairs.references, pairs.sources)[0]
                names = [name for name in ("bracket_f1", "valid_trees") if name in unconstrained]
                notes |= {f"{name}_without_grammar": unconstrained[name] for name in names}
        count, primary = int(counts.sum()), settings.metric if settings.metric in text_metrics else "loss"
        loss = float(losses.sum()) / max(1, count)
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700)), **text_metrics}
        notes |= {"truncated_sentences": self.truncated[split]} if self.truncated.get(split) else {}
        protocol = {"pairs": len(texts), "tokens": count, "beam": search.beam, "primary_metric": primary, **notes}
        if quick:
            return Score(metrics, protocol, primary_metric=primary)
        if parts := self._group_metrics(texts, pairs, "exact_match" if primary == "loss" else primary):
            protocol["grouped_by"] = str(self.data.settings.group) if pairs.groups else "words"
        outcomes = self.text_outcomes(texts, pairs.references, text_metrics, pairs.sources)
        outcomes |= {"loss": weighted.ratio(losses, counts), "perplexity": weighted.perplexity(losses, counts)}
        protocol |= self.count_units(split, len(texts))
        return Score(metrics, protocol, parts, primary, outcomes=self.by_unit(split, outcomes))

    def units_of(self, split: str) -> Sequence[str]:
        """The value of data.split_group of each source: sources with the same one are dependent."""
        return self.data.splits[split].units

    def count_units(self, split: str, n_sources: int) -> dict[str, int]:
        """The number of groups of the first sources for the protocol, if there are groups."""
        units = weighted.index_groups(self.units_of(split)[:n_sources])
        return {} if units is None else {"groups": int(units.max()) + 1}

    def by_unit(self, split: str, outcomes: weighted.Outcomes) -> weighted.Outcomes:
        """The metrics as functions of the weights of the groups of data.split_group, if it is set."""
        units = weighted.index_groups(self.units_of(split))
        if units is None:
            return outcomes
        return {name: weighted.by_group({name: x}, units[: x.n])[name] for name, x in outcomes.items()}

    def _pair_losses(self, model: EncoderDecoder, split: str, max_pairs: int) -> tuple[Array, Array]:
        """Summed loss and number of tokens of each pair, in the order of the split (captions: of the batches)."""
        device, losses, counts = next(model.parameters()).device, list[Array](), list[Array]()
        order = list[Array]()
        for batch in self.eval_batches(split, max_pairs):
            losses.append(nll(model, batch.to(device))[1].double().cpu().numpy())
            counts.append((batch.targets != IGNORE).sum(1).numpy())
            order += [] if batch.index is None else [batch.index.numpy()]
        rows = np.argsort(np.concatenate(order)) if order else slice(None)
        return np.concatenate(losses)[rows], np.concatenate(counts)[rows]

    def generate(
        self,
        model: EncoderDecoder,
        sources: Sequence[Array],
        search: SearchSettings,
        words: Sequence[Sequence[str]] = (),
        **options: Unpack[TargetOptions],
    ) -> list[str]:
        """The best target of each source (token ids without the edge mark); `words`: its temporary words."""
        ids, tokenizers = [[*source.tolist(), self.data.vocab[0] - 1] for source in sources], self.data.tokenizers
        options["banned_ids"] = banned_token_ids(tokenizers.target)
        hypotheses = BeamSearch(model).search_all(ids, search, **options)
        rows = zip(hypotheses, words or repeat(()), strict=bool(words))
        return [tokenizers.decode_target(best[0].tokens, known) if best else "" for best, known in rows]

    def text_metrics(
        self, texts: list[str], references: generation.References, sources: Sequence[str] = ()
    ) -> tuple[Metrics, dict[str, object]]:
        """The metrics of these targets of the first sources of a split, and notes for the protocol."""
        references, metric = references[: len(texts)], self.settings.metric
        metrics = {name: METRICS[name](texts, references) for name in ("exact_match", "rouge_l")}
        if metric == "answer_f1":
            metrics["answer_f1"] = generation.answer_f1(texts, references)
            metrics["answer_exact"] = generation.answer_exact(texts, references)
        if metric == "execution":
            metrics["execution"] = self.text_metric(metric, texts, references, sources[: len(texts)])
        if metric == "bracket_f1":
            trees = generation.bracket_f1(texts, [row[0] for row in references])
            metrics |= {"bracket_f1": trees.f1, "valid_trees": trees.valid}
        if not generation.has_sacrebleu():
            return metrics, {"bleu": "not computed (pip install 'harken[text]')"}
        bleu = generation.bleu(texts, references, tokenize=self.settings.bleu_tokenizer)
        chrf = generation.chrf(texts, references)
        return {"bleu": bleu.score, "chrf": chrf.score, **metrics}, {"signature": bleu.signature}

    def text_outcomes(
        self, texts: list[str], references: generation.References, metrics: Iterable[str], sources: Sequence[str] = ()
    ) -> dict[str, weighted.WeightedMetric]:
        """Some of these metrics as functions of the weights of the sources."""
        references, outcomes = references[: len(texts)], dict[str, weighted.WeightedMetric]()
        for name in metrics:
            if name == "bleu":
                rows = generation.bleu_rows(texts, references, tokenize=self.settings.bleu_tokenizer)
                outcomes[name] = weighted.bleu(rows)
            elif name == "chrf":
                outcomes[name] = weighted.chrf(generation.chrf_rows(texts, references))
            elif name == "execution":
                outcomes[name] = weighted.mean(execution_rows(texts, references, sources[: len(texts)]))
            elif name in generation.ROW_METRICS:
                outcomes[name] = weighted.mean(generation.row_values(name, texts, references))
            elif name == "bracket_f1":
                brackets, valid = generation.bracket_rows(texts, [row[0] for row in references])
                outcomes |= {name: weighted.micro_f1(*brackets.T), "valid_trees": weighted.mean(valid)}
        return outcomes

    def text_baselines(
        self, baselines: Mapping[str, list[str]], references: generation.References, sources: Sequence[str] = ()
    ) -> dict[str, Baseline]:
        """The metrics of these texts, and the outcomes of the metrics that a verdict may use."""
        metric = self.settings.metric
        scored = {name: self.text_metrics(texts, references, sources)[0] for name, texts in baselines.items()}
        return {
            name: Baseline(
                metrics,
                self.text_outcomes(baselines[name], references, metrics.keys() & {metric, "exact_match"}, sources),
            )
            for name, metrics in scored.items()
        }

    def text_metric(
        self, metric: str, texts: list[str], references: generation.References, sources: Sequence[str] = ()
    ) -> float:
        if metric == "execution":
            return fmean(execution_rows(texts, references, sources))
        if metric == "bleu":
            return generation.bleu(texts, references, tokenize=self.settings.bleu_tokenizer).score
        return METRICS[metric](texts, references)

    def _group_metrics(self, texts: list[str], pairs: Pairs, metric: str) -> dict[str, Metrics]:
        """The metric of each group of sources: by data.group, or by their length."""
        column, labels = self.data.settings.group, pairs.groups[: len(texts)]
        groups = group_by_column(str(column), labels) if labels else group_by_length(pairs.sources[: len(texts)])
        parts: dict[str, Metrics] = {}
        for group in groups if len(groups) > 1 else ():
            outputs, references = [texts[n] for n in group.rows], [pairs.references[n] for n in group.rows]
            score = self.text_metric(metric, outputs, references, [pairs.sources[n] for n in group.rows])
            position = {} if group.position is None else {"position": group.position}
            parts[group.name] = {metric: score, "pairs": len(group.rows), **position}
        return parts

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The source itself, its first sentence, and the most frequent target of the training data."""
        pairs = self.data.splits[split]
        sources = pairs.sources[: self.settings.eval_pairs or None]
        baselines = {"copy of the source": sources}
        if (first := generation.lead_1(sources)) != sources:
            baselines["first sentence"] = first
        if self.data.has_train:
            targets = (target for _, target in islice(self.data.texts(), BASELINE_PAIRS))
            baselines["most frequent target"] = generation.most_frequent(targets, len(sources))
        if self.data.has_train and self.settings.metric == "execution":
            templates = QueryTemplates(islice(self.data.texts(), BASELINE_PAIRS))
            baselines["nearest question, with these names"] = [templates.predict(source) for source in sources]
        rows = self.text_baselines(baselines, pairs.references, pairs.sources)
        return {name: row._replace(outcomes=self.by_unit(split, row.outcomes)) for name, row in rows.items()}


def _held_out_overflow(data: PairData, max_length: int) -> Overflow:
    """The held-out sentences of more than max_length tokens."""
    lengths = [n for pairs in data.splits.values() for side in (pairs.source, pairs.target) for n in side.lengths]
    return Overflow.of(lengths, max_length, inputs="held-out sentences", remedy="increase model.context")


def _truncate_splits(data: PairData, max_length: int) -> tuple[PairData, dict[str, int]]:
    """The data with truncated held-out sentences, and the number of truncated sentences of each split."""
    splits, counts = {}, {}
    for name, pairs in data.splits.items():
        source, target = pairs.source, pairs.target
        counts[name] = sum(int((side.lengths > max_length).sum()) for side in (source, target))
        source, target = data.tokenizers.truncate(source, target, max_length)
        splits[name] = replace(pairs, source=source, target=target)
    if not any(counts.values()):
        return data, {}
    train = data.train if data.has_train else next(iter(splits.values()))  # without training data it is a split
    return replace(data, splits=splits, train=train), counts


# --- groups of a held-out split that are scored separately ------------------------------------------------------------


class Group(NamedTuple):
    """Rows of a split with a common property, and its value on a numeric axis."""

    name: str
    rows: list[int]
    position: float | None


def group_by_column(column: str, values: Sequence[str]) -> list[Group]:
    """One group per value of a column, numbers in ascending order; empty cells are in no group."""
    rows = {value: [n for n, cell in enumerate(values) if cell == value] for value in sorted(set(values) - {""})}
    groups = [Group(f"{column} {value}", indices, _as_number(value)) for value, indices in rows.items()]
    return sorted(groups, key=lambda group: math.inf if group.position is None else group.position)


def group_by_length(sources: Sequence[str]) -> list[Group]:
    """Bins of the number of words, with about equally many rows each."""
    n_words = np.array([len(source.split()) for source in sources])
    edges = np.unique(np.quantile(n_words, np.linspace(0, 1, MAX_BINS + 1)[1:], method="inverted_cdf"))
    bins, groups = np.searchsorted(edges, n_words), []
    for n in range(len(edges)):
        rows = np.flatnonzero(bins == n)
        low, high = n_words[rows].min(), n_words[rows].max()
        name = f"{low}-{high} words" if low < high else f"{low} word{'s' * int(low > 1)}"
        groups.append(Group(name, rows.tolist(), float(n_words[rows].mean())))
    return groups


def _as_number(text: str) -> float | None:
    try:
        return x if math.isfinite(x := float(text)) else None
    except ValueError:
        return None
