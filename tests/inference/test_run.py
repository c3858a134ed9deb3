"""A run in the hand: what it scores, expects, evaluates and looks at equals what can be computed by hand."""

import hashlib
import json
import math
import shutil

import pytest
import torch

import harken
from harken import machine
from harken.core import editing
from harken.errors import BadInput, BadRun

CONTEXT = 16


@pytest.fixture
def copy(folders, tmp_path):
    """A char run that may be spoiled."""
    return shutil.copytree(folders["char"], tmp_path / "copy")


def total(score: dict) -> float:
    return sum(word["logprob"] for word in score["words"] if word["logprob"] is not None)


@torch.inference_mode()
def by_hand(run, text: str) -> list[float]:
    """ln p of each token from one pass over the whole text; before the first stands the end mark, if there is one."""
    end = [] if run.tokenizer.end is None else [run.tokenizer.end]
    ids = torch.tensor([*end, *run.tokenizer.encode(text).tolist()], device=run.device)
    logs = run.model.logits(run.model(ids[None, :-1]))[0].log_softmax(-1)
    return logs.gather(-1, ids[1:, None])[:, 0].tolist()


# --- score ------------------------------------------------------------------------------------------------------------


def test_a_score_is_the_sum_of_log_softmax_at_the_tokens(every):
    score, logs = every.score("Tom had a hat"), by_hand(every, "Tom had a hat")
    assert total(score) == pytest.approx(sum(logs), rel=1e-6)
    assert score["perplexity"] == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-6)
    assert score["tokens"] == len(logs)


def test_the_words_of_a_score_join_to_the_text(folders):
    for kind in ("char", "bpe", "lstm"):
        words = [word["word"] for word in harken.load(folders[kind]).score("Tom had  a\nhat.\n")["words"]]
        assert words == ["Tom", " had", "  a", "\nhat.", "\n"], kind


def test_a_word_of_bytes_is_shown_as_the_character_they_make(folders):
    words = [word["word"] for word in harken.load(folders["bpe"]).score("Tom's café €5")["words"]]
    assert words == ["Tom's", " café", " €5"]


def test_with_word_tokens_each_token_is_a_word(folders):
    word = harken.load(folders["word"])
    known = word.tokenizer.words([7])[0]
    assert [w["word"] for w in word.score(f"{known} zzzz\n{known}")["words"]] == [known, "zzzz", "<eos>", known]


def test_a_score_shows_what_the_run_does_not_know_as_it_was_written_and_how_much_it_is(folders):
    score = harken.load(folders["char"]).score("Tom's café, €5€")
    assert [w["word"] for w in score["words"]] == ["Tom's", " café,", " €5€"]
    assert score["unknown"] == 4  # é, €, 5, €
    assert harken.load(folders["bpe"]).score("Tom's café, €5€")["unknown"] == 0


@pytest.mark.parametrize("how", ["generate", "many", "stream", "next"])
def test_what_a_prompt_has_that_the_run_does_not_know_is_told_once(folders, how):
    word, heard = harken.load(folders["word"]), []
    ask = {
        "generate": lambda text, **given: word.generate(text, tokens=1, **given),
        "many": lambda text, **given: word.generate(text, tokens=1, n=3, **given),
        "stream": lambda text, **given: list(word.stream(text, tokens=1, **given)),
        "next": word.next,
    }[how]
    known = word.tokenizer.words([7])[0]
    ask(known, listen=lambda event, **facts: heard.append((event, facts)))
    assert heard == []
    ask(f"zzz {known} qqq zzz", listen=lambda event, **facts: heard.append((event, facts)))
    said = "prompt: unknown to this run, and read as <unk>: 'zzz', 'qqq' (3 in all)"
    assert heard == [("notice", {"text": said})]


def test_of_very_much_that_is_unknown_in_a_prompt_five_are_named(char):
    heard = []
    char.generate("äöüßéèà", tokens=1, listen=lambda event, **facts: heard.append(facts["text"]))
    assert heard == ["prompt: unknown to this run, and read as <unk>: 'ä', 'ö', 'ü', 'ß', 'é', ... (7 in all)"]


def test_the_log_probability_of_a_word_is_the_sum_over_its_tokens(folders):
    bpe = harken.load(folders["bpe"])
    logs, ids = by_hand(bpe, "Tom had"), bpe.tokenizer.encode("Tom had").tolist()
    first = len(bpe.tokenizer.encode("Tom"))
    assert len(ids) > 2
    assert [w["logprob"] for w in bpe.score("Tom had")["words"]] == pytest.approx(
        [sum(logs[:first]), sum(logs[first:])], rel=1e-5
    )


