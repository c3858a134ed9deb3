"""ViT: import with equal outputs, export with equal weights, invalid configs refused."""

import json
import shutil

import pytest
import torch

import harken
from harken.bridge.export import export
from harken.bridge.importer import import_model
from harken.data.images.source import ImageProcessor
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SHAPE |= {"image_size": 12, "patch_size": 4, "num_labels": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A transformers ViT with random weights and distinct outputs."""
    from transformers import ViTConfig, ViTForImageClassification

    path = tmp_path_factory.mktemp("vit") / "theirs"
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SHAPE))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape))
    model.save_pretrained(path)
    (path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.3] * 3}))
    return path


def copy_with(folder, path, file="config.json", **fields):
    """A copy of the folder with another config."""
    shutil.copytree(folder, path)
    config = json.loads((path / file).read_text()) | fields
    (path / file).write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    return path


def test_an_imported_vit_has_the_outputs_of_transformers(folder, tmp_path):
    from transformers import ViTForImageClassification

    run = import_model(folder, tmp_path / "run")
    certificate = json.loads((run.path / "certificate.json").read_text())
    assert certificate["passed"]
    assert certificate["logits"]["max_difference"] < 1e-5
    image = torch.randint(256, (12, 12, 3), generator=torch.Generator().manual_seed(1)).byte()
    x = (image.permute(2, 0, 1) / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / 0.3
    reference = ViTForImageClassification.from_pretrained(folder).eval()
    expected = reference(pixel_values=x[None]).logits.softmax(-1)[0]
    assert expected.max() - expected.min() > 0.2  # distinct outputs
    probabilities = {
        score["label"]: score["probability"] for score in harken.load(run.path).classify([image.numpy()])[0]
    }
    assert [probabilities[f"LABEL_{n}"] for n in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_exported_vit_has_the_imported_weights(folder, tmp_path):
    from safetensors.torch import load_file

    export(import_model(folder, tmp_path / "run"), tmp_path / "back")
    original, exported = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "back"))
    assert original.keys() == exported.keys()
    assert all(torch.equal(original[name], exported[name]) for name in original)
    imported = import_model(tmp_path / "back", tmp_path / "again")
    assert imported.tokenizer == harken.load(tmp_path / "run").tokenizer
    assert imported.tokenizer == ImageProcessor(["LABEL_0", "LABEL_1", "LABEL_2"], 12, [0.4, 0.5, 0.6], [0.3, 0.3, 0.3])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qkv_bias": False}, "config qkv_bias"),
        ({"patch_size": 5}, "projection.weight|do not fit"),
        ({"num_hidden_layers": 3}, "encoder.layer.2"),
        ({"num_channels": 4}, "config num_channels"),
        ({"image_size": 16}, "position_embeddings has shape"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "keys must be 0, 1, 2"),
        ({"id2label": {"0": "a", "1": "b"}}, "classifier"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_config_that_does_not_fit_its_weights_is_refused(folder, tmp_path, fields, message):
    with pytest.raises(BadInput, match=message):
        import_model(copy_with(folder, tmp_path / "changed", **fields), tmp_path / "run")
    assert not (tmp_path / "run" / "harken.json").exists()


@pytest.mark.parametrize(
    "fields", [{"image_std": [0.0] * 3}, {"image_mean": [0.5] * 2}, {"image_mean": "half"}, {"do_rescale": False}]
)
def test_an_invalid_preprocessor_config_is_refused(folder, tmp_path, fields):
    with pytest.raises(BadInput, match=r"preprocessor_config|do not fit"):
        import_model(copy_with(folder, tmp_path / "changed", "preprocessor_config.json", **fields), tmp_path / "run")


def test_a_vit_without_counterpart_is_not_exported(build_run, tmp_path):
    settings = {"data.kind": "images", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.pool": "mean"}
    with pytest.raises(BadInput, match=r"it needs model\.pool=first"):
        export(build_run(settings), tmp_path / "out")
