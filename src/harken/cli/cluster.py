"""harken cluster RUN|FILE [TEXTS]"""

from pathlib import Path
from typing import Any

import click

from harken.console import Teller, table
from harken.experiments.report.line_chart import figure

from . import as_json, as_seed, show
from .embed import as_layer, as_pool

LONGEST = 100  # letters of an example


@click.command()
@click.argument("what", metavar="RUN|FILE")
@click.argument("texts", required=False, metavar="[TEXTS]")
@click.option("--k", default="2-8", show_default=True, help="How many clusters: 3, a range (2-8) or a list (2,4,8).")
@click.option("--restarts", type=click.IntRange(1), default=10, show_default=True, help="Starts; the best is taken.")
@click.option(
    "--start",
    type=click.Choice(["k-means++", "random"]),
    default="k-means++",
    show_default=True,
    help="Centres far apart, or a number by chance for each point.",
)
@as_pool
@as_layer
@click.option("--raw", is_flag=True, help="Vectors of texts as they are; without it each has length 1.")
@click.option("--scale", is_flag=True, help="Divide each column of numbers by its spread.")
@click.option("--column", metavar="NAME", help="Where a table has its texts, by name or number.")
@click.option("--columns", metavar="A,B", help="Of FILE: the columns taken, by name or number.  [default: all]")
@click.option(
    "--regress", is_flag=True, help="Instead: learn TEXTS' labels from the components, over 100 ... all labels."
)
@click.option("--beside", type=float, metavar="MINUTES", help="With --regress: fine-tune RUN for so long on the same.")
@as_seed("clusters.")
@click.option("--out", metavar="DIR", help="The folder to write. Default: runs/<name>-clusters.")
@as_json
def cluster(what: str, texts: str | None, json_: bool, **options: Any) -> None:
    """Sort vectors into clusters: those of FILE (.npy, .csv), or those RUN has of TEXTS, a file of lines or a table.

    Each number of clusters is drawn; which is best is asked in three ways. Behind FILE, TEXTS names its rows.
    """
    if options.pop("regress"):
        _regress(what, texts, json_, options)
        return
    if options.pop("beside") is not None:
        raise click.UsageError("--beside means nothing without --regress")
    from harken.experiments.cluster.clustering import cluster as cluster_
    from harken.experiments.cluster.clustering import free_folder
    from harken.experiments.cluster.page import chosen, verdict

    out = options.pop("out") or free_folder(Path(texts or what).stem)
    with Clusters(aside=json_) as teller:
        made = cluster_(what, texts, out=out, listen=teller, **options)
    facts = made.facts
    if json_:
        show({**facts, "files": [str(p) for p in sorted(Path(out).iterdir())]})
        return
    heads = ["k", "inertia", "silhouette", "stability", "inertia of each restart"]
    table(heads, [_row(row) for row in facts["tried"]])
    click.echo(f"\n  {chosen(facts)}")
    shares = ", ".join(f"{100 * share:.1f} %" for share in facts["explained"][:5])
    click.echo(f"  The first components explain {shares} of the variance.")
    for one in facts["clusters"]:
        click.echo(f"\n  cluster {one['cluster']}: {one['size']:,} points   {', '.join(one['words'])}")
        for each in one["examples"]:
            click.echo(f"    {each['distance']:8.4f}  row {each['row']:<7} {each.get('text', '')[:LONGEST]}")
    click.echo(f"\n  {verdict(facts)}")
    click.echo(f"  report  {Path(out) / 'report.html'}      picture: {Path(out) / 'clusters.svg'}")


def _row(row: dict[str, Any]) -> list[str]:
    first = [str(row["k"]), *(figure(row[name], 4) for name in ("inertia", "silhouette", "stability"))]
    return [*first, " ".join(figure(inertia, 4) for inertia in row["inertias"])]


def _regress(what: str, texts: str | None, json_: bool, options: dict[str, Any]) -> None:
    """Principal component regression, beside a fine-tuned model where that is asked for."""
    if texts is None:
        raise click.UsageError("--regress needs a run and a table with labels: harken cluster RUN my.csv --regress")
    from harken.experiments.cluster.pcr import regress

    if options["columns"]:
        raise click.UsageError("--columns means nothing with --regress")
    kept = {name: options[name] for name in ("pool", "layer", "raw", "seed", "out")}
    with Clusters(aside=json_) as teller:
        facts = regress(what, texts, minutes=options["beside"], listen=teller, **kept)
    if json_:
        show(facts)
        return
    names = [name for name in ("components", "regression", "finetuned") if any(name in row for row in facts["rows"])]
    rows = [[f"{row['labels']:,}", *(figure(row.get(name), 4) for name in names)] for row in facts["rows"]]
    table(["labels", *names], rows)
    click.echo(f"\n  {facts['verdict']}")
    click.echo(f"  picture {facts['out']}/regression.svg")


class Clusters(Teller):
    """Tells which number of clusters is being tried."""

    def _clusters(self, k: int, done: int, total: int) -> None:
        self._progress("clustering", done, total, f"k = {k}")
