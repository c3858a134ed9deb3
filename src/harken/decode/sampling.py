"""Text from a language model, one token at a time. The memory keeps what was read; each step reads one token more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from harken.errors import BadInput, refuse_unknown
from harken.models import LanguageModel

from .counter_rng import chance, seeds
from .cuda_graph import FEW, Desk, Opening, Steps, footing, playable, repeatable

Call = Callable[..., Tensor]
Desks = dict[tuple[int, int], Desk]  # by rows and capacity
DESKS = 4  # kept at most
PROMPT = 32  # tokens: on a GPU prompts are padded to a multiple
ROUND = 64  # a memory has room for a multiple of so many tokens
GUESSES = 2  # tokens read with the last one: on a CPU three rows of a product take as long as one
COLD = 1e-4  # below this temperature no other token has a chance, and scores divided by it overflow


@dataclass(frozen=True)
class Choice:
    """How the next token is drawn from the distribution. Its defaults are those of `generate` and of the verb."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        heat, k, p = self.temperature, self.top_k, self.top_p
        if not (isinstance(heat, Real) and 0 <= heat < float("inf")):
            raise BadInput(f"temperature={heat!r}: it is 0 (greedy) or more; 0.8 is a good start")
        if k is not None and not (isinstance(k, Integral) and k >= 1):
            raise BadInput(f"top_k={k!r}: at least 1 token must be left to choose from")
        if p is not None and not (isinstance(p, Real) and 0 < p <= 1):
            raise BadInput(f"top_p={p!r}: a share above 0 and up to 1, such as 0.9")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Choice":
        """A choice by these names; one that is none is refused by its name."""
        refuse_unknown(given, [field.name for field in fields(cls)])
        return cls(**given)

    def narrow(self, logits: Tensor) -> Tensor:
        """Scores with all but the likeliest tokens at -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, -1).values[..., -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = logits.sort(-1, descending=True)
            p = ordered.softmax(-1)
            beyond = p.cumsum(-1) - p >= self.top_p  # the token that crosses the line stays
            logits = logits.masked_fill(beyond.scatter(-1, index, beyond), -torch.inf)
        return logits

    def draw(self, logits: Tensor, seeds: Tensor, n: Tensor) -> Tensor:
        """The n-th token of each row: B. Each row has its own seed, so a row is the same alone and in a batch."""
        if self.temperature < COLD:
            return logits.argmax(-1)
        logits = self.narrow(logits.float() / self.temperature)
        # Gumbel's way, the same as drawing from softmax
        return (logits - (-chance(seeds, n, logits.shape[-1]).log()).log()).argmax(-1)


class Writer:
    """A model that writes texts. What is recorded for one is there for the next."""

    def __init__(self, model: LanguageModel, *, compiled: bool = False) -> None:
        self.model, self.desks, self.weights = model, Desks(), tuple[Any, ...]()
        self.call: Call = model.scores
        if compiled:  # products of one row are then sums that melt into their neighbours
            self.call = torch.compile(model.scores, dynamic=False, options={"coordinate_descent_tuning": True})

    @torch.inference_mode()
    def write(
        self,
        prompts: Sequence[Sequence[int]],
        tokens: int,
        choice: Choice,
        *,
        seed: int,
        index: int = 0,
        never: Sequence[int] = (),
    ) -> Iterator[Tensor]:
        """The tokens that follow the prompts, one (B) at a time, and none of `never`. Prompts may differ in length."""
        texts = [list(p) for p in prompts]
        if playable(self.model) and self.weights != (now := footing(self.model)):
            self.weights, self.desks = now, Desks()
        reader = Reader(self.model, texts, tokens, call=self.call, desks=self.desks)
        rows, out = seeds(seed, index, len(texts)).to(reader.device), torch.tensor(never, dtype=torch.long)
        drawn = Drawn(choice, tuple(never), out.to(reader.device))
        try:
            for chosen in reader.tokens(texts, tokens, rows, drawn):
                for text, token in zip(texts, chosen.tolist(), strict=True):
                    text.append(token)
                yield chosen
        finally:
            reader.leave()


@dataclass(frozen=True)
class Drawn:
    """A choice among all tokens but some."""

    choice: Choice
    never: tuple[int, ...]
    out: Tensor = field(compare=False)  # the same, where the scores are

    def __call__(self, logits: Tensor, seeds: Tensor, n: Tensor) -> Tensor:
        return self.choice.draw(logits.index_fill(-1, self.out, -torch.inf), seeds, n)


class Reader:
    """A model that has read some texts: the scores of what comes next, and the memory of what was."""

    def __init__(
        self,
        model: LanguageModel,
        texts: Sequence[Sequence[int]],
        more: int,
        *,
        call: Call | None = None,
        desks: Desks | None = None,
    ) -> None:
        self.model, self.device, self.more = model, next(model.parameters()).device, more
        self.call, self.desk = call or model.scores, Desk(None)
        self.desks = desks if playable(model) else None
        self.context = model.context
        self.starts = [0 if self.context is None else max(0, len(t) - self.context) for t in texts]
        self._begin(texts)

    def _begin(self, texts: Sequence[Sequence[int]]) -> None:
        """Read each text from its start at once, right-padded: what the padding writes lies after its place, hidden."""
        texts = [t[start:] for t, start in zip(texts, self.starts, strict=True)]
        self.lengths = [len(t) for t in texts]
        longest = max(self.lengths)
        need = -(-(longest + self.more) // ROUND) * ROUND  # few sizes: what is compiled or recorded for one is kept
        self.capacity = need if self.context is None else min(self.context, need)
        # on a GPU prompts are of few lengths, so that reading one can be played too
        wide = longest if self.desks is None else min(self.capacity, -(-longest // PROMPT) * PROMPT)
        rows = torch.zeros(len(texts), wide, dtype=torch.long, device=self.device)
        for row, text in zip(rows, texts, strict=True):
            row[: len(text)] = torch.tensor(text, device=self.device)
        self.leave()
        self.size = len(texts), self.capacity
        found = None if self.desks is None else self.desks.pop(self.size, None)
        self.desk = found or Desk(self.model.memory(*self.size))
        self.memory = self.desk.memory
        lengths, same = torch.tensor(self.lengths, device=self.device), min(self.lengths) == longest
        # places are shared while all rows are equally long: one number instead of one a row
        self.place = lengths[:1] if same else lengths[:, None]
        if self.desks is not None:
            self.logits = self.desk.recorded(wide, Opening(self.model, self.memory))(rows, lengths)
            return
        ends = None if same else lengths
        h = self.model(rows, pos=torch.arange(longest, device=self.device), memory=self.memory, lengths=ends)
        self.logits = self.model.logits(h[torch.arange(len(rows), device=self.device), lengths - 1])

    def leave(self) -> None:
        """Leave memory and recordings for the next text of this size."""
        if self.desks is not None and self.desk.memory is not None:
            self.desks[self.size] = self.desk
            while len(self.desks) > DESKS:
                self.desks.pop(next(iter(self.desks)))

    def read(self, texts: Sequence[Sequence[int]], tokens: Tensor) -> None:
        """Read the last token of each text (B 1), and maybe guesses after it; a full context goes on with its half."""
        if self.context is not None and max(self.lengths) >= self.capacity:
            half = max(1, self.context // 2)
            for row, (text, length) in enumerate(zip(texts, self.lengths, strict=True)):
                if length >= self.capacity:
                    self.starts[row] = len(text) - half
            self._begin(texts)
            return
        places = self.place + torch.arange(tokens.shape[1], device=self.device)
        self.logits = self.call(tokens, pos=places, memory=self.memory).flatten(0, 1)
        self._move(1)

    def _move(self, many: int) -> None:
        self.place, self.lengths = self.place + many, [length + many for length in self.lengths]

    def tokens(self, texts: Sequence[Sequence[int]], tokens: int, rows: Tensor, draw: Drawn) -> Iterator[Tensor]:
        """One token (B) after the other, drawn with the rows' seeds; where it can be, many from one recording.

        The only text on a CPU is read with guesses of its next tokens; as many as are then drawn were read by that.
        """
        echo = Echo() if len(texts) == 1 and self.device.type == "cpu" and repeatable(self.model) else None
        n, guesses = 0, list[int]()
        while n < tokens:
            drawn = draw(self.logits, rows, n + torch.arange(1 + len(guesses), device=self.device))
            if guesses:
                right = [g == t for g, t in zip(guesses, drawn.tolist(), strict=False)] + [False]
                drawn = drawn[: right.index(False) + 1]
                self._move(len(drawn) - 1)
            for chosen in drawn.split(len(texts)):
                yield chosen
            n += len(drawn) // len(texts)
            many = min(tokens - n, self.capacity - max(self.lengths))
            if many >= FEW and self.desks is not None:
                steps = self.desk.recorded((draw, self.place.shape), Steps(self.call, self.memory, draw))
                steps.start(chosen, self.place, torch.tensor(n, device=self.device), rows)
                yield from steps.play(many)
                n, chosen, self.place = n + many, steps.token.clone(), steps.place.clone()
                self.lengths = [length + many for length in self.lengths]
            if n < tokens:
                guesses = echo(texts[0]) if echo and many > GUESSES else []
                self.read(texts, torch.cat([chosen, chosen.new_tensor(guesses)]).view(len(texts), -1))


class Echo:
    """Guesses that a text goes on as it did when its last two tokens stood together before."""

    def __init__(self) -> None:
        self.after: dict[tuple[int, int], int] = {}  # where a pair was last followed by something
        self.known = 2

    def __call__(self, text: Sequence[int]) -> list[int]:
        """The next tokens, or none at all."""
        for end in range(self.known, len(text)):
            self.after[text[end - 2], text[end - 1]] = end
        self.known = max(2, len(text))
        start = self.after.get((text[-2], text[-1])) if len(text) > 1 else None
        return [] if start is None else [text[start + i % (len(text) - start)] for i in range(GUESSES)]
