"""The training loop of every model family. A step is a function of the weights, the optimizer state, the random state
and the position in the data. Every checkpoint has all four, so a resumed run equals an uninterrupted one bitwise."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, TextIO

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from harken import machine, run_folder
from harken.core import products
from harken.errors import BadRun, BadSetting, HarkenError, Stopped
from harken.events import Listener, silent, to_json_value
from harken.files import write_atomic
from harken.suggestions import resume_command
from harken.tasks import BoundTask, Score

from . import checkpoint_state
from .checkpoint_state import add_prefix, strip_prefix
from .cost import Meter, reset_peak_memory
from .parallel import Ranks
from .schedules import learning_rate, warmup_steps
from .settings import Train
from .step import WARMUP_STEPS, UpdateStep
from .tensorboard import event_writer, require_tensorboard
from .threads import OtherPrograms, bound_threads
from .timing import MIN_REPEATS, Repeat, Timing, robust_mean
from .validation_state import ValidationState
from .weight_average import build_weight_average

CHECKPOINT_SECONDS = 30.0
N_VALIDATIONS = 10
LOG_LINES = 200
TIE_BREAK = 1e-6  # weight of the loss where another metric selects the best weights
READ_EVERY = 10  # steps between reads of the loss from a GPU


@contextmanager
def restore_torch_state() -> Iterator[None]:
    """Restore the thread count, the deterministic mode and the switches that a Trainer sets globally."""
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    switches = machine.compile_enabled, products.enabled
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if torch.get_deterministic_debug_mode() != mode:
            torch.set_deterministic_debug_mode(mode)
        machine.compile_enabled, products.enabled = switches


class Trainer:
    """A model, its task and its optimizer, at some step of a run."""

    def __init__(
        self, model: nn.Module, task: BoundTask, train: Train, *, listen: Listener = silent, ranks: Ranks | None = None
    ) -> None:
        self.train, self.task, self.listen, self.ranks = train, task, listen, ranks or Ranks()
        if train.threads:
            torch.set_num_threads(train.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # needed for deterministic cuBLAS
        if train.deterministic != torch.are_deterministic_algorithms_enabled():  # the call imports the compiler
            torch.use_deterministic_algorithms(train.deterministic)
        machine.compile_enabled = train.compile != "no"
        if train.tensorboard:
            require_tensorboard()
        self.update_step = UpdateStep(model, task, train, listen=listen, ranks=self.ranks)
        self.ranks.seed_rng(train.seed)
        self.model, self.device = self.update_step.model, self.update_step.device
        self.precision = self.update_step.precision
        self.bitwise = self.device.type == "cpu" or train.deterministic  # whether the training is bitwise repeatable
        reset_peak_memory(self.device)  # memory of earlier work in this process does not count
        self.step, self.validation, self.average = 0, self.new_validation_state(), build_weight_average(train)
        validates = train.schedule == "plateau" or train.average == "last" or train.early_stopping_patience is not None
        if validates and "valid" not in task.splits:
            why = "schedule=plateau, average=last and early_stopping_patience need a validation split"
            raise BadSetting(f"train: {why}; hold out more with data.valid or a split column, or leave them out")
        self.last_read = {"loss": math.nan, "gradient": math.nan}
        self.best_weights: dict[str, Tensor] = {}
        self.notes: dict[str, Any] = {}  # additional JSON values for the checkpoint

    def update(self, steps: int, *, read: bool = True) -> dict[str, object]:
        """One update. On a GPU reading its loss waits for the device, so `read=False` leaves it for later."""
        epoch, position = divmod(self.step, self.task.steps)
        lr = learning_rate(self.step, steps, self.train) * self.validation.lr_factor
        self.update_step(self.task.batch(epoch, position), lr)
        self.average.after_update(self.model)
        self.step += 1
        if read or not self.update_step.deferred:
            self._read()
        parts = {"parts": self.update_step.parts} if self.update_step.parts else {}
        return {"step": self.step, "epoch": epoch, "lr": lr, **self.last_read, **parts}

    def _read(self) -> None:
        """Read loss and gradient norm of the last update. Non-finite updates were skipped: raise, or notify."""
        loss, norm, n_skipped = self.update_step.read()
        self.last_read = {"loss": loss, "gradient": norm}
        if (new := n_skipped - self.validation.skipped) == 0:
            return
        before, self.validation.skipped = self.validation.skipped, n_skipped
        problem = "the loss or the gradient is not finite, so the update was skipped"
        if self.train.on_nan == "skip":
            if n_skipped.bit_length() > before.bit_length():  # the first one, and each time the number has doubled
                self.listen("notice", text=f"step {self.step}: {problem}; {n_skipped:,} skipped so far")
            return
        self.step -= new  # all updates after the first non-finite one were skipped
        epoch, position = divmod(self.step, self.task.steps)
        place = f"step {self.step + 1} (epoch {epoch}, batch {position})"
        raise HarkenError(f"{place}: {problem}; train again with a lower train.lr or a longer train.warmup")

    def bound_threads(self) -> AbstractContextManager[bool]:
        """Context with each CPU thread on a core of its own; compilers and other processes may use all cores."""
        compiled = self.update_step.forward_model is not self.model
        return bound_threads(enabled=self.device.type == "cpu" and self.ranks.world_size == 1 and not compiled)

    def measure(self, seconds: float, max_steps: int) -> Timing:
        """Measure the time of a step and of a validation pass, then restore weights and random state."""
        with self.bound_threads():
            return self._measure(seconds, max_steps)

    def _measure(self, seconds: float, max_steps: int) -> Timing:
        self.listen("measure")
        listen, self.listen = self.listen, silent  # notices about steps that are undone are not part of the run
        before = self._clone_weights()
        rng, task_state = checkpoint_state.rng_state(), self.task.state()
        for _ in range(WARMUP_STEPS + 2 if self.update_step.deferred else 2):
            self.update(10**9)  # the first steps of a long warm-up: nearly no change
        block = READ_EVERY if self.update_step.deferred else 1

        def update_block() -> None:
            for _ in range(block):
                self.update(10**9, read=False)

        repeat, programs = Repeat(self.device, self.ranks), OtherPrograms()
        with Meter(device=self.device, processes=self.ranks.local_world_size) as meter:
            step_seconds = robust_mean(repeat(update_block, seconds, MIN_REPEATS, max_steps // block)) / block
        busy_cores = programs.busy_cores()
        validation_seconds, steps_per_pass = 0.0, self.train.eval_every or math.inf
        if "valid" in self.task.splits:  # the first pass also prepares the data
            (first,) = repeat(self._validate, 0.0, 1)
            enough = seconds / min(10, 1 + steps_per_pass)  # frequent passes are a large part of the training
            if (validation_seconds := first) <= seconds:
                validation_seconds = fmean(repeat(self._validate, enough, 1, max(MIN_REPEATS, max_steps)))
        run_folder.load_weights(self.model, before)
        self.update_step.reset()
        self.step, self.validation, self.average = 0, self.new_validation_state(), build_weight_average(self.train)
        self.listen, self.best_weights = listen, {}
        checkpoint_state.load_rng_state(rng)
        self.task.load_state(task_state)
        timing = Timing(step_seconds, validation_seconds, *meter.power(), busy_cores)
        return Timing(*self.ranks.broadcast(lambda: timing))

    # --- the run ------------------------------------------------------------------------------------------------------

    def fit(self, folder: Path, steps: int, previous: Mapping[str, object] | None = None) -> Meter:
        """Train up to this step, with log and checkpoints in the folder. `previous` is the cost so far."""
        eval_every = self.train.eval_every or max(1, math.ceil(steps / N_VALIDATIONS))
        log_every = self.train.log_every or max(1, steps // LOG_LINES)
        if (warmup := warmup_steps(steps, self.train)) > steps:
            lengths = f"train.warmup is {warmup:,} steps and the training {steps:,} steps long"
            self.listen("notice", text=f"{lengths}: the learning rate never reaches train.lr")
        self.model.train()
        with (
            Meter(previous, device=self.device, processes=self.ranks.local_world_size) as meter,
            _stop_signal() as stop_signal,
            self.bound_threads(),
            (folder / "log.jsonl" if self.ranks.is_first else Path(os.devnull)).open("a") as log,
            _log_failure(log),
            event_writer(folder if self.train.tensorboard and self.ranks.is_first else None) as write_event,
        ):
            saved, mark, tokens = time.monotonic(), time.perf_counter(), 0
            while self.step < steps and not self.validation.stops_early(self.train):
                n = self.step + 1
                validate = n % eval_every == 0 or n == steps
                logged = validate or n % log_every == 0 or n == 1
                line = self.update(steps, read=logged or n % READ_EVERY == 0)
                tokens += self.task.tokens_per_batch
                if logged:
                    line["tokens_per_second"] = round(tokens / (time.perf_counter() - mark))
                    if validate and "valid" in self.task.splits:
                        line |= self._validate()
                    log.write(json.dumps(to_json_value(line)) + "\n")
                    log.flush()
                    write_event(line)
                    mark, tokens = time.perf_counter(), 0
                self.listen("step", steps=steps, **line)
                interval = self.train.checkpoint_every
                due = time.monotonic() - saved > CHECKPOINT_SECONDS if interval is None else self.step % interval == 0
                save, stopped = self.ranks.all_max(due, stop_signal())
                done = self.step == steps or self.validation.stops_early(self.train)
                if save or stopped or done:
                    self.save(folder, meter)
                    saved = time.monotonic()
                if stopped and not done:
                    place = f"{folder}: stopped at step {self.step} of {steps}"
                    raise Stopped(f"{place}; {resume_command(folder, self.ranks.world_size)}", stopped)
        if message := self.early_stop_message(steps):
            self.listen("notice", text=message)
        return meter

    def early_stop_message(self, steps: int) -> str:
        """Why the training stopped before its last step; empty if it did not."""
        if self.step == steps or not self.validation.stops_early(self.train):
            return ""
        best = f"; {self.validation.best_weights_name} are kept" if self.best_weights else ""
        patience = self.train.early_stopping_patience
        passes = f"{patience} validation pass{'es' * (patience != 1)}"
        return f"stopped early at step {self.step:,} of {steps:,}: no better validation loss for {passes}{best}"

    def evaluate(self, split: str, *, quick: bool = True) -> Score:
        """The task's score. The final evaluation uses float32, as `harken eval` does."""
        with self.update_step.autocast() if quick else nullcontext():
            return self.task.evaluate(self.model, split, quick=quick)

    def _validate(self) -> dict[str, object]:
        """Validate, with the averaged weights if there are any, and record the score."""
        self.average.before_validation(self.model)
        current = self._clone_weights()
        if averaged := self.average.weights():
            run_folder.load_weights(self.model, current | averaged)
        score = self.evaluate("valid")
        loss, metric = self.ranks.broadcast(lambda: (score.metrics["loss"], score.metrics[score.primary_metric]))
        score = replace(score, metrics={"loss": loss, score.primary_metric: metric})
        self.record_validation(score, self._clone_weights() if averaged else current)
        if averaged:
            run_folder.load_weights(self.model, current)
        return {"valid": loss} if score.primary_metric == "loss" else {"valid": loss, score.primary_metric: metric}

    def new_validation_state(self, saved: Mapping[str, object] | None = None) -> ValidationState:
        return ValidationState.from_dict(saved or {})

    def record_validation(self, score: Score, weights: dict[str, Tensor]) -> None:
        """Record a validation score, and keep its weights if it is the best so far."""
        best = self.validation.record(selection_score(score.metrics, score.primary_metric), self.step, self.train)
        if best and self.train.keep_best:
            self.best_weights = weights

    def _clone_weights(self) -> dict[str, Tensor]:
        return {n: t.clone() for n, t in run_folder.weights(self.model).items()}

    def finish(self) -> None:
        """Load the best weights of the validation passes, else the average, else keep the last weights."""
        final = self.best_weights or self.average.weights()
        run_folder.load_weights(self.model, run_folder.weights(self.model) | final)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, folder: Path, meter: Meter) -> None:
        self._read()  # an unread non-finite update must not enter a checkpoint
        state = {
            **add_prefix("model", run_folder.weights(self.model)),
            **add_prefix("optimizer", checkpoint_state.optimizer_state(self.model, self.update_step.optimizer)),
            **add_prefix("random", self.ranks.gather_rng()),
            **add_prefix("task", self.ranks.gather_task_state(self.task.state())),
            **add_prefix("best", self.best_weights),
            **add_prefix("average", self.average.state()),
        }
        tensors = self.ranks.gather(state)
        manifest = {
            "epoch": self.step // self.task.steps,
            "position": self.step % self.task.steps,
            "validation": self.validation.to_dict(),
            "cost": meter.reading()._asdict(),
            "bitwise": self.bitwise,
            "machine": machine.describe(),
            "processes": self.ranks.world_size,
            "parallel": self.train.parallel,
            "notes": self.notes,
        }
        if self.ranks.is_first:
            run_folder.save_checkpoint(folder, self.step, tensors, manifest, keep=self.train.keep_checkpoints)
        self.listen("checkpoint", step=self.step)

    def resume(self, folder: Path) -> dict[str, JsonValue] | None:
        """Resume from the newest intact checkpoint: its manifest, or None if there is none."""
        newest, tensors, damaged = run_folder.newest_checkpoint(folder) if self.ranks.is_first else (None, {}, [])
        manifest = self.ranks.broadcast(lambda: newest)
        for problem in damaged:
            self.listen("notice", text=f"{problem}; using the checkpoint before it" if manifest else problem)
        if manifest is None:
            return None
        tensors = self.ranks.scatter(tensors, self.model)
        try:
            self._notify_changes(manifest)
            self._load(manifest, tensors)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadRun(f"{folder}: its checkpoint does not match its recipe ({error})") from None
        if self.ranks.is_first:
            run_folder.discard_later_checkpoints(folder, self.step)
            truncate_log(folder / "log.jsonl", self.step)
        return manifest

    def _notify_changes(self, manifest: Mapping[str, Any]) -> None:
        """Notify about differences from the machine of the checkpoint that prevent bitwise equality."""
        current = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        if any(manifest["machine"][name] != value for name, value in current.items()):
            self.listen("notice", text="the thread count or torch version has changed: resuming, but not bitwise")
        modes = (self.ranks.world_size, self.train.parallel), (manifest["processes"], manifest["parallel"])
        now, before = (f"{n} process{'es' * (n > 1)} (train.parallel={parallel})" for n, parallel in modes)
        if now != before:
            self.listen("notice", text=f"{now} instead of {before}: resuming, but not bitwise")

    def _load(self, manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        run_folder.load_weights(self.model, strip_prefix("model", tensors))
        optimizer = self.update_step.optimizer
        checkpoint_state.load_optimizer_state(self.model, optimizer, strip_prefix("optimizer", tensors))
        checkpoint_state.load_rng_state(self.ranks.own_rng(strip_prefix("random", tensors)))
        self.task.load_state(strip_prefix("task", tensors))
        self.best_weights = {n: t.to(self.device) for n, t in strip_prefix("best", tensors).items()}
        self.step, self.validation = int(manifest["step"]), self.new_validation_state(manifest["validation"])
        self.update_step.n_skipped.fill_(self.validation.skipped)
        if average := strip_prefix("average", tensors):
            on_device = {n: t if n == "n_updates" else t.to(self.device) for n, t in average.items()}
            self.average.load_state(on_device)


def selection_score(metrics: Mapping[str, float], by: str) -> float:
    """Score to minimize: the loss, or a metric to maximize with the loss as tie-breaker. NaN is the worst score."""
    score = metrics["loss"] if by == "loss" else TIE_BREAK * metrics["loss"] - metrics[by]
    return math.inf if math.isnan(score) else score


def truncate_log(path: Path, step: int) -> None:
    """Remove the lines after this step, and an incomplete last line, so that every step is logged once."""
    lines = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            if json.loads(line)["step"] <= step:
                lines.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    write_atomic(path, "".join(lines))


@contextmanager
def _log_failure(log: TextIO) -> Iterator[None]:
    """Log an error that would end a resumed run in the same way; resuming from an earlier step removes the line."""
    try:
        yield
    except Stopped:
        raise
    except HarkenError as error:
        log.write(json.dumps({"ended": str(error)}) + "\n")
        raise


@contextmanager
def _stop_signal() -> Iterator[Callable[[], int]]:
    """Delay Ctrl-C and SIGTERM until the step is done: number of the first signal, or 0. A second one stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    received: list[int] = []

    def handle(number: int, frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: received[0] if received else 0
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
