"""Export: transformers gives the same outputs, and importing the folder gives the same run."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, AutoTokenizer

import harken
from harken import run_folder as runs
from harken.bridge.export import export
from harken.bridge.importer import import_model
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
LIMIT = 1e-5
GPT = {"model.kind": "gpt", "model.d": 32, "model.layers": 2, "model.heads": 4, "model.context": 40}
BERT = {"model.kind": "bert", "model.d": 32, "model.layers": 2, "model.heads": 4, "model.context": 40}
BERT |= {"data.tokenizer": "wordpiece"}
LLAMA = {**GPT, "model.style": "llama", "model.kv_heads": 2}
MODELS = {
    "gpt2": {**GPT, "model.style": "gpt2"},
    "llama": LLAMA,
    "llama-tied": {**LLAMA, "model.tie_embeddings": True, "model.rope_scaling": {"factor": 2.0}},
    "mistral": {**LLAMA, "model.window": 7},
    "qwen2": {**LLAMA, "model.bias": "qkv"},
    "gemma": {**LLAMA, "model.activation": "geglu", "model.embedding_scale": 32**0.5, "model.tie_embeddings": True},
    "bert": BERT,
    "bert-body": {**BERT, "model.mlm_head": False, "model.nsp_head": False},
    "bert-words": {**BERT, "model.nsp_head": False, "model.pooler": False, "model.activation": "relu"},
    "distilbert": {**BERT, "model.nsp_head": False, "model.pooler": False, "model.segments": 0},
}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_export_passes_its_certificate_and_importing_it_gives_the_same_weights(build_run, tmp_path, name):
    run = build_run(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["family"] == name.split("-")[0]
    assert certificate["not_checked"] == []
    imported = import_model(tmp_path / "out", tmp_path / "again")
    text, back = runs.weights(run.model), runs.weights(imported.model)
    rows = {"embed.weight", "head.weight"}
    for key, tensor in text.items():
        n_rows = run.tokenizer.vocab if key in rows else len(tensor)
        assert back[key][:n_rows] == pytest.approx(tensor[:n_rows], abs=1e-6), key
    tokens = torch.randint(0, run.tokenizer.vocab, (2, 20))
    with torch.no_grad():
        assert (imported.model(tokens) - run.model(tokens)).abs().max() <= LIMIT


@torch.no_grad()
def test_transformers_alone_generates_the_same_text(build_run, tmp_path):
    run = build_run(MODELS["gpt2"])
    export(run, tmp_path / "out")
    reference, tokenizer = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    inputs = tokenizer("Tom had a", return_tensors="pt")
    output_ids = reference.generate(**inputs, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)
    text = run.generate("Tom had a", max_new_tokens=20, temperature=0)
    special_tokens = {run.tokenizer.token_texts([i])[0] for i in run.tokenizer.special_ids}
    assert not special_tokens & set(tokenizer.convert_ids_to_tokens(output_ids[0]))
    assert tokenizer.decode(output_ids[0, inputs["input_ids"].shape[1] :]) == text


@torch.no_grad()
def test_sentence_pairs_have_the_special_tokens_of_bert(build_run, tmp_path):
    run = build_run(MODELS["bert"])
    export(run, tmp_path / "out")
    reference, tokenizer = (
        AutoModelForPreTraining.from_pretrained(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    inputs = tokenizer("Tom had a hat.", "He ran.", return_tensors="pt")
    t = run.tokenizer
    a, b = (t.encode(text).tolist() for text in ("Tom had a hat.", "He ran."))
    assert inputs["input_ids"][0].tolist() == [t.cls_id, *a, t.sep_id, *b, t.sep_id]
    assert inputs["token_type_ids"][0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    h = run.model(inputs["input_ids"], segments=inputs["token_type_ids"])
    outputs = reference(**inputs)
    assert (run.model.logits(h) - outputs.prediction_logits).abs().max() <= LIMIT
    assert (run.model.next_sentence_scores(h[:, 0]) - outputs.seq_relationship_logits).abs().max() <= LIMIT


def test_a_model_without_counterpart_is_refused_with_the_required_settings(build_run, tmp_path):
    run = build_run({**GPT, "model.positions": "learned", "model.input_projection": True})
    with pytest.raises(BadInput, match=r"it needs model\.input_projection=False$"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bigbird_has_no_counterpart_and_its_settings_are_ignored(build_run, tmp_path):
    settings = {**MODELS["gpt2"], "model.structure": "bigbird", "model.block_size": 8}
    with pytest.raises(BadInput, match=r"it needs model\.structure=full$"):
        export(build_run(settings), tmp_path / "out")


def test_a_model_kind_without_counterpart_is_refused(build_run, tmp_path):
    with pytest.raises(BadInput, match="lstm for text has no counterpart"):
        export(build_run({"model.kind": "lstm", "model.d": 16, "data.tokenizer": "char"}), tmp_path / "out")


def test_a_non_empty_folder_is_not_overwritten(build_run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="is not empty"):
        export(build_run(MODELS["gpt2"]), tmp_path / "out")


def test_a_failed_certificate_leaves_no_files(build_run, tmp_path, monkeypatch):
    from harken.bridge import export as module

    run, export_tensors = build_run(MODELS["gpt2"]), module.export_tensors
    monkeypatch.setattr(
        module,
        "export_tensors",
        lambda *a: {n: t + (n == "transformer.ln_f.bias") for n, t in export_tensors(*a).items()},
    )
    with pytest.raises(harken.HarkenError, match=r"logits differ .*; nothing was written"):
        export(run, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == ["run"]


def test_characters_are_exported_with_their_ids(build_run, tmp_path):
    run = build_run({**MODELS["gpt2"], "data.tokenizer": "char"})
    export(run, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer("Tom ß")["input_ids"] == run.tokenizer.encode("Tom ß").tolist()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == run.tokenizer.vocab
