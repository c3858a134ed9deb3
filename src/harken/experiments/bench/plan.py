"""The options of a bench, with the defaults of each device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from harken import machine
from harken.errors import BadInput
from harken.events import Listener
from harken.models.gpt import GPTSettings
from harken.recipe import resolve, shipped

GPT2_VOCAB = 50_257
PROMPT = 32  # tokens
CHAR = "char"  # a size: the shape of the recipe for text in characters
CHAR_VOCAB = 65  # characters of Tiny Shakespeare
DEFAULTS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("train", "cuda"): {"size": "124m", "batch": 32, "tokens": 10_240},
    ("train", "cpu"): {"size": CHAR, "batch": 16, "tokens": 1280, "precisions": ("float32",)},
    ("decode", "cuda"): {"size": "124m", "batch": (1, 8), "tokens": 128},
    ("decode", "cpu"): {"size": "124m", "batch": (1, 8), "tokens": 64, "precisions": ("float32", "int8")},
}
QUICK: Mapping[str, Mapping[str, Any]] = {
    "train": {"size": CHAR, "batch": 16, "tokens": 256, "rounds": 3},
    "decode": {"size": "small", "tokens": 32, "rounds": 3},
}


@dataclass(frozen=True)
class BenchPlan:
    """The options of one table."""

    device: torch.device
    settings: GPTSettings
    vocab: int
    size: str
    batch: int
    tokens: int  # of each row in one turn
    rounds: int
    precisions: tuple[str, ...]
    compiled: bool


def make_plans(
    name: str, device: torch.device, options: Mapping[str, object], listen: Listener, *, quick: bool = False
) -> list[BenchPlan]:
    """A plan for each batch size. Missing options have the defaults of the device, or those of a quick bench."""
    default = str(machine.pick_precision("auto", device)).removeprefix("torch.")
    values: dict[str, Any] = {"rounds": 5, "precisions": (default,), "compiled": device.type == "cuda"}
    values |= {**DEFAULTS[name, device.type], **(QUICK[name] if quick else {})}
    defaults = values["precisions"]
    values |= {key: value for key, value in options.items() if value is not None}
    if name == "train":  # int8 is for inference only
        values["precisions"] = tuple(p for p in values["precisions"] if p != "int8") or defaults
    elif device.type == "cuda" and "int8" in values["precisions"]:
        raise BadInput("precision='int8': is supported on a CPU only; use bfloat16")
    size, context, batches = values["size"], values.pop("context", None), values.pop("batch")
    settings, min_context = model_settings(size), PROMPT + values["tokens"] if name == "decode" else 1
    if context is not None and context < min_context:
        problem = f"context={context}: a prompt of {PROMPT} and {values['tokens']} tokens need {min_context}"
        raise BadInput(f"{problem}; use a longer context or fewer tokens")
    if values["compiled"] and (reason := machine.compile_problem(device)):
        listen("notice", text=f"not compiled: {reason}")
        values["compiled"] = False
    # tied random weights repeat the last token, which prompt lookup would guess
    shape = {"context": context or max(settings.context, min_context), "tie_embeddings": name == "train"}
    settings = settings.model_copy(update=shape)
    values["vocab"] = CHAR_VOCAB if size == CHAR else GPT2_VOCAB
    sizes: Sequence[int] = [batches] if isinstance(batches, int) else batches
    return [BenchPlan(device=device, settings=settings, batch=batch, **values) for batch in sizes]


def model_settings(size: str) -> GPTSettings:
    """A GPT-2 of this size."""
    recipe = shipped(CHAR) if size == CHAR else {"model.size": size}
    shape = {key: recipe[key] for key in recipe if key.partition(".")[2] in ("size", "d", "layers", "heads", "context")}
    return cast(GPTSettings, resolve(("bench", {"model.style": "gpt2", **shape})).model)
