"""Generation with a language model: memory and batch do not change the text, and samples follow the distribution."""

import math
from itertools import islice

import pytest
import torch

import harken
from harken.decode import sampling
from harken.decode.sampling import IncrementalDecoder, PromptLookup, SamplingSettings, TextGenerator
from harken.errors import BadInput
from harken.events import OverflowWarning
from harken.inference.answers.generate import StopSequence

ZERO = torch.tensor(0)

GREEDY = SamplingSettings(temperature=0)
CONTEXT = 16


@torch.inference_mode()
def full_pass(run, ids: list[int]) -> torch.Tensor:
    """The logits of the next token, without a memory."""
    return run.model.logits(run.model(torch.tensor([ids], device=run.device)))[0, -1]


def generated(run, prompts: list[list[int]], n_tokens: int, sampling_settings=GREEDY, seed: int = 0) -> list:
    tokens = TextGenerator(run.model).generate(prompts, n_tokens, sampling_settings, seed=seed)
    return torch.stack(list(tokens), 1).tolist()


def prompt(run, text: str = "Tom had a hat.") -> list[int]:
    return [int(i) for i in run.tokenizer.encode(text)][:6]


# --- the memory -------------------------------------------------------------------------------------------------------


def test_greedy_decoding_with_memory_equals_the_full_pass(every):
    text = prompt(every)
    for token in generated(every, [text], CONTEXT - len(text))[0]:
        assert token == int(full_pass(every, text).argmax())
        text.append(token)


def test_logits_with_memory_equal_those_of_the_full_pass(every):
    text = prompt(every)
    decoder = IncrementalDecoder(every.model, [text], CONTEXT)
    for token in (3, 1, 4, 1, 5, 9):
        torch.testing.assert_close(decoder.logits[0], full_pass(every, text), rtol=0, atol=1e-10)
        text.append(token)
        with torch.inference_mode():
            decoder.read([text], torch.tensor([[token]]))


