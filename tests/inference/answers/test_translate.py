"""A run of pairs in the hand: targets, their alternatives, what they looked at; and lighter weights."""

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


def test_a_text_has_a_text_and_a_list_a_list_in_its_order(paired):
    alone = [paired.translate(text) for text in TEXTS]
    assert paired.translate(TEXTS) == alone
    assert len(set(alone)) > 2
    assert paired.translate([]) == []


@pytest.mark.parametrize("empty", ["", "  ", "\n"])
def test_an_empty_source_has_an_empty_target(paired, empty):
    assert paired.translate(empty) == ""
    assert paired.alternatives([empty], alternatives=3) == [[{"text": "", "score": 0.0}]]


def test_white_space_around_and_inside_a_source_says_nothing(paired):
    assert paired.translate("  she  saw the\nred cat. ") == paired.translate(TEXTS[0])


def test_a_target_has_no_line_end_whatever_the_source(paired):
    assert not any("\n" in text for text in paired.translate(["a\nb", "\\n", "Tom saw."], longest=40))


def test_a_target_is_as_long_as_the_recipe_says_unless_the_caller_does(paired, monkeypatch):
    task = paired.recipe.task.model_copy(update={"longest": 3})
    monkeypatch.setattr(paired, "recipe", replace(paired.recipe, task=task))
    assert [len(paired.tokenizer.encode_target(text)) for text in paired.translate(TEXTS[:2])] == [3, 3]
    assert len(paired.tokenizer.encode_target(paired.translate(TEXTS[0], longest=5))) == 5


def test_a_target_begins_with_the_prefix_and_its_words_cost_nothing(paired):
    usual, source = paired.translate("she saw the cat."), "she saw the cat."
    assert paired.translate(source, prefix="il a vu").startswith("il a vu ")
    assert paired.translate([source, ""], prefix=usual[:-1]) == [usual, ""]
    ((whole,),), ((rest,),) = (paired.alternatives([source], prefix=p, length_penalty=0.0) for p in ("", "elle a"))
    assert rest["score"] > whole["score"]
    with pytest.raises(BadInput, match="prefix=3"):
        paired.translate(source, prefix=3)


def test_the_same_source_is_drawn_by_its_place(paired):
    how = {"temperature": 3.0, "seed": 1}
    together = paired.translate(["she saw the cat."] * 4, **how)
    ((alone,),) = paired.alternatives(["she saw the cat."], index=2, **how)
    assert alone["text"] == together[2]
    assert len(set(together)) > 1


def test_alternatives_are_different_and_come_best_first(paired):
    (best,) = paired.alternatives([TEXTS[0]], alternatives=6)
    scores = [one["score"] for one in best]
    assert len({one["text"] for one in best}) == 6
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


def test_words_that_the_run_does_not_know_are_told_once_each_and_read_all_the_same(paired):
    heard = []
    assert paired.translate("I saw a zeppelin, Zeppelin.", listen=lambda event, **facts: heard.append(facts["text"]))
    assert heard == ["unknown to this run, and read as <unk>: 'zeppelin', ',', 'Zeppelin'"]


def test_a_source_longer_than_the_model_reads_is_cut_and_that_is_told(paired, monkeypatch):
    monkeypatch.setattr(paired.model, "context", 5)
    heard, long = [], "he ate the big old fish."
    cut = paired.translate(long, listen=lambda event, **facts: heard.append(facts["text"]))
    assert heard == [f"{long[:30]!r}...: 8 tokens, and this run reads 5; the rest is left out"]
    assert cut == paired.translate("he ate the big")
    assert len(paired.trace(long).source) == 5


def test_without_a_split_it_is_judged_on_test_as_the_verb_does_and_the_result_has_names(paired, char):
    found = paired.evaluate()
    score, baseline = found
    assert (found.score, found.baseline, found.metrics) == (score, baseline, score.metrics)
    assert score.metrics == pytest.approx(paired.metrics["test"], rel=1e-4)
    assert char.evaluate().metrics == pytest.approx(char.metrics["valid"], rel=1e-4)


