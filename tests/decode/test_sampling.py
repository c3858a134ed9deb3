"""Text from a language model: the memory changes nothing, a batch changes nothing, chance is the one that was asked."""

import math
from itertools import islice

import pytest
import torch

import harken
from harken.decode import sampling
from harken.decode.sampling import Choice, Echo, Reader, Writer
from harken.errors import BadInput
from harken.inference.run import Cut

ZERO = torch.tensor(0)

GREEDY = Choice(temperature=0)
CONTEXT = 16


@torch.inference_mode()
def full_pass(run, ids: list[int]) -> torch.Tensor:
    """The scores of what comes next, without any memory."""
    return run.model.logits(run.model(torch.tensor([ids], device=run.device)))[0, -1]


def written(run, prompts: list[list[int]], tokens: int, choice: Choice = GREEDY, seed: int = 0) -> list[list[int]]:
    return torch.stack(list(Writer(run.model).write(prompts, tokens, choice, seed=seed)), 1).tolist()


def prompt(run, text: str = "Tom had a hat.") -> list[int]:
    return [int(i) for i in run.tokenizer.encode(text)][:6]


# --- the memory -------------------------------------------------------------------------------------------------------


def test_greedy_decoding_with_memory_writes_what_the_full_pass_writes(every):
    text = prompt(every)
    for token in written(every, [text], CONTEXT - len(text))[0]:
        assert token == int(full_pass(every, text).argmax())
        text.append(token)


def test_scores_with_memory_equal_those_of_the_full_pass(every):
    text = prompt(every)
    reader = Reader(every.model, [text], CONTEXT)
    for token in (3, 1, 4, 1, 5, 9):
        torch.testing.assert_close(reader.logits[0], full_pass(every, text), rtol=0, atol=1e-10)
        text.append(token)
        with torch.inference_mode():
            reader.read([text], torch.tensor([[token]]))


