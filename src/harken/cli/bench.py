"""harken bench [train|decode]"""

from itertools import groupby
from typing import Any

import click

from harken.console import Teller, table
from harken.experiments.report.line_chart import duration, figure, scaled

from . import PRECISION, as_json, show


@click.command()
@click.argument("name", required=False, type=click.Choice(["train", "decode"]), metavar="[train|decode]")
@click.option("--size", metavar="SIZE", help="A GPT-2 of this model.size. Default: 124m on a GPU, small on a CPU.")
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Rows at a time.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Longest sequence. Default: the size's own.")
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Tokens of each row in one turn.")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Turns that each one takes. Default: 5.")
@click.option("--precision", "precisions", type=PRECISION, multiple=True, help="One or more (int8: decode on a CPU).")
@click.option("--compile/--plain", "compiled", default=None, help="Compile the models or not. Default: on a GPU.")
@as_json
def bench(name: str | None, precisions: tuple[str, ...], json_: bool, **options: Any) -> None:
    """Tokens per second of training and of writing, beside transformers and below what the machine can do.

    All take a turn in every round, and medians are shown. Weights and tokens are random; the vocabulary is GPT-2's.
    """
    if name == "train" and "int8" in precisions:
        raise click.UsageError("--precision int8 can only write; take float32 or bfloat16, or harken bench decode")
    from harken.experiments.bench.benchmark import bench as bench_

    with Contest(aside=json_) as teller:
        found = bench_(name, precisions=precisions or None, listen=teller, **options)
    if json_:
        show(found)
        return
    here = found["machine"]
    click.echo(f"\n{here['gpu'] or here['cpu']}, threads {here['threads']}, torch {here['torch']}")
    for _, group in groupby(found["rows"], key=lambda row: row["bench"]):
        rows = list(group)
        what = "{bench}: GPT-2 {size}, {vocab:,} tokens, batch {batch}, context {context}, rounds {rounds}"
        click.echo("\n" + what.format(**rows[0]))
        cells = [_cells(row) for row in rows]
        told = [head for head in cells[0] if any(row[head] for row in cells)]
        table(told, [[row[head] for head in told] for row in cells])


def _cells(row: dict[str, Any]) -> dict[str, str]:
    """A row for people; what is not known is empty."""
    giga, memory, same = figure(row["ceiling"] / 1e9), row["memory_mib"], row.get("same_tokens")
    top = f"{scaled(row['ceiling'], 'flop')}/s" if row["ceiling_unit"] == "FLOP/s" else f"{giga} GB/s"
    return {
        "": row["name"],
        "numbers": row["precision"] + ", compiled" * row["compiled"],
        "tokens/s": figure(row["tokens_per_second"]),
        "from - to": " - ".join(map(figure, row["spread"])),
        "ratio": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "of the ceiling": f"{row['share']:.0%} of {top}",
        "memory": "" if memory is None else f"{memory:,.0f} MiB",
        "same text": "" if same is None else f"{same:.0%}",
        "scores off by": figure(row.get("logit_difference"), 2),
    }


class Contest(Teller):
    """Tells who is ready, and after how long."""

    def _settled(self, who: str, seconds: float) -> None:
        self.line(f"  {who}: ready after {duration(seconds)}")
