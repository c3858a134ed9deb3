"""Which tokens may come next, where answers have a grammar.

It is told from what is written: no state has to be carried along, reordered or recorded. Whatever is allowed can still
be brought to an end in the room that is left, so that a search is never led to where nothing is allowed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from harken.data.trees import DEEPEST, WORD

IN_A_ROW = 8  # brackets opened without a word between; sentences of newspapers have 6
# texts (edges before and behind what is written), the words each must have, the tokens left to it, its end with them
Rule = Callable[[Tensor, Tensor, Tensor], Tensor]  # N C, N, N -> N V: may it come?


class Grammar(Protocol):
    """A value that tells answers which are right. Equal ones have equal rules: recordings are kept by it."""

    def rule(self, device: torch.device) -> Rule: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True)
class Trees:
    """Lines such as (S (NP XX )NP )S over a given number of words, in these symbols; behind them stands the edge.

    Where the room is too small for all words, the tree is one over as many as fit; below four tokens there is none.
    """

    symbols: tuple[str, ...]

    def rule(self, device: torch.device) -> Rule:
        ids = {symbol: n for n, symbol in enumerate(self.symbols)}
        pairs = [(ids[s], ids[f"){s[1:]}"]) for s in ids if s[0] == "(" and s[1:] and f"){s[1:]}" in ids]
        V = len(self.symbols) + 1
        token, step = torch.arange(V, device=device), torch.zeros(V, dtype=torch.long, device=device)
        partner = torch.full_like(step, -1)  # what closes a bracket
        for opens, closes in pairs:
            step[opens], step[closes], partner[opens] = 1, -1, closes
        word, edge = token == ids.get(WORD, -1), token == V - 1

        def rule(texts: Tensor, words: Tensor, room: Tensor) -> Tensor:
            moves, place = step[texts], torch.arange(texts.shape[1], device=device)  # N C, C
            depths, written = moves.cumsum(1), (~edge[texts]).sum(1)
            depth, opened = depths[:, -1], moves == 1
            left = words.minimum(room + written - 3) - word[texts].sum(
                1
            )  # a root has two brackets, and there is an end
            inner = (
                (opened & (depths == depth[:, None])).long().mul(place).amax(1)
            )  # where the innermost one was opened
            other = (~opened & (place <= written[:, None])).long().mul(place).amax(1)  # the last that opened none
            closing = partner[texts.gather(1, inner[:, None])]  # N 1
            begins = (left > 0) & ((depth > 0) | (written == 0)) & (depth < DEEPEST) & (written - other < IN_A_ROW)
            begins &= left + depth + 3 <= room  # itself, all words, all that closes, the end
            closes = (depth > 0) & (inner < written) & ((depth > 1) | (left <= 0))
            ends = (depth == 0) & (written > 0)
            may = begins[:, None] & (step == 1) | ((depth > 0) & (left > 0))[:, None] & word
            return may | closes[:, None] & (token == closing) | ends[:, None] & edge

        return rule
