"""Memory network: a question attends to the lines of a story in several hops.

Every line is a key and a value, the sum of its word vectors. Each hop is, as in the lecture,

    q <- softmax(q K^T) V

and the answer is computed from the last q. The end-to-end network (Sukhbaatar 2015) is a choice of settings: `residual`
adds the old q, `time` encodes the age of a line, `words = "position"` the position of a word in its line, and
`attend_empty_slots` allows a hop to select nothing.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import MLP, Dot, Layout, Watchable, attend, keep
from harken.settings import LabelOutputs

from . import DIALS, Model, ModelSettings

INIT_STD = 0.1  # standard deviation of the initial weights (Sukhbaatar 2015)


class MemNetSettings(ModelSettings):
    """Settings of a memory network."""

    by_line: ClassVar[bool] = True
    stack_seeds: ClassVar[bool] = True

    kind: Literal["memnet"] = "memnet"
    size: Literal["tiny", "small", "base"] = Field(
        "small", description="dial: sets d; as in the paper, small for one task and base for all tasks together"
    )
    d: int = Field(20, ge=2, le=65536, description="width of the model (embedding dimension)")
    hops: int = Field(3, ge=1, le=100, description="number of hops")
    memory: int = Field(50, ge=1, le=100_000, description="number of latest lines of a story in the memory")
    residual: bool = Field(False, description="q + a V instead of the lecture's a V; layerwise: H q + a V")
    time: bool = Field(False, description="learned vector for the age of a line, in lines")
    words: Literal["bag", "position"] = Field(
        "bag", description="line vector: plain sum of its word vectors, or position-weighted sum"
    )
    attend_empty_slots: bool = Field(
        False, description="attention to empty memory slots, with score 0 and value 0, so that a hop can select nothing"
    )
    tying: Literal["adjacent", "layerwise"] = Field(
        "layerwise",
        description="weight tying; layerwise: all hops share keys and values; adjacent: the values of a hop are the "
        "keys of the next one, the first keys embed the question, and the last values score the answers",
    )
    mlp_width: int | None = Field(None, ge=0, description="width of the MLP before the scores; none: 4 d; 0: no MLP")
    dials: ClassVar = DIALS["memnet"]

    def build(self, vocab: LabelOutputs) -> "MemNet":
        return MemNet(self, vocab)


class Hop(Watchable):
    """One attention of the question to the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.similarity = Dot()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, linear: bool) -> Tensor:  # B d, B L d twice
        q, k, v = q[:, None, None], k[:, None], v[:, None]  # B 1 1 d, B 1 L d: one head, one query
        if linear:  # training may start without the softmax
            return ((q @ k.mT).masked_fill(~layout.dense().allowed, 0) @ v)[:, 0, 0]
        return attend(q, k, v, self.similarity, layout, watch=self.watch)[:, 0, 0]


