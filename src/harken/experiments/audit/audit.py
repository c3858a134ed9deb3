"""harken.audit: whether a model obeys its mask, proved on its own weights; and the first layer that does not.

A copy of the model is asked, in float64 on a CPU: there two ways to the same number agree to some fifteen figures.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from harken.errors import BadInput, HarkenError
from harken.events import Listener, silent
from harken.experiments.choose import choose
from harken.inference.run import Run, load
from harken.models import EncoderDecoder, LanguageModel
from harken.models.sets import SetEncoder
from harken.run_folder import size
from harken.tasks import Learning

from . import checks as proofs

PASSED, FAILED, UNFIT = "passed", "failed", "does not apply"
LARGE, HUGE = 20_000_000, 200_000_000  # weights: rows of large models are shorter, huge ones are asked in float32
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}  # shares of the largest number
CLAIMS = {
    "causal": "a later token changes nothing before it",
    "gradient": "no vector depends on a later word: dh_t/dx_s = 0 for s > t",
    "padded": "what stands behind the end of a text changes nothing in it, nor in what follows",
    "packed": "a document among others in a row is the same as alone",
    "told": "what stands behind the end of a source changes nothing in what is written",
    "cached": "decoding with a memory, token by token, is the full pass",
    "permuted": "the order in which the rows of a set stand changes nothing",
    "batched": "a row among others of other lengths is the same as alone",
    "accumulated": "the gradients of parts of a batch add up to those of the whole",
}


@dataclass(frozen=True)
class Check:
    """One check: passed, failed or does not apply, and the largest difference, as a share of the largest number."""

    name: str
    claim: str
    outcome: str
    difference: float | None = None
    tolerance: float | None = None
    layer: str | None = None  # of a failure: the first module that was given the same and said something else
    why: str | None = None


@dataclass(frozen=True)
class Audit:
    """What was checked of a model."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return not self._of(FAILED)

    def _of(self, outcome: str) -> list[Check]:
        return [check for check in self.checks if check.outcome == outcome]

    def __str__(self) -> str:
        if failed := self._of(FAILED):
            layers = {check.layer: [c.name for c in failed if c.layer == check.layer] for check in failed}
            told = [", ".join(names) + (f" in {layer}" if layer else "") for layer, names in layers.items()]
            return f"{len(failed)} of {len(self.checks)} checks failed: {'; '.join(told)}"
        done, rest = (", ".join(check.name for check in self._of(outcome)) for outcome in (PASSED, UNFIT))
        many, unfit = len(self._of(PASSED)), UNFIT if len(self._of(UNFIT)) == 1 else "do not apply"
        return f"{many} check{'s' * (many != 1)} passed ({done})" + (f"; {rest} {unfit}" if rest else "")

    def facts(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"passed": self.passed, "summary": str(self), "checks": [asdict(check) for check in self.checks]}


def audit(
    what: str | Path | Run | nn.Module,
    task: Learning | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    length: int | None = None,
    listen: Listener = silent,
) -> Audit:
    """Audit a run, a fresh model by a recipe, or a model as it is, with the task it learns. It stays as it is."""
    model, learns = (what, task) if isinstance(what, nn.Module) else _named(what, dict(settings or {}), listen)
    with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
        return Audit(tuple(_checks(_copy(model), learns or "no task is given", length)))


# --- what is audited --------------------------------------------------------------------------------------------------


def _named(what: str | Path | Run, settings: dict[str, Any], listen: Listener) -> tuple[nn.Module, Learning | str]:
    """The model of a run, or of a recipe with its first weights; and its task, or why there is none."""
    if isinstance(what, Run) or any((Path(what) / name).exists() for name in ("harken.json", "checkpoints")):
        if settings:
            raise BadInput(f"{what}: a run is audited as it is; settings are for a recipe or for data")
        run = what if isinstance(what, Run) else load(what, device="cpu")
        try:
            return run.model, run.recipe.bind(run.recipe.open(run.tokenizer, listen=listen))
        except HarkenError as error:  # the data may be elsewhere; the model is here
            return run.model, str(error)
    recipe = choose(str(what), settings, listen=listen).recipe
    opened = recipe.open(listen=listen)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(recipe.train.seed)
        return recipe.build(opened.vocab), recipe.bind(opened)


def _copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU, in float64, unless it is huge or does not take such numbers."""
    mine = copy.deepcopy(model).cpu().eval().requires_grad_(True)
    if size(model) > HUGE:
        return mine.float()
    if isinstance(mine.double(), LanguageModel):
        one = torch.zeros(1, 1, dtype=torch.long)
        try:
            mine(one, **({"source": one} if isinstance(mine, EncoderDecoder) else {}))
        except RuntimeError:
            return mine.float()
    return mine


# --- one after the other ----------------------------------------------------------------------------------------------


def _checks(model: nn.Module, task: Learning | str, length: int | None) -> Iterator[Check]:
    limit = TOLERANCE[next(model.parameters()).dtype]
    for name, claim in CLAIMS.items():
        body = getattr(model, "body", model)
        if name == "told" and isinstance(body, LanguageModel) and not isinstance(body, EncoderDecoder):
            continue  # a language model is told no source
        if name == "permuted" and not isinstance(body, SetEncoder):
            continue  # what is no set has an order
        check = partial(Check, name, claim)
        try:
            worst, found = _prove(name, model, task, length, limit)
        except HarkenError as error:  # a family says no, in its own words, to what it cannot do
            yield check(UNFIT, why=str(error))
        except Exception as error:  # a model may break in any way, and a training that is done must not be lost by it
            yield check(FAILED, why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
        else:
            layer, first = (layer or type(model).__name__ for layer in found) if found else (None, None)
            if math.isfinite(worst):
                why = None if layer == first else f"first seen in {first}"
                yield check(PASSED if worst <= limit else FAILED, worst, limit, layer, why)
            else:
                yield check(FAILED, None, limit, layer, "what it says is not a number")


def _prove(name: str, model: nn.Module, task: Learning | str, length: int | None, limit: float) -> proofs.Found:
    L = length or (proofs.LENGTH if size(model) <= LARGE else proofs.LENGTH // 2)
    if name == "accumulated":
        if isinstance(task, str):
            raise HarkenError(task)
        return proofs.accumulated(model, task, L, limit)
    model = getattr(model, "body", model)  # a head says something of each state, and looks at no other
    if isinstance(model, SetEncoder):
        return proofs.of_sets(name, model, L)
    if not isinstance(model, LanguageModel):
        raise HarkenError(f"{type(model).__name__} is no language model")
    if not model.causal and name in ("causal", "gradient", "cached"):
        raise HarkenError("its words look at all words, the later ones too")
    return proofs.PROOFS[name](model, L if model.context is None else min(L, model.context), limit)
