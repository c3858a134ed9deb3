"""harken tag RUN [TEXT...]"""

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json
from .inputs import Inputs, file_options

BATCH_SIZE = 256  # texts per batch


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@file_options
@precision_option
@json_option
def tag(run: str, texts: tuple[str, ...], precision: str, json_: bool, **files: str | None) -> None:
    """Tag the spans of each TEXT, such as names. With - or piped input, each line of stdin is a text."""
    inputs = Inputs(texts, **files)
    model = load_run(run, "tag", precision)
    tagged = (spans for batch in inputs.batches(BATCH_SIZE) for spans in model.tag(batch))
    if inputs.in_:
        with ConsoleListener(to_stderr=True) as listener:
            inputs.write(({"spans": spans} for spans in tagged), json_=json_, listen=listener)
    elif json_:
        print_json({"spans": list(tagged)})
    else:
        for spans in tagged:
            lines = [f"{s['label']}\t{s['text']}\t{s['start']}-{s['end']}\t{s['probability']:.3f}" for s in spans]
            click.echo("; ".join(lines).replace("\t", " ") if inputs.stdin else "\n".join(lines))
