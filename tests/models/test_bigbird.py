"""BigBird in the families that read texts: a text says the same alone, padded, packed, or word by word."""

import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from harken import registry
from harken.core import CAUSAL, watching
from harken.errors import BadSetting
from harken.experiments.audit.checks import PROOFS
from harken.models import bert, bigbird, gpt, seq2seq
from harken.settings import Outputs

SMALL: dict[str, Any] = {"d": 16, "layers": 2, "heads": 2, "context": 32, "dropout": 0.0}
BIRD: dict[str, Any] = {"structure": "bigbird", "block": 3, "near": 0, "hubs": 1, "links": 1}
MODELS = {
    "gpt": lambda: gpt.Shape(**SMALL, **BIRD).build(20),
    "gpt, rotary, window": lambda: gpt.Shape(**SMALL, **BIRD, positions="rotary", window=9).build(20),
    "bert": lambda: bert.Shape(**SMALL, **BIRD).build(20),
    "transformer": lambda: seq2seq.TransformerShape(**SMALL, **BIRD).build((20, 20)),
}
BOTH_WAYS = ("padded", "packed", "batched")
OWED = [(name, proof) for name in MODELS for proof in (BOTH_WAYS if name == "bert" else PROOFS) if proof != "told"]


@pytest.mark.parametrize(("name", "proof"), [*OWED, ("transformer", "told")])
def test_what_a_language_model_owes_it_owes_with_blocks_too(name: str, proof: str) -> None:
    torch.manual_seed(0)
    gap, guilty = PROOFS[proof](MODELS[name]().double(), 32, 1e-9)
    assert gap <= 1e-9, guilty


@pytest.mark.parametrize("shape", [gpt.Shape, bert.Shape])
def test_a_word_is_not_seen_where_no_block_looks_at_its_own(shape: Any) -> None:
    torch.manual_seed(0)
    model = shape(**SMALL | {"layers": 1}, **BIRD | {"links": 0, "hubs": 0}).build(20).eval()
    tokens = torch.randint(20, (1, 32))
    other = tokens.clone()
    other[0, 4] = (tokens[0, 4] + 1) % 20
    changed = (model(tokens) != model(other)).any(-1)[0]
    assert set(changed.nonzero()[:, 0].tolist()) == ({3, 4, 5} if shape is bert.Shape else {4, 5})


def test_the_seed_of_the_links_matters_and_the_rest_of_the_weights_is_the_same() -> None:
    tokens, said = torch.randint(20, (1, 32)), []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        said.append(gpt.Shape(**SMALL, **BIRD, links_seed=seed).build(20).eval()(tokens))
    assert torch.equal(said[0], said[1])
    assert not torch.equal(said[0], said[2])
    torch.testing.assert_close(said[0][:, :6], said[2][:, :6])  # the first blocks see all there is


def test_a_model_that_is_built_without_its_weights_has_its_blocks() -> None:
    with torch.device("meta"):
        model = gpt.Shape(**SMALL, **BIRD).build(20)
    assert torch.equal(model.structure.mask(1, 32, 32), gpt.Shape(**SMALL, **BIRD).looks().mask(1, 32, 32))


def test_blocks_wider_than_the_text_are_full_attention() -> None:
    torch.manual_seed(0)
    tokens, weights = torch.randint(20, (2, 32)), gpt.Shape(**SMALL).build(20).state_dict()
    wide = gpt.Shape(**SMALL, structure="bigbird", block=32).build(20)
    wide.load_state_dict(weights)
    plain = gpt.Shape(**SMALL).build(20)
    plain.load_state_dict(weights)
    torch.testing.assert_close(wide(tokens), plain(tokens))


def test_a_block_wider_than_the_context_is_cut_to_it() -> None:
    assert gpt.Shape(**SMALL, structure="bigbird", block=65536).reach().plan.size == 32


@pytest.mark.process
def test_models_are_imported_without_a_compiler() -> None:
    """It takes a second, which every command would wait."""
    code = "import sys, harken.models.gpt, harken.experiments.train; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_was_laid_out_for_an_answer_serves_a_training() -> None:
    model, tokens = gpt.Shape(**SMALL, **BIRD).build(20), torch.randint(20, (2, 32))
    with torch.inference_mode():
        model(tokens)
    model(tokens).sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_layouts_of_shapes_that_are_gone_are_gone_too() -> None:
    plan = gpt.Shape(**SMALL, **BIRD).looks().plan
    made = [weakref.ref(plan(1, L, torch.device("cpu"))) for L in range(5, 25)]
    assert len(plan.made) == 4
    assert sum(one() is not None for one in made) == 4


def test_what_a_recorded_step_reads_outlives_the_shapes_that_come_after_it(monkeypatch) -> None:
    plan = gpt.Shape(**SMALL, **BIRD).looks().plan
    cpu = torch.device("cpu")
    read = plan(1, 5, cpu)
    monkeypatch.setattr(bigbird, "recording", lambda device: True)
    assert plan(1, 5, cpu) is read
    monkeypatch.setattr(bigbird, "recording", lambda device: False)
    gone = weakref.ref(read)
    del read
    for L in range(6, 20):
        plan(1, L, cpu)
    assert (1, 5, cpu) not in plan.made
    assert gone() is not None


def test_blocks_that_save_nothing_are_told_and_others_are_not() -> None:
    said = gpt.Shape(structure="bigbird", context=256).remark
    assert "model.context=256 has 4 blocks, and each looks at up to 7" in said
    assert gpt.Shape(structure="bigbird", context=4096).remark is gpt.Shape().remark is None


def test_without_the_setting_nothing_is_joined_to_the_causal_mask() -> None:
    assert gpt.Shape().looks() is CAUSAL


def test_alibi_is_refused_in_one_line() -> None:
    with pytest.raises(BadSetting, match="positions=alibi: its bias"):
        gpt.Shape(**SMALL, **BIRD, positions="alibi").build(20)


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_heads_for_labels_read_long_texts_one_a_row(kind: str) -> None:
    shape = registry.find("model", kind, " of labels")
    assert shape().packs
    assert not shape(**BIRD).packs
    headed = shape(**SMALL, **BIRD).build(Outputs(20, 3))
    with torch.no_grad(), watching(headed, "body.stack.blocks.0.look") as views:
        headed(torch.randint(20, (2, 31)), lengths=torch.tensor([31, 12]))
    (view,) = views.values()
    assert view.layout.tiles is not None  # what is computed: blocks, even under padding
