"""Our weights in other people's layout: config.json, model.safetensors, tokenizer.json, with a certificate.

The tables of names are those of the import, read the other way. A run has a counterpart if some family's config, read
as an import would read it, gives the model of its recipe again.
"""

import math
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from harken import recipe as recipes
from harken import run_folder as runs
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.inference.run import Run

from . import special_tokens, weight_mapping
from .certificate import certify, failure
from .families import heads, marian, vit
from .folder import Folder

FREE = {"size", "style", "dropout", "word_dropout", "head_dropout"}  # another may choose it and say the same
FREE |= {
    "block_size",
    "window_blocks",
    "global_blocks",
    "random_blocks",
    "random_seed",
}  # of a structure that has no counterpart
IDLE = {  # what is not asked of a model with a head, or with a source
    "table": {"mlm_head", "nsp_head", "tie_embeddings"},
    "tags": {"mlm_head", "nsp_head", "pool", "pooler"},
    "spans": {"mlm_head", "nsp_head", "pool", "pooler"},
    "images": {"patch"},  # where it is none, the pictures say it
    "pairs": {"head_bias"},  # theirs have one, of zeros
}
FOLLOWS = {
    "rope_base": "positions",
    "rope_scaling": "positions",
    "encoder_norm": "norm",
}  # what is idle under another choice
ACTS = {"gelu-tanh": "gelu_new", "silu": "swish"}
Way = Callable[[Any], dict[str, Any]]  # from a shape of ours to what their config says


def _gpt2(shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": shape.d,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_positions": shape.context,
        "n_inner": shape.wiring().d_ff,
        "activation_function": ACTS.get(shape.activation, shape.activation),
        "layer_norm_epsilon": shape.eps,
    }


def _llama(shape: Any) -> dict[str, Any]:
    slower = shape.rope_scaling or {}
    names = {"low": "low_freq_factor", "high": "high_freq_factor", "context": "original_max_position_embeddings"}
    rope = {names.get(name, name): value for name, value in slower.items()}
    kind = {0: "default", 1: "linear"}.get(len(rope), "llama3")
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.d,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "head_dim": shape.d_k or shape.d // shape.heads,
        "intermediate_size": shape.wiring().d_ff,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_type": kind, "rope_theta": shape.rope_base, **rope},
        "tie_word_embeddings": shape.tie_embeddings,
    }


def _mistral(shape: Any) -> dict[str, Any]:
    back = None if shape.window is None else shape.window + 1  # ours counts the others
    return _llama(shape) | {"architectures": ["MistralForCausalLM"], "sliding_window": back}


def _qwen2(shape: Any) -> dict[str, Any]:
    return _llama(shape) | {"architectures": ["Qwen2ForCausalLM"]}


def _gemma(shape: Any) -> dict[str, Any]:
    act = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    return _llama(shape) | {"architectures": ["GemmaForCausalLM"], **act}


def _bert(shape: Any) -> dict[str, Any]:
    kind = "BertForPreTraining" if shape.nsp_head else "BertForMaskedLM" if shape.mlm_head else "BertModel"
    return {
        "architectures": [kind],
        "hidden_size": shape.d,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.d_ff or 4 * shape.d,
        "max_position_embeddings": shape.context,
        "type_vocab_size": shape.segments,
        "hidden_act": ACTS.get(shape.activation, shape.activation),
        "layer_norm_eps": shape.eps,
    }


def _distilbert(shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["DistilBertForMaskedLM" if shape.mlm_head else "DistilBertModel"],
        "dim": shape.d,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "hidden_dim": shape.d_ff or 4 * shape.d,
        "max_position_embeddings": shape.context,
        "activation": ACTS.get(shape.activation, shape.activation),
    }


