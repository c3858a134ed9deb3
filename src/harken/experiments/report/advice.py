"""What to try next, computed from the learning curves, the best baseline and the ablation of its columns."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Literal

from . import verdict
from .formatting import finite_float, format_number
from .verdict import Facts, best_baseline, finite_metrics, log_series, nested

Curves = Literal["overfitting", "improving", "flat", "unknown"]
MIN_RISE = 0.01  # of the validation loss, in nats and relative to its minimum: smaller changes are noise
GAP = 0.75  # a final training loss below this fraction of the validation loss is overfitting
STRONG_DROPOUT = 0.3
# what a baseline does without, and the next thing to try if it wins
BASELINES = {
    "most frequent label": ("the input", "check that labels and inputs belong together, and lower train.lr"),
    "most frequent answer": ("the question", "check the answers of the data, and train longer"),
    "most frequent answer to this question": ("the story", "train with more stories, or with more model.hops"),
    "answer named last": ("the rest of the story", "train longer, or with more restarts (train.seeds)"),
    "mean of all": ("the input", "check that targets and inputs belong together, and lower train.lr"),
    "bag of words": ("the order of the words", "start from a pretrained model (from=RUN), or use more texts"),
    "regression on pixels": ("combinations of pixels", "use more images, or augmentation (task.shift, task.flip)"),
    "nearest mean image": ("the details of an image", "train longer, or with a smaller model.patch"),
    "regression on means and standard deviations": ("the single rows of a set", "train longer, or with more sets"),
    "logistic regression": ("the edges", "check that edges connect similar nodes, or set model.layers=1"),
    "linear regression": ("the edges", "check that edges connect similar nodes, or set model.layers=1"),
    "neighbors' majority": ("the features", "train without features: 'data.features=[]'"),
    "mean of neighbors": ("the features", "train without features: 'data.features=[]'"),
    "difference of sizes": ("which nodes are connected", "train longer, or with more pairs"),
    "bag of degrees": ("which nodes are connected", "train longer, or with model.layers=4 or model.pool=sum"),
    "product of degrees": ("the neighbors of a node", "train longer, or without features: 'data.features=[]'"),
    "shared neighbors": ("nodes two steps away", "train longer, or without features: 'data.features=[]'"),
    "unigram": ("the context of a word", "raise train.lr, and check that the text is in its natural order"),
    "n-gram Kneser-Ney": ("long contexts", "use more text, or start from a pretrained model (from=RUN)"),
    "majority": ("the passages", "train longer, or with longer passages"),
    "whole sentences follow": ("the words of the passages", "train longer, or with longer passages"),
    "copy of the source": ("the target language", "train longer, and check data.source and data.target"),
    "first sentence": ("the rest of the source", "train longer, or start from a pretrained model (from=RUN)"),
    "most frequent target": ("the source", "train longer, and check that both sides belong together"),
    "nearest question, with these names": ("the wording of a question", "train longer, or with more questions"),
    "always 1": ("the problem", "train longer, or with another data.distribution"),
    "most frequent caption": ("the image", "train longer, and check that images and captions belong together"),
    "caption of the nearest image": ("the parts of an image", "use more images with other combinations"),
    "most frequent tag of each word": ("the context of a word", "start from a pretrained model (from=RUN)"),
    "sentence with most words of the question": ("the order of the words", "start from a pretrained model (from=RUN)"),
    "no answer": ("the paragraph", "start from a pretrained model (from=RUN), or use more questions"),
}  # fmt: skip


def advise(facts: Facts) -> list[str]:
    """What to try next, most important first.

    If the model is better than every baseline, only columns that clearly hurt the baseline are named.
    """
    problem, ablation = verdict.run_verdict(facts)[1], nested(facts, "ablation")
    columns = column_advice(ablation)
    if problem != verdict.NOT_BETTER:
        return [text for text in (problem, columns if ablation.get("clear") is True else "") if text]
    baseline = baseline_advice(facts)
    if columns and BASELINES.get(_best(facts)[0], ("", ""))[0] == "the features":
        baseline = ""  # it says the same
    return [text for text in (columns, baseline, curve_advice(facts)) if text]


# --- learning curves --------------------------------------------------------------------------------------------------


def read_curves(facts: Facts) -> Curves:
    """What the training loss and the validation loss say together."""
    valid = log_series(facts, "valid")
    if len(valid) < 3 and not facts.get("early"):
        return "unknown"
    if not valid:
        return "flat"
    (best_step, best), last = min(valid, key=lambda point: point[1]), valid[-1][1]
    if best_step == valid[-1][0] and not facts.get("early"):
        return "improving"
    rose = last > best + MIN_RISE * max(1.0, best)
    return "overfitting" if rose or _training_loss(facts) < GAP * last else "flat"


def _training_loss(facts: Facts) -> float:
    """The mean of the last tenth of the training losses; infinite without a log."""
    losses = [loss for _, loss in log_series(facts, "loss")]
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / len(last) if last else float("inf")


def curve_summary(facts: Facts) -> str:
    """Where the validation loss was lowest, and what that means."""
    summary = verdict.validation_summary(facts)
    if read_curves(facts) != "overfitting":
        return summary
    training = (
        f" The training loss fell to {format_number(_training_loss(facts))}:" if log_series(facts, "loss") else ""
    )
    return f"{summary}{training or ' So'} the model overfits.".strip()


def curve_advice(facts: Facts) -> str:
    """What to change in the training, with the present values of the settings."""
    curves, settings = read_curves(facts), recipe_settings(facts)
    if curves == "overfitting":
        dropout = finite_float(settings.get("model.dropout"))
        more = [f"model.dropout={STRONG_DROPOUT}"] if dropout is not None and dropout < STRONG_DROPOUT else []
        smaller = f"a smaller model ({_size(settings)})"
        options = ", ".join(["more data", *more])
        return f"{curve_summary(facts)} Use {options} or {smaller}; training longer does not help."
    summary = verdict.validation_summary(facts)
    if curves == "flat":
        return f"{summary} Use a larger model ({_size(settings)}) or another train.lr.".strip()
    if curves == "improving":
        return "The validation loss was lowest at the last step: train longer (train.minutes)."
    return f"{summary} Train longer (train.minutes), or use more data.".strip()


def _size(settings: Mapping[str, object]) -> str:
    """The settings of the size of a model with their present values."""
    names = ("model.size", "model.d", "model.layers")
    known = [f"{name} is now {settings[name]}" for name in names if name in settings]
    return ", ".join(known) or "model.size"


def recipe_settings(facts: Facts) -> dict[str, object]:
    """The settings of the recipe by dotted path; empty if it cannot be read."""
    try:
        tables = tomllib.loads(str(facts.get("recipe") or ""))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}
    sections = {name: table for name, table in tables.items() if isinstance(table, dict)}
    return {f"{section}.{name}": value for section, table in sections.items() for name, value in table.items()}


# --- baselines --------------------------------------------------------------------------------------------------------


def baseline_advice(facts: Facts) -> str:
    """What the best baseline shows, and the next thing to try."""
    name, is_ahead = _best(facts)
    if (explained := BASELINES.get(re.sub(r"^\d+-gram", "n-gram", name))) is None:
        return ""
    unused, step = explained
    if is_ahead:
        return (
            f"The model is not clearly better than the baseline “{name}”, which works without {unused}. Next: {step}."
        )
    return f"The baseline “{name}” predicts about as well or better without {unused}. Next: {step}."


def _best(facts: Facts) -> tuple[str, bool]:
    """The best baseline by the metric of the verdict, and whether the model is ahead of it; "" if there is none."""
    split = verdict.verdict_split(facts)
    metrics = finite_metrics(nested(facts, "metrics", split))
    primary = nested(facts, "protocol", split).get("primary_metric")
    baselines = {name: finite_metrics(row) for name, row in nested(facts, "baseline", split).items()}
    order = sorted(verdict.by_priority(metrics), key=lambda name: name != primary)
    for key in order:
        if best := best_baseline(baselines, key):
            return best[0], verdict.metric_sign(key) * (best[1] - metrics[key]) > 0
    return "", False


def column_advice(ablation: Facts) -> str:
    """The columns without which a baseline is not worse, with the setting that leaves them out; "" without columns."""
    columns, remaining = (_names(ablation.get(key)) for key in ("columns", "remaining"))
    if not columns:
        return ""
    before, after = (format_number(finite_float(ablation.get(key))) for key in ("loss", "loss_without"))
    setting = f"{format_number(ablation.get('setting'))}={','.join(remaining) if remaining else '[]'}"
    effect = "hurt" if ablation.get("clear") is True else "do not help"
    measured = f"the loss of the {format_number(ablation.get('baseline'))} is {before} with them and {after} without"
    return (
        f"Columns that {effect}: {', '.join(columns)} ({measured}, cross-validated). Train without them: '{setting}'."
    )


def _names(value: object) -> Sequence[str]:
    return [str(name) for name in value] if isinstance(value, list) else []
