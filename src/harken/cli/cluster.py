"""harken cluster RUN|FILE [TEXTS]"""

import re
from pathlib import Path
from typing import Any, Literal

import click

from harken.console import ConsoleListener, table
from harken.errors import BadInput
from harken.experiments.cluster.records import ClusterFacts, TableRegressionFacts
from harken.experiments.report.formatting import format_number

from . import json_option, overflow_option, print_json, reject_options, seed_option
from .embed import layer_option, pool_option

EXAMPLE_CHARACTERS = 100  # characters printed of an example
MAX_ROWS = 20  # of the tables of a regression
CANDIDATE_COLUMNS: tuple[Literal["components", "r2", "explained"], ...] = ("components", "r2", "explained")
REGRESS_HELP = (
    "Principal component regression of COLUMN on the other columns of FILE; with RUN and a table of texts on 100, 300, "
    "... of its labels (COLUMN may be omitted)."
)
COMPONENTS_HELP = "With --regress and FILE: number of components.  [default: by cross-validation]"
STARTS = ("k-means++", "random")


@click.command()
@click.argument("what", metavar="RUN|FILE")
@click.argument("texts", required=False, metavar="[INPUTS]")
@click.option("--k", default="2-8", help="Number of clusters: 3, a range (2-8) or a list (2,4,8).")
@click.option("--restarts", type=click.IntRange(1), default=10, help="Number of initializations; the best is kept.")
@click.option("--start", type=click.Choice(STARTS), default=STARTS[0], help="Initialization of the centers.")
@pool_option
@layer_option
@overflow_option
@click.option("--raw", is_flag=True, help="Do not normalize the embeddings to length 1.")
@click.option("--scale", is_flag=True, help="Divide each column by its standard deviation.")
@click.option("--column", metavar="NAME", help="Text column of a table, by name or number.")
@click.option("--columns", metavar="A,B", help="Columns of FILE to use, by name or number.  [default: all]")
@click.option("--decimal", type=click.Choice([".", ","]), default=".", help="Decimal sign of the numbers in FILE.")
@click.option("--split", metavar="NAME", help="Without INPUTS: only this split of the data of RUN.")
@click.option("--regress", metavar="COLUMN", is_flag=False, flag_value="", help=REGRESS_HELP)
@click.option("--components", type=click.IntRange(1), metavar="N", help=COMPONENTS_HELP)
@click.option("--finetune-minutes", type=float, metavar="MINUTES", help="With --regress: also fine-tune RUN.")
@seed_option("clusters.")
@click.option("--out", metavar="DIR", help="Folder to write.  [default: runs/<name>-clusters]")
@json_option
def cluster(what: str, texts: str | None, json_: bool, **settings: object) -> None:
    """Cluster the vectors of FILE (.npy, .csv), or those that RUN computes for INPUTS: lines or a table of texts, a
    folder of images, a graph, a table of sets. Without INPUTS, RUN clusters its own data.

    Every number of clusters is plotted with three criteria; the silhouette chooses the best. Where labels are known,
    NMI and purity compare the clusters with them. With FILE, INPUTS names its rows.
    """
    options: dict[str, Any] = settings
    if texts and re.match(r"[a-z]+\.\w+=", texts) and not Path(texts).exists():
        raise BadInput(f"{texts}: cluster has no settings; use an option, such as --decimal or --column")
    if options["regress"] is not None and Path(what).is_dir():
        return _regress(what, texts, json_, options)
    if options["regress"] == "" and Path(what).is_file():
        raise click.UsageError(f"--regress needs the target column: harken cluster {what} --regress COLUMN")
    if options.pop("finetune_minutes") is not None:
        raise click.UsageError("--finetune-minutes has no effect without --regress")
    from harken.experiments.cluster.clustering import cluster as cluster_
    from harken.experiments.cluster.clustering import default_folder

    out = options.pop("out") or default_folder(Path(texts or what).stem)
    with ConsoleListener(to_stderr=json_) as listener:
        clustering = cluster_(what, texts, out=out, listen=listener, **options)
    if json_:
        print_json({**clustering.facts, "files": [str(p) for p in sorted(Path(out).iterdir())]})
    else:
        _print_clusters(clustering.facts, Path(out))


