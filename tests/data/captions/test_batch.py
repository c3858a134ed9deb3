"""Batches of captions with their images."""

import numpy as np
import pytest
import torch

from harken.data.batch import IGNORE
from harken.data.captions.source import CaptionBatches, CaptionSource, CaptionSplit, collate_captions, eval_batches
from harken.data.images.files import encode_png


@pytest.fixture
def part(tmp_path) -> CaptionSplit:
    rng, lines = np.random.default_rng(0), ["image\tcaption\n"]
    for n in range(40):
        (tmp_path / f"{n}.png").write_bytes(encode_png(rng.integers(0, 256, (8, 8, 3), np.uint8)))
        lines += [f"{n}.png\timage number {n}\n", f"{n}.png\tit has the number {n}, a caption of two\n"]
    (tmp_path / "captions.tsv").write_text("".join(lines))
    return CaptionSource(path=str(tmp_path)).load_data().train


def test_a_batch_holds_each_caption_between_edge_tokens_with_its_image(part):
    indices, edge = np.array([5, 0, 2]), part.target.edge
    L = int(part.target.lengths.max()) + 1
    batch = collate_captions(part, indices, L)
    for row, n in enumerate(indices.tolist()):
        ids = part.target[n].tolist()
        assert batch.tokens[row].tolist() == [edge, *ids, *[edge] * (L - 1 - len(ids))]
        assert batch.targets[row].tolist() == [*ids, edge, *[IGNORE] * (L - 1 - len(ids))]
        assert torch.equal(batch.source[row], part.pixels[part.image_index[n]])


def test_evaluation_takes_all_captions_of_the_first_images(part):
    n_targets = int((part.target.lengths[part.image_index < 4] + 1).sum())
    assert sum(batch.n_targets for batch in eval_batches(part, 7, 4)) == n_targets


def test_a_batch_depends_only_on_seed_epoch_and_step(part):
    first, second, reseeded = (CaptionBatches(part, 8, seed=seed) for seed in (1, 1, 2))
    first.batch(4, 1)
    assert torch.equal(first.batch(0, 2).tokens, second.batch(0, 2).tokens)
    assert not torch.equal(first.batch(0, 2).source, reseeded.batch(0, 2).source)
