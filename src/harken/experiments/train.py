"""harken.train: choose, train, judge beside the free baselines, audit, report. `harken train` only calls it."""

import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from harken import __version__, machine, run_folder
from harken import recipe as recipes
from harken.data.graphs.files import kept
from harken.errors import BadInput, BadSetting
from harken.events import Listener, silent
from harken.inference.run import Run, load
from harken.recipe import Recipe
from harken.tasks.translate import Translate
from harken.training import cost as meter
from harken.training import parallel
from harken.training.loop import Trainer, as_before
from harken.training.parallel import Ranks
from harken.training.resource_estimate import plan, refuse_a_small_disk
from harken.training.stacked_seeds import ManyTrainer
from harken.training.tensorboard import PLACE

from . import seeds, transfer
from .audit.audit import audit
from .choose import choose, run_name
from .report.page import report
from .report.sections import shown

MAY_CHANGE = ("train.parallel", "train.tensorboard")  # when a run goes on: nothing that it learns


@as_before()
def train(
    what: Any = None,
    *,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    listen: Listener = silent,
) -> Run:
    """Train a model on this data (a path or a networkx graph), by this recipe, or go on with this run; the run."""
    if not isinstance(settings or {}, Mapping) or not all(isinstance(name, str) for name in settings or ()):
        raise BadInput(f'settings = {settings!r}: a dictionary is accepted, such as {{"model.layers": 6}}')
    if what is not None and not isinstance(what, str | Path):
        what, settings = kept(what), ({"data.directed": True} if what.is_directed() else {}) | dict(settings or {})
    if resume and force:
        raise BadInput("resume goes on with a run, and force writes over it; give one of the two")
    if force and not out:
        raise BadInput("force writes over a folder that is named; name it with out (--out DIR)")
    given = dict(settings or {}) | ({} if minutes is None else {"train.minutes": minutes})
    with parallel.together() as ranks:
        return _with(ranks, what, out, given, resume=resume, force=force, listen=listen if ranks.first else silent)


def _with(
    ranks: Ranks,
    what: str | Path | None,
    out: str | Path | None,
    given: dict[str, Any],
    *,
    resume: bool,
    force: bool,
    listen: Listener,
) -> Run:
    if what == "-" and ranks.world > 1:
        raise BadInput(f"stdin: {ranks.world} processes cannot all read it; save the text, and name the file")
    place = Path(out) if out else Path("runs") / run_name(None if what is None else str(what), given)
    if resume and (begun := _begun(what, place, named=bool(out))) is not None:
        if str(begun) not in (str(what), str(place)):
            listen("notice", text=f"{begun}: this is the newest run to go on with")
        return _go_on(begun, given | ({"data.path": str(what)} if _is_data(what) else {}), ranks, listen)
    chosen = choose(None if what is None else str(what), given, listen=listen)
    folder = _folder(place, named=bool(out), force=force)
    if resume:
        listen("notice", text=f"{folder}: there is nothing to go on with; the run starts anew")
    listen("chosen", guess=chosen.guess)
    recipe = chosen.recipe
    if ranks.world > 1 and "train.parallel" not in recipe.origins:
        recipe = recipe.change(train__parallel="ddp")
    ready = prepare(recipe, listen, ranks=ranks.by(recipe.train))  # what cannot be trained takes no folder and no name
    ranks.same(lambda: refuse_a_small_disk(ready[1], folder))
    with ExitStack() as held:  # preparing took a while: others may be here now
        taken = Path(ranks.same(lambda: str(_taken(place, held, named=bool(out), force=force))))
        if force and ranks.first:
            _clear(taken)
        reason = chosen.guess.reason if chosen.guess else None
        return _train(recipe, taken, ready, reason=reason, listen=listen)


def _writing(folder: Path, ranks: Ranks) -> AbstractContextManager[None]:
    """Only the first rank writes."""
    return run_folder.writing(folder) if ranks.first else nullcontext()


# --- which folder -----------------------------------------------------------------------------------------------------


def _is_data(what: str | Path | None) -> bool:
    """Whether this is a file or folder to learn from: no recipe, no run, no name of one."""
    there = what is not None and Path(what).exists() and Path(what).suffix != ".toml"
    return there and not (Path(str(what)) / "recipe.toml").is_file()


