"""What a report shows of a run on graphs: what it says of a few held-out nodes, edges or graphs."""

import shlex
from typing import Any

from harken.inference.run import Run

SAMPLES, SAID = 10, 3  # shown, and labels of each


def shown_nodes(loaded: Run, task: Any, place: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What is said of a few held-out ones, beside what is so; and what else can be done with such a run."""
    data = task.data
    part = data.splits.get("test") or data.splits.get("valid") or []
    some, ask = part[:: -(-len(part) // SAMPLES)] if part else [], data.words.target_level
    names = data.raw.graphs if ask == "graph" else data.raw.names
    if ask == "edge":
        asked = ["--".join(names[end] for end in data.asked[n].tolist()) for n in some]
    else:
        asked = [names[n] for n in some]
    truth = ["edge"] * len(some) if ask == "edge" else [data.raw.said[n] for n in some]
    samples = [
        {"prompt": name, "text": _said(labels), "references": [true]}
        for name, labels, true in zip(asked, loaded.classify(asked), truth, strict=True)
    ]
    first = shlex.quote(asked[0] if asked else names[0])
    return samples, [f"harken classify {place} {first}", f"harken eval {place}"]


def _said(labels: list[dict[str, Any]]) -> str:
    if "value" in labels[0]:
        return f"{labels[0]['value']:.3g}"
    return ", ".join(f"{said['label']} {100 * said['probability']:.0f} %" for said in labels[:SAID])
