"""Reuse across tasks: before training, the loaded part of a run has the same states as the run itself."""

import numpy as np
import pytest
import torch
from PIL import Image

import harken
from harken.errors import BadSetting
from harken.experiments.choose import choose
from harken.experiments.compare.comparison import compare
from harken.experiments.report.sections import _attention
from harken.experiments.train import prepare
from harken.training.optimizers import build_optimizer


def ignore(*_, **__) -> None:
    pass


STEP = {"train.steps": 1, "train.batch": 8, "train.threads": 1, "report.samples": 0}
TABLE = "text,label\n" + "a good day,yes\na bad day,no\n" * 30


@pytest.fixture(scope="module")
def runs(tmp_path_factory, tales, folders):
    """A run of texts of every kind of model that labels can start from."""
    home, tiny = tmp_path_factory.mktemp("bodies"), {"model.d": 16, "model.context": 16, "data.tokenizer": "char"}
    trained = {
        kind: harken.train(tales, out=home / kind, settings={"model.kind": kind, **tiny, **STEP}).path
        for kind in ("rnn", "gru")
    }
    return {**trained, "lstm": folders["lstm"], "gpt": folders["char"]}


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "my.csv"
    file.write_text(TABLE)
    return str(file)


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "gpt"])
def test_a_language_model_has_the_same_states_as_the_body_of_a_model_for_labels(runs, table, kind):
    recipe = choose(table, {**STEP, "from": str(runs[kind])}).recipe
    dataset, trainer = prepare(recipe, ignore)
    body, first = trainer.model.body.double().eval(), harken.load(runs[kind]).model.double().eval()
    tokens = torch.from_numpy(dataset.train.texts.tokens.ids[:24])[None]
    assert recipe.model.kind == kind
    assert torch.equal(body(tokens), first(tokens))


@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm", "gpt"])
def test_recurrent_networks_are_fine_tuned_at_a_higher_rate_than_transformers(runs, table, kind):
    d, recurrent = 16, kind != "gpt"
    rates = {
        how: choose(table, {"from": str(runs[kind]), "transfer": how}).recipe.train.lr
        for how in ("finetune", "scratch")
    }
    assert rates["finetune"] == pytest.approx((1.2 if recurrent else 0.12) / d)
    assert rates["scratch"] == pytest.approx((1.2 if recurrent else 0.1) / d)


def test_one_comparison_starts_from_runs_of_several_kinds_of_models(runs, table, tmp_path):
    axes = {"from": [str(runs["gru"]), str(runs["gpt"])], "transfer": ["finetune", "frozen"]}
    comparison = compare(table, axes, settings=STEP, seeds=1, out=tmp_path / "compared")
    assert [row["model"] for row in comparison.rows] == ["gru"] * 2 + ["gpt"] * 2
    assert not any(row["failed"] for row in comparison.rows)
    frozen = harken.load(comparison.rows[1]["runs"][0]).model.body
    first = harken.load(runs["gru"]).model
    assert all(torch.equal(a, b) for a, b in zip(frozen.parameters(), first.parameters(), strict=True))


# --- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Images of 12 x 12 pixels in color, with labels by folder, and with captions in a table."""
    home = tmp_path_factory.mktemp("pictures")
    pixels = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), np.uint8)
    for n, image in enumerate(pixels):
        path = home / "labels" / ("cat", "dog")[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    lines = (f"labels/{('cat', 'dog')[n % 2]}/{n}.png\ta {('cat', 'dog')[n % 2]} {n % 3}" for n in range(40))
    (home / "captions.tsv").write_text("image\tcaption\n" + "\n".join(lines) + "\n")
    return home


CAPTIONS = {**STEP, "data.kind": "captions"}
SMALL = {**STEP, "model.d": 16, "model.layers": 1, "model.heads": 2}


@pytest.fixture(scope="module", params=["first", "mean"])
def vit(request, tmp_path_factory, pictures):
    settings = {**SMALL, "model.pool": request.param, "model.stem": "patch"}
    out = tmp_path_factory.mktemp("vit") / request.param
    return harken.train(pictures / "labels", out=out, settings=settings)


def captioner(pictures, vit, **settings):
    recipe = choose(str(pictures / "captions.tsv"), {**CAPTIONS, "from": str(vit.path), **settings}).recipe
    return recipe, *prepare(recipe, ignore)


def test_a_vit_has_the_same_states_as_the_encoder_of_a_caption_model(vit, pictures):
    _, dataset, trainer = captioner(pictures, vit)
    model, pixels = trainer.model.double().eval(), dataset.train.pixels[:5]
    expected = vit.model.double().eval().body(vit.tokenizer.normalize(pixels).double())
    torch.testing.assert_close(model.encoder(model.normalize(pixels)), expected, rtol=0, atol=1e-6)
    vit.model.float()


def test_a_caption_model_gives_its_encoder_back_to_a_model_for_labels(vit, pictures, tmp_path):
    run = harken.train(
        pictures / "captions.tsv", out=tmp_path / "captions", settings={**CAPTIONS, "from": str(vit.path)}
    )
    picture = str(pictures / "labels/cat/0.png")
    assert run.caption(picture) is not None
    page = str(_attention(run, [{"prompt": picture, "image": b""}]))
    n_patches = len(run.trace(picture).source) - (run.recipe.model.pool == "first")
    assert f"to {n_patches} patches" in page
    assert n_patches == int(n_patches**0.5) ** 2
    recipe = choose(str(pictures / "labels"), {**STEP, "from": str(run.path)}).recipe
    dataset, trainer = prepare(recipe, ignore)
    assert dataset.processor.labels == ["cat", "dog"]
    assert recipe.model.pool == vit.recipe.model.pool
    for ours, expected in zip(trainer.model.body.parameters(), run.model.encoder.parameters(), strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("how", ["finetune", "frozen", "scratch"])
def test_the_encoder_of_images_learns_slowly_not_at_all_or_like_the_decoder(vit, pictures, how):
    recipe, _, trainer = captioner(pictures, vit, transfer=how)
    groups = build_optimizer(trainer.model, recipe.train).param_groups
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    encoder = {scale.get(id(p), 0) for p in trainer.model.encoder.parameters()}
    assert encoder == {{"finetune": recipe.train.body_lr_ratio, "frozen": 0, "scratch": 1}[how]}
    assert {scale[id(p)] for p in trainer.model.stack.parameters()} == {1}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"data.image_size": 24}, r"data.image_size = 24: from=.* has 12, and its weights fit only that; remove it"),
        ({"model.patch": 4}, r"model.patch = 4: from=.* has 2, and its weights fit only that; remove it"),
        ({"data.color": False}, r"data.color = False: from=.* has True"),
    ],
)
def test_settings_of_images_that_do_not_fit_the_weights_are_refused(vit, pictures, settings, problem):
    with pytest.raises(BadSetting, match=problem):
        captioner(pictures, vit, **settings)
    captioner(pictures, vit, **{"data.image_size": 12, "model.patch": 2, "data.color": True})  # those of the run


def test_images_of_another_size_are_resized_to_that_of_the_run(vit, pictures, tmp_path):
    Image.fromarray(np.zeros((30, 30, 3), np.uint8)).save(tmp_path / "large.png")
    (tmp_path / "captions.tsv").write_text("image\tcaption\n" + "large.png\ta night\n" * 20)
    dataset = captioner(tmp_path, vit, **{"data.valid": 0.0, "data.test": 0.0})[1]
    assert dataset.train.pixels.shape[1:] == (3, 12, 12)
