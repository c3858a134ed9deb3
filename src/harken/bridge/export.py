"""Our weights in other people's layout: config.json, model.safetensors, tokenizer.json, with a certificate.

The tables of names are those of the import, read the other way. A run has a counterpart if some family's config, read
as an import would read it, gives the model of its recipe again.
"""

import json
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
from harken import run as runs
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.use.model import Run

from . import family
from .certificate import certify, failure
from .folder import Folder

FREE = {"size", "style", "dropout", "word_dropout"}  # what another may choose differently and say the same
ACTS = {"gelu-tanh": "gelu_new", "silu": "swish"}


def _gpt2(shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": shape.d,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "n_positions": shape.context,
        "n_inner": shape.wiring().hidden,
        "activation_function": ACTS.get(shape.act, shape.act),
        "layer_norm_epsilon": shape.eps,
    }


def _llama(shape: Any) -> dict[str, Any]:
    slower = shape.scaling or {}
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
        "intermediate_size": shape.wiring().hidden,
        "max_position_embeddings": shape.context,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_type": kind, "rope_theta": shape.base, **rope},
        "tie_word_embeddings": shape.tied,
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
    kind = "BertForPreTraining" if shape.follows else "BertForMaskedLM" if shape.fill else "BertModel"
    return {
        "architectures": [kind],
        "hidden_size": shape.d,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.hidden or 4 * shape.d,
        "max_position_embeddings": shape.context,
        "type_vocab_size": shape.segments,
        "hidden_act": ACTS.get(shape.act, shape.act),
        "layer_norm_eps": shape.eps,
    }


def _distilbert(shape: Any) -> dict[str, Any]:
    return {
        "architectures": ["DistilBertForMaskedLM" if shape.fill else "DistilBertModel"],
        "dim": shape.d,
        "n_layers": shape.layers,
        "n_heads": shape.heads,
        "hidden_dim": shape.hidden or 4 * shape.d,
        "max_position_embeddings": shape.context,
        "activation": ACTS.get(shape.act, shape.act),
    }


WAYS: dict[str, dict[str, Callable[[Any], dict[str, Any]]]] = {  # for a kind of model, whose it may be
    "gpt": {"gpt2": _gpt2, "llama": _llama, "mistral": _mistral, "qwen2": _qwen2, "gemma": _gemma},
    "bert": {"bert": _bert, "distilbert": _distilbert},
}


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, Any]:
    """Write the run as a folder that transformers loads; the certificate that both say the same lies in it."""
    config, given = counterpart(run)
    with placed(Path(out)) as folder:
        runs.write_json(folder / "config.json", given)
        runs.write_tensors(folder / "model.safetensors", theirs(config, run), {"format": "pt"})
        for name, content in tokens(run).items():
            runs.write_json(folder / name, content)
        listen("certify")
        opened = Folder(folder)
        opened.place = str(run.path)
        certificate = certify(run, family.find(opened), opened)
        if not certificate["passed"]:
            raise HarkenError(f"{run.path}: {failure(certificate)}; nothing was written")
        runs.write_json(folder / "certificate.json", certificate)
    return certificate


def counterpart(run: Run) -> tuple[family.Config, dict[str, Any]]:
    """The family whose config gives this run's model again, and that config."""
    shape, nearest = run.recipe.model, dict[str, str]()
    if run.recipe.model.kind not in WAYS or run.recipe.data.kind != "text":
        raise BadInput(f"{run.path}: a {shape.kind} of {run.recipe.data.kind} has no counterpart in transformers")
    own = _plain(shape)
    for name, way in WAYS[shape.kind].items():
        given = {"model_type": name, "vocab_size": run.tokenizer.vocab, **way(shape)}
        try:
            config = family.family(name).model_validate({**given, "there": _there(shape)})
            again = _plain(recipes.resolve(("export", config.settings())).model)
        except (ValidationError, BadInput):
            continue
        odd = {key: f"model.{key}={again[key]}" for key in own if own[key] != again[key]}
        if not odd:
            return config, given | _ids(run)
        if not nearest or len(odd) < len(nearest):
            nearest = odd
    wanted = ", ".join(nearest.values()) or "other settings"
    raise BadInput(f"{run.path}: this model has no counterpart in transformers; it would have with {wanted}")


