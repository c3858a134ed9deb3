"""Mathematical problems: accuracy of complete answers, by class, compared with what the base alone reveals."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field

from harken.data.batch import IGNORE, Array
from harken.data.maths.batch import SampledBatches
from harken.data.maths.integers import base_divisor
from harken.data.maths.source import MathsData
from harken.data.pairs.batch import eval_batches
from harken.data.pairs.source import Pairs
from harken.decode.beam import SearchSettings
from harken.errors import BadSetting
from harken.models import EncoderDecoder, ModelSettings

from . import Baseline, Metrics, Score, TaskSettings, evaluating, in_order
from .metrics import weighted
from .translate import TranslateTask, group_by_column

QUICK_EXAMPLES = 200  # generated in a quick evaluation, if several answers can be correct
EVAL_BATCH = 512  # examples


class SolveSettings(TaskSettings[MathsData, ModelSettings]):
    """Settings of mathematical problems."""

    max_new_tokens: ClassVar[int | None] = None  # the default of the search
    grammar: ClassVar[str] = "none"
    default_beam: ClassVar[int] = 1  # the evaluation is greedy

    kind: Literal["solve"] = "solve"
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    learned_threshold: float = Field(0.95, gt=0, le=1, description="accuracy above which a class counts as learned")

    def bind(self, data: MathsData, model: ModelSettings, *, batch: int, seed: int) -> "SolveTask":
        context, longest = model.max_context, data.max_length
        if context is not None and longest >= context:
            fix = f"set model.context={longest + 1} or a larger data.base"
            raise BadSetting(f"model.context={context}: a problem has {longest} tokens and its end; {fix}")
        return SolveTask(self, data, data.batches(batch, seed))


class SolveTask(TranslateTask):
    """Problems of one kind. An answer is correct if all its tokens are."""

    settings: SolveSettings
    data: MathsData
    batches: SampledBatches

    def sample_on(self, device: torch.device) -> None:
        self.batches.device = device

    def evaluate(self, model: EncoderDecoder, split: str, *, quick: bool = False) -> Score:
        """Loss and accuracy of greedy answers; `quick` reads the accuracy from the loss pass if answers are unique."""
        pairs, problem, texts = self.data.splits[split], self.data.problem, list[str]()
        with evaluating(model):
            losses, n_tokens, correct = self._teacher_forced(model, pairs)
            if not (quick and problem.exact):
                sources = [pairs.source[n] for n in range(min(QUICK_EXAMPLES, len(pairs)) if quick else len(pairs))]
                texts = self.generate(model, sources, SearchSettings(beam=1, max_new_tokens=problem.max_lengths[1] + 1))
                correct = self._correct(texts, pairs)
        loss = float(losses.sum()) / max(1, int(n_tokens.sum()))
        metrics = {"accuracy": sum(correct) / len(correct), "loss": loss}
        protocol: dict[str, Any] = {"examples": len(correct), "primary_metric": "accuracy"}
        if quick:
            return Score(metrics, protocol, primary_metric="accuracy")
        parts = self._class_metrics(texts, correct, pairs)
        protocol["grouped_by"] = problem.grouped_by
        outcomes: dict[str, weighted.WeightedMetric] = {"accuracy": weighted.mean(correct)}
        outcomes["loss"] = weighted.ratio(losses, n_tokens)
        if problem.by_outcome:
            learned, notes = self._learned(parts)
            metrics, protocol = metrics | learned, protocol | notes
            outcomes |= self._learned_outcomes(correct, pairs)
        return Score(metrics, protocol, parts if len(parts) > 1 else {}, "accuracy", outcomes=outcomes)

    def _teacher_forced(self, model: EncoderDecoder, pairs: Pairs) -> tuple[Array, Array, list[bool]]:
        """The loss and the number of tokens of each example, and whether every target token is the most likely one."""
        device, losses, counts, correct = next(model.parameters()).device, [], [], []
        for cpu_batch in eval_batches(pairs, EVAL_BATCH):
            batch = cpu_batch.to(device)
            logits = model.scores(batch.tokens, **batch.model_inputs()).float()
            token_losses = F.cross_entropy(logits.transpose(1, 2), batch.targets, ignore_index=IGNORE, reduction="none")
            losses.append((cpu_batch.index.numpy(), token_losses.double().sum(1).cpu()))
            counts.append((cpu_batch.index.numpy(), (cpu_batch.targets != IGNORE).sum(1)))
            rows = ((logits.argmax(-1) == batch.targets) | (batch.targets == IGNORE)).all(1)
            correct.append((cpu_batch.index.numpy(), rows.cpu()))
        return in_order(losses).numpy(), in_order(counts).numpy(), in_order(correct).tolist()

    def _correct(self, texts: Sequence[str], pairs: Pairs) -> list[bool]:
        """Whether each answer to the first sources of a split is correct."""
        rows = zip(pairs.sources, texts, pairs.references, strict=False)
        return [self.data.problem.is_correct(source, text, references[0]) for source, text, references in rows]

    def _class_metrics(self, texts: list[str], correct: list[bool], pairs: Pairs) -> dict[str, Metrics]:
        """Accuracy of each class; of gcds also the most frequent prediction, and the divisor that the base reveals."""
        problem, parts = self.data.problem, dict[str, Metrics]()
        for name, rows, position in group_by_column(problem.grouped_by, pairs.groups[: len(texts)]):
            k = int(position or 0)
            part = {"accuracy": sum(correct[n] for n in rows) / len(rows)}
            if problem.by_outcome:
                text, count = Counter(texts[n] for n in rows).most_common(1)[0]
                part |= {"most_predicted": float(text)} if text.isdecimal() else {}
                part["most_predicted_fraction"] = count / len(rows)
                part["base_divisor"] = base_divisor(k, self.data.settings.base)
            parts[name] = {**part, "pairs": len(rows), "position": k}
        return parts

    def _learned(self, parts: dict[str, Metrics]) -> tuple[Metrics, dict[str, Any]]:
        """The learned gcds, those that the base reveals, and the accuracy under the natural distribution.

        The gcd of two random numbers is k with probability 6 / (pi k)^2.
        """
        accuracy = {int(part["position"]): part["accuracy"] for part in parts.values()}
        learned = [k for k, value in accuracy.items() if value >= self.settings.learned_threshold]
        revealed = [k for k in accuracy if base_divisor(k, self.data.settings.base) == k]

        def natural(accuracies: dict[int, float]) -> float:
            return sum(gcd_probability(k) * value for k, value in accuracies.items())

        metrics = {"learned": float(len(learned)), "natural_accuracy": natural(accuracy)}
        ceiling = f"{len(revealed)} of {len(accuracy)}, natural accuracy {natural(dict.fromkeys(revealed, 1.0)):.3f}"
        return metrics, {"gcds_learned": format_ranges(learned), "predictable_from_base": ceiling}

    def _learned_outcomes(self, correct: list[bool], pairs: Pairs) -> weighted.Outcomes:
        """The same metrics as functions of the weights of the examples, for their intervals."""
        classes, index = np.unique(pairs.groups, return_inverse=True)
        values, weights = np.array(correct, np.float64), np.array([gcd_probability(int(k)) for k in classes])
        return {
            "learned": weighted.ClassShares(values, index, threshold=self.settings.learned_threshold),
            "natural_accuracy": weighted.ClassShares(values, index, weights),
        }

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The most frequent answer of a training batch; of gcds also the answer 1."""
        pairs, batch = self.data.splits[split], self.batch(0, 0)
        texts = (self.data.tokenizers.decode_target(row[row != IGNORE].tolist()) for row in batch.targets.cpu())
        baselines = {"most frequent answer": Counter(texts).most_common(1)[0][0]}
        baselines |= {"always 1": "1"} if self.data.problem.by_outcome else {}
        scores: dict[str, Baseline] = {}
        for name, text in baselines.items():
            answers = [text] * len(pairs)
            correct = self._correct(answers, pairs)
            metrics = {"accuracy": sum(correct) / len(correct)}
            if self.data.problem.by_outcome:
                metrics |= self._learned(self._class_metrics(answers, correct, pairs))[0]
            scores[name] = Baseline(metrics, {"accuracy": weighted.mean(correct)})
        return scores


def gcd_probability(k: int) -> float:
    """The probability that the gcd of two random numbers is k."""
    return 6 / (math.pi * k) ** 2


def format_ranges(numbers: Sequence[int]) -> str:
    """Integers as text with ranges, e.g. 1-6, 8, 10."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) or "none"
