"""Export of runs of pairs: transformers reads them as a Marian or a BART, gives their scores and writes their texts."""

import json

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from harken import run_folder as runs
from harken.bridge.export import export
from harken.bridge.importer import bring
from harken.errors import BadInput

pytestmark = pytest.mark.oracle
LIMIT = 1e-5
BODY = {"data.kind": "pairs", "model.kind": "transformer", "model.d": 32, "model.layers": 2, "model.heads": 4}
BODY |= {"model.d_ff": 48, "model.context": 48, "model.norm": "post"}
MARIAN = {**BODY, "model.positions": "sinusoid-halves", "model.activation": "relu", "model.embedding_scale": 1.0}
MODELS = {
    "marian": MARIAN,
    "marian-loud": {**MARIAN, "model.embedding_scale": 32**0.5, "model.encoder_layers": 3, "model.head_bias": True},
    "marian-paper": {**BODY, "model.positions": "sinusoid", "model.activation": "relu"},  # as the recipe translate-base
    "bart": {**BODY, "model.positions": "learned", "model.embed_norm": True, "data.tokenizer": "char"},
}
TEXT = "Tom had a hat"


@pytest.mark.parametrize("name", list(MODELS))
def test_transformers_writes_what_the_run_writes(made, tmp_path, name):
    run = made(MODELS[name])
    certificate = export(run, tmp_path / "out")
    assert certificate["passed"]
    assert certificate["family"] == name.partition("-")[0]
    assert certificate["not_checked"] == []
    words, theirs = (kind.from_pretrained(tmp_path / "out") for kind in (AutoTokenizer, AutoModelForSeq2SeqLM))
    asked = words([TEXT, "He ran"], padding=True, return_tensors="pt")
    assert asked["input_ids"][0].tolist()[: len(run.tokenizer.encode_source(TEXT))] == list(
        run.tokenizer.encode_source(TEXT)
    )
    with torch.no_grad():
        written = theirs.generate(
            asked["input_ids"], attention_mask=asked["attention_mask"], do_sample=False, num_beams=4, max_new_tokens=20
        )
    found = [words.decode(row, skip_special_tokens=True) for row in written]
    assert found == run.translate([TEXT, "He ran"], longest=20, beam=4)
    assert len(found[0]) > 3


@torch.no_grad()
def test_the_way_back_gives_the_scores_of_the_run(made, tmp_path):
    run = made(MODELS["marian-loud"])
    export(run, tmp_path / "out")
    again = bring(tmp_path / "out", tmp_path / "again")
    edge, new = run.model.edge, again.model.edge
    source, target = torch.randint(edge, (2, 9)), torch.randint(edge, (2, 12))
    ours = run.model.scores(target, source=source).log_softmax(-1)
    back = again.model.scores(target, source=source).log_softmax(-1)
    assert (back[..., :edge] - ours[..., :edge]).abs().max() <= LIMIT
    assert (back[..., new] - ours[..., edge]).abs().max() <= LIMIT
    assert again.translate(TEXT, longest=20) == run.translate(TEXT, longest=20)
    twice = export(again, tmp_path / "twice")
    assert twice["passed"]
    first, second = (runs.read_tensors(tmp_path / name / "model.safetensors") for name in ("out", "twice"))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert second[name].equal(tensor), name


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({"model.norm": "pre", "model.positions": "rotary"}, "model.positions=sinusoid-halves, model.norm=post"),
        ({"model.tie_embeddings": False}, "model.tie_embeddings=True"),
        ({"data.shared_vocab": False, "model.share_embeddings": False}, "model.share_embeddings=True"),
        ({"model.kv_heads": 2, "model.rms_norm": True}, "model.kv_heads=4, model.rms_norm=False"),
    ],
)
def test_a_model_that_has_no_counterpart_is_told_what_it_lacks(made, tmp_path, chosen, wanted):
    with pytest.raises(BadInput, match=f"it would have with {wanted}$".replace(".", r"\.")):
        export(made({**MARIAN, **chosen}), tmp_path / "out")


def test_words_whose_signs_stand_apart_are_left_out_and_the_certificate_says_so(made, tmp_path):
    run = made({**MARIAN, "data.tokenizer": "word"})
    certificate = export(run, tmp_path / "out")
    assert certificate["logits"]["passed"]
    assert "signs that are words of their own" in certificate["not_checked"][0]
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["vocab_size"] == run.tokenizer.source.vocab + 2
