"""Answers of an encoder-decoder, all sources of a batch at once: the likeliest by beam search, or drawn by chance.

A beam of 1 is greedy. A beam follows its survivors by reordering the memory; the source was read once, for all beams of
it. Sources that are done leave the batch. Every row is the same alone and among others. On a GPU a batch of a size seen
before is played from recordings: there all that changes from step to step is a tensor that stays where it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat, takewhile
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from harken.errors import BadInput, refuse_unknown
from harken.models import EncoderDecoder

from .counter_rng import seeds
from .cuda_graph import Played, footing, watched
from .grammar import Grammar
from .sampling import Choice

AT_ONCE = {"cpu": 4096, "cuda": 65_536}  # tokens of all texts of the sources that are searched together
LEAVE = 0.25  # share of the sources that are done before the batch is made smaller
AHEAD = 8  # recorded steps played before it is read who is done
ROUND = 16  # on a GPU sources and answers have room for a multiple of so many tokens, so that few sizes are recorded
SIZES = 64  # of batches that are remembered
KEPT = 2**19  # tokens of all texts whose recordings are kept
FAR = 10**9  # tokens: no bound
WIDEST = 1024  # a beam; all its texts are scored at once


@dataclass(frozen=True)
class Search:
    """How answers are looked for. `longest` is the most tokens of an answer; none: twice the source's and ten.

    With a temperature each of the `beam` texts of a source is drawn by itself; without, they are the likeliest.
    """

    beam: int = 4
    length_penalty: float = 1.0  # the score is the sum of ln p / length^this: 0 likes short answers, 1 is fair
    alternatives: int = 1
    no_repeat: int = 0  # no run of so many tokens twice; 0: as it comes
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"beam": 1, "alternatives": 1, "no_repeat": 0, "seed": None}
        for name, low in (least if self.max_new_tokens is None else {**least, "max_new_tokens": 1}).items():
            value = getattr(self, name)
            if not isinstance(value, Integral) or isinstance(value, bool) or (low is not None and value < low):
                raise BadInput(
                    f"{name}={value!r}: a whole number{'' if low is None else f' of {low} or more'} is accepted"
                )
        if self.beam > WIDEST:
            raise BadInput(f"beam={self.beam}: at most {WIDEST:,} texts are followed at a time; 4 to 10 are usual")
        if self.alternatives > self.beam:
            raise BadInput(f"alternatives={self.alternatives}: a beam of {self.beam} holds no more; take a larger beam")
        if not (isinstance(penalty := self.length_penalty, Real) and 0 <= penalty <= 10):
            raise BadInput(f"length_penalty={penalty!r}: between 0 and 10 is accepted; 1 is fair to all lengths")
        if not self.choice.temperature and (self.top_k or self.top_p):
            raise BadInput("top_k and top_p narrow what is drawn by chance; give a temperature with them, such as 0.8")

    @property
    def choice(self) -> Choice:
        return Choice(self.temperature, self.top_k, self.top_p)

    @classmethod
    def of(cls, given: Mapping[str, Any], *others: str, beam: int = 0) -> "Search":
        """A search by these names; one that is none is refused, but for others of the caller's. beam: its usual."""
        refuse_unknown(given, [*(field.name for field in fields(cls)), *others])
        wide, usual = given.get("alternatives"), 1 if given.get("temperature") else beam or cls.beam
        return cls(**{"beam": max(usual, wide) if isinstance(wide, int) else usual, **given})


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer without its edges, and its score."""

    tokens: list[int]
    score: float


class Finder:
    """A model that answers sources. What is recorded for one batch is there for the next of its size."""

    def __init__(self, model: EncoderDecoder) -> None:
        self.model, self.weights = model, tuple[Any, ...]()
        self.sizes: dict[Size, Beams | None] = {}  # None: it came once

    @torch.inference_mode()
    def search(
        self,
        sources: Sequence[Sequence[int]],
        how: Search,
        *,
        never: Sequence[int] = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
        grammar: Grammar | None = None,
        words: Sequence[int] | None = None,
    ) -> list[list[Answer]]:
        """The best answers to each source, best first. `prefixes` are the tokens each answer must begin with; `numbers`
        tell the sources apart where chance is asked; `words` is how many each answer has, if there is a grammar."""
        if not sources:
            return []
        begun = [list(p) for p in prefixes or ()]
        most = self._room(sources, how, begun)
        wide, far = max(map(len, sources)), max(most)
        playable = self._playable() and not how.no_repeat
        if playable:  # no longer than the model reads, which has a memory of so many places
            wide, far = (min(-(-n // ROUND) * ROUND, self.model.context or FAR) for n in (wide, far))
        size = Size(len(sources), wide, far, how, tuple(never), bool(begun), grammar)
        beams = self._kept(size) if playable else Beams(self.model, size, self.device, playable=False)
        return beams.find(sources, most, begun, numbers or range(len(sources)), words)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _room(self, sources: Sequence[Sequence[int]], how: Search, begun: Sequence[Sequence[int]]) -> list[int]:
        """Most tokens of each answer, its edge with them; a beginning that leaves none of it is refused."""
        if begun and len(begun) != len(sources):
            raise BadInput(f"{len(begun)} beginnings for {len(sources)} sources: one for each is needed")
        most = min(how.max_new_tokens or FAR, self.model.context or FAR)
        if (long := max(map(len, begun), default=0)) >= most:
            raise BadInput(f"a beginning of {long} tokens: an answer has at most {most}, its end with them; shorten it")
        least = map(len, begun) if begun else repeat(0)
        free = (2 * len(source) + 10 if how.max_new_tokens is None else most for source in sources)
        return [min(most, max(n, there + 1)) for n, there in zip(free, least, strict=False)]

    def _playable(self) -> bool:
        """On a GPU, unless somebody looks at the weights, or they are held in parts."""
        whole = not hasattr(next(self.model.parameters()), "full_tensor")
        return self.device.type == "cuda" and whole and not watched(self.model)

    def _kept(self, size: "Size") -> "Beams":
        """From the second time on those that are recorded: a size that never comes again is not worth it."""
        if self.weights != (now := footing(self.model)):
            self.weights, self.sizes = now, {}
        again = size in self.sizes
        beams = self.sizes.pop(size, None) or Beams(self.model, size, self.device, playable=again)
        self.sizes[size] = beams if again else None
        while len(self.sizes) > SIZES or sum(s.tokens for s, b in self.sizes.items() if b) > max(KEPT, size.tokens):
            self.sizes.pop(next(iter(self.sizes)))
        return beams

    def search_all(
        self,
        sources: Sequence[Sequence[int]],
        how: Search,
        *,
        never: Sequence[int] = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        numbers: Sequence[int] | None = None,
        grammar: Grammar | None = None,
        words: Sequence[int] | None = None,
    ) -> list[list[Answer]]:
        """The same for many sources: the short ones together and the long ones, in their own order again at the end."""
        numbers = numbers or range(len(sources))
        order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
        found: dict[int, list[Answer]] = {}
        budget = AT_ONCE[self.device.type] // how.beam
        while order:
            fits = takewhile(lambda row: row[0] * len(sources[row[1]]) <= budget, enumerate(order, 1))
            rows = max(1, sum(1 for _ in fits))
            some, order = order[:rows], order[rows:]
            begun = [prefixes[n] for n in some] if prefixes else None
            own = [numbers[n] for n in some]
            have = [words[n] for n in some] if words else None
            asked: dict[str, Any] = {"prefixes": begun, "numbers": own, "grammar": grammar, "words": have}
            answers = self.search([sources[n] for n in some], how, never=never, **asked)
            found |= dict(zip(some, answers, strict=True))
        return [found[n] for n in range(len(sources))]


@dataclass(frozen=True)
class Size:
    """Of a batch: what recordings are kept by."""

    B: int
    Ls: int  # tokens of a source
    C: int  # tokens of an answer, its edge with them
    how: Search
    never: tuple[int, ...]
    forced: bool  # answers must begin with some tokens
    grammar: Grammar | None

    @property
    def tokens(self) -> int:
        return self.B * self.how.beam * self.C


class Beams:
    """B sources, K texts each: those that are written on, and the best that have come to their end."""

    def __init__(self, model: EncoderDecoder, size: Size, device: torch.device, *, playable: bool) -> None:
        B, K, C = size.B, size.how.beam, size.C
        self.model, self.how, self.C, self.playable = model, size.how, C, playable
        self.source = torch.zeros((B, size.Ls), dtype=torch.long, device=device)
        self.lengths, self.most, self.place, self.words = (torch.zeros_like(self.source[:, 0]) for _ in range(4))
        self.forced = torch.zeros((B, C if size.forced else 0), dtype=torch.long, device=device)
        self.seeds = torch.zeros(B * K, dtype=torch.long, device=device)
        self.texts = torch.zeros((B, K, C + 1), dtype=torch.long, device=device)
        self.score, self.value = torch.zeros((2, B, K), device=device)
        self.ended, self.done = self.texts.clone(), torch.zeros(B, dtype=torch.bool, device=device)
        self.never = torch.tensor(size.never, dtype=torch.long, device=device)
        self.rule = size.grammar.rule(device) if size.grammar else None
        self.t = torch.zeros(1, dtype=torch.long, device=device)
        self.n = 0  # the same, known without asking the device
        self.read, self.one = Played(self._read), Played(self._step)
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def find(
        self,
        sources: Sequence[Sequence[int]],
        most: Sequence[int],
        prefixes: Sequence[Sequence[int]],
        numbers: Sequence[int],
        words: Sequence[int] | None,
    ) -> list[list[Answer]]:
        """The answers to these sources."""
        self.source.copy_(_rows(sources, self.source.shape[1], self.model.source_vocab - 1))
        self.lengths.copy_(torch.tensor([len(s) for s in sources]))
        self.most.copy_(torch.tensor(most))
        self.place.copy_(torch.arange(len(sources)))
        if words:
            self.words.copy_(torch.tensor(words))
        if prefixes:
            self.forced.copy_(_rows(prefixes, self.C, -1))
        if self.how.temperature:
            self.seeds.copy_(torch.cat([seeds(self.how.seed, n, self.how.beam) for n in numbers]))
        self.texts.fill_(self.model.edge)
        self.ended.fill_(self.model.edge)
        self.value.fill_(-torch.inf)
        self.score.fill_(0.0 if self.how.temperature else -torch.inf)
        self.score[:, 0] = 0  # all texts begin alike: of those that are not drawn, one alone counts
        self.done.fill_(False)
        self.t.fill_(0)
        self.n, self.found = 0, {}
        self.read(self.playable)
        if self.playable and not self.read.graph:  # done once, so that its kernels are chosen: it can be recorded
            self.read()
        while not self._over():
            for _ in range(min(AHEAD, self.C - self.n) if self.read.graph else 1):
                self.one(self.read.graph is not None)
                self.n += 1
        return [self._of(*self.found[n]) for n in range(len(sources))]

    def _read(self) -> None:
        self.memory = self.model.memory(len(self.texts) * self.how.beam, self.C, self.source, self.lengths)

    def _over(self) -> bool:
        """Whether all are done; those that are leave the batch when there are enough of them."""
        done, rows = int(self.done.sum()), len(self.done)  # counted: a GPU's mean of all ones may be just below 1
        if done == rows or (done >= LEAVE * rows and not self.playable):
            self._leave()
        return len(self.found) == len(self.source)

    def _leave(self) -> None:
        for row in self.done.nonzero()[:, 0].tolist():
            self.found[int(self.place[row])] = self.ended[row], self.value[row]
        stay = (~self.done).nonzero()[:, 0]
        if len(stay):
            for name in ("place", "texts", "score", "ended", "value", "done", "forced", "most", "words"):
                setattr(self, name, getattr(self, name)[stay])
            self.seeds = self.seeds.view(-1, self.how.beam)[stay].flatten()
            self.memory = self.memory.select(stay)

    # --- a step -------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Write one token more to each text; those that end are put aside."""
        last = self.texts.index_select(2, self.t).flatten(0, 1)
        # what is not yet written need not be looked at; a recording looks at all of it, and it is hidden
        memory = self.memory.upto(self.C if self.playable else self.n + 1)
        logits = self.model.scores(last, pos=self.t, memory=memory)[:, -1].float()
        total = logits.logsumexp(-1, keepdim=True)
        narrow = self._narrow(logits)
        score, beam, token = self._drawn(narrow, total) if self.how.temperature else self._best(narrow, total)
        K, ends = self.how.beam, token == self.model.edge
        self.t += 1
        # an end must be among the K best; behind what is written a text is all edges
        self._keep(_pick(self.texts, beam[:, :K]), score.masked_fill(~ends, -torch.inf)[:, :K])
        score = score.masked_fill(ends, -torch.inf)
        if score.shape[1] > K:
            score, order = score.topk(K, -1)
            beam, token = beam.gather(1, order), token.gather(1, order)
        self._go_on(beam, token, score)

    def _best(self, logits: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The 2 K best ways to go on, of all texts of a source: their scores, the text and its new token; B 2K each."""
        B, K = self.score.shape
        many = min(2 * K, logits.shape[-1])
        best = logits.topk(many, -1)  # of each text: B*K 2K
        ways = (self.score[..., None] + self._gain(best.values - total).view(B, K, -1)).flatten(1)
        score, pick = ways.topk(2 * K, -1)
        return score, pick // many, best.indices.view(B, -1).gather(1, pick)

    def _drawn(self, logits: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for texts that go on by chance, each by itself: B K each."""
        B, K = self.score.shape
        token = self.how.choice.draw(logits, self.seeds, self.t)[:, None]
        score = self.score + self._gain(logits.gather(1, token) - total).view(B, K)
        return score, torch.arange(K, device=token.device).expand(B, K), token.view(B, K)

    def _gain(self, logs: Tensor) -> Tensor:
        """What a new token adds to a text's score; what is forced costs nothing."""
        must = self._must()
        return logs if must is None else logs.masked_fill((must >= 0) & logs.isfinite(), 0)

    def _must(self) -> Tensor | None:
        """The token each text must have now, -1 for any: B*K 1."""
        if not self.forced.shape[1]:
            return None
        return self.forced.index_select(1, self.t).repeat_interleave(self.how.beam, 0)

    def _narrow(self, logits: Tensor) -> Tensor:
        """The scores, in place, with what may not come at -inf."""
        must = self._must()
        given = None if must is None else logits.gather(1, must.clamp_min(0))
        logits.index_fill_(-1, self.never, -torch.inf)
        if self.how.no_repeat:
            logits = self._unrepeated(logits)
        if self.rule:
            words, room = (each.repeat_interleave(self.how.beam) for each in (self.words, self.most - self.t))
            logits = logits.masked_fill(~self.rule(self.texts.flatten(0, 1), words, room), -torch.inf)
        if must is not None and given is not None:  # what was asked for stands above what may not come
            others = torch.arange(logits.shape[-1], device=logits.device) != must
            logits = torch.where(must < 0, logits, torch.where(others, -torch.inf, given))
        return logits

    def _unrepeated(self, logits: Tensor) -> Tensor:
        """Without tokens that would write a run of n again."""
        n, texts = self.how.no_repeat, self.texts.flatten(0, 1)[:, 1 : self.n + 1]
        if texts.shape[1] < n:
            return logits
        runs = texts.unfold(1, n, 1)  # B*K, runs, n
        again = (runs[:, :, :-1] == texts[:, None, texts.shape[1] - n + 1 :]).all(-1)
        banned = torch.where(again, runs[:, :, -1], self.model.edge)
        return logits.scatter(1, banned, torch.where(banned == self.model.edge, logits.gather(1, banned), -torch.inf))

    def _keep(self, texts: Tensor, score: Tensor) -> None:
        """Put texts aside that have come to their end (those above -inf), if they are better than what is there."""
        value = self._fair(score).masked_fill(self.done[:, None], -torch.inf)
        best, order = torch.cat([self.value, value], 1).topk(self.how.beam, -1)
        self.value.copy_(best)
        self.ended.copy_(_pick(torch.cat([self.ended, texts], 1), order))

    def _fair(self, score: Tensor) -> Tensor:
        """A sum of ln p as answers of different lengths are compared by."""
        return score / self.t**self.how.length_penalty

    def _go_on(self, beam: Tensor, token: Tensor, score: Tensor) -> None:
        B, K = beam.shape
        if K > 1 and not self.how.temperature:
            rows = (torch.arange(B, device=beam.device)[:, None] * K + beam).flatten()
            self.memory.reorder(rows, self.C if self.playable else self.n + 1)
            self.texts.copy_(_pick(self.texts, beam))
        self.score.copy_(score)
        self.texts.index_copy_(2, self.t, token[..., None])
        full = self.t >= self.most
        self._keep(self.texts, score.masked_fill(~full[:, None], -torch.inf))  # what has no room left ends as it is
        best, worst = score.amax(1), self.value[:, -1]
        over = full | (best == -torch.inf)
        if not self.how.temperature:
            over |= (worst > -torch.inf) & ((worst >= self._fair(best)) | (K == 1))
        self.done |= over

    def _of(self, texts: Tensor, values: Tensor) -> list[Answer]:
        made = []
        for text, value in zip(texts.tolist(), values.tolist(), strict=True):
            if value > float("-inf"):
                ids = text[1:]
                made.append(Answer(ids[: ids.index(self.model.edge)] if self.model.edge in ids else ids, value))
        return made[: self.how.alternatives]


def _rows(lists: Sequence[Sequence[int]], wide: int, rest: int) -> Tensor:
    """Lists as rows of one width, filled up with `rest`."""
    return torch.tensor([[*ids, *[rest] * (wide - len(ids))] for ids in lists])


def _pick(texts: Tensor, beam: Tensor) -> Tensor:  # B K C, B n -> B n C
    return texts.gather(1, beam[..., None].expand(-1, -1, texts.shape[-1]))
