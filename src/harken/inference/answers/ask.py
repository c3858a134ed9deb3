"""Answers to questions about a text, by a run that was trained on spans."""

from typing import TYPE_CHECKING, Any

from harken.data.labelled.spans import asked
from harken.data.labelled.squad import Question
from harken.errors import BadInput
from harken.tasks.span import answered

if TYPE_CHECKING:
    from harken.inference.run import Run


def ask_text(run: "Run", question: str, context: str) -> dict[str, Any]:
    """The answer, its probability, and where it stands. It may be empty if the run learned that there may be none."""
    for name, text in (("question", question), ("context", context)):
        if not text.strip():
            raise BadInput(f"{name}={text!r}: is empty; give a {name}")
    how, unanswerable = run.recipe.data, run.facts.get("data", {}).get("unanswerable", {})
    part = asked([Question("", question, context, None, ())], run.tokenizer, how.max_length, how.overlap)
    (best,), _ = answered(run.model, part, run.recipe.task.max_answer_length, none=bool(unanswerable.get("train")))
    return {"answer": best.text, "score": best.score, "start": best.start, "end": best.end}
