"""A loaded run: scores, next tokens, evaluation and traces equal reference computations."""

import hashlib
import json
import math
import shutil

import pytest
import torch

import harken
from harken import machine, run_folder
from harken.core import editing
from harken.errors import BadInput, BadRun
from harken.inference.answers.generate import encode_prompt
from harken.inference.answers.score import token_losses

CONTEXT = 16


@pytest.fixture
def run_copy(folders, tmp_path):
    """A copy of the char run that may be modified."""
    return shutil.copytree(folders["char"], tmp_path / "copy")


def total_log_prob(score: dict) -> float:
    return sum(word["logprob"] for word in score["words"] if word["logprob"] is not None)


@torch.inference_mode()
def reference_log_probs(run, text: str) -> list[float]:
    """ln p of each token from one pass over the text, which starts with the end token, if there is one."""
    end = [] if run.tokenizer.end_id is None else [run.tokenizer.end_id]
    ids = torch.tensor([*end, *run.tokenizer.encode(text).tolist()], device=run.device)
    logs = run.model.logits(run.model(ids[None, :-1]))[0].log_softmax(-1)
    return logs.gather(-1, ids[1:, None])[:, 0].tolist()


# --- score ------------------------------------------------------------------------------------------------------------


def test_score_sums_the_log_softmax_of_the_tokens(every):
    score, logs = every.score("Tom had a hat"), reference_log_probs(every, "Tom had a hat")
    assert total_log_prob(score) == pytest.approx(sum(logs), rel=1e-6)
    assert score["perplexity"] == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-6)
    assert score["tokens"] == len(logs)


def test_the_words_of_a_score_concatenate_to_the_text(folders):
    for kind in ("char", "bpe", "lstm"):
        words = [word["word"] for word in harken.load(folders[kind]).score("Tom had  a\nhat.\n")["words"]]
        assert words == ["Tom", " had", "  a", "\nhat.", "\n"], kind


def test_byte_tokens_are_decoded_to_characters(folders):
    words = [word["word"] for word in harken.load(folders["bpe"]).score("Tom's café €5")["words"]]
    assert words == ["Tom's", " café", " €5"]


def test_with_word_tokens_each_token_is_a_word(folders):
    word = harken.load(folders["word"])
    known = word.tokenizer.token_texts([7])[0]
    assert [w["word"] for w in word.score(f"{known} zzzz\n{known}")["words"]] == [known, "zzzz", "<eos>", known]


def test_unknown_characters_are_shown_as_written_and_counted(folders):
    score = harken.load(folders["char"]).score("Tom's café, €5€")
    assert [w["word"] for w in score["words"]] == ["Tom's", " café,", " €5€"]
    assert score["unknown"] == 4  # é, €, 5, €
    assert harken.load(folders["bpe"]).score("Tom's café, €5€")["unknown"] == 0


@pytest.mark.parametrize("mode", ["generate", "many", "stream", "next"])
def test_unknown_tokens_of_a_prompt_are_reported_once(folders, mode):
    word, events = harken.load(folders["word"]), []
    call = {
        "generate": lambda text, **options: word.generate(text, max_new_tokens=1, **options),
        "many": lambda text, **options: word.generate(text, max_new_tokens=1, n=3, **options),
        "stream": lambda text, **options: list(word.stream(text, max_new_tokens=1, **options)),
        "next": word.next,
    }[mode]
    known = word.tokenizer.token_texts([7])[0]
    call(known, listen=lambda event, **facts: events.append((event, facts)))
    assert events == []
    call(f"zzz {known} qqq zzz", listen=lambda event, **facts: events.append((event, facts)))
    message = "prompt: unknown to this run and read as <unk>: 'zzz', 'qqq' (3 in total)"
    assert events == [("notice", {"text": message})]


def test_at_most_five_unknown_tokens_are_named(char):
    events = []
    char.generate("äöüßéèà", max_new_tokens=1, listen=lambda event, **facts: events.append(facts["text"]))
    assert events == ["prompt: unknown to this run and read as <unk>: 'ä', 'ö', 'ü', 'ß', 'é', ... (7 in total)"]


def test_the_log_probability_of_a_word_is_the_sum_over_its_tokens(folders):
    bpe = harken.load(folders["bpe"])
    logs, ids = reference_log_probs(bpe, "Tom had"), bpe.tokenizer.encode("Tom had").tolist()
    first = len(bpe.tokenizer.encode("Tom"))
    assert len(ids) > 2
    assert [w["logprob"] for w in bpe.score("Tom had")["words"]] == pytest.approx(
        [sum(logs[:first]), sum(logs[first:])], rel=1e-5
    )


