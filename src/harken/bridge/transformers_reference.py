"""The same model by transformers, as a witness: of a stranger's config it is told only what was checked, and flags.

All of a config.json would reach code that fetches kernels, and sizes that nobody asked for. A flag can do neither, and
one that changes what the model says shows in the certificate.
"""

import inspect
from typing import Any

import torch

from harken.run_folder import Unborn

from .weight_mapping import Config, Source

LIBRARIES = ("transformers", "gguf")  # without which nothing is compared


def witness(family: Config, source: Source) -> Any:
    """Their model with the weights of the source; a ModuleNotFoundError names the library that is missing."""
    import transformers

    kind = source.config["model_type"]
    every, own = (
        inspect.signature(made).parameters.keys()
        for made in (transformers.PretrainedConfig, transformers.CONFIG_MAPPING[kind])
    )
    flags = {name: on for name, on in source.config.items() if name in own - every and type(on) is bool}
    checked = family.model_dump(exclude={"there"}, exclude_unset=True)
    config = transformers.AutoConfig.for_model(kind, **flags | checked, attn_implementation="eager")
    with torch.device("meta"), Unborn():
        made = type(getattr(transformers, family.auto).from_config(config))
    return made.from_pretrained(None, config=config, state_dict=source.tensors(), dtype=torch.float32).eval()
