"""Export to CTranslate2: it gives the same scores and the same greedy text for the tokens of tokenizer.json."""

import json
import sys

import ctranslate2
import numpy as np
import pytest
import tokenizers
import torch
from click.testing import CliRunner

import harken
from harken import run_folder as runs
from harken.bridge import ctranslate2_spec
from harken.bridge.ctranslate2 import export
from harken.cli import harken as program
from harken.errors import BadInput, HarkenError, MissingExtra

pytestmark = pytest.mark.oracle
LIMIT = 1e-4
BODY = {"model.d": 32, "model.layers": 2, "model.heads": 4, "model.context": 48}
GPT = {**BODY, "model.kind": "gpt"}
LLAMA = {**GPT, "model.style": "llama", "model.kv_heads": 2}
BERT = {**BODY, "model.kind": "bert", "data.tokenizer": "wordpiece"}
PAIRS = {**BODY, "data.kind": "pairs", "model.kind": "transformer", "model.norm": "post"}
LANGUAGE_MODELS = {
    "gpt2": {**GPT, "model.style": "gpt2"},
    "lecture, characters": {**GPT, "model.input_projection": True, "data.tokenizer": "char"},
    "post-norm without biases": {**GPT, "model.norm": "post", "model.bias": False, "model.activation": "relu"},
    "llama": LLAMA,
    "llama, interleaved": {
        **LLAMA,
        "model.positions": "rotary-interleaved",
        "model.rope_scaling": {"factor": 2.0},
        "model.rope_base": 500.0,
    },
    "qwen, wide heads": {**LLAMA, "model.bias": "qkv", "model.d_k": 12, "model.d_v": 12},
    "gemma": {**LLAMA, "model.activation": "geglu", "model.embedding_scale": 32**0.5, "model.tie_embeddings": True},
}
ENCODERS = {
    "bert": BERT,
    "distilbert": {**BERT, "model.nsp_head": False, "model.pooler": False, "model.segments": 0},
    "pre-norm": {**BERT, "model.norm": "pre", "model.segments": 3, "model.activation": "gelu-tanh"},
}
MARIAN = {**PAIRS, "model.positions": "sinusoid-halves", "model.activation": "silu", "model.encoder_layers": 3}
TRANSLATORS = {
    "marian": {**MARIAN, "model.head_bias": True},
    "translate recipe": {**PAIRS, "model.norm": "pre"},
    "bart": {**PAIRS, "model.positions": "learned", "model.embed_norm": True, "data.tokenizer": "char"},
    "rotary": {
        **PAIRS,
        "model.norm": "pre",
        "model.positions": "rotary",
        "model.kv_heads": 2,
        "model.rms_norm": True,
        "model.encoder_norm": False,
    },
    "two vocabularies": {
        **PAIRS,
        "data.shared_vocab": False,
        "model.share_embeddings": False,
        "model.tie_embeddings": False,
    },
}
TEXTS = ["Tom had a hat", "He ran to the park"]


def pieces(folder, text):
    """The tokens of a text by tokenizer.json, as a user of CTranslate2 gets them."""
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).tokens


@pytest.mark.parametrize("name", list(LANGUAGE_MODELS))
@torch.no_grad()
def test_a_generator_gives_the_same_text_and_log_probabilities(build_run, tmp_path, name):
    run, out = build_run(LANGUAGE_MODELS[name]), tmp_path / "out"
    certificate = export(run, out)
    assert certificate["passed"]
    assert certificate["logits"]["max_difference"] <= LIMIT
    assert certificate["not_checked"] == []
    generator = ctranslate2.Generator(str(out), intra_threads=1)
    prompt = pieces(out, TEXTS[0])
    (results,) = generator.generate_batch([prompt], max_length=20, end_token=[], include_prompt_in_result=False)
    ids = run.tokenizer.encode(TEXTS[0]).tolist()
    expected = run.text_generator.generate([ids], 20, harken.decode.sampling.SamplingSettings(0.0), seed=0)
    assert results.sequences_ids[0] == [int(i) for i in expected]
    for text, row in zip(TEXTS, generator.score_batch([pieces(out, text) for text in TEXTS]), strict=True):
        ids = run.tokenizer.encode(text)
        log_p = run.model.scores(torch.tensor([ids.tolist()]))[0].log_softmax(-1)
        expected = [float(log_p[n, i]) for n, i in enumerate(ids[1:])]
        assert row.log_probs == pytest.approx(expected, abs=LIMIT)


@pytest.mark.parametrize("name", list(ENCODERS))
@torch.no_grad()
def test_an_encoder_gives_the_same_states_of_padded_texts(build_run, tmp_path, name):
    run, out = build_run(ENCODERS[name]), tmp_path / "out"
    certificate = export(run, out)
    n_heads = run.recipe.model.mlm_head + run.recipe.model.nsp_head
    assert len(certificate["not_checked"]) == n_heads
    rows = [pieces(out, text) for text in TEXTS]
    outputs = ctranslate2.Encoder(str(out), intra_threads=1).forward_batch(rows)
    for row, text, states in zip(rows, TEXTS, np.array(outputs.last_hidden_state), strict=True):
        t = run.tokenizer
        h = run.model(torch.tensor([[t.cls_id, *t.encode(text).tolist(), t.sep_id]]))[0]
        assert len(row) == len(h)
        assert states[: len(h)] == pytest.approx(h.numpy(), abs=LIMIT)
    assert (outputs.pooler_output is None) is (run.model.pooler is None)