def test_a_full_context_is_replaced_by_its_last_half(char):
    char.model.double()
    text = prompt(char)
    window, decoder = list(text), IncrementalDecoder(char.model, [text], 50)
    for n in range(50):
        torch.testing.assert_close(decoder.logits[0], full_pass(char, window), rtol=0, atol=1e-10)
        token = n % char.tokenizer.vocab
        text.append(token)
        window = [*window, token] if len(window) < CONTEXT else text[-CONTEXT // 2 :]
        with torch.inference_mode():
            decoder.read([text], torch.tensor([[token]]))


def test_a_prompt_longer_than_the_context_is_truncated_to_its_end(char):
    end = "x" * 3 + " hat and a dog"[: CONTEXT - 3]
    assert len(end) == CONTEXT
    assert char.generate("Nothing of this is seen. " + end, max_new_tokens=30) == char.generate(end, max_new_tokens=30)
    notices = []
    listen = lambda event, **facts: notices.append(facts["text"])  # noqa: E731
    char.generate(["x" * 40, "x"], n=3, max_new_tokens=1, listen=listen)
    char.next("x" * 17, listen=listen)
    fix = "truncated at the start; give a shorter prompt"
    assert notices == [
        f"1 of 2 prompts is longer than 16 tokens (longest: 40) and was {fix}",
        f"1 of 1 prompts is longer than 16 tokens (longest: 17) and was {fix}",
    ]
    with pytest.warns(OverflowWarning):
        list(char.stream("x" * 40, max_new_tokens=1))


def test_a_recurrent_model_has_no_context_limit(folders):
    lstm = harken.load(folders["lstm"])
    lstm.model.double()
    text = prompt(lstm)
    for token in generated(lstm, [text], 4 * CONTEXT)[0]:
        assert token == int(full_pass(lstm, text).argmax())
        text.append(token)


# --- prompt lookup ----------------------------------------------------------------------------------------------------


def test_prompt_lookup_guesses_the_continuation_of_the_last_occurrence_of_a_bigram():
    lookup = PromptLookup()
    assert lookup([1, 2, 3, 4, 1]) == []
    assert lookup([1, 2, 3, 4, 1, 2]) == [3, 4]
    assert lookup([1, 2, 3, 4, 1, 2, 9, 1, 2]) == [9, 1]  # the last occurrence
    assert PromptLookup()([5, 5, 5]) == [5, 5]  # a periodic text
    assert PromptLookup()([7]) == []


@pytest.mark.parametrize("sampling_settings", [GREEDY, SamplingSettings(temperature=1.2, top_p=0.9)])
@pytest.mark.parametrize("guess", ["none", "right", "wrong", "mixed"])
def test_guesses_do_not_change_the_text(char, monkeypatch, sampling_settings, guess):
    char.model.double()
    vocab, text, calls = char.tokenizer.vocab, prompt(char), []
    monkeypatch.setattr(sampling, "LOOKUP_TOKENS", 0)
    plain = generated(char, [text], 60, sampling_settings, seed=3)[0]
    full_text = [*text, *plain, 0, 0]
    right = lambda prefix: full_text[len(prefix) : len(prefix) + 2]  # noqa: E731
    wrong = lambda prefix: [(t + 1) % vocab for t in right(prefix)]  # noqa: E731
    guesses = {
        "none": lambda prefix: [],
        "right": right,
        "wrong": wrong,
        "mixed": lambda prefix: [*right(prefix)[:1], *wrong(prefix)[1:]] if len(prefix) % 3 else right(prefix),
    }
    monkeypatch.setattr(sampling, "LOOKUP_TOKENS", 2)
    monkeypatch.setattr(sampling, "PromptLookup", lambda: guesses[guess])
    hook = char.model.register_forward_hook(lambda *_: calls.append(1))
    assert generated(char, [text], 60, sampling_settings, seed=3)[0] == plain
    hook.remove()
    assert (len(calls) < 45) == (guess in ("right", "mixed"))


def test_a_repetitive_text_needs_fewer_model_calls(char, monkeypatch):
    char.model.double()
    text, calls = prompt(char), []
    char.model.head.register_forward_hook(lambda *_: calls.append(1))
    fast = generated(char, [text], 90)
    n_calls, calls[:] = len(calls), []
    monkeypatch.setattr(sampling, "LOOKUP_TOKENS", 0)
    assert fast == generated(char, [text], 90)
    assert n_calls < len(calls)


def test_a_recurrent_model_uses_no_prompt_lookup(folders, monkeypatch):
    lstm = harken.load(folders["lstm"])
    monkeypatch.setattr(sampling, "PromptLookup", lambda: pytest.fail("prompt lookup was used"))
    generated(lstm, [prompt(lstm)], 8)


# --- a batch ----------------------------------------------------------------------------------------------------------


def test_rows_of_different_length_generate_the_same_text_as_alone(every):
    prompts = [prompt(every)[:n] for n in (6, 1, 3)]
    alone = [generated(every, [p], 8)[0] for p in prompts]
    assert generated(every, prompts, 8) == alone


def test_a_row_samples_the_same_tokens_as_alone_with_its_seed(every):
    prompts, sampling_settings = [prompt(every)[:n] for n in (2, 6, 4)], SamplingSettings(temperature=1.3, top_p=0.95)
    alone = [generated(every, [p], 9, sampling_settings, seed=40 + row)[0] for row, p in enumerate(prompts)]
    assert generated(every, prompts, 9, sampling_settings, seed=40) == alone


def test_rows_that_fill_their_context_at_different_steps_generate_the_same_text_as_alone(char):
    char.model.double()
    text = [int(i) for i in char.tokenizer.encode("A long tale of a hat.")]
    prompts, sampling_settings = [text[:15], text[:11], text[:3]], SamplingSettings(temperature=1.0)
    alone = [generated(char, [p], 40, sampling_settings, seed=row)[0] for row, p in enumerate(prompts)]
    assert generated(char, prompts, 40, sampling_settings) == alone


def test_prompts_with_one_seed_have_different_random_streams(every):
    texts = [every.generate("Tom", max_new_tokens=12, seed=5, index=index, temperature=2.0) for index in range(4)]
    assert len(set(texts)) == 4
    assert texts[2] == every.generate("Tom", max_new_tokens=12, seed=5, index=2, temperature=2.0)


def test_every_continuation_of_every_prompt_has_its_own_random_stream(char):
    texts = [
        text
        for index in range(4)
        for text in char.generate("Tom", max_new_tokens=12, n=4, index=index, temperature=2.0)
    ]
    assert len(set(texts)) == 16


def test_continuation_r_of_seed_s_is_the_text_of_seed_s_plus_r(every):
    texts = every.generate("Tom", max_new_tokens=12, n=3, seed=5)
    assert texts == [every.generate("Tom", max_new_tokens=12, seed=5 + row) for row in range(3)]


def test_continuations_of_zero_tokens_are_empty(char):
    assert char.generate("Tom", max_new_tokens=0, n=3) == ["", "", ""]


# --- sampling ---------------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([[0.3, -1.2, 2.5, 0.31, 1.9, -4.0, 0.0]])


def filtered(sampling_settings: SamplingSettings, logits: torch.Tensor = LOGITS) -> list[float]:
    return sampling_settings.filter_logits(logits).softmax(-1)[0].tolist()


def brute_force(k: int | None = None, p: float | None = None) -> list[float]:
    """Sort, keep the first k, then the fewest with a total of p, and normalize."""
    weights = [math.exp(x) for x in LOGITS[0].tolist()]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])[:k]
    total, cumulative, nucleus = sum(weights[i] for i in order), 0.0, []
    for i in order:
        nucleus.append(i)
        cumulative += weights[i] / total
        if p is not None and cumulative >= p:
            break
    total = sum(weights[i] for i in nucleus)
    return [weights[i] / total if i in nucleus else 0.0 for i in range(len(weights))]


