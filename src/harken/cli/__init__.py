"""The command line: harken <verb> <thing> [section.key=value ...]. Commands parse, call the library and print.

A command is imported when it is called, so `harken --help` does not import torch.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from keyword import iskeyword
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from harken.errors import BadInput, HarkenError
from harken.events import to_json_value
from harken.suggestions import did_you_mean

GROUPS: dict[str, dict[str, str]] = {
    "Train": {
        "demo": "train an example model in minutes and show its results",
        "train": "train, evaluate, audit and report a model from data or a recipe; resume a run",
        "compare": "train the same data under several settings and seeds; a table with intervals and a plot",
        "check": "show the detected kind of data, the recipe and the expected cost; train nothing",
        "data": "list the data catalogue, or download one data set",
    },
    "Use": {
        "generate": "continue a text with a language model",
        "chat": "chat with an imported instruct model",
        "translate": "generate the target of each source: translations, summaries, answers, trees",
        "classify": "predict labels with probabilities, or a number, for texts, images, nodes or sets",
        "tag": "tag spans of texts, such as names",
        "ask": "answer questions about a text or a story",
        "fill": "predict the words behind each [MASK] of a text",
        "caption": "generate captions of images",
        "embed": "compute embeddings of texts, or find the nearest words",
        "search": "find the lines of a text file nearest to a query, by embedding",
    },
    "Understand": {
        "eval": "evaluate a run on a split or on other data, next to baselines",
        "score": "compute the log-probability of each word of a text, and its perplexity",
        "audit": "check that a model obeys its mask: no future leak, no effect of padding, packing or batching",
        "cluster": "cluster vectors, or the embeddings of texts; choose k; plot",
    },
    "Share": {
        "import": "import pretrained weights: a model folder, a .gguf file, a catalogue name, org/name@revision",
        "export": "export a run for transformers or ONNX, with a certificate",
    },
    "Runs and costs": {
        "runs": "list run folders: kind, metrics, size, date, cost",
        "cost": "sum the time, energy and CO2e of runs; or recompute the cost table of a lecture",
        "bench": "measure training and decoding speed next to transformers and the machine's limits",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
PRECISION = click.Choice(["float32", "bfloat16", "int8"])


class CommandGroup(click.Group):
    """The commands by name, imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        name += "_" if iskeyword(name) else ""
        command: click.Command = getattr(import_module(f"harken.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"{args[0]!r} is not a command; see harken --help.{did_you_mean(args[0], COMMANDS)}")
        _require_single_process(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, summary in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of stdout is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _require_single_process(verb: str) -> None:
    """Refuse commands that every process of torchrun would repeat."""
    world = os.environ.get("WORLD_SIZE", "1")
    if verb == "train" or "RANK" not in os.environ or world == "1":
        return
    if os.environ["RANK"] != "0":
        sys.exit(0)  # torchrun ends all processes when one fails; rank 0 prints the reason
    raise BadInput(f"{verb}: only train runs under torchrun ({world} processes); run harken {verb} without it")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    subcommand_metavar="VERB [THING] [section.key=value ...]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="harken", prog_name="harken")
@click.pass_context
def harken(ctx: click.Context) -> None:
    """Attention networks, from the equation to the served model.

    \b
    harken demo                        a first result in minutes
    harken train my.txt                train on your own text
    harken generate runs/my "Once"     continue a text
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def json_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The option --json of every command."""
    return click.option("--json", "json_", is_flag=True, help="Print one JSON object on stdout and nothing else.")(verb)


def precision_option(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The option --precision of commands that load weights."""
    text = "Precision of the weights; lower is faster (int8: on a CPU)."
    return click.option("--precision", type=PRECISION, default="float32", show_default=True, help=text)(verb)


def seed_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option --seed of commands that sample; `what` names the reproducible output."""
    numbers, text = click.IntRange(0, 2**63 - 1), f"Random seed; the same seed gives the same {what}"
    return click.option("--seed", type=numbers, default=0, show_default=True, metavar="N", help=text)


SEARCH_OPTIONS: dict[str, tuple[Any, str, str]] = {  # name -> type, metavar, help
    "beam": (click.IntRange(1, 1024), "N", "Beam size; 1 is greedy.  [default: 4 (maths: 1), at least --alternatives]"),
    "alternatives": (click.IntRange(1), "N", "Print the N best outputs with their scores."),
    "length-penalty": (click.FloatRange(0, 10), "X", "Score = sum of ln p / length^X; 0 favors short.  [default: 1]"),
    "prefix": (click.STRING, "TEXT", "Prefix of every output."),
    "no-repeat": (click.IntRange(0), "N", "Never repeat an n-gram of N tokens."),
    "max-new-tokens": (click.IntRange(1), "N", "Maximum tokens of an output.  [default: task.max_new_tokens]"),
    "temperature": (click.FloatRange(0), "X", "Sample instead of beam search; 0.8 is a common value."),
    "top-k": (click.IntRange(1), "N", "Sample from the N most probable tokens."),
    "top-p": (click.FloatRange(0, 1, min_open=True), "X", "Sample from the tokens with total probability X."),
    "seed": (click.INT, "N", "Random seed.  [default: 0]"),
}


def search_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options of commands that search for an output sequence; without names all of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names or tuple(SEARCH_OPTIONS)):
            kind, metavar, text = SEARCH_OPTIONS[name]
            command = click.option(f"--{name}", type=kind, metavar=metavar, help=text)(command)
        return command

    return decorate


def reject_options(why: str, *names: str) -> None:
    """Refuse options and arguments that would have no effect."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            word = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{word} has no effect {why}")


def print_json(values: Mapping[str, Any]) -> None:
    """Print the JSON object of --json. Non-finite numbers become null."""
    click.echo(json.dumps(to_json_value(values), ensure_ascii=False))


def main() -> None:
    """The entry point: an error is one line on stderr and an exit code; HARKEN_DEBUG=1 adds the traceback."""
    try:
        code = harken.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _exit_with(_usage_message(error), 2)
    except (KeyboardInterrupt, click.Abort):
        _exit_with("stopped", 130)
    except HarkenError as error:
        if error.reported:
            sys.exit(error.exit_code)
        _exit_with(str(error), error.exit_code)
    except Exception as error:
        what = str(error).strip().splitlines()
        _exit_with(f"{type(error).__name__}: {what[0] if what else 'unknown'}; set HARKEN_DEBUG=1 for the traceback", 1)


def _usage_message(error: click.ClickException) -> str:
    """Click's message about options and arguments, with the command and its --help."""
    message, ctx = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if ctx is None or ctx.parent is None:
        return message
    near = ""
    if isinstance(error, click.NoSuchOption):
        message = f"no such option {error.option_name}"
        near = did_you_mean(error.option_name, [name for p in ctx.command.params for name in p.opts])
    if not message[:2].isupper():  # keep the name of an argument: PROMPT
        message = message[0].lower() + message[1:]
    return f"{ctx.info_name}: {message}; see harken {ctx.info_name} --help{near and '.' + near}"


def _exit_with(text: str, code: int) -> NoReturn:
    if os.environ.get("HARKEN_DEBUG") == "1":
        traceback.print_exc()
    click.echo("harken: " + " ".join(text.split()), err=True)
    sys.exit(code)
