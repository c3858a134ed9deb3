"""harken export RUN --to hf|onnx"""

from collections.abc import Mapping
from pathlib import Path

import click

from harken.console import ConsoleListener

from . import json_option, print_json


@click.command()
@click.argument("run")
@click.option("--to", type=click.Choice(["hf", "onnx"]), required=True, help="hf: transformers; onnx: an ONNX graph.")
@click.option("--out", metavar="DIR", help="Folder to write.  [default: <name of the run>-hf or -onnx]")
@json_option
def export(run: str, to: str, out: str | None, json_: bool) -> None:
    """Export a run to another format, with a certificate that the outputs are equal."""
    from harken.bridge import export as hf
    from harken.bridge import onnx
    from harken.inference.run import load

    model = load(run, device="cpu")
    place = Path(out or f"{Path(run).resolve().name}-{to}")
    with ConsoleListener(to_stderr=json_) as listener:
        certificate = (hf if to == "hf" else onnx).export(model, place, listen=listener)
    if json_:
        return print_json({"path": place, "certificate": certificate})
    click.echo(f"{place}: {certificate['family']}, outputs checked against the run")
    for line in certificate_lines(certificate):
        click.echo(f"  {line}")


def certificate_lines(certificate: Mapping[str, object]) -> list[str]:
    """A certificate as a few lines of text."""
    lines, unchecked = list[str](), certificate["not_checked"]
    for name, part in certificate.items():
        if isinstance(part, dict) and "passed" in part:
            difference = part.get("max_difference")
            lines.append(f"{name}: {'equal' if difference is None else f'maximum difference {difference:.2g}'}")
    return [*lines, *(f"not checked: {what}" for what in (unchecked if isinstance(unchecked, list | tuple) else ()))]
