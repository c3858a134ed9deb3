"""Multi-head attention and the Transformer block. GPT-2, Llama, BERT and ViT are configurations of the same block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attend import attend
from .memory import FixedMemory, Memory
from .positions import Positions, Rotation
from .products import affine, is_eager_float32, linear
from .similarity import Dot, ScaledDot, Similarity
from .steps import is_readable
from .structure import CAUSAL, FULL, Layout, Structure
from .view import Watchable

Map = Callable[[Tensor], Tensor]
NormPlacement = Literal["pre", "post", "none"]
LinearBias = Literal[True, False, "qkv"]  # qkv: only in the projections of queries, keys and values
GELU_TANH = partial(F.gelu, approximate="tanh")
ACTIVATIONS: dict[str, Map] = {"gelu": F.gelu, "gelu-tanh": GELU_TANH, "relu": F.relu, "silu": F.silu}


@dataclass(frozen=True)
class LayerContext:
    """Input that all layers share: the structure and the rotation by position. Built once per forward."""

    structure: Structure | Layout = FULL
    rotate: Map = lambda x: x  # rotary positions, applied to q and k


class Attention(Watchable):
    """MHA(x, c) = (||_h HA_h) W_o. Self-attention if c is x, cross-attention if c is another sequence.

    >>> attention, x, c = Attention(8, heads=2), torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    >>> attention(x).shape, attention(x, c).shape, attention.project_heads(c, attention.W_k)[0].shape
    (torch.Size([1, 3, 8]), torch.Size([1, 3, 8]), torch.Size([1, 2, 5, 4]))
    """

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
        bias: LinearBias = True,
    ) -> None:
        super().__init__()
        kv_heads = kv_heads or heads
        if heads % kv_heads:
            raise ValueError(f"heads={heads} is not divisible by kv_heads={kv_heads}; use a divisor of {heads}")
        if d % heads and not (d_k and d_v):
            raise ValueError(f"d={d} is not divisible by heads={heads}; use d={d // heads * heads + heads}")
        self.d_k, self.d_v, self.kv_heads, self.p = d_k or d // heads, d_v or d // heads, kv_heads, dropout
        self.W_q, self.W_k = (nn.Linear(d, H * self.d_k, bias=bool(bias)) for H in (heads, kv_heads))
        self.W_v = nn.Linear(d, kv_heads * self.d_v, bias=bool(bias))
        self.W_o = nn.Linear(heads * self.d_v, d, bias=bias is True)
        self.similarity = similarity or ScaledDot(self.d_k)
        self.joint: Map | None = None  # q, k and v as one product, for inference (inference/prepare.py)

    def forward(
        self,
        x: Tensor,  # B Lq d
        source: Tensor | FixedMemory | None = None,  # B Lk d, or its keys and values; None: x
        *,
        context: LayerContext | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        """Attention of x to a source, in the order: project, rotate, store, attend: B Lq d."""
        context = context or LayerContext()
        if source is None and memory is None and self._rotates_pairs(x) and isinstance(context.rotate, Rotation):
            q, k, v = self._rotated_heads(x, context.rotate)
            return self._attend(x, q, k, v, context)
        q, *kv = self.project_heads(x, self.W_q, *(() if source is not None else (self.W_k, self.W_v)))
        if isinstance(source, FixedMemory):  # several texts of one source become more queries of that source
            k, v, q = source.k, source.v, q.unflatten(0, (source.k.shape[0], -1)).transpose(1, 2).flatten(2, 3)
        else:
            k, v = kv if source is None else self.project_heads(source, self.W_k, self.W_v)  # B H' Lk D
            k = context.rotate(k)
        if memory is not None:
            k, v = memory.write(k, v, context.structure.slots)
        return self._attend(x, context.rotate(q), k, v, context)

    def _attend(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: LayerContext) -> Tensor:
        """W_o of the attention of projected and rotated heads, in the shape of x."""
        dropout = self.p if self.training else 0.0
        o = attend(q, k, v, self.similarity, context.structure, dropout=dropout, watch=self.watch)
        return linear(self.W_o, o.transpose(1, 2).flatten(2).view(*x.shape[:2], -1))

    def _rotates_pairs(self, x: Tensor) -> bool:
        """Whether q and k can have their features in another order: in an eager training step, for a plain dot."""
        plain = self.watch is None and type(self.similarity) in (Dot, ScaledDot)
        even = self.W_v.out_features % 2 == 0  # rows of complex numbers
        return plain and even and torch.is_grad_enabled() and is_eager_float32(x)

    def _rotated_heads(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of x by one product, q and k rotated by another: B H L D each."""
        maps = self.W_q, self.W_k
        W = torch.cat([*(rotation.pair_features(f.weight) for f in maps), self.W_v.weight])
        biases = [*(rotation.pair_features(f.bias) for f in maps if f.bias is not None), self.W_v.bias]
        y = affine(x, W, None if self.W_v.bias is None else torch.cat(biases))
        qk, v = y.split([len(W) - self.W_v.out_features, self.W_v.out_features], -1)
        q, k = _split(rotation.pairs(qk), maps)
        return _heads(q, self.d_k), _heads(k, self.d_k), _heads(v, self.d_v)

    def project_heads(self, x: Tensor, *projections: nn.Linear) -> list[Tensor]:
        """Projections of x, split into heads: B H L D each."""
        widths = (self.d_v if f is self.W_v else self.d_k for f in projections)
        joint = None if torch.is_grad_enabled() or len(projections) < 3 else self.joint
        outputs = _project(x, *projections) if joint is None else _split(joint(x), projections)
        return [_heads(y, D) for y, D in zip(outputs, widths, strict=True)]


