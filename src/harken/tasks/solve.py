"""Answer problems of mathematics: judged by whole answers, class by class, beside what the base gives away."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field

from harken.data.batch import IGNORE
from harken.data.maths.integers import rule
from harken.data.pairs.batch import scoring
from harken.decode.beam import Search
from harken.errors import BadSetting
from harken.models import EncoderDecoder
from harken.settings import Part

from . import Score
from .translate import Translate

if TYPE_CHECKING:
    from harken.data.maths.source import MathsData
    from harken.data.pairs.source import Pairs

QUICK = 200  # examples that a look answers, where an answer cannot be judged token by token
AT_ONCE = 512  # examples judged at a time


class Task(Part):
    """The settings of mathematics."""

    max_new_tokens: ClassVar[int | None] = None  # of an answer that is asked for: as the search has it
    grammar: ClassVar[str] = "none"
    usual_beam: ClassVar[int] = 1  # answers are judged as they are written greedily

    kind: Literal["solve"] = "solve"
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of each target spread over all tokens in training; losses told are without"
    )
    learned_threshold: float = Field(
        0.95, gt=0, le=1, description="share of a class that must be right for it to be learned"
    )

    def bind(self, data: "MathsData", model: Any, *, batch: int, seed: int) -> "Solve":
        context = getattr(model, "context", None)
        if isinstance(context, int) and data.max_length >= context:
            way = f"set model.context={data.max_length + 1}, or a larger data.base"
            raise BadSetting(f"model.context={context}: a problem has {data.max_length} tokens and its end; {way}")
        return Solve(self, data, batch=batch, seed=seed)


class Solve(Translate):
    """Problems of one kind. An answer is right if it is the whole answer."""

    task: Task  # type: ignore[assignment]
    data: "MathsData"  # type: ignore[assignment]
    one_shape = True

    def __init__(self, task: Task, data: "MathsData", *, batch: int, seed: int) -> None:
        self.task, self.data = task, data
        self.batches = data.batches(batch, seed)  # type: ignore[assignment]
        self.steps, self.splits, self.tokens = self.batches.steps, tuple(data.splits), self.batches.tokens

    def made_on(self, device: torch.device) -> None:
        """From now on examples are drawn there."""
        self.batches.device = device  # type: ignore[union-attr]

    # --- judge --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, model: EncoderDecoder, split: str, *, quick: bool = False) -> Score:
        """The loss and the share of right answers; those written greedily, unless `quick` can tell without writing."""
        was, pairs, exact = model.training, self.data.splits[split], self.data.problem.exact
        model.eval()
        loss, right = self._read(model, pairs)
        said: list[str] = []
        if not (quick and exact):
            most = QUICK if quick else len(pairs)
            how = Search(beam=1, max_new_tokens=self.data.problem.widths[1] + 1)
            said = self.answers(model, [pairs.source[n] for n in range(min(most, len(pairs)))], how)
            right = self.marked(said, pairs)
        model.train(was)
        metrics = {"accuracy": sum(right) / len(right), "loss": loss}
        protocol: dict[str, Any] = {"examples": len(right), "judged_by": "accuracy"}
        if quick:
            return Score(metrics, protocol, by="accuracy")
        parts = self._classes(said, right, pairs)
        protocol["grouped_by"] = self.data.problem.grouped_by
        if self.data.problem.by_outcome:
            told, notes = self._learned(parts)
            metrics, protocol = metrics | told, protocol | notes
        return Score(metrics, protocol, {name: parts[name] for name in parts if len(parts) > 1}, "accuracy")

    def _read(self, model: EncoderDecoder, pairs: "Pairs") -> tuple[float, list[bool]]:
        """The loss per token, and of each example whether its tokens would be written: each is the likeliest there."""
        device, total, count = next(model.parameters()).device, 0.0, 0
        right = [False] * len(pairs)
        for batch in scoring(pairs, AT_ONCE):
            here: Any = batch.to(device)
            scores = model.scores(here.tokens, **here.told()).float()
            total += float(F.cross_entropy(scores.flatten(0, 1), here.targets.flatten(), reduction="sum"))
            count += batch.count
            found = ((scores.argmax(-1) == here.targets) | (here.targets == IGNORE)).all(1)
            for n, good in zip(batch.index.tolist(), found.tolist(), strict=True):
                right[n] = good
        return total / max(1, count), right

    def marked(self, said: Sequence[str], pairs: "Pairs") -> list[bool]:
        """Of each answer to the first sources of a split, whether it is right."""
        each = zip(pairs.sources, said, pairs.references, strict=False)
        return [self.data.problem.right(source, text, true[0]) for source, text, true in each]

    def _classes(self, said: list[str], right: list[bool], pairs: "Pairs") -> dict[str, dict[str, float]]:
        """Of each class: how much of it is right; of gcds, what is said most often, and what the base gives away."""
        problem, rows = self.data.problem, dict[str, list[int]]()
        for n, group in enumerate(pairs.groups[: len(said)]):
            rows.setdefault(group, []).append(n)
        parts = {}
        for group in sorted(rows, key=int):
            mine, k = rows[group], int(group)
            part = {"accuracy": sum(right[n] for n in mine) / len(mine)}
            if problem.by_outcome:
                most, times = Counter(said[n] for n in mine).most_common(1)[0]
                part |= {"says": float(most)} if most.isdecimal() else {}
                part |= {"so_often": times / len(mine), "rule": rule(k, self.data.settings.base)}
            parts[f"{problem.grouped_by} {k}"] = {**part, "pairs": len(mine), "at": k}
        return parts

    def _learned(self, parts: dict[str, dict[str, float]]) -> tuple[dict[str, float], dict[str, Any]]:
        """Which gcds are learned, beside those that the base gives away; and the accuracy where they come as they do.

        Of two numbers drawn by chance the gcd is k in 6 / (pi k)^2 of all cases.
        """
        each = {int(part["at"]): part for part in parts.values()}
        known = [k for k, part in each.items() if part["accuracy"] >= self.task.learned_threshold]
        free = [k for k in each if rule(k, self.data.settings.base) == k]

        def natural(shares: dict[int, float]) -> float:
            return sum(6 / (math.pi * k) ** 2 * share for k, share in shares.items())

        found = {
            "learned": float(len(known)),
            "natural_accuracy": natural({k: part["accuracy"] for k, part in each.items()}),
        }
        ceiling = f"{len(free)} of {len(each)}, natural accuracy {natural(dict.fromkeys(free, 1.0)):.3f}"
        return found, {"gcds_learned": ranges(known), "given_away_by_the_base": ceiling}

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the answer that is drawn most often in training, and of gcds, 1."""
        pairs = self.data.splits[split]
        batch = self.batch(0, 0)
        texts = (self.data.tokenizers.decode_target(row[row != IGNORE].tolist()) for row in batch.targets.cpu())
        often = Counter(texts).most_common(1)[0][0]
        free = {"most frequent answer": often} | ({"always 1": "1"} if self.data.problem.by_outcome else {})
        found = {}
        for name, text in free.items():
            said = [text] * len(pairs)
            right = self.marked(said, pairs)
            found[name] = {"accuracy": sum(right) / len(right)}
            if self.data.problem.by_outcome:
                found[name] |= self._learned(self._classes(said, right, pairs))[0]
        return found


def ranges(numbers: Sequence[int]) -> str:
    """1-6, 8, 10: whole numbers in words."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    said = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]
    return ", ".join(said) or "none"