def test_without_an_end_mark_the_first_character_has_no_probability(char):
    words = char.score("a hat")["words"]
    assert [(w["word"], w["logprob"] is None) for w in words] == [("a", True), (" hat", False)]


def test_a_first_word_of_several_characters_counts_from_its_second(char):
    assert char.score("hat")["words"][0]["logprob"] == pytest.approx(sum(by_hand(char, "hat")), rel=1e-5)


def test_of_a_long_text_each_token_is_asked_once_with_half_a_context_before_it(char):
    char.model.double()
    ids = char.tokenizer.encode("Tom had a hat. " * 5).tolist()
    found = char._each(torch.tensor(ids)).tolist()
    assert len(found) == len(ids) - 1
    half = CONTEXT // 2
    for t in range(1, len(ids)):
        start = 0 if t <= CONTEXT else math.ceil((t - CONTEXT) / half) * half
        assert start == 0 or t - start >= half
        with torch.inference_mode():
            logs = char.model.logits(char.model(torch.tensor([ids[start:t]])))[0, -1].log_softmax(-1)
        assert found[t - 1] == pytest.approx(-float(logs[ids[t]]), rel=1e-6), t


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, CONTEXT + 2, 3 * CONTEXT, 3 * CONTEXT + 1])
def test_a_text_of_any_length_is_scored_to_its_last_token(char, length):
    assert char.score("ab" * length)["tokens"] == 2 * length - 1
    assert char.score("a" * length)["tokens"] == length - 1


@pytest.mark.parametrize("text", ["", "a"])
def test_a_text_without_anything_to_predict_is_refused(char, text):
    with pytest.raises(BadInput) as error:
        char.score(text)
    assert str(error.value) == f"{text!r}: too short to be scored; give a longer text"


# --- next -------------------------------------------------------------------------------------------------------------


def test_the_next_tokens_have_the_probabilities_of_softmax_best_first(every):
    vocab = every.tokenizer.vocab
    found = every.next("Tom had", vocab)
    with torch.inference_mode():
        ids = torch.tensor([every._prompt("Tom had")], device=every.device)
        p = every.model.logits(every.model(ids))[0, -1].float().softmax(-1).sort(descending=True).values
    assert [word["probability"] for word in found] == pytest.approx(p.tolist(), abs=1e-6)
    assert sum(word["probability"] for word in found) == pytest.approx(1, abs=1e-5)


def test_the_likeliest_next_token_is_the_one_greedy_decoding_takes(char):
    assert char.next("Tom had", 1)[0]["text"] == char.generate("Tom had", tokens=1, temperature=0)


def test_more_next_tokens_than_there_are_gives_all(char):
    assert len(char.next("Tom", 10_000)) == char.tokenizer.vocab


def test_no_next_token_cannot_be_asked_for(char):
    with pytest.raises(BadInput, match=r"^k=0: ask for at least 1 word$"):
        char.next("Tom", 0)


def test_an_empty_prompt_begins_as_after_an_end_mark_or_a_new_line(folders):
    char, word = harken.load(folders["char"]), harken.load(folders["word"])
    assert char.generate("", tokens=9) == char.generate("\n", tokens=9)
    assert word._prompt("") == [word.tokenizer.end]


def test_the_line_of_a_prompt_of_words_goes_on_unless_it_was_ended(folders):
    word = harken.load(folders["word"])
    assert word._prompt("Tom had")[-1] != word.tokenizer.end
    assert word._prompt("Tom had\n")[-1] == word.tokenizer.end


# --- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluating_a_loaded_run_gives_the_metrics_it_was_finished_with(folders):
    for kind, folder in folders.items():
        run = harken.load(folder)
        score, baseline = run.evaluate("valid")
        assert score.metrics == pytest.approx(run.metrics["valid"], rel=1e-5), kind
        assert set(baseline) == {"unigram", "5-gram Kneser-Ney"}


