"""harken bench [train|decode]"""

from itertools import groupby
from typing import Any

import click

from harken.console import ConsoleListener, table
from harken.experiments.report.formatting import format_number, format_quantity

from . import PRECISION, json_option, print_json

SIZE_HELP = "Size of GPT-2 (model.size), or char: the shape of the recipe char.  [default: 124m; train on a CPU: char]"
PRECISION_HELP = "Precision; may be repeated (int8: only decode, on a CPU)."


@click.command()
@click.argument("name", required=False, type=click.Choice(["train", "decode"]), metavar="[train|decode]")
@click.option("--size", metavar="SIZE", help=SIZE_HELP)
@click.option("--batch", type=click.IntRange(1), metavar="N", help="Batch size.  [default: decode: 1 and 8]")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Context length.  [default: the context of SIZE]")
@click.option("--tokens", type=click.IntRange(1), metavar="N", help="Tokens per row in one round.")
@click.option("--rounds", type=click.IntRange(1), metavar="N", help="Number of rounds.  [default: 5]")
@click.option("--quick", is_flag=True, help="A small model and few rounds: less than a minute on two cores.")
@click.option("--precision", "precisions", type=PRECISION, multiple=True, help=PRECISION_HELP)
@click.option("--compile/--plain", "compiled", default=None, help="Use torch.compile or not.  [default: only on a GPU]")
@json_option
def bench(name: str | None, precisions: tuple[str, ...], json_: bool, **settings: object) -> None:
    """Measure tokens per second of training and decoding, next to other implementations and the limit of the machine.

    The others are transformers, CTranslate2 (decode) and a plain PyTorch loop (train). All implementations run in every
    round; the table shows medians and the ratio to the fastest of the others in the same precision. Weights and tokens
    are random.
    """
    if name == "train" and "int8" in precisions:
        raise click.UsageError("--precision int8 cannot train; use float32 or bfloat16, or harken bench decode")
    from harken.experiments.bench.benchmark import bench as bench_

    options: dict[str, Any] = settings
    with ConsoleListener(to_stderr=json_) as listener:
        report = bench_(name, precisions=precisions or None, listen=listener, **options)
    if json_:
        return print_json(report)
    machine = report["machine"]
    click.echo(f"\n{machine['gpu'] or machine['cpu']}, threads {machine['threads']}, torch {machine['torch']}")
    for _, group in groupby(report["rows"], key=lambda row: (row["bench"], row["batch"])):
        rows = list(group)
        what = "{bench}: GPT-2 {size}, {vocab:,} tokens, batch {batch}, context {context}, rounds {rounds}"
        click.echo("\n" + what.format(**rows[0]))
        cells = [_table_cells(row) for row in rows]
        heads = [head for head in cells[0] if any(row[head] for row in cells)]
        table(heads, [[row[head] for head in heads] for row in cells])


def _table_cells(row: dict[str, Any]) -> dict[str, str]:
    """The cells of one table row; unknown values are empty."""
    giga, memory, same = format_number(row["ceiling"] / 1e9), row["memory_mib"], row.get("same_tokens")
    top = f"{format_quantity(row['ceiling'], 'flop')}/s" if row["ceiling_unit"] == "FLOP/s" else f"{giga} GB/s"
    return {
        "": row["name"],
        "precision": row["precision"] + ", compiled" * row["compiled"],
        "optimizer": row.get("optimizer", ""),
        "tokens/s": format_number(row["tokens_per_second"]),
        "min - max": " - ".join(map(format_number, row["spread"])),
        "ratio": "" if row["ratio"] is None else f"{row['ratio']:.2f} of {row['peer']}",
        "of the limit": f"{row['utilization']:.0%} of {top}",
        "memory": "" if memory is None else f"{memory:,.0f} MiB",
        "equal tokens": "" if same is None else f"{same:.0%}",
        "logit difference": format_number(row.get("logit_difference"), 2),
    }
