"""Decoding with a memory, packed and padded batches, and cross-attention to an encoded source."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    BlockConfig,
    FixedMemory,
    LayerContext,
    Learned,
    Memory,
    Positions,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Structure,
    attend,
    bigbird,
    keep,
    same,
    window,
)

d, L = 16, 10
KINDS = {
    "none": Positions,
    "sinusoid": Sinusoid,
    "sinusoid in halves": lambda: Sinusoid("halves"),
    "learned": lambda: Learned(32, d),
    "rotary": lambda: Rotary(4),
    "rotary, interleaved": lambda: Rotary(4, layout="interleaved"),
    "alibi": lambda: Alibi(4),
}
ALL_KINDS = pytest.mark.parametrize("kind", KINDS)


def stack_of(kind: str = "rotary", **config: object) -> Stack:
    """Two layers, two query heads for each key head, in float64."""
    return Stack(2, BlockConfig(d, 4, **{"kv_heads": 2, **config}), KINDS[kind]()).double().eval()


def run(stack: Stack, x: Tensor, pos: Tensor | None = None, structure: Structure = CAUSAL, **inputs: object) -> Tensor:
    """The stack with added positions, as in a model."""
    pos = torch.arange(x.shape[1]) if pos is None else pos
    return stack(stack.positions.add(x, pos), structure=structure, pos=pos, **inputs)


def random_states(*shape: int) -> Tensor:
    return torch.randn(*shape, d, dtype=torch.float64)


def in_pieces(stack: Stack, x: Tensor, pieces: tuple[int, ...], **inputs: object) -> Tensor:
    memory, outputs, start = stack.memory(len(x), 16), [], 0
    for n in pieces:
        pos = torch.arange(start, start + n)
        outputs.append(run(stack, x[:, start : start + n], pos, memory=memory, **inputs))
        start += n
    return torch.cat(outputs, 1)


@ALL_KINDS
@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass(kind: str) -> None:
    stack, x = stack_of(kind), random_states(3, L)
    torch.testing.assert_close(in_pieces(stack, x, (4, 1, 1, 1, 3)), run(stack, x))


@pytest.mark.parametrize(
    "config",
    [
        {"similarity": Additive},
        {"d_k": 4, "d_v": 7},
        {"kv_heads": 1},
        {"norm": "post"},
        {"rms_norm": True, "activation": "swiglu"},
    ],
    ids=str,
)
@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass_for_every_block_config(config: dict[str, object]) -> None:
    stack, x = stack_of(**config), random_states(2, L)
    torch.testing.assert_close(in_pieces(stack, x, (4, 1, 1, 1, 3)), run(stack, x))


@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass_with_a_window() -> None:
    stack, x = stack_of(), random_states(2, L)
    pieces = in_pieces(stack, x, (4, 1, 1, 1, 3), structure=CAUSAL & window(2))
    torch.testing.assert_close(pieces, run(stack, x, structure=CAUSAL & window(2)))


@ALL_KINDS
@torch.no_grad()
def test_rows_of_different_length_decode_as_single_rows(kind: str) -> None:
    stack, long, short = stack_of(kind), random_states(1, 8), random_states(1, 5)
    memory = stack.memory(2, 12)
    start = torch.cat(
        [long[:, :6], torch.cat([short[:, :3], random_states(1, 3)], 1)]
    )  # noise as padding of the short row
    run(stack, start, memory=memory)
    steps = []
    for n in range(2):
        token = torch.cat([long[:, 6 + n : 7 + n], short[:, 3 + n : 4 + n]])
        steps.append(run(stack, token, torch.tensor([[6 + n], [3 + n]]), memory=memory))
    batch = torch.cat(steps, 1)
    torch.testing.assert_close(batch[:1], run(stack, long)[:, 6:])
    torch.testing.assert_close(batch[1:], run(stack, short)[:, 3:])


@pytest.mark.parametrize("structure", [CAUSAL, FULL], ids=lambda s: s.name)
@torch.no_grad()
def test_unwritten_slots_are_masked(structure: Structure) -> None:
    stack, x = stack_of(), random_states(1, 4)
    zeros, noise = stack.memory(1, 9), stack.memory(1, 9)
    for layer in noise:
        layer.k.fill_(1e3)
        layer.v.fill_(-1e3)
    assert torch.equal(run(stack, x, memory=zeros, structure=structure), run(stack, x, memory=noise))


@torch.no_grad()
def test_one_query_at_the_end_of_its_keys_needs_no_mask() -> None:
    q, k, v = random_states(1, 1, 1), random_states(1, 1, L), random_states(1, 1, L)
    assert torch.equal(attend(q, k, v, ScaledDot(d)), attend(q, k, v, ScaledDot(d), CAUSAL))


@torch.no_grad()
def test_a_prompt_needs_the_causal_mask_in_inference() -> None:
    stack, x = stack_of(), random_states(1, L)
    assert (run(stack, x, structure=FULL) - run(stack, x))[:, :-1].abs().max() > 0.1


@torch.no_grad()
def test_a_preallocated_memory_needs_the_causal_mask_in_inference() -> None:
    q, k, v = random_states(1, 1, 1), random_states(1, 1, L), random_states(1, 1, L)
    memory = Memory(k.new_zeros(1, 1, 2 * L, d), k.new_zeros(1, 1, 2 * L, d))
    keys, values = memory.write(k, v, torch.arange(L))
    exact, slot = attend(q, k, v, ScaledDot(d)), torch.tensor([L - 1])
    torch.testing.assert_close(attend(q, keys, values, ScaledDot(d), CAUSAL.at_slots(slot)), exact)
    assert (attend(q, keys, values, ScaledDot(d)) - exact).abs().max() > 0.1


class Recorded(TorchDispatchMode):
    """Operations are recorded, as in a capture: no value may be read."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "local_scalar" not in str(function)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("capacity", [12, 40])  # 40: mostly unwritten