def _begun(what: str | Path | None, place: Path, *, named: bool) -> Path | None:
    """The run to go on with: the one that is named, or the newest one of this data, an unfinished one first."""
    if what is not None and (Path(what) / "recipe.toml").is_file():
        if named and Path(what).absolute() != place.absolute():
            raise BadInput(f"{what}: a run goes on in its own folder, not in {place}; leave out away")
        return Path(what)
    known = [p for p in ([place] if named else numbered(place)) if (p / "recipe.toml").is_file()]
    if not named and _is_data(what):
        mine = str(Path(str(what)).absolute())
        known = [p for p in known if recipes.read(p / "recipe.toml").get("data.path") == mine]
    left = [p for p in known if not (p / "harken.json").exists()] or known
    return left[-1] if left else None


def numbered(place: Path) -> list[Path]:
    """my, and the my-2, my-3 ... that are there."""
    later = [p for p in place.parent.glob("*") if re.fullmatch(rf"{re.escape(place.name)}-\d+", p.name)]
    return [place, *sorted(later, key=lambda p: int(p.name.rpartition("-")[2]))]


def _go_on(folder: Path, given: dict[str, Any], ranks: Ranks, listen: Listener) -> Run:
    own = str(folder / "recipe.toml"), recipes.read(folder / "recipe.toml")
    recipe, asked = recipes.resolve(own), recipes.resolve(own, (recipes.GIVEN, given))
    asked = replace(asked, data=asked.data.located())
    for name, value in asked.settings().items():
        if name in given and name not in MAY_CHANGE and value != recipe.settings().get(name):
            raise BadInput(f"{folder}: a run is resumed with the recipe it has; {name} cannot be changed now")
    if (folder / "harken.json").exists():
        listen("notice", text=f"{folder}: this run is finished; there is nothing left to do")
        return load(folder)
    recipe = recipe.change(train__parallel=asked.train.parallel, train__tensorboard=asked.train.tensorboard)
    ranks = ranks.by(recipe.train)
    with _writing(folder, ranks):
        first = getattr(recipe.data, "kept", "tokenizer.json")  # of the files that say what its numbers mean
        kept = recipe.data.words(folder) if (folder / first).exists() else None
        gone_on = recipe.start.run is not None and run_folder.newest_checkpoint(folder)[0] is not None
        ready = prepare(recipe, listen, kept, ranks=ranks, weights=not gone_on)
        ranks.same(lambda: refuse_a_small_disk(ready[1], folder))
        if ranks.first:
            said = own[1] | {name: asked.settings()[name] for name in MAY_CHANGE}
            run_folder.write(folder / "recipe.toml", recipes.as_file(said))
        return _train(recipe, folder, ready, listen=listen, resume=True)


def _folder(wanted: Path, *, named: bool, force: bool) -> Path:
    """The folder to write. A name that was given is refused if it is taken; a default one takes -2, -3 ..."""
    if not named or is_free(wanted):
        return next_free(wanted)
    if not wanted.is_dir():
        raise BadInput(f"{wanted}: there is a file of this name; take another folder")
    if not (wanted / "recipe.toml").is_file():
        raise BadInput(f"{wanted}: is not empty and no run folder (it has no recipe.toml); take another folder")
    if not force:
        ways = "resume the run there (--resume), force to write over it (--force), or take another folder (--out)"
        raise BadInput(f"{wanted}: is not empty; {ways}")
    return wanted


def _taken(wanted: Path, held: ExitStack, *, named: bool, force: bool) -> Path:
    """The folder to write, held. A default name that another training took in this moment is passed over."""
    if not named:
        return take(wanted, held)
    folder = _folder(wanted, named=named, force=force)
    held.enter_context(run_folder.writing(folder))
    return folder


def take(wanted: Path, held: ExitStack) -> Path:
    """The folder of this name, or the first of name-2, name-3 ... that is free, held: no other writer gets the same."""
    return next(folder for folder in _free(wanted) if _held(folder, held))


def _held(folder: Path, held: ExitStack) -> bool:
    """Hold this folder, unless another holds it, or has written into it since it was looked at."""
    with suppress(run_folder.Busy), ExitStack() as here:
        here.enter_context(run_folder.writing(folder))
        if is_free(folder):
            held.push(here.pop_all())
            return True
    return False


def next_free(wanted: Path) -> Path:
    """The folder of this name, or the first of name-2, name-3 ... that is free."""
    return next(_free(wanted))


