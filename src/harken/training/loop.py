"""The loop: one for every family. A step is a pure function of the weights, the moments, the random state and the place
in the data; all four are in every checkpoint, so a run that was killed goes on as if nothing had happened."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch
from torch import Tensor, nn

from harken import machine, run_folder
from harken.errors import BadRun, BadSetting, HarkenError, Stopped, how_to_go_on
from harken.events import Listener, plain, silent
from harken.tasks import Learning, Score

from . import checkpoint_state
from .cost import Meter, forget_peak
from .cuda_graph import WARM
from .optimizers import rate, rising
from .parallel import Ranks
from .settings import Train
from .step import Step
from .tensorboard import curves, tensorboard
from .validation_state import Course
from .weight_average import average

CHECKPOINT_SECONDS = 30.0
EVALS = 10
LINES = 200
TIE = 1e-6  # of the loss: it decides where another metric stands still
READ = 10  # steps between readings of a GPU's numbers


class Pace(NamedTuple):
    """What was measured before the first step: seconds of an update and of a look at the valid split, watts and their
    source."""

    step: float
    look: float
    watts: float
    source: str


@contextmanager
def as_before() -> Iterator[None]:
    """Threads, determinism, compiling are the whole process's: what a Trainer sets of them is put back."""
    threads, mode, compiling = torch.get_num_threads(), torch.get_deterministic_debug_mode(), machine.compiling
    try:
        yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)
        machine.compiling = compiling


