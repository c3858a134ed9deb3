"""The output of a demo."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harken.inference.run import Run

MAX_REFERENCES = 3  # per sample


@dataclass
class DemoOutput:
    """The run, the attribution of its data, and what to print: a title, lines or samples, and further commands.

    A demo that trains several models has a table, its rows for --json, and the total cost.
    """

    run: Run
    attribution: str
    samples: list[dict[str, Any]] = field(default_factory=list)
    attention_map: Path | None = None
    title: str = ""
    lines: list[str] = field(default_factory=list)
    hints: dict[str, str] = field(default_factory=dict)  # command -> what it does
    table: tuple[list[str], list[list[str]]] | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    cost: dict[str, Any] | None = None

    def text_lines(self) -> list[str]:
        """The lines; without lines, each sample with its output and, in parentheses, its references."""
        if self.lines:
            return self.lines
        return [line for sample in self.samples for line in _sample_lines(sample)]


def _sample_lines(sample: dict[str, Any]) -> tuple[str, str]:
    return sample["prompt"], f"  {sample['text']}   ({' | '.join(sample['references'][:MAX_REFERENCES])})"
