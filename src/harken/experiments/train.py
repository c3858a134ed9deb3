"""harken.train: resolve a recipe, train, evaluate with baselines, audit and report."""

import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypedDict, runtime_checkable

import torch

from harken import __version__, machine, run_folder
from harken import recipe as recipes
from harken.data.graphs.files import save_networkx
from harken.data.source import Dataset, Processor
from harken.data.tables.frame import Frame, column_names, naming_rows, refuse_lazy, rows_in_errors, save_frame
from harken.errors import BadInput, BadSetting
from harken.events import Listener, NoticeRecorder, report_overflow, silent
from harken.files import write_atomic
from harken.inference.run import Run, load
from harken.recipe import Recipe, SettingsDict
from harken.suggestions import did_you_mean
from harken.tasks import Baseline, BoundTask, Score, evaluation_facts
from harken.tasks.translate import TranslateTask
from harken.training import cost as training_cost
from harken.training import parallel
from harken.training.cost import MeterReading
from harken.training.loop import Trainer, restore_torch_state
from harken.training.parallel import Ranks
from harken.training.resource_estimate import Prediction, check_disk_space, plan
from harken.training.settings import Train
from harken.training.stacked_seeds import StackedTrainer

from . import seeds, transfer
from .audit.audit import audit
from .background import Background
from .choose import choose, data_sources, run_name, target_settings
from .folders import claim_run_folder, clear_run, folder_to_write, is_cross_validation, is_data, run_to_resume
from .report.page import report_page
from .report.sections import report_sections

RESUMABLE = ("train.parallel", "train.tensorboard")  # settings that may change when a run is resumed
SINGLE_PROCESS = Ranks()
Baselines = Mapping[str, Mapping[str, Baseline]]  # of each split, by name
Prepared = tuple[Any, Trainer]  # a dataset, and the trainer with model and task


@runtime_checkable
class NetworkXGraph(Protocol):
    """A networkx graph."""

    def is_directed(self) -> bool: ...


class FolderOptions(TypedDict, total=False):
    """What to do with an existing run folder: resume its run, or overwrite it."""

    resume: bool
    force: bool


@restore_torch_state()
def train(
    what: str | Path | NetworkXGraph | Frame | None = None,
    *,
    target: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    minutes: float | None = None,
    resume: bool = False,
    force: bool = False,
    listen: Listener = silent,
) -> Run:
    """Train a model and return the run; `harken.train` documents the arguments.

    This function prints nothing: it calls `listen` with progress events.
    """
    if not isinstance(settings or {}, Mapping) or not all(isinstance(name, str) for name in settings or ()):
        raise BadInput(f'settings = {settings!r}: expected a dictionary, such as {{"model.layers": 6}}')
    refuse_lazy(what)
    if isinstance(what, Frame):
        target = target if target is None else str(target)  # a name of pandas may be a number
        if target is not None and target not in (names := column_names(what)):
            hint = did_you_mean(target, names)
            raise BadInput(f"target={target!r}: no such column; the columns are {', '.join(names)}.{hint}")
        values = [v for value in (settings or {}).values() for v in (value if isinstance(value, list) else [value])]
        what = save_frame(what, [target, *values], listen)
    elif what is not None and not isinstance(what, str | Path):
        if not isinstance(what, NetworkXGraph):
            fix = "; pandas.DataFrame(...) makes a DataFrame of it" if isinstance(what, Mapping | Iterable) else ""
            raise BadInput(f"{type(what).__name__}: a path, a recipe, a DataFrame or a networkx graph is accepted{fix}")
        settings = ({"data.directed": True} if what.is_directed() else {}) | dict(settings or {})
        what = save_networkx(what)
    if resume and force:
        raise BadInput("resume continues a run and force overwrites it; set only one of them")
    if force and not out:
        raise BadInput("force needs a folder to overwrite; name it with out (--out DIR)")
    overrides = dict(settings or {}) | ({} if minutes is None else {"train.minutes": minutes})
    with rows_in_errors(), parallel.process_group() as ranks:
        overrides = overrides if target is None else target_settings(what, target, overrides)
        listen, name = listen if ranks.is_first else silent, None if what is None else str(what)
        return _start(ranks, name, str(out or ""), overrides, resume=resume, force=force, listen=listen)


