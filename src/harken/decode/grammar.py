"""Which tokens may come next, where answers have a grammar.

It is told from what is written: no state has to be carried along, reordered or recorded. Whatever is allowed can still
be brought to an end in the room that is left, so that a search is never led to where nothing is allowed.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from harken.data.pairs.trees import DEEPEST, WORD

IN_A_ROW = 8  # brackets opened without a word between; sentences of newspapers have 6
# texts (edges before and behind what is written), the words each must have, the tokens left to it, its end with them
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # N C, N, N -> N V: may it come?


class Grammar(Protocol):
    """A value that tells answers which are right. Equal ones have equal rules: recordings are kept by it."""

    def rule(self, device: torch.device) -> Rule: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Trees:
    """Lines such as (S (NP 1 2 )NP 3 )S over a given number of words, in these symbols; behind them stands the edge.

    Where XX is among them, every word is XX; else words behind the last number are written as that one. Where the room
    is too small for all words, the tree is one over as many as fit; below four tokens there is none.
    """

    symbols: tuple[str, ...]

    def rule(self, device: torch.device) -> Rule:
        ids, V = {symbol: n for n, symbol in enumerate(self.symbols)}, len(self.symbols) + 1
        token, step = torch.arange(V, device=device), torch.zeros(V, dtype=torch.long, device=device)
        partner = torch.full_like(step, -1)  # what closes a bracket
        for symbol, opens in ids.items():
            closes = ids.get(f"){symbol[1:]}")
            if symbol[0] == "(" and symbol[1:] and closes is not None:
                step[opens], step[closes], partner[opens] = 1, -1, closes
        numbers = [ids[str(n)] for n in itertools.takewhile(lambda n: str(n) in ids, itertools.count(1))]
        names = torch.tensor([ids[WORD]] if WORD in ids else numbers or [-1], device=device)
        word, edge = torch.isin(token, names), token == V - 1

        def rule(texts: Tensor, words: Tensor, room: Tensor) -> Tensor:
            moves, place = step[texts], torch.arange(texts.shape[1], device=device)  # N C, C
            depths, opened, written = moves.cumsum(1), moves == 1, (~edge[texts]).sum(1)
            depth, used = depths[:, -1], word[texts].sum(1)
            left = words.minimum(room + written - 3) - used  # beside them there are the root's brackets and the end
            inner = _last(opened & (depths == depth[:, None]), place)  # where the innermost open bracket stands
            row = written - _last(~opened & (place <= written[:, None]), place)  # how many were opened just now
            begins = (left > 0) & ((depth > 0) | (written == 0)) & (depth < DEEPEST) & (row < IN_A_ROW)
            begins &= left + depth + 3 <= room  # itself, all words, all that closes, the end
            closes = (depth > 0) & (inner < written) & ((depth > 1) | (left <= 0))
            following = names[used.clamp_max(len(names) - 1)].where((depth > 0) & (left > 0), -1)
            closing = partner[texts.gather(1, inner[:, None])[:, 0]].where(closes, -1)
            may = begins[:, None] & (step == 1) | (token == following[:, None]) | (token == closing[:, None])
            return may | ((depth == 0) & (written > 0))[:, None] & edge

        return rule


def _last(true: Tensor, place: Tensor) -> Tensor:  # N C, C -> N
    """The last place where it is true; 0 if there is none."""
    return true.long().mul(place).amax(1)
