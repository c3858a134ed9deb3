"""The command line: harken <verb> <thing> [section.key=value ...]. Commands parse, call the library and print.

A command is imported when it is called, so `harken --help` does not import torch.
"""

import json
import os
import re
import signal
import sys
import tomllib
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

from harken.errors import BadInput, HarkenError
from harken.events import to_json_value
from harken.suggestions import did_you_mean

if TYPE_CHECKING:
    from harken.inference.run import Run

COMMANDS_FILE = files("harken.cli").joinpath("commands.toml")
GROUPS: dict[str, dict[str, str]] = tomllib.loads(COMMANDS_FILE.read_text("utf-8"))  # group -> command -> summary
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}
SET_ENCODING = re.compile(r"set data\.encoding=\S+, or ")  # advice that only helps a command with settings
PRECISION = click.Choice(["float32", "bfloat16", "int8"])
Command = TypeVar("Command", bound=Callable[..., object])


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

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of stdout is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except BadInput as error:
            command, text = self.get_command(ctx, ctx.invoked_subcommand or ""), str(error)
            if command is None or _takes_settings(command) or not SET_ENCODING.search(text):
                raise
            raise BadInput(SET_ENCODING.sub("", text)) from error


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
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120, "show_default": True},
)
@click.version_option(package_name="harken", prog_name="harken")
@click.pass_context
def harken(ctx: click.Context) -> None:
    """Train, evaluate and use attention networks.

    \b
    harken demo                        a first result in minutes
    harken train my.txt                train on your own text
    harken generate runs/my "Once"     continue a text
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


json_option = click.option("--json", "json_", is_flag=True, help="Print one JSON object on stdout and nothing else.")
OVERFLOW_HELP = "A text that is too long: truncate it, or average over overlapping windows."
overflow_option = click.option(
    "--overflow", type=click.Choice(["truncate", "windows"]), default="truncate", help=OVERFLOW_HELP
)
PRECISION_HELP = "Precision of the weights; a lower one is faster (int8: only on a CPU)."
precision_option = click.option("--precision", type=PRECISION, default="float32", help=PRECISION_HELP)


def seed_option(what: str) -> Callable[[Command], Command]:
    """The option --seed of commands that sample; `what` names the reproducible output."""
    text = f"Random seed; the same seed gives the same {what}"
    return click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, metavar="N", help=text)


SEARCH_OPTIONS: dict[str, tuple["click.ParamType[Any]", str, str]] = {  # name -> type, metavar, help
    "beam": (click.IntRange(1, 1024), "N", "Beam size; 1 is greedy.  [default: 4 (maths: 1), at least --alternatives]"),
    "alternatives": (click.IntRange(1), "N", "Print the N best outputs with their scores."),
    "length-penalty": (click.FloatRange(0, 10), "X", "Score = (sum of ln p) / length^X; 0 favors short.  [default: 1]"),
    "prefix": (click.STRING, "TEXT", "Text that every output starts with."),
    "no-repeat": (click.IntRange(0), "N", "Never repeat an n-gram of N tokens."),
    "max-new-tokens": (click.IntRange(1), "N", "Maximum tokens of an output.  [default: task.max_new_tokens]"),
    "temperature": (click.FloatRange(0), "X", "Sample instead of beam search; 0.8 is a common value."),
    "top-k": (click.IntRange(1), "N", "Sample from the N most probable tokens."),
    "top-p": (click.FloatRange(0, 1, min_open=True), "X", "Sample from the smallest set of tokens with probability X."),
    "seed": (click.INT, "N", "Random seed.  [default: 0]"),
}


def search_options(*names: str) -> Callable[[Command], Command]:
    """The options of commands that search for an output sequence; without names all of them."""

    def decorate(command: Command) -> Command:
        for name in reversed(names or tuple(SEARCH_OPTIONS)):
            kind, metavar, text = SEARCH_OPTIONS[name]
            command = click.option(f"--{name}", type=kind, metavar=metavar, help=text)(command)
        return command

    return decorate


def load_run(path: str, verb: str, precision: str = "float32") -> "Run":
    """Load a run that supports a verb. This imports torch."""
    from harken.inference.run import load

    run = load(path, precision=precision)
    run.require(verb)
    return run


def reject_options(why: str, *names: str) -> None:
    """Refuse options and arguments that would have no effect."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            word = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{word} has no effect {why}")


def print_json(values: Mapping[str, object]) -> None:
    """Print the JSON object of --json, with the notices if there are any. Non-finite numbers become null."""
    from harken.console import LISTENER

    if listener := click.get_current_context().meta.get(LISTENER):
        listener.report_overflows()
        values = {**values, **({"notices": listener.notices} if listener.notices else {})}
    click.echo(json.dumps(to_json_value(values), ensure_ascii=False))


def main() -> None:
    """The entry point: an error is one line on stderr and an exit code; HARKEN_DEBUG=1 adds the traceback.

    SIGTERM deletes unfinished output files, as Ctrl-C does; a training writes a checkpoint first.
    """
    signal.signal(signal.SIGTERM, _terminate)
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


def _terminate(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)


def _usage_message(error: click.ClickException) -> str:
    """Click's message about options and arguments, with the command and its --help."""
    message, ctx = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if ctx is None or ctx.parent is None:
        return message
    near = ""
    if isinstance(error, click.NoSuchOption):
        message = f"no such option {error.option_name}"
        near = _similar_setting(ctx, error.option_name) or did_you_mean(
            error.option_name, [name for p in ctx.command.params for name in p.opts]
        )
    if not message[:2].isupper():  # keep the name of an argument: PROMPT
        message = message[0].lower() + message[1:]
    return f"{ctx.info_name}: {message}; see harken {ctx.info_name} --help{near and '.' + near}"


def _takes_settings(command: click.Command) -> bool:
    return any("section.key" in (parameter.metavar or "") for parameter in command.params)


def _similar_setting(ctx: click.Context, option: str) -> str:
    """A hint to the setting of this name, for a command that takes settings: --steps is train.steps=N."""
    if not _takes_settings(ctx.command):
        return ""
    from harken.registry import similar_setting

    name = option.lstrip("-").replace("-", "_")
    path = similar_setting(name)
    return f" Did you mean {path}=N?" if path.endswith(f".{name}") else ""


def _exit_with(text: str, code: int) -> NoReturn:
    if os.environ.get("HARKEN_DEBUG") == "1":
        traceback.print_exc()
    click.echo("harken: " + " ".join(text.split()), err=True)
    sys.exit(code)
