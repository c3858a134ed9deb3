"""A memory network: a question hops through a story; each hop reads the lines that are most like what is known by now.

Every line is a key and a value, the sum of its words. As in the lecture, several times

    q <- softmax(q K^T) V

and the answer is read from the last q. The end-to-end network (Sukhbaatar 2015) is a choice of settings: `residual`
keeps the old q, `time` tells how long ago a line stands, `words = "position"` where a word stands in its line, and
`blanks` lets a look find nothing.
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from harken.core import MLP, Dot, Layout, Watcher, attend, keep
from harken.settings import Outputs, Part

START = 0.1  # spread of the first weights (Sukhbaatar 2015)


class Shape(Part):
    """The settings of a memory network."""

    by_line: ClassVar[bool] = True  # reads a story line by line; other models read it as one text
    abreast: ClassVar[bool] = True  # the seeds of a comparison are trained together: it is the faster way

    kind: Literal["memnet"] = "memnet"
    size: Literal["tiny", "small", "base"] = Field(
        "small", description="the one dial: sets d; small is the paper's for one task, base for all of them together"
    )
    d: int = Field(20, ge=2, le=65536, description="width of a line's vector")
    hops: int = Field(3, ge=1, le=100, description="how often the question looks into the story")
    memory: int = Field(50, ge=1, le=100_000, description="lines of a story that are kept, the latest")
    residual: bool = Field(False, description="q + a V instead of the lecture's a V; layerwise: H q + a V")
    time: bool = Field(False, description="add to a line a vector for how many lines ago it stands")
    words: Literal["bag", "position"] = Field(
        "bag", description="a line is the plain sum of its words, or one that tells where in the line each stands"
    )
    attend_empty_slots: bool = Field(
        False,
        description="what is empty of the memory is looked at too, with score 0 and value 0: a look may find nothing",
    )
    tying: Literal["adjacent", "layerwise"] = Field(
        "layerwise",
        description="layerwise: every hop has the same keys and values; adjacent: the values of a hop are the keys of "
        "the next, the first keys read the question, and the last values score the answers",
    )
    mlp_width: int | None = Field(
        None, ge=0, description="width of the MLP between the last q and the scores; none: 4 d; 0: no MLP"
    )

    dials: ClassVar = {"size": {"tiny": {"d": 8}, "small": {"d": 20}, "base": {"d": 50}}}

    def build(self, vocab: Outputs) -> "MemNet":
        return MemNet(self, vocab)


class Hop(nn.Module):
    """One look into the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.similarity = Dot()
        self.watch: Watcher | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, *, linear: bool) -> Tensor:  # B d, B L d twice
        q, k, v = q[:, None, None], k[:, None], v[:, None]  # B 1 1 d, B 1 L d: one head, one query
        if linear:  # the start of a training may leave the softmax out
            return ((q @ k.mT).masked_fill(~layout.dense()[0], 0) @ v)[:, 0, 0]
        return attend(q, k, v, self.similarity, layout, watch=self.watch)[:, 0, 0]


