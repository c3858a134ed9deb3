"""harken import SOURCE"""

from pathlib import Path

import click

from harken.console import ConsoleListener
from harken.errors import BadInput

from . import json_option, print_json
from .export import certificate_lines


@click.command("import")
@click.argument("source")
@click.option("--out", metavar="DIR", help="Run folder to write.  [default: runs/<name of the model>]")
@json_option
def import_(source: str, out: str | None, json_: bool) -> None:
    """Import pretrained weights as a run, with a certificate that the outputs are equal.

    SOURCE is a model folder (config.json, safetensors, tokenizer.json), a .gguf file, a catalogue name (smollm2,
    minilm), or org/name@revision of the hub. No code in it is executed. Exit code 1 if the certificate fails.
    """
    from harken.bridge.hub import default_run_name
    from harken.bridge.importer import import_model
    from harken.experiments.audit.audit import LARGE, audit
    from harken.experiments.folders import is_available, next_available
    from harken.run_folder import read_json

    if out and not is_available(Path(out)):
        raise BadInput(f"{out}: the folder is not empty; choose another")
    folder = Path(out) if out else next_available(Path("runs") / default_run_name(source))
    with ConsoleListener(to_stderr=json_) as listener:
        run = import_model(source, folder, listen=listener)
    certificate, origin = read_json(folder / "certificate.json"), run.facts["imported"]
    checks = audit(run.model).facts() if run.parameters <= LARGE else None  # auditing a large model needs much memory
    if json_:
        shown = {"run": folder, "parameters": run.parameters, "imported": origin, "certificate": certificate}
        return print_json({**shown, "audit": checks})
    click.echo(f"{folder}: {run.parameters:,} weights of {origin['source']}, outputs checked against the original")
    credits = [f"{name}: {origin[name]}" for name in ("license", "licence", "attribution") if name in origin]
    audit_line = f"audit: {checks['summary']}" if checks else f"harken audit {folder} checks that it obeys its mask"
    for line in (*certificate_lines(certificate), *credits, audit_line):
        click.echo(f"  {line}")
