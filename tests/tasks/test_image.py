"""Image classification: loss, metrics and baselines against PyTorch and scikit-learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from harken.data.images.source import ImageSource
from harken.models.vit import ViTSettings
from harken.recipe import resolve
from harken.tasks.image import THUMBNAIL_SIZE, ImageTaskSettings, predict, thumbnails

MODEL = ViTSettings(d=16, layers=1, heads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Bright spots in one of three corners."""
    rng, home = np.random.default_rng(0), tmp_path_factory.mktemp("spots")
    x, y = rng.integers(0, 120, (300, 8, 8), dtype=np.uint8), rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    for n, label in enumerate(y):
        x[n, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += rng.integers(0, 80, dtype=np.uint8)
    np.savez(home / "spots.npz", x=x, y=y)
    return ImageSource(path=str(home / "spots.npz"), valid=0.2).load_data()


def bind(data, **settings):
    return ImageTaskSettings(**settings).bind(data, MODEL, batch=32, seed=0)


def test_the_loss_is_the_cross_entropy_of_the_outputs(data):
    task, model = bind(data), MODEL.build(data.vocab)
    batch = task.batch(0, 0)
    y = model(data.processor.normalize(batch.tokens))
    assert task.loss(model, batch).total.item() == pytest.approx(
        F.cross_entropy(y, batch.targets, reduction="sum").item()
    )
    assert task.tokens_per_batch == 32 * 17


def test_mixup_trains_on_both_labels_and_reports_the_loss_of_the_first(data):
    task, model = bind(data, mixup=1.0, label_smoothing=0.1), MODEL.build(data.vocab)
    batch = task.batch(0, 0)
    log_p, weight = model(batch.inputs(data.processor)).log_softmax(-1), batch.target_weight()[:, None]
    soft = weight * F.one_hot(batch.targets, 3) + (1 - weight) * F.one_hot(batch.mix_targets, 3)
    loss = task.loss(model, batch)
    assert loss.total.item() == pytest.approx((-(0.9 * soft + 0.1 / 3) * log_p).sum().item(), rel=1e-5)
    assert loss.reported.item() == pytest.approx(-log_p.gather(1, batch.targets[:, None]).sum().item(), rel=1e-5)


def test_metrics_are_those_of_scikit_learn(data):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    task, part = bind(data), data.splits["valid"]
    y = torch.randn(len(part), 3, generator=torch.Generator().manual_seed(0))
    predictions, score = y.argmax(1).numpy(), task.score(y, part.targets)
    assert score.metrics["accuracy"] == pytest.approx(accuracy_score(part.targets, predictions))
    assert score.metrics["f1"] == pytest.approx(f1_score(part.targets, predictions, average="macro", labels=[0, 1, 2]))
    assert score.metrics["matthews"] == pytest.approx(matthews_corrcoef(part.targets, predictions))
    assert score.primary_metric == "accuracy"
    assert score.protocol["images"] == len(part)
    assert sum(label["images"] for label in score.parts.values()) == len(part)
    model = MODEL.build(data.vocab)
    assert task.evaluate(model, "valid") == task.score(predict(model, part.pixels, data.processor), part.targets)


def test_baselines_are_those_of_scikit_learn(data):
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import NearestCentroid

    part, baselines = data.splits["test"], bind(data).baselines("test")
    train, test = (images.pixels.flatten(1).double().numpy() / 255 for images in (data.train, part))
    labels = data.train.targets
    nearest = NearestCentroid().fit(train, labels).predict(test)
    regression = LogisticRegression(max_iter=2000, tol=1e-8).fit(train, labels).predict(test)
    expected = {
        "most frequent label": (part.targets == np.bincount(labels).argmax()).mean(),
        "nearest mean image": (part.targets == nearest).mean(),
        "regression on pixels": (part.targets == regression).mean(),
    }
    assert {name: metrics["accuracy"] for name, metrics in baselines.items()} == pytest.approx(expected)
    assert expected["regression on pixels"] > expected["most frequent label"] + 0.1


def test_thumbnails_average_large_images_and_keep_small_ones():
    shape = 5, 3, THUMBNAIL_SIZE, THUMBNAIL_SIZE
    small = torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    large = small.repeat_interleave(3, 2).repeat_interleave(3, 3)
    torch.testing.assert_close(thumbnails(large), small.flatten(1).double() / 255)
    assert torch.equal(thumbnails(small[..., :8, :8]), small[..., :8, :8].flatten(1).double() / 255)


def test_the_training_split_is_evaluated_without_augmentation(data):
    task, model = bind(data, rotation=90.0, erase=1.0, mixup=1.0, label_smoothing=0.1), MODEL.build(data.vocab)
    y = predict(model, data.train.pixels, data.processor)
    plain = F.cross_entropy(y, torch.from_numpy(data.train.targets)).item()
    assert task.evaluate(model, "train").metrics["loss"] == pytest.approx(plain)


def test_the_default_recipe_of_images_is_a_vit_with_this_task():
    recipe = resolve(("test", {"data.kind": "images"}))
    assert (recipe.model.kind, recipe.task.kind) == ("vit", "image")
