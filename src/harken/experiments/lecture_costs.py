"""The cost table of CS5242, lecture 7, recomputed from the power and hours it prints."""

from typing import Any, NamedTuple

from harken.training.cost import LB_PER_KWH, LECTURE, PUE, TRANSFORMER_BIG_LB, emissions

TOLERANCE = 0.005  # relative difference to the printed number, if it does not round to it


class LectureRow(NamedTuple):
    """A row of the lecture: watts, hours, kWh with PUE, pounds of CO2e."""

    model: str
    hardware: str
    watts: float | None
    hours: float | None
    kwh: float | None
    lb: float | None


LECTURE_TABLE = (
    LectureRow("Transformer (base)", "P100x8", 1415.78, 12, 27, 26),
    LectureRow("Transformer (big)", "P100x8", 1515.43, 84, 201, TRANSFORMER_BIG_LB),
    LectureRow("ELMo", "P100x3", 517.66, 336, 275, 262),
    LectureRow("BERT (base)", "V100x64", 12_041.51, 79, 1507, 1438),
    LectureRow("BERT (base)", "TPUv2x16", None, 96, None, None),
    LectureRow("NAS", "P100x8", 1515.43, 274_120, 656_347, 626_155),
    LectureRow("NAS", "TPUv2x1", None, 32_623, None, None),
    LectureRow("GPT-2", "TPUv3x32", None, 168, None, None),
    LectureRow("NLP pipeline", "GPU", None, None, None, 39),
    LectureRow("NLP pipeline, tuned", "GPU", None, None, None, 78_468),
)


def lecture_costs() -> dict[str, Any]:
    """Every row of the table with the numbers computed from its power and hours, or why they cannot be computed."""
    rows = [_recompute(row) for row in LECTURE_TABLE]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("kwh", "co2e_kg")}
    return {**totals, "pue": PUE, "lb_per_kwh": LB_PER_KWH, "source": LECTURE, "rows": rows}


def _recompute(row: LectureRow) -> dict[str, Any]:
    printed = {"model": row.model, "hardware": row.hardware, "watts": row.watts, "hours": row.hours}
    printed |= {"printed_kwh": row.kwh, "printed_co2e_lb": row.lb}
    if row.watts is None or row.hours is None or row.kwh is None or row.lb is None:
        nothing = row.watts is None and row.hours is None
        remark = "neither power nor hours are printed" if nothing else "no power is printed: none is public for TPUs"
        return {**printed, "kwh": None, "co2e_lb": None, "co2e_kg": None, "agrees": None, "remark": remark}
    computed = emissions(row.watts * row.hours / 1000)
    pairs = ((computed["kwh"], row.kwh), (computed["co2e_lb"], row.lb))
    rounds = all(round(x) == expected for x, expected in pairs)
    near = all(abs(x / expected - 1) <= TOLERANCE for x, expected in pairs)
    hours = row.hours * row.kwh / computed["kwh"]
    remark = "" if rounds else f"{row.hours:,.0f} hours are rounded: {hours:.1f} give the printed numbers"
    return {
        **printed,
        **{name: computed[name] for name in ("kwh", "co2e_lb", "co2e_kg")},
        "agrees": rounds or near,
        "remark": remark if near else "equal after rounding",
    }
