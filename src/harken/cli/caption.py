"""harken caption RUN [IMAGE...]"""

from typing import Any

import click

from harken.console import ConsoleListener

from . import json_option, load_run, precision_option, print_json, search_options
from .inputs import Inputs

BATCH_SIZE = 64  # images per batch


@click.command()
@click.argument("run")
@click.argument("images", nargs=-1, metavar="[IMAGE...]")
@search_options("beam", "alternatives", "max-new-tokens", "temperature", "seed")
@precision_option
@json_option
def caption(run: str, images: tuple[str, ...], precision: str, json_: bool, **options: object) -> None:
    """Generate a caption for each IMAGE: a file, one image of an array (x.npz[17]), or a folder of images.

    With - or piped input, each line of stdin is an image file.
    """
    inputs = Inputs(images, "an image, or - to read file names")
    from harken.decode.beam import SearchSettings
    from harken.inference.answers.caption import caption_candidates
    from harken.inference.answers.images import list_images

    search: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load_run(run, "caption", precision)
    names, _ = list_images(model, list(inputs.lines()), ConsoleListener(to_stderr=True))
    batches = ((n, names[n : n + BATCH_SIZE]) for n in range(0, len(names), BATCH_SIZE))
    candidates = [best for n, batch in batches for best in caption_candidates(model, batch, index=n, **search)]
    with_alternatives = "alternatives" in search
    if json_:
        rows = [{"file": name, **best[0]} for name, best in zip(names, candidates, strict=True)]
        extras = [{"alternatives": best} if with_alternatives else {} for best in candidates]
        return print_json({"captions": [row | extra for row, extra in zip(rows, extras, strict=True)]})
    for name, best in zip(names, candidates, strict=True):
        captions = [f"{each['score']:.4f} {each['text']}" if with_alternatives else each["text"] for each in best]
        click.echo("\n".join(f"{text}  {name}" if len(names) > 1 else text for text in captions))
