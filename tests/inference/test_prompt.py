"""Prompted classification: labels are scored like a loop over their tokens, with and without examples."""

from functools import partial

import pytest
import torch

import harken
from harken.errors import BadInput
from harken.inference import prompt as prompts
from harken.inference.answers.generate import encode_prompt
from harken.inference.prompt import ScoredPrompt, Template, build_prompt, log_probabilities
from harken.inference.prompt_eval import draw_examples, label_texts

LABELS = ["the", "the old", "then", "was a day", "was"]
TEXTS = ["the fox ran", "a king", "once there was an old man who went into the wood", "no"]


@pytest.fixture
def long_context_run(every):
    """A run of each kind with a context long enough for a prompt."""
    if every.model.context is not None:
        every.model.context = 400
    return every


def encode(run, text):
    return run.tokenizer.encode(text).tolist()


@torch.inference_mode()
def reference_log_prob(run, prefix, answer):
    """ln p of one answer after a prefix, token by token."""
    ids, start = encode(run, f"{prefix} {answer}"), len(encode(run, prefix))
    logs = run.model.scores(torch.tensor([ids]))[0].log_softmax(-1)
    return sum(float(logs[t - 1, ids[t]]) for t in range(start, len(ids)))


@pytest.mark.parametrize("min_shared_prefix", [1, 10**9], ids=["shared prefix", "no shared prefix"])
@pytest.mark.parametrize("batch_tokens", [64, 4096], ids=["many batches", "one batch"])
def test_the_score_of_a_label_equals_a_loop_over_its_tokens(
    long_context_run, monkeypatch, min_shared_prefix, batch_tokens
):
    monkeypatch.setattr(prompts, "MIN_SHARED_PREFIX", min_shared_prefix)
    monkeypatch.setattr(prompts, "BATCH_TOKENS", batch_tokens)
    template = Template.parse("Tale: {text} It is")
    examples = [template.example(({"text": text}, "good")) for text in ("a wolf came", "they ate")]
    questions = [template.question({"text": text}) for text in TEXTS]
    prompts_ = [
        build_prompt(
            partial(encode_prompt, long_context_run), examples, question, LABELS, long_context_run.model.context
        )
        for question in questions
    ]
    scores = log_probabilities(long_context_run.model, prompts_)
    for row, question in zip(scores.tolist(), questions, strict=True):
        expected = [
            reference_log_prob(long_context_run, "".join(examples) + question.rstrip(), label) for label in LABELS
        ]
        assert row == pytest.approx(expected, abs=1e-4)


def test_a_gpt_processes_a_shared_prefix_once(char, monkeypatch):
    char.model.context = 400
    shapes, forward = [], char.model.forward

    def record_shape(tokens, **options):
        shapes.append(tuple(tokens.shape))
        return forward(tokens, **options)

    monkeypatch.setattr(char.model, "forward", record_shape)
    prompts_ = [
        build_prompt(partial(encode_prompt, char), ["x" * 100], f"{text} is ", ["good", "bad"], 400) for text in TEXTS
    ]
    log_probabilities(char.model, prompts_)
    (once, begin), (rows, longest) = shapes
    assert (once, begin) == (1, 100)
    assert (rows, longest) == (2 * len(TEXTS), max(map(len, TEXTS)) + len(" is goo"))


def test_label_probabilities_are_the_softmax_of_text_scores(char):
    char.model.context = 400
    labels = ["big", "red", "old"]
    ranked = char.classify("fox", prompt="The {text} is", labels=labels)
    scores = torch.tensor([char.score(f"The fox is {label}")["words"][-1]["logprob"] for label in labels])
    expected = dict(zip(labels, scores.softmax(0).tolist(), strict=True))
    assert {item["label"]: item["probability"] for item in ranked} == pytest.approx(expected, abs=1e-5)
    assert [item["probability"] for item in ranked] == sorted((item["probability"] for item in ranked), reverse=True)


def test_a_pair_of_texts_fills_two_slots(char):
    char.model.context = 400
    options = {"prompt": "{other} / {text}:", "labels": ["yes", "no"]}
    assert char.classify(["a\tb"], **options) == char.classify([("a", "b")], **options)
    item = char.classify("b / a", prompt="{text}:", labels=["yes", "no"])
    assert char.classify("a\tb", **options) == item


def test_no_texts_give_no_labels(char):
    assert char.classify([], prompt="{text}", labels=["a", "b"]) == []


def test_one_token_labels_share_one_row():
    assert ScoredPrompt([[5, 6, 7], [5, 6, 8]], 2, 0, truncated=False).rows() == ([[5, 6]], [0, 0])


def test_an_answer_that_is_a_prefix_of_another_shares_its_row():
    rows, where = ScoredPrompt([[5, 1, 2, 3], [5, 1, 9], [5, 4], [5, 8, 8]], 1, 0, truncated=False).rows()
    assert sorted(rows) == [[5, 1, 2], [5, 8]]
    assert [rows[n][:k] for n, k in zip(where, (3, 2, 1, 2), strict=True)] == [[5, 1, 2], [5, 1], [5], [5, 8]]