def test_the_held_out_text_given_as_other_data_has_the_same_metrics(char, tales, tmp_path):
    text, held = tales.read_text(), char.evaluate("valid")[0]
    other = tmp_path / "other.txt"
    other.write_text(text[-(held.protocol["tokens"] + 1) :])
    found, baseline = char.evaluate("test", data=str(other))
    assert found.metrics == pytest.approx(held.metrics, rel=1e-6)
    assert baseline["unigram"]["loss"] == pytest.approx(char.evaluate("valid")[1]["unigram"]["loss"])


def test_the_protocol_says_how_many_tokens_with_how_much_context(char, folders):
    protocol = char.evaluate("valid")[0].protocol
    assert (protocol["context"], protocol["stride"]) == (CONTEXT, CONTEXT // 2)
    assert protocol["tokens"] == char.facts["data"]["tokens"]["valid"] - 1
    assert "all before" in harken.load(folders["lstm"]).evaluate("valid")[0].protocol["context"]


def test_the_share_of_another_text_that_is_unknown_is_in_its_protocol_and_told(char, tmp_path):
    other, heard = tmp_path / "other.txt", []
    other.write_text("Tom had ÿÿ\n" * 10)
    score, _ = char.evaluate("test", data=str(other), listen=lambda event, **facts: heard.append(facts.get("text")))
    assert score.protocol["unknown"] == pytest.approx(20 / 109, rel=1e-3)
    assert f"{other}: 18.4 % of its tokens are unknown to this run, and judged as <unk>" in heard


def test_data_that_is_no_text_is_not_judged_as_text(char, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("text,label\n" + "".join(f"the cat {n} sat,{'ab'[n % 2]}\n" for n in range(100)))
    with pytest.raises(
        BadInput, match=r"other.csv: this is table \(.*\), and this run reads text; give it a plain text$"
    ):
        char.evaluate("test", data=str(other))


def test_a_run_without_its_training_text_still_judges_other_data(copy, tales, tmp_path):
    recipe = (copy / "recipe.toml").read_text().replace(str(tales), str(tmp_path / "gone.txt"))
    (copy / "recipe.toml").write_text(recipe)
    resealed(copy)
    heard = []
    score, baseline = harken.load(copy).evaluate(
        "test", data=str(tales), listen=lambda event, **facts: heard.append((event, facts.get("text")))
    )
    assert math.isfinite(score.metrics["loss"])
    assert baseline == {}
    assert "baseline_tokens" not in score.protocol
    notices = [text for event, text in heard if event == "notice"]
    assert len(notices) == 1
    assert notices[0].startswith("the free baselines are left out, for lack of what they learn from: ")


def test_a_split_the_run_does_not_have_is_refused_with_those_it_has(char):
    with pytest.raises(BadInput) as error:
        char.evaluate("test")
    assert str(error.value) == "split test: not in this run, which has valid; or give it another text to judge"


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: run.generate(5), "prompt=5: a text is accepted"),
        (lambda run: run.generate("Tom", tokens="5"), "tokens='5': a whole number of 0 or more is accepted"),
        (lambda run: run.stream("Tom", seed=-1), "seed=-1: a whole number of 0 or more is accepted"),
        (lambda run: run.generate("Tom", temperature="hot"), "temperature='hot': it is 0 (greedy) or more; 0.8 is a"),
        (lambda run: run.generate("Tom", top_k=2.5), "top_k=2.5: at least 1 token must be left to choose from"),
        (
            lambda run: run.generate("Tom", temprature=1),
            "temprature is not an option; there are temperature, top_k, top_p. Did you mean temperature?",
        ),
        (lambda run: run.next("Tom", k=None), "k=None: a whole number of 0 or more is accepted"),
        (lambda run: run.score(None), "text=None: a text is accepted"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused_by_its_name(char, call, said):
    with pytest.raises(BadInput) as error:
        call(char)
    assert str(error.value).startswith(said)


def test_a_changed_report_does_not_keep_a_run_from_being_used(copy):
    (copy / "report.html").write_text("my notes")
    (copy / "log.jsonl").unlink()
    assert harken.load(copy).generate("Tom", tokens=2)


# --- trace ------------------------------------------------------------------------------------------------------------


def test_the_rows_of_an_attention_sum_to_1(folders):
    for kind in ("char", "word", "bpe"):
        trace = harken.load(folders[kind]).trace("Tom had a hat.")
        for head in range(2):
            weights = trace.attention("self", layer=0, head=head)
            assert weights.shape == (len(trace.tokens), len(trace.tokens))
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(trace.tokens)))


