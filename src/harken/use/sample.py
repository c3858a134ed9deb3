"""Text from a language model, one token at a time. The memory keeps what was read; each step reads one token more."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harken.errors import BadInput
from harken.models import LanguageModel


@dataclass(frozen=True)
class Choice:
    """How the next token is drawn from the distribution."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise BadInput(f"--temperature {self.temperature}: it is 0 (greedy) or more; 0.8 is a good start")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"--top-k {self.top_k}: at least 1 token must be left to choose from")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BadInput(f"--top-p {self.top_p}: a share above 0 and up to 1, such as 0.9")

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

    def draw(self, logits: Tensor, dice: Sequence[torch.Generator]) -> Tensor:
        """One token a row: B. Each row has its own dice, so a row is the same alone and in a batch."""
        if self.temperature == 0:
            return logits.argmax(-1)
        logits = self.narrow(logits.float() / self.temperature)
        chance = torch.stack([torch.rand(logits.shape[-1], generator=d) for d in dice]).to(logits.device)
        return (logits - (-chance.clamp_min(1e-20).log()).log()).argmax(-1)  # Gumbel: the same as drawing from softmax


@torch.inference_mode()
def decode(
    model: LanguageModel, prompts: Sequence[Sequence[int]], tokens: int, choice: Choice, *, seed: int
) -> Iterator[Tensor]:
    """The tokens that follow the prompts, one (B) at a time. Prompts may differ in length."""
    texts = [list(p) for p in prompts]
    dice = [torch.Generator().manual_seed(seed + row) for row in range(len(texts))]
    reader = Reader(model, texts, tokens)
    for n in range(tokens):
        chosen = choice.draw(reader.logits, dice)
        yield chosen
        for text, token in zip(texts, chosen.tolist(), strict=True):
            text.append(token)
        if n + 1 < tokens:
            reader.read(texts, chosen)


class Reader:
    """A model that has read some texts: the scores of what comes next, and the memory of what was."""

    def __init__(self, model: LanguageModel, texts: Sequence[Sequence[int]], more: int) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.context = model.context
        self.more = more
        self._begin(texts)

    def _begin(self, texts: Sequence[Sequence[int]]) -> None:
        """Read whole texts at once, right-padded: what the padding writes lies after each row's place, hidden."""
        if self.context is not None:
            texts = [t[-self.context :] for t in texts]
        lengths = torch.tensor([len(t) for t in texts], device=self.device)
        longest = int(lengths.max())
        capacity = longest + self.more if self.context is None else min(self.context, longest + self.more)
        rows = torch.zeros(len(texts), longest, dtype=torch.long, device=self.device)
        for row, text in zip(rows, texts, strict=True):
            row[: len(text)] = torch.tensor(text, device=self.device)
        self.memory: Any = self.model.memory(len(texts), capacity)
        same = bool((lengths == longest).all())
        h = self.model(
            rows, pos=torch.arange(longest, device=self.device), memory=self.memory, lengths=None if same else lengths
        )
        # places are shared while all rows are equally long: one number instead of one a row
        self.place = lengths[:1] if same else lengths[:, None]
        self.capacity = capacity
        self.logits = self.model.logits(h[torch.arange(len(rows), device=self.device), lengths - 1])

    def read(self, texts: Sequence[Sequence[int]], token: Tensor) -> None:
        """Read one token more (B). When the memory is full, the second half of the context is read afresh."""
        if self.context is not None and int(self.place.max()) >= self.capacity:
            self._begin([t[-max(1, self.context // 2) :] for t in texts])
            return
        h = self.model(token[:, None], pos=self.place, memory=self.memory)
        self.place = self.place + 1
        self.logits = self.model.logits(h[:, -1])