def test_without_an_end_token_the_first_character_has_no_probability(char):
    words = char.score("a hat")["words"]
    assert [(w["word"], w["logprob"] is None) for w in words] == [("a", True), (" hat", False)]


def test_a_first_word_of_several_characters_counts_from_its_second(char):
    assert char.score("hat")["words"][0]["logprob"] == pytest.approx(sum(reference_log_probs(char, "hat")), rel=1e-5)


def test_each_token_of_a_long_text_is_scored_once_with_at_least_half_a_context(char):
    char.model.double()
    ids = char.tokenizer.encode("Tom had a hat. " * 5).tolist()
    actual = token_losses(char.model, [torch.tensor(ids)])[0].tolist()
    assert len(actual) == len(ids) - 1
    half = CONTEXT // 2
    for t in range(1, len(ids)):
        start = 0 if t <= CONTEXT else math.ceil((t - CONTEXT) / half) * half
        assert start == 0 or t - start >= half
        with torch.inference_mode():
            logs = char.model.logits(char.model(torch.tensor([ids[start:t]])))[0, -1].log_softmax(-1)
        assert actual[t - 1] == pytest.approx(-float(logs[ids[t]]), rel=1e-6), t


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, CONTEXT + 2, 3 * CONTEXT, 3 * CONTEXT + 1])
def test_a_text_of_any_length_is_scored_to_its_last_token(char, length):
    assert char.score("ab" * length)["tokens"] == 2 * length - 1
    assert char.score("a" * length)["tokens"] == length - 1


def test_a_text_with_nothing_to_predict_is_refused(char):
    with pytest.raises(BadInput) as error:
        char.score("a")
    assert str(error.value) == "'a': too short to be scored; give a longer text"


@pytest.mark.parametrize("verb", ["score", "embed"])
def test_an_empty_or_missing_text_is_refused_with_its_index(char, verb):
    fix = r"leave it out, or use run\.predict\(df\), which returns None for it$"
    with pytest.raises(BadInput, match=r"^the text is empty; give a text with words$"):
        getattr(char, verb)(" ")
    with pytest.raises(BadInput, match=rf"^item 1: the text is empty; {fix}"):
        getattr(char, verb)(["Tom had", ""])
    with pytest.raises(BadInput, match=rf"^item 0: the text is missing \(nan\); {fix}"):
        getattr(char, verb)([float("nan"), "Tom had"])


def test_a_missing_prompt_is_refused_and_an_empty_one_is_a_prompt(char):
    with pytest.raises(BadInput, match=r"^item 1: the prompt is missing \(None\); "):
        char.generate(["Tom", None])
    assert len(char.generate(["Tom", ""], max_new_tokens=2)) == 2


# --- next -------------------------------------------------------------------------------------------------------------


def test_next_returns_softmax_probabilities_best_first(every):
    vocab = every.tokenizer.vocab
    actual = every.next("Tom had", vocab)
    with torch.inference_mode():
        ids = torch.tensor([encode_prompt(every, "Tom had")], device=every.device)
        p = every.model.logits(every.model(ids))[0, -1].float().softmax(-1).sort(descending=True).values
    assert [word["probability"] for word in actual] == pytest.approx(p.tolist(), abs=1e-6)
    assert sum(word["probability"] for word in actual) == pytest.approx(1, abs=1e-5)


def test_the_most_probable_next_token_is_the_greedy_one(char):
    assert char.next("Tom had", 1)[0]["text"] == char.generate("Tom had", max_new_tokens=1, temperature=0)


def test_k_larger_than_the_vocabulary_returns_all_tokens(char):
    assert len(char.next("Tom", 10_000)) == char.tokenizer.vocab


def test_k_of_zero_is_refused(char):
    with pytest.raises(BadInput, match=r"^k=0: must be an integer ≥ 1$"):
        char.next("Tom", 0)


def test_an_empty_prompt_is_an_end_token_or_a_line_break(folders):
    char, word = harken.load(folders["char"]), harken.load(folders["word"])
    assert char.generate("", max_new_tokens=9) == char.generate("\n", max_new_tokens=9)
    assert encode_prompt(word, "") == [word.tokenizer.end_id]


def test_the_last_line_of_a_prompt_of_words_is_continued(folders):
    word = harken.load(folders["word"])
    assert encode_prompt(word, "Tom had")[-1] != word.tokenizer.end_id
    assert encode_prompt(word, "Tom had\n")[-1] == word.tokenizer.end_id


# --- evaluate ---------------------------------------------------------------------------------------------------------


def test_evaluating_a_loaded_run_gives_the_metrics_it_was_finished_with(folders):
    for kind, folder in folders.items():
        run = harken.load(folder)
        score, baseline = run.evaluate("valid")
        assert score.metrics == pytest.approx(run.metrics["valid"], rel=1e-5), kind
        assert set(baseline) == {"unigram", "5-gram Kneser-Ney"}


