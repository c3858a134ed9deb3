"""Export to Hugging Face layout: config.json, model.safetensors, tokenizer.json, with a certificate.

The weight mappings are those of the import, inverted. A run has a counterpart if importing the config of some family
gives the model settings of its recipe.
"""

from collections.abc import Iterator
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

from . import special_tokens
from .certificate import certify, failure_message
from .families import FAMILIES, HEADS, heads, marian, vit
from .folder import ModelFolder
from .weight_mapping import ModelMapping, first_tensor

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


def export(run: Run, out: str | Path, *, listen: Listener = silent) -> dict[str, object]:
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


def find_counterpart(run: Run) -> tuple[ModelMapping, dict[str, object]]:
    """The mapping and config that reproduce the settings of this run's model."""
    model, data, closest = run.recipe.model, run.recipe.data.kind, dict[str, str]()
    if dict(model).get("copy"):
        problem = "a model that copies has no counterpart in transformers"
        raise BadInput(f"{run.path}: model.copy=true: {problem}; train with model.copy=false")
    kinds = [family for family in (*FAMILIES, *HEADS) if family.architecture and family.data_kind == data]
    if not (families := [family for family in kinds if family.constants["model.kind"] == model.kind]):
        raise BadInput(f"{run.path}: {model.kind} for {data} has no counterpart in transformers")
    settings, comparable = _resolved_settings(model), _comparable_settings(model, data)
    common = vit.image_config(run) if data == "images" else special_tokens.config_ids(run)
    common |= heads.label_config(run) if data in ("table", "tags", "spans") else {}
    for family in families:
        config = {**family.config(settings), **common}
        tables = [table for name, table in family.optional_tables.items() if comparable.get(name)]
        try:
            mapping = family.model_validate({**config, "tensor_names": frozenset(map(first_tensor, tables))})
            imported = _comparable_settings(recipes.resolve(("export", mapping.settings())).model, data)
        except (ValidationError, BadInput):
            continue
        different = {key: f"model.{key}={imported[key]}" for key in comparable if comparable[key] != imported[key]}
        different = {key: text for key, text in different.items() if DEPENDENT_SETTINGS.get(key) not in different}
        if not different:
            return mapping, config
        if not closest or len(different) < len(closest):
            closest = different
    required = ", ".join(closest.values()) or "other settings"
    raise BadInput(f"{run.path}: this model has no counterpart in transformers; it needs {required}")


def _resolved_settings(model: Any) -> dict[str, Any]:
    """The model settings with defaults resolved."""
    settings = model.model_dump() | {"d_ff": model.block_config().d_ff or 4 * model.d}
    if model.kind not in ("bert", "vit"):
        defaults = {"kv_heads": model.heads, "d_k": model.d // model.heads, "d_v": model.d // model.heads}
        settings |= {name: settings[name] or value for name, value in defaults.items()}
        settings["embedding_scale"] = model.resolved_embedding_scale()
    if model.kind == "transformer":
        settings["encoder_layers"] = model.encoder_layers or model.layers
    return dict(settings)


def _comparable_settings(model: Any, data: str) -> dict[str, Any]:
    """The model settings that determine the outputs; settings that `marian.fold_weights` makes equal are equal."""
    settings = _resolved_settings(model)
    if model.kind not in ("bert", "vit") and not model.positions.startswith("rotary"):
        settings |= {"rope_base": None, "rope_scaling": None}
    if model.kind == "transformer":
        positions = "sinusoid-halves" if model.positions == "sinusoid" else model.positions
        encoder_norm = model.encoder_norm if model.norm == "pre" else None
        settings |= {"embedding_scale": None, "positions": positions, "encoder_norm": encoder_norm}
    ignored = IGNORED_SETTINGS | UNUSED_SETTINGS.get(data, set())
    return {name: value for name, value in settings.items() if name not in ignored}


def export_tensors(mapping: ModelMapping, run: Run) -> dict[str, Tensor]:
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
        tensor = item.export_tensor(weights[ours], vocab_size)
        if not torch.equal(parts.setdefault(item.name, {}).setdefault(item.part or 0, tensor), tensor):
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
