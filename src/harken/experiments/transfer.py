"""What one run learned, as the beginning of another: its shape, its words, its weights.

`from = "runs/x"` in a recipe takes all three. transfer = finetune: every weight goes on learning; frozen: the body
stays as it is and only its head learns; scratch: the same shape and words with weights by chance, to see what those
that were learned are worth; 4-shot: nothing is learned, a language model is asked (asking.py).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from harken import recipe as recipes
from harken import registry, run_folder
from harken.errors import BadInput, BadSetting
from harken.recipe import Recipe, Settings, Start

WEIGHTS = "model.safetensors"
INHERITED = ("tokenizer", "lowercase")  # settings of the data that tell how its words were made
FREE = ("dropout", "head_dropout", "pool", "context", "size")  # settings of a model that change no weight's meaning
RATES = {"finetune": 0.04, "frozen": 4.0, "scratch": 0.1}  # over the width d: how fast labels are learned


def inherited(folder: str, data: str, given: Settings) -> Settings:
    """What a recipe for this kind of data takes over from a run."""
    own, source = _recipe(folder), registry.find("data", data)
    kind = own.model.kind
    if str(given.get("model.kind", kind)) != kind:
        raise BadSetting(f"model.kind = {given['model.kind']!r}: from={folder} is a {kind}; leave one of them out")
    of = getattr(source, "of", "")
    if kind not in registry.names("model", of):
        able = ", ".join(registry.names("model", of))
        raise BadSetting(f"from = {folder!r}: a {kind} has no head for {data}; take a run of {able}")
    shape, said = registry.find("model", kind, of).model_fields, own.settings()
    taken = {k: v for k, v in said.items() if k.startswith("model.") and k.partition(".")[2] in shape}
    if "pool" in shape:
        taken |= _pace(own.model.d, str(given.get("transfer", Start.transfer)))
    return taken | {
        f"data.{name}": said[f"data.{name}"]
        for name in INHERITED
        if f"data.{name}" in said and name in source.model_fields
    }


def _pace(d: int, transfer: str) -> Settings:
    """How labels are learned from here: what is known is lost by large steps, and a head alone needs larger ones."""
    rate = {"train.lr": round(RATES[transfer] / d, 6)} if transfer in RATES else {}
    return rate | {"train.warmup": 0.1, "train.schedule": "linear", "train.weight_decay": 0.01}


def words(recipe: Recipe) -> Any:
    """The tokens of the run that is begun from, whose shape this recipe must have; None where there is none.

    Labels belong to the head, which begins anew: those of the data at hand are asked for, not those of the run.
    """
    if recipe.start.run is None:
        return None
    own = _recipe(recipe.start.run)
    for name in {*type(own.model).model_fields} & {*type(recipe.model).model_fields}.difference(FREE):
        had, asked = (getattr(each.model, name) for each in (own, recipe))
        if had != asked and recipe.start.transfer != "scratch":
            why = f"from={recipe.start.run} has {had!r}, and its weights mean nothing otherwise"
            raise BadSetting(f"model.{name} = {asked!r}: {why}; leave it out, or set transfer=scratch")
    found = own.data.words(Path(recipe.start.run))
    return found.tokenizer if "pool" in type(own.model).model_fields and hasattr(found, "tokenizer") else found


def begin(model: nn.Module, recipe: Recipe, *, weights: bool = True) -> None:
    """Give the model's body its first weights, unless a checkpoint will; hold those that shall not learn."""
    start, body = recipe.start, getattr(model, "body", model)
    if start.shots is not None:
        way = "judge it with harken compare, or with harken eval RUN DATA --prompt"
        raise BadSetting(f"transfer = {start.transfer!r}: a prompt learns nothing; {way}")
    if recipe.train.unfreeze_last and (start.run is None or start.transfer != "frozen"):
        raise BadSetting(
            "train.unfreeze_last: nothing is frozen; set from=runs/NAME and transfer=frozen, or leave it out"
        )
    if start.run is None:
        return
    if start.transfer == "frozen" and body is model:
        raise BadSetting("transfer = 'frozen': this model has no head that could learn alone; take finetune")
    if weights and start.transfer != "scratch":
        _load(body, start)
    if start.transfer == "frozen":
        body.requires_grad_(False)
        _thaw(body, recipe.train.unfreeze_last)


def _load(body: nn.Module, start: Start) -> None:
    path = Path(str(start.run)) / WEIGHTS
    if start.sha256 not in (None, run_folder.sha256(path)):
        way = f"bring those back, or begin anew: from={start.run}"
        raise BadInput(f"{path}: these are not the weights that this recipe began from (the SHA-256 differs); {way}")
    own = {name.removeprefix("body."): t for name, t in run_folder.read_tensors(path).items()}
    names = run_folder.weights(body)
    run_folder.load_weights(body, {name: t for name, t in own.items() if name in names})


def _thaw(body: nn.Module, many: int) -> None:
    """Let the last so many blocks learn, and with them what stands between the last one and the head."""
    blocks = list(getattr(getattr(body, "stack", None), "blocks", ()))
    if many > len(blocks):
        raise BadSetting(
            f"train.unfreeze_last = {many}: the run that is begun from has {len(blocks)} blocks; give fewer"
        )
    if many:
        behind = [part for name in ("norm", "pooler") if (part := getattr(body, name, None)) is not None]
        for part in (*blocks[-many:], *behind):
            part.requires_grad_(True)


def sealed(start: Start) -> Start:
    """The same beginning with its absolute path and the fingerprint of its weights, so that others are not taken."""
    if start.run is None or start.transfer == "scratch" or start.sha256 is not None:
        return start.located()
    return replace(start.located(), sha256=run_folder.sha256(Path(start.run) / WEIGHTS))


def _recipe(folder: str) -> Recipe:
    run_folder.facts(Path(folder), "recipe.toml", WEIGHTS, *run_folder.TOKENS)  # refuses what is no whole run
    return recipes.resolve((str(Path(folder) / "recipe.toml"), recipes.read(Path(folder) / "recipe.toml")))
