"""Multi-head attention and the blocks made of it. GPT-2, Llama, BERT and ViT are choices of the same block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attend import attend
from .memory import Fixed, Memory
from .positions import Positions
from .similarity import ScaledDot, Similarity
from .structure import CAUSAL, FULL, Layout, Structure
from .view import Watcher

Map = Callable[[Tensor], Tensor]
Source = Tensor | Fixed | None  # a sequence, or the pairs read from it
Where = Literal["pre", "post", "none"]
Bias = Literal[True, False, "qkv"]  # qkv: of queries, keys and values alone
SMOOTH = partial(F.gelu, approximate="tanh")
ACTS: dict[str, Map] = {"gelu": F.gelu, "gelu-tanh": SMOOTH, "relu": F.relu, "silu": F.silu}


@dataclass(frozen=True)
class Place:
    """What every layer is told: who may look at whom, and where queries and keys stand. Made once per forward."""

    structure: Structure | Layout = FULL
    turn: Map = lambda x: x  # q or k turned by their positions


class Attention(nn.Module):
    """MHA(x, c) = (||_h HA_h) W_o. Self-attention when c is x, cross-attention when c is another sequence."""

    def __init__(
        self,
        d: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        similarity: Similarity | None = None,
        dropout: float = 0.0,
        bias: Bias = True,
    ) -> None:
        super().__init__()
        kv_heads = kv_heads or heads
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads do not split over {kv_heads} key heads; take a divisor of {heads}")
        if d % heads and not (d_k and d_v):
            raise ValueError(f"d={d} does not split over {heads} heads; try d={d // heads * heads + heads}")
        self.d_k, self.d_v, self.kv_heads, self.p = d_k or d // heads, d_v or d // heads, kv_heads, dropout
        self.W_q, self.W_k = (nn.Linear(d, H * self.d_k, bias=bool(bias)) for H in (heads, kv_heads))
        self.W_v = nn.Linear(d, kv_heads * self.d_v, bias=bool(bias))
        self.W_o = nn.Linear(heads * self.d_v, d, bias=bias is True)
        self.similarity = similarity or ScaledDot(self.d_k)
        self.joint: Map | None = None  # q, k and v by one product where nobody learns (use/light.py)
        self.watch: Watcher | None = None

    def forward(
        self, x: Tensor, source: Source = None, *, place: Place | None = None, memory: Memory | None = None
    ) -> Tensor:  # x: B Lq d, source: B Lk d -> B Lq d
        place = place or Place()
        q, *own = self._heads(x, self.W_q, *(() if source is not None else (self.W_k, self.W_v)))
        if isinstance(source, Fixed):  # as they are; several texts of one source ask as its several queries
            k, v, q = source.k, source.v, q.unflatten(0, (source.k.shape[0], -1)).transpose(1, 2).flatten(2, 3)
        else:
            k, v = own if source is None else self._heads(source, self.W_k, self.W_v)  # B H' Lk D
            k = place.turn(k)
        if memory is not None:
            k, v = memory.write(k, v, place.structure.slots)
        dropout = self.p if self.training else 0.0
        o = attend(place.turn(q), k, v, self.similarity, place.structure, dropout=dropout, watch=self.watch)
        return self.W_o(o.transpose(1, 2).flatten(2).view(*x.shape[:2], -1))

    def _heads(self, x: Tensor, *maps: nn.Linear) -> list[Tensor]:  # B H L D each
        widths = (self.d_v if f is self.W_v else self.d_k for f in maps)
        joint = None if torch.is_grad_enabled() or len(maps) < 3 else self.joint
        made = _maps(x, *maps) if joint is None else joint(x).split([f.out_features for f in maps], -1)
        return [y.unflatten(-1, (-1, D)).transpose(1, 2) for y, D in zip(made, widths, strict=True)]


def _maps(x: Tensor, *maps: nn.Linear) -> Sequence[Tensor]:
    """Linear maps of one x; in training as one product, which saves more than it costs."""
    if not torch.is_grad_enabled():
        return [f(x) for f in maps]
    b = torch.cat([f.bias for f in maps]) if maps[0].bias is not None else None
    return F.linear(x, torch.cat([f.weight for f in maps]), b).split([f.out_features for f in maps], -1)


class Sublayer(nn.Module):
    """x + f(LN(x)) before (2019), LN(x + f(x)) after (2017), x + f(x) without; and each of them without the x."""

    def __init__(self, norm: nn.Module, where: Where, *, dropout: float, residual: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if where == "none" else norm
        self.where, self.residual, self.dropout = where, residual, nn.Dropout(dropout)

    def forward(self, x: Tensor, f: Map) -> Tensor:
        y: Tensor = self.dropout(f(self.norm(x) if self.where == "pre" else x))
        h = x + y if self.residual else y
        return self.norm(h) if self.where == "post" else h


class MLP(nn.Module):
    """W_2 act(W_1 x); for swiglu and geglu, W_2 (silu or gelu (W_1 x) * W_3 x)."""

    def __init__(self, d: int, hidden: int, act: str = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.activation = (ACTS | {"swiglu": F.silu, "geglu": SMOOTH})[act]
        self.W_1, self.W_2 = nn.Linear(d, hidden, bias=bias), nn.Linear(hidden, d, bias=bias)
        self.W_3 = nn.Linear(d, hidden, bias=bias) if act.endswith("glu") else None

    def forward(self, x: Tensor) -> Tensor:
        h = self.activation(self.W_1(x))
        return self.W_2(h if self.W_3 is None else h * self.W_3(x))


@dataclass(frozen=True)
class Wiring:
    """How a block is wired. Every field is a free choice; the defaults are the lecture's block of 2019."""

    d: int
    heads: int
    kv_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    d_ff: int | None = None  # width of the MLP; None: 4 d
    activation: str = "gelu"
    norm: Where = "pre"
    rms_norm: bool = False  # RMSNorm instead of LayerNorm
    eps: float = 1e-5
    residual: bool = True
    dropout: float = 0.0
    bias: Bias = True
    cross: bool = False  # a second attention, to a source
    similarity: Callable[[int, int], Similarity] = lambda heads, D: ScaledDot(D)  # from key heads and their width

    def attention(self) -> Attention:
        similarity = self.similarity(self.kv_heads or self.heads, self.d_k or self.d // self.heads)
        widths = {"kv_heads": self.kv_heads, "d_k": self.d_k, "d_v": self.d_v}
        return Attention(self.d, self.heads, **widths, similarity=similarity, dropout=self.dropout, bias=self.bias)

    def normalise(self) -> nn.Module:
        return nn.RMSNorm(self.d, self.eps) if self.rms_norm else nn.LayerNorm(self.d, self.eps, bias=self.bias is True)

    def sublayer(self) -> Sublayer:
        return Sublayer(self.normalise(), self.norm, dropout=self.dropout, residual=self.residual)


class Block(nn.Module):
    """Self-attention, cross-attention where there is a source, MLP; each in its sublayer."""

    def __init__(self, wiring: Wiring) -> None:
        super().__init__()
        self.look, self.look_sub = wiring.attention(), wiring.sublayer()
        if wiring.cross:
            self.cross, self.cross_sub = wiring.attention(), wiring.sublayer()
        self.mlp = MLP(wiring.d, wiring.d_ff or 4 * wiring.d, wiring.activation, bias=wiring.bias is True)
        self.mlp_sub = wiring.sublayer()

    def forward(
        self, x: Tensor, place: Place, memory: Memory | None = None, source: tuple[Fixed, Place] | None = None
    ) -> Tensor:
        x = self.look_sub(x, lambda h: self.look(h, place=place, memory=memory))
        if source is not None:
            # no causal mask here, whatever the lecture prints: the whole source lies open to every target word
            x = self.cross_sub(x, lambda h: self.cross(h, source[0], place=source[1]))
        return self.mlp_sub(x, self.mlp)

    def read(self, source: Tensor) -> list[Tensor]:
        """The keys and values of a source, B H' L D each. A forward of its own: weights may be held in parts."""
        return self.cross._heads(source, self.cross.W_k, self.cross.W_v)


class Stack(nn.Module):
    """H^{l+1} = Block(H^l). Lays out structure and positions once for all layers; `positions.add` is for the model."""

    def __init__(self, layers: int, wiring: Wiring, positions: Positions | None = None) -> None:
        super().__init__()
        self.positions = positions or Positions()
        self.blocks: Sequence[Block] = nn.ModuleList(Block(wiring) for _ in range(layers))  # type: ignore[assignment]

    def forward(
        self,
        x: Tensor,  # B L d
        *,
        structure: Structure = FULL,
        pos: Tensor | None = None,  # L or B L: places in the document
        memory: Sequence[Memory] | None = None,
        source: Sequence[Fixed] | None = None,
        source_structure: Structure = FULL,
    ) -> Tensor:
        B, L, _ = x.shape
        pos = pos_k = torch.arange(L, device=x.device) if pos is None else pos
        if memory is not None:  # there slot and position are the same place, and what is not yet written lies ahead
            pos_k, structure = torch.arange(memory[0].capacity, device=x.device), (CAUSAL & structure).at(pos)
        laid = structure.lay(B, L, pos_k.shape[-1], x.device, self.positions.bias(pos, pos_k))
        place = Place(laid, self.positions.turner(pos))
        if source is not None:
            rows = source[0].k.shape[0]  # len() would fix it in an exported graph
            there = Place(source_structure.lay(rows, B * L // rows, source[0].capacity, x.device))
        for n, block in enumerate(self.blocks):
            x = block(x, place, memory and memory[n], source and (source[n], there))
        return x

    def memory(self, B: int, capacity: int) -> list[Memory]:
        """An empty memory for each layer."""
        looks, w = [block.look for block in self.blocks], self.blocks[0].look.W_k.weight
        zeros = partial(torch.zeros, dtype=w.dtype, device=w.device)
        return [Memory(*(zeros(B, a.kv_heads, capacity, D) for D in (a.d_k, a.d_v))) for a in looks]

    def read(self, source: Tensor) -> list[Fixed]:
        """The source's keys and values for each layer's cross-attention, computed once."""
        return [Fixed(*block.read(source)) for block in self.blocks]
