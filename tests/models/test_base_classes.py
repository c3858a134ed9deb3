"""Every registered model kind derives from the base classes that declare the optional abilities."""

import pytest
import torch

from harken import registry
from harken.models import LanguageModel, Model, ModelSettings
from harken.settings import CaptionInputs, ImageShape, LabelOutputs

IMAGE = ImageShape(12, 3, 4)
INPUTS = {
    "": 20,
    " of pairs": (20, 20),
    " of labels": LabelOutputs(20, 3),
    " of stories": LabelOutputs(20, 3, answer_ids=(1, 2, 3)),
    " of images": IMAGE,
    " of captions": CaptionInputs(IMAGE, (0.5,) * 3, (0.2,) * 3, 20),
    " of sets": LabelOutputs(5, 3),
    " of graphs": LabelOutputs(5, 3),
}
KINDS = [(group, kind) for group in INPUTS for kind in registry.BUILT_IN["model" + group]]


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
    vit, gpt = (registry.find_kind("model", kind, group)() for kind, group in (("vit", " of images"), ("gpt", "")))
    assert (vit.max_context, vit.block_sparse, vit.shares_embeddings, vit.notice) == (None, False, False, None)
    assert (gpt.max_context, gpt.learned_positions, gpt.task) == (128, False, "next-word")
    assert registry.find_kind("model", "rnn", " of pairs")().max_context is None  # its `context` is not a length
