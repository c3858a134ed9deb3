"""Export: what transformers loads from the folder says what the run says, and an import of it is the run again."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForCausalLM, AutoModelForPreTraining, AutoTokenizer

import harken
from harken import run_folder as runs
from harken.bridge.export import export
from harken.bridge.importer import bring
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
def test_transformers_says_what_the_run_says_and_the_way_back_gives_the_run(made, tmp_path, name):
    run = made(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["family"] == name.split("-")[0]
    assert certificate["not_checked"] == []
    again = bring(tmp_path / "out", tmp_path / "again")
    own, back = runs.weights(run.model), runs.weights(again.model)
    rows = {"embed.weight", "head.weight"}
    for key, tensor in own.items():
        many = run.tokenizer.vocab if key in rows else len(tensor)
        assert back[key][:many] == pytest.approx(tensor[:many], abs=1e-6), key
    tokens = torch.randint(0, run.tokenizer.vocab, (2, 20))
    with torch.no_grad():
        assert (again.model(tokens) - run.model(tokens)).abs().max() <= LIMIT


@torch.no_grad()
def test_a_stranger_who_knows_only_transformers_gets_the_same_text(made, tmp_path):
    run = made(MODELS["gpt2"])
    export(run, tmp_path / "out")
    theirs, words = (
        AutoModelForCausalLM.from_pretrained(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    asked = words("Tom had a", return_tensors="pt")
    written = theirs.generate(**asked, max_new_tokens=20, do_sample=False, pad_token_id=0, eos_token_id=None)
    own = run.generate("Tom had a", tokens=20, temperature=0)
    marks = {run.tokenizer.words([i])[0] for i in run.tokenizer.marks}
    assert not marks & set(words.convert_ids_to_tokens(written[0]))
    assert words.decode(written[0, asked["input_ids"].shape[1] :]) == own


@torch.no_grad()
def test_two_sentences_are_framed_as_bert_has_them(made, tmp_path):
    run = made(MODELS["bert"])
    export(run, tmp_path / "out")
    theirs, words = (
        AutoModelForPreTraining.from_pretrained(tmp_path / "out"),
        AutoTokenizer.from_pretrained(tmp_path / "out"),
    )
    asked = words("Tom had a hat.", "He ran.", return_tensors="pt")
    t = run.tokenizer
    a, b = (t.encode(text).tolist() for text in ("Tom had a hat.", "He ran."))
    assert asked["input_ids"][0].tolist() == [t.cls, *a, t.sep, *b, t.sep]
    assert asked["token_type_ids"][0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    h = run.model(asked["input_ids"], segments=asked["token_type_ids"])
    said = theirs(**asked)
    assert (run.model.logits(h) - said.prediction_logits).abs().max() <= LIMIT
    assert (run.model.next_sentence_scores(h[:, 0]) - said.seq_relationship_logits).abs().max() <= LIMIT


def test_a_model_without_a_counterpart_is_told_what_it_lacks(made, tmp_path):
    run = made({**GPT, "model.positions": "learned", "model.input_projection": True})
    with pytest.raises(BadInput, match=r"it would have with model\.lift=False$"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_blocks_have_no_counterpart_and_their_settings_need_none(made, tmp_path):
    settings = {**MODELS["gpt2"], "model.structure": "bigbird", "model.block_size": 8}
    with pytest.raises(BadInput, match=r"it would have with model\.structure=full$"):
        export(made(settings), tmp_path / "out")


def test_a_kind_without_a_counterpart_is_refused(made, tmp_path):
    with pytest.raises(BadInput, match="a lstm of text has no counterpart"):
        export(made({"model.kind": "lstm", "model.d": 16, "data.tokenizer": "char"}), tmp_path / "out")


def test_a_full_folder_is_left_alone(made, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(BadInput, match="is not empty"):
        export(made(MODELS["gpt2"]), tmp_path / "out")


def test_a_certificate_that_fails_leaves_nothing(made, tmp_path, monkeypatch):
    from harken.bridge import export as module

    run, good = made(MODELS["gpt2"]), module.theirs
    monkeypatch.setattr(
        module, "theirs", lambda *a: {n: t + (n == "transformer.ln_f.bias") for n, t in good(*a).items()}
    )
    with pytest.raises(harken.HarkenError, match=r"logits differ .*; nothing was written"):
        export(run, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir() if p.name != "cache"] == ["run"]


def test_characters_are_exported_with_their_ids(made, tmp_path):
    run = made({**MODELS["gpt2"], "data.tokenizer": "char"})
    export(run, tmp_path / "out")
    words = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert words("Tom ß")["input_ids"] == run.tokenizer.encode("Tom ß").tolist()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == run.tokenizer.vocab
