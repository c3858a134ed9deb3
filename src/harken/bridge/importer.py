"""Import the weights of other libraries into a run folder: check, read, write, compare with the original."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harken import __version__, machine, run_folder
from harken import recipe as recipes
from harken.data.cache import cache_folder
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.source import Processor
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.files import check_path, write_atomic
from harken.inference.loaded_model import build_model
from harken.inference.run import Run
from harken.inference.run import load as load_run

from . import weight_mapping
from .certificate import ReferenceOutputs, certify, failure_message
from .families import find_mapping
from .folder import ModelFolder
from .gguf import GGUFFile
from .hub import locate_model

MEMORY_FACTOR = 2.5  # memory needed for an import, relative to the weights in float32
RUN_FILES = ("recipe.toml", "model.safetensors", "tokenizer.json", "labels.json", "log.jsonl", "cost.json")


def import_model(source: str | Path, out: str | Path, *, listen: Listener = silent) -> Run:
    """Import a folder, a GGUF file, a catalogue model or org/name@revision of the hub into a run folder.

    If the certificate fails, the folder holds nothing but the certificate.
    """
    model_location, folder, start = locate_model(source, listen), Path(out), time.perf_counter()
    opened = open_source(model_location.path)
    mapping = find_mapping(opened)
    weight_map = weight_mapping.match_tensors(opened, mapping)
    processor = mapping.load_processor(opened)
    recipe = _with_case(recipes.resolve((opened.location, mapping.settings())), processor)
    with torch.device("meta"), run_folder.SkipInit():
        model = recipe.build(processor.vocab)
    weight_mapping.check_shapes(opened, weight_map, model, mapping.vocab_size)
    n_parameters = run_folder.count_parameters(model)
    available, needed = machine.ram_gib() or float("inf"), MEMORY_FACTOR * 4 * n_parameters / 2**30
    if needed > available:
        sizes = f"needs {needed:.1f} GiB of memory; this machine has {available:.1f}"
        raise BadInput(f"{opened.location}: the import {sizes}")
    with run_folder.lock_folder(folder), _remove_on_failure(folder):
        listen("import", name=opened.location, parameters=n_parameters)
        reference = ReferenceOutputs(mapping, opened, processor, recipe.model.max_context)
        weights = weight_mapping.read_weights(opened, weight_map, model)
        run_folder.write_tensors(folder / "model.safetensors", weights)
        for name, content in processor.files().items():
            write_atomic(folder / name, content)
        write_atomic(folder / "recipe.toml", recipe.toml())
        write_atomic(folder / "log.jsonl", "")
        origin = {**model_location.origin, "family": opened.config["model_type"]}
        facts = _manifest(folder, recipe, origin, n_parameters)
        run = Run(folder, recipe, facts, build_model(recipe, processor.vocab, weights), processor)
        listen("certify")
        certificate = certify(run, mapping, opened, reference)
        run_folder.write_json(folder / "certificate.json", certificate)
        if not certificate["passed"]:
            message = failure_message(certificate)
            raise HarkenError(f"{folder / 'certificate.json'}: {message}; all other files were removed")
        facts["seconds"] = round(time.perf_counter() - start, 2)
        run_folder.write_json(folder / "cost.json", {"seconds": facts["seconds"], "kwh": 0.0, "co2e_kg": 0.0})
        run_folder.write_manifest(folder, facts)
    return run


def _with_case(recipe: recipes.Recipe, processor: Processor) -> recipes.Recipe:
    """The recipe with the case of an imported WordPiece tokenizer, which keeps its own rules."""
    tokenizer = processor.tokenizer if isinstance(processor, TokenLabelProcessor) else processor
    if isinstance(tokenizer, Tokenizer) and tokenizer.kind == "wordpiece":
        return recipe.change(data__lowercase=tokenizer.lowercase)
    return recipe


def load(path: str | Path, *, device: str = "auto", precision: str = "float32") -> Run:
    """Load a finished run from its folder, with its checksums verified; a Hugging Face folder is imported first.

    device: auto, cpu, cuda or cuda:N. precision: float32, bfloat16, or int8 (CPU only), which decode faster.

    >>> import harken
    >>> run = harken.load(folder, device="cpu")
    """
    check_path("path", path)
    folder = Path(path)
    if (folder / "config.json").is_file() and not (folder / "harken.json").exists():
        folder = cache_folder("imported") / f"{ModelFolder(folder).digest()[:32]}-{__version__}"
        if not (folder / "harken.json").exists():
            import_model(path, folder)
    return load_run(folder, device=device, precision=precision)


def open_source(source: str | Path) -> weight_mapping.WeightSource:
    """Open a folder or a GGUF file; no weights are read yet."""
    path = Path(source)
    return GGUFFile(path) if path.suffix == ".gguf" else ModelFolder(path)


@contextmanager
def _remove_on_failure(folder: Path) -> Iterator[None]:
    """Remove the files of an unfinished import."""
    try:
        yield
    except BaseException:
        for name in RUN_FILES:
            (folder / name).unlink(missing_ok=True)
        raise


def _manifest(folder: Path, recipe: recipes.Recipe, origin: dict[str, str], n_parameters: int) -> dict[str, Any]:
    return {
        "name": folder.name,
        "kind": recipe.model.kind,
        "data_kind": recipe.data.kind,
        "task": recipe.task.kind,
        "parameters": n_parameters,
        "steps": 0,
        "date": time.strftime("%Y-%m-%d"),
        "metrics": {},
        "baseline": {},
        "imported": origin,
        "versions": {"harken": __version__, "torch": torch.__version__},
    }
