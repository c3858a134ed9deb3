"""harken translate RUN [TEXT...]"""

from collections import Counter
from typing import Any

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json, search_options
from .answers import Answer, answer_texts, null_line, one_line
from .inputs import TEXT_COLUMNS, Inputs, file_options, input_choices, refuse_file_names

BATCH_SIZE = 64  # texts per batch
TAB_NOTICE = "a tab is part of the source; to translate a column of a table: --in FILE --column NAME --out FILE"
NULL = {"text": None, "score": None}


@click.command()
@click.argument("run")
@click.argument("texts", nargs=-1, metavar="[TEXT...]")
@search_options()
@file_options
@precision_option
@json_option
def translate(run: str, texts: tuple[str, ...], json_: bool, precision: str, **options: object) -> None:
    """Generate the target of each source TEXT. With - or piped input, each line of stdin is a source."""
    inputs = Inputs.from_options(texts, options)
    refuse_file_names(texts)
    search: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    from harken.decode.beam import SearchSettings
    from harken.inference.answers.rows import notice_unseen

    prefix = search.pop("prefix", "")
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load_run(run, "translate", precision)
    inputs.use_encoding(model.recipe.data.file_encoding)
    columns = [*input_choices(model.recipe.data.input_column), "source", *TEXT_COLUMNS, 1]
    tabs = False
    with ConsoleListener(to_stderr=True) as listener:

        def predict(sources: list[str], position: int) -> list[Answer]:
            nonlocal tabs
            if not tabs and (tabs := any("\t" in source for source in sources)):
                listener("notice", text=TAB_NOTICE)
            # the position: no two batches share random draws
            candidates = model.alternatives(sources, index=position, prefix=prefix, listen=listener, **search)
            return [{**best[0], **({"alternatives": best} if "alternatives" in search else {})} for best in candidates]

        batches = inputs.batches(BATCH_SIZE, columns)
        notice_unseen(model, inputs.header, Counter(), listener)
        answers = answer_texts(model, batches, predict, NULL, listener)
        if inputs.in_:
            keys = ("text", "score", "alternatives")
            inputs.write((answer for _, answer in answers), keys, json_=json_, listen=listener)
        elif json_:
            print_json({"translations": [{"source": source, **answer} for source, answer in answers]})
        else:
            for source, answer in answers:
                candidates = _candidates(answer)
                if inputs.stdin:
                    click.echo("\t".join(candidates))
                elif len(texts) > 1:
                    click.echo("\n".join(f"{one_line(source)} -> {text}" for text in candidates))
                else:
                    click.echo("\n".join(candidates))


def _candidates(answer: Answer) -> list[str]:
    """The target, or all candidates with their scores."""
    if answer["text"] is None:
        return [null_line(answer)]
    return [f"{c['score']:.4f} {c['text']}" for c in answer.get("alternatives", ()) if c["text"]] or [answer["text"]]
