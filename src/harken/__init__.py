"""harken: attention networks, from the equation to a trained model.

    run = harken.train("my.txt", minutes=3)
    run.generate("Once upon a time")

`import harken` is fast: torch is imported on the first use of a name.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

if TYPE_CHECKING:
    from .bridge.importer import load
    from .data.tables.frame import Frame
    from .errors import BadInput, BadRun, BadSetting, HarkenError
    from .events import Listener
    from .experiments.audit.audit import Audit, audit
    from .experiments.cluster.clustering import Clustering, cluster
    from .experiments.compare.comparison import Comparison, compare
    from .experiments.train import FolderOptions, NetworkXGraph
    from .inference.run import Run

__version__ = "0.1.0"

_NAMES = {
    "bridge.importer": ("load",),
    "errors": ("BadInput", "BadRun", "BadSetting", "HarkenError"),
    "experiments.audit.audit": ("Audit", "audit"),
    "experiments.cluster.clustering": ("Clustering", "cluster"),
    "experiments.compare.comparison": ("Comparison", "compare"),
    "inference.run": ("Run",),
}
__all__ = [
    "Audit", "BadInput", "BadRun", "BadSetting", "Clustering", "Comparison", "HarkenError", "Run", "__version__",
    "audit", "cluster", "compare", "load", "train",
]  # fmt: skip


def train(
    what: "str | Path | Frame | NetworkXGraph | None" = None,
    *,
    target: str | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, object] | None = None,
    minutes: float | None = None,
    quiet: bool = False,
    listen: "Listener | None" = None,
    **options: "Unpack[FolderOptions]",
) -> "Run":
    """Train a model and return the run. In a terminal and in a notebook it prints its progress, unless `quiet`.

    `what` is data (a path, a catalogue name, a DataFrame of pandas or polars, a networkx graph), a recipe file, or a
    run to resume; `target` is the column of a table to predict. The run folder is `out`, by default runs/NAME. Options:
    resume=True continues an unfinished run, force=True overwrites the run in `out`. `listen` receives the progress
    events instead of the console. Without either, rows that are left out and truncated texts give a Python warning.

    >>> run = harken.train("text.txt", out="runs/example", settings={"train.steps": 2, "model.size": "tiny"})
    >>> run.path.name
    'example'
    """
    from .console import ConsoleListener, is_interactive
    from .events import warn_of_lost_data
    from .experiments.train import train as run_training

    progress = ConsoleListener(to_stderr=False) if listen is None and not quiet and is_interactive() else None
    with progress or nullcontext():
        listener = listen or progress or warn_of_lost_data
        return run_training(
            what, target=target, out=out, settings=settings, minutes=minutes, listen=listener, **options
        )


def __getattr__(name: str) -> object:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    from .renamed import IMPORTS

    if (former := f"{__name__}.{name}") in IMPORTS:
        raise AttributeError(f"{former} is now {IMPORTS[former]}")
    raise AttributeError(f"module 'harken' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
