"""Image captioning. Loss in nats per token; metrics of the generated captions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.data.captions.batch import CaptionBatch, CaptionBatches, eval_batches
from harken.data.tokenizers.pairs import PairTokenizers
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import banned_token_ids
from harken.models import EncoderDecoder, ModelSettings

from . import Metrics, TaskSettings
from .breakdown import group_by_column
from .image import THUMBNAIL_SIZE, thumbnails
from .metrics import generation
from .translate import EVAL_BATCH, TranslateTask

if TYPE_CHECKING:
    from harken.data.captions.source import CaptionData, CaptionSplit

MAX_BASELINE_IMAGES = 20_000  # training images among which the nearest one is searched


class CaptionTaskSettings(TaskSettings):
    """Settings of image captioning."""

    grammar: ClassVar[str] = "none"
    packed: ClassVar[bool] = False

    kind: Literal["caption"] = "caption"
    metric: Literal["bleu", "exact_match", "rouge_l"] = Field(
        "rouge_l", description="metric that selects the best weights; BLEU is 0 for captions of three words"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = Field("13a", description="tokenizer of sacreBLEU")
    beam: int = Field(4, ge=1, le=64, description="beam size of the final evaluation; quick evaluations are greedy")
    max_new_tokens: int = Field(60, ge=1, description="maximum tokens of a caption including its end")
    eval_pairs: int = Field(2000, ge=0, description="maximum number of images of a split to caption; 0: all")

    def bind(self, data: "CaptionData", model: ModelSettings, *, batch: int, seed: int) -> "CaptionTask":
        return CaptionTask(self, data, batch=batch, seed=seed)


class CaptionTask(TranslateTask):
    """Captions of one set of images."""

    settings: CaptionTaskSettings  # type: ignore[assignment]
    data: "CaptionData"
    fixed_shapes = True
    eval_batches = staticmethod(eval_batches)  # type: ignore[assignment]

    def __init__(self, settings: CaptionTaskSettings, data: "CaptionData", *, batch: int, seed: int) -> None:
        self.settings, self.data, self.truncated = settings, data, {}
        self.batches = CaptionBatches(data.train, batch, seed=seed)  # type: ignore[assignment]
        self.steps, self.splits, self.tokens_per_batch = self.batches.steps, tuple(data.splits), self.batches.tokens

    def batch(self, epoch: int, step: int) -> CaptionBatch:  # type: ignore[override]
        return self.batches.batch(epoch, step)  # type: ignore[return-value]

    def generate(
        self, model: EncoderDecoder, sources: Sequence[Any], search: SearchSettings, **constraints: Any
    ) -> list[str]:
        """The best caption of each image."""
        captions = generate_captions(BeamSearch(model), self.data.tokenizers, sources, search)
        return [best[0][0] if best else "" for best in captions]

    def _group_metrics(self, texts: list[str], pairs: "CaptionSplit", metric: str) -> dict[str, Metrics]:  # type: ignore[override]
        """The metric of each group of data.group."""
        parts: dict[str, Metrics] = {}
        for group in group_by_column(str(self.data.settings.group), pairs.groups[: len(texts)]):
            captions, references = [texts[n] for n in group.rows], [pairs.references[n] for n in group.rows]
            exact_match = generation.exact_match(captions, references)
            score = self.text_metric(metric, captions, references)
            parts[group.name] = {metric: score, "exact_match": exact_match, "pairs": len(group.rows)}
        return parts

    def baselines(self, split: str) -> dict[str, Metrics]:
        """The most frequent caption of the training data, and the caption of the nearest training image."""
        if not self.data.has_train:
            return {}
        pairs, train = self.data.splits[split], self.data.train
        count = min(len(pairs), self.settings.eval_pairs or len(pairs))
        all_captions = (text for texts in train.references for text in texts)
        distances = torch.cdist(_small(pairs.pixels[:count]), _small(train.pixels[:MAX_BASELINE_IMAGES]))
        baselines = {
            "most frequent caption": generation.most_frequent(all_captions, count),
            "caption of the nearest image": [train.references[n][0] for n in distances.argmin(1).tolist()],
        }
        return {name: self.text_metrics(texts, pairs)[0] for name, texts in baselines.items()}


def _small(pixels: Tensor) -> Tensor:
    return thumbnails(pixels, THUMBNAIL_SIZE // 2).float()


def generate_captions(
    beam_search: BeamSearch,
    tokenizers: PairTokenizers,
    images: Sequence[Tensor],
    search: SearchSettings,
    *,
    first: int = 0,
) -> list[list[tuple[str, float]]]:  # N C S S, uint8
    """The best captions of each image with their scores, best first; `first` numbers the random streams."""
    captions, banned_ids = list[list[tuple[str, float]]](), banned_token_ids(tokenizers.target)
    for batch in torch.stack(list(images)).split(EVAL_BATCH) if len(images) else ():
        sources, start = batch.flatten(1).tolist(), first + len(captions)
        indices = range(start, start + len(sources))
        hypotheses = beam_search.search(sources, search, banned_ids=banned_ids, indices=indices)
        captions += [[(tokenizers.decode_target(h.tokens), h.score) for h in best] for best in hypotheses]
    return captions
