"""What is kept: decoding with a memory, packed and padded batches, and a source that is read once."""

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    Fixed,
    Learned,
    Memory,
    Place,
    Positions,
    Rotary,
    ScaledDot,
    Sinusoid,
    Stack,
    Structure,
    Wiring,
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


def stack_of(kind: str = "rotary", **wiring: object) -> Stack:
    """Two layers, two query heads for each key head, in float64."""
    return Stack(2, Wiring(d, 4, **{"kv_heads": 2, **wiring}), KINDS[kind]()).double().eval()


def run(stack: Stack, x: Tensor, pos: Tensor | None = None, structure: Structure = CAUSAL, **rest: object) -> Tensor:
    """The stack after its positions, as a model calls it."""
    pos = torch.arange(x.shape[1]) if pos is None else pos
    return stack(stack.positions.add(x, pos), structure=structure, pos=pos, **rest)


def words(*shape: int) -> Tensor:
    return torch.randn(*shape, d, dtype=torch.float64)


def in_pieces(stack: Stack, x: Tensor, pieces: tuple[int, ...], **rest: object) -> Tensor:
    memory, seen, start = stack.memory(len(x), 16), [], 0
    for n in pieces:
        pos = torch.arange(start, start + n)
        seen.append(run(stack, x[:, start : start + n], pos, memory=memory, **rest))
        start += n
    return torch.cat(seen, 1)


@ALL_KINDS
@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass(kind: str) -> None:
    stack, x = stack_of(kind), words(3, L)
    torch.testing.assert_close(in_pieces(stack, x, (4, 1, 1, 1, 3)), run(stack, x))


@pytest.mark.parametrize(
    "wiring",
    [{"similarity": Additive}, {"d_k": 4, "d_v": 7}, {"kv_heads": 1}, {"norm": "post"}, {"rms": True, "act": "swiglu"}],
    ids=str,
)
@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass_for_every_wiring(wiring: dict[str, object]) -> None:
    stack, x = stack_of(**wiring), words(2, L)
    torch.testing.assert_close(in_pieces(stack, x, (4, 1, 1, 1, 3)), run(stack, x))


@torch.no_grad()
def test_decoding_in_pieces_equals_one_pass_behind_a_window() -> None:
    stack, x = stack_of(), words(2, L)
    pieces = in_pieces(stack, x, (4, 1, 1, 1, 3), structure=CAUSAL & window(2))
    torch.testing.assert_close(pieces, run(stack, x, structure=CAUSAL & window(2)))


@ALL_KINDS
@torch.no_grad()
def test_rows_of_different_length_decode_together_as_alone(kind: str) -> None:
    stack, long, short = stack_of(kind), words(1, 8), words(1, 5)
    memory = stack.memory(2, 12)
    start = torch.cat([long[:, :6], torch.cat([short[:, :3], words(1, 3)], 1)])  # the short row is padded with noise
    run(stack, start, memory=memory)
    steps = []
    for n in range(2):
        token = torch.cat([long[:, 6 + n : 7 + n], short[:, 3 + n : 4 + n]])
        steps.append(run(stack, token, torch.tensor([[6 + n], [3 + n]]), memory=memory))
    together = torch.cat(steps, 1)
    torch.testing.assert_close(together[:1], run(stack, long)[:, 6:])
    torch.testing.assert_close(together[1:], run(stack, short)[:, 3:])


@pytest.mark.parametrize("structure", [CAUSAL, FULL], ids=lambda s: s.name)
@torch.no_grad()
def test_unwritten_slots_are_invisible(structure: Structure) -> None:
    stack, x = stack_of(), words(1, 4)
    clean, littered = stack.memory(1, 9), stack.memory(1, 9)
    for layer in littered:
        layer.k.fill_(1e3)
        layer.v.fill_(-1e3)
    assert torch.equal(run(stack, x, memory=clean, structure=structure), run(stack, x, memory=littered))


@torch.no_grad()
def test_one_query_with_a_memory_that_grows_needs_no_mask() -> None:
    q, k, v = words(1, 1, 1), words(1, 1, L), words(1, 1, L)
    assert torch.equal(attend(q, k, v, ScaledDot(d)), attend(q, k, v, ScaledDot(d), CAUSAL))


@torch.no_grad()
def test_the_prompt_needs_the_mask_after_training_too() -> None:
    stack, x = stack_of(), words(1, L)
    assert (run(stack, x, structure=FULL) - run(stack, x))[:, :-1].abs().max() > 0.1


@torch.no_grad()
def test_a_preallocated_memory_needs_the_mask_after_training_too() -> None:
    q, k, v = words(1, 1, 1), words(1, 1, L), words(1, 1, L)
    memory = Memory(k.new_zeros(1, 1, 2 * L, d), k.new_zeros(1, 1, 2 * L, d))
    keys, values = memory.write(k, v, torch.arange(L))
    exact, slot = attend(q, k, v, ScaledDot(d)), torch.tensor([L - 1])
    torch.testing.assert_close(attend(q, keys, values, ScaledDot(d), CAUSAL.at(slot)), exact)
    assert (attend(q, keys, values, ScaledDot(d)) - exact).abs().max() > 0.1