def test_a_full_context_is_left_for_a_fresh_reading_of_its_last_half(char):
    char.model.double()
    text = prompt(char)
    held, reader = list(text), Reader(char.model, [text], 50)
    for n in range(50):
        torch.testing.assert_close(reader.logits[0], full_pass(char, held), rtol=0, atol=1e-10)
        token = n % char.tokenizer.vocab
        text.append(token)
        held = [*held, token] if len(held) < CONTEXT else text[-CONTEXT // 2 :]
        with torch.inference_mode():
            reader.read([text], torch.tensor([[token]]))


def test_of_a_prompt_longer_than_the_context_the_end_counts(char):
    end = "x" * 3 + " hat and a dog"[: CONTEXT - 3]
    assert len(end) == CONTEXT
    assert char.generate("Nothing of this is seen. " + end, tokens=30) == char.generate(end, tokens=30)


def test_a_recurrent_model_remembers_any_length(folders):
    lstm = harken.load(folders["lstm"])
    lstm.model.double()
    text = prompt(lstm)
    for token in written(lstm, [text], 4 * CONTEXT)[0]:
        assert token == int(full_pass(lstm, text).argmax())
        text.append(token)


# --- guesses ----------------------------------------------------------------------------------------------------------


def test_a_text_is_guessed_to_go_on_as_it_did_when_its_last_two_tokens_stood_together():
    echo = Echo()
    assert echo([1, 2, 3, 4, 1]) == []
    assert echo([1, 2, 3, 4, 1, 2]) == [3, 4]
    assert echo([1, 2, 3, 4, 1, 2, 9, 1, 2]) == [9, 1]  # the last time counts
    assert Echo()([5, 5, 5]) == [5, 5]  # a text that turns in a circle
    assert Echo()([7]) == []


@pytest.mark.parametrize("choice", [GREEDY, Choice(temperature=1.2, top_p=0.9)])
@pytest.mark.parametrize("guess", ["none", "right", "wrong", "mixed"])
def test_whatever_is_guessed_the_text_is_the_same(char, monkeypatch, choice, guess):
    char.model.double()
    vocab, text, calls = char.tokenizer.vocab, prompt(char), []
    monkeypatch.setattr(sampling, "GUESSES", 0)
    plain = written(char, [text], 60, choice, seed=3)[0]
    whole = [*text, *plain, 0, 0]
    right = lambda held: whole[len(held) : len(held) + 2]  # noqa: E731
    wrong = lambda held: [(t + 1) % vocab for t in right(held)]  # noqa: E731
    guesses = {
        "none": lambda held: [],
        "right": right,
        "wrong": wrong,
        "mixed": lambda held: [*right(held)[:1], *wrong(held)[1:]] if len(held) % 3 else right(held),
    }
    monkeypatch.setattr(sampling, "GUESSES", 2)
    monkeypatch.setattr(sampling, "Echo", lambda: guesses[guess])
    hook = char.model.register_forward_hook(lambda *_: calls.append(1))
    assert written(char, [text], 60, choice, seed=3)[0] == plain
    hook.remove()
    assert (len(calls) < 45) == (guess in ("right", "mixed"))


def test_a_text_that_repeats_itself_is_read_in_fewer_steps_and_stays_the_same(char, monkeypatch):
    char.model.double()
    text, calls = prompt(char), []
    char.model.head.register_forward_hook(lambda *_: calls.append(1))
    fast = written(char, [text], 90)
    few, calls[:] = len(calls), []
    monkeypatch.setattr(sampling, "GUESSES", 0)
    assert fast == written(char, [text], 90)
    assert few < len(calls)


def test_a_recurrent_model_cannot_take_back_what_it_read_and_guesses_nothing(folders, monkeypatch):
    lstm = harken.load(folders["lstm"])
    monkeypatch.setattr(sampling, "Echo", lambda: pytest.fail("it guesses"))
    written(lstm, [prompt(lstm)], 8)


# --- a batch ----------------------------------------------------------------------------------------------------------


def test_rows_of_different_length_write_what_each_would_write_alone(every):
    prompts = [prompt(every)[:n] for n in (6, 1, 3)]
    alone = [written(every, [p], 8)[0] for p in prompts]
    assert written(every, prompts, 8) == alone


def test_a_row_draws_what_it_would_draw_alone_with_its_own_seed(every):
    prompts, choice = [prompt(every)[:n] for n in (2, 6, 4)], Choice(temperature=1.3, top_p=0.95)
    alone = [written(every, [p], 9, choice, seed=40 + row)[0] for row, p in enumerate(prompts)]
    assert written(every, prompts, 9, choice, seed=40) == alone


def test_rows_that_fill_their_context_at_different_times_write_what_each_would_write_alone(char):
    char.model.double()
    text = [int(i) for i in char.tokenizer.encode("A long tale of a hat.")]
    prompts, choice = [text[:15], text[:11], text[:3]], Choice(temperature=1.0)
    alone = [written(char, [p], 40, choice, seed=row)[0] for row, p in enumerate(prompts)]
    assert written(char, prompts, 40, choice) == alone


def test_prompts_that_share_a_seed_do_not_share_their_draws(every):
    many = [every.generate("Tom", tokens=12, seed=5, index=index, temperature=2.0) for index in range(4)]
    assert len(set(many)) == 4
    assert many[2] == every.generate("Tom", tokens=12, seed=5, index=2, temperature=2.0)


def test_no_two_of_many_prompts_with_many_continuations_share_their_draws(char):
    many = [text for index in range(4) for text in char.generate("Tom", tokens=12, n=4, index=index, temperature=2.0)]
    assert len(set(many)) == 16


def test_of_many_continuations_each_is_the_one_of_its_seed(every):
    many = every.generate("Tom", tokens=12, n=3, seed=5)
    assert many == [every.generate("Tom", tokens=12, seed=5 + row) for row in range(3)]


def test_many_continuations_of_no_tokens_are_empty(char):
    assert char.generate("Tom", tokens=0, n=3) == ["", "", ""]


# --- the choice -------------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([[0.3, -1.2, 2.5, 0.31, 1.9, -4.0, 0.0]])


def kept(choice: Choice, logits: torch.Tensor = LOGITS) -> list[float]:
    return choice.narrow(logits).softmax(-1)[0].tolist()


def brute_force(k: int | None = None, p: float | None = None) -> list[float]:
    """By hand: sort, keep the first k, then the fewest that reach p together, share out anew."""
    chance = [math.exp(x) for x in LOGITS[0].tolist()]
    order = sorted(range(len(chance)), key=lambda i: -chance[i])[:k]
    total, reached, few = sum(chance[i] for i in order), 0.0, []
    for i in order:
        few.append(i)
        reached += chance[i] / total
        if p is not None and reached >= p:
            break
    total = sum(chance[i] for i in few)
    return [chance[i] / total if i in few else 0.0 for i in range(len(chance))]


@pytest.mark.parametrize("k", [1, 2, 5, 7, 100])
def test_top_k_leaves_the_k_likeliest_in_their_proportions(k):
    assert kept(Choice(top_k=k)) == pytest.approx(brute_force(k=k), abs=1e-6)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.58, 0.9, 0.999, 1.0])
