"""Muon: the momentum of a hidden matrix, with all its directions made equally long, is the update (Jordan 2024).

A gradient of a matrix is dominated by a few directions; the others, just as needed, hardly move. Replacing M = U S V'
by U V' gives each its turn. The rest (embeddings, word scores, vectors) has no such shape and is left to AdamW.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .parallel import in_one_piece

# Five rounds of X <- aX + (b XX' + c (XX')^2) X bring every singular value near 1; the numbers are Jordan's.
ROUNDS, A, B, C = 5, 3.4445, -4.7750, 2.0315


def orthogonal(M: Tensor) -> Tensor:
    """Nearly U V' of each matrix M = U S V' of a batch; singular values come out between 0.7 and 1.2. M: ... m n."""
    X = M.flatten(0, -3).to(torch.bfloat16) if M.is_cuda else M.flatten(0, -3)
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    # a GPU takes all matrices of a shape at once; a CPU's products are faster one by one
    X = _rounds(X) if M.is_cuda else torch.stack([_rounds(x[None])[0] for x in X])
    return (X.mT if tall else X).to(M.dtype).view_as(M)


def _rounds(X: Tensor) -> Tensor:
    for _ in range(ROUNDS):
        S = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=B, alpha=C), X, beta=A)
    return X


class Muon(torch.optim.Optimizer):
    """Muon for the matrices, AdamW for the rest, at one learning rate: an update is as long as AdamW's would be."""

    found_inf: Tensor | None = None  # 1: nothing is updated (PyTorch's own name for it, in its fused rules)

    def __init__(self, matrices: Iterable[Tensor], rest: torch.optim.Optimizer, **settings: Any) -> None:
        super().__init__([{"params": list(matrices)}], settings)  # lr, momentum, weight_decay
        self.rest: Any = rest
        self.param_groups += rest.param_groups
        rest.state = self.state
        self.alike: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for p in self.param_groups[0]["params"]:
            self.alike[tuple(p.shape)].append(p)
        self.moments: dict[tuple[int, ...], Tensor] = {}  # of all matrices of a shape: N m n

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        group, odd = self.param_groups[0], self.found_inf
        lr = group["lr"] if odd is None else group["lr"] * (1 - odd)
        for shape, matrices in self.alike.items():
            # a head that this task does not ask has no gradient
            G = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in matrices])
            M = self._moment(shape)
            G = G if odd is None else torch.where(odd > 0, M, G)
            M.lerp_(G, 1 - group["momentum"])
            ahead = G.lerp(M, group["momentum"])  # Nesterov: where it is going to be
            length = 0.2 * max(shape[-2:]) ** 0.5 * lr  # 0.2: AdamW's usual length (Liu 2025)
            update = in_one_piece(orthogonal, ahead) * -length
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
            torch._foreach_add_(matrices, list(update.unbind()))
        self.rest.found_inf = odd
        self.rest.step()

    def _moment(self, shape: tuple[int, ...]) -> Tensor:
        """The moments of a shape in one piece; what is saved of each matrix is its part of it."""
        if shape not in self.moments:
            saved = [self.state[p].get("momentum", torch.zeros_like(p)) for p in self.alike[shape]]
            self.moments[shape] = torch.stack(saved)
            for p, part in zip(self.alike[shape], self.moments[shape], strict=True):
                self.state[p]["momentum"] = part
        return self.moments[shape]