def _marian(shape: Any) -> dict[str, Any]:
    depth, hidden = shape.encoder_layers or shape.layers, shape.wiring().d_ff
    return {
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "d_model": shape.d,
        "encoder_layers": depth,
        "decoder_layers": shape.layers,
        **{f"{side}_attention_heads": shape.heads for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": hidden for side in ("encoder", "decoder")},
        "max_position_embeddings": shape.context,
        "activation_function": ACTS.get(shape.activation, shape.activation),
        "scale_embedding": shape.loudness() == math.sqrt(shape.d),
    }


def _bart(shape: Any) -> dict[str, Any]:
    return _marian(shape) | {"architectures": ["BartForConditionalGeneration"]}


def _topped(way: Way, top: str) -> Way:
    """The same body with a head."""
    return lambda shape: way(shape) | {"architectures": [top]}


WAYS: dict[tuple[str, str], dict[str, Way]] = {  # for kinds of data and model, whose it may be
    ("text", "gpt"): {"gpt2": _gpt2, "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "gemma": _gemma},
    ("text", "bert"): {"bert": _bert, "distilbert": _distilbert},
    ("pairs", "transformer"): {"marian": _marian, "bart": _bart},
    ("table", "bert"): {"bert labels": _topped(_bert, "BertForSequenceClassification")},
    ("table", "gpt"): {"gpt2 labels": _topped(_gpt2, "GPT2ForSequenceClassification")},
    ("tags", "bert"): {
        "bert tags": _topped(_bert, "BertForTokenClassification"),
        "distilbert tags": _topped(_distilbert, "DistilBertForTokenClassification"),
    },
    ("images", "vit"): {"vit": vit.config},
    ("spans", "bert"): {
        "bert spans": _topped(_bert, "BertForQuestionAnswering"),
        "distilbert spans": _topped(_distilbert, "DistilBertForQuestionAnswering"),
    },
}


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, Any]:
    """Write the run as a folder that transformers loads; the certificate that both say the same lies in it."""
    config, given = counterpart(run)
    with placed(Path(out)) as folder:
        runs.write_json(folder / "config.json", given)
        runs.write_tensors(folder / "model.safetensors", theirs(config, run), {"format": "pt"})
        for name, content in (vit.pixels(run) if config.check == "pictures" else special_tokens.files(run)).items():
            runs.write_json(folder / name, content)
        listen("certify")
        opened = Folder(folder)
        opened.place = str(run.path)
        certificate = certify(run, config, opened)
        if not certificate["passed"]:
            raise HarkenError(f"{run.path}: {failure(certificate)}; nothing was written")
        runs.write_json(folder / "certificate.json", certificate)
    return certificate


def counterpart(run: Run) -> tuple[weight_mapping.Config, dict[str, Any]]:
    """The family whose config gives this run's model again, and that config."""
    shape, data, nearest = run.recipe.model, run.recipe.data.kind, dict[str, str]()
    if (data, shape.kind) not in WAYS:
        raise BadInput(f"{run.path}: a {shape.kind} of {data} has no counterpart in transformers")
    own = _plain(shape, data)
    told = vit.written(run) if data == "images" else special_tokens.ids(run)
    told |= heads.written(run) if data in ("table", "tags", "spans") else {}
    for name, way in WAYS[data, shape.kind].items():
        given = {"model_type": name.partition(" ")[0], **told, **way(shape)}
        try:
            config = weight_mapping.family(name).model_validate({**given, "there": _there(shape, data)})
            again = _plain(recipes.resolve(("export", config.settings())).model, data)
        except (ValidationError, BadInput):
            continue
        odd = {key: f"model.{key}={again[key]}" for key in own if own[key] != again[key]}
        odd = {key: wish for key, wish in odd.items() if FOLLOWS.get(key) not in odd}
        if not odd:
            return config, given
        if not nearest or len(odd) < len(nearest):
            nearest = odd
    wanted = ", ".join(nearest.values()) or "other settings"
    raise BadInput(f"{run.path}: this model has no counterpart in transformers; it would have with {wanted}")


def _plain(shape: Any, data: str) -> dict[str, Any]:
    """What a shape says, with what it leaves open filled in."""
    made = shape.wiring()
    said = shape.model_dump(exclude=FREE | IDLE.get(data, set())) | {"d_ff": made.d_ff or 4 * shape.d}
    if shape.kind not in ("bert", "vit"):
        look = {"kv_heads": shape.heads, "d_k": shape.d // shape.heads, "d_v": shape.d // shape.heads}
        said |= {name: said[name] or value for name, value in look.items()} | {"embedding_scale": shape.loudness()}
        said |= {} if shape.positions.startswith("rotary") else {"base": None, "scaling": None}
    if shape.kind == "transformer":
        said |= {"encoder_layers": shape.encoder_layers or shape.layers} | marian.alike(shape)
        said |= {} if shape.norm == "pre" else {"encoder_norm": None}
    return dict(said)


def _there(shape: Any, data: str) -> frozenset[str]:
    """The tensors by which an encoder's family tells which layers are there."""
    if shape.kind != "bert":
        return frozenset()
    text = data == "text"
    names = {"bert.pooler.dense.weight": shape.pooler and data in ("text", "table")}
    names |= {"cls.seq_relationship.weight": text and shape.nsp_head}
    names |= dict.fromkeys(("cls.predictions.bias", "vocab_projector.bias"), text and shape.mlm_head)
    return frozenset(name for name, there in names.items() if there)


def theirs(config: weight_mapping.Config, run: Run) -> dict[str, Tensor]:
    """Our weights by their names."""
    own, vocab = runs.weights(run.model), 0 if config.check == "pictures" else special_tokens.plain(run).vocab
    if config.check in ("head", "encoder-decoder"):
        own = (heads if config.check == "head" else marian).folded(run, own)
    parts: dict[str, dict[int, Tensor]] = {}
    turned = {take.name: take.turned for take in config.names().values()}
    for ours, take in config.names().items():
        first, part = take.rows[0] if take.rows else 0, take.back(own[ours], vocab)
        if not torch.equal(parts.setdefault(take.name, {}).setdefault(first, part), part):
            apart = "the words of sources, targets and scores have vectors of their own, and theirs have one table"
            raise BadInput(f"{run.path}: {apart}; train with model.share_embeddings=true model.tie_embeddings=true")
    made = {name: torch.cat([some[n] for n in sorted(some)]) for name, some in parts.items()}
    return {name: tensor.mT if turned[name] and tensor.dim() > 1 else tensor for name, tensor in made.items()}


@contextmanager
def placed(out: Path) -> Iterator[Path]:
    """A folder beside its place, put there when it is whole."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(f"--out {out}: is not empty; choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=".tmp-", dir=out.parent))
    try:
        yield beside
        beside.chmod(0o755)
        beside.replace(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