def test_top_p_leaves_the_fewest_that_reach_p(p):
    assert kept(Choice(top_p=p)) == pytest.approx(brute_force(p=p), abs=1e-6)


def test_top_p_counts_among_what_top_k_left():
    assert kept(Choice(top_k=3, top_p=0.6)) == pytest.approx(brute_force(k=3, p=0.6), abs=1e-6)
    assert brute_force(k=3, p=0.6) != brute_force(p=0.6)


def test_temperature_0_takes_the_likeliest_whatever_the_seed(char):
    greedy = written(char, [prompt(char)], 8, GREEDY, seed=1)
    assert greedy == written(char, [prompt(char)], 8, GREEDY, seed=2)
    assert greedy[0][0] == int(full_pass(char, prompt(char)).argmax())


def test_top_k_of_1_is_greedy_at_any_temperature(char):
    assert char.generate("Tom", tokens=20, temperature=5.0, top_k=1) == char.generate("Tom", tokens=20, temperature=0)


@pytest.mark.parametrize("temperature", [1e-40, 1e-320, 1e-5])
def test_a_temperature_too_low_to_divide_by_is_greedy(temperature):
    logits = torch.tensor([[1e3, -1e3, 1e3 + 1, 0.0]])
    assert Choice(temperature=temperature, top_p=0.9).draw(logits, torch.tensor([1]), ZERO).tolist() == [2]


def test_unless_it_is_said_the_temperature_is_that_of_the_verb(char):
    from harken.cli.generate import generate

    (verb,) = (option.default for option in generate.params if option.name == "temperature")
    assert Choice().temperature == verb == 0.8
    assert char.generate("Tom", tokens=30) == char.generate("Tom", tokens=30, temperature=0.8)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_draws_follow_softmax_of_the_scores_over_the_temperature(temperature):
    rows = 20_000
    seen = (
        Choice(temperature=temperature)
        .draw(LOGITS.expand(rows, -1), torch.arange(rows), ZERO)
        .bincount(minlength=LOGITS.shape[1])
    )
    expected = rows * (LOGITS[0] / temperature).softmax(-1)
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert chi_square < 27.9  # 6 degrees of freedom: a right generator is above it once in 10,000 seeds


def test_what_was_cut_off_is_never_drawn():
    assert set(Choice(temperature=9.0, top_k=2).draw(LOGITS.expand(2000, -1), torch.arange(2000), ZERO).tolist()) == {
        2,
        4,
    }