def test_the_held_out_text_as_other_data_has_the_same_metrics(char, tales, tmp_path):
    text, expected = tales.read_text(), char.evaluate("valid")[0]
    other = tmp_path / "other.txt"
    other.write_text(text[-(expected.protocol["tokens"] + 1) :])
    actual, baseline = char.evaluate("test", data=str(other))
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-6)
    assert baseline["unigram"]["loss"] == pytest.approx(char.evaluate("valid")[1]["unigram"]["loss"])


def test_the_protocol_has_tokens_context_and_stride(char, folders):
    protocol = char.evaluate("valid")[0].protocol
    assert (protocol["context"], protocol["stride"]) == (CONTEXT, CONTEXT // 2)
    assert protocol["tokens"] == char.facts["data"]["tokens"]["valid"] - 1
    assert "all preceding tokens" in harken.load(folders["lstm"]).evaluate("valid")[0].protocol["context"]


def test_the_fraction_of_unknown_tokens_is_in_the_protocol_and_reported(char, tmp_path):
    other, events = tmp_path / "other.txt", []
    other.write_text("Tom had ÿÿ\n" * 10)
    score, _ = char.evaluate("test", data=str(other), listen=lambda event, **facts: events.append(facts.get("text")))
    assert score.protocol["unknown"] == pytest.approx(20 / 109, rel=1e-3)
    assert f"{other}: 18.4 % of its tokens are unknown and evaluated as <unk>" in events


def test_a_table_is_not_evaluated_as_text(char, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("text,label\n" + "".join(f"the cat {n} sat,{'ab'[n % 2]}\n" for n in range(100)))
    with pytest.raises(
        BadInput, match=r"other.csv: detected as table \(.*\); this run needs plain text; give a text file$"
    ):
        char.evaluate("test", data=str(other))


def test_other_data_is_evaluated_without_the_training_text(run_copy, tales, tmp_path):
    recipe = (run_copy / "recipe.toml").read_text().replace(str(tales), str(tmp_path / "gone.txt"))
    (run_copy / "recipe.toml").write_text(recipe)
    update_checksums(run_copy)
    events = []
    score, baseline = harken.load(run_copy).evaluate(
        "test", data=str(tales), listen=lambda event, **facts: events.append((event, facts.get("text")))
    )
    assert math.isfinite(score.metrics["loss"])
    assert baseline == {}
    assert "baseline_tokens" not in score.protocol
    notices = [text for event, text in events if event == "notice"]
    assert len(notices) == 1
    assert notices[0].startswith("no baselines: they need the training data, which cannot be loaded (")


def test_a_split_the_run_does_not_have_is_refused_with_those_it_has(char):
    with pytest.raises(BadInput) as error:
        char.evaluate("test")
    assert str(error.value) == "split test: not in this run, which has valid; or give other data to evaluate"


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.generate(5), "prompt=5: must be a string"),
        (lambda run: run.generate("Tom", max_new_tokens="5"), "max_new_tokens='5': must be an integer ≥ 0"),
        (lambda run: run.stream("Tom", seed=-1), "seed=-1: must be an integer ≥ 0"),
        (
            lambda run: run.generate("Tom", temperature="hot"),
            "temperature='hot': must be a finite number ≥ 0; 0 is greedy",
        ),
        (
            lambda run: run.generate("Tom", top_k=2.5),
            "top_k=2.5: must be an integer ≥ 1; set it to 1 for greedy decoding",
        ),
        (
            lambda run: run.generate("Tom", temprature=1),
            "temprature is not an option; accepted: temperature, top_k, top_p. Did you mean temperature?",
        ),
        (lambda run: run.next("Tom", k=None), "k=None: must be an integer ≥ 1"),
        (lambda run: run.score(None), "text=None: must be a string"),
    ],
)
def test_an_invalid_argument_is_refused_by_its_name(char, call, message):
    with pytest.raises(BadInput) as error:
        call(char)
    assert str(error.value).startswith(message)


def test_a_run_with_a_modified_report_can_be_loaded(run_copy):
    (run_copy / "report.html").write_text("my notes")
    (run_copy / "log.jsonl").unlink()
    assert harken.load(run_copy).generate("Tom", max_new_tokens=2)


# --- trace ------------------------------------------------------------------------------------------------------------


def test_the_rows_of_an_attention_sum_to_1(folders):
    for kind in ("char", "word", "bpe"):
        trace = harken.load(folders[kind]).trace("Tom had a hat.")
        for head in range(2):
            weights = trace.attention("self", layer=0, head=head)
            assert weights.shape == (len(trace.tokens), len(trace.tokens))
            torch.testing.assert_close(weights.sum(-1), torch.ones(len(trace.tokens)))