class Trainer:
    """A model, its task and its optimiser, at some step of a run."""

    def __init__(
        self, model: nn.Module, task: Learning, train: Train, *, listen: Listener = silent, ranks: Ranks | None = None
    ) -> None:
        self.train, self.task, self.listen, self.ranks = train, task, listen, ranks or Ranks()
        if train.threads:
            torch.set_num_threads(train.threads)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only then
        torch.use_deterministic_algorithms(train.deterministic)
        machine.compiling = train.compile != "no"
        if train.tensorboard:
            tensorboard()  # if it is missing, now is the time to say so
        self.make = Step(model, task, train, listen=listen, ranks=self.ranks)
        self.ranks.draw(train.seed)
        self.model, self.device, self.precision = self.make.model, self.make.device, self.make.precision
        self.bitwise = self.device.type == "cpu" or train.deterministic  # whether it repeats itself to the last bit
        forget_peak(self.device)  # the memory of whatever this process did before is not this run's
        self.step, self.course, self.average = 0, self.new_course(), average(train)
        looked_at = train.schedule == "plateau" or train.average == "last" or train.early_stopping_patience is not None
        if looked_at and "valid" not in task.splits:
            raise BadSetting(
                "train: plateau, average=last and stop_after need a valid split; hold one out: data.valid=0.1"
            )
        self.last = {"loss": math.nan, "gradient": math.nan}  # as they were last read
        self.best_weights: dict[str, Tensor] = {}
        self.notes: dict[str, Any] = {}  # what else a checkpoint keeps for whoever goes on

    def update(self, steps: int, *, read: bool = True) -> dict[str, Any]:
        """One step. Reading its loss back takes a GPU's time, so there it may be left for later."""
        epoch, place = divmod(self.step, self.task.steps)
        lr = rate(self.step, steps, self.train) * self.course.left
        self.make(self.task.batch(epoch, place), lr)
        self.average.step(self.model)
        self.step += 1
        if read or not self.make.lazy:
            self._read()
        parts = {"parts": self.make.parts} if self.make.parts else {}
        return {"step": self.step, "epoch": epoch, "lr": lr, **self.last, **parts}

    def _read(self) -> None:
        """Read what came of the last updates. Where a number was not finite nothing was updated: stop, or go on."""
        loss, norm, odd = self.make.read()
        self.last = {"loss": loss, "gradient": norm}
        if (new := odd - self.course.skipped) == 0:
            return
        before, self.course.skipped = self.course.skipped, odd
        what = "the loss or the gradient is not finite, so nothing was updated"
        if self.train.on_nan == "skip":
            if odd.bit_length() > before.bit_length():  # the first, and whenever they have doubled
                self.listen("notice", text=f"step {self.step}: {what}; {odd:,} skipped until now")
            return
        self.step -= new  # after the first, none was updated
        epoch, place = divmod(self.step, self.task.steps)
        where = f"step {self.step + 1} (epoch {epoch}, batch {place})"
        raise HarkenError(f"{where}: {what}; train again with a lower train.lr or a longer train.warmup")

    # --- how long -----------------------------------------------------------------------------------------------------

    def measure(self, seconds: float, most: int = 200) -> Pace:
        """The pace, from so many seconds or steps. Weights and random state are put back afterwards."""
        self.listen("measure")
        listen, self.listen = self.listen, silent  # what is odd in steps that are put back is not the run's
        before = self._weights()
        chance, carry = checkpoint_state.random_state(), self.task.state()
        for _ in range(WARM + 2 if self.make.lazy else 2):  # what the first steps set up is set up once
            self.update(10**9)  # the first steps of a long warm-up: nearly no change
        machine.wait(self.device)
        times: list[float] = []
        block = READ if self.make.lazy else 1
        begin = time.perf_counter()
        with Meter(device=self.device, processes=self.ranks.here) as meter:
            while self.ranks.same(
                lambda: len(times) < 5 or (time.perf_counter() - begin < seconds and len(times) * block < most)
            ):
                start = time.perf_counter()
                for _ in range(block):
                    self.update(10**9, read=False)
                machine.wait(self.device)
                times.append((time.perf_counter() - start) / block)
        start = time.perf_counter()
        if "valid" in self.task.splits:
            self.look("valid")
        look = time.perf_counter() - start
        run_folder.load_weights(self.model, before)
        self.make.begin()
        self.step, self.course, self.average, self.listen = 0, self.new_course(), average(self.train), listen
        checkpoint_state.load_random_state(chance)
        self.task.load_state(carry)
        pace = Pace(sorted(times)[len(times) // 2], look, *meter.power())
        return Pace(*self.ranks.same(lambda: pace))

    # --- the run ------------------------------------------------------------------------------------------------------

    def fit(self, folder: Path, steps: int, previous: dict[str, Any] | None = None) -> Meter:
        """Train up to this step, writing log and checkpoints into the folder. `previous` is the cost until now."""
        look_every = self.train.eval_every or max(1, math.ceil(steps / EVALS))
        log_every = self.train.log_every or max(1, steps // LINES)
        if (rise := rising(steps, self.train)) > steps:
            many = f"train.warmup is {rise:,} steps long, and the training {steps:,}"
            self.listen("notice", text=f"{many}: the rate never gets up to train.lr")
        self.model.train()
        with (
            Meter(previous, device=self.device, processes=self.ranks.here) as meter,
            _asked_to_stop() as stop,
            (folder / "log.jsonl" if self.ranks.first else Path(os.devnull)).open("a") as log,
            _last_words(log),
            curves(folder if self.train.tensorboard and self.ranks.first else None) as draw,
        ):
            saved, mark, tokens = time.monotonic(), time.perf_counter(), 0
            while self.step < steps and not self.course.over(self.train):
                n = self.step + 1
                look = n % look_every == 0 or n == steps
                told = look or n % log_every == 0 or n == 1
                facts = self.update(steps, read=told or n % READ == 0)
                tokens += self.task.tokens
                if told:
                    facts["tokens_per_second"] = round(tokens / (time.perf_counter() - mark))
                    if look and "valid" in self.task.splits:
                        facts |= self._judge()
                    log.write(json.dumps(plain(facts)) + "\n")
                    log.flush()
                    draw(facts)
                    mark, tokens = time.perf_counter(), 0
                self.listen("step", steps=steps, **facts)
                due = self.train.checkpoint_every
                late = time.monotonic() - saved > CHECKPOINT_SECONDS if due is None else self.step % due == 0
                save, stopped = self.ranks.most(late, stop())
                done = self.step == steps or self.course.over(self.train)
                if save or stopped or done:
                    self.save(folder, meter)
                    saved = time.monotonic()
                if stopped and not done:
                    where = f"{folder}: stopped at step {self.step} of {steps}"
                    raise Stopped(f"{where}; {how_to_go_on(folder, self.ranks.world)}", stopped)
        if early := self.early(steps):
            self.listen("notice", text=early)
        return meter

    def early(self, steps: int) -> str:
        """Why the training was over before its steps were; nothing, if it was not."""
        if self.step == steps or not self.course.over(self.train):
            return ""
        kept = f"; {self.course.kept} are kept" if self.best_weights else ""
        looks = f"{self.train.early_stopping_patience} look{'s' * (self.train.early_stopping_patience != 1)}"
        return f"stopped at step {self.step:,} of {steps:,}: the valid loss was no better for {looks}{kept}"

    def look(self, split: str, *, quick: bool = True) -> Any:
        """The task's score. The last judgement is made in float32, as `harken eval` will make it again."""
        with self.make.numbers() if quick else nullcontext():
            return self.task.evaluate(self.model, split, quick=quick)

    def _judge(self) -> dict[str, Any]:
        self.average.look(self.model)
        now = self._weights()
        if averaged := self.average.weights():
            run_folder.load_weights(self.model, now | averaged)
        seen = self.look("valid")
        loss, other = self.ranks.same(lambda: (seen.metrics["loss"], seen.metrics[seen.by]))
        self.note(replace(seen, metrics={"loss": loss, seen.by: other}), self._weights() if averaged else now)
        if averaged:
            run_folder.load_weights(self.model, now)
        return {"valid": loss} if seen.by == "loss" else {"valid": loss, seen.by: other}

    def new_course(self, facts: Mapping[str, Any] | None = None) -> Course:
        return Course.of(facts) if facts else Course()

    def note(self, seen: Score, kept: dict[str, Tensor]) -> None:
        """Take in a look; the weights that were looked at are kept if it is the best yet."""
        if self.course.note(rank(seen.metrics, seen.by), self.step, self.train) and self.train.keep_best:
            self.best_weights = kept

    def _weights(self) -> dict[str, Tensor]:
        return {n: t.clone() for n, t in run_folder.weights(self.model).items()}

    def finish(self) -> None:
        """Take the weights that were best on the valid split, else the average, else the last."""
        final = self.best_weights or self.average.weights()
        run_folder.load_weights(self.model, run_folder.weights(self.model) | final)

    # --- stop and go on -----------------------------------------------------------------------------------------------

    def save(self, folder: Path, meter: Meter) -> None:
        self._read()  # a checkpoint behind an odd number that nobody has read would hide it
        held = {
            **checkpoint_state.under("model", run_folder.weights(self.model)),
            **checkpoint_state.under("optimizer", checkpoint_state.moments(self.model, self.make.optimizer)),
            **checkpoint_state.under("random", self.ranks.chances()),
            **checkpoint_state.under("task", self.ranks.carried(self.task.state())),
            **checkpoint_state.under("best", self.best_weights),
            **checkpoint_state.under("average", self.average.state()),
        }
        tensors = self.ranks.collected(held)
        used = meter.reading()
        facts = {
            "epoch": self.step // self.task.steps,
            "position": self.step % self.task.steps,
            "course": self.course.facts(),
            "cost": {
                "seconds": used.seconds,
                "joules": used.joules,
                "energy_source": used.source,
                "memory": used.memory,
            },
            "bitwise": self.bitwise,
            "machine": machine.describe(),
            "processes": self.ranks.world,
            "parallel": self.train.parallel,
            "notes": self.notes,
        }
        if self.ranks.first:
            run_folder.save_checkpoint(folder, self.step, tensors, facts, keep=self.train.keep_checkpoints)
        self.listen("checkpoint", step=self.step)

    def resume(self, folder: Path) -> dict[str, Any] | None:
        """Go on from the newest whole checkpoint: its facts, or None if there is none."""
        found, tensors, damaged = run_folder.newest_checkpoint(folder) if self.ranks.first else (None, {}, [])
        facts = self.ranks.same(lambda: found)
        for problem in damaged:
            self.listen("notice", text=f"{problem}; the checkpoint before it is taken" if facts else problem)
        if facts is None:
            return None
        tensors = self.ranks.handed(tensors, self.model)
        now = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        try:
            if any(facts["machine"][name] != value for name, value in now.items()):
                self.listen(
                    "notice", text="another thread count or torch than before: the run goes on, but not bit for bit"
                )
            how = self.train.parallel
            before = _shared(facts.get("processes", 1), facts.get("parallel", how))  # the first runs do not say
            if (shared := _shared(self.ranks.world, how)) != before:
                self.listen("notice", text=f"{shared} instead of {before}: the run goes on, but not bit for bit")
            run_folder.load_weights(self.model, checkpoint_state.of("model", tensors))
            checkpoint_state.load_moments(self.model, self.make.optimizer, checkpoint_state.of("optimizer", tensors))
            checkpoint_state.load_random_state(self.ranks.own_chance(checkpoint_state.of("random", tensors)))
            self.task.load_state(checkpoint_state.of("task", tensors))
            self.best_weights = {n: t.to(self.device) for n, t in checkpoint_state.of("best", tensors).items()}
            self.step, self.course = int(facts["step"]), self.new_course(facts["course"])
            self.make.odds.fill_(self.course.skipped)
            if saved := checkpoint_state.of("average", tensors):
                self.average.load_state({n: t if n == "n" else t.to(self.device) for n, t in saved.items()})
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadRun(f"{folder}: its checkpoint does not fit its recipe ({error})") from None
        if self.ranks.first:
            run_folder.set_aside(folder, self.step)
            trim_log(folder / "log.jsonl", self.step)
        return facts


def rank(metrics: Mapping[str, float], by: str) -> float:
    """What is to be small: the loss, or another metric that is to be large; there the loss decides a tie.

    What is no number is the worst.
    """
    found = metrics["loss"] if by == "loss" else TIE * metrics["loss"] - metrics[by]
    return math.inf if math.isnan(found) else found


def _shared(processes: int, how: str) -> str:
    return f"{processes} process{'es' * (processes > 1)} (train.parallel={how})"


def trim_log(path: Path, step: int) -> None:
    """Leave the lines up to this step, so that every step stands there once; a half-written last line goes too."""
    kept = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    run_folder.write(path, "".join(kept))


@contextmanager
def _last_words(log: TextIO) -> Iterator[None]:
    """What would end the run again is the last line of its log; whoever goes on before it takes it away."""
    try:
        yield
    except Stopped:
        raise
    except HarkenError as error:
        log.write(json.dumps({"ended": str(error)}) + "\n")
        raise


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM wait until the step is done: the number of the first, or 0. A second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked[0] if asked else 0
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
