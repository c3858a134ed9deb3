"""harken demo: a first success on real text, or on harken's own where there is no registry."""

from pathlib import Path

from harken.data import catalogue
from harken.errors import HarkenError
from harken.events import Listener, silent
from harken.use.model import Run

from .train import train


def demo(*, minutes: float = 4.0, out: str | Path | None = None, listen: Listener = silent) -> tuple[Run, str]:
    """Train on the catalogue's Shakespeare; the run, and whose text it is."""
    try:
        fetched = catalogue.fetch("shakespeare", listen=listen)
    except HarkenError as error:
        listen("notice", text=f"{error}; harken's own tales are taken instead")
        fetched = catalogue.fetch("tales", listen=listen)
    run = train(str(fetched.path), out=out, minutes=minutes, settings={"data.tokens": "char"}, listen=listen)
    return run, f"{fetched.attribution} ({fetched.licence})"
