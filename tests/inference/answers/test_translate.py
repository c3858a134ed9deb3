"""A loaded encoder-decoder: targets, alternatives, cross-attention and lower precision."""

from dataclasses import replace

import pytest
import torch

import harken
from harken.errors import BadInput

TEXTS = ["she saw the red cat.", "Tom lost the dog.", "", "he ate the big old fish."]

STEPS = {"model.size": "tiny", "train.batch": 4, "train.steps": 2, "train.threads": 1, "train.device": "cpu"}


@pytest.fixture(scope="module")
def paired(pair_folder):
    return harken.load(pair_folder, device="cpu")


def test_a_string_gives_a_string_and_a_list_a_list_in_order(paired):
    single = [paired.translate(text) for text in TEXTS]
    assert paired.translate(TEXTS) == single
    assert len(set(single)) > 2
    assert paired.translate([]) == []


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_an_empty_source_has_an_empty_target(paired, empty):
    assert paired.translate(empty) == ""
    assert paired.alternatives([empty], alternatives=3) == [[{"text": "", "score": 0.0}]]


def test_white_space_in_a_source_is_normalized(paired):
    assert paired.translate("  she  saw the\nred cat. ") == paired.translate(TEXTS[0])


def test_a_target_has_no_line_break(paired):
    assert not any("\n" in text for text in paired.translate(["a\nb", "\\n", "Tom saw."], max_new_tokens=40))


def test_max_new_tokens_defaults_to_the_recipe(paired, monkeypatch):
    task = paired.recipe.task.model_copy(update={"max_new_tokens": 3})
    monkeypatch.setattr(paired, "recipe", replace(paired.recipe, task=task))
    assert [len(paired.tokenizer.encode_target(text)) for text in paired.translate(TEXTS[:2])] == [3, 3]
    assert len(paired.tokenizer.encode_target(paired.translate(TEXTS[0], max_new_tokens=5))) == 5


def test_a_target_starts_with_the_prefix_which_has_no_cost(paired):
    expected, source = paired.translate("she saw the cat."), "she saw the cat."
    assert paired.translate(source, prefix="il a vu").startswith("il a vu ")
    assert paired.translate([source, ""], prefix=expected[:-1]) == [expected, ""]
    ((complete,),), ((rest,),) = (paired.alternatives([source], prefix=p, length_penalty=0.0) for p in ("", "elle a"))
    assert rest["score"] > complete["score"]
    with pytest.raises(BadInput, match="prefix=3"):
        paired.translate(source, prefix=3)


def test_sampling_depends_on_the_index_of_the_source(paired):
    options = {"temperature": 3.0, "seed": 1}
    together = paired.translate(["she saw the cat."] * 4, **options)
    ((single,),) = paired.alternatives(["she saw the cat."], index=2, **options)
    assert single["text"] == together[2]
    assert len(set(together)) > 1


def test_alternatives_are_different_and_come_best_first(paired):
    (best,) = paired.alternatives([TEXTS[0]], alternatives=6)
    scores = [item["score"] for item in best]
    assert len({item["text"] for item in best}) == 6
    assert scores == sorted(scores, reverse=True)
    assert best[0]["text"] == paired.translate(TEXTS[0], beam=6)


def test_a_score_is_the_mean_log_probability_of_the_tokens_of_a_target(paired):
    ((best,),) = paired.alternatives([TEXTS[0]])
    ids = paired.tokenizer.encode_target(best["text"]).tolist()
    edge, source = paired.model.edge, torch.tensor([paired.tokenizer.encode_source(TEXTS[0]).tolist()])
    with torch.no_grad():
        logs = paired.model.scores(torch.tensor([[edge, *ids]]), source=source)[0].log_softmax(-1)
    mean = logs.gather(1, torch.tensor([*ids, edge])[:, None]).mean()
    assert best["score"] == pytest.approx(float(mean), abs=1e-4)


def test_unknown_words_of_several_texts_are_named_once(paired):
    assert paired.unknown_words("I saw a zeppelin, Zeppelin.", "a zeppelin") == ["zeppelin", ",", "Zeppelin"]


def test_a_long_source_is_truncated_with_a_notice(paired, monkeypatch):
    monkeypatch.setattr(paired.model, "context", 5)
    messages, long = [], "he ate the big old fish."
    truncated = paired.translate(long, listen=lambda event, **facts: messages.append(facts["text"]))
    counts = "1 of 1 sources is longer than 5 tokens (longest: 8) and was truncated"
    assert messages == [f"{counts}; split them, or train with model.context=8"]
    assert truncated == paired.translate("he ate the big")
    assert len(paired.trace(long).source) == 5


def test_evaluate_defaults_to_the_test_split(paired, char):
    evaluation = paired.evaluate()
    score, baseline = evaluation
    assert (evaluation.score, evaluation.baseline, evaluation.metrics) == (score, baseline, score.metrics)
    assert score.metrics == pytest.approx(paired.metrics["test"], rel=1e-4)
    assert char.evaluate().metrics == pytest.approx(char.metrics["valid"], rel=1e-4)


