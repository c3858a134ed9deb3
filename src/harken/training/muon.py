"""Muon: the momentum of a hidden matrix, with all its directions made equally long, is the update (Jordan 2024).

A gradient of a matrix is dominated by a few directions; the others, just as needed, hardly move. Replacing M = U S V' by
U V' gives each its turn. The rest (embeddings, word scores, vectors) has no such shape and is left to AdamW.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Five rounds of X <- aX + (b XX' + c (XX')^2) X bring every singular value near 1; the numbers are Jordan's.
ROUNDS, A, B, C = 5, 3.4445, -4.7750, 2.0315


def orthogonal(M: Tensor) -> Tensor:
    """Nearly U V' of each matrix M = U S V' of a batch; singular values come out between 0.7 and 1.2. M: N m n."""
    X = M.to(torch.bfloat16) if M.is_cuda else M
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ROUNDS):
        S = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=B, alpha=C), X, beta=A)
    return (X.mT if tall else X).to(M.dtype)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices, AdamW for the rest, at one learning rate: an update is as long as AdamW's would be."""

    def __init__(self, matrices: Iterable[Tensor], rest: torch.optim.Optimizer, **settings: float) -> None:
        super().__init__([{"params": list(matrices)}], settings)  # lr, momentum, weight_decay
        self.rest = rest
        self.param_groups += rest.param_groups
        rest.state = self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for p in group["params"]:
            if p.grad is not None:
                alike[tuple(p.shape)].append(p)
        for (m, n), matrices in alike.items():
            for p in matrices:
                if p not in self.state:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            gradients = [p.grad for p in matrices if p.grad is not None]
            moments = [self.state[p]["momentum"] for p in matrices]
            torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
            ahead = torch._foreach_lerp(gradients, moments, group["momentum"])  # Nesterov: where it is going to be
            updates = orthogonal(torch.stack(ahead)) * (0.2 * max(m, n) ** 0.5)  # AdamW's usual length (Liu 2025)
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(updates.unbind()), alpha=-group["lr"])
        self.rest.step()
