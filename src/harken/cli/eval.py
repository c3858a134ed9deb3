"""harken eval RUN [DATA]"""

import click

from . import as_json, as_precision, refuse, show
from .say import Teller, verdict

COUNTED = ("pairs", "texts", "sentences", "questions", "tokens")  # what the examples of a task are


@click.command()
@click.argument("run")
@click.argument("data", required=False)
@click.option("--split", type=click.Choice(["valid", "test"]), default=None, help="Which split of the run's own data.")
@as_precision
@as_json
def eval(run: str, data: str | None, split: str | None, precision: str, json_: bool) -> None:
    """The metric of a RUN on a split of its data, or on other DATA, with its protocol, beside the free baseline."""
    if data is not None:
        refuse("for other data", "split")
    from harken.study.choose import located
    from harken.use.model import load

    model = load(run, precision=precision)
    chosen = split or ("test" if data or "test" in model.metrics else "valid")
    with Teller(aside=json_) as teller:
        path = None if data is None else str(located(data, listen=teller))
        score, baseline = model.evaluate(chosen, data=path, listen=teller)
    shown = "other data" if data else chosen
    if json_:
        many = next(score.protocol[what] for what in COUNTED if what in score.protocol)
        result = {"metrics": score.metrics, "baseline": baseline, "split": shown, "examples": many}
        show({**result, "protocol": score.protocol, "parts": score.parts})
        return
    found = {"metrics": score.metrics, "protocol": score.protocol, "parts": score.parts, "baseline": baseline}
    for line in verdict({name: {shown: value} for name, value in found.items()}):
        click.echo(line)
