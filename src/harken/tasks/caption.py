"""Image captioning. Loss in nats per token; metrics of the generated captions."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.data.captions.source import CaptionBatch, CaptionBatches, CaptionData, CaptionSplit, eval_batches
from harken.data.tokenizers.pairs import PairTokenizers
from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.grammar import banned_token_ids
from harken.models import EncoderDecoder, ModelSettings

from . import Baseline, Metrics, TaskSettings
from .image import THUMBNAIL_SIZE, thumbnails
from .metrics import generation
from .translate import EVAL_BATCH, TranslateTask, group_by_column

MAX_BASELINE_IMAGES = 20_000  # training images among which the nearest one is searched


class CaptionTaskSettings(TaskSettings[CaptionData, ModelSettings]):
    """Settings of image captioning."""

    grammar: ClassVar[str] = "none"

    kind: Literal["caption"] = "caption"
    metric: Literal["bleu", "exact_match", "rouge_l"] = Field(
        "rouge_l", description="metric that selects the best weights; BLEU is 0 for captions of three words"
    )
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="label smoothing of the training loss")
    bleu_tokenizer: Literal["13a", "intl", "char", "none"] = Field("13a", description="tokenizer of sacreBLEU")
    beam: int = Field(4, ge=1, le=64, description="beam size of the final evaluation; quick evaluations are greedy")
    max_new_tokens: int = Field(60, ge=1, description="maximum tokens of a caption including its end")
    eval_pairs: int = Field(2000, ge=0, description="maximum number of images of a split to caption; 0: all")

    def bind(self, data: CaptionData, model: ModelSettings, *, batch: int, seed: int) -> "CaptionTask":
        return CaptionTask(self, data, CaptionBatches(data.train, batch, seed=seed))


class CaptionTask(TranslateTask):
    """Captions of one set of images."""

    settings: CaptionTaskSettings
    data: CaptionData

    def eval_batches(self, split: str, max_pairs: int) -> Iterable[CaptionBatch]:
        return eval_batches(self.data.splits[split], EVAL_BATCH, max_pairs)

    def units_of(self, split: str) -> Sequence[str]:
        return ()

    def generate(  # type: ignore[override]
        self, model: EncoderDecoder, sources: Sequence[Tensor], search: SearchSettings, **options: object
    ) -> list[str]:
        """The best caption of each image."""
        captions = generate_captions(BeamSearch(model), self.data.tokenizers, sources, search)
        return [best[0][0] if best else "" for best in captions]

    def _group_metrics(self, texts: list[str], pairs: CaptionSplit, metric: str) -> dict[str, Metrics]:  # type: ignore[override]
        """The metric of each group of data.group."""
        parts: dict[str, Metrics] = {}
        for group in group_by_column(str(self.data.settings.group), pairs.groups[: len(texts)]):
            rows = [texts[n] for n in group.rows], [pairs.references[n] for n in group.rows]
            scores = {name: self.text_metric(name, *rows) for name in (metric, "exact_match")}
            parts[group.name] = {**scores, "pairs": len(group.rows)}
        return parts

    def evaluate_baselines(self, split: str) -> dict[str, Baseline]:
        """The most frequent caption of the training data, and the caption of the nearest training image."""
        if not self.data.has_train:
            return {}
        pairs, train = self.data.splits[split], self.data.train
        count = min(len(pairs), self.settings.eval_pairs or len(pairs))
        all_captions = (text for texts in train.references for text in texts)
        distances = torch.cdist(_small(pairs.pixels[:count]), _small(train.pixels[:MAX_BASELINE_IMAGES]))
        nearest = [train.references[n][0] for n in distances.argmin(1).tolist()]
        frequent = generation.most_frequent(all_captions, count)
        baselines = {"most frequent caption": frequent, "caption of the nearest image": nearest}
        return self.text_baselines(baselines, pairs.references)


def _small(pixels: Tensor) -> Tensor:
    return thumbnails(pixels, THUMBNAIL_SIZE // 2).float()


def generate_captions(
    beam_search: BeamSearch,
    tokenizers: PairTokenizers,
    images: Sequence[Tensor],
    search: SearchSettings,
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
