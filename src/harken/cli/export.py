"""harken export RUN --to hf|onnx|ctranslate2"""

from collections.abc import Mapping
from pathlib import Path

import click

from harken.console import ConsoleListener

from . import PRECISION, json_option, print_json

FORMATS = {"hf": "transformers", "onnx": "an ONNX graph", "ctranslate2": "fast inference on a CPU"}
PRECISION_HELP = "Precision of the weights, with --to ctranslate2."


@click.command()
@click.argument("run")
@click.option(
    "--to",
    type=click.Choice([*FORMATS]),
    required=True,
    help="; ".join(f"{name}: {what}" for name, what in FORMATS.items()) + ".",
)
@click.option("--out", metavar="DIR", help="Folder to write.  [default: <name of the run>-<format>]")
@click.option("--precision", type=PRECISION, default="float32", help=PRECISION_HELP)
@json_option
def export(run: str, to: str, out: str | None, precision: str, json_: bool) -> None:
    """Export a run to another format, with a certificate that the outputs are equal."""
    if to != "ctranslate2" and precision != "float32":
        raise click.UsageError(f"--precision {precision}: --to {to} writes float32; use --to ctranslate2")
    from harken.bridge import ctranslate2, onnx
    from harken.bridge import export as hf
    from harken.inference.run import load

    model = load(run, device="cpu")
    place = Path(out or f"{Path(run).resolve().name}-{to}")
    with ConsoleListener(to_stderr=json_) as listener:
        if to == "ctranslate2":
            certificate = ctranslate2.export(model, place, precision=precision, listen=listener)
        else:
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
