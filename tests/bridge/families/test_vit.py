"""ViTs of transformers: imported, they say the same; exported, they are the same; and what is odd is refused."""

import json
import shutil

import pytest
import torch

import harken
from harken.bridge.export import export
from harken.bridge.importer import bring
from harken.data.images.source import Lens
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
SHAPE |= {"image_size": 12, "patch_size": 4, "num_labels": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ViT of transformers with weights that say something."""
    from transformers import ViTConfig, ViTForImageClassification

    made = tmp_path_factory.mktemp("vit") / "theirs"
    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(**SHAPE))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape))
    model.save_pretrained(made)
    (made / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.3] * 3}))
    return made


def changed(folder, place, file="config.json", **fields):
    """A copy of the folder with another config."""
    shutil.copytree(folder, place)
    said = json.loads((place / file).read_text()) | fields
    (place / file).write_text(json.dumps({name: value for name, value in said.items() if value is not None}))
    return place


def test_an_imported_vit_says_what_transformers_says(folder, tmp_path):
    from transformers import ViTForImageClassification

    run = bring(folder, tmp_path / "run")
    certificate = json.loads((run.path / "certificate.json").read_text())
    assert certificate["passed"]
    assert certificate["logits"]["max_difference"] < 1e-5
    picture = torch.randint(256, (12, 12, 3), generator=torch.Generator().manual_seed(1)).byte()
    x = (picture.permute(2, 0, 1) / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]) / 0.3
    theirs = ViTForImageClassification.from_pretrained(folder).eval()
    expected = theirs(pixel_values=x[None]).logits.softmax(-1)[0]
    assert expected.max() - expected.min() > 0.2  # they say something
    found = {said["label"]: said["probability"] for said in harken.load(run.path).classify([picture.numpy()])[0]}
    assert [found[f"LABEL_{n}"] for n in range(3)] == pytest.approx(expected.tolist(), abs=1e-5)


def test_an_exported_vit_has_the_weights_it_came_with(folder, tmp_path):
    from safetensors.torch import load_file

    export(bring(folder, tmp_path / "run"), tmp_path / "back")
    theirs, ours = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "back"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    again = bring(tmp_path / "back", tmp_path / "again")
    assert again.tokenizer == harken.load(tmp_path / "run").tokenizer
    assert again.tokenizer == Lens(["LABEL_0", "LABEL_1", "LABEL_2"], 12, [0.4, 0.5, 0.6], [0.3, 0.3, 0.3])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"qkv_bias": False}, "config qkv_bias"),
        ({"patch_size": 5}, "projection.weight|do not fit"),
        ({"num_hidden_layers": 3}, "encoder.layer.2"),
        ({"num_channels": 4}, "config num_channels"),
        ({"image_size": 16}, "position_embeddings has shape"),
        ({"id2label": {"0": "a", "2": "b", "3": "c"}}, "labels are numbered"),
        ({"id2label": {"0": "a", "1": "b"}}, "classifier"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_a_config_that_does_not_fit_its_weights_is_refused(folder, tmp_path, fields, told):
    with pytest.raises(BadInput, match=told):
        bring(changed(folder, tmp_path / "odd", **fields), tmp_path / "run")
    assert not (tmp_path / "run" / "harken.json").exists()


@pytest.mark.parametrize(
    "fields", [{"image_std": [0.0] * 3}, {"image_mean": [0.5] * 2}, {"image_mean": "half"}, {"do_rescale": False}]
)
def test_pixels_that_are_read_in_an_odd_way_are_refused(folder, tmp_path, fields):
    with pytest.raises(BadInput, match=r"preprocessor_config|do not fit"):
        bring(changed(folder, tmp_path / "odd", "preprocessor_config.json", **fields), tmp_path / "run")


def test_a_vit_that_transformers_does_not_have_is_not_exported(made, tmp_path):
    shape = {"data.kind": "images", "model.d": 16, "model.layers": 1, "model.heads": 2, "model.pool": "mean"}
    with pytest.raises(BadInput, match=r"it would have with model\.pool=first"):
        export(made(shape), tmp_path / "out")