@pytest.mark.parametrize("name", list(TRANSLATORS))
@torch.no_grad()
def test_a_translator_gives_the_same_targets_and_log_probabilities(build_run, tmp_path, name):
    run, out = build_run(TRANSLATORS[name]), tmp_path / "out"
    certificate = export(run, out)
    assert certificate["log_probabilities"]["max_difference"] <= LIMIT
    assert certificate["greedy"]["passed"]
    translator = ctranslate2.Translator(str(out), intra_threads=1)
    sources, target = [pieces(out, text) for text in TEXTS], tokenizers.Tokenizer.from_buffer(run.tokenizer.target.json)
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=20, min_decoding_length=0)
    for text, result in zip(TEXTS, results, strict=True):
        ids = [target.token_to_id(piece) for piece in result.hypotheses[0]]
        assert run.tokenizer.decode_target(ids) == run.translate(text, beam=1, max_new_tokens=20)
    end = json.loads((out / "config.json").read_text())["eos_token"]
    words = target.encode(TEXTS[1], add_special_tokens=False)
    (scored,) = translator.score_batch(sources[:1], [words.tokens])
    assert scored.tokens == [*words.tokens, end]
    source, edge = torch.tensor([run.tokenizer.encode_source(TEXTS[0]).tolist()]), run.model.edge
    log_p = run.model.scores(torch.tensor([[edge, *words.ids]]), source=source)[0].log_softmax(-1)
    expected = [float(log_p[n, i]) for n, i in enumerate([*words.ids, edge])]
    assert scored.log_probs == pytest.approx(expected, abs=LIMIT)


def test_int8_weights_are_a_quarter_of_the_size_and_their_effect_is_measured(build_run, tmp_path, monkeypatch):
    run = build_run({**GPT, "model.style": "gpt2", "model.d": 128})
    before = {name: weight.clone() for name, weight in runs.weights(run.model).items()}
    monkeypatch.chdir(tmp_path)
    sizes = []
    for precision in ("float32", "int8"):
        args = ["export", str(run.path), "--to", "ctranslate2", "--precision", precision, "--out", precision, "--json"]
        completed = CliRunner().invoke(program, args)
        certificate = json.loads(completed.output.splitlines()[-1])["certificate"]
        assert certificate["logits"]["max_difference"] <= LIMIT  # of the weights before they are rounded
        sizes.append((tmp_path / precision / "model.bin").stat().st_size)
    assert sizes[1] < 0.3 * sizes[0]
    assert 0 < certificate["int8"]["relative_difference"] < 0.1
    assert certificate["int8"]["max_difference"] > 10 * LIMIT
    export(run, tmp_path / "again", precision="int8")
    assert all(weight.equal(before[name]) for name, weight in runs.weights(run.model).items())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({**GPT, "model.similarity": "additive"}, "model.similarity=additive; accepted: scaled-dot"),
        ({**GPT, "model.structure": "bigbird"}, "model.structure=bigbird; accepted: full"),
        ({**GPT, "model.positions": "alibi"}, "model.positions=alibi; accepted: sinusoid, sinusoid-halves, learned"),
        ({**GPT, "model.norm": "none"}, "model.norm=none; accepted: pre, post"),
        ({**GPT, "model.residual": False}, "model.residual=false; accepted: true"),
        ({**LLAMA, "model.window": 7}, "model.window=7; accepted: none"),
        ({**LLAMA, "model.d_v": 12}, "model.d_v=12; accepted: the width of the keys, 8"),
        ({**PAIRS, "model.copy": True}, "model.copy=true; accepted: false"),
        (
            {**LLAMA, "model.rope_scaling": {"factor": 8.0, "low": 1.0, "high": 4.0, "context": 16.0}},
            "model.rope_scaling=llama3; accepted: none or",
        ),
        ({"model.kind": "lstm", "model.d": 16, "data.tokenizer": "char"}, "model.kind=lstm for data.kind=text"),
        ({**BERT, "data.kind": "table"}, "model.kind=bert for data.kind=table"),
    ],
)
def test_what_a_specification_cannot_express_is_refused_by_name(build_run, tmp_path, settings, message):
    with pytest.raises(BadInput) as error:
        export(build_run(settings), tmp_path / "out")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_model_with_other_outputs_is_discarded(build_run, tmp_path, monkeypatch):
    monkeypatch.setitem(ctranslate2_spec.ACTIVATIONS, "gelu", "RELU")
    with pytest.raises(HarkenError, match=r"logits differ .*; nothing was written"):
        export(build_run(GPT), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_ctranslate2_folder_cannot_be_imported_or_loaded(build_run, tmp_path):
    export(build_run(GPT), tmp_path / "out")
    message = r"out/model\.bin: a CTranslate2 model cannot be imported: .*; import the model that it was converted from"
    for read in (harken.load, lambda path: harken.bridge.importer.import_model(path, tmp_path / "again")):
        with pytest.raises(BadInput, match=message):
            read(tmp_path / "out")


def test_a_missing_package_and_a_precision_of_another_format_are_refused(build_run, tmp_path, monkeypatch):
    run = build_run(GPT)
    completed = CliRunner().invoke(program, ["export", str(run.path), "--to", "onnx", "--precision", "int8"])
    assert completed.exit_code == 2
    assert "--precision int8: --to onnx writes float32; use --to ctranslate2" in completed.output
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(MissingExtra, match=r"pip install \"harken\[ct2\]\""):
        export(run, tmp_path / "out")
