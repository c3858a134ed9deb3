"""Export of encoder-decoders: transformers loads them as Marian or BART, with equal scores and outputs."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from harken import run_folder as runs
from harken.bridge.export import export
from harken.bridge.importer import import_model
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
LIMIT = 1e-5
BODY = {"data.kind": "pairs", "model.kind": "transformer", "model.d": 32, "model.layers": 2, "model.heads": 4}
BODY |= {"model.d_ff": 48, "model.context": 48, "model.norm": "post"}
MARIAN = {**BODY, "model.positions": "sinusoid-halves", "model.activation": "relu", "model.embedding_scale": 1.0}
MODELS = {
    "marian": MARIAN,
    "marian-scaled": {**MARIAN, "model.embedding_scale": 32**0.5, "model.encoder_layers": 3, "model.head_bias": True},
    "marian-paper": {**BODY, "model.positions": "sinusoid", "model.activation": "relu"},  # as the recipe translate-base
    "bart": {**BODY, "model.positions": "learned", "model.embed_norm": True, "data.tokenizer": "char"},
}
TEXT = "Tom had a hat"


@pytest.mark.parametrize("name", list(MODELS))
def test_transformers_generates_the_same_targets(build_run, tmp_path, name):
    run = build_run(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["family"] == name.partition("-")[0]
    assert certificate["not_checked"] == []
    tokenizer, reference = (kind.from_pretrained(tmp_path / "out") for kind in (AutoTokenizer, AutoModelForSeq2SeqLM))
    inputs = tokenizer([TEXT, "He ran"], padding=True, return_tensors="pt")
    assert inputs["input_ids"][0].tolist()[: len(run.tokenizer.encode_source(TEXT))] == list(
        run.tokenizer.encode_source(TEXT)
    )
    with torch.no_grad():
        outputs = reference.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            num_beams=4,
            max_new_tokens=20,
        )
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in outputs]
    assert texts == run.translate([TEXT, "He ran"], max_new_tokens=20, beam=4)
    assert len(texts[0]) > 3


@torch.no_grad()
def test_importing_the_export_gives_the_same_scores(build_run, tmp_path):
    run = build_run(MODELS["marian-scaled"])
    export(run, tmp_path / "out")
    imported = import_model(tmp_path / "out", tmp_path / "again")
    edge, new = run.model.edge, imported.model.edge
    source, target = torch.randint(edge, (2, 9)), torch.randint(edge, (2, 12))
    ours = run.model.scores(target, source=source).log_softmax(-1)
    back = imported.model.scores(target, source=source).log_softmax(-1)
    assert (back[..., :edge] - ours[..., :edge]).abs().max() <= LIMIT
    assert (back[..., new] - ours[..., edge]).abs().max() <= LIMIT
    assert imported.translate(TEXT, max_new_tokens=20) == run.translate(TEXT, max_new_tokens=20)
    second_certificate = export(imported, tmp_path / "twice")
    assert second_certificate["passed"]
    first, second = (runs.read_tensors(tmp_path / name / "model.safetensors") for name in ("out", "twice"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert second[name].equal(tensor), name


@pytest.mark.parametrize(
    ("settings", "required"),
    [
        ({"model.norm": "pre", "model.positions": "rotary"}, "model.positions=sinusoid-halves, model.norm=post"),
        ({"model.tie_embeddings": False}, "model.tie_embeddings=True"),
        ({"data.shared_vocab": False, "model.share_embeddings": False}, "model.share_embeddings=True"),
        ({"model.kv_heads": 2, "model.rms_norm": True}, "model.kv_heads=4, model.rms_norm=False"),
    ],
)
def test_a_model_without_counterpart_is_refused_with_the_required_settings(build_run, tmp_path, settings, required):
    with pytest.raises(BadInput, match=f"it needs {required}$".replace(".", r"\.")):
        export(build_run({**MARIAN, **settings}), tmp_path / "out")


def test_a_word_tokenizer_is_not_exported_and_listed_in_the_certificate(build_run, tmp_path):
    run = build_run({**MARIAN, "data.tokenizer": "word"})
    certificate = export(run, tmp_path / "out")
    assert certificate["logits"]["passed"]
    assert "cannot express a word tokenizer" in certificate["not_checked"][0]
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == run.tokenizer.source.vocab + 2