def test_attention_equals_the_weights_of_the_explicit_backend(char):
    trace, seen = char.trace("Tom had a hat."), []
    name = next(name for name, module in char.model.named_modules() if hasattr(module, "watch"))
    with editing(char.model, name, lambda A: (seen.append(A), A)[1]), torch.inference_mode():
        char.model(torch.tensor([char.tokenizer.encode("Tom had a hat.").tolist()]))
    for head in range(2):
        torch.testing.assert_close(trace.attention(layer=0, head=head), seen[0][0, head])


def test_attention_is_causal(char):
    weights = char.trace("Tom had a hat.").attention(layer=0, head=1)
    assert torch.equal(weights, weights.tril())


def test_a_trace_names_its_tokens(folders):
    assert "".join(harken.load(folders["bpe"]).trace("Tom had").tokens) == "Tom had"


def test_a_trace_of_a_long_text_has_the_last_context(char):
    assert "".join(char.trace("x" * 30 + "Tom had a hat.").tokens) == "xxTom had a hat."


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        ({"layer": 1, "head": 0}, "layer 1: this model has 1 attention layers, counted from 0"),
        ({"layer": -1, "head": 0}, "layer -1: this model has 1 attention layers, counted from 0"),
        ({"layer": 0, "head": 2}, "head 2: this layer has 2 heads, counted from 0"),
    ],
)
def test_a_layer_or_head_out_of_range_is_refused(char, requested, message):
    with pytest.raises(BadInput) as error:
        char.trace("Tom").attention(**requested)
    assert str(error.value) == message


def test_a_language_model_has_no_cross_attention(char):
    with pytest.raises(BadInput, match="'cross': this model has no such attention; it has self"):
        char.trace("Tom").attention("cross", layer=0, head=0)


def test_a_recurrent_model_has_no_attention_to_show(folders):
    with pytest.raises(BadInput, match="this model has 0 attention layers"):
        harken.load(folders["lstm"]).trace("Tom").attention(layer=0, head=0)


# --- load -------------------------------------------------------------------------------------------------------------


def update_checksums(folder) -> None:
    """Update the checksums in harken.json, as an attacker would."""
    facts = json.loads((folder / "harken.json").read_text())
    del facts["checksum"]
    facts["sha256"] = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in facts["sha256"]}
    facts["checksum"] = run_folder._checksum(facts)
    (folder / "harken.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("name", ["recipe.toml", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("mode", ["changed", "gone"])
def test_a_modified_folder_is_refused_with_the_name_of_the_file(run_copy, name, mode):
    content = (run_copy / name).read_bytes()
    (run_copy / name).write_bytes(content[:-1] + b"#") if mode == "changed" else (run_copy / name).unlink()
    with pytest.raises(BadRun) as error:
        harken.load(run_copy)
    message = {"changed": "SHA-256 mismatch: the file was modified", "gone": "is missing"}[mode]
    assert str(error.value) == f"{run_copy / name}: {message}; restore it from a copy, or train again"


def test_weights_of_another_recipe_are_refused_even_if_the_hashes_fit(run_copy, folders):
    shutil.copy(folders["bpe"] / "model.safetensors", run_copy / "model.safetensors")
    update_checksums(run_copy)
    with pytest.raises(BadRun, match=r"the weights do not match the model at .*; they belong to another recipe"):
        harken.load(run_copy)


def test_auto_selects_the_gpu_if_there_is_one(folders):
    assert harken.load(folders["char"]).device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert harken.load(folders["char"], device="cpu").device.type == "cpu"


@pytest.mark.parametrize("devices", [("auto", "cpu"), ("cuda", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_int8_defaults_to_the_cpu(folders, devices, monkeypatch):
    requested = []
    monkeypatch.setattr(machine, "pick_device", lambda wanted, name: requested.append(wanted) or torch.device("cpu"))
    harken.load(folders["char"], device=devices[0], precision="int8")
    assert requested == [devices[1]]


@pytest.mark.parametrize("device", ["cuda", "gpu", ""])
def test_an_unavailable_device_is_refused(folders, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match=rf"^device='?{device}'?: .*(accepted: auto, cpu, cuda|use auto or cpu)"):
        harken.load(folders["char"], device=device)


def test_loading_does_not_change_the_global_rng(folders):
    before = torch.random.get_rng_state()
    harken.load(folders["char"])
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_repr_has_model_kind_and_size(char, folders):
    assert repr(char) == f"<harken run char: gpt, {char.parameters:,} weights>"
    assert repr(harken.load(folders["lstm"])).startswith("<harken run lstm: lstm, ")
