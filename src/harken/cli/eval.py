"""harken eval RUN [DATA]"""

from typing import Any

import click

from harken.console import Teller, aligned, as_typed, judged, verdict
from harken.experiments.report.line_chart import figure

from . import as_json, as_precision, refuse, show

# what the examples of a task are called
COUNTED = ["pairs", "texts", "sentences", "questions", "examples", "images", "nodes", "edges", "graphs", "sets"]
COUNTED += ["tokens"]


@click.command()
@click.argument("run")
@click.argument("data", required=False)
@click.option("--split", type=click.Choice(["valid", "test"]), default=None, help="Which split of the run's own data.")
@click.option("--prompt", metavar="TEXT", help='Ask a language model about DATA: "Review: {text} Sentiment:".')
@click.option("--shots", metavar="0,1,4", default="0", help="With --prompt: examples shown first, drawn from train.")
@click.option("--labels", metavar="0=bad,1=good", help="With --prompt: what is written for the labels of the data.")
@click.option("--seed", type=int, default=0, help="With --prompt: which examples are drawn.")
@as_precision
@as_json
def eval(
    run: str, data: str | None, split: str | None, prompt: str | None, precision: str, json_: bool, **asked: Any
) -> None:
    """The metric of a RUN on a split of its data, or on other DATA, with its protocol, beside the free baseline.

    With --prompt a RUN that writes text answers texts with labels, pairs or questions (SQuAD) that it never learned.
    """
    if prompt is not None:
        _prompted(run, data, split, as_typed(prompt), precision, json_, **asked)
        return
    refuse("without --prompt", "shots", "labels", "seed")
    if data is not None:
        refuse("for other data", "split")
    from harken.experiments.choose import located
    from harken.inference.run import load

    model = load(run, precision=precision)
    with Teller(aside=json_) as teller:
        path = None if data is None else str(located(data, listen=teller))
        score, baseline = model.evaluate(split, data=path, listen=teller)
    shown = "other data" if data else split or judged(model.metrics)
    if json_:
        show(_result(score, baseline, shown))
        return
    found = {"metrics": score.metrics, "protocol": score.protocol, "parts": score.parts, "baseline": baseline}
    for line in verdict({name: {shown: value} for name, value in found.items()}):
        click.echo(line)


def _result(score: Any, baseline: dict[str, Any], split: str) -> dict[str, Any]:
    many = next(score.protocol[what] for what in COUNTED if what in score.protocol)
    result = {"metrics": score.metrics, "baseline": baseline, "split": split, "examples": many}
    return {**result, "protocol": score.protocol, "parts": score.parts}


def _prompted(
    run: str, data: str | None, split: str | None, prompt: str, precision: str, json_: bool, **asked: Any
) -> None:
    if data is None:
        raise click.UsageError("with --prompt, name the data it is asked about: harken eval RUN DATA --prompt ...")
    counts = [_count(said) for said in asked["shots"].split(",")]
    labels = dict(map(_wording, asked["labels"].split(","))) if asked["labels"] else None
    from harken.experiments.choose import choose
    from harken.inference.prompt_eval import Prompt, by_prompt, opened
    from harken.inference.run import load

    model = load(run, precision=precision)
    with Teller(aside=json_) as teller:
        task, part = opened(choose(data, listen=teller).recipe, split, teller)
        prompts = [Prompt(prompt, shots, asked["seed"], labels) for shots in counts]
        scores = [by_prompt(model, task, part, each, teller) for each in prompts]
    baseline = task.baselines(part)
    if json_:
        rows = [{"shots": n, "metrics": score.metrics} for n, score in zip(counts, scores, strict=True)]
        show({**_result(scores[-1], baseline, part), "rows": rows})
        return
    lines = [(f"this model, {n} shot{'s' * (n != 1)}", score.metrics) for n, score in zip(counts, scores, strict=True)]
    lines += [(f"{name}, for free", metrics) for name, metrics in baseline.items()]
    for n, line in enumerate(aligned(lines)):
        click.echo(f"  {'' if n else part:<6}  {line}")
    how = {name: value for name, value in scores[-1].protocol.items() if name not in ("shots", "prompt")}
    said = ", ".join(f"{name.replace('_', ' ')} {figure(value)}" for name, value in how.items())
    click.echo(f"  {'':<6}  ({said})")


def _count(said: str) -> int:
    if not said.strip().isdecimal():
        raise click.UsageError(f"--shots {said!r}: whole numbers with commas between are accepted, such as 0,1,4,16")
    return int(said)


def _wording(said: str) -> tuple[str, str]:
    label, equals, words = said.partition("=")
    if not equals or not label.strip() or not words.strip():
        raise click.UsageError(f"--labels {said!r}: a label of the data and its words are accepted: 0=bad,1=good")
    return label.strip(), words.strip()
