"""Say in words what a picture shows. Loss in nats per token; judged by what is written."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.data.captions.batch import CaptionBatch, CaptionBatches, scoring
from harken.decode.beam import Finder, Search
from harken.models import EncoderDecoder
from harken.settings import Part

from .breakdown import by_column
from .image import THUMB, thumbs
from .metrics import generation
from .translate import AT_ONCE, MEASURES, Translate, unwritten

if TYPE_CHECKING:
    from harken.data.captions.source import CaptionData, Captioned

LEARNED = 20_000  # pictures that are compared with, at most


class Task(Part):
    """The settings of captions."""

    grammar: ClassVar[str] = "none"
    packed: ClassVar[bool] = False

    kind: Literal["caption"] = "caption"
    metric: Literal["bleu", "exact_match", "rouge_l"] = Field(
        "rouge_l", description="which metric picks the weights that are kept; BLEU is 0 where captions have three words"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="share of each target spread over all words in training; losses told are without"
    )
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = Field(
        "13a", description="how sacreBLEU splits texts into words"
    )
    beam: int = Field(4, ge=1, le=64, description="texts followed at a time in the last judgement; looks are greedy")
    max_new_tokens: int = Field(60, ge=1, description="most tokens of a caption that is written, its end counted")
    eval_pairs: int = Field(2000, ge=0, description="write about at most this many pictures of a split; 0: all")

    def bind(self, data: "CaptionData", model: Any, *, batch: int, seed: int) -> "Caption":
        return Caption(self, data, batch=batch, seed=seed)


class Caption(Translate):
    """Captions of one set of pictures."""

    task: Task  # type: ignore[assignment]
    data: "CaptionData"  # type: ignore[assignment]
    one_shape = True
    scoring = staticmethod(scoring)  # type: ignore[assignment]

    def __init__(self, task: Task, data: "CaptionData", *, batch: int, seed: int) -> None:
        self.task, self.data, self.cut = task, data, {}
        self.batches = CaptionBatches(data.train, batch, seed=seed)  # type: ignore[assignment]
        self.steps, self.splits, self.tokens = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> CaptionBatch:  # type: ignore[override]
        return self.batches.batch(epoch, step)  # type: ignore[return-value]

    # --- judge --------------------------------------------------------------------------------------------------------

    def answers(self, model: EncoderDecoder, sources: list[Any], how: Search, **rules: Any) -> list[str]:
        """The best caption of each picture."""
        return [found[0][0] if found else "" for found in written(Finder(model), self.data.tokenizers, sources, how)]

    def _parts(self, answers: list[str], pairs: "Captioned", by: str) -> dict[str, dict[str, float]]:  # type: ignore[override]
        """The metric of each group that data.group tells apart."""
        column, groups = self.data.settings.group, pairs.groups[: len(answers)]
        parts: dict[str, dict[str, float]] = {}
        for group in by_column(str(column), groups):
            texts = [answers[n] for n in group.rows], [pairs.references[n] for n in group.rows]
            score = (
                generation.bleu(*texts, tokenize=self.task.bleu_tokenizer).score
                if by == "bleu"
                else MEASURES[by](*texts)
            )
            parts[group.name] = {by: score, "exact_match": generation.exact_match(*texts), "pairs": len(group.rows)}
        return parts

    def baselines(self, split: str) -> dict[str, dict[str, float]]:
        """What costs nothing: the caption that was seen most often, and that of the picture that looks most alike."""
        if not self.data.learned:
            return {}
        pairs, train = self.data.splits[split], self.data.train
        many = min(len(pairs), self.task.eval_pairs or len(pairs))
        seen = (text for texts in train.references for text in texts)
        near = torch.cdist(_small(pairs.pixels[:many]), _small(train.pixels[:LEARNED])).argmin(1).tolist()
        free = {
            "most frequent caption": generation.most_frequent(seen, many),
            "caption of the most alike": [train.references[n][0] for n in near],
        }
        return {name: self.measured(answers, pairs)[0] for name, answers in free.items()}


def _small(pixels: Tensor) -> Tensor:
    return thumbs(pixels, THUMB // 2).float()


def written(
    finder: Finder, tokens: Any, pictures: Any, how: Search, *, first: int = 0
) -> list[list[tuple[str, float]]]:  # N C S S in bytes
    """The best captions of each picture with their scores, best first. Chance tells them apart by their places."""
    found = list[list[tuple[str, float]]]()
    for some in torch.stack(list(pictures)).split(AT_ONCE) if len(pictures) else ():
        rows = some.flatten(1).tolist()
        numbers = range(first + len(found), first + len(found) + len(rows))
        best = finder.search(rows, how, never=unwritten(tokens.target), numbers=numbers)
        found += [[(tokens.decode_target(a.tokens), a.score) for a in each] for each in best]
    return found