@torch.no_grad()
def test_reordering_follows_the_survivors() -> None:
    stack, x = stack_of(), words(3, L)
    survivors, memory = torch.tensor([2, 0, 0]), stack.memory(3, 12)
    run(stack, x[:, :6], memory=memory)
    place = memory[0].k.data_ptr()
    for layer in memory:
        layer.reorder(survivors)
    after = run(stack, x[:, 6:], torch.arange(6, L), memory=memory)
    history = torch.cat([x[survivors, :6], x[:, 6:]], 1)
    torch.testing.assert_close(after, run(stack, history)[:, 6:])
    assert memory[0].k.data_ptr() == place  # in place, as a captured step needs it


def test_a_memory_has_the_widths_and_the_precision_of_its_layer() -> None:
    memory = Stack(3, Wiring(d, 4, kv_heads=2, d_k=6, d_v=5)).bfloat16().memory(7, 20)
    assert [tuple(layer.k.shape) for layer in memory] == [(7, 2, 20, 6)] * 3
    assert [tuple(layer.v.shape) for layer in memory] == [(7, 2, 20, 5)] * 3
    assert memory[0].k.dtype is torch.bfloat16
    assert memory[0].capacity == 20


def test_a_fixed_memory_refuses_to_be_written() -> None:
    with pytest.raises(ValueError, match="a fixed memory is only read; use Memory for pairs that are still to come"):
        Fixed(words(1, 1, 3), words(1, 1, 3)).write(words(1, 1, 1), words(1, 1, 1), torch.tensor([0]))


def test_a_memory_is_not_written_without_a_place() -> None:
    look = Stack(1, Wiring(d, 4)).double().blocks[0].look
    with pytest.raises(ValueError, match=r"say so with structure.at\(slots\)"):
        look(words(1, 1), place=Place(CAUSAL), memory=Memory(words(1, 4, 8)[..., :4], words(1, 4, 8)[..., :4]))


@torch.no_grad()
def test_a_source_read_once_equals_cross_attention_to_it() -> None:
    stack, x, source = stack_of(cross=True), words(2, 5), words(2, 7)
    h = x
    for block in stack.blocks:
        turned = Place(CAUSAL, stack.positions.turner(torch.arange(5)))
        h = h + block.look(block.look_sub.norm(h), place=turned)
        h = h + block.cross(block.cross_sub.norm(h), source)
        h = h + block.mlp(block.mlp_sub.norm(h))
    torch.testing.assert_close(run(stack, x, source=stack.read(source)), h)


@ALL_KINDS
@torch.no_grad()
def test_translating_word_by_word_equals_one_pass(kind: str) -> None:
    stack, x = stack_of(kind, cross=True), words(2, L)
    read = {"source": stack.read(words(2, 6)), "source_structure": keep(torch.arange(6) < torch.tensor([[6], [4]]))}
    torch.testing.assert_close(in_pieces(stack, x, (1,) * L, **read), run(stack, x, **read))


@torch.no_grad()
def test_the_padding_of_a_source_changes_nothing() -> None:
    stack, x, source = stack_of(cross=True), words(1, 5), words(1, 7)
    real = torch.arange(7)[None] < 4
    padded = run(stack, x, source=stack.read(source), source_structure=keep(real))
    torch.testing.assert_close(padded, run(stack, x, source=stack.read(source[:, :4])))


@pytest.mark.parametrize("family", [CAUSAL, FULL], ids=lambda s: s.name)
@ALL_KINDS
def test_packed_documents_equal_each_alone_with_their_gradients(kind: str, family: Structure) -> None:
    stack, one, two = stack_of(kind), words(1, 4), words(1, 6)
    doc = torch.tensor([[0] * 4 + [1] * 6])
    pos = torch.cat([torch.arange(4), torch.arange(6)])[None]
    packed = run(stack, torch.cat([one, two], 1), pos, family & same(doc))
    alone = torch.cat([run(stack, one, structure=family), run(stack, two, structure=family)], 1)
    torch.testing.assert_close(packed, alone)
    weights = list(stack.parameters())
    for a, b in zip(*(torch.autograd.grad(o.square().sum(), weights) for o in (packed, alone)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("family", [CAUSAL, FULL, bigbird(L, w=2, g=0, r=0) & CAUSAL], ids=lambda s: s.name)
@ALL_KINDS
@torch.no_grad()
def test_padded_rows_equal_each_alone(kind: str, family: Structure) -> None:
    stack, x = stack_of(kind), words(2, L)
    padded = run(stack, x, structure=family & keep(torch.arange(L) < torch.tensor([[L], [6]])))
    alone = CAUSAL & window(2) if family.pairs else family
    torch.testing.assert_close(padded[:1], run(stack, x[:1], structure=alone))
    torch.testing.assert_close(padded[1:, :6], run(stack, x[1:, :6], structure=alone))
