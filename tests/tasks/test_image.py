"""What pictures show, as a task: its loss, its metrics, and what costs nothing beside scikit-learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harken.data.images.source import ImageSource
from harken.models.vit import ViTSettings
from harken.recipe import resolve
from harken.tasks.image import THUMBNAIL_SIZE, ImageTaskSettings, answers, thumbnails

SHAPE = ViTSettings(d=16, layers=1, heads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Bright spots in one of three corners."""
    rng, home = np.random.default_rng(0), tmp_path_factory.mktemp("spots")
    x, y = rng.integers(0, 120, (300, 8, 8), dtype=np.uint8), rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    for n, label in enumerate(y):
        x[n, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += rng.integers(0, 80, dtype=np.uint8)
    np.savez(home / "spots.npz", x=x, y=y)
    return ImageSource(path=str(home / "spots.npz"), valid=0.2).load_data()


def bound(data, **settings):
    return ImageTaskSettings(**settings).bind(data, SHAPE, batch=32, seed=0)


def test_the_loss_is_cross_entropy_of_what_the_model_says(data):
    task, model = bound(data), SHAPE.build(data.vocab)
    batch = task.batch(0, 0)
    y = model(data.processor.normalize(batch.tokens))
    assert task.loss(model, batch).total.item() == pytest.approx(
        F.cross_entropy(y, batch.targets, reduction="sum").item()
    )
    assert task.tokens == 32 * 17


def test_a_mixed_batch_is_asked_for_both_labels_and_tells_the_first(data):
    task, model = bound(data, mixup=1.0, label_smoothing=0.1), SHAPE.build(data.vocab)
    batch = task.batch(0, 0)
    p = model(batch.inputs(data.processor)).log_softmax(-1)
    soft = batch.target_weight()[:, None] * F.one_hot(batch.targets, 3) + (1 - batch.target_weight())[:, None] * F.one_hot(
        batch.mix_targets, 3
    )
    found = task.loss(model, batch)
    assert found.total.item() == pytest.approx((-(0.9 * soft + 0.1 / 3) * p).sum().item(), rel=1e-5)
    assert found.model_inputs.item() == pytest.approx(-p.gather(1, batch.targets[:, None]).sum().item(), rel=1e-5)


def test_metrics_are_those_of_scikit_learn(data):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    task, part = bound(data), data.splits["valid"]
    y = torch.randn(len(part), 3, generator=torch.Generator().manual_seed(0))
    found, score = y.argmax(1).numpy(), task.judged(y, part)
    assert score.metrics["accuracy"] == pytest.approx(accuracy_score(part.targets, found))
    assert score.metrics["f1"] == pytest.approx(f1_score(part.targets, found, average="macro", labels=[0, 1, 2]))
    assert score.metrics["matthews"] == pytest.approx(matthews_corrcoef(part.targets, found))
    assert score.primary_metric == "accuracy"
    assert score.protocol["images"] == len(part)
    assert sum(part["images"] for part in score.parts.values()) == len(part)
    model = SHAPE.build(data.vocab)
    assert task.evaluate(model, "valid") == task.judged(answers(model, part.pixels, data.processor), part)


def test_what_costs_nothing_is_what_scikit_learn_finds(data):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import NearestCentroid

    part, free = data.splits["test"], bound(data).baselines("test")
    train, test = (some.pixels.flatten(1).double().numpy() / 255 for some in (data.train, part))
    labels = data.train.targets
    nearest = NearestCentroid().fit(train, labels).predict(test)
    regression = LogisticRegression(max_iter=2000, tol=1e-8).fit(train, labels).predict(test)
    expected = {
        "most frequent label": (part.targets == np.bincount(labels).argmax()).mean(),
        "nearest mean image": (part.targets == nearest).mean(),
        "regression on pixels": (part.targets == regression).mean(),
    }
    assert {name: found["accuracy"] for name, found in free.items()} == pytest.approx(expected)
    assert expected["regression on pixels"] > expected["most frequent label"] + 0.1


def test_large_pictures_are_compared_as_small_ones():
    small = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (5, 3, THUMBNAIL_SIZE, THUMBNAIL_SIZE), dtype=np.uint8))
    large = small.repeat_interleave(3, 2).repeat_interleave(3, 3)
    torch.testing.assert_close(thumbnails(large), small.flatten(1).double() / 255)
    assert torch.equal(thumbnails(small[..., :8, :8]), small[..., :8, :8].flatten(1).double() / 255)


def test_what_was_learned_from_is_judged_as_it_lies_there(data):
    task, model = bound(data, turn=90.0, erase=1.0, mixup=1.0, label_smoothing=0.1), SHAPE.build(data.vocab)
    y = answers(model, data.train.pixels, data.processor)
    plain = F.cross_entropy(y, torch.from_numpy(data.train.targets)).item()
    assert task.evaluate(model, "train").metrics["loss"] == pytest.approx(plain)


def test_a_recipe_of_pictures_is_a_vit_with_this_task():
    made = resolve(("test", {"data.kind": "images"}))
    assert (made.model.kind, made.task.kind) == ("vit", "image")