def _print_clusters(facts: ClusterFacts, out: Path) -> None:
    from harken.experiments.cluster.page import agreement_text, cluster_verdict, labels_text, n_clusters_text, place

    heads = ["k", "inertia", "silhouette", "stability", "inertia of each restart"]
    rows = [[row["k"], row["inertia"], row["silhouette"], row["stability"]] for row in facts["candidates"]]
    restarts = [" ".join(format_number(inertia, 4) for inertia in row["inertias"]) for row in facts["candidates"]]
    table(heads, [[*(format_number(x, 4) for x in row), text] for row, text in zip(rows, restarts, strict=True)])
    click.echo(f"\n  {n_clusters_text(facts)}")
    shares = ", ".join(f"{100 * share:.1f} %" for share in facts["explained"][:5])
    click.echo(f"  The first components explain {shares} of the variance.")
    for one in facts["clusters"]:
        words = "   ".join(filter(None, [", ".join(one["words"]), labels_text(one)]))
        click.echo(f"\n  cluster {one['cluster']}: {one['size']:,} points   {words}".rstrip())
        for row in one["examples"]:
            click.echo(f"    {row['distance']:8.4f}  {place(row):<11} {row.get('text', '')[:EXAMPLE_CHARACTERS]}")
    click.echo(f"\n  {cluster_verdict(facts)}")
    if agreement := agreement_text(facts):
        click.echo(f"  {agreement}")
    if "regression" in facts:
        _print_regression(facts["regression"])
    click.echo(f"  report  {out / 'report.html'}      plot: {out / 'clusters.svg'}")


def _print_regression(facts: TableRegressionFacts) -> None:
    from harken.experiments.cluster.table_pcr import regression_verdict

    click.echo("")
    rows = [[format_number(row[name], 4) for name in CANDIDATE_COLUMNS] for row in facts["candidates"][:MAX_ROWS]]
    table(["components", "R^2", "explained variance"], rows)
    click.echo("")
    coefficients = [*facts["coefficients"].items()][:MAX_ROWS]
    table(["column", "coefficient"], [[name, format_number(value, 4)] for name, value in coefficients])
    click.echo(f"\n  {regression_verdict(facts)} Intercept {format_number(facts['intercept'], 4)}.")


def _regress(what: str, texts: str | None, json_: bool, options: dict[str, Any]) -> None:
    """Principal component regression, optionally next to a fine-tuned model."""
    column = options["regress"]
    if texts is None:
        where = f", before --regress: harken cluster {what} {column} --regress" if Path(column).is_file() else ""
        example = where or ": harken cluster RUN my.csv --regress"
        raise click.UsageError(f"--regress needs a run and a table with labels{example}")
    from harken.experiments.cluster.pcr import principal_component_regression

    unused = ("column", "columns", "components", "decimal", "split", "scale", "k", "restarts", "start")
    reject_options("with --regress and a run", *unused)
    pcr_options = {
        name: options[name]
        for name in ("pool", "layer", "overflow", "raw", "seed", "out", "regress", "finetune_minutes")
    }
    with ConsoleListener(to_stderr=json_) as listener:
        facts = principal_component_regression(what, texts, listen=listener, **pcr_options)
    if json_:
        return print_json(facts)
    names = [name for name in ("components", "regression", "finetuned") if any(name in row for row in facts["rows"])]
    rows = [[f"{row['labels']:,}", *(format_number(row.get(name), 4) for name in names)] for row in facts["rows"]]
    table(["labels", *names], rows)
    click.echo(f"\n  {facts['verdict']}")
    click.echo(f"  plot    {facts['out']}/regression.svg")
