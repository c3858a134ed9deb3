"""Export to Hugging Face layout: config.json, model.safetensors, tokenizer.json, with a certificate.

The weight mappings are those of the import, inverted. A run has a counterpart if importing the config of some family
gives the model settings of its recipe.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from harken import recipe as recipes
from harken import run_folder
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.files import atomic_folder
from harken.inference.run import Run

from . import special_tokens, weight_mapping
from .certificate import certify, failure_message
from .families import heads, marian, vit
from .folder import ModelFolder

IGNORED_SETTINGS = {"size", "style", "dropout", "word_dropout", "head_dropout"}  # without effect on the outputs
IGNORED_SETTINGS |= {"block_size", "window_blocks", "global_blocks", "random_blocks", "random_seed"}  # of BigBird
UNUSED_SETTINGS = {  # by data kind
    "table": {"mlm_head", "nsp_head", "tie_embeddings"},
    "tags": {"mlm_head", "nsp_head", "pool", "pooler"},
    "spans": {"mlm_head", "nsp_head", "pool", "pooler"},
    "images": {"patch"},  # None: derived from the image size
    "pairs": {"head_bias"},  # theirs may be zero
}
DEPENDENT_SETTINGS = {"rope_base": "positions", "rope_scaling": "positions", "encoder_norm": "norm"}  # setting: parent
ACTIVATIONS = {"gelu-tanh": "gelu_new", "silu": "swish"}
ConfigBuilder = Callable[[Any], dict[str, Any]]  # our model settings -> config.json


def _gpt2(model: Any) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": model.d,
        "n_layer": model.layers,
        "n_head": model.heads,
        "n_positions": model.context,
        "n_inner": model.block_config().d_ff,
        "activation_function": ACTIVATIONS.get(model.activation, model.activation),
        "layer_norm_epsilon": model.eps,
    }


def _llama(model: Any) -> dict[str, Any]:
    scaling = model.rope_scaling or {}
    names = {"low": "low_freq_factor", "high": "high_freq_factor", "context": "original_max_position_embeddings"}
    rope = {names.get(name, name): value for name, value in scaling.items()}
    kind = {0: "default", 1: "linear"}.get(len(rope), "llama3")
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": model.d,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads or model.heads,
        "head_dim": model.d_k or model.d // model.heads,
        "intermediate_size": model.block_config().d_ff,
        "max_position_embeddings": model.context,
        "hidden_act": "silu",
        "rms_norm_eps": model.eps,
        "rope_parameters": {"rope_type": kind, "rope_theta": model.rope_base, **rope},
        "tie_word_embeddings": model.tie_embeddings,
    }


def _mistral(model: Any) -> dict[str, Any]:
    window = None if model.window is None else model.window + 1  # theirs includes the token itself
    return _llama(model) | {"architectures": ["MistralForCausalLM"], "sliding_window": window}


def _qwen2(model: Any) -> dict[str, Any]:
    return _llama(model) | {"architectures": ["Qwen2ForCausalLM"]}


def _gemma(model: Any) -> dict[str, Any]:
    act = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    return _llama(model) | {"architectures": ["GemmaForCausalLM"], **act}


def _bert(model: Any) -> dict[str, Any]:
    kind = "BertForPreTraining" if model.nsp_head else "BertForMaskedLM" if model.mlm_head else "BertModel"
    return {
        "architectures": [kind],
        "hidden_size": model.d,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.d_ff or 4 * model.d,
        "max_position_embeddings": model.context,
        "type_vocab_size": model.segments,
        "hidden_act": ACTIVATIONS.get(model.activation, model.activation),
        "layer_norm_eps": model.eps,
    }


def _distilbert(model: Any) -> dict[str, Any]:
    return {
        "architectures": ["DistilBertForMaskedLM" if model.mlm_head else "DistilBertModel"],
        "dim": model.d,
        "n_layers": model.layers,
        "n_heads": model.heads,
        "hidden_dim": model.d_ff or 4 * model.d,
        "max_position_embeddings": model.context,
        "activation": ACTIVATIONS.get(model.activation, model.activation),
    }


def _marian(model: Any) -> dict[str, Any]:
    depth, hidden = model.encoder_layers or model.layers, model.block_config().d_ff
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "d_model": model.d,
        "encoder_layers": depth,
        "decoder_layers": model.layers,
        **{f"{side}_attention_heads": model.heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": hidden for side in ("encoder", "decoder")},
        "max_position_embeddings": model.context,
        "activation_function": ACTIVATIONS.get(model.activation, model.activation),
        "scale_embedding": model.resolved_embedding_scale() == math.sqrt(model.d),
    }


def _bart(model: Any) -> dict[str, Any]:
    return _marian(model) | {"architectures": ["BartForConditionalGeneration"]}


def _with_head(body: ConfigBuilder, architecture: str) -> ConfigBuilder:
    """The same body with a head."""
    return lambda model: body(model) | {"architectures": [architecture]}


EXPORTERS: dict[tuple[str, str], dict[str, ConfigBuilder]] = {  # (data kind, model kind): candidate families
    ("text", "gpt"): {"gpt2": _gpt2, "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "gemma": _gemma},
    ("text", "bert"): {"bert": _bert, "distilbert": _distilbert},
    ("pairs", "transformer"): {"marian": _marian, "bart": _bart},
    ("table", "bert"): {"bert labels": _with_head(_bert, "BertForSequenceClassification")},
    ("table", "gpt"): {"gpt2 labels": _with_head(_gpt2, "GPT2ForSequenceClassification")},
    ("tags", "bert"): {
        "bert tags": _with_head(_bert, "BertForTokenClassification"),
        "distilbert tags": _with_head(_distilbert, "DistilBertForTokenClassification"),
    },
    ("images", "vit"): {"vit": vit.vit_config},
    ("spans", "bert"): {
        "bert spans": _with_head(_bert, "BertForQuestionAnswering"),
        "distilbert spans": _with_head(_distilbert, "DistilBertForQuestionAnswering"),
    },
}


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, Any]:
    """Write a folder that transformers loads, with the parity certificate."""
    mapping, config = find_counterpart(run)
    with staged_folder(Path(out)) as folder:
        run_folder.write_json(folder / "config.json", config)
        run_folder.write_tensors(folder / "model.safetensors", export_tensors(mapping, run), {"format": "pt"})
        files = vit.preprocessor_files(run) if mapping.check == "images" else special_tokens.tokenizer_files(run)
        for name, content in files.items():
            run_folder.write_json(folder / name, content)
        listen("certify")
        source = ModelFolder(folder)
        source.location = str(run.path)
        certificate = certify(run, mapping, source)
        if not certificate["passed"]:
            raise HarkenError(f"{run.path}: {failure_message(certificate)}; nothing was written")
        run_folder.write_json(folder / "certificate.json", certificate)
    return certificate


def find_counterpart(run: Run) -> tuple[weight_mapping.ModelMapping, dict[str, Any]]:
    """The mapping and config that reproduce the settings of this run's model."""
    model, data, closest = run.recipe.model, run.recipe.data.kind, dict[str, str]()
    if (data, model.kind) not in EXPORTERS:
        raise BadInput(f"{run.path}: {model.kind} for {data} has no counterpart in transformers")
    settings = _comparable_settings(model, data)
    common = vit.image_config(run) if data == "images" else special_tokens.config_ids(run)
    common |= heads.label_config(run) if data in ("table", "tags", "spans") else {}
    for family, build_config in EXPORTERS[data, model.kind].items():
        config = {"model_type": family.partition(" ")[0], **common, **build_config(model)}
        try:
            fields = {**config, "tensor_names": _tensor_names(model, data)}
            mapping = weight_mapping.mapping_class(family).model_validate(fields)
            imported = _comparable_settings(recipes.resolve(("export", mapping.settings())).model, data)
        except (ValidationError, BadInput):
            continue
        different = {key: f"model.{key}={imported[key]}" for key in settings if settings[key] != imported[key]}
        different = {key: text for key, text in different.items() if DEPENDENT_SETTINGS.get(key) not in different}
        if not different:
            return mapping, config
        if not closest or len(different) < len(closest):
            closest = different
    required = ", ".join(closest.values()) or "other settings"
    raise BadInput(f"{run.path}: this model has no counterpart in transformers; it needs {required}")


