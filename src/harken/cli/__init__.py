"""The command line: harken <verb> <thing> [section.key=value ...]. It parses, calls and prints; nothing else prints.

Verbs are imported when they are called, so that `harken --help` never waits for torch.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from keyword import iskeyword
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from harken.errors import BadInput, HarkenError, did_you_mean
from harken.events import plain

VERBS = {
    "ask": "the answer to a question that stands in a text (a run of spans), or about a story, with its hops",
    "audit": "prove that a model obeys its mask: no future leak, nothing from padding, packing, memory or batch",
    "bench": "speed of training and of writing beside transformers, with the machine's measured ceiling",
    "caption": "what pictures show, in words, by a run of captions",
    "chat": "talk with an instruct model that was imported",
    "check": "what is this data, which recipe would be used, what would it cost; trains nothing",
    "classify": "what texts are, by a run of labels: each label's probability, or a number",
    "cluster": "sort vectors, or a run's vectors of texts, into clusters; how many, what they are about, a picture",
    "compare": "the same data under several settings and seeds: quality with intervals, time, cost, and a picture",
    "cost": "what runs cost together: time, energy, CO2e; or the lecture's cost table computed again",
    "data": "list the data catalogue, or fetch one set into the cache",
    "demo": "a first success in minutes: learn from real data, judge, show, report",
    "embed": "vectors of texts, normalised; or the words nearest to a word",
    "eval": "a run's metric on a split or on other data, beside the free baseline",
    "export": "a run in the layout of others: a folder that transformers loads, with a certificate",
    "fill": "the likeliest words for each [MASK] of a text, by a BERT",
    "generate": "text from a language model, streamed",
    "import": "other people's weights as a run: a model folder, a .gguf file, a catalogue name, org/name@revision",
    "runs": "the run folders here: kind, metric, size, date, cost",
    "score": "log-probability of each word of a text, and its perplexity",
    "search": "the lines of a text file that are nearest to a query, by their vectors",
    "tag": "the tagged spans of texts, such as names, by a run of tags",
    "train": "from data or a recipe to a trained, judged, reported run; resumes bit for bit",
    "translate": "a target for each source, by a run of pairs: translations, summaries, answers, trees",
}
PRECISION = click.Choice(["float32", "bfloat16", "int8"])


class Verbs(click.Group):
    """The verbs, by name, without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        name += "_" if iskeyword(name) else ""
        command: click.Command = getattr(import_module(f"harken.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            raise click.UsageError(f"{args[0]!r} is not a verb; see harken --help.{did_you_mean(args[0], VERBS)}")
        _once(args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # whoever read us has left: nothing to say
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0


def _once(verb: str) -> None:
    """Refuse what every process that torchrun has started would do again."""
    world = os.environ.get("WORLD_SIZE", "1")
    if verb == "train" or "RANK" not in os.environ or world == "1":
        return
    if os.environ["RANK"] != "0":
        sys.exit(0)  # torchrun ends all when one fails, and the first has to say why
    raise BadInput(f"{verb}: {world} processes would each do it; only train runs under torchrun; call harken {verb}")


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    subcommand_metavar="VERB [THING] [section.key=value ...]",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="harken", prog_name="harken")
@click.pass_context
def harken(ctx: click.Context) -> None:
    """Attention networks, from the equation to the served model.

    \b
    harken demo                        a first success in minutes
    harken train my.txt                learn from your own text
    harken generate runs/my "Once"     and let it write
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def as_json(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The option every verb has."""
    return click.option("--json", "json_", is_flag=True, help="One JSON object on stdout, nothing else there.")(verb)


def as_precision(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The option of verbs that use a run's weights."""
    text = "Lighter weights write faster (int8: on a CPU)."
    return click.option("--precision", type=PRECISION, default="float32", show_default=True, help=text)(verb)


def as_seed(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of verbs that draw; `what` says what the same seed gives again."""
    numbers, text = click.IntRange(0, 2**63 - 1), f"Same seed, same {what}"
    return click.option("--seed", type=numbers, default=0, show_default=True, metavar="N", help=text)


def refuse(why: str, *names: str) -> None:
    """Refuse the options and arguments that were given and would be passed over in silence."""
    ctx = click.get_current_context()
    for param in ctx.command.params:
        if param.name in names and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            word = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{why}, {word} means nothing")


def show(result: dict[str, Any]) -> None:
    """The one JSON object of --json. Numbers that JSON does not have are null."""
    click.echo(json.dumps(plain(result), ensure_ascii=False))


def main() -> None:
    """The entry point: an error is one line on stderr and an exit code; HARKEN_DEBUG=1 puts its traceback before."""
    try:
        code = harken.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        _end(_usage(error), 2)
    except (KeyboardInterrupt, click.Abort):
        _end("stopped", 130)
    except HarkenError as error:
        if error.told:
            sys.exit(error.exit_code)
        _end(str(error), error.exit_code)
    except Exception as error:
        what = str(error).strip().splitlines()
        _end(f"{type(error).__name__}: {what[0] if what else 'unknown'}; HARKEN_DEBUG=1 shows where", 1)


def _usage(error: click.ClickException) -> str:
    """What click says about options and arguments, with the verb it concerns and where its help is."""
    said, ctx = error.format_message().rstrip("."), getattr(error, "ctx", None)
    if ctx is None or ctx.parent is None:
        return said
    near = ""
    if isinstance(error, click.NoSuchOption):
        said = f"no such option {error.option_name}"
        near = did_you_mean(error.option_name, [name for p in ctx.command.params for name in p.opts])
    return f"{ctx.info_name}: {said[0].lower()}{said[1:]}; see harken {ctx.info_name} --help{near and '.' + near}"


def _end(text: str, code: int) -> NoReturn:
    if os.environ.get("HARKEN_DEBUG") == "1":
        traceback.print_exc()
    click.echo("harken: " + " ".join(text.split()), err=True)
    sys.exit(code)
