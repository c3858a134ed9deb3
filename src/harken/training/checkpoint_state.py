"""The state that a run needs to resume bitwise, as named tensors: weights, optimizer state, random states."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Tensors of the optimizer state, named `weight/key`."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    states = ((names[p], state) for p, state in optimizer.state.items())
    return {f"{name}/{key}": x for name, state in states for key, x in state.items() if isinstance(x, Tensor)}


def load_optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for path, value in saved.items():
        name, key = path.rsplit("/", 1)
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device, copy=True)


def rng_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"cuda{n}": s for n, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def load_rng_state(saved: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(saved["cpu"])
    if torch.cuda.is_available() and "cuda0" in saved:
        torch.cuda.set_rng_state_all([saved[f"cuda{n}"] for n in range(min(len(saved) - 1, torch.cuda.device_count()))])


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": tensor for name, tensor in tensors.items()}


def strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with this prefix, without the prefix."""
    return {n.removeprefix(f"{prefix}:"): t for n, t in tensors.items() if n.startswith(f"{prefix}:")}
