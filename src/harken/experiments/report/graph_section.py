"""Report samples of a run on graphs: predictions for held-out nodes, edges or graphs."""

import shlex
from typing import cast

from harken.inference.run import Labels, Run
from harken.tasks.nodes import GraphTask

from .sections import N_SAMPLES, TOP_K, SamplesAndCommands, held_out


def graph_samples(run: Run, task: GraphTask, folder: str) -> SamplesAndCommands:
    """Predictions for some held-out items with their true labels, and commands for this run."""
    data = task.data
    split, level = held_out(data.splits) or [], data.processor.target_level
    items = split[:: -(-len(split) // N_SAMPLES)] if split else []
    names = data.tables.graph_names if level == "graph" else data.tables.node_names
    if level == "edge":
        inputs = ["--".join(names[end] for end in data.targets[n].tolist()) for n in items]
    else:
        inputs = [names[n] for n in items]
    truth = [data.tables.labels[n] if data.tables.labels and level != "edge" else "edge" for n in items]
    predictions = cast(list[Labels], run.classify(inputs))
    samples = [
        {"prompt": name, "text": _prediction(labels), "references": [label]}
        for name, labels, label in zip(inputs, predictions, truth, strict=True)
    ]
    first = shlex.quote(inputs[0] if inputs else names[0])
    return samples, [f"harken classify {folder} {first}", f"harken eval {folder}"]


def _prediction(labels: Labels) -> str:
    if "value" in labels[0]:
        return f"{labels[0]['value']:.3g}"
    return ", ".join(f"{label['label']} {100 * label['probability']:.0f} %" for label in labels[:TOP_K])
