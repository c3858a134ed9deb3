"""Log-probabilities of all tokens, and the largest of them. On a CPU both work on parts that stay in its cache."""

import torch
from torch import Tensor

ROWS = 16  # rows that are normalized at a time
BLOCK = 64  # tokens of a block; only the blocks with the largest maxima are searched


def log_softmax(logits: Tensor) -> Tensor:  # rows V
    """ln p of each token; on a CPU the logits are overwritten."""
    if logits.is_cuda:
        return logits.log_softmax(-1)
    for rows in logits.split(ROWS):
        rows.copy_(rows.log_softmax(-1))
    return logits


def largest(x: Tensor, n: int) -> tuple[Tensor, Tensor]:  # rows V -> rows n, rows n
    """The n largest numbers of each row in descending order, and their indices.

    >>> x = torch.arange(1000.0).flip(0)[None]
    >>> largest(x, 2)
    (tensor([[999., 998.]]), tensor([[0, 1]]))
    """
    n_blocks = x.shape[-1] // BLOCK
    if x.is_cuda or n_blocks <= 2 * n:
        values, indices = x.topk(n, -1)
        return values, indices
    rest = n_blocks * BLOCK
    maxima = x[:, :rest].unflatten(1, (n_blocks, BLOCK)).amax(-1)
    blocks = maxima.topk(n, -1, sorted=False).indices  # they contain the n largest: each other block has n larger ones
    searched = (blocks[..., None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    searched = torch.cat([searched, torch.arange(rest, x.shape[1]).expand(len(x), -1)], 1)
    values, order = x.gather(1, searched).topk(n, -1)
    return values, searched.gather(1, order)