def _heads(y: Tensor, D: int) -> Tensor:  # B L (H D) -> B H L D
    return y.unflatten(-1, (-1, D)).transpose(1, 2)


def _project(x: Tensor, *projections: nn.Linear) -> Sequence[Tensor]:
    """Several linear maps of x; in training as one product, which is faster."""
    if not torch.is_grad_enabled():
        return [f(x) for f in projections]
    b = torch.cat([f.bias for f in projections]) if projections[0].bias is not None else None
    return _split(affine(x, torch.cat([f.weight for f in projections]), b), projections)


def _split(y: Tensor, projections: Sequence[nn.Linear]) -> Sequence[Tensor]:
    return y.split([f.out_features for f in projections], -1)


def _written(memory: Sequence[Memory], pos: Tensor) -> Sequence[Memory]:
    """The slots up to the last position; all slots where their number must be constant."""
    if not is_readable(pos):
        return memory
    n = int(pos.max()) + 1
    return memory if n >= memory[0].capacity else [layer.prefix(n) for layer in memory]


class Sublayer(nn.Module):
    """Residual sublayer: x + f(LN(x)) (pre-norm), LN(x + f(x)) (post-norm), x + f(x) (none); or without the x.

    >>> Sublayer(nn.LayerNorm(2), "pre", dropout=0.0, residual=True)(torch.ones(1, 2), torch.zeros_like)
    tensor([[1., 1.]])
    """

    def __init__(self, norm: nn.Module, placement: NormPlacement, *, dropout: float, residual: bool) -> None:
        super().__init__()
        self.norm = nn.Identity() if placement == "none" else norm
        self.placement, self.residual, self.dropout = placement, residual, nn.Dropout(dropout)

    def forward(self, x: Tensor, f: Map) -> Tensor:
        """Apply f inside the sublayer."""
        y: Tensor = self.dropout(f(self.norm(x) if self.placement == "pre" else x))
        h = x + y if self.residual else y
        return self.norm(h) if self.placement == "post" else h


class MLP(nn.Module):
    """W_2 act(W_1 x); for swiglu and geglu W_2 (act(W_1 x) * W_3 x) with silu and gelu.

    >>> MLP(8, 32, "swiglu")(torch.randn(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, d: int, d_ff: int, activation: str = "gelu", *, bias: bool = True) -> None:
        super().__init__()
        self.activation = (ACTIVATIONS | {"swiglu": F.silu, "geglu": GELU_TANH})[activation]
        self.W_1, self.W_2 = nn.Linear(d, d_ff, bias=bias), nn.Linear(d_ff, d, bias=bias)
        self.W_3 = nn.Linear(d, d_ff, bias=bias) if activation.endswith("glu") else None

    def forward(self, x: Tensor) -> Tensor:
        """The MLP of each vector: ... d -> ... d."""
        h = self.activation(linear(self.W_1, x))
        return linear(self.W_2, h if self.W_3 is None else h * linear(self.W_3, x))


@dataclass(frozen=True)
class BlockConfig:
    """Configuration of a block. The defaults are the lecture's block of 2019.

    >>> config = BlockConfig(8, heads=2, rms_norm=True)
    >>> config.build_attention().d_k, config.build_norm().eps, config.build_sublayer().placement
    (4, 1e-05, 'pre')
    """

    d: int
    heads: int
    kv_heads: int | None = None
    d_k: int | None = None
    d_v: int | None = None
    d_ff: int | None = None  # width of the MLP; None: 4 d
    activation: str = "gelu"
    norm: NormPlacement = "pre"
    rms_norm: bool = False  # RMSNorm instead of LayerNorm
    eps: float = 1e-5
    residual: bool = True
    dropout: float = 0.0
    bias: LinearBias = True
    cross: bool = False  # a second attention, to a source
    similarity: Callable[[int, int], Similarity] = lambda heads, D: ScaledDot(D)  # number and width of key heads

    def build_attention(self) -> Attention:
        """An attention of the block."""
        similarity = self.similarity(self.kv_heads or self.heads, self.d_k or self.d // self.heads)
        widths = {"kv_heads": self.kv_heads, "d_k": self.d_k, "d_v": self.d_v}
        return Attention(self.d, self.heads, **widths, similarity=similarity, dropout=self.dropout, bias=self.bias)

    def build_norm(self) -> nn.Module:
        """A normalization of the block."""
        return nn.RMSNorm(self.d, self.eps) if self.rms_norm else nn.LayerNorm(self.d, self.eps, bias=self.bias is True)

    def build_sublayer(self) -> Sublayer:
        """A residual sublayer of the block."""
        return Sublayer(self.build_norm(), self.norm, dropout=self.dropout, residual=self.residual)


class Block(nn.Module):
    """Transformer block: self-attention, cross-attention if there is a source, MLP; each in a residual sublayer.

    >>> block, x = Block(BlockConfig(8, heads=2, cross=True)), torch.randn(1, 3, 8)
    >>> source = FixedMemory(*block.source_keys_values(torch.randn(1, 5, 8)))
    >>> block(x, LayerContext(CAUSAL), source=(source, LayerContext())).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention, self.attention_sublayer = config.build_attention(), config.build_sublayer()
        if config.cross:
            self.cross, self.cross_sublayer = config.build_attention(), config.build_sublayer()
        self.mlp = MLP(config.d, config.d_ff or 4 * config.d, config.activation, bias=config.bias is True)
        self.mlp_sublayer = config.build_sublayer()

    def forward(
        self,
        x: Tensor,
        context: LayerContext,
        memory: Memory | None = None,
        source: tuple[FixedMemory, LayerContext] | None = None,
    ) -> Tensor:
        """The next layer of x: B L d."""
        x = self.attention_sublayer(x, lambda h: self.attention(h, context=context, memory=memory))
        if source is not None:
            # no causal mask, unlike the printed lecture: every target token attends to all source tokens
            x = self.cross_sublayer(x, lambda h: self.cross(h, source[0], context=source[1]))
        return self.mlp_sublayer(x, self.mlp)

    def source_keys_values(self, source: Tensor) -> list[Tensor]:
        """Keys and values of a source, B H' L D each. A method of the block, because FSDP gathers its weights."""
        return self.cross.project_heads(source, self.cross.W_k, self.cross.W_v)


