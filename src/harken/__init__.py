"""harken: attention networks, from the equation to a trained model.

    run = harken.train("my.txt", minutes=3)
    run.generate("Once upon a time")

`import harken` is fast: torch is imported on the first use of a name.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bridge.importer import load
    from .errors import BadInput, BadRun, BadSetting, HarkenError
    from .experiments.audit.audit import Audit, audit
    from .experiments.cluster.clustering import Clustering, cluster
    from .experiments.compare.comparison import Comparison, compare
    from .experiments.train import train
    from .inference.run import Run

__version__ = "0.1.0"

_NAMES = {
    "bridge.importer": ("load",),
    "errors": ("BadInput", "BadRun", "BadSetting", "HarkenError"),
    "experiments.audit.audit": ("Audit", "audit"),
    "experiments.cluster.clustering": ("Clustering", "cluster"),
    "experiments.compare.comparison": ("Comparison", "compare"),
    "experiments.train": ("train",),
    "inference.run": ("Run",),
}
__all__ = [
    "Audit", "BadInput", "BadRun", "BadSetting", "Clustering", "Comparison", "HarkenError", "Run", "__version__",
    "audit", "cluster", "compare", "load", "train",
]  # fmt: skip


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
