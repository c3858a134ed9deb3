"""Numbers, quantities, durations and the names of metrics as text; and which metrics are better when lower."""

import math
from collections.abc import Iterable

Point = tuple[float, float]

MAX_MAGNITUDE = 1e30  # larger values are treated as not finite
UNITS = {  # (smallest value, divisor, unit); energy is in kWh, mass in kg
    "count": ((1e9, 1e9, "B"), (1e5, 1e6, "M"), (1e4, 1e3, "k")),
    "flop": tuple((n, n, c + "FLOP") for n, c in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))),
    "energy": ((1e3, 1e3, "MWh"), (0.1, 1, "kWh"), (1e-4, 1e-3, "Wh"), (0, 1e-6, "mWh")),
    "mass": ((1e3, 1e3, "t"), (0.1, 1, "kg"), (1e-4, 1e-3, "g"), (0, 1e-6, "mg")),
}
DISPLAY_NAMES = {"valid": "validation", "train": "training", "ram_gib": "memory, GiB", "auc": "AUC"}
DISPLAY_NAMES |= {"bleu": "BLEU", "chrf": "chrF", "rouge_l": "ROUGE-L", "f1": "F1", "mse": "MSE", "r2": "R²"}
DISPLAY_NAMES |= {"mae": "MAE", "rmse": "RMSE"}
DISPLAY_NAMES |= {"answer_f1": "answer F1", "bracket_f1": "bracket F1", "em": "exact match", "f1_micro": "micro F1"}
LOWER_IS_BETTER = {"loss", "perplexity", "bits_per_character", "mse", "mae", "rmse"}
# metrics that a validation pass can log beside the loss
VALIDATION_METRICS = ["bleu", "exact_match", "rouge_l", "answer_f1", "bracket_f1"]
VALIDATION_METRICS += ["accuracy", "f1", "f1_micro", "matthews", "auc", "pearson", "spearman", "r2", "em"]


def display_name(key: str) -> str:
    """The name of a metric, split or fact as it is printed."""
    return DISPLAY_NAMES.get(key, str(key).replace("_", " "))


def finite_float(value: object) -> float | None:
    """The value as a float, if it is a finite number that can be drawn and compared."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < MAX_MAGNITUDE else None  # also false for NaN


def finite_points(points: Iterable[tuple[object, object]]) -> list[Point]:
    """The finite points, sorted by x."""
    numbers = ((finite_float(x), finite_float(y)) for x, y in points)
    return sorted((x, y) for x, y in numbers if x is not None and y is not None)


def format_number(value: object, digits: int = 3) -> str:
    """A number with this many significant digits; other values as str, None as ""."""
    if not isinstance(value, float) or not math.isfinite(value):
        return "" if value is None else f"{value:,}" if type(value) is int else str(value)
    if value == 0 or not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+", "e")
    return f"{value:,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def format_price(usd: object) -> str:
    """An amount of money: 2.92 USD, or three digits below a dollar; None as ""."""
    if (x := finite_float(usd)) is None:
        return ""
    return f"{x:,.2f} USD" if x >= 1 else f"{format_number(x)} USD"


def format_interval_ends(low: float, high: float, *values: float) -> list[str]:
    """Both ends of an interval and further values, with as many decimals as its width justifies."""
    half = (high - low) / 2
    if not 1e-6 < half < 1e6:
        return [format_number(x + 0.0) for x in (low, high, *values)]
    digits = max(0, 1 - math.floor(math.log10(half)))
    return [f"{round(x, digits) + 0.0:,.{digits}f}" for x in (low, high, *values)]


def format_quantity(value: object, quantity: str) -> str:
    """A number with a suitable unit: 0.83 M, 0.33 Wh."""
    if (x := finite_float(value)) is None or x < 0:
        return format_number(value)
    divisor, unit = next(((divisor, unit) for start, divisor, unit in UNITS[quantity] if x >= start), (1, ""))
    return f"{format_number(value if divisor == 1 else x / divisor, 2)} {unit}".strip()


def format_duration(value: object) -> str:
    """Seconds as hours, minutes and seconds: 4 min 0 s."""
    if (x := finite_float(value)) is None or x < 10:
        return format_number(value) if x is None else f"{x:.1f} s"
    minutes, seconds = divmod(round(x), 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours:,} h {rest} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