class Stack(nn.Module):
    """H^{l+1} = Block(H^l). Structure and positions are computed once for all layers; the model adds `positions`.

    >>> stack, x = Stack(2, BlockConfig(8, heads=2, cross=True)), torch.randn(1, 3, 8)
    >>> memory, source = stack.memory(1, capacity=9), stack.source_memory(torch.randn(1, 5, 8))
    >>> stack(x, pos=torch.arange(3), memory=memory, source=source).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, layers: int, config: BlockConfig, positions: Positions | None = None) -> None:
        super().__init__()
        self.positions = positions or Positions()
        self.blocks: Sequence[Block] = nn.ModuleList(Block(config) for _ in range(layers))  # type: ignore[assignment]

    def forward(
        self,
        x: Tensor,  # B L d
        *,
        structure: Structure = FULL,
        pos: Tensor | None = None,  # L or B L: document positions
        memory: Sequence[Memory] | None = None,
        source: Sequence[FixedMemory] | None = None,
        source_structure: Structure = FULL,
    ) -> Tensor:
        """The last layer of x: B L d."""
        B, L, _ = x.shape
        pos = pos_k = torch.arange(L, device=x.device) if pos is None else pos
        if memory is not None:  # slot and position are equal in a memory, and unwritten slots are later positions
            memory = _written(memory, pos)
            pos_k, structure = torch.arange(memory[0].capacity, device=x.device), (CAUSAL & structure).at_slots(pos)
        layout = structure.layout(B, L, pos_k.shape[-1], x.device, self.positions.bias(pos, pos_k))
        context = LayerContext(layout, self.positions.rotation(pos))
        if source is not None:
            rows = source[0].k.shape[0]  # len() would be a constant in an exported graph
            source_layout = source_structure.layout(rows, B * L // rows, source[0].capacity, x.device)
            cross_context = LayerContext(source_layout)
        for n, block in enumerate(self.blocks):
            x = block(x, context, memory and memory[n], source and (source[n], cross_context))
        return x

    def memory(self, B: int, capacity: int) -> list[Memory]:
        """An empty memory for each layer."""
        attentions, w = [block.attention for block in self.blocks], self.blocks[0].attention.W_k.weight
        zeros = partial(torch.zeros, dtype=w.dtype, device=w.device)
        return [Memory(*(zeros(B, a.kv_heads, capacity, D) for D in (a.d_k, a.d_v))) for a in attentions]

    def source_memory(self, source: Tensor) -> list[FixedMemory]:
        """Keys and values of a source for the cross-attention of each layer, computed once."""
        states = [block.source_keys_values(source) for block in self.blocks]
        if not torch.is_grad_enabled():  # each decoding step reads them
            states = [[x.contiguous() for x in keys_values] for keys_values in states]
        return [FixedMemory(k, v) for k, v in states]
