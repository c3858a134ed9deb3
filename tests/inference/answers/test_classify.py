"""Texts that are longer than a run reads: notices, and predictions averaged over windows."""

import csv
import itertools

import numpy as np
import pytest
import torch

import harken
from harken.errors import BadInput
from harken.events import OverflowSum, OverflowWarning, silent

WORDS = ["red", "green", "blue", "loud", "quiet", "warm"]
TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "data.max_length": 16, "data.vocab_size": 200}
TINY |= {"model.context": 16, "train.steps": 2, "train.batch": 16, "train.threads": 1}
SHORT, LONG, OTHER = "red green blue", " ".join(WORDS * 9), " ".join(WORDS[::-1] * 5)


def text(n: int) -> str:
    return " ".join(WORDS[(n * k + k) % 6] for k in range(1, 4)) + f" {n}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of labels, numbers, several labels, and pairs."""
    home = tmp_path_factory.mktemp("classify")
    tables = {
        "label": (["text", "label"], lambda n: [text(n), "abc"[n % 3]]),
        "number": (["text", "score"], lambda n: [text(n), n / 7]),
        "multilabel": (["text", "label"], lambda n: [text(n), "a;b" if n % 3 else "b"]),
        "pair": (["first", "second", "label"], lambda n: [text(n), text(n + 3), "ab"[n % 2]]),
    }
    columns = {"pair": {"data.text": ["first", "second"], "data.label": "label"}}
    columns["multilabel"] = {"data.separator": ";", "data.text": "text", "data.label": "label"}
    columns["number"] = {"data.text": "text", "data.label": "score"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        for name, (head, row) in tables.items():
            with (home / f"{name}.csv").open("w", newline="") as file:
                csv.writer(file).writerows([head, *map(row, range(60))])
            settings = TINY | {"data.kind": "table"} | columns.get(name, {})
            harken.train(home / f"{name}.csv", out=home / name, settings=settings)
    return {name: harken.load(home / name) for name in tables}


def values(labels):
    return {each["label"]: each.get("probability", each.get("value")) for each in labels}


def window_outputs(run, text):
    """The model's outputs for each slice of the token ids, alone: a loop over the definition."""
    processor, room = run.tokenizer, run.recipe.data.max_length - 2
    ids = processor.tokenizer.encode(text).tolist()
    starts = [*range(0, len(ids) - room, room // 2), len(ids) - room]
    outputs = []
    for start in starts:
        window = [processor.tokenizer.cls_id, *ids[start : start + room], processor.tokenizer.sep_id]
        with torch.no_grad():
            h = run.model(torch.tensor([window]))
            outputs.append(run.model.predict(h[0].mean(0)))
    return torch.stack(outputs)


@pytest.mark.parametrize("name", ["label", "number", "multilabel"])
def test_windows_equal_a_loop_over_slices_of_the_token_ids(runs, name):
    run, processor = runs[name], runs[name].tokenizer
    assert processor.target_type == name
    y = window_outputs(run, LONG)
    assert len(y) > 4
    if name == "number":
        expected = {processor.labels[0]: float(y.mean()) * processor.std + processor.mean}
    else:
        p = (y.softmax(-1) if name == "label" else y.sigmoid()).mean(0)
        expected = dict(zip(processor.labels, p.tolist(), strict=True))
    assert values(run.classify(LONG, overflow="windows")) == pytest.approx(expected, abs=1e-5)
    assert values(run.classify(LONG, listen=silent)) != pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("name", ["label", "number", "multilabel"])
def test_texts_that_fit_have_the_same_bits_with_and_without_windows(runs, name):
    texts = [SHORT, "blue", text(3), " ".join(WORDS[:5])]
    assert runs[name].classify(texts, overflow="windows") == runs[name].classify(texts)


@pytest.mark.parametrize(("a", "b"), [(LONG, SHORT), (SHORT, LONG), (LONG, OTHER), (SHORT, SHORT)])
def test_the_windows_of_a_pair_read_both_texts_completely(runs, a, b):
    processor, max_length = runs["pair"].tokenizer, 16
    encoded = processor.encode_texts([(a, b)], max_length, windows=True)
    sides = [set(), set()]
    for n, start in enumerate(encoded.segment_starts[:, 0].tolist()):
        window = encoded.tokens[n].tolist()
        assert len(window) < max_length
        assert window[start - 1] == processor.end_id
        sides[0].add(tuple(window[1 : start - 1]))
        sides[1].add(tuple(window[start:]))
    for text_, windows in zip((a, b), sides, strict=True):
        ids = processor.tokenizer.encode(text_).tolist()
        pairs = {pair for window in windows for pair in itertools.pairwise(window)}
        assert pairs == {*itertools.pairwise(ids)}
    assert set(encoded.text_index.tolist()) == {0}
    labels = runs["pair"].classify([(a, b), (SHORT, SHORT)], overflow="windows")
    assert [sum(values(row).values()) for row in labels] == pytest.approx([1, 1])


def test_windows_of_several_texts_are_averaged_per_text(runs):
    together = runs["label"].classify([LONG, SHORT, OTHER], overflow="windows")
    for row, each in zip(together, [LONG, SHORT, OTHER], strict=True):
        assert values(row) == pytest.approx(values(runs["label"].classify(each, overflow="windows")), abs=1e-6)


def test_truncated_texts_give_one_notice_with_the_numbers(runs):
    notices = []
    runs["label"].classify([LONG, SHORT, OTHER], listen=lambda event, **facts: notices.append(facts["text"]))
    n_tokens = len(runs["label"].text_tokenizer.encode(LONG)) + 2
    windows = 'use --overflow windows (Python: overflow="windows")'
    counts = f"2 of 3 texts are longer than 16 tokens (longest: {n_tokens}) and were truncated"
    assert notices == [f"{counts}; {windows}, or train with data.max_length={n_tokens}"]


def test_without_a_listener_truncation_is_a_python_warning(runs, recwarn):
    with pytest.warns(OverflowWarning, match=r"^1 of 1 texts is longer than 16 tokens"):
        runs["label"].classify(LONG)
    recwarn.clear()
    runs["label"].classify(LONG, listen=silent)
    runs["label"].classify(LONG, overflow="windows")
    runs["label"].classify(SHORT)
    assert not recwarn.list


def test_windows_do_not_depend_on_the_size_of_the_batches(runs):
    texts = [LONG, SHORT, OTHER] * 3
    together = runs["label"].classify(texts, overflow="windows")
    assert [values(row) for row in together[3:6]] == [
        pytest.approx(values(row), abs=1e-6) for row in runs["label"].classify(texts[:3], overflow="windows")
    ]


def test_notices_of_several_calls_are_added_up(runs):
    class Recorder(OverflowSum):
        def __init__(self):
            super().__init__()
            self.texts = []

        def __call__(self, event, /, **facts):
            self.texts.append(facts["text"])

    recorder = Recorder()
    for batch in ([LONG, SHORT], [SHORT, SHORT], [OTHER]):
        runs["label"].classify(batch, listen=recorder)
    assert recorder.texts == []
    recorder.report_overflows()
    recorder.report_overflows()
    assert [each.partition(" and ")[0] for each in recorder.texts] == [
        f"2 of 5 texts are longer than 16 tokens (longest: {len(runs['label'].text_tokenizer.encode(LONG)) + 2})"
    ]


@pytest.mark.parametrize("overflow", ["window", "", None])
def test_another_overflow_is_refused(runs, overflow):
    with pytest.raises(BadInput, match="must be 'truncate' or 'windows'"):
        runs["label"].classify(SHORT, overflow=overflow)


def test_windows_are_refused_with_a_prompt(runs):
    with pytest.raises(BadInput, match="is for texts of a run that classifies texts; leave it out"):
        runs["label"].classify(SHORT, overflow="windows", prompt="{text}:", labels=["a", "b"])


@pytest.mark.parametrize("pool", ["mean", "cls", "last"])
def test_the_embedding_of_a_long_text_is_the_mean_over_its_windows(runs, pool):
    run = runs["label"]
    tokenizer, room = run.text_tokenizer, run.model.context - 2
    long = LONG
    ids = tokenizer.encode(long).tolist()
    starts = [*range(0, len(ids) - room, room // 2), len(ids) - room]
    assert len(starts) > 2
    states = []
    for start in starts:
        window = [tokenizer.cls_id, *ids[start : start + room], tokenizer.sep_id]
        with torch.no_grad():
            h = run.backbone(torch.tensor([window]))[0]
        states.append({"mean": h.mean(0), "cls": h[0], "last": h[-1]}[pool])
    mean = torch.stack(states).mean(0)
    raw = run.embed(long, pool=pool, normalize=False, overflow="windows")
    assert raw == pytest.approx(mean.numpy(), abs=1e-5)
    unit = run.embed([SHORT, long], pool=pool, overflow="windows")
    assert unit[1] == pytest.approx((mean / mean.norm()).numpy(), abs=1e-5)
    assert unit[0] == pytest.approx(run.embed(SHORT, pool=pool), abs=1e-6)
    assert np.array_equal(run.embed([SHORT, text(1)], overflow="windows"), run.embed([SHORT, text(1)]))


def test_predict_passes_overflow_and_the_listener_on(runs):
    pandas = pytest.importorskip("pandas")
    frame, notices = pandas.DataFrame({"text": [LONG, "", SHORT]}), []
    with pytest.warns(OverflowWarning, match="1 of 2 texts is longer"):
        runs["number"].predict(frame)
    answers = runs["number"].predict(frame, overflow="windows", listen=lambda event, **_: notices.append(event))
    assert answers[0] == pytest.approx(runs["number"].classify(LONG, overflow="windows")[0]["value"], abs=1e-5)
    assert (answers[1], notices) == (None, [])


def test_a_tuple_of_two_texts_is_one_pair_and_two_texts_with_tabs_are_two(runs):
    pair = runs["pair"].classify((SHORT, OTHER))
    assert pair == runs["pair"].classify([(SHORT, OTHER)])[0]
    assert runs["pair"].classify((f"{SHORT}\t{OTHER}", f"{OTHER}\t{SHORT}"))[0] == pair
    assert len(runs["label"].classify((SHORT, OTHER))) == 2
