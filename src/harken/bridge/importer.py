"""Other people's weights become a run folder: checked, read, written, compared with the original, sealed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harken import __version__, machine, run_folder
from harken import recipe as recipes
from harken.data.cache import cache_folder
from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.inference.run import Run
from harken.inference.run import load as load_run

from . import weight_mapping
from .certificate import Witness, certify, failure
from .folder import Folder
from .gguf import GGUF
from .hub import located

TIMES = 2.5  # the weights in float32, and so much memory is needed to import them
WRITTEN = ("recipe.toml", "model.safetensors", "tokenizer.json", "labels.json", "log.jsonl", "cost.json")


def bring(source: str | Path, out: str | Path, *, listen: Listener = silent) -> Run:
    """Import a folder, a GGUF file, a model of the catalogue or org/name@revision of the hub into a run folder.

    A certificate that fails leaves nothing there but itself.
    """
    found, folder = located(source, listen), Path(out)
    begun, opened = time.perf_counter(), open_source(found.path)
    config = weight_mapping.find(opened)
    names = weight_mapping.matched(opened, config)
    recipe, words = recipes.resolve((opened.place, config.settings())), config.told(opened)
    with torch.device("meta"), run_folder.Unborn():
        model = recipe.build(words.vocab)
    weight_mapping.fitted(opened, names, model, config.vocab_size)
    room = (machine.describe()["ram_gib"] or float("inf")) * 2**30
    if TIMES * 4 * run_folder.size(model) > room:
        need = TIMES * 4 * run_folder.size(model) / 2**30
        raise BadInput(f"{opened.place}: needs {need:.1f} GiB of memory to be imported; here are {room / 2**30:.1f}")
    with run_folder.writing(folder), _whole(folder):
        listen("import", name=opened.place, parameters=run_folder.size(model))
        witness = Witness(config, opened, words, getattr(recipe.model, "context", None))
        weights = weight_mapping.read(opened, names, model)
        run_folder.write_tensors(folder / "model.safetensors", weights)
        for name, content in words.files().items():
            run_folder.write(folder / name, content)
        run_folder.write(folder / "recipe.toml", recipe.toml())
        run_folder.write(folder / "log.jsonl", "")
        facts = _facts(folder, recipe, {**found.origin, "family": opened.config["model_type"]}, run_folder.size(model))
        made = Run(folder, recipe, facts, _given(recipe, words.vocab, weights), words)
        listen("certify")
        certificate = certify(made, config, opened, witness)
        run_folder.write_json(folder / "certificate.json", certificate)
        if not certificate["passed"]:
            raise HarkenError(f"{folder / 'certificate.json'}: {failure(certificate)}; nothing else was kept")
        facts["seconds"] = round(time.perf_counter() - begun, 2)
        run_folder.write_json(folder / "cost.json", {"seconds": facts["seconds"], "kwh": 0.0, "co2e_kg": 0.0})
        run_folder.finish(folder, facts)
    return made


def load(path: str | Path, *, device: str = "auto", precision: str = "float32") -> Run:
    """A finished run from its folder; every file it needs is checked first. A model folder is imported first.

    device: auto, cpu, cuda or cuda:N; precision: float32, or bfloat16 or (on a CPU) int8 to write faster.
    """
    folder = Path(path)
    if (folder / "config.json").is_file() and not (folder / "harken.json").exists():
        folder = cache_folder("imported") / f"{Folder(folder).sha256()[:32]}-{__version__}"
        if not (folder / "harken.json").exists():
            bring(path, folder)
    return load_run(folder, device=device, precision=precision)


def open_source(source: str | Path) -> weight_mapping.Source:
    """A folder or a GGUF file, ready to be looked at."""
    path = Path(source)
    return GGUF(path) if path.suffix == ".gguf" else Folder(path)


def _given(recipe: recipes.Recipe, vocab: Any, weights: dict[str, Tensor]) -> Any:
    """The model with these weights themselves, not with copies of them."""
    with run_folder.Unborn():
        model = recipe.build(vocab)
    for name, buffer in model.named_buffers():
        buffer.copy_(weights.pop(name))
    for name, own in model.named_parameters():
        own.data = weights.pop(name)
    return model


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """What is not finished is taken away again."""
    try:
        yield
    except BaseException:
        for name in WRITTEN:
            (folder / name).unlink(missing_ok=True)
        raise


def _facts(folder: Path, recipe: recipes.Recipe, origin: dict[str, str], size: int) -> dict[str, Any]:
    return {
        "name": folder.name,
        "kind": recipe.model.kind,
        "data_kind": recipe.data.kind,
        "task": recipe.task.kind,
        "parameters": size,
        "steps": 0,
        "date": time.strftime("%Y-%m-%d"),
        "metrics": {},
        "baseline": {},
        "imported": origin,
        "versions": {"harken": __version__, "torch": torch.__version__},
    }
