"""BigBird in text models: a text has the same outputs alone, padded, packed or token by token."""

import importlib
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from harken import registry
from harken.core import CAUSAL, watching
from harken.errors import BadSetting
from harken.experiments.audit.checks import CHECKS
from harken.models import bert, gpt, seq2seq
from harken.settings import LabelOutputs

SMALL: dict[str, Any] = {"d": 16, "layers": 2, "heads": 2, "context": 32, "dropout": 0.0}
BIRD: dict[str, Any] = {"structure": "bigbird", "block_size": 3, "window_blocks": 0}
BIRD |= {"global_blocks": 1, "random_blocks": 1}
MODELS = {
    "gpt": lambda: gpt.GPTSettings(**SMALL, **BIRD).build(20),
    "gpt, rotary, window": lambda: gpt.GPTSettings(**SMALL, **BIRD, positions="rotary", window=9).build(20),
    "bert": lambda: bert.BERTSettings(**SMALL, **BIRD).build(20),
    "transformer": lambda: seq2seq.TransformerSettings(**SMALL, **BIRD).build((20, 20)),
}
BIDIRECTIONAL = ("padding", "packing", "batching")
CASES = [
    (name, check)
    for name in MODELS
    for check in (BIDIRECTIONAL if name == "bert" else CHECKS)
    if check != "source_padding"
]


@pytest.mark.parametrize(("name", "check"), [*CASES, ("transformer", "source_padding")])
def test_a_bigbird_model_passes_the_checks_of_language_models(name: str, check: str) -> None:
    torch.manual_seed(0)
    difference, layer = CHECKS[check](MODELS[name]().double(), 32, 1e-9)
    assert difference <= 1e-9, layer


@pytest.mark.parametrize("settings", [gpt.GPTSettings, bert.BERTSettings])
def test_a_token_has_no_effect_outside_the_blocks_that_attend_to_it(settings: Any) -> None:
    torch.manual_seed(0)
    model = settings(**SMALL | {"layers": 1}, **BIRD | {"random_blocks": 0, "global_blocks": 0}).build(20).eval()
    tokens = torch.randint(20, (1, 32))
    changed = tokens.clone()
    changed[0, 4] = (tokens[0, 4] + 1) % 20
    differs = (model(tokens) != model(changed)).any(-1)[0]
    assert set(differs.nonzero()[:, 0].tolist()) == ({3, 4, 5} if settings is bert.BERTSettings else {4, 5})


def test_the_seed_of_the_random_blocks_changes_only_the_structure() -> None:
    tokens, outputs = torch.randint(20, (1, 32)), []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        outputs.append(gpt.GPTSettings(**SMALL, **BIRD, random_seed=seed).build(20).eval()(tokens))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    torch.testing.assert_close(outputs[0][:, :6], outputs[2][:, :6])  # the first blocks attend to all earlier ones


def test_a_model_on_the_meta_device_has_its_blocks() -> None:
    with torch.device("meta"):
        model = gpt.GPTSettings(**SMALL, **BIRD).build(20)
    assert torch.equal(
        model.structure.mask(1, 32, 32), gpt.GPTSettings(**SMALL, **BIRD).attention_structure().mask(1, 32, 32)
    )


def test_one_block_is_full_attention() -> None:
    torch.manual_seed(0)
    tokens, weights = torch.randint(20, (2, 32)), gpt.GPTSettings(**SMALL).build(20).state_dict()
    wide = gpt.GPTSettings(**SMALL, structure="bigbird", block_size=32).build(20)
    wide.load_state_dict(weights)
    plain = gpt.GPTSettings(**SMALL).build(20)
    plain.load_state_dict(weights)
    torch.testing.assert_close(wide(tokens), plain(tokens))


def test_the_block_size_is_limited_to_the_context() -> None:
    assert gpt.GPTSettings(**SMALL, structure="bigbird", block_size=65536).block_structure().block_plan.size == 32


@pytest.mark.process
def test_importing_models_does_not_import_the_compiler() -> None:
    """Importing the compiler takes a second."""
    code = "import sys, harken.models.gpt, harken.experiments.train; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_passes_built_in_inference_mode_do_not_break_training() -> None:
    model, tokens = gpt.GPTSettings(**SMALL, **BIRD).build(20), torch.randint(20, (2, 32))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_cache_keeps_the_passes_of_the_last_four_shapes() -> None:
    pattern = gpt.GPTSettings(**SMALL, **BIRD).attention_structure().block_plan
    passes = [weakref.ref(pattern(1, L, torch.device("cpu"))) for L in range(5, 25)]
    assert len(pattern.cache) == 4
    assert sum(ref() is not None for ref in passes) == 4


def test_passes_of_a_captured_cuda_graph_stay_alive(monkeypatch) -> None:
    pattern = gpt.GPTSettings(**SMALL, **BIRD).attention_structure().block_plan
    module, cpu = importlib.import_module("harken.core.backends.blocks"), torch.device("cpu")
    passes = pattern(1, 5, cpu)
    monkeypatch.setattr(module, "is_capturing", lambda device: True)
    assert pattern(1, 5, cpu) is passes
    monkeypatch.setattr(module, "is_capturing", lambda device: False)
    ref = weakref.ref(passes)
    del passes
    for L in range(6, 20):
        pattern(1, L, cpu)
    assert (1, 5, cpu) not in pattern.cache
    assert ref() is not None


def test_a_notice_reports_blocks_that_save_nothing() -> None:
    notice = gpt.GPTSettings(structure="bigbird", context=256).notice
    assert "model.context=256 has 4 blocks and each attends to up to 7, so it saves nothing" in notice
    assert gpt.GPTSettings(structure="bigbird", context=4096).notice is gpt.GPTSettings().notice is None


def test_the_default_structure_is_the_causal_mask() -> None:
    assert gpt.GPTSettings().attention_structure() is CAUSAL


def test_alibi_with_bigbird_is_reported() -> None:
    with pytest.raises(BadSetting, match=r"model\.positions=alibi needs a table of all pairs"):
        gpt.GPTSettings(**SMALL, **BIRD, positions="alibi").build(20)


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_label_heads_with_bigbird_do_not_pack_texts(kind: str) -> None:
    settings = registry.find_kind("model", kind, "labels")
    assert settings().supports_packing
    assert not settings(**BIRD).supports_packing
    model = settings(**SMALL, **BIRD).build(LabelOutputs(20, 3))
    with torch.no_grad(), watching(model, "body.stack.blocks.0.attention") as views:
        model(torch.randint(20, (2, 31)), lengths=torch.tensor([31, 12]))
    (view,) = views.values()
    assert view.layout.block_passes is not None  # blocks, also with padding
