"""harken caption RUN [PICTURE...]"""

from typing import Any

import click

from harken.console import Teller, blocks, piped, typed

from . import as_json, as_precision, show

AT_ONCE = 64  # pictures that are looked at together


@click.command()
@click.argument("run")
@click.argument("pictures", nargs=-1, metavar="[PICTURE...]")
@click.option("--beam", type=click.IntRange(1, 1024), metavar="N", help="Follow the N best captions at a time.")
@click.option("--alternatives", type=click.IntRange(1), metavar="N", help="The N best captions, with their scores.")
@click.option("--max-new-tokens", type=click.IntRange(1), metavar="N", help="Most tokens of a caption.")
@click.option("--temperature", type=click.FloatRange(0), metavar="X", help="Draw captions by chance; 0.8 is a start.")
@click.option("--seed", type=int, metavar="N", help="Another seed draws others.  [default: 0]")
@as_precision
@as_json
def caption(run: str, pictures: tuple[str, ...], precision: str, json_: bool, **options: Any) -> None:
    """What each PICTURE shows, in words: a file, one of an array (x.npz[17]), or a folder of pictures.

    With -, or piped, each line of stdin is a picture's file.
    """
    if not pictures and not piped():
        raise click.UsageError("give a picture, or - to read their names from stdin, one a line")
    from harken.decode.beam import Search
    from harken.inference.answers.images import listed
    from harken.inference.run import load

    given = {name: value for name, value in options.items() if value is not None}
    Search.of(given)  # refuses what does not fit together before the model is loaded
    model = load(run, precision=precision)
    model.must("caption")
    typed_ = (
        [name for block in blocks(AT_ONCE, must=not pictures) for name in block]
        if pictures in ((), ("-",))
        else pictures
    )
    names, _ = listed(model, list(map(typed, typed_)), Teller(aside=True))
    asked = {"alternatives": 1, **given}
    found = [
        best for n in range(0, len(names), AT_ONCE) for best in model.caption(names[n : n + AT_ONCE], index=n, **asked)
    ]
    if json_:
        every = {"alternatives"} & given.keys()
        rows = zip(names, found, strict=True)
        show({"captions": [{"file": f, **best[0]} | ({"alternatives": best} if every else {}) for f, best in rows]})
        return
    for name, best in zip(names, found, strict=True):
        said = (
            [f"{each['score']:.4f} {each['text']}" for each in best] if "alternatives" in given else [best[0]["text"]]
        )
        click.echo("\n".join(f"{text}  {name}" if len(names) > 1 else text for text in said))
