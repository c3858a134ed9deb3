"""A row of a comparison that learns nothing: the run that others begin from is asked with a prompt (transfer=4-shot).

It is judged on the same texts as the others, and its seed draws the examples that it is shown.
"""

from pathlib import Path
from typing import Any

from harken import run_folder
from harken.errors import BadSetting
from harken.events import Listener
from harken.inference.prompt_eval import Prompt, by_prompt, opened
from harken.inference.run import load
from harken.recipe import Recipe
from harken.training import cost as meter

from . import transfer

FOUND = "asked.json"


def prompt_of(recipe: Recipe) -> Prompt:
    """The prompt of a recipe; one that has none, or no run to be asked, is refused."""
    said = f"transfer = {recipe.start.transfer!r}"
    if recipe.start.run is None:
        raise BadSetting(f"{said}: of which run? Say it with from=runs/NAME")
    if not hasattr(recipe.task, "prompt"):
        raise BadSetting(f"{said}: a prompt is compared on texts with labels; this data is {recipe.data.kind}")
    if recipe.task.prompt is None:
        raise BadSetting(f"{said}: with which prompt? Say it with task.prompt='Review: {{text}} Sentiment:'")
    return Prompt(recipe.task.prompt, recipe.start.shots or 0, recipe.train.seed, recipe.task.labels)


def by_asking(recipe: Recipe, folder: Path, listen: Listener) -> dict[str, Any]:
    """What came of asking, and what it cost, as of a training; one that is finished is only read."""
    if (folder / FOUND).is_file():
        found: dict[str, Any] = run_folder.read_json(folder / FOUND)
        return found
    prompt, model = prompt_of(recipe), load(str(recipe.start.run), device=recipe.train.device)
    task, _ = opened(recipe, None, listen, transfer.words(recipe))
    with meter.Meter(device=model.device) as metered:
        scores = {split: by_prompt(model, task, split, prompt, listen) for split in task.splits}
    facts = {
        "name": folder.name,
        "kind": recipe.model.kind,
        "parameters": model.parameters,
        "steps": 0,
        "data": task.data.facts(),
        "metrics": {split: score.metrics for split, score in scores.items()},
        "protocol": {split: score.protocol for split, score in scores.items()},
        "parts": {split: score.parts for split, score in scores.items()},
        "baseline": {split: task.baselines(split) for split in task.splits},
    }
    cost = meter.cost(metered.reading(), tokens=0, flops_per_token=0.0) | {"flops": None}  # those of a training
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / FOUND, {"facts": facts, "cost": cost})
    return {"facts": facts, "cost": cost}
