"""Few-shot rows of a comparison (transfer=4-shot): a prompted language model instead of a training.

The model is evaluated on the same texts as the trained ones; its seed draws the examples in the prompt.
"""

from pathlib import Path

from harken import run_folder
from harken.errors import BadSetting
from harken.events import Listener
from harken.inference.prompt_eval import FewShotPrompt, evaluate_prompt, load_task
from harken.inference.run import load
from harken.recipe import Recipe
from harken.tasks import evaluation_facts
from harken.tasks.classify import ClassifySettings
from harken.tasks.metrics.weighted import Outcomes
from harken.training import cost as training_cost

from . import transfer
from .report.verdict import Facts

OUTPUT_FILE = "few_shot.json"


def prompt_from_recipe(recipe: Recipe) -> FewShotPrompt:
    """The prompt of a recipe; raises if it has no prompt or no run."""
    setting = f"transfer = {recipe.start.transfer!r}"
    if recipe.start.run is None:
        raise BadSetting(f"{setting}: needs from=runs/NAME")
    if not isinstance(recipe.task, ClassifySettings):
        raise BadSetting(f"{setting}: a prompt needs texts with labels; this data is {recipe.data.kind}")
    if recipe.task.prompt is None:
        raise BadSetting(f"{setting}: needs a prompt, such as task.prompt='Review: {{text}} Sentiment:'")
    return FewShotPrompt(recipe.task.prompt, recipe.start.shots or 0, recipe.train.seed, recipe.task.labels)


def evaluate_few_shot(recipe: Recipe, folder: Path, listen: Listener) -> tuple[Facts, Facts, dict[str, Outcomes]]:
    """Facts and cost of a prompted evaluation, as of a training, and the outcomes of each split.

    A finished one is read from its folder, without outcomes.
    """
    if (folder / OUTPUT_FILE).is_file():
        stored: Facts = run_folder.read_json(folder / OUTPUT_FILE)
        return stored["facts"], stored["cost"], {}
    prompt, model = prompt_from_recipe(recipe), load(str(recipe.start.run), device=recipe.train.device)
    task, _ = load_task(recipe, None, listen, transfer.inherited_processor(recipe))
    with training_cost.Meter(device=model.device) as meter:
        scores = {split: evaluate_prompt(model, task, split, prompt, listen) for split in task.splits}
    baselines = {split: task.evaluate_baselines(split) for split in task.splits}
    facts: dict[str, object] = {
        "name": folder.name,
        "kind": recipe.model.kind,
        "parameters": model.parameters,
        "steps": 0,
        "data": task.data.facts(),
        **evaluation_facts(scores, baselines),
    }
    reading = meter.reading()
    cost = training_cost.cost(reading, tokens=0, flops_per_token=0.0, factors=recipe.cost) | {"flops": None}
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / OUTPUT_FILE, {"facts": facts, "cost": cost})
    return facts, cost, {split: score.outcomes for split, score in scores.items()}