@pytest.mark.parametrize("recorded", [False, True])
@torch.no_grad()
def test_reorder_selects_the_rows_of_a_beam(capacity: int, recorded: bool) -> None:
    stack, x = stack_of(), random_states(3, L)
    survivors, memory = torch.tensor([2, 0, 0]), stack.memory(3, capacity)
    run(stack, x[:, :6], memory=memory)
    pointer = memory[0].k.data_ptr()
    with Recorded() if recorded else nullcontext():
        for layer in memory:
            layer.reorder(torch.tensor([1, 2, 0]), 6)
            layer.reorder(torch.tensor([1, 2, 2]), 6)
    after = run(stack, x[:, 6:], torch.arange(6, L), memory=memory)
    history = torch.cat([x[survivors, :6], x[:, 6:]], 1)
    torch.testing.assert_close(after, run(stack, history)[:, 6:])
    if recorded:
        assert memory[0].k.data_ptr() == pointer  # in place, as a captured CUDA graph requires


def test_a_memory_has_the_widths_and_the_dtype_of_its_layer() -> None:
    memory = Stack(3, BlockConfig(d, 4, kv_heads=2, d_k=6, d_v=5)).bfloat16().memory(7, 20)
    assert [tuple(layer.k.shape) for layer in memory] == [(7, 2, 20, 6)] * 3
    assert [tuple(layer.v.shape) for layer in memory] == [(7, 2, 20, 5)] * 3
    assert memory[0].k.dtype is torch.bfloat16
    assert memory[0].capacity == 20


def test_writing_a_fixed_memory_raises_an_error() -> None:
    memory = FixedMemory(random_states(1, 1, 3), random_states(1, 1, 3))
    with pytest.raises(ValueError, match="a FixedMemory is read-only; use Memory for keys and values that grow"):
        memory.write(random_states(1, 1, 1), random_states(1, 1, 1), torch.tensor([0]))


def test_writing_a_memory_without_slots_raises_an_error() -> None:
    attention = Stack(1, BlockConfig(d, 4)).double().blocks[0].attention
    memory = Memory(random_states(1, 4, 8)[..., :4], random_states(1, 4, 8)[..., :4])
    with pytest.raises(ValueError, match=r"set them with structure\.at_slots\(slots\)"):
        attention(random_states(1, 1), context=LayerContext(CAUSAL), memory=memory)


@torch.no_grad()
def test_source_memory_equals_cross_attention_to_the_source() -> None:
    stack, x, source = stack_of(cross=True), random_states(2, 5), random_states(2, 7)
    h = x
    for block in stack.blocks:
        context = LayerContext(CAUSAL, stack.positions.rotation(torch.arange(5)))
        h = h + block.attention(block.attention_sublayer.norm(h), context=context)
        h = h + block.cross(block.cross_sublayer.norm(h), source)
        h = h + block.mlp(block.mlp_sublayer.norm(h))
    torch.testing.assert_close(run(stack, x, source=stack.source_memory(source)), h)


@ALL_KINDS
@torch.no_grad()
def test_decoding_with_a_source_token_by_token_equals_one_pass(kind: str) -> None:
    stack, x = stack_of(kind, cross=True), random_states(2, L)
    cross = {
        "source": stack.source_memory(random_states(2, 6)),
        "source_structure": keep(torch.arange(6) < torch.tensor([[6], [4]])),
    }
    torch.testing.assert_close(in_pieces(stack, x, (1,) * L, **cross), run(stack, x, **cross))


@torch.no_grad()
def test_the_padding_of_a_source_has_no_effect() -> None:
    stack, x, source = stack_of(cross=True), random_states(1, 5), random_states(1, 7)
    real = torch.arange(7)[None] < 4
    padded = run(stack, x, source=stack.source_memory(source), source_structure=keep(real))
    torch.testing.assert_close(padded, run(stack, x, source=stack.source_memory(source[:, :4])))


@pytest.mark.parametrize("base", [CAUSAL, FULL], ids=lambda s: s.name)
@ALL_KINDS
def test_packed_documents_have_the_values_and_gradients_of_single_documents(kind: str, base: Structure) -> None:
    stack, one, two = stack_of(kind), random_states(1, 4), random_states(1, 6)
    doc = torch.tensor([[0] * 4 + [1] * 6])
    pos = torch.cat([torch.arange(4), torch.arange(6)])[None]
    packed = run(stack, torch.cat([one, two], 1), pos, base & same(doc))
    alone = torch.cat([run(stack, one, structure=base), run(stack, two, structure=base)], 1)
    torch.testing.assert_close(packed, alone)
    weights = list(stack.parameters())
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), weights) for o in (packed, alone)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("base", [CAUSAL, FULL, bigbird(L, w=2, g=0, r=0) & CAUSAL], ids=lambda s: s.name)
@ALL_KINDS
@torch.no_grad()
def test_padded_rows_equal_single_rows(kind: str, base: Structure) -> None:
    stack, x = stack_of(kind), random_states(2, L)
    padded = run(stack, x, structure=base & keep(torch.arange(L) < torch.tensor([[L], [6]])))
    alone = CAUSAL & window(2) if base.pairs else base
    torch.testing.assert_close(padded[:1], run(stack, x[:1], structure=alone))
    torch.testing.assert_close(padded[1:, :6], run(stack, x[1:, :6], structure=alone))