@pytest.mark.parametrize("k", [1, 2, 5, 7, 100])
def test_top_k_keeps_the_k_most_likely_tokens_in_their_proportions(k):
    assert filtered(SamplingSettings(top_k=k)) == pytest.approx(brute_force(k=k), abs=1e-6)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.58, 0.9, 0.999, 1.0])
def test_top_p_keeps_the_fewest_tokens_with_a_total_of_p(p):
    assert filtered(SamplingSettings(top_p=p)) == pytest.approx(brute_force(p=p), abs=1e-6)


def test_top_p_applies_after_top_k():
    assert filtered(SamplingSettings(top_k=3, top_p=0.6)) == pytest.approx(brute_force(k=3, p=0.6), abs=1e-6)
    assert brute_force(k=3, p=0.6) != brute_force(p=0.6)


def test_temperature_0_is_greedy_for_every_seed(char):
    greedy = generated(char, [prompt(char)], 8, GREEDY, seed=1)
    assert greedy == generated(char, [prompt(char)], 8, GREEDY, seed=2)
    assert greedy[0][0] == int(full_pass(char, prompt(char)).argmax())


def test_top_k_of_1_is_greedy_at_any_temperature(char):
    assert char.generate("Tom", max_new_tokens=20, temperature=5.0, top_k=1) == char.generate(
        "Tom", max_new_tokens=20, temperature=0
    )


@pytest.mark.parametrize("temperature", [1e-40, 1e-320, 1e-5])
def test_a_temperature_too_low_to_divide_by_is_greedy(temperature):
    logits = torch.tensor([[1e3, -1e3, 1e3 + 1, 0.0]])
    assert SamplingSettings(temperature=temperature, top_p=0.9).sample(logits, torch.tensor([1]), ZERO).tolist() == [2]


def test_the_default_temperature_is_that_of_the_command_line(char):
    from harken.cli.generate import generate

    (default,) = (option.default for option in generate.params if option.name == "temperature")
    assert SamplingSettings().temperature == default == 0.8
    assert char.generate("Tom", max_new_tokens=30) == char.generate("Tom", max_new_tokens=30, temperature=0.8)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_samples_follow_softmax_of_logits_over_temperature(temperature):
    rows = 20_000
    counts = (
        SamplingSettings(temperature=temperature)
        .sample(LOGITS.expand(rows, -1), torch.arange(rows), ZERO)
        .bincount(minlength=LOGITS.shape[1])
    )
    expected = rows * (LOGITS[0] / temperature).softmax(-1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 27.9  # 6 degrees of freedom: exceeded by 1 in 10,000 seeds


def test_a_token_outside_top_k_is_never_sampled():
    assert set(
        SamplingSettings(temperature=9.0, top_k=2).sample(LOGITS.expand(2000, -1), torch.arange(2000), ZERO).tolist()
    ) == {2, 4}


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 5.0}, {"top_k": 1}, {"top_p": 0.01}])
def test_special_tokens_are_never_generated_however_likely_they_are(every, monkeypatch, options):
    logits = every.model.logits
    bias = torch.zeros(every.tokenizer.vocab, dtype=torch.double)
    bias[every.tokenizer.special_ids] = 1000.0
    monkeypatch.setattr(every.model, "logits", lambda h: logits(h) + bias.to(h.device))
    assert every.next("Tom", 1)[0]["text"] in ("<unk>", "<|endoftext|>")
    for text in every.generate("Tom", max_new_tokens=20, n=2, **options):
        assert not any(token in text for token in ("<unk>", "<|endoftext|>"))


