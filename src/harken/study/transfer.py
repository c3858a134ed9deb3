"""What one run learned, as the beginning of another: its shape, its words, its weights.

`from = "runs/x"` in a recipe takes all three. transfer = finetune: every weight goes on learning; frozen: the body
stays as it is and only its head learns; scratch: the same shape and words with weights by chance, to see what those
that were learned are worth; 4-shot: nothing is learned, a language model is asked (asking.py).
"""

from pathlib import Path
from typing import Any

from torch import nn

from harken import kinds, run
from harken import recipe as recipes
from harken.errors import BadSetting
from harken.recipe import Recipe, Settings, Start

INHERITED = ("tokens", "lower")  # settings of the data that tell how its words were made
RATES = {"finetune": 0.04, "frozen": 4.0, "scratch": 0.1}  # over the width d: how fast labels are learned


def inherited(folder: str, data: str, given: Settings) -> Settings:
    """What a recipe for this kind of data takes over from a run."""
    own, source = _recipe(folder), kinds.find("data", data)
    kind = own.model.kind
    if str(given.get("model.kind", kind)) != kind:
        raise BadSetting(f"model.kind = {given['model.kind']!r}: from={folder} is a {kind}; leave one of them out")
    of = getattr(source, "of", "")
    if kind not in kinds.names("model", of):
        able = ", ".join(kinds.names("model", of))
        raise BadSetting(f"from = {folder!r}: a {kind} has no head for {data}; take a run of {able}")
    shape, said = kinds.find("model", kind, of).model_fields, own.settings()
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


def words(start: Start) -> Any:
    """The tokens of the run that is begun from; None where there is none."""
    return None if start.run is None else _recipe(start.run).data.words(Path(start.run))


def begin(model: nn.Module, recipe: Recipe) -> None:
    """Give the model's body the weights it begins with, and hold those that shall not learn."""
    start, body = recipe.start, getattr(model, "body", model)
    if start.shots is not None:
        way = "judge it with harken compare, or with harken eval RUN DATA --prompt"
        raise BadSetting(f"transfer = {start.transfer!r}: a prompt learns nothing; {way}")
    if start.run is None:
        return
    if start.transfer == "frozen" and body is model:
        raise BadSetting("transfer = 'frozen': this model has no head that could learn alone; take finetune")
    if start.transfer == "scratch":
        return
    folder = Path(start.run)
    saved = run.read_tensors(folder / "model.safetensors")
    own = {name.removeprefix("body."): t for name, t in saved.items()}
    names = run.weights(body)
    run.load_weights(body, {name: t for name, t in own.items() if name in names})
    if start.transfer == "frozen":
        body.requires_grad_(False)
        blocks = list(getattr(getattr(body, "stack", None), "blocks", ()))
        for block in blocks[max(0, len(blocks) - recipe.train.unfreeze) :]:
            block.requires_grad_(True)


def _recipe(folder: str) -> Recipe:
    run.facts(Path(folder), "recipe.toml", "model.safetensors", *run.TOKENS)  # refuses what is no whole run
    return recipes.resolve((str(Path(folder) / "recipe.toml"), recipes.read(Path(folder) / "recipe.toml")))
