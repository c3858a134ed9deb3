"""Targets of an encoder-decoder for a batch of sources: the most likely ones by beam search, or sampled ones.

A beam of 1 is greedy search. Surviving beams reorder the memory; each source is encoded once for all its beams.
Finished sources leave the batch. A row does not depend on the rest of its batch. On a GPU a batch size that recurs is
replayed from CUDA graphs: there all state that changes from step to step is in tensors with fixed addresses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat, takewhile
from numbers import Integral, Real
from typing import Any, Unpack

import torch
from torch import Tensor

from harken.core import is_watched
from harken.errors import BadInput
from harken.models import EncoderDecoder
from harken.suggestions import reject_unknown_options

from .best_tokens import largest, log_softmax
from .counter_rng import row_seeds
from .cuda_graph import CapturedGraph, weights_key
from .grammar import Grammar, TargetOptions
from .sampling import SamplingSettings

BATCH_TOKENS = {"cpu": 16_384, "cuda": 65_536}  # tokens of all beams of the sources that are searched together
COMPACT_FRACTION = 0.25  # finished fraction of the sources at which the batch is compacted
STEPS_PER_CHECK = 8  # captured steps replayed before the finished flags are read
LENGTH_MULTIPLE = 16  # on a GPU lengths of sources and targets are rounded up, so that few sizes are captured
MAX_SIZES = 64  # batch sizes that are remembered
MAX_CAPTURED_TOKENS = 2**19  # tokens of all beams of the captured sizes
NO_LIMIT = 10**9  # tokens
MAX_BEAM = 1024


@dataclass(frozen=True)
class SearchSettings(SamplingSettings):
    """Settings of a search. Without `max_new_tokens` a target has at most twice the tokens of its source plus ten.

    With a temperature the `beam` targets of a source are sampled independently; without, they are the most likely ones.
    """

    beam: int = 4
    length_penalty: float = 1.0  # the score is the sum of ln p / length^penalty: 0 prefers short targets
    alternatives: int = 1
    no_repeat: int = 0  # no n-gram of this size occurs twice; 0: no restriction
    max_new_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        minima = {"beam": 1, "alternatives": 1, "no_repeat": 0, "seed": None}
        for name, minimum in (minima if self.max_new_tokens is None else {**minima, "max_new_tokens": 1}).items():
            value = getattr(self, name)
            too_small = minimum is not None and isinstance(value, Integral) and value < minimum
            if not isinstance(value, Integral) or isinstance(value, bool) or too_small:
                raise BadInput(f"{name}={value!r}: must be an integer{'' if minimum is None else f' ≥ {minimum}'}")
        if self.beam > MAX_BEAM:
            raise BadInput(f"beam={self.beam}: must be ≤ {MAX_BEAM:,}; 4 to 10 are usual")
        if self.alternatives > self.beam:
            raise BadInput(f"alternatives={self.alternatives}: must be ≤ beam={self.beam}; increase the beam")
        if not (isinstance(penalty := self.length_penalty, Real) and 0 <= penalty <= 10):
            raise BadInput(f"length_penalty={penalty!r}: must be between 0 and 10; 1 divides by the length")
        super().__post_init__()
        if not self.temperature and (self.top_k or self.top_p):
            raise BadInput("top_k and top_p apply to sampling only; set a temperature, such as 0.8")

    @classmethod
    def from_options(cls, options: Mapping[str, object], *extra: str, beam: int = 0) -> "SearchSettings":
        """The settings with these options; a name that is unknown and not in `extra` raises BadInput. beam: default."""
        reject_unknown_options(options, [*(field.name for field in fields(cls)), *extra])
        alternatives, default = options.get("alternatives"), 1 if options.get("temperature") else beam or cls.beam
        width = max(default, alternatives) if isinstance(alternatives, int) else default
        return cls(**{"beam": width, **options})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Hypothesis:
    """The tokens of a target without its edge marks, and its score."""

    tokens: list[int]
    score: float


class BeamSearch:
    """Searches targets with a model. Captured graphs of a batch size are reused by later batches of this size."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model, self.weights = model, tuple[object, ...]()
        self.batches: dict[SearchKey, BeamBatch | None] = {}  # None: this size occurred once

    @torch.inference_mode()
    def search(
        self, sources: Sequence[Sequence[int]], settings: SearchSettings, **options: Unpack[TargetOptions]
    ) -> list[list[Hypothesis]]:
        """The best targets of each source, best first."""
        if not sources:
            return []
        prefixes = [list(p) for p in options.get("prefixes") or ()]
        max_lengths = self._max_lengths(sources, settings, prefixes)
        Ls, C = max(map(len, sources)), max(max_lengths)
        capturable = self._capturable() and not settings.no_repeat
        if capturable:  # at most the model's context, which is the capacity of its memory
            limit = self.model.context or NO_LIMIT
            Ls, C = (min(-(-n // LENGTH_MULTIPLE) * LENGTH_MULTIPLE, limit) for n in (Ls, C))
        banned_ids = tuple(options.get("banned_ids", ()))
        key = SearchKey(len(sources), Ls, C, settings, banned_ids, bool(prefixes), options.get("grammar"))
        batch = self._cached(key) if capturable else BeamBatch(self.model, key, self.device, capturable=False)
        indices = options.get("indices") or range(len(sources))
        return batch.search(sources, max_lengths, prefixes, indices, options.get("n_words"))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _max_lengths(
        self, sources: Sequence[Sequence[int]], settings: SearchSettings, prefixes: Sequence[Sequence[int]]
    ) -> list[int]:
        """Maximum number of tokens of each target including its edge; a prefix must leave room for one more token."""
        if prefixes and len(prefixes) != len(sources):
            raise BadInput(f"{len(prefixes)} prefixes for {len(sources)} sources: give one prefix per source")
        limit = min(settings.max_new_tokens or NO_LIMIT, self.model.context or NO_LIMIT)
        if (longest := max(map(len, prefixes), default=0)) >= limit:
            raise BadInput(f"the prefix has {longest} tokens: must be < {limit}, the maximum of a target; shorten it")
        lengths = map(len, prefixes) if prefixes else repeat(0)
        defaults = (2 * len(source) + 10 if settings.max_new_tokens is None else limit for source in sources)
        return [min(limit, max(default, length + 1)) for default, length in zip(defaults, lengths, strict=False)]

    def _capturable(self) -> bool:
        """Whether steps can be captured: on a GPU, without a trace, with unsharded weights."""
        sharded = hasattr(next(self.model.parameters()), "full_tensor")  # a DTensor
        return self.device.type == "cuda" and not sharded and not is_watched(self.model)

    def _cached(self, key: "SearchKey") -> "BeamBatch":
        """The batch of this size; it is captured from its second occurrence on."""
        if self.weights != (weights := weights_key(self.model)):
            self.weights, self.batches = weights, {}
        recurs = key in self.batches
        batch = self.batches.pop(key, None) or BeamBatch(self.model, key, self.device, capturable=recurs)
        self.batches[key] = batch if recurs else None
        limit = max(MAX_CAPTURED_TOKENS, key.n_tokens)
        while len(self.batches) > MAX_SIZES or sum(k.n_tokens for k, b in self.batches.items() if b) > limit:
            self.batches.pop(next(iter(self.batches)))
        return batch

    def search_all(
        self, sources: Sequence[Sequence[int]], settings: SearchSettings, **options: Unpack[TargetOptions]
    ) -> list[list[Hypothesis]]:
        """Like `search`, for any number of sources: batches of sources of similar length; the order is kept."""
        per_source: dict[str, Any] = {"indices": options.get("indices") or range(len(sources))}
        per_source |= {name: options.get(name) for name in ("prefixes", "n_words")}
        order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
        hypotheses: dict[int, list[Hypothesis]] = {}
        budget = BATCH_TOKENS[self.device.type] // settings.beam
        while order:
            fits = takewhile(lambda row: row[0] * len(sources[row[1]]) <= budget, enumerate(order, 1))
            size = max(1, sum(1 for _ in fits))
            rows, order = order[:size], order[size:]
            subset: dict[str, Any] = {name: [x[n] for n in rows] if x else None for name, x in per_source.items()}
            batch = self.search([sources[n] for n in rows], settings, **{**options, **subset})
            hypotheses |= dict(zip(rows, batch, strict=True))
        return [hypotheses[n] for n in range(len(sources))]


@dataclass(frozen=True)
class SearchKey:
    """Sizes and settings of a batch: the cache key of its graphs."""

    B: int
    Ls: int  # tokens of a source
    C: int  # tokens of a target including its edge
    settings: SearchSettings
    banned_ids: tuple[int, ...]
    prefixed: bool
    grammar: Grammar | None

    @property
    def n_tokens(self) -> int:
        return self.B * self.settings.beam * self.C


class BeamBatch:
    """B sources with K beams each: the running texts, and the best finished ones."""

    def __init__(self, model: EncoderDecoder, key: SearchKey, device: torch.device, *, capturable: bool) -> None:
        B, K, C = key.B, key.settings.beam, key.C
        self.model, self.settings, self.C, self.capturable = model, key.settings, C, capturable
        self.source = torch.zeros((B, key.Ls), dtype=torch.long, device=device)
        self.lengths, self.max_lengths, self.row, self.n_words = (torch.zeros_like(self.source[:, 0]) for _ in range(4))
        self.prefix = torch.zeros((B, C if key.prefixed else 0), dtype=torch.long, device=device)
        self.seeds = torch.zeros(B * K, dtype=torch.long, device=device)
        self.texts = torch.zeros((B, K, C + 1), dtype=torch.long, device=device)
        self.score, self.finished_score = torch.zeros((2, B, K), device=device)
        self.finished, self.done = self.texts.clone(), torch.zeros(B, dtype=torch.bool, device=device)
        self.banned_ids = torch.tensor(key.banned_ids, dtype=torch.long, device=device)
        self.allowed_tokens = key.grammar.allowed_tokens(device) if key.grammar else None
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.n_steps = 0  # equal to t, without reading from the device
        self.encode, self.step = CapturedGraph(self._encode), CapturedGraph(self._step)
        self.outputs: dict[int, tuple[Tensor, Tensor]] = {}

    def search(
        self,
        sources: Sequence[Sequence[int]],
        max_lengths: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        indices: Sequence[int],
        n_words: Sequence[int] | None,
    ) -> list[list[Hypothesis]]:
        """The targets of these sources."""
        self.source.copy_(_padded(sources, self.source.shape[1], self.model.source_vocab - 1))
        self.lengths.copy_(torch.tensor([len(s) for s in sources]))
        self.max_lengths.copy_(torch.tensor(max_lengths))
        self.row.copy_(torch.arange(len(sources)))
        if n_words:
            self.n_words.copy_(torch.tensor(n_words))
        if prefixes:
            self.prefix.copy_(_padded(prefixes, self.C, -1))
        if self.settings.temperature:
            self.seeds.copy_(torch.cat([row_seeds(self.settings.seed, n, self.settings.beam) for n in indices]))
        self.texts.fill_(self.model.edge)
        self.finished.fill_(self.model.edge)
        self.finished_score.fill_(-torch.inf)
        self.score.fill_(0.0 if self.settings.temperature else -torch.inf)
        self.score[:, 0] = 0  # all beams start equal: without sampling only the first one counts
        self.done.fill_(False)
        self.t.fill_(0)
        self.n_steps, self.outputs = 0, {}
        self.encode(self.capturable)
        if self.capturable and not self.encode.graph:  # the first run selected the kernels: now it can be captured
            self.encode()
        while not self._all_done():
            for _ in range(min(STEPS_PER_CHECK, self.C - self.n_steps) if self.encode.graph else 1):
                self.step(self.encode.graph is not None)
                self.n_steps += 1
        return [self._hypotheses(*self.outputs[n]) for n in range(len(sources))]

    def _encode(self) -> None:
        self.memory = self.model.memory(len(self.texts) * self.settings.beam, self.C, self.source, self.lengths)

    def _all_done(self) -> bool:
        """Whether all sources are done; removes those that are, once they are enough."""
        done, rows = int(self.done.sum()), len(self.done)  # a sum: on a GPU the mean of ones may be just below 1
        if done == rows or (done >= COMPACT_FRACTION * rows and not self.capturable):
            self._remove_done()
        return len(self.outputs) == len(self.source)

    def _remove_done(self) -> None:
        for n in self.done.nonzero()[:, 0].tolist():
            self.outputs[int(self.row[n])] = self.finished[n], self.finished_score[n]
        rows = (~self.done).nonzero()[:, 0]
        if len(rows):
            per_source = ("row", "texts", "score", "finished", "finished_score", "done", "prefix")
            for name in (*per_source, "max_lengths", "n_words"):
                setattr(self, name, getattr(self, name)[rows])
            self.seeds = self.seeds.view(-1, self.settings.beam)[rows].flatten()
            self.memory = self.memory.select(rows)

    # --- one step -----------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Append one token to each text; texts that end become finished."""
        last = self.texts.index_select(2, self.t).flatten(0, 1)
        # unwritten slots are masked: a captured step reads all slots, an eager one only those that are written
        memory = self.memory.prefix(self.C if self.capturable else self.n_steps + 1)
        logits = self.model.scores(last, pos=self.t, memory=memory)[:, -1].float()
        log_p = self._masked(log_softmax(logits))
        score, beam, token = self._sampled(log_p) if self.settings.temperature else self._best(log_p)
        K, ends = self.settings.beam, token == self.model.edge
        self.t += 1
        # an end counts among the K best only; a text is filled with edge marks after its last token
        self._finish(_pick(self.texts, beam[:, :K]), score.masked_fill(~ends, -torch.inf)[:, :K])
        score = score.masked_fill(ends, -torch.inf)
        if score.shape[1] > K:
            score, order = score.topk(K, -1)
            beam, token = beam.gather(1, order), token.gather(1, order)
        self._extend(beam, token, score)

    def _best(self, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 K best extensions of all beams of a source: score, beam and token, B 2K each."""
        B, K = self.score.shape
        n_best = min(2 * K, log_p.shape[-1])
        values, tokens = largest(log_p, n_best)  # per beam: B*K 2K
        scores = (self.score[..., None] + self._gain(values).view(B, K, -1)).flatten(1)
        score, pick = scores.topk(2 * K, -1)
        return score, pick // n_best, tokens.view(B, -1).gather(1, pick)

    def _sampled(self, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One sampled extension of each beam: score, beam and token, B K each."""
        B, K = self.score.shape
        token = self.settings.sample(log_p, self.seeds, self.t)[:, None]
        score = self.score + self._gain(log_p.gather(1, token)).view(B, K)
        return score, torch.arange(K, device=token.device).expand(B, K), token.view(B, K)

    def _gain(self, logs: Tensor) -> Tensor:
        """What a token adds to the score of its text: ln p, and 0 for a token of the prefix."""
        forced = self._forced()
        return logs if forced is None else logs.masked_fill((forced >= 0) & logs.isfinite(), 0)

    def _forced(self) -> Tensor | None:
        """The prefix token of this step, -1 for none: B*K 1."""
        if not self.prefix.shape[1]:
            return None
        return self.prefix.index_select(1, self.t).repeat_interleave(self.settings.beam, 0)

    def _masked(self, log_p: Tensor) -> Tensor:
        """ln p, modified in place, with all tokens that are not allowed at -inf."""
        forced = self._forced()
        forced_value = None if forced is None else log_p.gather(1, forced.clamp_min(0))
        log_p.index_fill_(-1, self.banned_ids, -torch.inf)
        if self.settings.no_repeat:
            log_p = self._without_repeats(log_p)
        if self.allowed_tokens:
            K = self.settings.beam
            n_words, n_left = (x.repeat_interleave(K) for x in (self.n_words, self.max_lengths - self.t))
            log_p = log_p.masked_fill(~self.allowed_tokens(self.texts.flatten(0, 1), n_words, n_left), -torch.inf)
        if forced is not None and forced_value is not None:  # the prefix takes precedence over all restrictions
            not_forced = torch.arange(log_p.shape[-1], device=log_p.device) != forced
            log_p = torch.where(forced < 0, log_p, torch.where(not_forced, -torch.inf, forced_value))
        return log_p

    def _without_repeats(self, log_p: Tensor) -> Tensor:
        """Ban the tokens that would complete an n-gram that the text already contains."""
        n, texts = self.settings.no_repeat, self.texts.flatten(0, 1)[:, 1 : self.n_steps + 1]
        if texts.shape[1] < n:
            return log_p
        ngrams = texts.unfold(1, n, 1)  # B*K n-grams n
        matches = (ngrams[:, :, :-1] == texts[:, None, texts.shape[1] - n + 1 :]).all(-1)
        banned = torch.where(matches, ngrams[:, :, -1], self.model.edge)
        return log_p.scatter(1, banned, torch.where(banned == self.model.edge, log_p.gather(1, banned), -torch.inf))

    def _finish(self, texts: Tensor, score: Tensor) -> None:
        """Add ended texts (those with a score above -inf) to the K best finished ones."""
        normalized = self._normalized(score).masked_fill(self.done[:, None], -torch.inf)
        best, order = torch.cat([self.finished_score, normalized], 1).topk(self.settings.beam, -1)
        self.finished_score.copy_(best)
        self.finished.copy_(_pick(torch.cat([self.finished, texts], 1), order))

    def _normalized(self, score: Tensor) -> Tensor:
        """The sum of ln p divided by length^penalty."""
        return score / self.t**self.settings.length_penalty

    def _extend(self, beam: Tensor, token: Tensor, score: Tensor) -> None:
        B, K = beam.shape
        if K > 1 and not self.settings.temperature:
            rows = (torch.arange(B, device=beam.device)[:, None] * K + beam).flatten()
            self.memory.reorder(rows, self.C if self.capturable else self.n_steps + 1)
            self.texts.copy_(_pick(self.texts, beam))
        self.score.copy_(score)
        self.texts.index_copy_(2, self.t, token[..., None])
        full = self.t >= self.max_lengths
        self._finish(self.texts, score.masked_fill(~full[:, None], -torch.inf))  # a text of maximum length ends here
        best, worst = score.amax(1), self.finished_score[:, -1]
        done = full | (best == -torch.inf)
        if not self.settings.temperature:
            done |= (worst > -torch.inf) & ((worst >= self._normalized(best)) | (K == 1))
        self.done |= done

    def _hypotheses(self, texts: Tensor, scores: Tensor) -> list[Hypothesis]:
        hypotheses = []
        for text, score in zip(texts.tolist(), scores.tolist(), strict=True):
            if score > float("-inf"):
                ids = text[1:]
                tokens = ids[: ids.index(self.model.edge)] if self.model.edge in ids else ids
                hypotheses.append(Hypothesis(tokens, score))
        return hypotheses[: self.settings.alternatives]


def _padded(lists: Sequence[Sequence[int]], width: int, fill: int) -> Tensor:
    return torch.tensor([[*ids, *[fill] * (width - len(ids))] for ids in lists])


def _pick(texts: Tensor, beam: Tensor) -> Tensor:  # B K C, B n -> B n C
    return texts.gather(1, beam[..., None].expand(-1, -1, texts.shape[-1]))