def test_the_same_seed_generates_the_same_text(every):
    assert every.generate("Tom", max_new_tokens=20, seed=3) == every.generate("Tom", max_new_tokens=20, seed=3)


def test_another_seed_generates_another_text(every):
    assert every.generate("Tom", max_new_tokens=20, seed=3) != every.generate("Tom", max_new_tokens=20, seed=4)


def test_generation_does_not_change_the_global_random_state(char):
    before = torch.random.get_rng_state()
    char.generate("Tom", max_new_tokens=5)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: must be a finite number ≥ 0; 0 is greedy, 0.8 is usual"),
        ({"temperature": math.nan}, "temperature=nan: must be a finite number ≥ 0; 0 is greedy, 0.8 is usual"),
        ({"top_k": 0}, "top_k=0: must be an integer ≥ 1; set it to 1 for greedy decoding"),
        ({"top_p": 0.0}, "top_p=0.0: must be > 0 and ≤ 1; 0.9 is usual"),
        ({"top_p": 1.5}, "top_p=1.5: must be > 0 and ≤ 1; 0.9 is usual"),
    ],
)
def test_invalid_sampling_settings_are_rejected_before_the_first_piece(char, options, message):
    with pytest.raises(BadInput) as error:
        char.stream("Tom", **options)
    assert str(error.value) == message


# --- streaming --------------------------------------------------------------------------------------------------------


def test_the_streamed_pieces_join_to_the_full_text(every):
    pieces = list(every.stream("Tom had", max_new_tokens=25, seed=2))
    assert "".join(pieces) == every.generate("Tom had", max_new_tokens=25, seed=2)
    assert len(pieces) > 20


def test_a_stream_generates_only_the_tokens_that_are_consumed(char, monkeypatch):
    steps = []
    read = IncrementalDecoder.read
    monkeypatch.setattr(IncrementalDecoder, "read", lambda *args: (steps.append(1), read(*args)))
    list(islice(char.stream("Tom", max_new_tokens=1000), 5))
    assert len(steps) < 6


def test_a_continuation_of_words_starts_with_a_space(folders):
    word = harken.load(folders["word"])
    text = word.generate("Tom had a", max_new_tokens=5, seed=1)
    assert text[0] in " \n"
    assert "  " not in text


@pytest.mark.parametrize(
    "pieces", [["one two STOP three"], list("one two STOP three"), ["one two S", "TO", "P thr", "ee"]]
)
def test_a_stop_sequence_ends_the_text_even_when_it_arrives_in_pieces(pieces):
    stop = StopSequence("STOP")
    assert "".join(stop.feed(piece) for piece in pieces if not stop.done) == "one two "
    assert stop.done


def test_a_partial_match_of_the_stop_sequence_is_kept_in_the_text():
    stop = StopSequence("aab")
    assert "".join([stop.feed(piece) for piece in "aaacaa"]) + stop.flush() == "aaacaa"
    assert not stop.done


def test_no_part_of_the_stop_sequence_is_emitted():
    stop = StopSequence("END")
    assert [stop.feed(piece) for piece in ("aE", "N", "D")] == ["a", "", ""]


def test_generate_ends_before_the_stop_sequence(char):
    full_text = char.generate("Tom", max_new_tokens=60)
    stop = full_text[20:22]
    assert char.generate("Tom", max_new_tokens=60, stop=stop) == full_text[: full_text.index(stop)]


def test_each_continuation_ends_before_its_stop_sequence(char):
    texts = char.generate("Tom", max_new_tokens=60, n=3)
    assert char.generate("Tom", max_new_tokens=60, n=3, stop="e") == [text.partition("e")[0] for text in texts]
