"""harken.train: choose, train, judge beside the free baselines, report. `harken train` only calls it."""

import json
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from harken import __version__, run
from harken import recipe as recipes
from harken.data.tokens import Tokenizer
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.recipe import Recipe
from harken.training import machine, meter
from harken.training.loop import Trainer
from harken.use.model import Run, load

from .choose import choose, run_name
from .report import report

SAMPLE_TOKENS = 300


def train(
    what: str | Path | None = None,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    listen: Listener = silent,
) -> Run:
    """Train a model on this data, by this recipe, or go on with this run; the finished run."""
    given = dict(settings or {}) | ({} if minutes is None else {"train.minutes": minutes})
    place = Path(out) if out else Path("runs") / run_name(None if what is None else str(what), given)
    existing = _existing(what, place)
    if resume and existing is not None:
        named = what is not None and Path(what) != existing and Path(what).exists() and Path(what).suffix != ".toml"
        return _go_on(existing, given | ({"data.path": str(what)} if named else {}), listen)
    chosen = choose(None if what is None else str(what), given, listen=listen)
    folder = _folder(place, named=out is not None, force=force)
    if resume:
        listen("notice", text=f"{folder}: there is nothing to go on with; the run starts anew")
    listen("chosen", recipe=chosen.recipe, guess=chosen.guess, folder=folder)
    with run.writing(folder):
        if force:
            _clear(folder)
        return _train(chosen.recipe, folder, reason=chosen.guess.reason if chosen.guess else None, listen=listen)


def _existing(what: str | Path | None, place: Path) -> Path | None:
    """The folder of a run that was begun: the one named to go on with, or the one that would be written."""
    return next((Path(f) for f in (what, place) if f and (Path(f) / "recipe.toml").is_file()), None)


def _go_on(folder: Path, given: dict[str, Any], listen: Listener) -> Run:
    path = folder / "recipe.toml"
    recipe = recipes.resolve((str(path), recipes.read(path)))
    asked = recipes.resolve((str(path), recipes.read(path)), ("command line", given))
    asked = Recipe(asked.data.located(), asked.model, asked.task, asked.train)
    for name, value in asked.settings().items():
        if name in given and value != recipe.settings().get(name):
            raise BadInput(f"{folder}: a run is resumed with the recipe it has; {name} cannot be changed now")
    if (folder / "harken.json").exists():
        listen("notice", text=f"{folder}: this run is finished; there is nothing left to do")
        return load(folder)
    with run.writing(folder):
        return _train(recipe, folder, listen=listen, resume=True)


def _folder(wanted: Path, *, named: bool, force: bool) -> Path:
    """The folder to write. A name that was given is refused if it is taken; a default one takes -2, -3 ...

    What a writer leaves that was killed before its first step (a lock, half a file) takes no name.
    """
    if not wanted.exists() or (wanted.is_dir() and all(p.name.startswith(".") for p in wanted.iterdir())):
        return wanted
    if not named:
        return next(p for n in range(2, 10**6) if not (p := wanted.with_name(f"{wanted.name}-{n}")).exists())
    if not wanted.is_dir():
        raise BadInput(f"--out {wanted}: there is a file of this name; choose another")
    if not force:
        raise BadInput(
            f"--out {wanted}: is not empty; go on with --resume, write over it with --force, or choose another"
        )
    if not (wanted / "recipe.toml").is_file():
        raise BadInput(f"--out {wanted}: is no run folder, so --force does not clear it; choose another")
    return wanted