def _start(
    ranks: Ranks, name: str | None, out: str, overrides: SettingsDict, *, resume: bool, force: bool, listen: Listener
) -> Run:
    """Resume a run, or resolve the recipe, prepare the training and claim a folder."""
    if name == "-" and ranks.world_size > 1:
        raise BadInput(f"stdin: {ranks.world_size} processes cannot all read it; save the text and pass the file")
    if resume and is_cross_validation(name):
        command = f"harken train {shlex.quote(str(name))} --resume"
        raise BadInput(f"{name}: is a cross-validation, not a run; resume it with: {command}")
    explicit, wanted = bool(out), Path(out) if out else Path("runs") / run_name(name, overrides)
    if resume and (unfinished := run_to_resume(name, wanted, explicit=explicit)) is not None:
        if str(unfinished) not in (name, str(wanted)):
            listen("notice", text=f"{unfinished}: resuming the newest run")
        data_path = {"data.path": name} if is_data(name) else {}
        return _resume(unfinished, overrides | data_path, ranks, listen)
    choice = choose(name, overrides, listen=naming_rows(listen))
    folder = folder_to_write(wanted, explicit=explicit, force=force)
    if resume:
        listen("notice", text=f"{folder}: there is no run to resume; a new run starts")
    listen("detected", detection=choice.detection)
    recipe = choice.recipe
    if ranks.world_size > 1 and "train.parallel" not in recipe.origins:
        recipe = recipe.change(train__parallel="ddp")
    prepared = prepare(recipe, listen, ranks=ranks.configure(recipe.train))  # errors here leave no folder behind
    ranks.broadcast(lambda: check_disk_space(prepared[1], folder))
    with ExitStack() as locks:  # another process may have claimed the folder during the preparation
        claimed = Path(ranks.broadcast(lambda: str(claim_run_folder(wanted, locks, explicit=explicit, force=force))))
        if force and ranks.is_first:
            clear_run(claimed)
        reason = choice.detection.reason if choice.detection else ""
        return _train(recipe, claimed, prepared, reason=reason, listen=listen)


def _resume(folder: Path, overrides: SettingsDict, ranks: Ranks, listen: Listener) -> Run:
    stored = str(folder / "recipe.toml"), recipes.read(folder / "recipe.toml")
    recipe, requested = recipes.resolve(stored), recipes.resolve(stored, (recipes.OVERRIDE, overrides))
    requested = replace(requested, data=requested.data.with_absolute_paths())
    for name, value in requested.settings().items():
        if name in overrides and name not in RESUMABLE and value != recipe.settings().get(name):
            raise BadInput(f"{folder}: a run is resumed with its own recipe; {name} cannot be changed")
    if (folder / "harken.json").exists():
        listen("notice", text=f"{folder}: this run is already finished")
        return load(folder)
    recipe = recipe.change(train__parallel=requested.train.parallel, train__tensorboard=requested.train.tensorboard)
    ranks = ranks.configure(recipe.train)
    with run_folder.lock_folder(folder) if ranks.is_first else nullcontext():  # only the first rank writes
        has_processor = (folder / "log.jsonl").exists()  # the log is created after the files of the processor
        processor = recipe.data.load_processor(folder) if has_processor else None
        has_checkpoint = recipe.start.run is not None and run_folder.newest_checkpoint(folder)[0] is not None
        prepared = prepare(recipe, listen, processor, ranks=ranks, weights=not has_checkpoint)
        ranks.broadcast(lambda: check_disk_space(prepared[1], folder))
        if ranks.is_first:
            updated = stored[1] | {name: requested.settings()[name] for name in RESUMABLE}
            write_atomic(folder / "recipe.toml", recipes.to_toml_file(updated))
        return _train(recipe, folder, prepared, listen=listen, resume=True)


