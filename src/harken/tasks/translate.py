"""Write a target for a source: translation, and every other sequence from a sequence. Loss in nats per target token."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import Field

from harken.data.batch import Batch
from harken.data.pairs.batch import PackedBatch, PackedPairs, PairBatch, scoring
from harken.data.tokenizers.pairs import Symbols, newline
from harken.decode.beam import Finder, Search
from harken.decode.grammar import Trees
from harken.errors import BadSetting
from harken.models import EncoderDecoder
from harken.settings import Part

from . import Loss, Score, Stateless
from .breakdown import by_column, by_words
from .metrics import generation
from .next_word import nll

if TYPE_CHECKING:
    from harken.data.pairs.source import PairData, Pairs

QUICK = 200  # sources that a look during the training answers
SCORED = 1000  # pairs whose loss it tells
AT_ONCE = 64  # pairs judged at a time
BASELINE_PAIRS = 100_000  # what the most frequent target is counted from
MEASURES: dict[str, Callable[[list[str], generation.References], float]] = {
    "exact_match": generation.exact_match,
    "rouge_l": generation.rouge_l,
    "answer_f1": generation.answer_f1,
    "bracket_f1": lambda answers, references: generation.bracket_f1(answers, [each[0] for each in references]).f1,
}


class Task(Part):
    """The settings of translation."""

    kind: Literal["translate"] = "translate"
    metric: Literal["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1"] = Field(
        "bleu", description="which metric picks the weights that are kept; bleu needs harken[text], else it is the loss"
    )
    grammar: Literal["none", "trees"] = Field(
        "none", description="trees: answers are whole trees over the words of their source, and nothing else is written"
    )
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="share of each target spread over all words in training; losses told are without"
    )
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = Field(
        "13a", description="how sacreBLEU splits texts into words; none: they are tokens already"
    )
    packed: bool = Field(
        False, description="train on rows of several pairs, all of one shape: pays on a GPU; for a Transformer"
    )
    beam: int = Field(4, ge=1, le=64, description="texts followed at a time in the last judgement; looks are greedy")
    max_new_tokens: int | None = Field(
        None, ge=1, description="most tokens of an answer, its end counted; none: twice those of its source and ten"
    )
    eval_pairs: int = Field(2000, ge=0, description="answer at most this many sources of a split; 0: all")

    def bind(self, data: "PairData", model: Any, *, batch: int, seed: int) -> "Translate":
        context, cut = getattr(model, "context", None), dict[str, int]()
        if isinstance(context, int):
            data, cut = _held_within(data, context - 1)  # its edge is read too
        longest = data.max_length
        if isinstance(context, int) and longest >= context:
            way = f"set model.context={longest + 1} or data.max_length={context - 1}"
            raise BadSetting(f"model.context={context}: a sentence has {longest} tokens and its end; {way}")
        if getattr(model, "share_embeddings", False) and data.tokenizers.source is not data.tokenizers.target:
            raise BadSetting(
                "model.share_embeddings=true: the sides have words of their own; set model.share_embeddings=false, or data.shared_vocab"
            )
        if self.packed and not getattr(model, "packs", False):
            raise BadSetting("task.packed=true: only a Transformer keeps pairs of one row apart; set task.packed=false")
        if self.packed and data.settings.bpe_dropout:
            raise BadSetting("task.packed=true: data.bpe_dropout changes how long pairs are; set one of them alone")
        ruled(self.grammar, data.tokenizers.target)
        source, target = data.train.source.lengths, data.train.target.lengths
        if self.max_new_tokens is None and (target > 2 * source + 11).mean() > 0.5:  # as decode.Search ends an answer
            way = f"most targets are longer than twice their source and ten; set task.max_new_tokens={longest + 1}"
            raise BadSetting(f"task.max_new_tokens is not given, and {way}")
        return Translate(self, data, batch=batch, seed=seed, cut=cut)


class Translate(Stateless):
    """Translation of one set of pairs."""

    scoring = staticmethod(scoring)  # batches in which pairs are judged

    def __init__(
        self, task: Task, data: "PairData", *, batch: int, seed: int, cut: Mapping[str, int] | None = None
    ) -> None:
        self.task, self.data, self.cut = task, data, cut or {}
        self.batches = PackedPairs(data.train, batch, seed=seed) if task.packed else data.batches(batch, seed)
        self.one_shape = task.packed  # what is compiled for one batch serves all
        self.steps, self.splits, self.tokens = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> PairBatch | PackedBatch:
        return self.batches.batch(epoch, step)

    def loss(self, model: EncoderDecoder, batch: Batch, start: int = 0) -> Loss:
        smoothing = self.task.label_smoothing
        total, rows = nll(model, batch, smoothing=smoothing)
        return Loss(total, told=rows.sum() if smoothing else None)

    # --- judge --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, model: EncoderDecoder, split: str, *, quick: bool = False) -> Score:
        """The loss, and what comes of written answers; `quick` writes few of them, greedily, for the curve."""
        was = model.training
        model.eval()
        pairs, most = self.data.splits[split], QUICK if quick else self.task.eval_pairs or 10**9
        total, count = self._score(model, pairs, SCORED if quick else len(pairs))
        how = Search(beam=1 if quick else self.task.beam, max_new_tokens=self.task.max_new_tokens)
        asked = [pairs.source[n] for n in range(min(most, len(pairs)))]
        rules = ruled(self.task.grammar, self.data.tokenizers.target, pairs.sources[: len(asked)])
        answers = self.answers(model, asked, how, **rules)
        found, notes = self.measured(answers, pairs)
        if rules and not quick:  # what the grammar did
            free = self.measured(self.answers(model, asked[:QUICK], how), pairs)[0]
            notes |= {f"{name}_without_grammar": free[name] for name in ("bracket_f1", "valid_trees") if name in free}
        model.train(was)
        mean, by = total / max(1, count), self.task.metric if self.task.metric in found else "loss"
        metrics = {"loss": mean, "perplexity": math.exp(min(mean, 700)), **found}
        notes |= {"cut_sentences": self.cut[split]} if self.cut.get(split) else {}
        protocol = {"pairs": len(answers), "tokens": count, "beam": how.beam, "judged_by": by, **notes}
        if quick:
            return Score(metrics, protocol, by=by)
        if by == "bleu":
            protocol["bleu_interval"] = generation.bootstrap(
                answers, pairs.references[: len(answers)], tokenize=self.task.bleu_tokenizer
            )[1]
        if parts := self._parts(answers, pairs, "exact_match" if by == "loss" else by):
            protocol["grouped_by"] = str(self.data.settings.group) if pairs.groups else "words"
        return Score(metrics, protocol, parts, by)

    def _score(self, model: EncoderDecoder, pairs: "Pairs", most: int) -> tuple[float, int]:
        device, total, count = next(model.parameters()).device, 0.0, 0
        for batch in self.scoring(pairs, AT_ONCE, most):
            total += float(nll(model, batch.to(device))[0])
            count += batch.count
        return total, count

    def answers(self, model: EncoderDecoder, sources: list[Any], how: Search, **rules: Any) -> list[str]:
        """The best answer to each source, which are ids without their edge; a grammar may be told."""
        ids = [[*source.tolist(), self.data.vocab[0] - 1] for source in sources]
        found = Finder(model).search_all(ids, how, never=unwritten(self.data.tokenizers.target), **rules)
        return [self.data.tokenizers.decode_target(best[0].tokens) if best else "" for best in found]

    def measured(self, answers: list[str], pairs: "Pairs") -> tuple[dict[str, float], dict[str, Any]]:
        """The metrics of these answers to the first sources of a split, and how they were counted."""
        references = pairs.references[: len(answers)]
        found = {
            "exact_match": generation.exact_match(answers, references),
            "rouge_l": generation.rouge_l(answers, references),
        }
        if self.task.metric == "answer_f1":
            found["answer_f1"] = generation.answer_f1(answers, references)
            found["answer_exact"] = generation.answer_exact(answers, references)
        if self.task.metric == "bracket_f1":
            trees = generation.bracket_f1(answers, [each[0] for each in references])
            found |= {"bracket_f1": trees.f1, "valid_trees": trees.valid}
        if not generation.available():
            return found, {"bleu": "not counted (pip install 'harken[text]')"}
        bleu, chrf = (
            generation.bleu(answers, references, tokenize=self.task.bleu_tokenizer),
            generation.chrf(answers, references),
        )
        return {"bleu": bleu.score, "chrf": chrf.score, **found}, {"signature": bleu.signature}

    def _parts(self, answers: list[str], pairs: "Pairs", by: str) -> dict[str, dict[str, float]]:
        """The metric of each group of these sources: by data.group, else by their length."""
        column, groups = self.data.settings.group, pairs.groups[: len(answers)]
        found = by_column(str(column), groups) if groups else by_words(pairs.sources[: len(answers)])
        parts: dict[str, dict[str, float]] = {}
        for group in found if len(found) > 1 else ():
            texts = [answers[n] for n in group.rows], [pairs.references[n] for n in group.rows]
            score = (
                generation.bleu(*texts, tokenize=self.task.bleu_tokenizer).score
                if by == "bleu"
                else MEASURES[by](*texts)
            )
            place = {} if group.at is None else {"at": group.at}
            parts[group.name] = {by: score, "pairs": len(group.rows), **place}
        return parts

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the source itself, its first sentence, and the target that was seen most often."""
        pairs = self.data.splits[split]
        sources = pairs.sources[: self.task.eval_pairs or None]
        free = {"copy of the source": sources}
        if (first := generation.lead_1(sources)) != free["copy of the source"]:
            free["first sentence"] = first
        if self.data.learned:
            known, by = self.data.train.target, self.data.tokenizers
            seen = (by.decode_target(known[n]) for n in range(min(len(known), BASELINE_PAIRS)))
            free["most frequent target"] = generation.most_frequent(seen, len(sources))
        return {name: self.measured(answers, pairs)[0] for name, answers in free.items()}


