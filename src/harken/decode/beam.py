"""The likeliest answers of an encoder-decoder: beam search, all sources of a batch at once.

A beam of 1 is greedy. A beam follows its survivors by reordering the memory; the source was read once, for all beams of
it. Sources that are done leave the batch. Every row is the same alone and among others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from harken.errors import BadInput, refuse_unknown
from harken.models import EncoderDecoder

AT_ONCE = 4096  # tokens of all texts of the sources that are searched together
LEAVE = 0.25  # share of the sources that are done before the batch is made smaller


@dataclass(frozen=True)
class Search:
    """How answers are looked for. `longest` is the most tokens of an answer; none: twice the source's and ten."""

    beam: int = 4
    length_penalty: float = 1.0  # the score is the sum of ln p / length^this: 0 likes short answers, 1 is fair
    alternatives: int = 1
    no_repeat: int = 0  # no run of so many tokens twice; 0: as it comes
    longest: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("beam", 1), ("alternatives", 1), ("no_repeat", 0)):
            if not isinstance(value := getattr(self, name), int) or value < least:
                raise BadInput(f"{name}={value!r}: a whole number of {least} or more is accepted")
        if self.alternatives > self.beam:
            raise BadInput(f"alternatives={self.alternatives}: a beam of {self.beam} holds no more; take a larger beam")
        if not 0 <= self.length_penalty <= 10:
            raise BadInput(
                f"length_penalty={self.length_penalty}: between 0 and 10 is accepted; 1 is fair to all lengths"
            )
        if self.longest is not None and self.longest < 1:
            raise BadInput(f"longest={self.longest}: an answer has at least 1 token")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Search":
        """A search by these names; one that is none is refused by its name."""
        refuse_unknown(given, [field.name for field in fields(cls)])
        wide = given.get("alternatives")
        return cls(**{"beam": max(cls.beam, wide) if isinstance(wide, int) else cls.beam, **given})


@dataclass(frozen=True)
class Answer:
    """The tokens of an answer without its edges, and its score."""

    tokens: list[int]
    score: float


@torch.inference_mode()
def search(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    how: Search,
    *,
    never: Sequence[int] = (),
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Answer]]:
    """The best answers to each source, best first. `prefixes` are the tokens each answer must begin with."""
    if not sources:
        return []
    device = next(model.parameters()).device
    lengths = torch.tensor([len(s) for s in sources], device=device)
    rows = torch.full((len(sources), int(lengths.max())), model.source_vocab - 1, device=device)
    for row, source in zip(rows, sources, strict=True):
        row[: len(source)] = torch.tensor(source, device=device)
    beams = Beams(model, rows, lengths, how, never, prefixes or [()] * len(sources))
    while not beams.over():
        beams.step()
    return beams.answers()


def search_all(
    model: EncoderDecoder, sources: Sequence[Sequence[int]], how: Search, *, never: Sequence[int] = ()
) -> list[list[Answer]]:
    """The same for many sources: the short ones together and the long ones, in their own order again at the end."""
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    found: dict[int, list[Answer]] = {}
    while order:
        fits = takewhile(lambda row: row[0] * how.beam * len(sources[row[1]]) <= AT_ONCE, enumerate(order, 1))
        rows = max(1, sum(1 for _ in fits))
        some, order = order[:rows], order[rows:]
        found |= dict(zip(some, search(model, [sources[n] for n in some], how, never=never), strict=True))
    return [found[n] for n in range(len(sources))]


