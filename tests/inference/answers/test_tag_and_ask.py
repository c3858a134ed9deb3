"""Tagging and answer spans: training, resuming, evaluation of other files, Run.tag, Run.ask and the two verbs."""

import csv
import json
import math
import random
import sys
import unicodedata

import pytest
import torch

import harken
from harken.cli import main
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.spans import word_spans
from harken.data.labelled.tags import to_bio2
from harken.data.tokenizers.tokenizer import train_tokenizer
from harken.errors import BadInput
from harken.events import OverflowWarning
from harken.inference.answers.tag import WORD, tag_spans
from harken.tasks.tag import transition_scores, viterbi

SMALL = {
    "model.d": 64,
    "model.layers": 1,
    "model.heads": 2,
    "data.vocab_size": 150,
    "train.batch": 32,
    "train.threads": 1,
}
NAMES, TOWNS = ["Ada", "Bob", "Cy", "Dan"], ["Rome", "New York", "Paris", "Old Town"]


def conll(path, n_examples=200):
    rng, blocks = random.Random(0), []
    for n in range(n_examples):
        name, town = rng.choice(NAMES), rng.choice(TOWNS)
        rows = [(name, "PER"), ("lives", ""), ("in", ""), *((word, "LOC") for word in town.split()), (f"{n}", "")]
        blocks.append("\n".join(f"{word} X {'I-' + tag if tag else 'O'}" for word, tag in rows))
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def squad(path, n_examples=120):
    rng, paragraphs = random.Random(0), []
    for n in range(n_examples):
        name, town = rng.choice(NAMES), rng.choice(TOWNS)
        context = f"{name} lives in {town}. This is story {n}."
        answers = [{"text": town, "answer_start": context.index(town)}]
        questions = [{"id": f"{n}", "question": f"Where does {name} live?", "answers": answers}]
        questions += [{"id": f"{n}x", "question": "Why is the sky blue?", "answers": [], "is_impossible": True}]
        paragraphs.append({"context": context, "qas": questions})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(folder / "cache"))
        budget = SMALL | {"train.steps": 60, "train.eval_every": 30}
        harken.train(conll(folder / "eng.train"), out=folder / "tags", settings=budget)
        harken.train(squad(folder / "squad.json"), out=folder / "spans", settings=budget | {"train.steps": 100})
    return folder