class MemNet(nn.Module):
    """Words -> lines -> hops -> a score for each answer. Word 0 is none, and so is a line without words."""

    answers: Tensor  # which words they are

    def __init__(self, shape: Shape, asked: Outputs) -> None:
        super().__init__()
        self.shape, self.d, adjacent = shape, shape.d, shape.tying == "adjacent"
        self.tables = shape.hops + 1 if adjacent else 2  # of the memory: side by side in one, so that a word is one row
        self.pairs = [(n, n + 1) if adjacent else (0, 1) for n in range(shape.hops)]  # keys and values of each hop
        self.question = 0 if adjacent else 2
        self.embed = nn.Embedding(asked.vocab + 1, max(self.tables, self.question + 1) * shape.d)
        self.ages = nn.Embedding(shape.memory, self.tables * shape.d) if shape.time else None
        self.hops = nn.ModuleList(Hop() for _ in range(shape.hops))
        self.H = nn.Linear(shape.d, shape.d, bias=False) if shape.residual and not adjacent else None
        hidden = 4 * shape.d if shape.mlp_width is None else shape.mlp_width
        self.mlp = MLP(shape.d, hidden) if hidden else None
        self.W_y = None if adjacent else nn.Linear(shape.d, asked.outputs, bias=False)
        self.register_buffer("answers", torch.tensor(asked.words, dtype=torch.long), persistent=False)
        for part in (self.embed, self.ages, self.H, self.W_y):
            if part is not None:
                nn.init.normal_(part.weight, std=START)

    def forward(
        self, lines: Tensor, *, question: Tensor, ages: Tensor, rows: Tensor | None = None, linear: bool = False
    ) -> Tensor:
        """B L W, B W', B L -> B answers. `ages`: how many lines ago each stands; `linear`: without the softmax.

        With `rows`, B L, `lines` are those of all stories, U W, and these say which are told.
        """
        memory, real = self.write(lines), (lines > 0).any(-1)
        if rows is not None:
            memory, real = memory[:, rows], real[rows]
        return self.read(memory, question, ages, real, linear=linear)

    def write(self, lines: Tensor) -> Tensor:  # ... W -> T ... d
        """Each line as a vector of each table."""
        x = self._sums(lines, self.embed.weight[:, : self.tables * self.d])
        return x.unflatten(-1, (-1, self.d)).movedim(-2, 0)

    def read(self, memory: Tensor, question: Tensor, ages: Tensor, real: Tensor, *, linear: bool = False) -> Tensor:
        """T B L d, B W', B L, B L -> B answers: the hops of a question through lines that were written."""
        if self.ages is not None:
            memory = memory + self.ages(ages).unflatten(-1, (-1, self.d)).movedim(-2, 0)
        layout, memory = self._laid(real, memory)
        q = self._sums(question, self._table(self.question))
        tables = memory.unbind()
        for hop, (k, v) in zip(self.hops, self.pairs, strict=True):
            o = hop(q, tables[k], tables[v], layout, linear=linear)
            q = o + (q if self.H is None else self.H(q)) if self.shape.residual else o
        q = q if self.mlp is None else self.mlp(q)
        return q @ self._table(self.tables - 1)[self.answers].mT if self.W_y is None else self.W_y(q)

    def _laid(self, real: Tensor, memory: Tensor) -> tuple[Layout, Tensor]:  # B L, T B L d
        """Which lines are looked at. Blanks are one more, that has the weight of as many as there are."""
        bias = None
        if self.shape.attend_empty_slots:
            empty = (self.shape.memory - real.sum(-1, keepdim=True)).to(memory.dtype)  # B 1
            real, memory = torch.cat([real, empty > 0], 1), nn.functional.pad(memory, (0, 0, 0, 1))
            bias = nn.functional.pad(empty.clamp_min(1).log(), (real.shape[1] - 1, 0))[:, None, None]  # B 1 1 L+1
        return keep(real).lay(len(real), 1, real.shape[1], real.device, bias), memory

    def _table(self, n: int) -> Tensor:  # V d
        return self.embed.weight[:, n * self.d : (n + 1) * self.d]

    def _sums(self, words: Tensor, table: Tensor) -> Tensor:  # ... W, V (T d) -> ... (T d)
        """The sum of each line's words, or sum_j l_jk x_jk, l_jk = 1 + 4 (j - (J + 1) / 2) / J (k - (d + 1) / 2) / d.

        The latter is the plain sum, and another in which words late in the line weigh as much as early ones take away.
        These weights are 1 in the mean; those that the paper prints are half as large, those of its program are these.
        """
        x, real = nn.functional.embedding(words, table), (words > 0).to(table.dtype)
        if self.shape.words == "bag":
            return (real[..., None, :] @ x).squeeze(-2)
        J = real.sum(-1, keepdim=True).clamp_min(1)
        j = (2 * torch.arange(1, words.shape[-1] + 1, device=x.device) - J - 1) / J
        plain, late = (torch.stack([real, real * j], -2) @ x).unbind(-2)
        k = torch.arange(x.shape[-1], device=x.device) % self.d + 1
        return plain + (2 * k - self.d - 1).to(x.dtype) / self.d * late
