"""Class weights of the training loss for every kind of label, next to scikit-learn and PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from harken.errors import BadSetting
from harken.recipe import OVERRIDE, resolve
from harken.tasks.label_task import balanced_weights

TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.dropout": 0.0, "train.batch": 8}


def write(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def texts(folder):
    rows = (f"word{n % 13} word{n % 7} {n},{'good' if n % 5 else 'bad'}" for n in range(60))
    return {"data.kind": "table", "data.path": write(folder, "t.csv", "\n".join(["text,label", *rows]))} | TINY


def sentences(folder):
    lines = (f"word{n % 13} {'NOUN' if n % 4 else 'VERB'}" + "\n" * (n % 6 == 5) for n in range(180))
    path = write(folder, "t.conll", "\n".join(lines) + "\n")
    return {"data.kind": "tags", "data.path": path, "data.text": 1, "data.label": 2} | TINY


def images(folder):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8), np.uint8), np.arange(60) % 5 // 4
    np.savez(folder / "x.npz", x=x, y=y)
    return {"data.kind": "images", "data.path": str(folder / "x.npz"), "model.patch": 4, **TINY, "task.mixup": 0.5}


def sets(folder):
    rows = (f"s{n // 3},{n * 7 % 11 / 10},{'far' if n // 3 % 4 else 'near'}" for n in range(180))
    path = write(folder, "s.csv", "\n".join(["cloud,x,where", *rows]))
    columns = {"data.group": "cloud", "data.label": "where", "data.columns": ["x"]}
    return {"data.kind": "sets", "data.path": path, **columns, "model.d": 16, "model.heads": 2, "train.batch": 8}


def nodes(folder):
    graph = folder / "graph"
    graph.mkdir()
    write(graph, "edges.csv", "source,target\n" + "".join(f"{n},{(n * 3 + 1) % 40}\n" for n in range(40)))
    write(graph, "nodes.csv", "name,label,a\n" + "".join(f"{n},{'x' if n % 4 else 'y'},{n % 3}\n" for n in range(40)))
    return {"data.kind": "graph", "data.path": str(graph), "model.d": 16}


@pytest.mark.parametrize("kind", [texts, sentences, images, sets, nodes])
def test_balanced_weights_are_those_of_scikit_learn_and_change_the_loss_alone(tmp_path, kind):
    settings = kind(tmp_path)
    tasks = []
    for weights in ("none", "balanced"):
        recipe = resolve((OVERRIDE, settings | {"task.class_weights": weights}))
        data = recipe.load_data(None)
        tasks.append(recipe.bind(data))
    weighted = tasks[1]
    part = data.train
    targets = data.targets[part] if kind is nodes else part.texts.targets if hasattr(part, "texts") else part.targets
    targets = targets[targets >= 0]
    expected = compute_class_weight("balanced", classes=np.unique(targets), y=targets)
    np.testing.assert_allclose(weighted.class_weights.numpy(), expected, rtol=1e-6)
    torch.manual_seed(0)
    model = recipe.build(data.vocab).eval()
    a, b = (task.loss(model, task.batch(0, 0)) for task in tasks)
    assert float(a.total.detach()) != pytest.approx(float(b.total.detach()))
    assert float((a.total if a.reported is None else a.reported).detach()) == pytest.approx(float(b.reported))


def test_several_labels_per_example_weight_the_positive_ones():
    targets = np.array([[1, 0], [1, 0], [1, 1], [0, 0], [1, 0]], np.float32)
    weight = balanced_weights(targets, 2)
    assert weight.tolist() == [0.25, 4.0]
    y = torch.randn(5, 2)
    losses = F.binary_cross_entropy_with_logits(y, torch.from_numpy(targets), pos_weight=weight, reduction="none")
    weighted = torch.where(torch.from_numpy(targets) > 0, weight, 1.0)
    plain = F.binary_cross_entropy_with_logits(y, torch.from_numpy(targets), reduction="none")
    torch.testing.assert_close(losses, weighted * plain)


def test_edges_have_no_class_weights(tmp_path):
    settings = nodes(tmp_path) | {"data.target_level": "edge", "task.class_weights": "balanced"}
    recipe = resolve((OVERRIDE, settings))
    with pytest.raises(BadSetting, match=r"task\.class_weights: edges"):
        recipe.bind(recipe.load_data(None))
