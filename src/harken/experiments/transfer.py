"""Transfer from a trained run: its architecture, its tokenizer and its weights.

`from = "runs/x"` in a recipe takes all three. transfer=finetune trains all weights; frozen trains only the head;
scratch keeps architecture and tokenizer but initializes the weights anew, as a control; 4-shot trains nothing and
evaluates a language model with a prompt (few_shot.py).
"""

from dataclasses import replace
from pathlib import Path

from torch import nn

from harken import recipe as recipes
from harken import registry, run_folder
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.source import Processor
from harken.errors import BadInput, BadSetting
from harken.files import sha256_of
from harken.models import Model
from harken.recipe import InitialWeights, Recipe, SettingsDict

WEIGHTS = "model.safetensors"
INHERITED = ("tokenizer", "lowercase")  # data settings that determine the token ids
FREE = ("dropout", "head_dropout", "pool", "context", "size")  # model settings that may differ from the run
RATES = {"finetune": 0.04, "frozen": 4.0, "scratch": 0.1}  # learning rate for labels, times the width d


def inherited_settings(folder: str, data: str, settings: SettingsDict) -> SettingsDict:
    """The settings that a recipe for this kind of data inherits from a run."""
    recipe, source = _recipe(folder), registry.find_kind("data", data)
    kind = recipe.model.kind
    if str(settings.get("model.kind", kind)) != kind:
        raise BadSetting(f"model.kind = {settings['model.kind']!r}: from={folder} is a {kind}; remove one of them")
    family = registry.FAMILIES[source.task].models
    if kind not in registry.kind_names("model", family):
        supported = ", ".join(registry.kind_names("model", family))
        raise BadSetting(f"from = {folder!r}: a {kind} has no head for {data}; use a run of {supported}")
    fields, run_settings = registry.find_kind("model", kind, family).model_fields, recipe.settings()
    inherited = {k: v for k, v in run_settings.items() if k.startswith("model.") and k.partition(".")[2] in fields}
    if "pool" in fields:
        inherited |= _schedule(recipe.model.d, str(settings.get("transfer", InitialWeights.transfer)))
    names = [f"data.{name}" for name in INHERITED if name in source.model_fields]
    return inherited | {name: run_settings[name] for name in names if name in run_settings}


def _schedule(d: int, transfer: str) -> SettingsDict:
    """Learning rate and schedule for labels: small steps for pretrained weights, larger ones for a head alone."""
    rate = {"train.lr": round(RATES[transfer] / d, 6)} if transfer in RATES else {}
    return rate | {"train.warmup": 0.1, "train.schedule": "linear", "train.weight_decay": 0.01}


def inherited_processor(recipe: Recipe) -> Processor | None:
    """The processor of the run in `from`, after a check that the architectures agree; None without such a run.

    Labels belong to the head, which is new: of a run with labels only the tokenizer is inherited.
    """
    if recipe.start.run is None:
        return None
    run_recipe = _recipe(recipe.start.run)
    run_fields, fields = vars(run_recipe.model), vars(recipe.model)
    for name in run_fields.keys() & fields.keys() - {*FREE}:
        if run_fields[name] != fields[name] and recipe.start.transfer != "scratch":
            problem = f"from={recipe.start.run} has {run_fields[name]!r}, and its weights fit only that"
            raise BadSetting(f"model.{name} = {fields[name]!r}: {problem}; remove it, or set transfer=scratch")
    processor = run_recipe.data.load_processor(Path(recipe.start.run))
    has_head = "pool" in type(run_recipe.model).model_fields
    return processor.tokenizer if has_head and isinstance(processor, TokenLabelProcessor) else processor


def init_from_run(model: Model, recipe: Recipe, *, weights: bool = True) -> None:
    """Load the weights of the run in `from` into the body of the model, unless weights=False; freeze it if set."""
    start, body = recipe.start, model.backbone
    if start.shots is not None:
        fix = "evaluate it with harken compare, or with harken eval RUN DATA --prompt"
        raise BadSetting(f"transfer = {start.transfer!r}: a prompt is not trained; {fix}")
    if recipe.train.unfreeze_last and (start.run is None or start.transfer != "frozen"):
        raise BadSetting("train.unfreeze_last: no weights are frozen; set from=RUN and transfer=frozen, or remove it")
    if start.run is None:
        return
    if start.transfer == "frozen" and body is model:
        raise BadSetting("transfer = 'frozen': this model has no separate head to train; use transfer=finetune")
    if weights and start.transfer != "scratch":
        _load(body, start)
    if start.transfer == "frozen":
        body.requires_grad_(False)
        _unfreeze(body, recipe.train.unfreeze_last)


def _load(body: nn.Module, start: InitialWeights) -> None:
    path = Path(str(start.run)) / WEIGHTS
    if start.sha256 not in (None, sha256_of(path)):
        fix = f"restore them, or start from the new ones: from={start.run}"
        raise BadInput(f"{path}: not the weights that this recipe started from (SHA-256 mismatch); {fix}")
    tensors = {name.removeprefix("body."): t for name, t in run_folder.read_tensors(path).items()}
    names = run_folder.weights(body)
    run_folder.load_weights(body, {name: t for name, t in tensors.items() if name in names})


def _unfreeze(body: nn.Module, n_blocks: int) -> None:
    """Train the last blocks, and the layers between the last block and the head."""
    blocks = body.transformer_blocks if isinstance(body, Model) else ()
    if n_blocks > len(blocks):
        raise BadSetting(f"train.unfreeze_last = {n_blocks}: the run in `from` has {len(blocks)} blocks; use fewer")
    if n_blocks:
        children = dict(body.named_children())
        after = [children[name] for name in ("norm", "pooler") if name in children]
        for part in (*blocks[-n_blocks:], *after):
            part.requires_grad_(True)


def with_checksum(start: InitialWeights) -> InitialWeights:
    """The same start with an absolute path and the checksum of its weights."""
    if start.run is None or start.transfer == "scratch" or start.sha256 is not None:
        return start.with_absolute_paths()
    return replace(start.with_absolute_paths(), sha256=sha256_of(Path(start.run) / WEIGHTS))


def _recipe(folder: str) -> Recipe:
    files = ("recipe.toml", WEIGHTS, *run_folder.TOKENIZER_FILES)
    run_folder.read_manifest(Path(folder), *files)  # raises for an incomplete run
    return recipes.resolve((str(Path(folder) / "recipe.toml"), recipes.read(Path(folder) / "recipe.toml")))