@pytest.fixture
def run_command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["harken", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


def test_a_conll_file_is_recognized_and_learned(home):
    run = harken.load(home / "tags")
    assert (run.recipe.data.kind, run.recipe.task.kind, run.recipe.model.kind) == ("tags", "tag", "bert")
    assert (run.recipe.data.text, run.recipe.data.label) == (1, 3)
    assert run.metrics["valid"]["f1"] > 0.9
    assert run.facts["audit"]["passed"]
    assert " (LOC)" in (home / "tags" / "report.html").read_text()


def test_tag_returns_offsets_into_the_text(home):
    text = "Ada lives in  New York 7"
    answer = harken.load(home / "tags").tag(text)
    assert [(span["label"], span["text"]) for span in answer] == [("PER", "Ada"), ("LOC", "New York")]
    assert all(text[span["start"] : span["end"]] == span["text"] for span in answer)
    assert all(0 < span["probability"] <= 1 for span in answer)


def test_a_batch_of_texts_is_tagged_like_single_texts(home):
    run = harken.load(home / "tags")
    texts = ["Bob lives in Rome 3", "", "Ada lives in  New York 7"]
    together = run.tag(texts)
    assert together[1] == []
    alone = [run.tag(text) for text in texts]
    for batched, single in zip(together, alone, strict=True):
        assert [span["text"] for span in batched] == [span["text"] for span in single]
        assert [s["probability"] for s in batched] == pytest.approx([s["probability"] for s in single], abs=1e-5)


def test_each_word_of_a_long_text_has_the_tag_of_the_window_in_which_it_is_most_central(home):
    run = harken.load(home / "tags")
    processor, room = run.tokenizer, 14
    run.recipe = run.recipe.change(data__max_length=room + 2)
    words = " ".join(f"{NAMES[n % 4]} lives in {TOWNS[n % 3]} {n}" for n in range(12)).split()
    pieces, best = [processor.tokenizer.encode(word).tolist() for word in words], {}
    for i in range(len(words)):  # all windows of words that fit, the longest from each start
        j = max(j for j in range(i + 1, len(words) + 1) if sum(map(len, pieces[i:j])) <= room)
        ids = [id for word in pieces[i:j] for id in word]
        with torch.no_grad():
            h = run.model(torch.tensor([[*processor.start_ids, *ids, processor.end_id]]))[0]
            log_p = run.model.predict(h).log_softmax(-1)
        place = len(processor.start_ids)
        for word in range(i, j):
            best[i, j, word], place = log_p[place], place + len(pieces[word])
    starts = {0}
    while (last := max(starts)) >= 0:  # the next window shares at most room // 2 tokens
        end = max(j for i, j, _ in best if i == last)
        if end == len(words):
            break
        starts.add(min(i for i in range(last + 1, end + 1) if sum(map(len, pieces[i:end])) <= room // 2))
    rows = []
    for word in range(len(words)):
        fits = [key for key in best if key[0] in starts and key[2] == word]
        edge = len(words)
        central = [min(word - i if i else edge, j - 1 - word if j < edge else edge) for i, j, _ in fits]
        rows.append(best[fits[central.index(max(central))]])
    path = viterbi(torch.stack(rows).numpy(), transition_scores(processor.labels))
    p = [float(row[i].exp()) for row, i in zip(rows, path, strict=True)]
    spans = run.tag(" ".join(words))
    assert len(starts) > 5
    expected = tag_spans(to_bio2([processor.labels[i] for i in path]))
    assert [(span["label"], span["text"]) for span in spans] == [(t, " ".join(words[i:j])) for t, i, j in expected]
    assert [s["probability"] for s in spans] == pytest.approx([math.prod(p[i:j]) for _, i, j in expected], abs=1e-4)


def test_a_question_that_is_too_long_is_truncated_with_a_notice(home):
    run, notices = harken.load(home / "spans"), []
    question = "Where does " + "Cy " * 90 + "live?"
    run.ask(question, "Cy lives in Rome. " * 90, listen=lambda event, **facts: notices.append(facts["text"]))
    [notice] = notices
    assert notice.startswith("1 of 1 questions is longer than 64 tokens (longest: ")
    assert notice.endswith(") and was truncated; ask shorter questions")
    with pytest.warns(OverflowWarning):
        run.ask(question, "Cy lives in Rome.")


def test_a_word_in_decomposed_form_is_one_word():
    text = unicodedata.normalize("NFD", "Schöne Grüße, Café-Bar über O’Neill")
    words = [unicodedata.normalize("NFC", word) for word in WORD.findall(text)]
    assert words == ["Schöne", "Grüße", ",", "Café-Bar", "über", "O", "’Neill"]
    spans = [unicodedata.normalize("NFC", text[a:b]) for a, b in word_spans(text)]
    assert spans == ["Schöne", "Grüße", ",", "Café", "-", "Bar", "über", "O", "’", "Neill"]


def test_ask_returns_the_answer_and_its_offsets(home):
    run, context = harken.load(home / "spans"), "Cy lives in Old Town. This is story 5."
    answer = run.ask("Where does Cy live?", context)
    assert answer["answer"] == "Old Town"
    assert context[answer["start"] : answer["end"]] == "Old Town"
    assert 0 < answer["score"] <= 1
    assert run.metrics["valid"]["em"] > 0.8
    assert run.ask("Why is the sky blue?", context)["answer"] == ""


@pytest.mark.parametrize(
    ("run", "call"), [("tags", ("ask", "q", "c")), ("spans", ("tag", "t")), ("spans", ("generate",))]
)
def test_an_unsupported_method_is_refused_with_the_supported_one(home, run, call):
    with pytest.raises(BadInput, match=r"use harken (tag|ask), in Python run\.(tag|ask)$"):
        getattr(harken.load(home / run), call[0])(*call[1:])


def test_an_empty_context_is_refused(home):
    with pytest.raises(BadInput, match="context='  ': is empty; give a context"):
        harken.load(home / "spans").ask("Where?", "  ")


def test_other_data_is_evaluated_also_without_the_training_data(home, tmp_path):
    single = conll(tmp_path / "other.conll", 20)
    run = harken.load(home / "tags")
    score, baseline = run.evaluate("test", data=str(single))
    assert score.protocol["sentences"] == 20
    assert baseline
    moved = (home / "eng.train").rename(tmp_path / "gone")
    try:
        resumed, baseline = run.evaluate("test", data=str(single))
    finally:
        moved.rename(home / "eng.train")
    assert resumed.metrics == score.metrics
    assert baseline == {}


@pytest.mark.parametrize("write_data", [conll, squad])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path, write_data):
    name = {conll: "toy.conll", squad: "toy.json"}[write_data]
    path, budget = write_data(tmp_path / name, 40), SMALL | {"train.steps": 8, "train.checkpoint_every": 4}
    unbroken = harken.train(path, out=tmp_path / "whole", settings=budget)
    stopped = tmp_path / "stopped"

    def stop(kind, **facts):
        if kind == "step" and facts.get("step") == 5:
            raise KeyboardInterrupt

    with pytest.raises(BaseException):  # noqa: B017, PT011  however it ends
        harken.train(path, out=stopped, settings=budget, listen=stop)
    assert not (stopped / "harken.json").exists()
    resumed = harken.train(stopped, resume=True)
    assert (stopped / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert resumed.metrics == unbroken.metrics


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_the_verb_tag_prints_a_span_a_line_and_json_a_list_for_each_text(home, run_command):
    code, out, _ = run_command("tag", home / "tags", "Ada lives in New York 7")
    assert code == 0
    assert [line.split("\t")[:3] for line in out.splitlines()] == [["PER", "Ada", "0-3"], ["LOC", "New York", "13-21"]]
    _, out, _ = run_command("tag", home / "tags", "Ada lives in Rome 1", "Bob lives in Rome 2", "--json")
    assert [[span["label"] for span in spans] for spans in json.loads(out)["spans"]] == [["PER", "LOC"]] * 2


def test_the_verb_tag_works_through_a_file(home, run_command, tmp_path):
    (tmp_path / "in.txt").write_text("Ada lives in Rome 1\n\nBob lives in Paris 2\n")
    run_command("tag", home / "tags", "--in", tmp_path / "in.txt", "--out", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(row["spans"] or []) for row in rows] == [2, 0, 2]
    assert [(row["input"], row["line"], row.get("reason")) for row in rows[:2]] == [
        ("Ada lives in Rome 1", 1, None),
        ("", 2, "the text is empty"),
    ]
    run_command("tag", home / "tags", "--in", tmp_path / "in.txt", "--out", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [json.loads(row["spans"] or "null") for row in table] == [row["spans"] for row in rows]


def test_tag_prints_each_of_several_texts_before_its_spans(home, run_command):
    _, out, _ = run_command("tag", home / "tags", "Ada lives in Rome 1", "Bob lives in Paris 2", " ")
    assert [line.split("\t")[:2] for line in out.splitlines()] == [
        ["Ada lives in Rome 1"],
        ["  PER", "Ada"],
        ["  LOC", "Rome"],
        ["Bob lives in Paris 2"],
        ["  PER", "Bob"],
        ["  LOC", "Paris"],
        [""],
        ["  null  (the text is empty)"],
    ]


def test_answers_below_the_minimum_probability_are_unknown(home, run_command, tmp_path):
    tags, spans = harken.load(home / "tags"), harken.load(home / "spans")
    (first, second) = tags.tag("Ada lives in Rome 1")
    limit = max(first["probability"], second["probability"])
    kept = [span["probability"] >= limit for span in (first, second)]
    found = tags.tag("Ada lives in Rome 1", min_probability=limit)
    assert [span["label"] != "unknown" for span in found] == kept
    assert [span["text"] for span in found] == ["Ada", "Rome"]
    question, context = "Where does Cy live?", "Cy lives in Old Town. This is story 5."
    best = spans.ask(question, context)
    assert spans.ask(question, context, min_probability=best["score"]) == best
    unknown = spans.ask(question, context, min_probability=1.0)
    assert unknown == {"answer": "unknown", "score": best["score"], "start": 0, "end": 0}
    (tmp_path / "c.txt").write_text(context)
    _, out, _ = run_command("ask", home / "spans", tmp_path / "c.txt", question, "--min-probability", 1)
    assert out.startswith("unknown   (")
    with pytest.raises(BadInput, match="min_probability=2: must be between 0 and 1"):
        tags.tag("Ada", min_probability=2)


def test_unknown_words_of_a_tagged_text_are_its_words_without_punctuation(home):
    run = harken.load(home / "tags")
    run.tokenizer = TokenLabelProcessor(train_tokenizer("word", lambda: ["Ada lives in Rome ."], 20), ["O", "B-PER"])
    assert run.unknown_words("Ada lives in Rome.") == []
    assert run.unknown_words("Ada's zebra lives, Ada") == ["'s", "zebra", ","]


def test_the_verb_ask_works_through_a_table_of_questions(home, run_command, tmp_path):
    context = "Cy lives in Old Town. This is story 5."
    rows = [
        ["question", "context", "answer"],
        ["Where does Cy live?", context, "?"],
        ["", context, "?"],
        ["Who?", "", ""],
    ]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    spans = home / "spans"
    code, out, _ = run_command("ask", spans, "--in", tmp_path / "in.csv", "--out", tmp_path / "out.csv")
    assert (code, out) == (
        0,
        f"1 answer and 2 rows without one in {tmp_path / 'out.csv'} (predicted_answer: the file has answer)\n",
    )
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    best = harken.load(spans).ask("Where does Cy live?", context)
    assert table[0] == dict(zip(rows[0], rows[1], strict=True)) | {
        "predicted_answer": best["answer"],
        "score": str(best["score"]),
        "start": str(best["start"]),
        "end": str(best["end"]),
        "reason": "",
        "line": "2",
    }
    reasons = ["the question is empty", "the context is empty"]
    assert [(row["predicted_answer"], row["reason"]) for row in table[1:]] == [("", reason) for reason in reasons]
    (tmp_path / "c.txt").write_text(context)
    (tmp_path / "q.txt").write_text("Where does Cy live?\n")
    run_command("ask", spans, tmp_path / "c.txt", "--in", tmp_path / "q.txt", "--out", tmp_path / "out.jsonl")
    line = {"input": "Where does Cy live?", **best, "line": 1}
    assert json.loads((tmp_path / "out.jsonl").read_text()) == line
    code, _, err = run_command("ask", spans, "--in", tmp_path / "q.txt", "--out", tmp_path / "b.csv")
    assert (code, "no column context or story; its columns are input; add one, or give a CONTEXT_FILE" in err) == (
        2,
        True,
    )
    assert not (tmp_path / "b.csv").exists()


def test_the_verb_ask_reads_the_context_from_a_file(home, run_command, tmp_path):
    (tmp_path / "c.txt").write_text("Cy lives in Old Town. This is story 5.")
    code, out, _ = run_command("ask", home / "spans", tmp_path / "c.txt", "Where does Cy live?", "Why is the sky blue?")
    assert code == 0
    assert out.splitlines()[0].startswith("Where does Cy live?   Old Town   (")
    assert out.splitlines()[1].startswith("Why is the sky blue?   (no answer)")
    _, out, _ = run_command("ask", home / "spans", tmp_path / "c.txt", "Where does Cy live?", "--json")
    assert json.loads(out).keys() == {"answer", "score", "start", "end"}
    code, _, err = run_command("ask", home / "spans", tmp_path / "d.txt", "Where?")
    assert (code, "no such file" in err) == (2, True)


def test_eval_reports_the_number_of_examples(home, run_command):
    for run in ("tags", "spans"):
        code, out, _ = run_command("eval", home / run, "--json")
        assert code == 0
        assert json.loads(out)["examples"] > 0
