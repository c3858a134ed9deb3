"""What pictures show, in words, by a run that was trained on captions."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from harken.core import watching
from harken.data.captions.source import CaptionWords
from harken.data.images.files import fitted
from harken.decode.beam import Search
from harken.inference.trace import Trace
from harken.tasks.caption import written

from .images import pixels_of
from .translate import EDGE

if TYPE_CHECKING:
    from harken.inference.run import Run


def caption(run: "Run", picture: Any, *, index: int = 0, **search: Any) -> Any:
    """The best caption of a picture (a path, one of an array such as x.npz[17], or bytes H W or H W 3), or of each of a
    list; with `alternatives`, the best ones with their scores."""
    run.must("caption")
    alone = isinstance(picture, str | Path) or getattr(picture, "ndim", 0) in (2, 3)
    how = Search.of({"max_new_tokens": run.recipe.task.max_new_tokens, **search})
    shown = [picture] if alone else list(picture)
    found = written(run.finder, _words(run).both, [_laid(run, one) for one in shown], how, first=index)
    best = [[{"text": text, "score": score} for text, score in each] for each in found]
    said = best if "alternatives" in search else [each[0]["text"] if each else "" for each in best]
    return said[0] if alone else said


@torch.inference_mode()
def trace_caption(run: "Run", picture: Any, target: str | None = None) -> Trace:
    """What each word of a caption looks at: the patches by row and column, from 0; the edge looks from before them."""
    words, model = _words(run), run.model
    ids = words.both.encode_target(caption(run, picture) if target is None else target).tolist()
    source = _laid(run, picture)[None].to(run.device)
    with watching(model) as views:
        model(torch.tensor([[words.both.target.vocab, *ids]], device=run.device), source=source)
    kinds: dict[str, list[Any]] = {"encoder": [], "cross": [], "self": []}
    for name, view in views.items():
        kinds["encoder" if name.startswith("encoder.") else "cross" if "cross" in name else "self"].append(view)
    wide = math.ceil(words.image_size / run.recipe.model.cut(words.image_size))
    return Trace([*words.both.target.words(ids), EDGE], kinds, [f"{n // wide},{n % wide}" for n in range(wide**2)])


def _words(run: "Run") -> CaptionWords:
    return cast(CaptionWords, run.tokenizer)


def _laid(run: "Run", picture: Any) -> torch.Tensor:  # C S S
    words = _words(run)
    return words.fitted(fitted(pixels_of(picture), words.image_size))
