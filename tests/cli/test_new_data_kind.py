"""A new data kind needs one record of the registry and its own files; every command then works."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np
import pytest

from harken import registry
from harken.data.sets.source import SetExample, SetProcessor, SetSource
from harken.events import Listener
from harken.inference.answers.sets import classify_sets
from harken.tasks.sets import SetTaskSettings


class SignalSource(SetSource):
    """Settings of signals: one per line, a label, a tab, numbers separated by spaces."""

    task: ClassVar[str] = "signal"
    kind: Literal["signals"] = "signals"

    def resolve_columns(self, path, listen=None):
        return 1, 2, ["time", "value"]

    def read(self, path: Path, listen: Listener) -> list[SetExample]:
        examples = []
        for n, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            label, values = line.split("\t")
            rows = np.array([[t, float(v)] for t, v in enumerate(values.split())])
            examples.append(SetExample(str(n), rows, label, f"{path}:{n}"))
        return examples


class SignalTask(SetTaskSettings):
    """Settings of the task on signals."""

    kind: Literal["signal"] = "signal"


def classify_signals(run, inputs, listen):
    """Labels of signals, which are strings of numbers."""
    return classify_sets(run, [np.array([[t, float(v)] for t, v in enumerate(text.split())]) for text in inputs])


def signal_samples(run, task, folder):
    return [], [f"harken classify {folder} '1 2 3'"]


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry with a record for signals."""
    module = ModuleType("harken.signals")
    parts = (SignalSource, SignalTask, classify_signals, signal_samples, SetProcessor)
    vars(module).update({part.__name__: part for part in parts})
    monkeypatch.setitem(sys.modules, "harken.signals", module)
    record = registry.Family(
        data="signals",
        source="signals:SignalSource",
        models="sets",
        settings="signals:SignalTask",
        verb="classify",
        ability="classifies signals",
        samples="signals:signal_samples",
        classify="signals:classify_signals",
    )
    monkeypatch.setitem(registry.FAMILIES, "signal", record)


@pytest.mark.usefixtures("signals")
def test_one_record_is_all_that_a_new_data_kind_needs(harken):
    rng = np.random.default_rng(0)
    lines = []
    for n in range(60):
        values = rng.normal(size=8) + (3 if n % 2 else -3)
        lines.append(f"{'high' if n % 2 else 'low'}\t{' '.join(f'{v:.3f}' for v in values)}\n")
    Path("waves.tsv").write_text("".join(lines))
    settings = ["data.kind=signals", "model.size=tiny", "train.steps=40", "train.batch=16", "data.test=0.2"]
    trained = harken("train", "waves.tsv", *settings, "--out", "run", "--json")
    assert trained.code == 0, trained.err
    assert json.loads(trained.out)["metrics"]["accuracy"] == 1
    assert "harken classify run" in Path("run/report.html").read_text()
    answers = harken("classify", "run", "3 2 3 4", "--json")
    assert json.loads(answers.out)["labels"][0][0]["label"] == "high"
    assert json.loads(harken("eval", "run", "--json").out)["metrics"]["accuracy"] == 1
    assert harken("audit", "run").code == 0
    assert "this run classifies signals" in harken("translate", "run", "1 2").err