def prepare(
    recipe: Recipe,
    listen: Listener,
    processor: Processor | None = None,
    *,
    ranks: Ranks = SINGLE_PROCESS,
    weights: bool = True,
    dataset: Dataset | None = None,
) -> Prepared:
    """Everything before the first step. weights=False does not load those of `from`: a checkpoint replaces them.

    `dataset` is the data of the recipe, if it is loaded already.
    """
    processor = transfer.inherited_processor(recipe) if processor is None else processor
    if remark := recipe.model.notice:
        listen("notice", text=remark)
    notices = NoticeRecorder(listen)
    dataset = dataset or ranks.first_rank_first(lambda: recipe.load_data(processor, listen=naming_rows(notices)))
    if recipe.train.seeds > 1:
        if ranks.world_size > 1:
            raise BadSetting("train.seeds: seeds are trained together in one process; start without torchrun")
        stacked, tasks = seeds.stack_seeds(recipe, dataset, weights=weights)
        report_overflow(notices, *tasks.overflows())
        listen("data", facts=dataset.facts(), parameters=run_folder.count_parameters(stacked))
        train = _applicable(recipe, tasks, listen)
        stacked_trainer = StackedTrainer(stacked, tasks, train, listen=listen, ranks=ranks)
        stacked_trainer.notes["notices"] = notices.texts
        return dataset, stacked_trainer
    torch.manual_seed(recipe.train.seed)
    model, task = recipe.build(dataset.vocab), recipe.bind(dataset)
    report_overflow(notices, *task.overflows())
    transfer.init_from_run(model, recipe, weights=weights)
    ranks.local_rows(task.batch(0, 0))  # raises if the batch cannot be split
    listen("data", facts=dataset.facts(), parameters=run_folder.count_parameters(model))
    trainer = Trainer(model, task, _applicable(recipe, task, listen), listen=listen, ranks=ranks)
    trainer.notes["notices"] = notices.texts
    return dataset, trainer


def _applicable(recipe: Recipe, task: BoundTask, listen: Listener) -> Train:
    """The settings of the training; early stopping of a recipe is left out without a validation split."""
    train, name = recipe.train, "train.early_stopping_patience"
    if train.early_stopping_patience is None or "valid" in task.splits or recipe.origins.get(name) == recipes.OVERRIDE:
        return train
    listen("notice", text=f"{name}={train.early_stopping_patience} has no effect: no validation split is held out")
    return train.model_copy(update={"early_stopping_patience": None})


def _train(
    recipe: Recipe, folder: Path, prepared: Prepared, *, listen: Listener, reason: str = "", resume: bool = False
) -> Run:
    """Train, evaluate and write the run. `reason`, why the recipe was chosen, is stored for a resumed run too."""
    dataset, trainer = prepared
    ranks = trainer.ranks
    recipe, predicted, state = _plan(recipe, folder, prepared, reason=reason, resume=resume, listen=listen)
    if state is None and ranks.is_first:
        write_atomic(folder / "recipe.toml", recipe.toml())
        for name, content in dataset.tokenizer.files().items():
            write_atomic(folder / name, content)
        write_atomic(folder / "log.jsonl", "")
        listen("recipe", path=folder / "recipe.toml")
    steps, model = recipe.train.steps or 0, trainer.model
    epochs = steps / trainer.task.steps
    _warn_if_too_short(recipe, epochs, listen)
    live: Any = model
    run = Run(folder, recipe, {}, live, dataset.tokenizer)  # a listener can use it during training
    listen("start", step=trainer.step, steps=steps, epochs=epochs, predicted=predicted, run=run)
    early_baselines = _start_baselines(trainer)
    reading = trainer.fit(folder, steps, state and state.get("cost")).reading()
    trainer.finish()
    early = trainer.early_stop_message(steps) or None
    known = {"data": dataset.facts(), "reason": trainer.notes["reason"], "early": early}
    known["data_sources"] = data_sources(recipe.data) or None
    known["notices"] = trainer.notes.get("notices") or None
    if isinstance(trainer, StackedTrainer):
        known["seeds"] = seeds.evaluate_seeds(trainer, recipe)
        if recipe.train.keep_seeds == "all":
            _write_seed_runs(recipe, folder, trainer, reading, known)
        trainer = seeds.single_seed_trainer(trainer, known["seeds"]["selected"] - recipe.train.seed)
    trainer.model = ranks.unshard(trainer.model, lambda: recipe.build(dataset.vocab))
    scores = dict[str, Score]()
    if ranks.is_first:
        run_folder.write_tensors(folder / "model.safetensors", run_folder.weights(trainer.model))
        if isinstance(trainer.task, TranslateTask):
            known["data"]["padding"] = trainer.task.batches.padding
        baselines = early_baselines.wait() if early_baselines else None
        scores = _evaluate(recipe, folder, trainer, reading, known, listen, baselines)
    ranks.broadcast(lambda: None)  # a barrier
    run = load(folder, device=str(trainer.device))
    run.final_scores = scores
    return run


