"""The loop: one for every family. A step is a pure function of the weights, the moments, the random state and the place
in the data; all four are in every checkpoint, so a run that was killed goes on as if nothing had happened."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harken import run
from harken.data.batch import Batch
from harken.errors import BadRun, HarkenError, Stopped
from harken.events import Listener, silent
from harken.tasks import Learning

from . import machine, state
from .average import average
from .course import Course
from .meter import Meter
from .optim import clip, optimizer, rate
from .settings import Train

CHECKPOINT_SECONDS = 30.0
EVALS = 10
LINES = 200


class Trainer:
    """A model, its task and its optimiser, at some step of a run."""

    def __init__(self, model: nn.Module, task: Learning, train: Train, *, listen: Listener = silent) -> None:
        self.train, self.task, self.listen = train, task, listen
        self.device = machine.pick_device(train.device)
        self.precision = machine.pick_precision(train.precision, self.device)
        if train.threads:
            torch.set_num_threads(train.threads)
        if train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only then
            torch.use_deterministic_algorithms(True)
        self.model = model.to(self.device)
        self.optimizer = optimizer(self.model, train)
        self.call = self._compiled()
        self.step, self.course, self.average = 0, Course(), average(train)
        self.best_weights: dict[str, Tensor] = {}

    def _compiled(self) -> nn.Module:
        """The model as it is called in a step: compiled where that pays, plain where it cannot be."""
        wanted = self.train.compile
        if (
            wanted == "no"
            or (wanted == "auto" and self.device.type == "cpu")
            or not getattr(self.model, "compiles", True)
        ):
            return self.model
        if reason := machine.can_compile(self.device):
            self.listen("notice", text=f"not compiled: {reason}")
            return self.model
        return Compiled(self.model, self.listen)

    # --- one step -----------------------------------------------------------------------------------------------------

    def update(self, steps: int) -> dict[str, Any]:
        """One update from one batch, computed in micro-batches whose gradients add up to the whole batch's."""
        epoch, place = divmod(self.step, self.task.steps)
        batch = self.task.batch(epoch, place)
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, steps, self.train) * self.course.left
        total, parts = self._gradients(batch)
        norm = clip(self.model.parameters(), self.train.clip)
        loss = float(total) / batch.count
        if math.isfinite(loss) and math.isfinite(float(norm)):
            self.optimizer.step()
            self.average.step(self.model)
        else:
            self._odd(f"epoch {epoch}, batch {place}", loss, float(norm))
        self.optimizer.zero_grad()
        self.step += 1
        lr = self.optimizer.param_groups[0]["lr"]
        return {"step": self.step, "epoch": epoch, "loss": loss, "lr": lr, "gradient": float(norm), **parts}

    def _odd(self, where: str, loss: float, norm: float) -> None:
        """A loss or gradient that is no number: nothing is updated; then stop, or go on with the next batch."""
        self.optimizer.zero_grad()
        self.course.skipped += 1
        what = f"step {self.step + 1} ({where}): the loss is {loss}, the gradient's length {norm}; nothing was updated"
        if self.train.on_nan == "stop":
            raise HarkenError(f"{what}; train again with a lower train.lr or a longer train.warmup")
        self.listen("notice", text=f"{what}; the batch is skipped")

    def _gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        rows, size = len(batch.tokens), self.train.micro or len(batch.tokens)
        count, total = batch.count, torch.zeros((), device=self.device)
        parts: dict[str, list[Any]] = {}
        for part, start in enumerate(range(0, rows, size)):
            with self._numbers():
                loss = self.task.loss(self.call, batch.rows(start, start + size).to(self.device), part)
            (
                loss.total / count
            ).backward()  # over the targets of the whole batch: ragged micro-batches weigh as they should
            total += loss.total.detach()
            for name, (sum_, n) in loss.parts.items():
                seen = parts.setdefault(name, [0.0, 0])
                parts[name] = [seen[0] + float(sum_), seen[1] + n]
        means = {name: sum_ / n for name, (sum_, n) in parts.items() if n}
        return total, {"parts": means} if means else {}

    def _numbers(self) -> Any:
        if self.precision == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.precision)

    # --- how long -----------------------------------------------------------------------------------------------------

    def plan(self) -> int:
        """How many steps the budget is. Minutes become steps here, once, from a measured rate; then steps count."""
        if self.train.steps is not None:
            return self.train.steps
        if self.train.tokens is not None:
            return math.ceil(self.train.tokens / self.task.tokens)
        if self.train.epochs is not None:
            return math.ceil(self.train.epochs * self.task.steps)
        return self.affordable(*self.measure(min(20.0, max(1.0, self.train.minutes * 6))))

    def affordable(self, step: float, look: float) -> int:
        """How many steps of this length the minutes hold, with the looks at the valid split between them."""
        seconds = self.train.minutes * 60
        return max(1, int((seconds - EVALS * min(look, seconds / 50)) / step))

    def measure(self, seconds: float) -> tuple[float, float]:
        """Seconds of a step and of a look at the valid split. Weights and random state are put back afterwards."""
        self.listen("measure")
        before = {n: t.clone() for n, t in run.weights(self.model).items()}
        chance, carry = state.random_state(), self.task.state()
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 5 or (time.perf_counter() - begin < seconds and len(times) < 200):
            start = time.perf_counter()
            self.update(10**9)  # the first steps of a long warm-up: nearly no change
            self._wait()
            times.append(time.perf_counter() - start)
        start = time.perf_counter()
        if "valid" in self.task.splits:
            self.look("valid")
        look = time.perf_counter() - start
        run.load_weights(self.model, before)
        self.optimizer, self.step = optimizer(self.model, self.train), 0
        self.course, self.average = Course(), average(self.train)
        state.load_random_state(chance)
        self.task.load_state(carry)
        return sorted(times[2:])[len(times[2:]) // 2], look

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # --- the run ------------------------------------------------------------------------------------------------------

    def fit(self, folder: Path, steps: int, previous: dict[str, Any] | None = None) -> Meter:
        """Train up to this step, writing log and checkpoints into the folder. `previous` is the cost until now."""
        look_every = self.train.eval_every or max(1, math.ceil(steps / EVALS))
        log_every = self.train.log_every or max(1, steps // LINES)
        self.model.train()
        with (
            Meter(previous, device=self.device) as meter,
            _asked_to_stop() as stop,
            (folder / "log.jsonl").open("a") as log,
        ):
            saved, mark, tokens = time.monotonic(), time.perf_counter(), 0
            while self.step < steps and not self.course.over(self.train):
                facts = self.update(steps)
                tokens += self.task.tokens
                look = self.step % look_every == 0 or self.step == steps
                if look or self.step % log_every == 0 or self.step == 1:
                    facts["tokens_per_second"] = round(tokens / (time.perf_counter() - mark))
                    if look and "valid" in self.task.splits:
                        facts["valid"] = self._judge()
                    log.write(json.dumps(facts) + "\n")
                    log.flush()
                    mark, tokens = time.perf_counter(), 0
                self.listen("step", steps=steps, **facts)
                due = self.train.checkpoint_every
                late = time.monotonic() - saved > CHECKPOINT_SECONDS if due is None else self.step % due == 0
                stopped = stop()
                done = self.step == steps or self.course.over(self.train)
                if late or stopped or done:
                    self.save(folder, meter)
                    saved = time.monotonic()
                if stopped and not done:
                    raise Stopped(
                        f"{folder}: stopped at step {self.step} of {steps}; go on with: harken train {folder} --resume"
                    )
        return meter

    def look(self, split: str, *, quick: bool = True) -> Any:
        """The task's score. The last judgement is made in float32, as `harken eval` will make it again."""
        with self._numbers() if quick else nullcontext():
            return self.task.evaluate(self.model, split, quick=quick)

    def _judge(self) -> float:
        self.average.look(self.model)
        now = {n: t.clone() for n, t in run.weights(self.model).items()}
        if averaged := self.average.weights():
            run.load_weights(self.model, averaged)
        loss = float(self.look("valid").metrics["loss"])
        if self.course.note(loss, self.step, self.train) and self.train.best:
            self.best_weights = {n: t.clone() for n, t in run.weights(self.model).items()} if averaged else now
        if averaged:
            run.load_weights(self.model, now)
        return loss

    def finish(self) -> None:
        """Take the weights that were best on the valid split, else the average, else the last."""
        if final := self.best_weights or self.average.weights():
            run.load_weights(self.model, final)

    # --- stop and go on -----------------------------------------------------------------------------------------------

    def save(self, folder: Path, meter: Meter) -> None:
        tensors = {
            **state.under("model", run.weights(self.model)),
            **state.under("optimizer", state.moments(self.model, self.optimizer)),
            **state.under("random", state.random_state()),
            **state.under("task", self.task.state()),
            **state.under("best", self.best_weights),
            **state.under("average", self.average.state()),
        }
        used = meter.reading()
        facts = {
            "epoch": self.step // self.task.steps,
            "position": self.step % self.task.steps,
            "course": self.course.facts(),
            "cost": {"seconds": used.seconds, "joules": used.joules, "energy_source": used.source},
            "bitwise": self.device.type == "cpu" or self.train.deterministic,
            "machine": machine.describe(),
        }
        run.save_checkpoint(folder, self.step, tensors, facts, keep=self.train.keep)
        self.listen("checkpoint", step=self.step)

    def resume(self, folder: Path) -> dict[str, Any] | None:
        """Go on from the newest whole checkpoint: its facts, or None if there is none."""
        found = run.newest_checkpoint(folder)
        if found is None:
            return None
        facts, tensors, damaged = found
        for problem in damaged:
            self.listen("notice", text=f"{problem}; the checkpoint before it is taken")
        now = {"threads": torch.get_num_threads(), "torch": torch.__version__}
        try:
            if any(facts["machine"][name] != value for name, value in now.items()):
                self.listen(
                    "notice", text="another thread count or torch than before: the run goes on, but not bit for bit"
                )
            run.load_weights(self.model, state.of("model", tensors))
            state.load_moments(self.model, self.optimizer, state.of("optimizer", tensors))
            state.load_random_state(state.of("random", tensors))
            self.task.load_state(state.of("task", tensors))
            self.best_weights = {n: t.to(self.device) for n, t in state.of("best", tensors).items()}
            self.step, self.course = int(facts["step"]), Course.of(facts["course"])
            if saved := state.of("average", tensors):
                self.average.load_state({n: t if n == "n" else t.to(self.device) for n, t in saved.items()})
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BadRun(f"{folder}: its checkpoint does not fit its recipe ({error})") from None
        trim_log(folder / "log.jsonl", self.step)
        return facts


class Compiled(nn.Module):
    """A model whose forward is compiled; everything else is the model's own."""

    def __init__(self, model: nn.Module, listen: Listener) -> None:
        super().__init__()
        self.model, self.listen = model, listen
        self.fast: Callable[..., Any] = torch.compile(model, dynamic=False)
        self.proven = False

    def forward(self, *given: Any, **named: Any) -> Any:
        try:
            h = self.fast(*given, **named)
        except Exception as error:  # compilers fail in their own ways; the plain model says whether it was their fault
            if self.proven:
                raise
            self.fast, h = self.model, self.model(*given, **named)
            self.listen("notice", text=f"not compiled, so slower: {type(error).__name__}")
        self.proven = True
        return h

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def trim_log(path: Path, step: int) -> None:
    """Leave the lines up to this step, so that every step stands there once; a half-written last line goes too."""
    kept = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else ():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue
    run.write(path, "".join(kept))


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM wait until the step is done. A second Ctrl-C does not."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked: list[int] = []

    def note(number: int, frame: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