def _held_within(data: "PairData", most: int) -> tuple["PairData", dict[str, int]]:
    """The data with held-out sentences of no more tokens than this, and how many of each split were cut."""
    long = {s: sum(int((side.lengths > most).sum()) for side in (p.source, p.target)) for s, p in data.splits.items()}
    if not any(long.values()):
        return data, {}
    splits = {s: replace(p, source=p.source.cut(most), target=p.target.cut(most)) for s, p in data.splits.items()}
    # where what was learned from is gone, a split stands in for it
    return replace(data, splits=splits, train=data.train if data.learned else next(iter(splits.values()))), long


def ruled(grammar: str, tokenizer: Any, texts: Sequence[str] = ()) -> dict[str, Any]:
    """What a search is told of a grammar and of these sources."""
    if grammar == "none":
        return {}
    if not isinstance(tokenizer, Symbols):
        way = "set data.target_tokenizer=symbol, or task.grammar=none"
        raise BadSetting(
            f"task.grammar={grammar}: needs a token for each bracket, and targets are {tokenizer.kind}; {way}"
        )
    return {"grammar": Trees(tuple(tokenizer.words(range(tokenizer.vocab)))), "words": [len(t.split()) for t in texts]}


def unwritten(tokenizer: Any) -> list[int]:
    """The ids that no answer has: marks, and the end of a line."""
    return sorted({*tokenizer.marks, newline(tokenizer)} - {*tokenizer.begin})