def test_an_attention_equals_the_weights_the_explicit_route_lays_out(char):
    trace, seen = char.trace("Tom had a hat."), []
    name = next(name for name, module in char.model.named_modules() if hasattr(module, "watch"))
    with editing(char.model, name, lambda A: (seen.append(A), A)[1]), torch.inference_mode():
        char.model(torch.tensor([char.tokenizer.encode("Tom had a hat.").tolist()]))
    for head in range(2):
        torch.testing.assert_close(trace.attention(layer=0, head=head), seen[0][0, head])


def test_no_token_looks_ahead(char):
    weights = char.trace("Tom had a hat.").attention(layer=0, head=1)
    assert torch.equal(weights, weights.tril())


def test_a_trace_names_its_tokens(folders):
    assert "".join(harken.load(folders["bpe"]).trace("Tom had").tokens) == "Tom had"


def test_of_a_long_text_a_trace_shows_the_last_context(char):
    assert "".join(char.trace("x" * 30 + "Tom had a hat.").tokens) == "xxTom had a hat."


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"layer": 1, "head": 0}, "layer 1: this model has 1 attention layers, counted from 0"),
        ({"layer": -1, "head": 0}, "layer -1: this model has 1 attention layers, counted from 0"),
        ({"layer": 0, "head": 2}, "head 2: this layer has 2 heads, counted from 0"),
    ],
)
def test_a_layer_or_head_that_is_not_there_is_refused_in_one_line(char, asked, said):
    with pytest.raises(BadInput) as error:
        char.trace("Tom").attention(**asked)
    assert str(error.value) == said


def test_a_language_model_has_no_cross_attention(char):
    with pytest.raises(BadInput, match="'cross': this model has no such attention; it has self"):
        char.trace("Tom").attention("cross", layer=0, head=0)


def test_a_recurrent_model_has_no_attention_to_show(folders):
    with pytest.raises(BadInput, match="this model has 0 attention layers"):
        harken.load(folders["lstm"]).trace("Tom").attention(layer=0, head=0)


# --- load -------------------------------------------------------------------------------------------------------------


def resealed(folder) -> None:
    """Make harken.json fit the files again, as somebody would who wants to deceive."""
    facts = json.loads((folder / "harken.json").read_text())
    facts.pop("seal", None)
    facts["sha256"] = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in facts["sha256"]}
    (folder / "harken.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("name", ["recipe.toml", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("how", ["changed", "gone"])
def test_a_folder_that_was_tampered_with_is_refused_with_the_name_of_the_file(copy, name, how):
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1] + b"#") if how == "changed" else (copy / name).unlink()
    with pytest.raises(BadRun) as error:
        harken.load(copy)
    said = {"changed": "is not the file this run was finished with", "gone": "is missing"}[how]
    assert str(error.value) == f"{copy / name}: {said}; take it from a copy, or train again"


def test_weights_of_another_recipe_are_refused_even_if_the_hashes_fit(copy, folders):
    shutil.copy(folders["bpe"] / "model.safetensors", copy / "model.safetensors")
    resealed(copy)
    with pytest.raises(BadRun, match=r"the weights do not fit the model at .*; they belong to another recipe"):
        harken.load(copy)


def test_a_run_is_loaded_onto_the_gpu_where_there_is_one_unless_the_cpu_is_asked_for(folders):
    assert harken.load(folders["char"]).device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert harken.load(folders["char"], device="cpu").device.type == "cpu"


@pytest.mark.parametrize("given", [("auto", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_int8_weights_come_to_the_cpu_unless_another_device_is_asked_for(folders, given, monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "pick_device", lambda wanted, name: asked.append(wanted) or torch.device("cpu"))
    harken.load(folders["char"], device=given[0], precision="int8")
    assert asked == [given[1]]


@pytest.mark.parametrize("device", ["cuda", "gpu", ""])
def test_a_device_that_is_not_here_is_refused_in_one_line(folders, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=rf"^device='?{device}'?: .*(accepted: auto, cpu, cuda|use auto or cpu)"):
        harken.load(folders["char"], device=device)


def test_loading_leaves_the_random_numbers_of_the_program_alone(folders):
    before = torch.random.get_rng_state()
    harken.load(folders["char"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_run_says_what_it_is(char, folders):
    assert repr(char) == f"<harken run char: gpt, {char.parameters:,} weights>"
    assert repr(harken.load(folders["lstm"])).startswith("<harken run lstm: lstm, ")
