"""Extract answers from a text, with a run trained on answer spans."""

from typing import cast

from harken.data.labelled.spans import encode_questions
from harken.data.labelled.squad import SquadQuestion
from harken.errors import BadInput
from harken.inference.loaded_model import LoadedModel
from harken.models.heads import ModelWithHead
from harken.tasks.span import predict_answers

from . import SpanAnswer


def answer_question(run: LoadedModel, question: str, context: str) -> SpanAnswer:
    """The best span, its probability and its offsets; it may be empty if the training data had such questions."""
    for name, text in (("question", question), ("context", context)):
        if not text.strip():
            raise BadInput(f"{name}={text!r}: is empty; give a {name}")
    source, unanswerable = run.recipe.data, run.facts.get("data", {}).get("unanswerable", {})
    windows = encode_questions(
        [SquadQuestion("", question, context, None, ())], run.tokenizer, source.max_length, source.overlap
    )
    allow_no_answer, max_length = bool(unanswerable.get("train")), run.recipe.task.max_answer_length
    model = cast(ModelWithHead, run.model)
    (best,), _ = predict_answers(model, windows, max_length, allow_no_answer=allow_no_answer)
    return {"answer": best.text, "score": best.score, "start": best.start, "end": best.end}
