"""Runs that label tokens: trained, resumed, judged on other files, used by Run.tag, Run.ask and the two verbs."""

import json
import random
import sys

import pytest

import harken
from harken.cli import main
from harken.errors import BadInput

SMALL = {
    "model.d": 64,
    "model.layers": 1,
    "model.heads": 2,
    "data.vocab_size": 150,
    "train.batch": 32,
    "train.threads": 1,
}
NAMES, TOWNS = ["Ada", "Bob", "Cy", "Dan"], ["Rome", "New York", "Paris", "Old Town"]


def conll(path, many=200):
    dice, blocks = random.Random(0), []
    for n in range(many):
        name, town = dice.choice(NAMES), dice.choice(TOWNS)
        rows = [(name, "PER"), ("lives", ""), ("in", ""), *((word, "LOC") for word in town.split()), (f"{n}", "")]
        blocks.append("\n".join(f"{word} X {'I-' + tag if tag else 'O'}" for word, tag in rows))
    path.write_text("\n\n".join(blocks) + "\n")
    return path


def squad(path, many=120):
    dice, paragraphs = random.Random(0), []
    for n in range(many):
        name, town = dice.choice(NAMES), dice.choice(TOWNS)
        context = f"{name} lives in {town}. This is story {n}."
        answers = [{"text": town, "answer_start": context.index(town)}]
        asked = [{"id": f"{n}", "question": f"Where does {name} live?", "answers": answers}]
        asked += [{"id": f"{n}x", "question": "Why is the sky blue?", "answers": [], "is_impossible": True}]
        paragraphs.append({"context": context, "qas": asked})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("labelled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(made / "cache"))
        budget = SMALL | {"train.steps": 60, "train.eval_every": 30}
        harken.train(conll(made / "eng.train"), out=made / "tags", settings=budget)
        harken.train(squad(made / "squad.json"), out=made / "spans", settings=budget | {"train.steps": 100})
    return made


@pytest.fixture
def called(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["harken", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


def test_a_file_of_columns_is_recognised_and_learned(home):
    run = harken.load(home / "tags")
    assert (run.recipe.data.kind, run.recipe.task.kind, run.recipe.model.kind) == ("tags", "tag", "bert")
    assert (run.recipe.data.text, run.recipe.data.label) == (1, 3)
    assert run.metrics["valid"]["f1"] > 0.9
    assert run.facts["audit"]["passed"]
    assert " (LOC)" in (home / "tags" / "report.html").read_text()


def test_tag_gives_spans_of_the_text_itself(home):
    text = "Ada lives in  New York 7"
    found = harken.load(home / "tags").tag(text)
    assert [(span["label"], span["text"]) for span in found] == [("PER", "Ada"), ("LOC", "New York")]
    assert all(text[span["start"] : span["end"]] == span["text"] for span in found)
    assert all(0 < span["probability"] <= 1 for span in found)


def test_many_texts_are_tagged_at_once_and_an_empty_one_has_no_spans(home):
    run = harken.load(home / "tags")
    texts = ["Bob lives in Rome 3", "", "Ada lives in  New York 7"]
    together = run.tag(texts)
    assert together[1] == []
    alone = [run.tag(text) for text in texts]
    for mine, other in zip(together, alone, strict=True):
        assert [span["text"] for span in mine] == [span["text"] for span in other]
        assert [s["probability"] for s in mine] == pytest.approx([s["probability"] for s in other], abs=1e-5)


def test_ask_gives_the_answer_and_its_place(home):
    run, context = harken.load(home / "spans"), "Cy lives in Old Town. This is story 5."
    found = run.ask("Where does Cy live?", context)
    assert found["answer"] == "Old Town"
    assert context[found["start"] : found["end"]] == "Old Town"
    assert 0 < found["score"] <= 1
    assert run.metrics["valid"]["em"] > 0.8
    assert run.ask("Why is the sky blue?", context)["answer"] == ""


@pytest.mark.parametrize(
    ("run", "call"), [("tags", ("ask", "q", "c")), ("spans", ("tag", "t")), ("spans", ("generate",))]
)
def test_a_run_says_what_it_does_when_another_thing_is_asked(home, run, call):
    with pytest.raises(BadInput, match=r"use harken (tag|ask), in Python run\.(tag|ask)$"):
        getattr(harken.load(home / run), call[0])(*call[1:])


def test_nothing_to_ask_is_refused(home):
    with pytest.raises(BadInput, match="context='  ': is empty; give a context"):
        harken.load(home / "spans").ask("Where?", "  ")


def test_another_file_is_judged_and_a_run_without_its_data_too(home, tmp_path):
    other = conll(tmp_path / "other.conll", 20)
    run = harken.load(home / "tags")
    score, free = run.evaluate("test", data=str(other))
    assert score.protocol["sentences"] == 20
    assert free
    moved = (home / "eng.train").rename(tmp_path / "gone")
    try:
        again, free = run.evaluate("test", data=str(other))
    finally:
        moved.rename(home / "eng.train")
    assert again.metrics == score.metrics
    assert free == {}


@pytest.mark.parametrize("made", [conll, squad])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path, made):
    name = {conll: "toy.conll", squad: "toy.json"}[made]
    path, budget = made(tmp_path / name, 40), SMALL | {"train.steps": 8, "train.checkpoint_every": 4}
    whole = harken.train(path, out=tmp_path / "whole", settings=budget)
    stopped = tmp_path / "stopped"

    def stop(kind, **facts):
        if kind == "step" and facts.get("step") == 5:
            raise KeyboardInterrupt

    with pytest.raises(BaseException):  # noqa: B017, PT011  however it ends
        harken.train(path, out=stopped, settings=budget, listen=stop)
    assert not (stopped / "harken.json").exists()
    again = harken.train(stopped, resume=True)
    assert (stopped / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    assert again.metrics == whole.metrics


# --- the verbs --------------------------------------------------------------------------------------------------------


def test_the_verb_tag_prints_a_span_a_line_and_json_a_list_for_each_text(home, called):
    code, out, _ = called("tag", home / "tags", "Ada lives in New York 7")
    assert code == 0
    assert [line.split("\t")[:3] for line in out.splitlines()] == [["PER", "Ada", "0-3"], ["LOC", "New York", "13-21"]]
    _, out, _ = called("tag", home / "tags", "Ada lives in Rome 1", "Bob lives in Rome 2", "--json")
    assert [[span["label"] for span in spans] for spans in json.loads(out)["spans"]] == [["PER", "LOC"]] * 2


def test_the_verb_tag_works_through_a_file(home, called, tmp_path):
    (tmp_path / "in.txt").write_text("Ada lives in Rome 1\n\nBob lives in Paris 2\n")
    called("tag", home / "tags", "--in", tmp_path / "in.txt", "--out", tmp_path / "out.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [len(row["spans"]) for row in rows] == [2, 0, 2]


def test_the_verb_ask_reads_the_context_from_a_file(home, called, tmp_path):
    (tmp_path / "c.txt").write_text("Cy lives in Old Town. This is story 5.")
    code, out, _ = called("ask", home / "spans", tmp_path / "c.txt", "Where does Cy live?", "Why is the sky blue?")
    assert code == 0
    assert out.splitlines()[0].startswith("Old Town   (")
    assert out.splitlines()[1].startswith("(no answer)")
    _, out, _ = called("ask", home / "spans", tmp_path / "c.txt", "Where does Cy live?", "--json")
    assert json.loads(out).keys() == {"answer", "score", "start", "end"}
    code, _, err = called("ask", home / "spans", tmp_path / "d.txt", "Where?")
    assert (code, "there is no such file" in err) == (2, True)


def test_eval_says_how_many_sentences_or_questions_were_judged(home, called):
    for run in ("tags", "spans"):
        code, out, _ = called("eval", home / run, "--json")
        assert code == 0
        assert json.loads(out)["examples"] > 0
