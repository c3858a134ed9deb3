"""Heads: what a run says of texts, words and spans, transformers says of them too; and BERT's come back as runs."""

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
from harken.bridge.importer import bring
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


def stranger(folder):
    """The model and the words of someone who knows only transformers."""
    kind = json.loads((folder / "config.json").read_text())["architectures"][0]
    return getattr(transformers, kind).from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", list(MODELS))
def test_transformers_says_what_the_head_says(made, tmp_path, name):
    run = made(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["not_checked"] == []
    assert certificate["labels"]["equal"] > 5
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [name]
    assert list(config["id2label"].values()) == run.tokenizer.labels
    _, told = getattr(transformers, name).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
@torch.no_grad()
def test_a_stranger_gets_the_labels_of_a_text(made, tmp_path, name):
    run = made(MODELS[name])
    export(run, tmp_path / "out")
    theirs, words = stranger(tmp_path / "out")
    p = theirs(**words("Tom had a hat.", return_tensors="pt")).logits[0].softmax(-1).tolist()
    found = {theirs.config.id2label[n]: q for n, q in enumerate(p)}
    assert {said["label"]: said["probability"] for said in run.classify("Tom had a hat.")} == pytest.approx(
        found, abs=LIMIT
    )


@torch.no_grad()
def test_two_texts_are_read_as_segments(made, tmp_path):
    run = made(MODELS["BertForSequenceClassification"], pair=True, target_type="multilabel")
    export(run, tmp_path / "out")
    theirs, words = stranger(tmp_path / "out")
    assert theirs.config.problem_type == "multi_label_classification"
    p = theirs(**words("Tom had a hat.", "He ran.", return_tensors="pt")).logits[0].sigmoid().tolist()
    found = {said["label"]: said["probability"] for said in run.classify("Tom had a hat.\tHe ran.")}
    assert found == pytest.approx(dict(zip(run.tokenizer.labels, p, strict=True)), abs=LIMIT)


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "GPT2ForSequenceClassification"])
@torch.no_grad()
def test_numbers_come_as_those_of_the_data(made, tmp_path, name):
    run = made(MODELS[name], labels=["score"], target_type="number", mean=3.2, spread=1.7)
    export(run, tmp_path / "out")
    theirs, words = stranger(tmp_path / "out")
    value = theirs(**words("Tom had a hat.", return_tensors="pt")).logits.item()
    assert value == pytest.approx(run.classify("Tom had a hat.")[0]["value"], abs=LIMIT)


@torch.no_grad()
def test_tags_stand_at_the_first_piece_of_a_word(made, tmp_path):
    run = made(MODELS["BertForTokenClassification"], labels=["NOUN", "VERB", "O"])
    export(run, tmp_path / "out")
    theirs, words = stranger(tmp_path / "out")
    text = "Tom had an umbrella and ran"
    asked = words(text, return_tensors="pt")
    first = [asked.word_ids().index(n) for n in range(len(text.split()))]
    tags = [theirs.config.id2label[n] for n in theirs(**asked).logits[0, first].argmax(-1).tolist()]
    found = [(tag, word) for tag, word in zip(tags, text.split(), strict=True) if tag != "O"]
    assert [(said["label"], said["text"]) for said in run.tag(text)] == found
    assert len(asked["input_ids"][0]) > len(text.split()) + 2
    assert found


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name.startswith(("BertForS", "BertForT", "DistilBertForT"))]
)
def test_the_way_back_gives_the_run(made, tmp_path, name):
    run = made(MODELS[name])
    export(run, tmp_path / "out")
    again = bring(tmp_path / "out", tmp_path / "again")
    assert again.tokenizer.labels == run.tokenizer.labels
    loaded = harken.load(tmp_path / "again", device="cpu")
    first, second = ([r.classify, r.tag][r.verb == "tag"]("Tom had a hat and Lily ran") for r in (run, loaded))
    assert [said["label"] for said in first] == [said["label"] for said in second]
    assert [said["probability"] for said in first] == pytest.approx([said["probability"] for said in second], abs=LIMIT)
    own = runs.weights(run.model)
    for key, tensor in runs.weights(loaded.model).items():
        many = run.tokenizer.tokenizer.vocab if key == "body.embed.weight" else len(tensor)
        assert own[key][:many] == pytest.approx(tensor[:many], abs=1e-6), key


@pytest.mark.parametrize("make", [BertForSequenceClassification, BertForTokenClassification])
@torch.no_grad()
def test_a_folder_of_transformers_becomes_a_run_with_its_labels(words, tmp_path, make):
    vocab = words["wordpiece"].vocab
    labels = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC"}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(vocab_size=vocab, max_position_embeddings=64, id2label=labels, **sizes)
    torch.manual_seed(0)
    theirs = make(config).eval()
    for p in theirs.parameters():
        p.add_(torch.randn(p.shape) * 0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    t = words["wordpiece"]
    library = tokenizers.Tokenizer.from_buffer(t.json)
    library.post_processor = tokenizers.processors.BertProcessing(("[SEP]", t.sep), ("[CLS]", t.cls))
    library.save(str(tmp_path / "theirs" / "tokenizer.json"))
    run = bring(tmp_path / "theirs", tmp_path / "run")
    certificate = json.loads((tmp_path / "run" / "certificate.json").read_text())
    assert certificate["labels"]["passed"]
    asked = torch.tensor([[t.cls, *t.encode("Tom ran").tolist(), t.sep]])
    y = theirs(asked).logits[0]
    if make is BertForSequenceClassification:
        assert run.classify("Tom ran")[0]["label"] == labels[int(y.argmax())]
    else:
        assert run.tokenizer.labels == list(labels.values())
        assert run.verb == "tag"
    assert export(run, tmp_path / "back")["passed"]
    first, second = (runs.read_tensors(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert {name: t.tolist() for name, t in first.items()} == {name: t.tolist() for name, t in second.items()}


def test_what_has_no_counterpart_is_refused_by_the_setting(made, tmp_path):
    wanted = r"it would have with model\.norm=post, model\.pool=first, model\.pooler=True"
    run = made({**BERT, "data.kind": "table", "model.pool": "mean", "model.pooler": False, "model.norm": "pre"})
    with pytest.raises(BadInput, match=r"model\.pooler=True, model\.norm=post, model\.pool=first$|" + wanted):
        export(run, tmp_path / "out")


@pytest.mark.parametrize("top", ["GPT2ForSequenceClassification", "BertForQuestionAnswering"])
def test_a_head_that_is_written_and_not_read_is_refused_by_name(made, tmp_path, top):
    export(made(MODELS[top]), tmp_path / "out")
    with pytest.raises(BadInput, match=f"a {top} is not read"):
        bring(tmp_path / "out", tmp_path / "again")


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"a": "b"}, {"0": 1}, {"0": ""}, []])
def test_labels_that_are_none_are_refused(made, tmp_path, labels):
    export(made(MODELS["BertForTokenClassification"]), tmp_path / "out")
    place = tmp_path / "out" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"id2label": labels}))
    with pytest.raises(BadInput, match="config id2label"):
        bring(tmp_path / "out", tmp_path / "again")
