"""Digits from scikit-learn, generated digits, and clothes from JSON as arrays."""

import io
import json
import sys

import numpy as np
import pytest

from harken.data.images.source import ImageSource
from harken.data.synthetic.digits import CLOTHES, clothes, digits


def load_npz(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    with np.load(io.BytesIO(content)) as arrays:
        return arrays["x"], arrays["y"]


def test_the_digits_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    x, y = load_npz(digits())
    expected = load_digits()
    assert np.array_equal(y, expected.target)
    assert np.abs(x / 255 * 16 - expected.images).max() < 0.05


def test_without_scikit_learn_distinguishable_digits_are_generated(monkeypatch, tmp_path):
    from sklearn.neighbors import KNeighborsClassifier

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    content = digits()
    assert content == digits()  # deterministic
    x, y = load_npz(content)
    assert x.shape == (1797, 8, 8)
    assert np.bincount(y).min() >= 179
    assert len({image.tobytes() for image in x}) == 1797
    flat = x.reshape(1797, -1)
    predictions = KNeighborsClassifier(3).fit(flat[:1500], y[:1500]).predict(flat[1500:])
    assert 0.9 < (predictions == y[1500:]).mean() < 1  # neither noise nor copies
    (tmp_path / "digits.npz").write_bytes(content)
    assert ImageSource(path=str(tmp_path / "digits.npz")).load_data().vocab == (8, 1, 10)


def test_clothes_have_named_labels_and_rows_without_an_image_are_skipped():
    rows = np.random.default_rng(0).integers(0, 256, (10, 2, 784))
    texts = [json.dumps({"data": [*images.tolist(), []]}) for images in rows]
    x, y = load_npz(clothes(texts))
    assert np.array_equal(x.reshape(20, 784), rows.reshape(20, 784))
    assert y.tolist() == [name for name in CLOTHES for _ in range(2)]


@pytest.mark.net
def test_the_downloaded_clothes_are_70_000_labelled_images():
    from harken.data.catalogue import fetch

    x, y = load_npz(fetch("fashion-mnist").path.read_bytes())
    assert x.shape == (70_000, 28, 28)
    assert set(y) == set(CLOTHES)