@pytest.mark.parametrize("choice", [{"temperature": 0}, {"temperature": 5.0}, {"top_k": 1}, {"top_p": 0.01}])
def test_what_is_no_text_is_never_written_however_likely_it_is(every, monkeypatch, choice):
    scores = every.model.logits
    liked = torch.zeros(every.tokenizer.vocab, dtype=torch.double)
    liked[every.tokenizer.marks] = 1000.0
    monkeypatch.setattr(every.model, "logits", lambda h: scores(h) + liked.to(h.device))
    assert every.next("Tom", 1)[0]["text"] in ("<unk>", "<|endoftext|>")
    for text in every.generate("Tom", tokens=20, n=2, **choice):
        assert not any(mark in text for mark in ("<unk>", "<|endoftext|>"))


def test_the_same_seed_writes_the_same_text(every):
    assert every.generate("Tom", tokens=20, seed=3) == every.generate("Tom", tokens=20, seed=3)


def test_another_seed_writes_another_text(every):
    assert every.generate("Tom", tokens=20, seed=3) != every.generate("Tom", tokens=20, seed=4)


def test_writing_leaves_the_random_numbers_of_the_program_alone(char):
    before = torch.random.get_rng_state()
    char.generate("Tom", tokens=5)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: it is 0 (greedy) or more; 0.8 is a good start"),
        ({"temperature": math.nan}, "temperature=nan: it is 0 (greedy) or more; 0.8 is a good start"),
        ({"top_k": 0}, "top_k=0: at least 1 token must be left to choose from"),
        ({"top_p": 0.0}, "top_p=0.0: a share above 0 and up to 1, such as 0.9"),
        ({"top_p": 1.5}, "top_p=1.5: a share above 0 and up to 1, such as 0.9"),
    ],
)
def test_a_choice_that_cannot_be_is_refused_before_the_first_piece(char, choice, said):
    with pytest.raises(BadInput) as error:
        char.stream("Tom", **choice)
    assert str(error.value) == said


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_the_streamed_pieces_join_to_the_whole_text(every):
    pieces = list(every.stream("Tom had", tokens=25, seed=2))
    assert "".join(pieces) == every.generate("Tom had", tokens=25, seed=2)
    assert len(pieces) > 20


def test_a_stream_makes_no_more_than_it_is_asked_for(char, monkeypatch):
    steps = []
    read = Reader.read
    monkeypatch.setattr(Reader, "read", lambda *given: (steps.append(1), read(*given)))
    list(islice(char.stream("Tom", tokens=1000), 5))
    assert len(steps) < 6


def test_a_continuation_of_words_begins_with_the_space_between_them(folders):
    word = harken.load(folders["word"])
    text = word.generate("Tom had a", tokens=5, seed=1)
    assert text[0] in " \n"
    assert "  " not in text


@pytest.mark.parametrize(
    "pieces", [["one two STOP three"], list("one two STOP three"), ["one two S", "TO", "P thr", "ee"]]
)
def test_a_stop_text_ends_the_text_even_when_it_comes_in_pieces(pieces):
    cut = Cut("STOP")
    assert "".join(cut.take(piece) for piece in pieces if not cut.done) == "one two "
    assert cut.done


def test_what_only_began_like_the_stop_text_is_not_lost():
    cut = Cut("aab")
    assert "".join([cut.take(piece) for piece in "aaacaa"]) + cut.rest() == "aaacaa"
    assert not cut.done


def test_no_piece_of_the_stop_text_is_ever_shown():
    cut = Cut("END")
    assert [cut.take(piece) for piece in ("aE", "N", "D")] == ["a", "", ""]


def test_generate_ends_before_the_stop_text(char):
    whole = char.generate("Tom", tokens=60)
    stop = whole[20:22]
    assert char.generate("Tom", tokens=60, stop=stop) == whole[: whole.index(stop)]


def test_each_of_many_continuations_ends_before_its_stop_text(char):
    whole = char.generate("Tom", tokens=60, n=3)
    assert char.generate("Tom", tokens=60, n=3, stop="e") == [text.partition("e")[0] for text in whole]
