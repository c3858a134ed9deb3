"""CTranslate2 with the same weights."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from harken.bridge.ctranslate2_spec import Vocabulary, language_model_spec, write_model
from harken.models.gpt import GPT

from .plan import BenchPlan

NAME = "ctranslate2"


def decode_precisions(plan: BenchPlan) -> Sequence[str]:
    """The precisions that CTranslate2 computes on this device."""
    import ctranslate2

    if plan.device.type == "cuda" and not ctranslate2.get_cuda_device_count():
        return []
    supported = ctranslate2.get_supported_compute_types(plan.device.type)
    return [precision for precision in plan.precisions if precision in supported]


def generation(model: GPT, plan: BenchPlan, precision: str, prompt: Tensor) -> Callable[[], Tensor]:
    """A function that greedily generates the tokens of a turn."""
    import ctranslate2

    names = list(map(str, range(plan.vocab)))
    with TemporaryDirectory() as folder:
        write_model(
            language_model_spec(deepcopy(model).cpu(), plan.settings, Vocabulary(names)), Path(folder), precision
        )
        place = {"device": plan.device.type, "device_index": plan.device.index or 0}
        options: dict[str, Any] = {"compute_type": precision, "intra_threads": torch.get_num_threads()}
        generator = ctranslate2.Generator(folder, **place, **options)
    start = [[names[i] for i in row] for row in prompt.tolist()]
    options = {"max_length": plan.tokens, "end_token": [], "include_prompt_in_result": False}
    return lambda: torch.tensor([output.sequences_ids[0] for output in generator.generate_batch(start, **options)])