@pytest.mark.parametrize("text", [5, None, ["a", 5]])
def test_a_source_that_is_not_a_string_is_refused(paired, text):
    with pytest.raises(
        BadInput, match=rf"^text={text[1] if isinstance(text, list) else text}: must be a string or a list"
    ):
        paired.translate(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 4}, r"^beams is not an option; accepted: .*beam, .*, prefix\. Did you mean beam\?$"),
        ({"beam": 0}, r"^beam=0: must be an integer ≥ 1$"),
        ({"beam": 2, "alternatives": 3}, r"^alternatives=3: must be ≤ beam=2; increase the beam$"),
        ({"length_penalty": -1}, r"^length_penalty=-1: must be between 0 and 10; 1 divides by the length$"),
        ({"max_new_tokens": 0}, r"^max_new_tokens=0: must be an integer ≥ 1$"),
    ],
)
def test_an_invalid_option_is_refused(paired, options, message):
    with pytest.raises(BadInput, match=message):
        paired.translate("Tom saw.", **options)


@pytest.mark.parametrize(
    "call", [lambda run: run.generate("a"), lambda run: run.score("a b"), lambda run: run.next("a")]
)
def test_an_encoder_decoder_does_not_generate_or_score(paired, call):
    with pytest.raises(BadInput, match=r"pairs: this run translates; use harken translate, in Python run\.translate$"):
        call(paired)


def test_a_language_model_does_not_translate(char):
    with pytest.raises(BadInput, match=r"char: this run generates text; use harken generate, in Python run\.generate$"):
        char.translate("a")


# --- attention--------------------------------------------------------------------------------------------------------


def test_cross_attention_of_each_target_token_sums_to_one(paired):
    trace = paired.trace(TEXTS[0])
    A = trace.attention("cross", layer=0, head=1)
    assert A.shape == (len(trace.tokens), len(trace.source)) == (len(trace.tokens), 7)
    torch.testing.assert_close(A.sum(-1), torch.ones(len(A)))
    assert trace.source[:2] == ["she", "saw"]
    assert trace.tokens[-1] == trace.source[-1] == "<edge>"


def test_self_attention_is_causal_and_the_encoder_is_bidirectional(paired):
    trace = paired.trace(TEXTS[0], "elle a vu le chien.")
    self_weights, encoder_weights = (trace.attention(which, layer=0, head=0) for which in ("self", "encoder"))
    assert self_weights.shape == (7, 7)
    assert torch.equal(self_weights.triu(1), torch.zeros(7, 7))
    assert (encoder_weights > 0).all()


@pytest.mark.parametrize("kind", ["rnn-attention", "conv"])
def test_decoders_without_self_attention_have_cross_attention_and_pass_the_audit(tmp_path, pair_file, kind):
    run = harken.train(pair_file, out=tmp_path / "run", settings=STEPS | {"model.kind": kind})
    assert run.facts["audit"]["passed"] is True
    trace = run.trace(TEXTS[0], "elle a vu le chien.")
    assert list(trace.views) == ["cross"]
    A = trace.attention("cross", layer=0, head=0)
    assert A.shape == (len(trace.tokens), len(trace.source)) == (7, 7)
    torch.testing.assert_close(A.sum(-1), torch.ones(7))
    assert "Mean over the heads of the last cross-attention layer" in (tmp_path / "run" / "report.html").read_text()


def test_a_model_without_attention_passes_the_audit_and_has_no_trace(tmp_path, pair_file):
    run = harken.train(pair_file, out=tmp_path / "run", settings=STEPS | {"model.kind": "rnn"})
    assert run.facts["audit"]["passed"] is True
    with pytest.raises(BadInput, match=r"^'cross': this model has no such attention; it has none$"):
        run.trace(TEXTS[0]).attention("cross", layer=0, head=0)


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lower_precision_gives_targets_of_nearly_equal_score(pair_folder, paired, precision):
    """Rounding may select another target, but none with a much lower score."""
    quantized = harken.load(pair_folder, device="cpu", precision=precision)
    texts = [text for text in TEXTS if text]
    for (item,), (plain,) in zip(quantized.alternatives(texts), paired.alternatives(texts), strict=True):
        assert item["score"] == pytest.approx(plain["score"], abs=0.05)


def test_fused_qkv_products_change_no_translation(paired, monkeypatch):
    from harken.core import Attention

    item = paired.alternatives(TEXTS)
    attentions = [m for m in paired.model.modules() if isinstance(m, Attention)]
    assert len(attentions) == 3  # encoder, decoder, cross
    for attention in attentions:
        assert attention.joint is not None
        monkeypatch.setattr(attention, "joint", None)
    for (fused,), (separate,) in zip(item, paired.alternatives(TEXTS), strict=True):
        assert fused["text"] == separate["text"]
        assert fused["score"] == pytest.approx(separate["score"], abs=1e-4)