@pytest.mark.parametrize("text", [5, None, ["a", 5]])
def test_what_is_no_text_is_refused(paired, text):
    with pytest.raises(
        BadInput, match=rf"^text={text[1] if isinstance(text, list) else text}: a text is accepted, or a"
    ):
        paired.translate(text)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"beams": 4}, r"^beams is not an option; there are beam, .*, prefix\. Did you mean beam\?$"),
        ({"beam": 0}, r"^beam=0: a whole number of 1 or more is accepted$"),
        ({"beam": 2, "alternatives": 3}, r"^alternatives=3: a beam of 2 holds no more; take a larger beam$"),
        ({"length_penalty": -1}, r"^length_penalty=-1: between 0 and 10 is accepted; 1 is fair to all lengths$"),
        ({"longest": 0}, r"^longest=0: a whole number of 1 or more is accepted$"),
    ],
)
def test_an_option_that_is_none_is_refused_in_one_line(paired, given, said):
    with pytest.raises(BadInput, match=said):
        paired.translate("Tom saw.", **given)


@pytest.mark.parametrize(
    "ask", [lambda run: run.generate("a"), lambda run: run.score("a b"), lambda run: run.next("a")]
)
def test_a_run_of_pairs_writes_nothing_else(paired, ask):
    with pytest.raises(BadInput, match=r"pairs: this run translates; use harken translate, in Python run\.translate$"):
        ask(paired)


def test_a_language_model_translates_nothing(char):
    with pytest.raises(BadInput, match=r"char: this run writes text; use harken generate, in Python run\.generate$"):
        char.translate("a")


# --- look -------------------------------------------------------------------------------------------------------------


def test_each_token_of_the_target_spreads_one_look_over_the_source(paired):
    trace = paired.trace(TEXTS[0])
    A = trace.attention("cross", layer=0, head=1)
    assert A.shape == (len(trace.tokens), len(trace.source)) == (len(trace.tokens), 7)
    torch.testing.assert_close(A.sum(-1), torch.ones(len(A)))
    assert trace.source[:2] == ["she", "saw"]
    assert trace.tokens[-1] == trace.source[-1] == "<edge>"


def test_the_target_looks_back_only_and_the_source_everywhere(paired):
    trace = paired.trace(TEXTS[0], "elle a vu le chien.")
    own, read = (trace.attention(which, layer=0, head=0) for which in ("self", "encoder"))
    assert own.shape == (7, 7)
    assert torch.equal(own.triu(1), torch.zeros(7, 7))
    assert (read > 0).all()


@pytest.mark.parametrize("kind", ["rnn-attention", "conv"])
def test_decoders_without_self_attention_show_their_looks_at_the_source_and_pass_the_audit(tmp_path, pair_file, kind):
    run = harken.train(pair_file, out=tmp_path / "run", settings=STEPS | {"model.kind": kind})
    assert run.facts["audit"]["passed"] is True
    trace = run.trace(TEXTS[0], "elle a vu le chien.")
    assert list(trace.views) == ["cross"]
    A = trace.attention("cross", layer=0, head=0)
    assert A.shape == (len(trace.tokens), len(trace.source)) == (7, 7)
    torch.testing.assert_close(A.sum(-1), torch.ones(7))
    assert "words written look at" in (tmp_path / "run" / "report.html").read_text()


def test_a_model_without_attention_passes_the_audit_and_says_that_it_has_none(tmp_path, pair_file):
    run = harken.train(pair_file, out=tmp_path / "run", settings=STEPS | {"model.kind": "rnn"})
    assert run.facts["audit"]["passed"] is True
    with pytest.raises(BadInput, match=r"^'cross': this model has no such attention; it has none$"):
        run.trace(TEXTS[0]).attention("cross", layer=0, head=0)


# --- lighter weights --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lighter_weights_give_targets_nearly_as_likely(pair_folder, paired, precision):
    """In the plain model's own eyes: rounding may choose another text, but none that is much worse."""
    light = harken.load(pair_folder, device="cpu", precision=precision)
    texts = [text for text in TEXTS if text]
    for (mine,), (plain,) in zip(light.alternatives(texts), paired.alternatives(texts), strict=True):
        assert mine["score"] == pytest.approx(plain["score"], abs=0.05)


def test_one_product_for_q_k_and_v_changes_no_translation_of_an_encoder_decoder(paired, monkeypatch):
    from harken.core import Attention

    one = paired.alternatives(TEXTS)
    looks = [m for m in paired.model.modules() if isinstance(m, Attention)]
    assert len(looks) == 3  # encoder, decoder, cross
    for look in looks:
        assert look.joint is not None
        monkeypatch.setattr(look, "joint", None)
    for (joint,), (apart,) in zip(one, paired.alternatives(TEXTS), strict=True):
        assert joint["text"] == apart["text"]
        assert joint["score"] == pytest.approx(apart["score"], abs=1e-4)