class MemNet(Model):
    """Words -> lines -> hops -> a score for each answer. Word 0 is padding, and so is a line without words."""

    answers: Tensor  # token ids of the answers

    def __init__(self, settings: MemNetSettings, outputs: LabelOutputs) -> None:
        super().__init__()
        self.settings, self.d, adjacent = settings, settings.d, settings.tying == "adjacent"
        self.tables = settings.hops + 1 if adjacent else 2  # embedding tables of the memory, concatenated in one row
        self.pairs = [(n, n + 1) if adjacent else (0, 1) for n in range(settings.hops)]  # keys and values of each hop
        self.question = 0 if adjacent else 2  # embedding table of the question
        n_tables = max(self.tables, self.question + 1)
        self.embed = nn.Embedding(outputs.vocab_size + 1, n_tables * self.d)
        self.ages = nn.Embedding(settings.memory, self.tables * self.d) if settings.time else None
        self.hops = nn.ModuleList(Hop() for _ in range(settings.hops))
        self.H = nn.Linear(self.d, self.d, bias=False) if settings.residual and not adjacent else None
        mlp_width = 4 * self.d if settings.mlp_width is None else settings.mlp_width
        self.mlp = MLP(self.d, mlp_width) if mlp_width else None
        self.W_y = None if adjacent else nn.Linear(self.d, outputs.n_outputs, bias=False)
        self.register_buffer("answers", torch.tensor(outputs.answer_ids, dtype=torch.long), persistent=False)
        for module in (self.embed, self.ages, self.H, self.W_y):
            if module is not None:
                nn.init.normal_(module.weight, std=INIT_STD)

    def forward(
        self, lines: Tensor, *, question: Tensor, ages: Tensor, rows: Tensor | None = None, linear: bool = False
    ) -> Tensor:
        """B L W, B W', B L -> B answers. `ages`: age of each line, in lines; `linear`: without the softmax.

        With `rows`, B L, `lines` are the distinct lines of all stories, U W, and `rows` are indices into them.
        """
        memory, real = self.write(lines), (lines > 0).any(-1)
        if rows is not None:
            memory, real = memory[:, rows], real[rows]
        return self.read(memory, question, ages, real, linear=linear)

    def write(self, lines: Tensor) -> Tensor:  # ... W -> T ... d
        """The vector of each line in each embedding table."""
        x = self._line_vectors(lines, self.embed.weight[:, : self.tables * self.d])
        return x.unflatten(-1, (-1, self.d)).movedim(-2, 0)

    def read(self, memory: Tensor, question: Tensor, ages: Tensor, real: Tensor, *, linear: bool = False) -> Tensor:
        """T B L d, B W', B L, B L -> B answers: the hops of a question over written lines."""
        if self.ages is not None:
            memory = memory + self.ages(ages).unflatten(-1, (-1, self.d)).movedim(-2, 0)
        layout, memory = self._memory_layout(real, memory)
        q = self._line_vectors(question, self._table(self.question))
        tables = memory.unbind()
        for hop, (k, v) in zip(self.hops, self.pairs, strict=True):
            o = hop(q, tables[k], tables[v], layout, linear=linear)
            q = o + (q if self.H is None else self.H(q)) if self.settings.residual else o
        q = q if self.mlp is None else self.mlp(q)
        return q @ self._table(self.tables - 1)[self.answers].mT if self.W_y is None else self.W_y(q)

    def _memory_layout(self, real: Tensor, memory: Tensor) -> tuple[Layout, Tensor]:  # B L, T B L d
        """Mask of the lines. All empty slots are one extra line with the weight of their number."""
        bias = None
        if self.settings.attend_empty_slots:
            empty = (self.settings.memory - real.sum(-1, keepdim=True)).to(memory.dtype)  # B 1
            real, memory = torch.cat([real, empty > 0], 1), nn.functional.pad(memory, (0, 0, 0, 1))
            bias = nn.functional.pad(empty.clamp_min(1).log(), (real.shape[1] - 1, 0))[:, None, None]  # B 1 1 L+1
        return keep(real).layout(len(real), 1, real.shape[1], real.device, bias), memory

    def _table(self, n: int) -> Tensor:  # V d
        return self.embed.weight[:, n * self.d : (n + 1) * self.d]

    def _line_vectors(self, words: Tensor, table: Tensor) -> Tensor:  # ... W, V (T d) -> ... (T d)
        """Sum of the word vectors of each line, or sum_j l_jk x_jk, l_jk = 1 + 4 (j - (J+1)/2) / J (k - (d+1)/2) / d.

        The latter is the plain sum plus a sum with weights that grow with the position in the line. These weights
        have mean 1; those printed in the paper are half as large, those of its program are these.
        """
        x, real = nn.functional.embedding(words, table), (words > 0).to(table.dtype)
        if self.settings.words == "bag":
            return (real[..., None, :] @ x).squeeze(-2)
        J = real.sum(-1, keepdim=True).clamp_min(1)
        j = (2 * torch.arange(1, words.shape[-1] + 1, device=x.device) - J - 1) / J
        plain, by_position = (torch.stack([real, real * j], -2) @ x).unbind(-2)
        k = torch.arange(x.shape[-1], device=x.device) % self.d + 1
        return plain + (2 * k - self.d - 1).to(x.dtype) / self.d * by_position