def _plain(shape: Any) -> dict[str, Any]:
    """What a shape says, with what it leaves open filled in."""
    made = shape.wiring()
    said = shape.model_dump(exclude=FREE) | {"hidden": made.hidden or 4 * shape.d}
    if shape.kind == "gpt":
        look = {"kv_heads": shape.heads, "d_k": shape.d // shape.heads, "d_v": shape.d // shape.heads}
        said |= {name: said[name] or value for name, value in look.items()} | {"loud": shape.loudness()}
        said |= {} if shape.positions.startswith("rotary") else {"base": None, "scaling": None}
    return dict(said)


def _there(shape: Any) -> frozenset[str]:
    """The tensors by which an encoder's family tells which layers are there."""
    if shape.kind != "bert":
        return frozenset()
    names = {"bert.pooler.dense.weight": shape.pooler, "cls.seq_relationship.weight": shape.follows}
    names |= dict.fromkeys(("cls.predictions.bias", "vocab_projector.bias"), shape.fill)
    return frozenset(name for name, there in names.items() if there)


def theirs(config: family.Config, run: Run) -> dict[str, Tensor]:
    """Our weights by their names."""
    parts: dict[str, list[tuple[int, bool, Tensor]]] = {}
    own = runs.weights(run.model)
    for ours, take in config.names().items():
        first = take.rows[0] if take.rows else 0
        parts.setdefault(take.name, []).append((first, take.turned, take.back(own[ours], run.tokenizer.vocab)))
    made = {}
    for name, some in parts.items():
        joined = torch.cat([part for _, _, part in sorted(some, key=lambda part: part[0])])
        made[name] = joined.mT if some[0][1] and joined.dim() > 1 else joined
    return made


# --- words ------------------------------------------------------------------------------------------------------------


def _ids(run: Run) -> dict[str, Any]:
    """The marks' numbers, as a config has them."""
    words = run.tokenizer
    begin = words.begin[0] if words.begin else words.cls
    found = {"bos_token_id": begin, "eos_token_id": words.end, "pad_token_id": words.pad}
    return {**found, "dtype": "float32", "transformers_version": "4.50.0"}


def tokens(run: Run) -> dict[str, Any]:
    """tokenizer.json, with the marks around a text, and which word is which mark."""
    words = run.tokenizer
    spec = json.loads(words.json)
    if words.cls is not None and spec["post_processor"] is None:
        spec["post_processor"] = _framed(words.words([words.cls, words.sep]), [words.cls, words.sep])
    marks = {"bos_token": words.begin[0] if words.begin else None, "eos_token": words.end, "unk_token": words.unknown}
    marks |= {f"{name}_token": getattr(words, name) for name in ("cls", "sep", "pad", "mask")}
    named = {name: words.words([i])[0] for name, i in marks.items() if i is not None}
    told = ["input_ids", *(["token_type_ids"] if getattr(run.model, "segments", None) else []), "attention_mask"]
    how = {"model_max_length": run.model.context, "clean_up_tokenization_spaces": False, "model_input_names": told}
    return {
        "tokenizer.json": spec,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **how, **named},
    }


def _framed(marks: list[str], ids: list[int]) -> dict[str, Any]:
    """[CLS] a [SEP], and for two texts b [SEP] behind it, in segment 1."""

    def mark(text: str, segment: int = 0) -> dict[str, Any]:
        return {"SpecialToken": {"id": text, "type_id": segment}}

    cls, sep = marks
    one = [mark(cls), {"Sequence": {"id": "A", "type_id": 0}}, mark(sep)]
    known = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in zip(marks, ids, strict=True)}
    two = [*one, {"Sequence": {"id": "B", "type_id": 1}}, mark(sep, 1)]
    return {"type": "TemplateProcessing", "single": one, "pair": two, "special_tokens": known}


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
