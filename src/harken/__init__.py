"""harken: attention networks, from the equation to the served model.

    run = harken.train("my.txt", minutes=3)
    run.generate("Once upon a time")

`import harken` is light: torch is imported when one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .bridge.bring import load
    from .errors import BadInput, BadRun, BadSetting, HarkenError
    from .study.audit import Audit, audit
    from .study.cluster import Clustering, cluster
    from .study.compare import Comparison, compare
    from .study.train import train
    from .use.model import Run

__version__ = "0.1.0"

_WHERE = {
    "Audit": "study.audit",
    "BadInput": "errors",
    "BadRun": "errors",
    "BadSetting": "errors",
    "Clustering": "study.cluster",
    "Comparison": "study.compare",
    "HarkenError": "errors",
    "Run": "use.model",
    "audit": "study.audit",
    "cluster": "study.cluster",
    "compare": "study.compare",
    "load": "bridge.bring",
    "train": "study.train",
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