def _free(wanted: Path) -> Iterator[Path]:
    later = (wanted.with_name(f"{wanted.name}-{n}") for n in count(2))
    return filter(is_free, chain([wanted], later))


def is_free(folder: Path) -> bool:
    """What a writer leaves that was killed before its first step (a lock, half a file) takes no name."""
    return not folder.exists() or (folder.is_dir() and all(p.name.startswith(".") for p in folder.iterdir()))


def _clear(folder: Path) -> None:
    """Take away the run that is there; whoever is killed meanwhile leaves one that is not finished, with its recipe."""
    (folder / "harken.json").unlink(missing_ok=True)
    for name in ("checkpoints", PLACE):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in reversed(run_folder.PARTS):
        (folder / name).unlink(missing_ok=True)


# --- the training -----------------------------------------------------------------------------------------------------


def prepare(
    recipe: Recipe, listen: Listener, tokenizer: Any = None, *, ranks: Ranks | None = None, weights: bool = True
) -> tuple[Any, Trainer]:
    """Everything up to the first step: the data opened, the model with its first weights, the task, the trainer.

    Without `weights`, those of the run that it began from are left to its checkpoint: that run may be gone.
    """
    ranks = ranks or Ranks()
    known = transfer.words(recipe) if tokenizer is None else tokenizer
    if remark := getattr(recipe.model, "remark", None):
        listen("notice", text=remark)
    opened = ranks.in_turn(lambda: recipe.open(known, listen=listen))
    if recipe.train.seeds > 1:
        if ranks.world > 1:
            raise BadSetting("train.seeds: models are trained together in one process; leave torchrun away")
        many, tasks = seeds.together(recipe, opened, weights=weights)
        listen("data", facts=opened.facts(), parameters=run_folder.size(many))
        return opened, ManyTrainer(many, tasks, recipe.train, listen=listen, ranks=ranks)
    torch.manual_seed(recipe.train.seed)
    model, task = recipe.build(opened.vocab), recipe.bind(opened)
    transfer.begin(model, recipe, weights=weights)
    ranks.rows(task.batch(0, 0))  # refuses what does not split
    listen("data", facts=opened.facts(), parameters=run_folder.size(model))
    return opened, Trainer(model, task, recipe.train, listen=listen, ranks=ranks)


def _train(
    recipe: Recipe,
    folder: Path,
    ready: tuple[Any, Trainer],
    *,
    listen: Listener,
    reason: str | None = None,
    resume: bool = False,
) -> Run:
    """Train what is ready. Why this recipe was chosen is told by the report, after a resumption too."""
    opened, trainer = ready
    ranks = trainer.ranks
    recipe = recipe.change(data__sha256=opened.sha256) if recipe.data.sha256 is None else recipe
    before = trainer.resume(folder) if resume else None
    if resume and before is None:
        listen("notice", text=f"{folder}: there is no whole checkpoint; the run starts anew")
    predicted = None
    if before is None:
        steps, predicted = plan(trainer)
        numbers = str(trainer.precision).removeprefix("torch.")
        recipe = recipe.change(train__steps=steps, train__device=str(trainer.device), train__precision=numbers)
        recipe = recipe.change(train__threads=torch.get_num_threads())
    made: dict[str, Any] = {"reason": reason, "origins": dict(recipe.origins), "predicted": predicted}
    notes = trainer.notes = (before or {}).get("notes") or made
    start = recipe.start if resume else transfer.sealed(recipe.start)
    recipe = replace(recipe, data=recipe.data.located(), start=start, origins=notes["origins"])
    if before is None and ranks.first:
        run_folder.write(folder / "recipe.toml", recipe.toml())
        for name, content in reversed(opened.tokenizer.files().items()):  # who goes on looks for the first alone
            run_folder.write(folder / name, content)
        run_folder.write(folder / "log.jsonl", "")
        listen("recipe", path=folder / "recipe.toml")
    steps = recipe.train.steps or 0
    model: Any = trainer.model
    epochs = steps / trainer.task.steps
    for name, part in (("task.linear_start", recipe.task), ("data.curriculum", recipe.data)):
        if (first := getattr(part, name.partition(".")[2], 0)) and first >= epochs:
            told = f"the training has {epochs:.3g} epochs, so its first part, {name}={first}, does not end"
            listen("notice", text=f"{told}; take fewer, or train longer")
    young = Run(folder, recipe, {}, model, opened.tokenizer)  # whoever listens may try it as it learns
    listen("begin", step=trainer.step, steps=steps, epochs=epochs, predicted=predicted, run=young)
    used = trainer.fit(folder, steps, before and before.get("cost")).reading()
    trainer.finish()
    known = {"data": opened.facts(), "reason": notes["reason"], "early": trainer.early(steps) or None}
    if isinstance(trainer, ManyTrainer):
        known["seeds"] = seeds.told(trainer, recipe)
        if recipe.train.keep_seeds == "all":
            _apart(recipe, folder, trainer, used, known)
        trainer = seeds.alone(trainer, known["seeds"]["picked"] - recipe.train.seed)
    trainer.model = ranks.joined(trainer.model, lambda: recipe.build(opened.vocab))
    if ranks.first:
        run_folder.write_tensors(folder / "model.safetensors", run_folder.weights(trainer.model))
        if isinstance(trainer.task, Translate):
            known["data"]["padding"] = trainer.task.batches.padding
        _judge(recipe, folder, trainer, used, known, listen)
    ranks.same(lambda: None)  # the others wait
    return load(folder, device=str(trainer.device))


