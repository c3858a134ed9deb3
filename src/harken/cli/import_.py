"""harken import SOURCE"""

from pathlib import Path

import click

from harken.console import Teller
from harken.errors import BadInput

from . import as_json, show
from .export import said


@click.command("import")
@click.argument("source")
@click.option("--out", metavar="DIR", help="The run folder to write.  [default: runs/<name of the model>]")
@as_json
def import_(source: str, out: str | None, json_: bool) -> None:
    """Make a run of other people's weights, with a certificate that it says what they say.

    SOURCE is a model folder (config.json, safetensors, tokenizer.json), a .gguf file, a name of the catalogue (smollm2,
    minilm), or org/name@revision of the hub. Nothing of it is executed. Exit code 1 if the certificate fails.
    """
    from harken.bridge.hub import named
    from harken.bridge.importer import bring
    from harken.experiments.audit.audit import LARGE, audit
    from harken.experiments.train import is_free, next_free
    from harken.run_folder import read_json

    if out and not is_free(Path(out)):
        raise BadInput(f"{out}: is not empty; take another folder")
    folder = Path(out) if out else next_free(Path("runs") / named(source))
    with Teller(aside=json_) as teller:
        made = bring(source, folder, listen=teller)
    certificate, origin = read_json(folder / "certificate.json"), made.facts["imported"]
    checks = audit(made.model).facts() if made.parameters <= LARGE else None  # a large one takes much memory
    if json_:
        shown = {"run": folder, "parameters": made.parameters, "imported": origin, "certificate": certificate}
        show({**shown, "audit": checks})
        return
    click.echo(f"{folder}: {made.parameters:,} weights of {origin['source']}, which say what they said there")
    thanks = [f"{name}: {origin[name]}" for name in ("licence", "attribution") if name in origin]
    proof = f"audit: {checks['summary']}" if checks else f"harken audit {folder} proves that it obeys its mask"
    for line in (*said(certificate), *thanks, proof):
        click.echo(f"  {line}")
