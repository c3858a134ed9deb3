"""Constrained decoding: which tokens a grammar allows next, and which ids no generated text may contain.

The allowed tokens are computed from the text alone: there is no state to carry, reorder or capture. Every allowed token
leaves enough room to complete the text, so a search never reaches a dead end.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

import torch
from torch import Tensor

from harken.data.pairs.trees import MAX_DEPTH, WORD
from harken.data.tokenizers.pairs import SymbolTokenizer, newline_id
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadSetting

MAX_OPEN_RUN = 8  # brackets opened without a word between them; newspaper sentences have up to 6
# texts (with edge marks before and after the tokens), number of words of each, tokens left including the end
AllowedTokens = Callable[[Tensor, Tensor, Tensor], Tensor]  # N C, N, N -> N V


class Grammar(Protocol):
    """A hashable value that defines the valid texts; captured graphs are cached by it."""

    def allowed_tokens(self, device: torch.device) -> AllowedTokens: ...
    def __hash__(self) -> int: ...


class TargetOptions(TypedDict, total=False):
    """Options of a search, beside its settings."""

    banned_ids: Sequence[int]
    prefixes: Sequence[Sequence[int]] | None  # tokens that each target starts with
    indices: Sequence[int] | None  # number of each source's random stream
    grammar: Grammar | None
    n_words: Sequence[int] | None  # number of words of each target under a grammar


@dataclass(frozen=True)
class TreeGrammar:
    """Lines such as (S (NP 1 2 )NP 3 )S over a fixed number of words in these symbols; the edge mark is the last id.

    If the symbols contain XX, every word is XX; otherwise words beyond the largest number repeat that number. If the
    tokens left are too few for all words, the tree has as many as fit; fewer than four tokens allow no tree.
    """

    symbols: tuple[str, ...]

    def allowed_tokens(self, device: torch.device) -> AllowedTokens:
        ids, V = {symbol: n for n, symbol in enumerate(self.symbols)}, len(self.symbols) + 1
        token, step = torch.arange(V, device=device), torch.zeros(V, dtype=torch.long, device=device)
        partner = torch.full_like(step, -1)  # closing id of each opening bracket
        for symbol, opening in ids.items():
            closing = ids.get(f"){symbol[1:]}")
            if symbol[0] == "(" and symbol[1:] and closing is not None:
                step[opening], step[closing], partner[opening] = 1, -1, closing
        numbers = [ids[str(n)] for n in itertools.takewhile(lambda n: str(n) in ids, itertools.count(1))]
        word_ids = torch.tensor([ids[WORD]] if WORD in ids else numbers or [-1], device=device)
        is_word, is_edge = torch.isin(token, word_ids), token == V - 1

        def allowed(texts: Tensor, n_words: Tensor, n_left: Tensor) -> Tensor:
            steps, position = step[texts], torch.arange(texts.shape[1], device=device)  # N C, C
            depths, opens, length = steps.cumsum(1), steps == 1, (~is_edge[texts]).sum(1)
            depth, used = depths[:, -1], is_word[texts].sum(1)
            words_left = n_words.minimum(n_left + length - 3) - used  # 3: the root's two brackets and the end
            innermost = _last(opens & (depths == depth[:, None]), position)  # position of the innermost open bracket
            open_run = length - _last(~opens & (position <= length[:, None]), position)
            may_open = (words_left > 0) & ((depth > 0) | (length == 0))
            may_open &= (depth < MAX_DEPTH) & (open_run < MAX_OPEN_RUN)
            may_open &= words_left + depth + 3 <= n_left  # 3: this bracket and its partner, the end
            may_close = (depth > 0) & (innermost < length) & ((depth > 1) | (words_left <= 0))
            next_word = word_ids[used.clamp_max(len(word_ids) - 1)].where((depth > 0) & (words_left > 0), -1)
            closing = partner[texts.gather(1, innermost[:, None])[:, 0]].where(may_close, -1)
            mask = may_open[:, None] & (step == 1) | (token == next_word[:, None]) | (token == closing[:, None])
            return mask | ((depth == 0) & (length > 0))[:, None] & is_edge

        return allowed


def _last(mask: Tensor, position: Tensor) -> Tensor:  # N C, C -> N
    """The last position where the mask is true; 0 if it is true nowhere."""
    return mask.long().mul(position).amax(1)


def grammar_constraints(grammar: str, tokenizer: Tokenizer, sources: Sequence[str] = ()) -> TargetOptions:
    """The arguments `grammar` and `n_words` of a beam search for these sources; none for grammar "none"."""
    if grammar == "none":
        return {}
    if not isinstance(tokenizer, SymbolTokenizer):
        problem = f"needs one token per bracket, but data.target_tokenizer is {tokenizer.kind}"
        raise BadSetting(f"task.grammar={grammar}: {problem}; set data.target_tokenizer=symbol or task.grammar=none")
    symbols = tuple(tokenizer.token_texts(range(tokenizer.vocab)))
    return {"grammar": TreeGrammar(symbols), "n_words": [len(source.split()) for source in sources]}


def banned_token_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids that a generated text never contains: special tokens and the newline."""
    newline = [] if tokenizer.kind == "wordpiece" else [newline_id(tokenizer)]
    return sorted({*tokenizer.special_ids, *newline} - {*tokenizer.prefix_ids})
