"""ONNX export: onnxruntime gives the outputs of the run for any batch size and length."""

import json
import sys

import numpy as np
import onnxruntime
import pytest
import tokenizers
import torch
from click.testing import CliRunner

import harken
from harken.bridge import onnx
from harken.cli import harken as program
from harken.decode.beam import SearchSettings
from harken.errors import BadInput, MissingExtra

pytestmark = pytest.mark.oracle
BODY = {"model.d": 32, "model.layers": 1, "model.heads": 4, "model.context": 40}
BERT = {**BODY, "model.kind": "bert", "data.tokenizer": "wordpiece"}
LLAMA = {**BODY, "model.kind": "gpt", "model.style": "llama", "model.kv_heads": 2, "model.window": 5}
PAIRS = {**BODY, "model.kind": "transformer", "data.kind": "pairs"}


def session(folder):
    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


@torch.no_grad()
def test_the_export_verb_writes_a_graph_with_the_same_logits(build_run, tmp_path, monkeypatch):
    run = build_run(LLAMA)
    monkeypatch.chdir(tmp_path)
    completed = CliRunner().invoke(program, ["export", str(run.path), "--to", "onnx", "--json"])
    actual = json.loads(completed.output.splitlines()[-1])
    assert actual["path"] == "run-onnx"
    assert actual["certificate"]["logits"]["passed"]
    target_ids = sorted(p.name for p in (tmp_path / "run-onnx").iterdir())
    assert target_ids == ["certificate.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]
    graph = session(tmp_path / "run-onnx")
    for B, L in ((1, 40), (5, 3)):
        tokens = torch.randint(run.tokenizer.vocab, (B, L))
        (logits,) = graph.run(["logits"], {"input_ids": tokens.numpy()})
        assert logits == pytest.approx(run.model.scores(tokens).numpy(), abs=1e-5)


@torch.no_grad()
def test_hidden_states_of_padded_texts_are_equal(build_run):
    """Without export: the body of a head, below, is the same graph."""
    run = build_run(BERT)
    graph, inputs, outputs = onnx._build_graph(run)
    assert outputs == ["last_hidden_state", "logits"]
    tokens, real, segments = onnx._random_inputs(inputs, 3, 11, run)
    h, scores = graph.eval()(tokens, real, segments)
    expected = run.model(tokens, lengths=real.sum(1), segments=segments)
    assert h[real > 0] == pytest.approx(expected[real > 0], abs=1e-5)
    assert scores[real > 0] == pytest.approx(run.model.logits(expected)[real > 0], abs=1e-5)


@torch.no_grad()
def test_target_logits_are_equal_for_sources_of_any_length(build_run, tmp_path):
    run = build_run({**PAIRS, "data.shared_vocab": False, "model.share_embeddings": False})
    assert run.tokenizer.target.vocab < 100 < run.tokenizer.source.vocab
    assert onnx.export(run, tmp_path / "out")["logits"]["passed"]
    graph, edge = session(tmp_path / "out"), run.model.edge
    config = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    library.enable_padding(pad_id=config["pad_token_id"])
    texts = ["Tom had a hat", "He ran"]
    encodings = library.encode_batch(texts)
    inputs_ = {
        "input_ids": np.array([r.ids for r in encodings]),
        "attention_mask": np.array([r.attention_mask for r in encodings]),
    }
    target_ids = np.full((2, 1), config["decoder_start_token_id"])
    for _ in range(12):
        (logits,) = graph.run(["logits"], {**inputs_, "decoder_input_ids": target_ids})
        target_ids = np.append(target_ids, logits[:, -1:].argmax(-1), 1)
    for text, row in zip(texts, target_ids[:, 1:].tolist(), strict=True):
        source = run.tokenizer.encode_source(text).tolist()
        expected = run.beam_search.search([source], SearchSettings(beam=1, max_new_tokens=12))[0][0].tokens
        assert (row[: row.index(edge)] if edge in row else row) == expected


@torch.no_grad()
def test_labels_of_padded_texts_are_equal(build_run, tmp_path):
    run = build_run({**BERT, "data.kind": "table"})
    onnx.export(run, tmp_path / "out")
    labels = list(json.loads((tmp_path / "out" / "labels.json").read_text())["id2label"].values())
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    library.enable_padding()
    texts = ["Tom had a hat", "He ran"]
    encodings = library.encode_batch(texts)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    graph = session(tmp_path / "out")
    inputs_ = {one.name: np.array([getattr(r, columns[one.name]) for r in encodings]) for one in graph.get_inputs()}
    (logits,) = graph.run(["logits"], inputs_)
    for row, actual in zip(torch.from_numpy(logits).softmax(-1).tolist(), run.classify(texts), strict=True):
        expected = {one["label"]: one["probability"] for one in actual}
        assert expected == pytest.approx(dict(zip(labels, row, strict=True)), abs=1e-5)


GRAPHS = {
    "labels by a mean": {**BERT, "data.kind": "table", "model.pool": "mean"},
    "labels without a pooler": {**BERT, "data.kind": "table", "model.pooler": False},
    "labels by the last token": {**LLAMA, "data.kind": "table", "model.pool": "last"},
    "tags": {**BERT, "data.kind": "tags"},
    "pairs with one vocabulary": PAIRS,
}


@pytest.mark.parametrize("name", list(GRAPHS))
@torch.no_grad()
def test_the_module_of_a_graph_gives_the_outputs_of_the_run(build_run, name):
    """Without export, which compares the outputs itself."""
    run = build_run(GRAPHS[name])
    graph, inputs, _ = onnx._build_graph(run)
    for B, L in onnx.CHECKED_SHAPES:
        inputs_ = onnx._random_inputs(inputs, B, L, run)
        real = inputs_[1] > 0 if graph.per_token else slice(None)
        (actual,), (expected,) = graph.eval()(*inputs_), graph.expected(*inputs_)
        assert actual[real] == pytest.approx(expected[real], abs=1e-5)
        assert expected.std() > 0.01


def test_a_graph_with_other_outputs_is_discarded(build_run, tmp_path, monkeypatch):
    class Wrong:
        def __init__(self, path, providers):
            assert path.exists()

        def run(self, outputs, inputs_):
            return [np.zeros((*inputs_["input_ids"].shape, 400), np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    monkeypatch.setattr(onnx, "_write", lambda graph, path, *_: path.touch())
    with pytest.raises(harken.HarkenError, match=r"logits differ .*; nothing was written"):
        onnx.export(build_run(LLAMA), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bigbird_attention_is_refused(build_run, tmp_path):
    with pytest.raises(BadInput, match=r"model\.structure=bigbird has no ONNX export"):
        onnx.export(build_run({**LLAMA, "model.structure": "bigbird"}), tmp_path / "out")


def test_an_lstm_and_a_missing_onnxruntime_are_refused(build_run, tmp_path, monkeypatch):
    run = build_run({"model.kind": "lstm", "model.d": 16, "data.tokenizer": "char"})
    with pytest.raises(BadInput, match="lstm has no ONNX export"):
        onnx.export(run, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"harken\[onnx\]"):
        onnx.export(run, tmp_path / "out")
