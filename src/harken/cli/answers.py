"""The answers of a command: an empty text has none, and words that are not in the vocabulary are named."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harken.events import Listener

if TYPE_CHECKING:
    from harken.inference.run import Run

EMPTY = "the text is empty"
MAX_SHOWN = 5  # unknown words in a note
Answer = dict[str, Any]
T = TypeVar("T")
PROBABILITY_HELP = "Answer `unknown` if the probability is below P."
min_probability_option = click.option(
    "--min-probability",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="P",
    show_default=False,
    help=PROBABILITY_HELP,
)


def answer_texts(
    run: "Run",
    batches: Iterable[Sequence[T]],
    predict: Callable[[list[T], int], Iterable[Answer]],
    null: Mapping[str, object],
    listen: Listener,
    *,
    n_texts: int = 1,
) -> Iterator[tuple[T, Answer]]:
    """Each text with its answer; `null` with a reason for an empty text, or a pair with an empty text.

    `predict` answers texts, given the position of the first among all. At the end one notice names the unknown words.
    """
    position, unknown = 0, UnknownWords(run)
    for batch in batches:
        empty = [is_empty(text, n_texts) for text in batch]
        texts = [n for n, skip in enumerate(empty) if not skip]
        answers = iter(predict([batch[n] for n in texts], position + texts[0]) if texts else ())
        for text, skip in zip(batch, empty, strict=True):
            if skip:
                yield text, {**null, "reason": EMPTY}
            else:
                yield text, {**next(answers), **unknown.of(text)}
        position += len(batch)
    unknown.report(listen)


class UnknownWords:
    """Collects the words that are not in the vocabulary of a run."""

    def __init__(self, run: "Run") -> None:
        self.run, self.words = run, dict[str, None]()
        self.n_texts = 0

    def of(self, *texts: object) -> Answer:
        """The part of an answer that names the unknown words of its texts, if there are any."""
        words = self.run.unknown_words(*(text for text in texts if isinstance(text, str)))
        self.add(words)
        return {"unknown_words": words} if words else {}

    def add(self, words: Sequence[str]) -> None:
        """Add the unknown words of an answer."""
        self.words |= dict.fromkeys(words)
        self.n_texts += bool(words)

    def report(self, listen: Listener) -> None:
        """Name the first words in a notice, and count them."""
        if self.words:
            shown = ", ".join([*map(repr, [*self.words][:MAX_SHOWN]), *["..."] * (len(self.words) > MAX_SHOWN)])
            count = f" ({len(self.words):,} in {self.n_texts:,} texts)" if self.n_texts > 1 else ""
            listen("notice", text=f"unknown to this run and read as <unk>: {shown}{count}")


def is_empty(text: object, n_texts: int = 1) -> bool:
    """Whether an input has no text; inputs that are no texts, such as arrays, are not empty."""
    from harken.data.labelled.examples import has_input

    return isinstance(text, str) and not has_input(text.split("\t") if n_texts > 1 else [text])


def one_line(text: str) -> str:
    """A text on one line."""
    return " ".join(text.split())


def null_line(answer: Answer) -> str:
    """An answer that is missing, as text."""
    return f"null  ({answer['reason']})"


def parallel_lists(answers: Sequence[Answer], *keys: str) -> dict[str, list[object]]:
    """For JSON: each key with the list of its values, and the notes on the answers if there are any."""
    notes = {"reasons": "reason", "unknown_words": "unknown_words"}
    present = {name: key for name, key in notes.items() if any(key in answer for answer in answers)}
    return {
        name: [a.get(key) for a in answers] for name, key in {**dict(zip(keys, keys, strict=True)), **present}.items()
    }
