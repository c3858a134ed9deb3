"""harken ask RUN CONTEXT_FILE [QUESTION...]"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, columns, decode_argument
from harken.data.detect.preview import read_utf8
from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import similar_path

from . import json_option, load_run, precision_option, print_json

if TYPE_CHECKING:
    from harken.inference.run import Run


@click.command()
@click.argument("run")
@click.argument("context_file")
@click.argument("questions", nargs=-1, metavar="[QUESTION...]")
@precision_option
@json_option
def ask(run: str, context_file: str, questions: tuple[str, ...], precision: str, json_: bool) -> None:
    """Answer each QUESTION about the text of CONTEXT_FILE (- for stdin); print the position of the answer in the text.

    A run on stories reads the file line by line and shows the attention of each hop; without a QUESTION it answers the
    questions in the file.
    """
    context = _text(context_file)
    model = load_run(run, "ask", precision)
    if not (is_story := model.recipe.task.kind == "answer") and not questions:
        raise click.UsageError('give a question about the text, as in: harken ask RUN my.txt "Who had a rope?"')
    with ConsoleListener(to_stderr=True) as listener:
        if is_story:
            answers: list[Mapping[str, Any]] = list(_story_answers(model, context_file, context, questions, listener))
        else:
            answers = [model.ask(decode_argument(question), context, listen=listener) for question in questions]
    if json_:
        return print_json(answers[0] if len(answers) == 1 else {"answers": answers})
    for n, best in enumerate(answers):
        if is_story:
            click.echo("\n" * (n > 0) + "\n".join(_hops(best)))
            continue
        place = f"characters {best['start']}-{best['end']}" if best["answer"] else "not in the text"
        click.echo(f"{best['answer'] or '(no answer)'}   ({best['score']:.3f}, {place})")


def _story_answers(
    model: "Run", file: str, context: str, questions: Sequence[str], listen: Listener
) -> Iterator[Mapping[str, Any]]:
    """Answers to the given questions about a story, or to the questions in its file."""
    if not context.strip():
        raise BadInput(f"{file}: the file has no story line; add one, such as: Joe went home.")
    if questions:
        yield from (model.ask(decode_argument(question), context, listen=listen) for question in questions)
        return
    from harken.data.stories.babi import parse_questions

    story_questions = parse_questions(Path(file), enumerate(context.splitlines(), 1), lambda *flaw: None)
    if not story_questions:
        raise BadInput(f'{file}: the file has no question; give one, as in: harken ask RUN {file} "Where is Joe?"')
    for question in story_questions:
        known = {"correct_answer": question.answer} if question.answer else {}
        yield {**model.story(question.lines, listen=listen).ask(question.question), **known}


def _hops(best: Mapping[str, Any]) -> Iterator[str]:
    """Each line of the story with its attention weight in every hop, then the question and its answer."""
    hops = [[f"{weight:.2f}" for weight in hop] for hop in best["hops"]]
    rows = [[str(n), *row, line] for n, (line, *row) in enumerate(zip(best["lines"], *hops, strict=True), 1)]
    heads = ["", *(f"hop {n}" for n in range(1, len(hops) + 1)), ""]
    yield from columns([heads, *rows] if hops else rows) if rows else []
    correct = f", correct is {best['correct_answer']}" if "correct_answer" in best else ""
    unknown = f", unknown words: {', '.join(best['unknown'])}" if best["unknown"] else ""
    yield f"{best['question']}   {best['answer']}   ({best['score']:.3f}{correct}{unknown})"


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    if not Path(name).is_file():
        raise BadInput(f"{name}: no such file; give the text that contains the answer{similar_path(name)}")
    return read_utf8(Path(name))
