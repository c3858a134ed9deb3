"""harken: attention networks, from the equation to the served model.

    run = harken.train("my.txt", minutes=3)
    run.generate("Once upon a time")

`import harken` is light: torch is imported when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridge.importer import load
    from .errors import BadInput, BadRun, BadSetting, HarkenError
    from .experiments.audit.audit import Audit, audit
    from .experiments.cluster.clustering import Clustering, cluster
    from .experiments.compare.comparison import Comparison, compare
    from .experiments.train import train
    from .inference.run import Run

__version__ = "0.1.0"

_WHERE = {
    "Audit": "experiments.audit.audit",
    "BadInput": "errors",
    "BadRun": "errors",
    "BadSetting": "errors",
    "Clustering": "experiments.cluster.clustering",
    "Comparison": "experiments.compare.comparison",
    "HarkenError": "errors",
    "Run": "inference.run",
    "audit": "experiments.audit.audit",
    "cluster": "experiments.cluster.clustering",
    "compare": "experiments.compare.comparison",
    "load": "bridge.importer",
    "train": "experiments.train",
}
__all__ = [
    "Audit",
    "BadInput",
    "BadRun",
    "BadSetting",
    "Clustering",
    "Comparison",
    "HarkenError",
    "Run",
    "__version__",
    "audit",
    "cluster",
    "compare",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'harken' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
