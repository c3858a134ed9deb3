"""Vectors of the lines of a story: what a memory network stores of them, or the states of another model."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch

from harken.data.detect.preview import read_utf8
from harken.data.stories.babi import parse_statements
from harken.data.stories.source import StoryProcessor
from harken.errors import BadInput
from harken.events import Listener
from harken.inference.loaded_model import LoadedModel
from harken.models.memnet import MemNet
from harken.suggestions import similar_path

from . import check_texts
from .embed import Embedder, EmbeddingSettings, ExampleRequest, NamedInputs, Vectors, own_splits, states_at_layer
from .text_vectors import embed_token_ids, pool_ranges


def embed_stories(run: LoadedModel, texts: Sequence[str], settings: EmbeddingSettings, listen: Listener) -> Vectors:
    """The vector of each text: the mean over its lines of the keys that a question is compared with in the first hop;
    of a model that reads a story as one text, its pooled states."""
    check_texts(texts)
    processor = cast(StoryProcessor, run.tokenizer)
    lines = [[ids for line in text.splitlines() if len(ids := processor.encode_line(line))] for text in texts]
    for n, rows in enumerate(lines):
        if not rows:
            raise BadInput(f"{texts[n]!r}: has no words; give a line of a story")
    if not run.recipe.model.by_line:
        end, body = processor.end_id, run.backbone
        texts_ids = [[i for row in rows for i in (end, *row.tolist())] for rows in lines]
        token_ids = [[*ids[1 - run.recipe.data.max_length :], end] for ids in texts_ids]
        states = states_at_layer(body.transformer_blocks, settings.layer, body)
        ranges = pool_ranges(token_ids, settings.token_pool())
        return embed_token_ids(states, token_ids, ranges, body.embed.embedding_dim, run.device)
    model = cast(MemNet, run.model)
    for name in ("pool", "layer"):
        if getattr(settings, name) is not None:
            raise BadInput(f"{name}: has no effect on the line vectors of a memory network; leave it out")
    with torch.inference_mode():
        keys = [[model.write(torch.from_numpy(row + 1)[None].to(run.device))[0, 0] for row in rows] for rows in lines]
        means = [torch.stack(rows).mean(0).float().cpu() for rows in keys]
    return torch.stack(means).numpy() if means else np.empty((0, model.d), np.float32)


def story_lines(run: LoadedModel, request: ExampleRequest, listen: Listener) -> NamedInputs:
    """The distinct lines of the stories in a file, or of the training data, without the questions."""
    if request.path is None:
        parts = own_splits(run, request.split, listen)[1]
        lines = dict.fromkeys(line for part in parts for question in part.questions for line in question.lines)
    else:
        path = Path(request.path)
        if not path.is_file():
            raise BadInput(f"{path}: no such file; name a file with a story{similar_path(path)}")
        stories = parse_statements(read_utf8(path).splitlines())
        lines = dict.fromkeys(line for story in stories for line in story)
    if not lines:
        raise BadInput(f"{request.path}: has no line of a story; add one, such as: Joe went home.")
    return NamedInputs([*lines], [*lines])


STORIES = Embedder(embed_stories, story_lines, inputs="story lines", options=frozenset({"pool", "layer"}))
