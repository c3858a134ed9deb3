"""Muon: the update of a hidden matrix is its orthogonalized momentum (Jordan 2024).

A few directions dominate the gradient of a matrix; the other directions, just as useful, hardly move. Replacing
M = U S V' by U V' gives all directions the same length. Embeddings, output weights and vectors are left to AdamW.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .parallel import apply_unsharded

# Five iterations of X <- aX + (b XX' + c (XX')^2) X bring every singular value near 1; the coefficients are Jordan's.
ITERATIONS, A, B, C = 5, 3.4445, -4.7750, 2.0315


def orthogonalize(M: Tensor) -> Tensor:
    """Approximate U V' of each matrix M = U S V' of a batch; singular values are between 0.7 and 1.2. M: ... m n."""
    X = M.flatten(0, -3).to(torch.bfloat16) if M.is_cuda else M.flatten(0, -3)
    tall = X.shape[-2] > X.shape[-1]
    X = X.mT if tall else X
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        S = X @ X.mT
        X = torch.baddbmm(X, torch.baddbmm(S, S, S, beta=B, alpha=C), X, beta=A)
    return (X.mT if tall else X).to(M.dtype).view_as(M)


class Muon(torch.optim.Optimizer):
    """Muon for the matrices and AdamW for the rest, with one learning rate: update lengths match those of AdamW."""

    found_inf: Tensor | None = None  # 1 skips the update; the attribute of PyTorch's fused optimizers

    def __init__(self, matrices: Iterable[Tensor], adamw: torch.optim.Optimizer, **settings: float) -> None:
        super().__init__([{"params": list(matrices)}], settings)  # lr, momentum, weight_decay
        self.adamw: Any = adamw
        self.param_groups += adamw.param_groups
        adamw.state = self.state
        self.by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for p in self.param_groups[0]["params"]:
            self.by_shape[tuple(p.shape)].append(p)
        self.momentum: dict[tuple[int, ...], Tensor] = {}  # of all matrices of a shape: N m n

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        group, skip = self.param_groups[0], self.found_inf
        lr = group["lr"] if skip is None else group["lr"] * (1 - skip)
        for shape, matrices in self.by_shape.items():
            # a head that the task does not use has no gradient
            G = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in matrices])
            M = self._momentum(shape)
            G = G if skip is None else torch.where(skip > 0, M, G)
            M.lerp_(G, 1 - group["momentum"])
            nesterov = G.lerp(M, group["momentum"])
            length = 0.2 * max(shape[-2:]) ** 0.5 * lr  # 0.2: typical length of an AdamW update (Liu 2025)
            update = apply_unsharded(orthogonalize, nesterov) * -length
            torch._foreach_mul_(matrices, 1 - lr * group["weight_decay"])
            torch._foreach_add_(matrices, list(update.unbind()))
        self.adamw.found_inf = skip
        self.adamw.step()

    def _momentum(self, shape: tuple[int, ...]) -> Tensor:
        """Momentum of all matrices of a shape in one tensor; the state of each matrix is a view of it."""
        if shape not in self.momentum:
            saved = [self.state[p].get("momentum", torch.zeros_like(p)) for p in self.by_shape[shape]]
            self.momentum[shape] = torch.stack(saved)
            for p, view in zip(self.by_shape[shape], self.momentum[shape], strict=True):
                self.state[p]["momentum"] = view
        return self.momentum[shape]