def test_a_token_across_the_border_belongs_to_every_answer():
    """These tokens are pairs of letters: 'abc' + 'd' ends in 'cd', which begins before the answer."""

    def pairs(text):
        return [int.from_bytes(text[n : n + 2].encode(), "big") for n in range(0, len(text), 2)]

    prompt = build_prompt(pairs, (), "abc", ["d", "def"], None)
    assert prompt.start == 1
    assert prompt.ids == [pairs("abcd"), pairs("abcdef")]


# --- examples ---------------------------------------------------------------------------------------------------------

EXAMPLES = [({"text": f"t{n}"}, "yes" if n % 5 else "no") for n in range(50)]


def test_examples_are_balanced_over_the_labels_as_far_as_there_are_enough():
    labels = [label for _, label in draw_examples(EXAMPLES, 12, 0, balanced=True)]
    assert labels.count("yes") == labels.count("no") == 6
    labels = [label for _, label in draw_examples(EXAMPLES, 30, 0, balanced=True)]
    assert labels.count("no") == 10


def test_more_shots_only_add_examples_at_the_front():
    drawn = draw_examples(EXAMPLES, 16, 3, balanced=True)
    assert draw_examples(EXAMPLES, 4, 3, balanced=True) == drawn[-4:]


def test_another_seed_draws_other_examples():
    assert draw_examples(EXAMPLES, 8, 0, balanced=True) != draw_examples(EXAMPLES, 8, 1, balanced=True)
    assert draw_examples(EXAMPLES, 8, 1, balanced=True) == draw_examples(EXAMPLES, 8, 1, balanced=True)


def test_more_shots_than_examples_are_refused():
    with pytest.raises(BadInput, match="only 50 examples"):
        draw_examples(EXAMPLES, 51, 0, balanced=True)


def test_the_first_examples_are_dropped_if_the_context_is_too_short(char):
    char.model.context = 60
    examples = ["old " * 10, "new " * 10]
    prompt = build_prompt(partial(encode_prompt, char), examples, "is it ", ["a", "b"], 60)
    assert prompt.n_dropped == 1
    assert not prompt.truncated
    assert prompt.ids == build_prompt(partial(encode_prompt, char), examples[1:], "is it ", ["a", "b"], 60).ids


def test_a_question_longer_than_the_context_keeps_its_end_with_a_notice(char):
    messages = []
    options = {
        "prompt": "{text}:",
        "labels": ["good", "bad"],
        "listen": lambda event, **facts: messages.append(facts["text"]),
    }
    item, other = char.classify([f"{letter * 90} this is all that is seen" for letter in "zy"], **options)
    assert messages == [
        "2 of 2 prompts are longer than 16 tokens (longest: 120) and were truncated at the start; give shorter texts"
    ]
    assert item == other


def test_a_truncated_question_keeps_the_special_tokens(char):
    prompt = build_prompt(
        lambda text: [7, 8, *encode_prompt(char, text)], (), "x" * 90 + " is ", ["good", "bad"], 40, n_special=2
    )
    assert prompt.truncated
    for ids, answer in zip(prompt.ids, ("good", "bad"), strict=True):
        assert ids[:2] == [7, 8]
        assert ids[prompt.start :] == encode_prompt(char, f" {answer}")  # the space is the answer's
        assert len(ids) - 1 <= 40


# --- invalid input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "slots", "message"),
    [
        ("Review:", ("text",), "has no {text}"),
        ("{label} {text}", ("text",), "before {label}"),
        ("{text} {other}", ("text",), "{other} is not allowed there"),
        ("{text}", ("text", "other"), "has no {other}"),
        ("{text} {label} {text}", ("text",), "{text} is not allowed there"),
        ("{text} {label} {label}", ("text",), "{label} is not allowed there"),
        (3, ("text",), "must be a string"),
    ],
)
def test_an_invalid_template_is_refused(prompt, slots, message):
    with pytest.raises(BadInput) as error:
        Template.parse(prompt, slots)
    assert message in str(error.value)


def test_braces_in_a_text_are_not_slots():
    assert Template.parse("{text} is").question({"text": "{label} {text} {x}"}) == "{label} {text} {x} is "


def test_examples_end_with_a_blank_line_unless_the_prompt_ends_them():
    assert Template.parse("{text}:").example(({"text": "a"}, "b")) == "a: b\n\n"
    assert Template.parse("{text}: {label}.\n").example(({"text": "a"}, "b")) == "a: b.\n"


@pytest.mark.parametrize("labels", ["ab", ["a"], ["a", "a"], ["a", " "]])
def test_fewer_than_two_different_labels_are_refused(char, labels):
    with pytest.raises(BadInput, match="two or more different labels"):
        char.classify("x", prompt="{text}", labels=labels)


def test_a_text_for_an_unknown_label_is_refused():
    assert label_texts(["0", "1"], {"0": "bad", "1": "good"}) == ["bad", "good"]
    with pytest.raises(BadInput, match="'2': not in the data, which has 0, 1"):
        label_texts(["0", "1"], {"2": "bad"})


def test_a_prompt_needs_a_language_model(pair_folder):
    with pytest.raises(BadInput, match="a prompt needs a run that generates text"):
        harken.load(pair_folder).classify("x", prompt="{text}", labels=["a", "b"])