def _start_baselines(trainer: Trainer) -> Background[Baselines] | None:
    """Evaluate the baselines while a GPU trains; on a CPU they would slow the training down, so they follow it."""
    task, one_model = trainer.task, not isinstance(trainer, StackedTrainer)
    if trainer.device.type == "cpu" or not (trainer.ranks.is_first and one_model) or task.baselines_follow_model:
        return None
    return Background(lambda: {split: task.evaluate_baselines(split) for split in task.splits})


def _plan(
    recipe: Recipe, folder: Path, prepared: Prepared, *, reason: str, resume: bool, listen: Listener
) -> tuple[Recipe, Prediction | None, dict[str, Any] | None]:
    """The complete recipe, the predicted cost of a new run, and the checkpoint state of a resumed one."""
    dataset, trainer = prepared
    recipe = recipe.change(data__sha256=dataset.sha256) if recipe.data.sha256 is None else recipe
    state: dict[str, Any] | None = trainer.resume(folder) if resume else None
    if resume and state is None:
        listen("notice", text=f"{folder}: there is no complete checkpoint; the run starts from step 0")
    predicted = None
    if state is None:
        steps, eval_every, predicted = plan(trainer, recipe.cost)
        precision = str(trainer.precision).removeprefix("torch.")
        recipe = recipe.change(train__steps=steps, train__device=str(trainer.device), train__precision=precision)
        recipe = recipe.change(train__threads=torch.get_num_threads(), train__eval_every=eval_every)
        trainer.train = trainer.train.model_copy(update={"eval_every": eval_every})
    notes: dict[str, Any] = {"reason": reason or None, "origins": dict(recipe.origins), "predicted": predicted}
    trainer.notes |= (state or {}).get("notes") or notes
    start = recipe.start if resume else transfer.with_checksum(recipe.start)
    data, origins = recipe.data.with_absolute_paths(), trainer.notes["origins"]
    return replace(recipe, data=data, start=start, origins=origins), predicted, state


def _warn_if_too_short(recipe: Recipe, epochs: float, listen: Listener) -> None:
    """Report a first phase of the training that lasts longer than the training."""
    for name in ("task.linear_start", "data.curriculum"):
        if isinstance(phase := recipe.settings().get(name), int | float) and 0 < phase >= epochs:
            length = f"{epochs:.3g} epoch{'s' * (f'{epochs:.3g}' != '1')}"
            message = f"the training has {length}, so its first phase, {name}={phase}, does not end"
            listen("notice", text=f"{message}; lower it or train longer")


