"""harken ask RUN [CONTEXT_FILE] [QUESTION...]"""

import sys
from collections.abc import Iterator, Sequence
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harken.console import ConsoleListener, columns, decode_argument
from harken.data.detect.preview import read_utf8
from harken.errors import BadInput
from harken.suggestions import similar_path

from . import json_option, load_run, precision_option, print_json, reject_options
from .answers import Answer, UnknownWords, is_empty, min_probability_option, null_line
from .inputs import FILE_OPTIONS, InputRow, Inputs, file_options

if TYPE_CHECKING:
    from harken.inference.run import Run

MIN_WEIGHT = 0.1  # of a story line that is printed
ANSWER_KEYS = ("answer", "score", "start", "end", "reason", "unknown_words", "unasked_words")  # from `reason`: notes
QUESTION_COLUMNS, CONTEXT_COLUMNS = ("question", "text"), ("context", "story")


@click.command()
@click.argument("run")
@click.argument("context_file", required=False)
@click.argument("questions", nargs=-1, metavar="[QUESTION...]")
@min_probability_option
@file_options
@precision_option
@json_option
def ask(
    run: str, context_file: str | None, questions: tuple[str, ...], precision: str, json_: bool, **settings: object
) -> None:
    """Answer each QUESTION about the text of CONTEXT_FILE (- for stdin); print the position of the answer in the text.

    A run on stories reads the file line by line and shows the attention of each hop; without a QUESTION it answers the
    questions in the file. The file of --in has a question in each row, and without CONTEXT_FILE a column `context` or
    `story`.
    """
    options: dict[str, Any] = settings
    min_probability = options["min_probability"]
    if options["in_"] is not None:
        inputs = Inputs.from_options(questions, options)
        context = None if context_file is None else _text(context_file)
        return _answer_file(load_run(run, "ask", precision), inputs, context, min_probability, json_=json_)
    reject_options("without --in", *FILE_OPTIONS)
    if context_file is None:
        raise click.UsageError(
            'give a file with the text and a question, as in: harken ask RUN my.txt "Who had a rope?"'
        )
    context = _text(context_file)
    model = load_run(run, "ask", precision)
    if not (is_story := model.recipe.task.kind == "answer") and not questions:
        raise click.UsageError('give a question about the text, as in: harken ask RUN my.txt "Who had a rope?"')
    with ConsoleListener(to_stderr=True) as listener:
        arguments = {"min_probability": min_probability, "listen": listener}
        if is_story:
            answers = list(_story_answers(model, context_file, context, questions, arguments))
        else:
            answers = [_answer(model, decode_argument(question), context, arguments) for question in questions]
    if json_:
        return print_json(answers[0] if len(answers) == 1 else {"answers": answers})
    for n, (best, question) in enumerate(zip(answers, questions or [""] * len(answers), strict=True)):
        if is_story and best["answer"] is not None:
            click.echo("\n" * (n > 0) + "\n".join(_hops(best)))
        else:
            click.echo(f"{question}   " * (len(answers) > 1) + _span_line(best))


def _answer(model: "Run", question: str, context: str, options: dict[str, Any]) -> Answer:
    """The answer about a text or a story, or none if there is no question."""
    if is_empty(question):
        return {"question": question, "answer": None, "score": None, "reason": "the question is empty"}
    return dict(model.ask(question, context, **options))


def _answer_file(model: "Run", inputs: Inputs, context: str | None, min_probability: float, *, json_: bool) -> None:
    """Answer the question of each row, about one text or about that of the row."""
    inputs.use_encoding(model.recipe.data.file_encoding)
    inputs.batches(1, QUESTION_COLUMNS)
    if context is None and not {*CONTEXT_COLUMNS} & {*inputs.names}:
        known = f"its columns are {', '.join(inputs.names)}"
        raise BadInput(f"{inputs.in_}: no column context or story; {known}; add one, or give a CONTEXT_FILE")
    inputs.rows, rows = tee(inputs.rows)
    unknown = UnknownWords(model)
    with ConsoleListener(to_stderr=True) as listener:
        options = {"min_probability": min_probability, "listen": listener}

        def answer_row(row: InputRow) -> Answer:
            texts = (str(row.columns.get(name) or "") for name in CONTEXT_COLUMNS)
            text = context if context is not None else next((text for text in texts if text), "")
            if is_empty(text) and not is_empty(row.text):
                return {"answer": None, "score": None, "reason": "the context is empty"}
            try:
                best = _answer(model, row.text, text, options)
            except BadInput as error:
                raise BadInput(f"{inputs.in_}:{row.line}: {error}") from None
            unknown.add(best.get("unknown_words", ()))
            return {key: best[key] for key in ANSWER_KEYS if best.get(key, []) != []}

        inputs.write(map(answer_row, rows), ANSWER_KEYS[:4], json_=json_, listen=listener)
        unknown.report(listener)


def _story_answers(
    model: "Run", file: str, context: str, questions: Sequence[str], options: dict[str, Any]
) -> Iterator[Answer]:
    """Answers to the given questions about a story, or to the questions in its file."""
    if not context.strip():
        raise BadInput(f"{file}: the file has no story line; add one, such as: Joe went home.")
    if questions:
        yield from (_answer(model, decode_argument(question), context, options) for question in questions)
        return
    from harken.data.stories.babi import parse_questions

    story_questions = parse_questions(Path(file), enumerate(context.splitlines(), 1), lambda *flaw: None)
    if not story_questions:
        raise BadInput(f'{file}: the file has no question; give one, as in: harken ask RUN {file} "Where is Joe?"')
    for question in story_questions:
        known = {"correct_answer": question.answer} if question.answer else {}
        story = model.story(question.lines, listen=options["listen"])
        yield {**story.ask(question.question, min_probability=options["min_probability"]), **known}


def _hops(best: Answer) -> Iterator[str]:
    """The lines of the story with their attention weights in every hop, as far as they matter, and the answer."""
    rows = [
        [*map("{:.2f}".format, row), line]
        for line, *row in zip(best["lines"], *best["hops"], strict=True)
        if row and max(row) >= MIN_WEIGHT
    ]
    heads = [*(f"hop {n}" for n in range(1, len(best["hops"]) + 1)), ""]
    yield from columns([heads, *rows]) if rows else []
    if best["hops"] and (n_left_out := len(best["lines"]) - len(rows)):
        lines = f"{n_left_out} line{'s' * (n_left_out > 1)}"
        yield f"(left out: {lines} with weights below {MIN_WEIGHT}; --json has all)"
    correct = f", correct is {best['correct_answer']}" if "correct_answer" in best else ""
    words = {"unknown words": best["unknown_words"], "in no training question": best["unasked_words"]}
    notes = "".join(f", {name}: {', '.join(some)}" for name, some in words.items() if some)
    yield f"{best['question']}   {best['answer']}   ({best['score']:.3f}{correct}{notes})"


def _span_line(best: Answer) -> str:
    """An answer with its position in the text."""
    if best["answer"] is None:
        return null_line(best)
    place = f"characters {best['start']}-{best['end']}" if best["end"] else "not in the text"
    return f"{best['answer'] or '(no answer)'}   ({best['score']:.3f}, {place})"


def _text(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    if not Path(name).is_file():
        raise BadInput(f"{name}: no such file; give the text that contains the answer{similar_path(name)}")
    return read_utf8(Path(name))
