"""harken caption RUN [IMAGE...]"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json, search_options
from .answers import Answer, answer_texts, is_empty, null_line
from .inputs import IMAGE_COLUMNS, Inputs, file_options, input_choices, locate_image

if TYPE_CHECKING:
    from harken.inference.run import Run

BATCH_SIZE = 64  # images per batch
NULL = {"text": None, "score": None}


@click.command()
@click.argument("run")
@click.argument("images", nargs=-1, metavar="[IMAGE...]")
@search_options("beam", "alternatives", "max-new-tokens", "temperature", "seed")
@file_options
@precision_option
@json_option
def caption(run: str, images: tuple[str, ...], precision: str, json_: bool, **options: object) -> None:
    """Generate a caption for each IMAGE: a file, one image of an array (x.npz[17]), or a folder of images.

    With - or piped input, each line of stdin is an image file. A file of --in has one image per line, or a column of
    images; their paths are relative to the file or to the current folder.
    """
    inputs = Inputs.from_options(images, options, "an image, or - to read file names")
    from harken.decode.beam import SearchSettings
    from harken.inference.answers.caption import caption_candidates

    search: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load_run(run, "caption", precision)
    inputs.use_encoding(model.recipe.data.file_encoding)

    def predict(batch: list[str], position: int) -> list[Answer]:
        candidates = caption_candidates(model, batch, index=position, **search)
        return [{**best[0], **({"alternatives": best} if "alternatives" in search else {})} for best in candidates]

    with ConsoleListener(to_stderr=True) as listener:
        if inputs.in_:
            columns = [*input_choices(model.recipe.data.image), *IMAGE_COLUMNS, 1]
            batches: Iterable[list[str]] = inputs.batches(BATCH_SIZE, columns, convert=locate_image)
        else:
            names = _image_names(model, inputs, listener)
            batches = [names[n : n + BATCH_SIZE] for n in range(0, len(names), BATCH_SIZE)]
        answers = answer_texts(model, batches, predict, NULL, listener)
        if inputs.in_:
            keys = ("text", "score", "alternatives")
            inputs.write((answer for _, answer in answers), keys, json_=json_, listen=listener)
        elif json_:
            print_json({"captions": [{"file": name, **answer} for name, answer in answers]})
        else:
            for name, answer in answers:
                click.echo(
                    "\n".join(f"{text}  {name}".rstrip() if len(names) > 1 else text for text in _captions(answer))
                )


def _image_names(model: "Run", inputs: Inputs, listener: ConsoleListener) -> list[str]:
    """The image files that the arguments or the lines of stdin select; an empty line selects none."""
    from harken.inference.answers.images import list_images

    selected = ([line] if is_empty(line) else list_images(model, [line], listener)[0] for line in inputs.lines())
    return [name for names in selected for name in names]


def _captions(answer: Answer) -> list[str]:
    """The caption, or all candidates with their scores."""
    if answer["text"] is None:
        return [null_line(answer)]
    if "alternatives" not in answer:
        return [answer["text"]]
    return [f"{each['score']:.4f} {each['text']}" for each in answer["alternatives"]]
