"""Heads: transformers gives the same labels, tags and spans; BERT heads can be imported again."""

import json

import pytest
import tokenizers
import torch

pytest.importorskip("transformers")
import transformers
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

import harken
from harken import run_folder as runs
from harken.bridge.export import export
from harken.bridge.importer import import_model
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
LIMIT = 1e-5
BODY = {"model.d": 32, "model.layers": 2, "model.heads": 4, "model.context": 128}
BERT = {**BODY, "model.kind": "bert", "data.tokenizer": "wordpiece"}
GPT = {**BODY, "model.kind": "gpt", "model.style": "gpt2", "data.kind": "table"}
DISTIL = {**BERT, "model.segments": 0}
MODELS = {
    "BertForSequenceClassification": {**BERT, "data.kind": "table"},
    "BertForTokenClassification": {**BERT, "data.kind": "tags"},
    "BertForQuestionAnswering": {**BERT, "data.kind": "spans"},
    "DistilBertForTokenClassification": {**DISTIL, "data.kind": "tags"},
    "DistilBertForQuestionAnswering": {**DISTIL, "data.kind": "spans"},
    "GPT2ForSequenceClassification": {**GPT, "data.tokenizer": "bpe"},
}


def load_with_transformers(folder):
    """Model and tokenizer, loaded with transformers only."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, kind).from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", list(MODELS))
def test_the_export_passes_its_certificate_and_loads_without_missing_keys(build_run, tmp_path, name):
    run = build_run(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["not_checked"] == []
    assert certificate["labels"]["equal"] > 5
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [name]
    assert list(config["id2label"].values()) == run.tokenizer.labels
    _, loading_info = getattr(transformers, name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading_info["missing_keys"]
    assert not loading_info["unexpected_keys"]


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
@torch.no_grad()
def test_transformers_gives_the_same_labels(build_run, tmp_path, name):
    run = build_run(MODELS[name])
    export(run, tmp_path / "out")
    reference, tokenizer = load_with_transformers(tmp_path / "out")
    p = reference(**tokenizer("Tom had a hat.", return_tensors="pt")).logits[0].softmax(-1).tolist()
    expected = {reference.config.id2label[n]: q for n, q in enumerate(p)}
    assert {item["label"]: item["probability"] for item in run.classify("Tom had a hat.")} == pytest.approx(
        expected, abs=LIMIT
    )


@torch.no_grad()
def test_a_pair_of_texts_is_encoded_as_segments(build_run, tmp_path):
    run = build_run(MODELS["BertForSequenceClassification"], n_texts=2, target_type="multilabel")
    export(run, tmp_path / "out")
    reference, tokenizer = load_with_transformers(tmp_path / "out")
    assert reference.config.problem_type == "multi_label_classification"
    p = reference(**tokenizer("Tom had a hat.", "He ran.", return_tensors="pt")).logits[0].sigmoid().tolist()
    expected = {item["label"]: item["probability"] for item in run.classify("Tom had a hat.\tHe ran.")}
    assert expected == pytest.approx(dict(zip(run.tokenizer.labels, p, strict=True)), abs=LIMIT)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
@torch.no_grad()
def test_regression_values_are_in_the_units_of_the_data(build_run, tmp_path, name):
    run = build_run(MODELS[name], labels=["score"], target_type="number", mean=3.2, std=1.7)
    export(run, tmp_path / "out")
    reference, tokenizer = load_with_transformers(tmp_path / "out")
    value = reference(**tokenizer("Tom had a hat.", return_tensors="pt")).logits.item()
    assert value == pytest.approx(run.classify("Tom had a hat.")[0]["value"], abs=LIMIT)


@torch.no_grad()
def test_the_tag_of_a_word_is_that_of_its_first_piece(build_run, tmp_path):
    run = build_run(MODELS["BertForTokenClassification"], labels=["NOUN", "VERB", "O"])
    export(run, tmp_path / "out")
    reference, tokenizer = load_with_transformers(tmp_path / "out")
    text = "Tom had an umbrella and ran"
    inputs = tokenizer(text, return_tensors="pt")
    first = [inputs.word_ids().index(n) for n in range(len(text.split()))]
    tags = [reference.config.id2label[n] for n in reference(**inputs).logits[0, first].argmax(-1).tolist()]
    expected = [(tag, word) for tag, word in zip(tags, text.split(), strict=True) if tag != "O"]
    assert [(item["label"], item["text"]) for item in run.tag(text)] == expected
    assert len(inputs["input_ids"][0]) > len(text.split()) + 2
    assert expected


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name.startswith(("BertForS", "BertForT", "DistilBertForT"))]
)
def test_importing_the_export_gives_the_same_run(build_run, tmp_path, name):
    run = build_run(MODELS[name])
    export(run, tmp_path / "out")
    imported = import_model(tmp_path / "out", tmp_path / "again")
    assert imported.tokenizer.labels == run.tokenizer.labels
    loaded = harken.load(tmp_path / "again", device="cpu")
    first, second = ([r.classify, r.tag][r.verb == "tag"]("Tom had a hat and Lily ran") for r in (run, loaded))
    assert [item["label"] for item in first] == [item["label"] for item in second]
    assert [item["probability"] for item in first] == pytest.approx([item["probability"] for item in second], abs=LIMIT)
    weights = runs.weights(run.model)
    for key, tensor in runs.weights(loaded.model).items():
        n_rows = run.tokenizer.tokenizer.vocab if key == "body.embed.weight" else len(tensor)
        assert weights[key][:n_rows] == pytest.approx(tensor[:n_rows], abs=1e-6), key


@pytest.mark.parametrize("model_class", [BertForSequenceClassification, BertForTokenClassification])
@torch.no_grad()
def test_a_transformers_classifier_becomes_a_run_with_its_labels(tokenizers_by_kind, tmp_path, model_class):
    tokenizer = tokenizers_by_kind["wordpiece"]
    labels = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(vocab_size=tokenizer.vocab, max_position_embeddings=64, id2label=labels, **sizes)
    torch.manual_seed(0)
    reference = model_class(config).eval()
    for p in reference.parameters():
        p.add_(torch.randn(p.shape) * 0.1)
    reference.save_pretrained(tmp_path / "theirs")
    library = tokenizers.Tokenizer.from_buffer(tokenizer.json)
    library.post_processor = tokenizers.processors.BertProcessing(
        ("[SEP]", tokenizer.sep_id), ("[CLS]", tokenizer.cls_id)
    )
    library.save(str(tmp_path / "theirs" / "tokenizer.json"))
    run = import_model(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["labels"]["passed"]
    inputs = torch.tensor([[tokenizer.cls_id, *tokenizer.encode("Tom ran").tolist(), tokenizer.sep_id]])
    y = reference(inputs).logits[0]
    if model_class is BertForSequenceClassification:
        assert run.classify("Tom ran")[0]["label"] == labels[int(y.argmax())]
    else:
        assert run.tokenizer.labels == list(labels.values())
        assert run.verb == "tag"
    assert export(run, tmp_path / "back")["passed"]
    first, second = (runs.read_tensors(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert {name: t.tolist() for name, t in first.items()} == {name: t.tolist() for name, t in second.items()}


def test_a_head_without_counterpart_is_refused_with_the_required_settings(build_run, tmp_path):
    wanted = r"it needs model\.norm=post, model\.pool=first, model\.pooler=True"
    run = build_run({**BERT, "data.kind": "table", "model.pool": "mean", "model.pooler": False, "model.norm": "pre"})
    with pytest.raises(BadInput, match=r"model\.pooler=True, model\.norm=post, model\.pool=first$|" + wanted):
        export(run, tmp_path / "out")


@pytest.mark.parametrize("architecture", ["GPT2ForSequenceClassification", "BertForQuestionAnswering"])
def test_an_export_only_head_is_not_imported(build_run, tmp_path, architecture):
    export(build_run(MODELS[architecture]), tmp_path / "out")
    with pytest.raises(BadInput, match=f"{architecture} is not supported"):
        import_model(tmp_path / "out", tmp_path / "again")


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"a": "b"}, {"0": 1}, {"0": ""}, []])
def test_invalid_labels_are_refused(build_run, tmp_path, labels):
    export(build_run(MODELS["BertForTokenClassification"]), tmp_path / "out")
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": labels}))
    with pytest.raises(BadInput, match="config id2label"):
        import_model(tmp_path / "out", tmp_path / "again")