def _clear(folder: Path) -> None:
    """Take away the run that is there."""
    for name in (*run.PARTS, "harken.json"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def prepare(recipe: Recipe, listen: Listener, tokenizer: Tokenizer | None = None) -> tuple[Any, Trainer]:
    """Everything up to the first step: the data opened, the model with its first weights, the task, the trainer."""
    stateful = getattr(recipe.model, "stateful", False)
    opened = recipe.data.open(stateful=stateful, tokenizer=tokenizer, listen=listen)
    torch.manual_seed(recipe.train.seed)
    try:
        model = recipe.model.build(opened.vocab)
    except ValueError as error:
        raise BadSetting(f"model: {error}") from None
    task = recipe.task.bind(opened, recipe.model, batch=recipe.train.batch, seed=recipe.train.seed)
    listen("data", facts=opened.facts(), parameters=sum(p.numel() for p in model.parameters()))
    return opened, Trainer(model, task, recipe.train, listen=listen)


def _train(recipe: Recipe, folder: Path, *, listen: Listener, reason: str | None = None, resume: bool = False) -> Run:
    kept = folder / "tokenizer.json"
    opened, trainer = prepare(recipe, listen, Tokenizer.load(kept) if resume and kept.exists() else None)
    task = trainer.task
    recipe = recipe.change(data__sha256=opened.sha256) if recipe.data.sha256 is None else recipe
    recipe = Recipe(recipe.data.located(), recipe.model, recipe.task, recipe.train, recipe.origins)
    before = trainer.resume(folder) if resume else None
    if resume and before is None:
        listen("notice", text=f"{folder}: there is no whole checkpoint; the run starts anew")
    if before is None:
        steps = trainer.plan()
        numbers = str(trainer.precision).removeprefix("torch.")
        recipe = recipe.change(train__steps=steps, train__device=trainer.device.type, train__precision=numbers)
        recipe = recipe.change(train__threads=torch.get_num_threads())
        run.write(folder / "recipe.toml", recipe.toml())
        run.write(folder / "tokenizer.json", opened.tokenizer.json)
        run.write(folder / "log.jsonl", "")
    steps = recipe.train.steps or 0
    listen("begin", step=trainer.step, steps=steps, epochs=steps / task.steps)
    metered = trainer.fit(folder, steps, before and before.get("cost"))
    trainer.finish()
    run.write_tensors(folder / "model.safetensors", run.weights(trainer.model))
    return _judge(recipe, folder, trainer, metered, {"data": opened.facts(), "reason": reason}, listen)


def _judge(
    recipe: Recipe, folder: Path, trainer: Trainer, metered: meter.Meter, known: dict[str, Any], listen: Listener
) -> Run:
    """Evaluate, write down what it cost, and report."""
    task, steps = trainer.task, recipe.train.steps or 0
    listen("judge")
    scores = {split: trainer.look(split, quick=False) for split in task.splits}
    baseline = {split: task.baselines(split) for split in task.splits}
    few = task.batch(0, 0).rows(0, 1).to(trainer.device)

    def once() -> None:
        task.loss(trainer.model, few).total.backward()

    flops = meter.flops_per_token(trainer.model, once, few.count)
    cost = meter.cost(metered.reading(), tokens=steps * task.tokens, flops_per_token=flops)
    run.write_json(folder / "cost.json", cost)
    facts = {
        "name": folder.name,
        "kind": recipe.model.kind,
        "data_kind": recipe.data.kind,
        "task": recipe.task.kind,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "steps": steps,
        "seconds": cost["seconds"],
        "date": time.strftime("%Y-%m-%d"),
        "metrics": {split: score.metrics for split, score in scores.items()},
        "protocol": {split: score.protocol for split, score in scores.items()},
        "parts": {split: score.parts for split, score in scores.items() if score.parts},
        "baseline": baseline,
        "best_step": trainer.best[1],
        "bitwise": trainer.device.type == "cpu" or recipe.train.deterministic,
        "machine": machine.describe(),
        "versions": {"harken": __version__, "torch": torch.__version__},
        **{name: value for name, value in known.items() if value is not None},
    }
    model: Any = trainer.model
    ready = Run(folder, recipe, facts, model, Tokenizer.load(folder / "tokenizer.json"))
    run.write(folder / "report.html", report(facts | _shown(ready, recipe, folder, cost)))
    run.finish(folder, facts)
    return load(folder)


def _shown(loaded: Run, recipe: Recipe, folder: Path, cost: dict[str, Any]) -> dict[str, Any]:
    """What the report shows beside the facts: curves, samples, the recipe, what to type next."""
    place = shlex.quote(str(folder))
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    samples = [
        {"prompt": "", "temperature": t, "text": loaded.generate("", tokens=SAMPLE_TOKENS, temperature=t, top_p=0.95)}
        for t in (0.5, 0.8, 1.0)
    ]
    return {
        "cost": cost,
        "log": log,
        "samples": samples,
        "recipe": recipe.toml(),
        "origins": dict(recipe.origins),
        "repeat": [f"harken train {place}/recipe.toml --out runs/again"],
        "next": [
            f'harken generate {place} "Once upon a time"',
            f"harken eval {place}",
            f'harken score {place} "A sentence."',
        ],
    }
