"""harken.audit: check that a model respects its masks, and locate the first layer that does not.

The checks run on a copy of the model in float64 on the CPU, where two equivalent computations agree to about 15 digits.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.experiments.choose import choose
from harken.files import check_path
from harken.inference.run import Run, load
from harken.models import EncoderDecoder, LanguageModel, Model
from harken.models.sets import SetEncoder
from harken.run_folder import count_parameters
from harken.tasks import BoundTask

from . import checks
from .checks import Measurement

PASSED, FAILED, NOT_APPLICABLE = "passed", "failed", "does not apply"
LARGE, HUGE = 20_000_000, 200_000_000  # parameters: large models get shorter rows, huge ones float32
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}  # relative to the largest value
CLAIMS = {
    "causal": "outputs do not depend on later tokens",
    "gradient": "dh_t/dx_s = 0 for s > t",
    "padding": "padding changes neither the outputs nor the next tokens",
    "packing": "a document has the same outputs packed with others and alone",
    "source_padding": "padding of the source does not change the outputs",
    "cache": "decoding with a cache equals the full pass",
    "permutation": "the order of the rows of a set does not change the output",
    "batching": "a row has the same outputs in a batch of different lengths and alone",
    "accumulation": "the gradients of micro-batches sum to the gradient of the batch",
}


@dataclass(frozen=True)
class Check:
    """One check: its outcome, and the largest difference relative to the largest value."""

    name: str
    claim: str
    outcome: str  # passed, failed or does not apply
    difference: float | None = None
    tolerance: float | None = None
    layer: str | None = None  # of a failed check: the first module with equal inputs and different outputs
    why: str | None = None


@dataclass(frozen=True)
class Audit:
    """The checks of a model. `str(audit)` is a summary.

    >>> report = harken.audit("runs/text")
    >>> report.passed, report.facts()["checks"][0]["name"]
    (True, 'causal')
    """

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self._with_outcome(FAILED)

    def _with_outcome(self, outcome: str) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    def __str__(self) -> str:
        if failed := self._with_outcome(FAILED):
            layers = {check.layer: [c.name for c in failed if c.layer == check.layer] for check in failed}
            failures = [", ".join(names) + (f" in {layer}" if layer else "") for layer, names in layers.items()]
            return f"{len(failed)} of {len(self.checks)} checks failed: {'; '.join(failures)}"
        passed, skipped = self._with_outcome(PASSED), self._with_outcome(NOT_APPLICABLE)
        summary = f"{len(passed)} check{'s' * (len(passed) != 1)} passed ({', '.join(c.name for c in passed)})"
        verb = NOT_APPLICABLE if len(skipped) == 1 else "do not apply"
        return summary + (f"; {', '.join(c.name for c in skipped)} {verb}" if skipped else "")

    def facts(self) -> dict[str, object]:
        """The audit as JSON."""
        return {"passed": self.passed, "summary": str(self), "checks": [asdict(check) for check in self.checks]}


def audit(
    what: str | Path | Run | nn.Module,
    task: BoundTask | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    length: int | None = None,
    listen: Listener = silent,
) -> Audit:
    """Audit a run, an untrained model of a recipe, or a module with its task. The model is not changed.

    >>> print(harken.audit("runs/text"))
    7 checks passed (causal, gradient, padding, packing, cache, batching, accumulation)
    """
    model, bound = (what, task) if isinstance(what, nn.Module) else _load(what, dict(settings or {}), listen)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        return Audit(tuple(_run_checks(_copy(model), bound or "there is no task", length)))


def _load(what: str | Path | Run, settings: dict[str, object], listen: Listener) -> tuple[nn.Module, BoundTask | str]:
    """The model of a run, or of a recipe with initial weights; and its task, or why there is none."""
    if not isinstance(what, Run):
        check_path("what", what)
    if isinstance(what, Run) or any((Path(what) / name).exists() for name in ("harken.json", "checkpoints")):
        if settings:
            raise BadInput(f"{what}: settings cannot be changed in the audit of a run; they are for recipes and data")
        run = what if isinstance(what, Run) else load(what, device="cpu")
        try:
            return run.model, run.recipe.bind(run.recipe.load_data(run.tokenizer, listen=listen))
        except HarkenError as error:  # the data may have moved
            return run.model, str(error)
    recipe = choose(str(what), settings, listen=listen).recipe
    dataset = recipe.load_data(listen=listen)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.train.seed)
        return recipe.build(dataset.vocab), recipe.bind(dataset)


def _copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU in float64, or in float32 if it is huge or does not support float64."""
    copied = copy.deepcopy(model).cpu().eval().requires_grad_(True)
    if count_parameters(model) > HUGE:
        return copied.float()
    if isinstance(copied.double(), LanguageModel):
        token = torch.zeros(1, 1, dtype=torch.long)
        try:
            copied(token, **({"source": token} if isinstance(copied, EncoderDecoder) else {}))
        except RuntimeError:
            return copied.float()
    return copied


def _backbone(model: nn.Module) -> nn.Module:
    """The model without its head, which works on each state alone."""
    return model.backbone if isinstance(model, Model) else model


def _run_checks(model: nn.Module, task: BoundTask | str, length: int | None) -> Iterator[Check]:
    tolerance = TOLERANCE[next(model.parameters()).dtype]
    backbone = _backbone(model)
    for name, claim in CLAIMS.items():
        is_decoder = isinstance(backbone, LanguageModel) and not isinstance(backbone, EncoderDecoder)
        if name == "source_padding" and is_decoder:
            continue
        if name == "permutation" and not isinstance(backbone, SetEncoder):
            continue
        check = partial(Check, name, claim)
        try:
            worst, divergence = _measure(name, model, task, length, tolerance)
        except HarkenError as error:  # the model does not support the operation
            yield check(NOT_APPLICABLE, why=str(error))
        except Exception as error:  # any error of a model: it must not lose a finished training
            yield check(FAILED, why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            layer, first = (layer or type(model).__name__ for layer in divergence) if divergence else (None, None)
            if math.isfinite(worst):
                why = None if layer == first else f"first difference in {first}"
                yield check(PASSED if worst <= tolerance else FAILED, worst, tolerance, layer, why)
            else:
                yield check(FAILED, None, tolerance, layer, "its output is not finite")


def _measure(name: str, model: nn.Module, task: BoundTask | str, length: int | None, tolerance: float) -> Measurement:
    L = length or (checks.LENGTH if count_parameters(model) <= LARGE else checks.LENGTH // 2)
    if name == "accumulation":
        if isinstance(task, str):
            raise HarkenError(task)
        return checks.accumulation(model, task, L, tolerance)
    model = _backbone(model)
    if isinstance(model, SetEncoder):
        return checks.check_sets(name, model, L)
    if not isinstance(model, LanguageModel):
        raise HarkenError(f"{type(model).__name__} is not a language model")
    if not model.causal and name in ("causal", "gradient", "cache"):
        raise HarkenError("it is bidirectional")
    return checks.CHECKS[name](model, L if model.context is None else min(L, model.context), tolerance)
