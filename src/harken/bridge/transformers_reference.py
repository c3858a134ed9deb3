"""The same model in transformers, as a reference. Of an untrusted config it receives only validated fields and flags.

A complete config.json could reach code that fetches kernels, or unchecked sizes. A boolean flag can do neither, and one
that changes the outputs shows in the certificate.
"""

import inspect

import torch
from torch import nn

from harken.run_folder import SkipInit

from .weight_mapping import ModelMapping, WeightSource

LIBRARIES = ("transformers", "gguf")  # needed for any comparison


def reference_model(mapping: ModelMapping, source: WeightSource) -> nn.Module:
    """The transformers model with the weights of the source; ModuleNotFoundError names a missing library."""
    import transformers

    kind = source.config["model_type"]
    common, specific = (
        inspect.signature(config_class).parameters.keys()
        for config_class in (transformers.PretrainedConfig, transformers.CONFIG_MAPPING[kind])
    )
    flags = {name: on for name, on in source.config.items() if name in specific - common and type(on) is bool}
    validated = mapping.model_dump(exclude={"tensor_names"}, exclude_unset=True, by_alias=True)
    config = transformers.AutoConfig.for_model(kind, **flags | validated, attn_implementation="eager")
    with torch.device("meta"), SkipInit():
        model_class = type(getattr(transformers, mapping.auto_class).from_config(config))
    return model_class.from_pretrained(None, config=config, state_dict=source.tensors(), dtype=torch.float32).eval()
