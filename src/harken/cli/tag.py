"""harken tag RUN [TEXT...]"""

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json
from .answers import Answer, answer_texts, min_probability_option, null_line, one_line, parallel_lists
from .inputs import Inputs, file_options, refuse_file_names

BATCH_SIZE = 256  # texts per batch


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@min_probability_option
@file_options
@precision_option
@json_option
def tag(
    run: str, texts: tuple[str, ...], min_probability: float, precision: str, json_: bool, **options: object
) -> None:
    """Tag the spans of each TEXT, such as names. With - or piped input, each line of stdin is a text."""
    inputs = Inputs.from_options(texts, options)
    refuse_file_names(texts)
    model = load_run(run, "tag", precision)
    inputs.use_encoding(model.recipe.data.file_encoding)

    with ConsoleListener(to_stderr=True) as listener:

        def predict(batch: list[str], _: int) -> list[Answer]:
            tagged = model.tag(batch, min_probability=min_probability, listen=listener)
            return [{"spans": spans} for spans in tagged]

        answers = answer_texts(model, inputs.batches(BATCH_SIZE), predict, {"spans": None}, listener)
        if inputs.in_:
            inputs.write((answer for _, answer in answers), ("spans",), json_=json_, listen=listener)
        elif json_:
            print_json(parallel_lists([answer for _, answer in answers], "spans"))
        else:
            for text, answer in answers:
                lines = _span_lines(answer)
                if inputs.stdin:
                    click.echo("; ".join(lines).replace("\t", " "))
                elif len(texts) > 1:
                    click.echo("\n".join([one_line(text), *(f"  {line}" for line in lines)]))
                else:
                    click.echo("\n".join(lines))


def _span_lines(answer: Answer) -> list[str]:
    if answer["spans"] is None:
        return [null_line(answer)]
    return [f"{s['label']}\t{s['text']}\t{s['start']}-{s['end']}\t{s['probability']:.3f}" for s in answer["spans"]]
