"""harken eval RUN [DATA]"""

from dataclasses import replace
from typing import Any

import click

from harken.console import ConsoleListener, align_metrics, decode_prompt, evaluation_lines, interval_note, main_split
from harken.data.tables.text_file import check_encoding
from harken.errors import BadInput
from harken.experiments.report.formatting import format_number
from harken.suggestions import did_you_mean

from . import json_option, overflow_option, precision_option, print_json, reject_options

SPLITS = ("valid", "test")
PROMPT_HELP = 'Evaluate a language model on DATA with a prompt: "Review: {text} Sentiment:".'


@click.command()
@click.argument("run")
@click.argument("data", required=False)
@click.option("--split", type=click.Choice(SPLITS), default=None, help="Split of the run's own data.")
@click.option("--prompt", metavar="TEXT", help=PROMPT_HELP)
@click.option("--shots", metavar="0,1,4", default="0", help="With --prompt: number of examples in the prompt.")
@click.option("--labels", metavar="0=bad,1=good", help="With --prompt: the word in the prompt for each label.")
@click.option("--seed", type=int, default=0, help="With --prompt: random seed that selects the examples.")
@click.option("--encoding", metavar="NAME", help="Encoding of DATA if it is not UTF-8, such as cp1252.")
@overflow_option
@precision_option
@json_option
def eval(
    run: str, data: str | None, split: str | None, encoding: str | None, precision: str, json_: bool, **options: object
) -> None:
    """Evaluate a RUN on a split of its data, or on other DATA; print metrics, baselines and how they were computed.

    With --prompt, RUN is a language model. It is evaluated on labelled texts, pairs or questions (SQuAD) with a prompt,
    without training. With --shots 0 all rows of DATA are evaluated, unless its files are splits or --split names one.
    """
    try:
        check_encoding(encoding)
    except ValueError as error:
        raise BadInput(f"--encoding: {error}") from None
    if options["prompt"] is not None:
        reject_options("with --prompt", "overflow")
        return _evaluate_prompt(run, data, split, precision, json_, options | {"encoding": encoding})
    reject_options("without --prompt", "shots", "labels", "seed")
    reject_options("for other data", "split") if data is not None else reject_options("without DATA", "encoding")
    from harken.experiments.choose import find_data
    from harken.inference.run import load

    model = load(run, precision=precision)
    with ConsoleListener(to_stderr=json_) as listener:
        try:
            path = None if data is None else str(find_data(data, listen=listener))
        except BadInput as error:
            if (near := did_you_mean(str(data), SPLITS)) and "no such file" in str(error):
                option = near.replace("mean ", "mean --split ")
                raise BadInput(f"{data}: no such data; a split of the run's own data is an option.{option}") from None
            raise
        reading: Any = {"encoding": encoding or "", "overflow": options["overflow"], "listen": listener}
        try:
            score, baseline = model.evaluate(split, data=path, **reading)
        except BadInput as error:
            raise BadInput(str(error).replace("set data.encoding=", "use --encoding ")) from None
    shown = "other data" if data else split or main_split(model.metrics)
    if json_:
        return print_json(_json_summary(score, baseline, shown))
    evaluation = {"metrics": score.metrics, "intervals": score.intervals, "baseline": baseline}
    evaluation |= {"protocol": score.protocol, "parts": score.parts}
    for line in evaluation_lines({name: {shown: value} for name, value in evaluation.items()}):
        click.echo(line)


def _json_summary(score: Any, baseline: dict[str, Any], split: str) -> dict[str, Any]:
    summary = {"metrics": score.metrics, "intervals": score.intervals, "baseline": baseline, "split": split}
    summary |= {"differences": score.differences, "examples": score.n_examples}
    return {**summary, "protocol": score.protocol, "parts": score.parts}


def _evaluate_prompt(
    run: str, data: str | None, split: str | None, precision: str, json_: bool, options: dict[str, Any]
) -> None:
    if data is None:
        raise click.UsageError("--prompt needs DATA: harken eval RUN DATA --prompt TEXT")
    counts = [_parse_shots(count) for count in options["shots"].split(",")]
    labels = dict(map(_parse_wording, options["labels"].split(","))) if options["labels"] else None
    from harken.experiments.choose import choose
    from harken.inference.prompt_eval import FewShotPrompt, evaluate_prompt, load_task
    from harken.inference.run import load

    model = load(run, precision=precision)
    with ConsoleListener(to_stderr=json_) as listener:
        encoding = {"data.encoding": options["encoding"]} if options["encoding"] else {}
        recipe = choose(data, encoding, listen=listener).recipe
        task, part = load_task(recipe, split, listener, needs_train=max(counts) > 0)
        template, seed = decode_prompt(options["prompt"]), options["seed"]
        prompts = [FewShotPrompt(template, shots, seed, labels) for shots in counts]
        scores = [evaluate_prompt(model, task, part, prompt, listener) for prompt in prompts]
    baselines = task.evaluate_baselines(part)
    scores = [replace(score, differences=score.compare(baselines)) for score in scores]
    baseline = {name: x.metrics for name, x in baselines.items()}
    if json_:
        rows = [
            {"shots": n, "metrics": score.metrics, "intervals": score.intervals}
            for n, score in zip(counts, scores, strict=True)
        ]
        return print_json({**_json_summary(scores[-1], baseline, part), "rows": rows})
    names = [f"{n} shot{'s' * (n != 1)}" for n in counts]
    lines = [(f"this model, {name}", score.metrics) for name, score in zip(names, scores, strict=True)]
    lines += [(f"baseline: {name}", metrics) for name, metrics in baseline.items()]
    for n, line in enumerate(align_metrics(lines)):
        click.echo(f"  {'' if n else part:<6}  {line}")
    for name, score in zip(names, scores, strict=True):
        facts = {"metrics": {part: score.metrics}, "intervals": {part: score.intervals}}
        if note := interval_note(facts, part, name):
            click.echo(f"  {'':<6}  ({note})")
    details = {key: value for key, value in scores[-1].protocol.items() if key not in ("shots", "prompt")}
    protocol = ", ".join(f"{key.replace('_', ' ')} {format_number(value)}" for key, value in details.items())
    click.echo(f"  {'':<6}  ({protocol})")


def _parse_shots(text: str) -> int:
    if not text.strip().isdecimal():
        raise click.UsageError(f"--shots {text!r}: expected whole numbers separated by commas, such as 0,1,4,16")
    return int(text)


def _parse_wording(text: str) -> tuple[str, str]:
    label, equals, words = text.partition("=")
    if not equals or not label.strip() or not words.strip():
        raise click.UsageError(f"--labels {text!r}: expected label=words, such as 0=bad,1=good")
    return label.strip(), words.strip()
