"""harken demo gcd: greatest common divisors, learned from examples; how often each is seen decides which are known."""

from pathlib import Path
from shlex import quote

from harken.events import Listener, silent
from harken.experiments.train import train

from .translate import Shown

SETTINGS = {"data.base": 30, "data.max_operand": 10_000, "data.operands": "log-uniform", "data.outcomes": "log-uniform"}
ASKED = ("160 120", "300 450", "77 42", "1001 13")
SHOWN = (1, 2, 3, 4, 5, 6, 7, 10, 11, 14, 15, 30)  # gcds that are told


def gcd(*, minutes: float = 2.0, out: str | Path | None = None, listen: Listener = silent) -> Shown:
    """Learn gcds in base 30, and show which are known and what is said of the others."""
    run = train("maths:gcd", out=out, minutes=minutes, settings=SETTINGS, listen=listen)
    answers = run.translate(list(ASKED), beam=1)
    lines = [f"{problem:<10} ->  {answer}" for problem, answer in zip(ASKED, answers, strict=True)]
    lines += ["", "gcd   right   it says most often   what the last digits in base 30 tell"]
    parts = run.facts["parts"].get("test", {})
    for part in (parts[f"gcd {k}"] for k in SHOWN if f"gcd {k}" in parts):
        said = f"{part['says']:.0f} ({100 * part['so_often']:.0f} %)" if "says" in part else "no number"
        lines.append(f"{part['at']:>3}  {100 * part['accuracy']:>4.0f} %   {said:<19}  {part['rule']}")
    known, told = run.metrics["test"]["learned"], run.facts["protocol"]["test"]
    lines += ["", f"learned: {known:.0f} of {len(parts)}: {told['gcds_learned']}"]
    place = quote(str(run.path))
    hints = {
        f'harken translate {place} "160 120"': "ask it",
        f"harken eval {place}": "which gcds it knows",
        "harken compare maths:gcd --distributions uniform,log-uniform": "what other frequencies do",
    }
    whose = "nobody's data: every example is drawn; the question is F. Charton's (Learning the greatest common divisor)"
    return Shown(run, whose, title="It has seen examples only, and says:", lines=lines, hints=hints)