def _write_seed_runs(
    recipe: Recipe, folder: Path, trainer: StackedTrainer, reading: MeterReading, known: dict[str, Any]
) -> None:
    """Write each seed as a run; the cost is divided evenly."""
    n_seeds, facts = trainer.model.n_models, {name: fact for name, fact in known.items() if name != "seeds"}
    task = trainer.task.tasks[0]
    baselines = {split: task.evaluate_baselines(split) for split in trainer.task.splits}
    facts["ablation"] = task.ablation() or None
    part = reading._replace(seconds=reading.seconds / n_seeds, joules=reading.joules / n_seeds)
    for n in range(n_seeds):
        single = seeds.single_seed_trainer(trainer, n)
        seed_folder, seed_recipe = seeds.write_seed_run(folder, n, recipe, single.model)
        _evaluate(seed_recipe, seed_folder, single, part, facts, silent, baselines)


def _evaluate(
    recipe: Recipe,
    folder: Path,
    trainer: Trainer,
    reading: MeterReading,
    known: dict[str, Any],
    listen: Listener,
    baselines: Baselines | None = None,
) -> dict[str, Score]:
    """The final evaluation with baselines, the cost, the audit and the report."""
    task, steps = trainer.task, trainer.step
    if task.splits:
        listen("evaluate")
    known = {"thresholds": task.choose_thresholds(trainer.model) or None} | known
    scores = {split: trainer.evaluate(split, quick=False) for split in task.splits}
    baselines = baselines or {split: task.evaluate_baselines(split) for split in task.splits}
    known = {"ablation": task.ablation() or None} | known
    n_batches, n_rows = (3, 4) if isinstance(task, TranslateTask) else (1, 1)  # pairs differ in length, windows do not
    batches = [task.batch(0, n) for n in range(min(n_batches, task.steps))]
    parts = [(batch.slice_rows(0, n_rows), batch) for batch in batches]  # a part of a packed batch may be empty
    small = [(part if part.n_tokens else batch).to(trainer.device) for part, batch in parts]

    def backward() -> None:
        for batch in small:
            task.loss(trainer.model, batch).total.backward()

    flops = training_cost.flops_per_token(trainer.model, backward, sum(batch.n_tokens for batch in small))
    options = {"factors": recipe.cost, "predicted": trainer.notes.get("predicted")}
    tokens = steps * task.tokens_per_batch * recipe.train.seeds
    cost = training_cost.cost(reading, tokens=tokens, flops_per_token=flops, **options)
    run_folder.write_json(folder / "cost.json", cost)
    facts = {
        "name": folder.name,
        "kind": recipe.model.kind,
        "data_kind": recipe.data.kind,
        "task": recipe.task.kind,
        "parameters": run_folder.count_parameters(trainer.model),
        "steps": steps,
        "seconds": cost["seconds"],
        "date": time.strftime("%Y-%m-%d"),
        **evaluation_facts(scores, baselines, candidates={"valid": n_candidates(recipe, folder)}),
        "audit": audit(trainer.model, task).facts(),
        "best_step": trainer.validation.step,
        "skipped": trainer.validation.skipped,
        "bitwise": trainer.bitwise,
        "origins": dict(recipe.origins),
        "machine": machine.describe(trainer.device),
        "versions": {"harken": __version__, "torch": torch.__version__},
        **{name: value for name, value in known.items() if value is not None},
    }
    model: Any = trainer.model
    run = Run(folder, recipe, facts, model, recipe.data.load_processor(folder))
    sections = report_sections(run, task, folder, cost, scores)
    samples: Any = sections["samples"]
    listen("samples", samples=samples)
    write_atomic(folder / "report.html", report_page(facts | sections))
    example = samples[0]["prompt"] if samples else ""
    run_folder.write_manifest(folder, facts | ({"example": example} if example else {}))
    return scores


def n_candidates(recipe: Recipe, folder: Path) -> int:
    """How many checkpoints and seeds were compared on the validation split to select the weights."""
    train, passes = recipe.train, sum("valid" in line for line in run_folder.read_log(folder))
    return max(1, passes * train.keep_best) * (train.seeds if train.select_seed_on == "valid" else 1)
