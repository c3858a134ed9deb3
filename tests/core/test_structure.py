"""Who may look at whom, drawn as text: a row for each query, x where it may look."""

import copy

import pytest
import torch
from torch import Tensor

from harken.core import (
    CAUSAL,
    FULL,
    Additive,
    Alibi,
    Dot,
    Stack,
    Structure,
    Wiring,
    attend,
    bigbird,
    edges,
    hubs,
    keep,
    random_links,
    same,
    window,
)

CPU = torch.device("cpu")


def drawn(structure: Structure, Lq: int, Lk: int | None = None, *, b: int = 0) -> str:
    Lk = Lk or Lq
    mask = structure.mask(b + 1, Lq, Lk).expand(b + 1, 1, Lq, Lk)[b, 0]
    return "\n".join("".join("x" if allowed else "." for allowed in row) for row in mask.tolist())


REAL = torch.tensor([[True, True, True, False]])
DRAWINGS = {
    "full": (FULL, "xxxx\nxxxx\nxxxx\nxxxx"),
    "causal": (CAUSAL, "x...\nxx..\nxxx.\nxxxx"),
    "window": (window(1), "xx..\nxxx.\n.xxx\n..xx"),
    "hubs": (hubs(1), "xxxx\nx...\nx...\nx..."),
    "keep": (keep(REAL), "xxx.\nxxx.\nxxx.\nxxx."),
    "same": (same(torch.tensor([[0, 0, 1, 1]])), "xx..\nxx..\n..xx\n..xx"),
    "edges": (edges(torch.tensor([0, 0, 3, 3]), torch.tensor([1, 1, 0, 3]), 4), ".x..\n....\n....\nx..x"),
    "and": (CAUSAL & window(2), "x...\nxx..\nxxx.\n.xxx"),
    "or": (window(1) | hubs(1), "xxxx\nxxx.\nxxxx\nx.xx"),
    "not": (~CAUSAL, ".xxx\n..xx\n...x\n...."),
    "three": (CAUSAL & (window(1) | hubs(1)) & keep(REAL), "x...\nxx..\nxxx.\nx.x."),
    "with full": (FULL & CAUSAL & FULL, "x...\nxx..\nxxx.\nxxxx"),
    "or full": (FULL | CAUSAL, "xxxx\nxxxx\nxxxx\nxxxx"),
    "not not": (~~window(1), "xx..\nxxx.\n.xxx\n..xx"),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_structure_is_the_relation_it_is_drawn_as(name: str) -> None:
    structure, picture = DRAWINGS[name]
    assert drawn(structure, 4) == picture


def test_fewer_queries_than_keys_sit_at_the_end() -> None:
    assert drawn(CAUSAL, 2, 4) == "xxx.\nxxxx"


def test_queries_sit_where_they_are_told() -> None:
    assert drawn(CAUSAL.at(torch.tensor([0, 2])), 2, 4) == "x...\nxxx."


def test_each_row_of_the_batch_may_sit_elsewhere() -> None:
    structure = CAUSAL.at(torch.tensor([[0], [2]]))
    assert [drawn(structure, 1, 4, b=1), drawn(structure, 1, 4, b=1)] == ["xxx.", "xxx."]
    assert structure.mask(2, 1, 4)[0, 0].tolist() == [[True, False, False, False]]


def test_slots_survive_a_combination() -> None:
    assert drawn(CAUSAL.at(torch.tensor([1])) & window(0), 1, 4) == ".x.."
    assert drawn(window(0) & CAUSAL.at(torch.tensor([1])), 1, 4) == ".x.."
    assert drawn(~CAUSAL.at(torch.tensor([1])), 1, 4) == "..xx"


def test_keep_and_same_speak_of_each_row_of_the_batch() -> None:
    assert drawn(keep(torch.tensor([[True, True], [False, True]])), 2, b=1) == ".x\n.x"
    assert drawn(same(torch.tensor([[0, 0], [0, 1]])), 2, b=1) == "x.\n.x"


LISTED = {
    "a window wider than the text": lambda L: bigbird(L, w=L, g=0, r=0),
    "more hubs than slots": lambda L: bigbird(L, w=0, g=L + 5, r=0),
    "random links": lambda L: random_links(L, 3),
    "bigbird": bigbird,
    "bigbird without hubs and links": lambda L: bigbird(L, g=0, r=0),
    "edges": lambda L: edges(torch.arange(L), torch.arange(L) * 3 % L, L),
    "bigbird & edges": lambda L: bigbird(L) & edges(torch.arange(L), torch.arange(L) * 3 % L, L),
    "bigbird | edges": lambda L: bigbird(L, w=1) | edges(torch.arange(L), torch.arange(L) * 3 % L, L),
}


@pytest.mark.parametrize("name", LISTED)
def test_the_listed_pairs_and_the_predicate_are_the_same_relation(name: str) -> None:
    L = 23
    structure = LISTED[name](L)
    i, j, allowed = structure.lay(1, L, L, CPU).listed()
    listed = torch.zeros(L, L, dtype=torch.bool).index_put((i[allowed[0]], j[allowed[0]]), torch.tensor(True))
    assert torch.equal(listed, structure.mask(1, L, L)[0, 0])
    assert len(set(zip(i.tolist(), j.tolist(), strict=True))) == len(i)


def test_bigbird_lists_as_many_pairs_as_window_hubs_and_links_have() -> None:
    L, w, g, r = 500, 3, 2, 3
    assert len(bigbird(L, w, g, r).pairs[0]) <= L * (2 * w + 1 + 2 * g + r)


def test_what_has_no_short_list_lists_nothing() -> None:
    assert [(~bigbird(9)).pairs, (bigbird(9) | CAUSAL).pairs, CAUSAL.pairs, window(2).pairs] == [None] * 4


def test_a_conjunction_keeps_the_shorter_list() -> None:
    assert len((bigbird(30) & edges(torch.tensor([0]), torch.tensor([1]), 30)).pairs[0]) == 1


def test_random_links_are_the_same_for_the_same_seed_only() -> None:
    assert drawn(random_links(20, 3, seed=1), 20) == drawn(random_links(20, 3, seed=1), 20)
    assert drawn(random_links(20, 3, seed=1), 20) != drawn(random_links(20, 3, seed=2), 20)


def test_random_links_fall_on_all_keys_up_to_the_query_alike() -> None:
    i, j = random_links(4000, 5).pairs
    i, j = i[i >= 100], j[i >= 100]
    share = (j + 0.5) / (i + 1)  # uniform between 0 and 1: mean 1/2, variance 1/12
    assert 0 < share.min() < share.max() < 1
    assert abs(share.mean().item() - 1 / 2) < 0.01
    assert abs(share.var().item() - 1 / 12) < 0.003


def test_the_random_links_of_a_text_are_those_of_a_longer_one() -> None:
    long = random_links(40, 3).mask(1, 40, 40)[0, 0]
    assert torch.equal(random_links(15, 3).mask(1, 15, 15)[0, 0], long[:15, :15])


def test_edges_beyond_the_graph_do_not_wrap_around() -> None:
    assert drawn(edges(torch.tensor([1]), torch.tensor([0]), 2), 3) == "...\nx..\n..."


def test_a_copy_is_the_structure_itself():
    assert [copy.deepcopy(s) is s for s in (CAUSAL, FULL, bigbird(9))] == [True] * 3


def test_a_structure_is_called_by_what_it_is_made_of() -> None:
    assert (CAUSAL & ~window(3) | hubs(1)).name == "((causal & ~window(3)) | hubs(1))"


def test_only_what_is_arithmetic_goes_into_a_block_kernel() -> None:
    graph = edges(torch.tensor([0]), torch.tensor([1]), 9)
    assert [s.pointwise for s in (bigbird(9), CAUSAL & window(2), ~CAUSAL)] == [True] * 3
    assert [s.pointwise for s in (graph, CAUSAL & graph, ~graph, bigbird(9) | graph)] == [False] * 4


@pytest.mark.parametrize("positions", [None, Alibi(2)], ids=["no bias", "alibi"])
@pytest.mark.parametrize("route", ["fused", "explicit", "sparse", "memory"])
def test_a_mask_is_laid_out_once_for_all_layers(route: str, positions) -> None:
    calls, listed = [], bigbird(8).pairs if route == "sparse" else None

    def allows(b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        calls.append(1)
        return j <= i

    wiring = Wiring(8, 2, similarity=Additive) if route == "explicit" else Wiring(8, 2)
    stack = Stack(4, wiring, positions)
    memory = stack.memory(3, 12) if route == "memory" else None
    with torch.no_grad():
        stack(torch.randn(3, 8, 8), structure=Structure(allows, "counted", listed), memory=memory)
    assert len(calls) == 1


@pytest.mark.parametrize("bias", [None, torch.zeros(2, 5, 3)], ids=["no bias", "bias"])
@pytest.mark.parametrize("structure", [~FULL, CAUSAL, CAUSAL & window(1)], ids=lambda s: s.name)
def test_a_kernel_is_never_given_a_row_without_a_key(structure: Structure, bias: Tensor | None) -> None:
    given = structure.lay(1, 5, 3, CPU, bias).dense()[2]  # more queries than keys: the first two come before them all
    assert (given if bias is None else given.isfinite()).any(-1).all()


def test_the_mask_of_a_flag_is_never_laid_out(largest) -> None:
    q, k, v = (torch.randn(1, 1, 512, 4) for _ in range(3))
    with largest:
        attend(q, k, v, Dot(), CAUSAL)
        attend(q, k, v, Dot(), FULL)
    assert largest.numel < 512 * 512 / 4


def test_what_is_equal_for_all_rows_of_the_batch_is_laid_out_once() -> None:
    assert (CAUSAL & window(3)).mask(64, 8, 8).shape == (1, 1, 8, 8)
