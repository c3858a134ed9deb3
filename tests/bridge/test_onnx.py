"""ONNX: onnxruntime says what the run says, whatever the batch and the length."""

import json

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
BODY = {"model.d": 32, "model.layers": 2, "model.heads": 4, "model.context": 40}
BERT = {**BODY, "model.kind": "bert", "data.tokens": "wordpiece"}
LLAMA = {**BODY, "model.kind": "gpt", "model.style": "llama", "model.kv_heads": 2, "model.window": 5}


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
def test_the_states_of_padded_texts_are_the_runs(made, tmp_path):
    run = made(BERT)
    onnx.export(run, tmp_path / "out")
    graph = session(tmp_path / "out")
    tokens, lengths = torch.randint(run.tokenizer.vocab, (3, 11)), torch.tensor([11, 4, 1])
    real = torch.arange(11) < lengths[:, None]
    given = {
        "input_ids": tokens,
        "attention_mask": real.long(),
        "token_type_ids": (torch.arange(11) > 1).expand(3, 11).long(),
    }
    said = graph.run(None, {one.name: given[one.name].numpy() for one in graph.get_inputs()})
    h = run.model(tokens, lengths=lengths, segments=given["token_type_ids"])
    assert said[0][real.numpy()] == pytest.approx(h[real].numpy(), abs=1e-5)
    assert said[1][real.numpy()] == pytest.approx(run.model.logits(h)[real].numpy(), abs=1e-5)


@pytest.mark.parametrize("joint", [True, False])
@torch.no_grad()
def test_the_scores_of_a_target_are_the_runs_for_sources_of_any_length(made, tmp_path, joint):
    how = {"data.joint": joint, "model.shared": joint, "model.layers": 1}
    run = made({**BODY, "model.kind": "transformer", "data.kind": "pairs", **how})
    assert run.model.source_vocab - run.model.vocab == (0 if joint else 400 - run.tokenizer.target.vocab)
    assert joint or run.tokenizer.target.vocab < 100
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


@pytest.mark.parametrize(("kind", "pool"), [("bert", "first"), ("bert", "mean"), ("gpt", "last")])
@torch.no_grad()
def test_labels_of_padded_texts_are_the_runs(made, tmp_path, kind, pool):
    how = {"data.tokens": "wordpiece" if kind == "bert" else "bpe", "model.pool": pool, "model.layers": 1}
    run = made({**BODY, "model.kind": kind, "data.kind": "table", **how})
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


@torch.no_grad()
def test_what_is_said_of_each_token_is_the_runs(made, tmp_path):
    run = made({**BERT, "data.kind": "tags", "model.layers": 1})
    certificate = onnx.export(run, tmp_path / "out")
    assert certificate["logits"]["passed"]
    tokens, lengths = torch.randint(run.tokenizer.tokenizer.vocab, (2, 9)), torch.tensor([9, 4])
    real = torch.arange(9) < lengths[:, None]
    given = {"input_ids": tokens, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(tokens)}
    (said,) = session(tmp_path / "out").run(["logits"], {name: x.numpy() for name, x in given.items()})
    ours = run.model.answers(run.model(tokens, lengths=lengths))
    assert said[real.numpy()] == pytest.approx(ours[real].numpy(), abs=1e-5)


def test_a_graph_that_says_something_else_is_not_kept(made, tmp_path, monkeypatch):
    old = onnxruntime.InferenceSession

    class Wrong(old):
        def run(self, *given):
            return [np.nan_to_num(x) + 1 for x in super().run(*given)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Wrong)
    with pytest.raises(harken.HarkenError, match=r"logits differ .*; nothing was written"):
        onnx.export(made(LLAMA), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_exported_is_refused(folders, made, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="a lstm is not exported to ONNX"):
        onnx.export(harken.load(folders["lstm"]), tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"harken\[onnx\]"):
        onnx.export(made(LLAMA), tmp_path / "out")
