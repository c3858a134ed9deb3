"""ONNX: onnxruntime says what the run says, whatever the batch and the length."""

import json

import numpy as np
import onnxruntime
import pytest
import torch
from click.testing import CliRunner

import harken
from harken.bridge import onnx
from harken.cli import harken as program
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