def _comparable_settings(model: Any, data: str) -> dict[str, Any]:
    """The model settings that determine the outputs, with defaults resolved."""
    block = model.block_config()
    settings = model.model_dump(exclude=IGNORED_SETTINGS | UNUSED_SETTINGS.get(data, set())) | {
        "d_ff": block.d_ff or 4 * model.d
    }
    if model.kind not in ("bert", "vit"):
        defaults = {"kv_heads": model.heads, "d_k": model.d // model.heads, "d_v": model.d // model.heads}
        settings |= {name: settings[name] or value for name, value in defaults.items()} | {
            "embedding_scale": model.resolved_embedding_scale()
        }
        settings |= {} if model.positions.startswith("rotary") else {"rope_base": None, "rope_scaling": None}
    if model.kind == "transformer":
        settings |= {"encoder_layers": model.encoder_layers or model.layers} | marian.equivalent_settings(model)
        settings |= {} if model.norm == "pre" else {"encoder_norm": None}
    return dict(settings)


def _tensor_names(model: Any, data: str) -> frozenset[str]:
    """The tensors that show which layers an encoder has."""
    if model.kind != "bert":
        return frozenset()
    is_text = data == "text"
    names = {"bert.pooler.dense.weight": model.pooler and data in ("text", "table")}
    names |= {"cls.seq_relationship.weight": is_text and model.nsp_head}
    names |= dict.fromkeys(("cls.predictions.bias", "vocab_projector.bias"), is_text and model.mlm_head)
    return frozenset(name for name, exists in names.items() if exists)


def export_tensors(mapping: weight_mapping.ModelMapping, run: Run) -> dict[str, Tensor]:
    """Our weights, under the names and in the layout of transformers."""
    weights, weight_map = run_folder.weights(run.model), mapping.weight_map()
    vocab_size = 0 if mapping.check == "images" else special_tokens.base_tokenizer(run).vocab
    if mapping.check == "head":
        weights = heads.fold_head(run, weights)
    elif mapping.check == "encoder-decoder":
        weights = marian.fold_weights(run, weights)
    parts: dict[str, dict[int, Tensor]] = {}
    transposed = {item.name for item in weight_map.values() if item.transposed}
    for ours, item in weight_map.items():
        first_row, part = item.rows[0] if item.rows else 0, item.export_tensor(weights[ours], vocab_size)
        if not torch.equal(parts.setdefault(item.name, {}).setdefault(first_row, part), part):
            problem = "source, target and output embeddings differ; transformers has one table for all"
            raise BadInput(f"{run.path}: {problem}; train with model.share_embeddings=true model.tie_embeddings=true")
    tensors = {name: torch.cat([rows[n] for n in sorted(rows)]) for name, rows in parts.items()}
    return {name: tensor.mT if name in transposed and tensor.dim() > 1 else tensor for name, tensor in tensors.items()}


@contextmanager
def staged_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `out` when it is complete."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out {out}: is not empty; choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(out) as folder:
        yield folder
