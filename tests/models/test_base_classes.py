"""Every registered model kind derives from the base classes that declare the optional abilities."""

import pytest
import torch

from harken import registry
from harken.models import LanguageModel, Model, ModelSettings
from harken.settings import CaptionInputs, ImageShape, LabelOutputs

IMAGE = ImageShape(12, 3, 4)
INPUTS = {
    "text": 20,
    "pairs": (20, 20),
    "labels": LabelOutputs(20, 3),
    "stories": LabelOutputs(20, 3, answer_ids=(1, 2, 3)),
    "images": IMAGE,
    "captions": CaptionInputs(IMAGE, (0.5,) * 3, (0.2,) * 3, 20),
    "sets": LabelOutputs(5, 3),
    "graphs": LabelOutputs(5, 3),
}
KINDS = [(group, kind) for group in INPUTS for kind in registry.MODELS[group]]


@pytest.mark.parametrize(("group", "kind"), KINDS)
def test_every_kind_has_the_base_classes_of_settings_and_models(group: str, kind: str) -> None:
    settings = registry.find_kind("model", kind, group)(size="tiny")
    with torch.device("meta"):
        model = settings.build(INPUTS[group])
    assert isinstance(settings, ModelSettings)
    assert isinstance(model, Model)
    assert isinstance(model.backbone, Model)
    assert model.reads_text == isinstance(model.backbone, LanguageModel)


def test_settings_without_a_field_have_the_default_ability() -> None:
    vit, gpt = (registry.find_kind("model", kind, group)() for kind, group in (("vit", "images"), ("gpt", "text")))
    assert (vit.max_context, vit.notice) == (None, None)
    assert (gpt.max_context, gpt.task) == (128, "next-word")
    assert registry.find_kind("model", "rnn", "pairs")().max_context is None  # its `context` is not a length
