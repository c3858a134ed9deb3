"""harken caption RUN [IMAGE...]"""

from typing import Any

import click

from harken.console import ConsoleListener, decode_argument, stdin_batches, stdin_is_piped

from . import json_option, precision_option, print_json, search_options

BATCH_SIZE = 64  # images per batch


@click.command()
@click.argument("run")
@click.argument("images", nargs=-1, metavar="[IMAGE...]")
@search_options("beam", "alternatives", "max-new-tokens", "temperature", "seed")
@precision_option
@json_option
def caption(run: str, images: tuple[str, ...], precision: str, json_: bool, **options: Any) -> None:
    """Generate a caption for each IMAGE: a file, one image of an array (x.npz[17]), or a folder of images.

    With -, or piped, each line of stdin is an image file.
    """
    if not images and not stdin_is_piped():
        raise click.UsageError("give an image, or - to read file names from stdin, one per line")
    from harken.decode.beam import SearchSettings
    from harken.inference.answers.caption import caption_candidates
    from harken.inference.answers.images import list_images
    from harken.inference.run import load

    search = {name: value for name, value in options.items() if value is not None}
    SearchSettings.from_options(search)  # validates the options before the model is loaded
    model = load(run, precision=precision)
    model.require("caption")
    typed_ = (
        [name for block in stdin_batches(BATCH_SIZE, required=not images) for name in block]
        if images in ((), ("-",))
        else images
    )
    names, _ = list_images(model, list(map(decode_argument, typed_)), ConsoleListener(to_stderr=True))
    candidates = [
        best
        for n in range(0, len(names), BATCH_SIZE)
        for best in caption_candidates(model, names[n : n + BATCH_SIZE], index=n, **search)
    ]
    if json_:
        with_alternatives = "alternatives" in search
        rows = zip(names, candidates, strict=True)
        print_json(
            {
                "captions": [
                    {"file": f, **best[0]} | ({"alternatives": best} if with_alternatives else {}) for f, best in rows
                ]
            }
        )
        return
    for name, best in zip(names, candidates, strict=True):
        captions = (
            [f"{each['score']:.4f} {each['text']}" for each in best] if "alternatives" in search else [best[0]["text"]]
        )
        click.echo("\n".join(f"{text}  {name}" if len(names) > 1 else text for text in captions))