class Beams:
    """B sources, K texts each: those that are written on, and the best that have come to their end."""

    def __init__(
        self,
        model: EncoderDecoder,
        source: Tensor,  # B Ls
        lengths: Tensor,
        how: Search,
        never: Sequence[int],
        prefixes: Sequence[Sequence[int]],
    ) -> None:
        B, K, device = len(source), how.beam, source.device
        self.model, self.how, self.t = model, how, 0
        own = 2 * lengths + 10 if how.longest is None else torch.full_like(lengths, how.longest)
        begun = torch.tensor([len(p) + 1 for p in prefixes], device=device)  # an answer goes on behind its prefix
        self.most = torch.maximum(own, begun).clamp(max=(model.context or 10**9))  # B: tokens, the edge with them
        C = int(self.most.max())
        self.memory = model.memory(B * K, C, source, lengths)
        self.place = torch.arange(B, device=device)  # which source each row is
        self.texts = torch.full((B, K, C + 1), model.edge, device=device)
        self.score = torch.full((B, K), -torch.inf, device=device)
        self.score[:, 0] = 0  # all texts begin alike: only one of them counts
        self.ended, self.value = self.texts.clone(), torch.full((B, K), -torch.inf, device=device)
        self.done = torch.zeros(B, dtype=torch.bool, device=device)
        self.never = torch.tensor(never, dtype=torch.long, device=device)
        longest = max(map(len, prefixes))
        self.forced = torch.full((B, longest), -1, device=device)
        for row, prefix in zip(self.forced, prefixes, strict=True):
            row[: len(prefix)] = torch.tensor(prefix, dtype=torch.long, device=device)
        self.found: dict[int, tuple[Tensor, Tensor]] = {}

    def over(self) -> bool:
        """Whether all are done; those that are leave the batch when there are enough of them."""
        share = float(self.done.float().mean())
        if share >= LEAVE or share == 1:
            self._leave()
        return not len(self.place)

    def _leave(self) -> None:
        for row in self.done.nonzero()[:, 0].tolist():
            self.found[int(self.place[row])] = self.ended[row], self.value[row]
        stay = (~self.done).nonzero()[:, 0]
        for name in ("place", "texts", "score", "ended", "value", "done", "forced", "most"):
            setattr(self, name, getattr(self, name)[stay])
        self.memory = self.memory.select(stay) if len(stay) else None

    # --- a step -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Write one token more: the 2 K best ways to go on, of which those that end are put aside."""
        B, K, t = len(self.place), self.how.beam, self.t
        last = self.texts[:, :, t].reshape(B * K, 1)
        place = torch.tensor([t], device=last.device)
        logits = self.model.scores(last, pos=place, memory=self.memory.upto(t + 1))[:, -1].float()
        total = logits.logsumexp(-1, keepdim=True)
        many = min(2 * K, logits.shape[-1])
        best = self._narrow(logits).topk(many, -1)  # of each text: B*K 2K
        logs = best.values - total
        if t < self.forced.shape[1]:  # what is forced costs nothing
            logs = logs.masked_fill((self.forced[:, t] >= 0).repeat_interleave(K)[:, None] & logs.isfinite(), 0)
        ways = (self.score[..., None] + logs.view(B, K, -1)).flatten(1)
        score, pick = ways.topk(2 * K, -1)
        beam, token = pick // many, best.indices.view(B, -1).gather(1, pick)
        self.t = t + 1
        ends = token == self.model.edge
        # an end must be among the K best; behind what is written a text is all edges
        self._keep(_pick(self.texts, beam[:, :K]), score.masked_fill(~ends, -torch.inf)[:, :K])
        score, order = score.masked_fill(ends, -torch.inf).topk(K, -1)
        self._go_on(beam.gather(1, order), token.gather(1, order), score)

    def _narrow(self, logits: Tensor) -> Tensor:
        """The scores, in place, with what may not come at -inf."""
        logits.index_fill_(-1, self.never, -torch.inf)
        if self.how.no_repeat:
            logits = self._unrepeated(logits)
        if self.t < self.forced.shape[1]:
            must = self.forced[:, self.t].repeat_interleave(self.how.beam)[:, None]  # B*K 1
            others = torch.arange(logits.shape[-1], device=logits.device) != must
            logits = torch.where((must >= 0) & others, -torch.inf, logits)
        return logits

    def _unrepeated(self, logits: Tensor) -> Tensor:
        """Without tokens that would write a run of n again."""
        n, texts = self.how.no_repeat, self.texts.flatten(0, 1)[:, 1 : self.t + 1]
        if texts.shape[1] < n:
            return logits
        runs = texts.unfold(1, n, 1)  # B*K, runs, n
        again = (runs[:, :, :-1] == texts[:, None, texts.shape[1] - n + 1 :]).all(-1)
        banned = torch.where(again, runs[:, :, -1], self.model.edge)
        return logits.scatter(1, banned, torch.where(banned == self.model.edge, logits.gather(1, banned), -torch.inf))

    def _keep(self, texts: Tensor, score: Tensor) -> None:
        """Put texts aside that have come to their end (those above -inf), if they are better than what is there."""
        value = (score / self.t**self.how.length_penalty).masked_fill(self.done[:, None], -torch.inf)
        self.value, order = torch.cat([self.value, value], 1).topk(self.how.beam, -1)
        self.ended = _pick(torch.cat([self.ended, texts], 1), order)

    def _go_on(self, beam: Tensor, token: Tensor, score: Tensor) -> None:
        B, K = beam.shape
        if K > 1:
            self.memory.reorder((torch.arange(B, device=beam.device)[:, None] * K + beam).flatten(), self.t)
        self.texts, self.score = _pick(self.texts, beam), score
        self.texts[:, :, self.t] = token
        full = self.t >= self.most
        self._keep(self.texts, score.masked_fill(~full[:, None], -torch.inf))  # what has no room left ends as it is
        worst, hope = self.value[:, -1], score[:, 0] / self.t**self.how.length_penalty
        self.done |= full | ((worst > -torch.inf) & ((worst >= hope) | (K == 1))) | (score[:, 0] == -torch.inf)

    def answers(self) -> list[list[Answer]]:
        return [self._of(*self.found[n]) for n in range(len(self.found))]

    def _of(self, texts: Tensor, values: Tensor) -> list[Answer]:
        made = []
        for text, value in zip(texts.tolist(), values.tolist(), strict=True):
            if value > float("-inf"):
                ids = text[1:]
                made.append(Answer(ids[: ids.index(self.model.edge)] if self.model.edge in ids else ids, value))
        return made[: self.how.alternatives]


def _pick(texts: Tensor, beam: Tensor) -> Tensor:  # B K C, B n -> B n C
    return texts.gather(1, beam[..., None].expand(-1, -1, texts.shape[-1]))
