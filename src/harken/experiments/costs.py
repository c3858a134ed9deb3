"""What runs cost together; and the cost table of the lecture, computed again from the power and time it prints."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from harken import run_folder
from harken.errors import BadRun
from harken.training import cost as meter

SUMMED = ("seconds", "kwh", "co2e_kg", "tokens", "flops")
NEAR = 0.005  # how far a number may be from the printed one, if it does not round to it


def together(folders: Iterable[Path]) -> dict[str, Any]:
    """The cost of each run and the sum; a run that is damaged or not finished is named with its problem."""
    rows = [_row(folder) for folder in folders]
    whole = [row for row in rows if "problem" not in row]
    return {**{name: sum(row[name] for row in whole) for name in SUMMED}, "rows": rows}


def _row(folder: Path) -> dict[str, Any]:
    try:
        run_folder.facts(folder, "cost.json")
        return {"run": str(folder), **_amounts(folder / "cost.json")}
    except BadRun as error:
        return {"run": str(folder), "problem": str(error)}


def _amounts(path: Path) -> dict[str, Any]:
    cost = run_folder.read_json(path)
    try:
        cost.setdefault("tokens", cost["flops"] / (cost["flops_per_token"] or 1))  # the first runs do not say it
        return {**{name: float(cost[name]) for name in SUMMED}, "energy_source": str(cost["energy_source"])}
    except (KeyError, TypeError, ValueError):
        raise BadRun(f"{path}: does not hold the cost of a run") from None


# --- the lecture ------------------------------------------------------------------------------------------------------


class Printed(NamedTuple):
    """A row as the lecture prints it: watts, hours, kWh with PUE, pounds of CO2e."""

    model: str
    hardware: str
    watts: float | None
    hours: float | None
    kwh: float | None
    lb: float | None


TABLE = (
    Printed("Transformer (base)", "P100x8", 1415.78, 12, 27, 26),
    Printed("Transformer (big)", "P100x8", 1515.43, 84, 201, meter.TRANSFORMER_BIG_LB),
    Printed("ELMo", "P100x3", 517.66, 336, 275, 262),
    Printed("BERT (base)", "V100x64", 12_041.51, 79, 1507, 1438),
    Printed("BERT (base)", "TPUv2x16", None, 96, None, None),
    Printed("NAS", "P100x8", 1515.43, 274_120, 656_347, 626_155),
    Printed("NAS", "TPUv2x1", None, 32_623, None, None),
    Printed("GPT-2", "TPUv3x32", None, 168, None, None),
    Printed("NLP pipeline", "GPU", None, None, None, 39),
    Printed("NLP pipeline, tuned", "GPU", None, None, None, 78_468),
)


def lecture() -> dict[str, Any]:
    """Every row of the table beside what its power and time make; one that lacks them says so."""
    rows = [_again(row) for row in TABLE]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("kwh", "co2e_kg")}
    factors = {"pue": meter.PUE, "lb_per_kwh": meter.LB_PER_KWH, "source": meter.LECTURE}
    return {**totals, **factors, "rows": rows}


def _again(row: Printed) -> dict[str, Any]:
    given = {"model": row.model, "hardware": row.hardware, "watts": row.watts, "hours": row.hours}
    given |= {"printed_kwh": row.kwh, "printed_co2e_lb": row.lb}
    if row.watts is None or row.hours is None or row.kwh is None or row.lb is None:
        both = row.watts is None and row.hours is None
        why = "neither power nor hours are printed" if both else "no power is printed: none is public for TPUs"
        return {**given, "kwh": None, "co2e_lb": None, "co2e_kg": None, "agrees": None, "remark": why}
    made = meter.emissions(row.watts * row.hours / 1000)
    pairs = ((made["kwh"], row.kwh), (made["co2e_lb"], row.lb))
    rounds = all(round(x) == printed for x, printed in pairs)
    near = all(abs(x / printed - 1) <= NEAR for x, printed in pairs)
    hours = row.hours * row.kwh / made["kwh"]
    remark = "" if rounds else f"{row.hours:,.0f} hours are rounded: {hours:.1f} make what is printed"
    return {
        **given,
        **{name: made[name] for name in ("kwh", "co2e_lb", "co2e_kg")},
        "agrees": rounds or near,
        "remark": remark if near else "equal once it is rounded as printed",
    }
