"""Structures draw as text: a row for each query, x where it may attend."""

import copy

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    BlockConfig,
    Dot,
    Stack,
    Structure,
    attend,
    bigbird,
    edges,
    global_tokens,
    keep,
    random_links,
    same,
    window,
)

CPU = torch.device("cpu")


def draw(structure: Structure, Lq: int, Lk: int | None = None, *, b: int = 0) -> str:
    Lk = Lk or Lq
    mask = structure.mask(b + 1, Lq, Lk).expand(b + 1, 1, Lq, Lk)[b, 0]
    return "\n".join("".join("x" if allowed else "." for allowed in row) for row in mask.tolist())


REAL = torch.tensor([[True, True, True, False]])
DRAWINGS = {
    "full": (FULL, "xxxx\nxxxx\nxxxx\nxxxx"),
    "causal": (CAUSAL, "x...\nxx..\nxxx.\nxxxx"),
    "window": (window(1), "xx..\nxxx.\n.xxx\n..xx"),
    "global tokens": (global_tokens(1), "xxxx\nx...\nx...\nx..."),
    "keep": (keep(REAL), "xxx.\nxxx.\nxxx.\nxxx."),
    "same": (same(torch.tensor([[0, 0, 1, 1]])), "xx..\nxx..\n..xx\n..xx"),
    "edges": (edges(torch.tensor([0, 0, 3, 3]), torch.tensor([1, 1, 0, 3]), 4), ".x..\n....\n....\nx..x"),
    "and": (CAUSAL & window(2), "x...\nxx..\nxxx.\n.xxx"),
    "or": (window(1) | global_tokens(1), "xxxx\nxxx.\nxxxx\nx.xx"),
    "not": (~CAUSAL, ".xxx\n..xx\n...x\n...."),
    "three": (CAUSAL & (window(1) | global_tokens(1)) & keep(REAL), "x...\nxx..\nxxx.\nx.x."),
    "with full": (FULL & CAUSAL & FULL, "x...\nxx..\nxxx.\nxxxx"),
    "or full": (FULL | CAUSAL, "xxxx\nxxxx\nxxxx\nxxxx"),
    "not not": (~~window(1), "xx..\nxxx.\n.xxx\n..xx"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_structure_equals_its_drawing(name: str) -> None:
    structure, drawing = DRAWINGS[name]
    assert draw(structure, 4) == drawing


def test_fewer_queries_than_keys_are_at_the_last_slots() -> None:
    assert draw(CAUSAL, 2, 4) == "xxx.\nxxxx"


def test_at_slots_sets_the_slots_of_the_queries() -> None:
    assert draw(CAUSAL.at_slots(torch.tensor([0, 2])), 2, 4) == "x...\nxxx."


def test_at_slots_accepts_slots_per_batch_row() -> None:
    structure = CAUSAL.at_slots(torch.tensor([[0], [2]]))
    assert [draw(structure, 1, 4, b=1), draw(structure, 1, 4, b=1)] == ["xxx.", "xxx."]
    assert structure.mask(2, 1, 4)[0, 0].tolist() == [[True, False, False, False]]


def test_combined_structures_keep_the_slots() -> None:
    assert draw(CAUSAL.at_slots(torch.tensor([1])) & window(0), 1, 4) == ".x.."
    assert draw(window(0) & CAUSAL.at_slots(torch.tensor([1])), 1, 4) == ".x.."
    assert draw(~CAUSAL.at_slots(torch.tensor([1])), 1, 4) == "..xx"


def test_keep_and_same_depend_on_the_batch_row() -> None:
    assert draw(keep(torch.tensor([[True, True], [False, True]])), 2, b=1) == ".x\n.x"
    assert draw(same(torch.tensor([[0, 0], [0, 1]])), 2, b=1) == "x.\n.x"


LISTED = {
    "a window wider than the text": lambda L: bigbird(L, w=L, g=0, r=0),
    "more global tokens than slots": lambda L: bigbird(L, w=0, g=L + 5, r=0),
    "random links": lambda L: random_links(L, 3),
    "bigbird": bigbird,
    "bigbird without global tokens and links": lambda L: bigbird(L, g=0, r=0),
    "edges": lambda L: edges(torch.arange(L), torch.arange(L) * 3 % L, L),
    "bigbird & edges": lambda L: bigbird(L) & edges(torch.arange(L), torch.arange(L) * 3 % L, L),
    "bigbird | edges": lambda L: bigbird(L, w=1) | edges(torch.arange(L), torch.arange(L) * 3 % L, L),
}


@pytest.mark.parametrize("name", LISTED)
def test_listed_pairs_and_predicate_are_the_same_relation(name: str) -> None:
    L = 23
    structure = LISTED[name](L)
    i, j, allowed = structure.layout(1, L, L, CPU).pair_list()
    listed = torch.zeros(L, L, dtype=torch.bool).index_put((i[allowed[0]], j[allowed[0]]), torch.tensor(True))
    assert torch.equal(listed, structure.mask(1, L, L)[0, 0])
    assert len(set(zip(i.tolist(), j.tolist(), strict=True))) == len(i)


def test_bigbird_lists_the_pairs_of_window_global_tokens_and_links() -> None:
    L, w, g, r = 500, 3, 2, 3
    assert len(bigbird(L, w, g, r).pairs[0]) <= L * (2 * w + 1 + 2 * g + r)


def test_structures_without_a_short_list_have_no_pairs() -> None:
    assert [(~bigbird(9)).pairs, (bigbird(9) | CAUSAL).pairs, CAUSAL.pairs, window(2).pairs] == [None] * 4


def test_a_conjunction_keeps_the_shorter_list() -> None:
    assert len((bigbird(30) & edges(torch.tensor([0]), torch.tensor([1]), 30)).pairs[0]) == 1


def test_random_links_depend_on_the_seed() -> None:
    assert draw(random_links(20, 3, seed=1), 20) == draw(random_links(20, 3, seed=1), 20)
    assert draw(random_links(20, 3, seed=1), 20) != draw(random_links(20, 3, seed=2), 20)


def test_random_links_are_uniform_over_the_earlier_keys() -> None:
    i, j = random_links(4000, 5).pairs
    i, j = i[i >= 100], j[i >= 100]
    fraction = (j + 0.5) / (i + 1)  # uniform between 0 and 1: mean 1/2, variance 1/12
    assert 0 < fraction.min() < fraction.max() < 1
    assert abs(fraction.mean().item() - 1 / 2) < 0.01
    assert abs(fraction.var().item() - 1 / 12) < 0.003


def test_a_shorter_text_has_the_random_links_of_a_longer_one() -> None:
    long = random_links(40, 3).mask(1, 40, 40)[0, 0]
    assert torch.equal(random_links(15, 3).mask(1, 15, 15)[0, 0], long[:15, :15])


def test_nodes_beyond_the_graph_have_no_edges() -> None:
    assert draw(edges(torch.tensor([1]), torch.tensor([0]), 2), 3) == "...\nx..\n..."


def test_a_deep_copy_of_a_structure_is_the_same_object():
    assert [copy.deepcopy(s) is s for s in (CAUSAL, FULL, bigbird(9))] == [True] * 3


def test_the_name_of_a_structure_lists_its_parts() -> None:
    assert (CAUSAL & ~window(3) | global_tokens(1)).name == "((causal & ~window(3)) | global_tokens(1))"


def test_only_arithmetic_predicates_are_pointwise() -> None:
    graph = edges(torch.tensor([0]), torch.tensor([1]), 9)
    assert [s.pointwise for s in (bigbird(9), CAUSAL & window(2), ~CAUSAL)] == [True] * 3
    assert [s.pointwise for s in (graph, CAUSAL & graph, ~graph, bigbird(9) | graph)] == [False] * 4


@pytest.mark.parametrize("positions", [None, Alibi(2)], ids=["no bias", "alibi"])
@pytest.mark.parametrize("case", ["fused", "explicit", "sparse", "memory"])
def test_a_mask_is_computed_once_for_all_layers(case: str, positions) -> None:
    calls, pairs = [], bigbird(8).pairs if case == "sparse" else None

    def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        calls.append(1)
        return j <= i

    config = BlockConfig(8, 2, similarity=Additive) if case == "explicit" else BlockConfig(8, 2)
    stack = Stack(4, config, positions)
    memory = stack.memory(3, 12) if case == "memory" else None
    with torch.no_grad():
        stack(torch.randn(3, 8, 8), structure=Structure(allows, "counted", pairs), memory=memory)
    assert len(calls) == 1


@pytest.mark.parametrize("bias", [None, torch.zeros(2, 5, 3)], ids=["no bias", "bias"])
@pytest.mark.parametrize("structure", [~FULL, CAUSAL, CAUSAL & window(1)], ids=lambda s: s.name)
def test_the_kernel_mask_has_no_empty_row(structure: Structure, bias: Tensor | None) -> None:
    mask = structure.layout(1, 5, 3, CPU, bias).dense().kernel  # more queries than keys: the first two precede all keys
    assert (mask if bias is None else mask.isfinite()).any(-1).all()


def test_full_and_causal_attention_build_no_mask(largest) -> None:
    q, k, v = (torch.randn(1, 1, 512, 4) for _ in range(3))
    with largest:
        attend(q, k, v, Dot(), CAUSAL)
        attend(q, k, v, Dot(), FULL)
    assert largest.numel < 512 * 512 / 4


def test_a_mask_that_is_equal_for_all_batch_rows_has_one_row() -> None:
    assert (CAUSAL & window(3)).mask(64, 8, 8).shape == (1, 1, 8, 8)
