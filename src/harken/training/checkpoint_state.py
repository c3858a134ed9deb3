"""All that a run needs to go on as if nothing had happened, as tensors with names: weights, moments, random states."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimiser remembers of each weight, as `weight/what`."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}/{what}": value
        for p, memory in optimizer.state.items()
        for what, value in memory.items()
        if isinstance(value, Tensor)
    }


def load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for key, value in saved.items():
        name, what = key.rsplit("/", 1)
        optimizer.state[parameters[name]][what] = value.to(parameters[name].device, copy=True)


def random_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{n}": s for n, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def load_random_state(saved: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(saved["cpu"])
    if torch.cuda.is_available() and "cuda0" in saved:
        torch.cuda.set_rng_state_all([saved[f"cuda{n}"] for n in range(min(len(saved) - 1, torch.cuda.device_count()))])


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": tensor for name, tensor in tensors.items()}


def of(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {n.removeprefix(f"{prefix}:"): t for n, t in tensors.items() if n.startswith(f"{prefix}:")}
