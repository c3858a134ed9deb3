"""A language model asked with a prompt: labels are scored as a loop over their tokens scores them, examples or not."""

import pytest
import torch

import harken
from harken.errors import BadInput
from harken.inference import prompt as prompts
from harken.inference.prompt import Asked, Template, asked, drawn, log_probabilities, wording

LABELS = ["the", "the old", "then", "was a day", "was"]
TEXTS = ["the fox ran", "a king", "once there was an old man who went into the wood", "no"]


@pytest.fixture
def roomy(every):
    """A run of each kind whose context holds a prompt; its sinusoids know every place."""
    if every.model.context is not None:
        every.model.context = 400
    return every


def encode(run, text):
    return run.tokenizer.encode(text).tolist()


@torch.inference_mode()
def alone(run, before, answer):
    """ln p of an answer, by itself: every token after those of what stands before it."""
    ids, start = encode(run, f"{before} {answer}"), len(encode(run, before))
    logs = run.model.scores(torch.tensor([ids]))[0].log_softmax(-1)
    return sum(float(logs[t - 1, ids[t]]) for t in range(start, len(ids)))


@pytest.mark.parametrize("shared", [1, 10**9], ids=["read once", "read each time"])
@pytest.mark.parametrize("places", [64, 4096], ids=["many batches", "one batch"])
def test_a_label_scores_what_the_loop_over_its_tokens_says(roomy, monkeypatch, shared, places):
    monkeypatch.setattr(prompts, "SHARED", shared)
    monkeypatch.setattr(prompts, "PLACES", places)
    template = Template.of("Tale: {text} It is")
    shown = [template.example(({"text": text}, "good")) for text in ("a wolf came", "they ate")]
    questions = [template.question({"text": text}) for text in TEXTS]
    some = [asked(roomy._prompt, shown, question, LABELS, roomy.model.context) for question in questions]
    found = log_probabilities(roomy.model, some)
    for row, question in zip(found.tolist(), questions, strict=True):
        wanted = [alone(roomy, "".join(shown) + question.rstrip(), label) for label in LABELS]
        assert row == pytest.approx(wanted, abs=1e-4)


def test_what_all_prompts_begin_with_is_remembered_by_a_gpt(char, monkeypatch):
    char.model.context = 400
    read, forward = [], char.model.forward

    def counted(tokens, **how):
        read.append(tuple(tokens.shape))
        return forward(tokens, **how)

    monkeypatch.setattr(char.model, "forward", counted)
    some = [asked(char._prompt, ["x" * 100], f"{text} is ", ["good", "bad"], 400) for text in TEXTS]
    log_probabilities(char.model, some)
    (once, begin), (rows, longest) = read
    assert (once, begin) == (1, 100)
    assert (rows, longest) == (2 * len(TEXTS), max(map(len, TEXTS)) + len(" is goo"))


def test_probabilities_are_those_of_the_scores_of_whole_texts(char):
    char.model.context = 400
    labels = ["big", "red", "old"]
    found = char.classify("fox", prompt="The {text} is", labels=labels)
    scores = torch.tensor([char.score(f"The fox is {label}")["words"][-1]["logprob"] for label in labels])
    wanted = dict(zip(labels, scores.softmax(0).tolist(), strict=True))
    assert {one["label"]: one["probability"] for one in found} == pytest.approx(wanted, abs=1e-5)
    assert [one["probability"] for one in found] == sorted((one["probability"] for one in found), reverse=True)


def test_two_texts_are_asked_about_in_their_slots(char):
    char.model.context = 400
    how = {"prompt": "{other} / {text}:", "labels": ["yes", "no"]}
    assert char.classify(["a\tb"], **how) == char.classify([("a", "b")], **how)
    one = char.classify("b / a", prompt="{text}:", labels=["yes", "no"])
    assert char.classify("a\tb", **how) == one


def test_no_text_has_no_answer(char):
    assert char.classify([], prompt="{text}", labels=["a", "b"]) == []


def test_labels_of_one_token_are_read_from_one_row():
    assert Asked([[5, 6, 7], [5, 6, 8]], 2, 0, cut=False).rows() == ([[5, 6]], [0, 0])


def test_an_answer_that_begins_another_is_not_read_again():
    rows, where = Asked([[5, 1, 2, 3], [5, 1, 9], [5, 4], [5, 8, 8]], 1, 0, cut=False).rows()
    assert sorted(rows) == [[5, 1, 2], [5, 8]]
    assert [rows[n][:k] for n, k in zip(where, (3, 2, 1, 2), strict=True)] == [[5, 1, 2], [5, 1], [5], [5, 8]]


