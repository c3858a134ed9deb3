"""Next-sentence prediction: does the second of two texts follow the first? With a BERT that was trained to answer this.

The input is [CLS] a [SEP] b [SEP], and the output of the NSP head has two logits, of "is next" and of "not next".
"""

from collections.abc import Sequence
from typing import cast

import torch

from harken.errors import BadInput
from harken.events import Listener, Overflow, report_overflow, silent
from harken.inference.loaded_model import LoadedModel
from harken.models.bert import BERT
from harken.tasks.masked_words import MaskedWordsSettings

from . import NEXT_SENTENCE_LABELS, LabelScore
from .classify import TextOrPair, rank_labels, split_texts
from .text_vectors import BATCH_TOKENS, length_batches, pad_rows


@torch.inference_mode()
def classify_next_sentences(
    run: LoadedModel, pairs: Sequence[TextOrPair], listen: Listener = silent
) -> list[list[LabelScore]]:
    """Whether the second text of each pair follows the first, with probabilities.

    A pair that exceeds the context loses the start of the first text and the end of the second, the longer one first.
    """
    model, objective = cast(BERT, run.model), cast(MaskedWordsSettings, run.recipe.task).objective
    if model.nsp_head is None or objective == "mlm":
        fix = "train a BERT with task.objective=both"
        raise BadInput(f"{run.path}: this run has no trained head for next-sentence prediction; {fix}")
    texts = split_texts(pairs, 2, subject="next-sentence prediction reads")
    encoded = [[run.text_tokenizer.encode(text).tolist() for text in pair] for pair in texts]
    context = cast(int, model.context)
    report_overflow(listen, Overflow.of([len(a) + len(b) + 3 for a, b in encoded], context, inputs="pairs"))
    rows, second_starts = (
        zip(*(_join_pair(run, a, b, context) for a, b in encoded), strict=True) if encoded else ((), ())
    )
    scores = torch.empty(len(rows), len(NEXT_SENTENCE_LABELS))
    for batch in length_batches([len(row) for row in rows], BATCH_TOKENS[run.device.type]):
        tokens, lengths = pad_rows([rows[n] for n in batch], run.device)
        starts = torch.tensor([second_starts[n] for n in batch], device=run.device)
        segments = (torch.arange(tokens.shape[1], device=run.device) >= starts[:, None]).long()
        h = model(tokens, segments=segments, lengths=lengths)
        scores[batch] = model.next_sentence_scores(h[:, 0]).float().cpu()
    return rank_labels(NEXT_SENTENCE_LABELS, scores.softmax(-1))


def _join_pair(run: LoadedModel, a: list[int], b: list[int], context: int) -> tuple[list[int], int]:
    """[CLS] a [SEP] b [SEP] of at most `context` tokens, and the start of b."""
    tokenizer, room = run.text_tokenizer, context - 3
    b_length = min(len(b), max(room // 2, room - len(a)))
    a = a[max(0, len(a) - (room - b_length)) :]  # the last tokens are next to b
    row = [tokenizer.cls_id, *a, tokenizer.sep_id, *b[:b_length], tokenizer.sep_id]
    return cast(list[int], row), len(a) + 2
