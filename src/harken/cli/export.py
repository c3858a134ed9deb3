"""harken export RUN --to hf|onnx"""

from pathlib import Path
from typing import Any

import click

from harken.console import Teller

from . import as_json, show


@click.command()
@click.argument("run")
@click.option(
    "--to", type=click.Choice(["hf", "onnx"]), required=True, help="hf: transformers loads it; onnx: a graph."
)
@click.option("--out", metavar="DIR", help="The folder to write.  [default: the run's name and -hf or -onnx]")
@as_json
def export(run: str, to: str, out: str | None, json_: bool) -> None:
    """Write a run's weights in another layout, with a certificate that both say the same."""
    from harken.bridge import export as hf
    from harken.bridge import onnx
    from harken.inference.run import load

    model = load(run, device="cpu")
    place = Path(out or f"{Path(run).resolve().name}-{to}")
    with Teller(aside=json_) as teller:
        certificate = (hf if to == "hf" else onnx).export(model, place, listen=teller)
    if json_:
        show({"path": place, "certificate": certificate})
        return
    click.echo(f"{place}: {certificate['family']}, which says what the run says")
    for line in said(certificate):
        click.echo(f"  {line}")


def said(certificate: dict[str, Any]) -> list[str]:
    """A certificate in a few lines."""
    parts = {name: part for name, part in certificate.items() if isinstance(part, dict) and "passed" in part}
    lines = []
    for name, part in parts.items():
        far = part.get("max_difference")
        lines.append(f"{name}: {'equal' if far is None else f'differ by {far:.2g} at most'}")
    return lines + [f"not checked: {what}" for what in certificate["not_checked"]]
