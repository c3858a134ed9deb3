"""ONNX: onnxruntime says what the run says, whatever the batch and the length."""

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
from harken.decode.beam import Search
from harken.errors import BadInput, MissingExtra

pytestmark = pytest.mark.oracle
BODY = {"model.d": 32, "model.layers": 1, "model.heads": 4, "model.context": 40}
BERT = {**BODY, "model.kind": "bert", "data.tokenizer": "wordpiece"}
LLAMA = {**BODY, "model.kind": "gpt", "model.style": "llama", "model.kv_heads": 2, "model.window": 5}
PAIRS = {**BODY, "model.kind": "transformer", "data.kind": "pairs"}


def session(folder):
    return onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


@torch.no_grad()
def test_the_verb_writes_a_graph_whose_scores_are_the_runs(made, tmp_path, monkeypatch):
    run = made(LLAMA)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(program, ["export", str(run.path), "--to", "onnx", "--json"])
    found = json.loads(said.output.splitlines()[-1])
    assert found["path"] == "run-onnx"
    assert found["certificate"]["logits"]["passed"]
    written = sorted(p.name for p in (tmp_path / "run-onnx").iterdir())
    assert written == ["certificate.json", "model.onnx", "tokenizer.json", "tokenizer_config.json"]
    graph = session(tmp_path / "run-onnx")
    for B, L in ((1, 40), (5, 3)):
        tokens = torch.randint(run.tokenizer.vocab, (B, L))
        (said,) = graph.run(["logits"], {"input_ids": tokens.numpy()})
        assert said == pytest.approx(run.model.scores(tokens).numpy(), abs=1e-5)


@torch.no_grad()
def test_the_states_of_padded_texts_are_the_runs(made):
    """Before they are written: the body of a head, below, is the same graph."""
    run = made(BERT)
    graph, inputs, outputs = onnx._graph(run)
    assert outputs == ["last_hidden_state", "logits"]
    tokens, real, segments = onnx._drawn(inputs, 3, 11, run)
    h, scores = graph.eval()(tokens, real, segments)
    expected = run.model(tokens, lengths=real.sum(1), segments=segments)
    assert h[real > 0] == pytest.approx(expected[real > 0], abs=1e-5)
    assert scores[real > 0] == pytest.approx(run.model.logits(expected)[real > 0], abs=1e-5)


@torch.no_grad()
def test_the_scores_of_a_target_are_the_runs_for_sources_of_any_length(made, tmp_path):
    run = made({**PAIRS, "data.shared_vocab": False, "model.share_embeddings": False})
    assert run.tokenizer.target.vocab < 100 < run.tokenizer.source.vocab
    assert onnx.export(run, tmp_path / "out")["logits"]["passed"]
    graph, edge = session(tmp_path / "out"), run.model.edge
    asked = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    library.enable_padding(pad_id=asked["pad_token_id"])
    texts = ["Tom had a hat", "He ran"]
    read = library.encode_batch(texts)
    given = {"input_ids": np.array([r.ids for r in read]), "attention_mask": np.array([r.attention_mask for r in read])}
    written = np.full((2, 1), asked["decoder_start_token_id"])
    for _ in range(12):
        (said,) = graph.run(["logits"], {**given, "decoder_input_ids": written})
        written = np.append(written, said[:, -1:].argmax(-1), 1)
    for text, row in zip(texts, written[:, 1:].tolist(), strict=True):
        source = run.tokenizer.encode_source(text).tolist()
        own = run.finder.search([source], Search(beam=1, longest=12))[0][0].tokens
        assert (row[: row.index(edge)] if edge in row else row) == own


@torch.no_grad()
def test_labels_of_padded_texts_are_the_runs(made, tmp_path):
    run = made({**BERT, "data.kind": "table"})
    onnx.export(run, tmp_path / "out")
    labels = list(json.loads((tmp_path / "out" / "labels.json").read_text())["id2label"].values())
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    library.enable_padding()
    texts = ["Tom had a hat", "He ran"]
    read = library.encode_batch(texts)
    columns = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    graph = session(tmp_path / "out")
    given = {one.name: np.array([getattr(r, columns[one.name]) for r in read]) for one in graph.get_inputs()}
    (said,) = graph.run(["logits"], given)
    for row, found in zip(torch.from_numpy(said).softmax(-1).tolist(), run.classify(texts), strict=True):
        ours = {one["label"]: one["probability"] for one in found}
        assert ours == pytest.approx(dict(zip(labels, row, strict=True)), abs=1e-5)


GRAPHS = {
    "labels by a mean": {**BERT, "data.kind": "table", "model.pool": "mean"},
    "labels without a pooler": {**BERT, "data.kind": "table", "model.pooler": False},
    "labels by the last token": {**LLAMA, "data.kind": "table", "model.pool": "last"},
    "tags": {**BERT, "data.kind": "tags"},
    "pairs with one vocabulary": PAIRS,
}


@pytest.mark.parametrize("name", list(GRAPHS))
@torch.no_grad()
def test_the_way_of_a_graph_gives_what_the_run_says(made, name):
    """Before it is written: the export itself compares what was."""
    run = made(GRAPHS[name])
    graph, inputs, _ = onnx._graph(run)
    for B, L in onnx.SHAPES:
        given = onnx._drawn(inputs, B, L, run)
        real = given[1] > 0 if graph.each_token else slice(None)
        (found,), (expected,) = graph.eval()(*given), graph.ours(*given)
        assert found[real] == pytest.approx(expected[real], abs=1e-5)
        assert expected.std() > 0.01


def test_a_graph_that_says_something_else_is_not_kept(made, tmp_path, monkeypatch):
    class Wrong:
        def __init__(self, path, providers):
            assert path.exists()

        def run(self, outputs, given):
            return [np.zeros((*given["input_ids"].shape, 400), np.float32)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    monkeypatch.setattr(onnx, "_write", lambda graph, path, *_: path.touch())
    with pytest.raises(harken.HarkenError, match=r"logits differ .*; nothing was written"):
        onnx.export(made(LLAMA), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_blocks_are_refused_in_one_line(made, tmp_path):
    with pytest.raises(BadInput, match=r"model\.structure=bigbird is not exported to ONNX"):
        onnx.export(made({**LLAMA, "model.structure": "bigbird"}), tmp_path / "out")


def test_what_cannot_be_exported_is_refused(made, tmp_path, monkeypatch):
    run = made({"model.kind": "lstm", "model.d": 16, "data.tokenizer": "char"})
    with pytest.raises(BadInput, match="a lstm is not exported to ONNX"):
        onnx.export(run, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"harken\[onnx\]"):
        onnx.export(run, tmp_path / "out")
