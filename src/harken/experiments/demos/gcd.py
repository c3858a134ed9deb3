"""harken demo gcd: learn greatest common divisors from examples; their frequencies decide which are learned."""

from pathlib import Path
from shlex import quote

from harken.events import Listener, silent
from harken.experiments.train import train

from .output import DemoOutput

SETTINGS = {"data.base": 30, "data.max_operand": 10_000, "data.operands": "log-uniform", "data.outcomes": "log-uniform"}
PROBLEMS = ("160 120", "300 450", "77 42", "1001 13")
SHOWN_GCDS = (1, 2, 3, 4, 5, 6, 7, 10, 11, 14, 15, 30)


def gcd(*, minutes: float = 2.0, out: str | Path | None = None, listen: Listener = silent) -> DemoOutput:
    """Train on gcds in base 30; show the accuracy and the most frequent prediction for each gcd."""
    run = train("maths:gcd", out=out, minutes=minutes, settings=SETTINGS, listen=listen)
    answers = run.translate(list(PROBLEMS), beam=1)
    lines = [f"{problem:<10} ->  {answer}" for problem, answer in zip(PROBLEMS, answers, strict=True)]
    lines += ["", "gcd   right   most predicted       divisor visible in the last digits (base 30)"]
    parts = run.facts["parts"].get("test", {})
    for part in (parts[f"gcd {k}"] for k in SHOWN_GCDS if f"gcd {k}" in parts):
        predicted = (
            f"{part['most_predicted']:.0f} ({100 * part['most_predicted_fraction']:.0f} %)"
            if "most_predicted" in part
            else "no number"
        )
        lines.append(
            f"{part['position']:>3}  {100 * part['accuracy']:>4.0f} %   {predicted:<19}  {part['base_divisor']}"
        )
    n_learned, protocol = run.metrics["test"]["learned"], run.facts["protocol"]["test"]
    lines += ["", f"learned: {n_learned:.0f} of {len(parts)}: {protocol['gcds_learned']}"]
    folder = quote(str(run.path))
    hints = {
        f'harken translate {folder} "160 120"': "compute a gcd",
        f"harken eval {folder}": "accuracy by gcd",
        "harken compare maths:gcd --distributions uniform,log-uniform": "compare distributions of the examples",
    }
    attribution = "generated data; after F. Charton, Learning the greatest common divisor"
    return DemoOutput(run, attribution, title="Predictions after training on examples:", lines=lines, hints=hints)