def _apart(recipe: Recipe, folder: Path, trainer: ManyTrainer, used: meter.Reading, known: dict[str, Any]) -> None:
    """Leave each member as a run of its own, which took its share of what all took."""
    many, own = trainer.model.members, {name: fact for name, fact in known.items() if name != "seeds"}
    own["baseline"] = {split: trainer.task.baselines(split) for split in trainer.task.splits}
    share = used._replace(seconds=used.seconds / many, joules=used.joules / many)
    for n in range(many):
        one = seeds.alone(trainer, n)
        place, mine = seeds.begun(folder, n, recipe, one.model)
        _judge(mine, place, one, share, own, silent)


def _judge(
    recipe: Recipe, folder: Path, trainer: Trainer, used: meter.Reading, known: dict[str, Any], listen: Listener
) -> None:
    """Evaluate, write down what it cost, and report."""
    task, steps = trainer.task, trainer.step
    if task.splits:
        listen("judge")
    scores = {split: trainer.look(split, quick=False) for split in task.splits}
    baseline = known.get("baseline") or {split: task.baselines(split) for split in task.splits}
    many, rows = (3, 4) if isinstance(task, Translate) else (1, 1)  # pairs of several lengths; windows are all alike
    batches = [task.batch(0, n) for n in range(min(many, task.steps))]
    few = [(some if (some := b.rows(0, rows)).size else b).to(trainer.device) for b in batches]  # packed: may be empty

    def once() -> None:
        for batch in few:
            task.loss(trainer.model, batch).total.backward()

    flops = meter.flops_per_token(trainer.model, once, sum(batch.size for batch in few))
    told = {"price": recipe.train.price_per_hour, "predicted": trainer.notes.get("predicted")}
    cost = meter.cost(used, tokens=steps * task.tokens * recipe.train.seeds, flops_per_token=flops, **told)
    run_folder.write_json(folder / "cost.json", cost)
    facts = {
        "name": folder.name,
        "kind": recipe.model.kind,
        "data_kind": recipe.data.kind,
        "task": recipe.task.kind,
        "parameters": run_folder.size(trainer.model),
        "steps": steps,
        "seconds": cost["seconds"],
        "date": time.strftime("%Y-%m-%d"),
        "metrics": {split: score.metrics for split, score in scores.items()},
        "protocol": {split: score.protocol for split, score in scores.items()},
        "parts": {split: score.parts for split, score in scores.items() if score.parts},
        "baseline": baseline,
        "audit": audit(trainer.model, task).facts(),
        "best_step": trainer.course.step,
        "skipped": trainer.course.skipped,
        "bitwise": trainer.bitwise,
        "machine": machine.describe(trainer.device),
        "versions": {"harken": __version__, "torch": torch.__version__},
        **{name: value for name, value in known.items() if value is not None},
    }
    model: Any = trainer.model
    ready = Run(folder, recipe, facts, model, recipe.data.words(folder))
    page = shown(ready, task, folder, cost)
    listen("samples", samples=page["samples"])
    run_folder.write(folder / "report.html", report(facts | page))
    example = page["samples"][0]["prompt"] if page["samples"] else ""
    run_folder.finish(folder, facts | ({"example": example} if example else {}))