def test_tokens_across_the_border_count_for_all_answers_alike():
    """These tokens are pairs of letters: 'abc' + 'd' ends in 'cd', which begins before the answer."""

    def pairs(text):
        return [int.from_bytes(text[n : n + 2].encode(), "big") for n in range(0, len(text), 2)]

    made = asked(pairs, (), "abc", ["d", "def"], None)
    assert made.start == 1
    assert made.ids == [pairs("abcd"), pairs("abcdef")]


# --- examples ---------------------------------------------------------------------------------------------------------

EXAMPLES = [({"text": f"t{n}"}, "yes" if n % 5 else "no") for n in range(50)]


def test_examples_are_balanced_over_the_labels_as_far_as_there_are_enough():
    labels = [label for _, label in drawn(EXAMPLES, 12, 0, balanced=True)]
    assert labels.count("yes") == labels.count("no") == 6
    labels = [label for _, label in drawn(EXAMPLES, 30, 0, balanced=True)]
    assert labels.count("no") == 10


def test_more_shots_only_add_examples_before_the_others():
    many = drawn(EXAMPLES, 16, 3, balanced=True)
    assert drawn(EXAMPLES, 4, 3, balanced=True) == many[-4:]


def test_another_seed_draws_others():
    assert drawn(EXAMPLES, 8, 0, balanced=True) != drawn(EXAMPLES, 8, 1, balanced=True)
    assert drawn(EXAMPLES, 8, 1, balanced=True) == drawn(EXAMPLES, 8, 1, balanced=True)


def test_more_examples_than_there_are_are_refused():
    with pytest.raises(BadInput, match="only 50 examples"):
        drawn(EXAMPLES, 51, 0, balanced=True)


def test_what_does_not_fit_loses_its_first_examples(char):
    char.model.context = 60
    shown = ["old " * 10, "new " * 10]
    made = asked(char._prompt, shown, "is it ", ["a", "b"], 60)
    assert made.left_out == 1
    assert not made.cut
    assert made.ids == asked(char._prompt, shown[1:], "is it ", ["a", "b"], 60).ids


def test_a_question_that_is_too_long_by_itself_keeps_its_end_and_that_is_told(char):
    said = []
    how = {"prompt": "{text}:", "labels": ["good", "bad"], "listen": lambda event, **facts: said.append(facts["text"])}
    one, other = char.classify([f"{letter * 90} this is all that is seen" for letter in "zy"], **how)
    assert said == ["prompt: longer than the model's context; its beginning was cut, texts: 2"]
    assert one == other


def test_a_question_that_is_cut_keeps_the_marks_before_it(char):
    made = asked(lambda text: [7, 8, *char._prompt(text)], (), "x" * 90 + " is ", ["good", "bad"], 40, marks=2)
    assert made.cut
    for ids, answer in zip(made.ids, ("good", "bad"), strict=True):
        assert ids[:2] == [7, 8]
        assert ids[made.start :] == char._prompt(f" {answer}")  # the space is the answer's
        assert len(ids) - 1 <= 40


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "slots", "why"),
    [
        ("Review:", ("text",), "{text} does not stand in it"),
        ("{label} {text}", ("text",), "before {label}"),
        ("{text} {other}", ("text",), "{other} has no place there"),
        ("{text}", ("text", "other"), "{other} does not stand in it"),
        ("{text} {label} {text}", ("text",), "{text} has no place there"),
        ("{text} {label} {label}", ("text",), "{label} has no place there"),
        (3, ("text",), "a text is accepted"),
    ],
)
def test_a_prompt_that_cannot_be_filled_is_refused(said, slots, why):
    with pytest.raises(BadInput) as error:
        Template.of(said, slots)
    assert why in str(error.value)


def test_what_a_text_says_in_braces_stays_as_it_is():
    assert Template.of("{text} is").question({"text": "{label} {text} {x}"}) == "{label} {text} {x} is "


def test_examples_end_with_a_blank_line_unless_the_prompt_ends_them():
    assert Template.of("{text}:").example(({"text": "a"}, "b")) == "a: b\n\n"
    assert Template.of("{text}: {label}.\n").example(({"text": "a"}, "b")) == "a: b.\n"


@pytest.mark.parametrize("labels", ["ab", ["a"], ["a", "a"], ["a", " "]])
def test_labels_that_leave_no_choice_are_refused(char, labels):
    with pytest.raises(BadInput, match="two different ones or more"):
        char.classify("x", prompt="{text}", labels=labels)


def test_words_for_a_label_that_the_data_has_not_are_refused():
    assert wording(["0", "1"], {"0": "bad", "1": "good"}) == ["bad", "good"]
    with pytest.raises(BadInput, match="'2': not in the data, which has 0, 1"):
        wording(["0", "1"], {"2": "bad"})


def test_a_run_that_does_not_write_is_not_asked(pair_folder):
    with pytest.raises(BadInput, match="asks a run that writes text"):
        harken.load(pair_folder).classify("x", prompt="{text}", labels=["a", "b"])
