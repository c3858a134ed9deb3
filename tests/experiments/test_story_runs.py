"""Runs on stories: train, evaluate, audit, resume, compare, answer line by line."""

import json
import math
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import harken
from harken import registry
from harken.cli import main
from harken.data.stories.batch import StoryTable
from harken.data.synthetic.stories import stories
from harken.errors import BadInput
from harken.events import OverflowWarning
from harken.experiments.choose import choose
from harken.experiments.demos import lectures
from harken.files import sha256_of
from harken.tasks.answer import predict

KINDS = sorted(registry.MODELS["stories"])
TINY = {"train.threads": 1, "train.batch": 16, "data.tasks": 1, "task.linear_start": 1}
SMALL = {
    "memnet": {"model.hops": 2, "model.d": 16, "model.memory": 10, "train.optimizer": "adamw", "train.lr": 4e-2},
    "gpt": {"model.d": 32, "model.layers": 1, "model.heads": 2, "train.lr": 3e-3, "train.batch": 4},
    "bert": {"model.d": 32, "model.layers": 1, "model.heads": 2, "train.lr": 1e-2, "train.batch": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("stories")
    for task in (1, 15, 20):
        for seed, split in enumerate(("train", "test")):
            (home / f"qa{task}_kind_{split}.txt").write_text("".join(stories(task, 300 - 200 * seed, seed)))
    return home


def model_settings(kind: str, **extra: Any) -> dict[str, Any]:
    return {**TINY, "model.kind": kind, **SMALL[kind], **extra}


@pytest.fixture(scope="module", params=KINDS)
def trained(request, folder, tmp_path_factory) -> harken.Run:
    settings = model_settings(request.param) | {"train.steps": 100, "data.tasks": 20}
    return harken.train(folder, out=tmp_path_factory.mktemp("runs") / "run", settings=settings)


@pytest.fixture(scope="module")
def memnet(folder, tmp_path_factory) -> harken.Run:
    settings = model_settings("memnet") | {"train.steps": 300}
    return harken.train(folder, out=tmp_path_factory.mktemp("runs") / "memnet", settings=settings)


def test_every_story_model_beats_the_baselines(trained):
    baseline = trained.facts["baseline"]["test"]
    assert baseline.keys() == {"most frequent answer", "most frequent answer to this question", "answer named last"}
    assert trained.metrics["test"]["loss"] < math.log(len(trained.tokenizer.labels)) - 0.2
    assert 0 < trained.metrics["test"]["accuracy"] <= 1
    assert trained.facts["audit"]["passed"]
    assert "accumulation" in trained.facts["audit"]["summary"]
    assert "accuracy" in (trained.path / "report.html").read_text()


def test_a_loaded_run_gives_the_same_answers_and_evaluates_other_files(trained, folder):
    question = ("Where will Otto go?", "Otto is hungry.\nIda is tired.")
    again = harken.load(trained.path)
    assert again.ask(*question) == trained.ask(*question)
    score, baseline = again.evaluate("test", data=str(folder / "qa20_kind_test.txt"))
    assert score.metrics["accuracy"] == pytest.approx(trained.metrics["test"]["accuracy"])
    assert score.protocol["questions"] == 100
    assert baseline


def test_unknown_answers_count_as_wrong(memnet, tmp_path):
    (tmp_path / "other.txt").write_text("1 Joe went to the kitchen.\n2 Where is Joe?\tkitchen\n3 Where is Joe?\tmoon\n")
    score, _ = memnet.evaluate("test", data=str(tmp_path / "other.txt"))
    assert score.metrics["accuracy"] == 0.5
    assert score.protocol["unknown_answers"] == 1


@pytest.mark.parametrize(("epochs", "n_notices"), [(1, 1), (0, 0)])
def test_a_first_phase_longer_than_the_training_is_reported(folder, tmp_path, epochs, n_notices):
    texts = list[str]()
    settings = {**model_settings("memnet"), "train.steps": 2, "task.linear_start": epochs}
    listen = lambda event, **facts: texts.append(facts.get("text", ""))  # noqa: E731
    harken.train(folder, out=tmp_path / "short", settings=settings, listen=listen)
    assert len([text for text in texts if "its first phase, task.linear_start=1, does not end" in text]) == n_notices


def test_jointly_trained_tasks_are_evaluated_separately(folder, tmp_path):
    settings = {**model_settings("memnet"), "train.steps": 2, "data.tasks": [1, 15]}
    parts = harken.train(folder, out=tmp_path / "both", settings=settings).facts["parts"]["test"]
    assert list(parts) == ["task 1", "task 15"]
    assert all(part["questions"] == 100 for part in parts.values())


@pytest.mark.parametrize("kind", ["memnet", "gpt"])
def test_an_interrupted_training_resumes_bitwise(folder, tmp_path, kind):
    class Died(Exception):
        """Simulates a killed process."""

    def die(event: str, **facts: Any) -> None:
        if event == "step" and facts["step"] == 14:
            raise Died

    settings = model_settings(kind) | {"train.steps": 20, "train.checkpoint_every": 6, "task.noise": 0.3}
    complete = harken.train(folder, out=tmp_path / "whole", settings=settings)
    with suppress(Died):
        harken.train(folder, out=tmp_path / "died", settings=settings, listen=die)
    harken.train(tmp_path / "died", resume=True)
    assert sha256_of(tmp_path / "died" / "model.safetensors") == sha256_of(complete.path / "model.safetensors")


def test_the_default_story_model_is_a_memory_network_and_each_model_has_its_recipe(folder):
    recipe = choose(str(folder)).recipe
    assert (recipe.data.kind, recipe.model.kind, recipe.task.kind) == ("stories", "memnet", "answer")
    assert (recipe.model.residual, recipe.model.time, recipe.model.tying) == (True, True, "adjacent")
    assert choose(str(folder), {"model.kind": "bert"}).recipe.model.pool == "last"


def test_models_are_compared_on_the_same_stories(folder, tmp_path):
    axes, settings = {"model.kind": ["memnet", "gpt", "bert"]}, {**TINY, "train.steps": 2, "model.d": 16}
    rows = harken.compare(folder, axes, settings=settings, seeds=1, out=tmp_path / "c").facts["rows"]
    assert [row["model"] for row in rows] == ["memnet", "gpt", "bert"]
    assert all(0 <= row["metrics"]["accuracy"] <= 1 for row in rows)


# --- line by line -----------------------------------------------------------------------------------------------------


def test_a_story_can_be_extended_line_by_line(memnet):
    story = memnet.story(["Joe went to the kitchen."])
    assert story.ask("Where is Joe?")["answer"] == "kitchen"
    reply = story.write("Joe went to the garden.").ask("Where is Joe?")
    assert reply["answer"] == "garden"
    assert reply["lines"] == ["Joe went to the kitchen.", "Joe went to the garden."]
    assert len(reply["hops"]) == 2
    assert all(0 < sum(hop) < 1 + 1e-6 for hop in reply["hops"])  # empty slots may have weight
    assert reply["hops"][-1][1] > 0.5


def test_gradients_flow_to_every_line_and_to_the_embeddings(memnet):
    story = memnet.story(["Joe went to the kitchen.", "Mary went to the office.", "Joe went to the garden."])
    story.memory = [line.detach().requires_grad_() for line in story.memory]
    story.scores("Where is Joe?")[0].backward()
    assert all(float(line.grad.abs().sum()) > 0 for line in story.memory)
    memnet.model.zero_grad()
    memnet.story(["Joe went to the kitchen."]).scores("Where is Joe?")[0].backward()
    moved = memnet.model.embed.weight.grad.abs().sum(-1) > 0
    assert moved[torch.from_numpy(memnet.tokenizer.encode_line("kitchen")) + 1].all()
    memnet.model.zero_grad()


def test_line_by_line_answers_equal_batched_ones(memnet, folder):
    part = memnet.recipe.load_data(memnet.tokenizer).splits["test"]
    indices = [5, 17, 60]
    expected = predict(memnet.model, StoryTable(part, memnet.recipe.model.memory), torch.tensor(indices).numpy())
    for n, y in zip(indices, expected, strict=True):
        scores = memnet.story(part.questions[n].lines).scores(part.questions[n].question)
        torch.testing.assert_close(scores.detach(), y, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("context", ["", "\n \n", "1 Where is Joe?\tgarage\t1\n"], ids=repr)
def test_an_empty_story_is_refused(memnet, context):
    with pytest.raises(BadInput, match="story: has no lines; write one before asking"):
        memnet.ask("Where is Joe?", context)
    with pytest.raises(BadInput, match="story: has no lines"):
        memnet.story().ask("Where is Joe?")


def test_questions_before_the_first_line_are_trained_on_and_not_sampled(tmp_path):
    template = "1 Where is hat {0}?\t{1}\t\n2 Joe has {0} hats.\n"
    (tmp_path / "my.txt").write_text("".join(template.format(n, ("garage", "kitchen")[n % 2]) for n in range(40)))
    run = harken.train(tmp_path / "my.txt", out=tmp_path / "run", settings={"train.steps": 1, "train.threads": 1})
    assert (run.facts["kind"], run.metrics.keys()) == ("memnet", {"valid", "test"})


def test_lines_beyond_the_memory_have_weight_0(memnet):
    n_lines = memnet.recipe.model.memory + 3
    reply = memnet.story(["Mary ran to the office."] * n_lines).ask("Where is Mary?")
    assert reply["answer"] == "office"
    assert all(len(hop) == n_lines and hop[:3] == [0, 0, 0] for hop in reply["hops"])


def test_a_story_beyond_the_memory_gives_a_notice(memnet):
    notices, n_lines = [], memnet.recipe.model.memory + 3
    text = "\n".join(["Joe went to the kitchen."] + ["Mary ran to the office."] * (n_lines - 1))
    memnet.ask("Where is Joe?", text, listen=lambda event, **facts: notices.append(facts["text"]))
    counts = f"1 of 1 stories is longer than {n_lines - 3} lines (longest: {n_lines}) and was truncated at the start"
    assert notices == [f"{counts}; train with model.memory={n_lines}"]
    with pytest.warns(OverflowWarning, match="longer than"):
        memnet.story(text.splitlines()).ask("Where is Joe?")


@pytest.mark.parametrize(
    ("kind", "limit", "unit"), [("memnet", {"model.memory": 4}, "lines"), ("gpt", {"data.max_length": 20}, "tokens")]
)
def test_training_reports_the_stories_that_a_model_cannot_read_completely(folder, tmp_path, kind, limit, unit):
    run = harken.train(folder, out=tmp_path / "run", settings=model_settings(kind) | limit | {"train.steps": 1})
    data = run.recipe.load_data(run.tokenizer)
    sizes = [
        len(q.lines) if unit == "lines" else sum(len(line.split()) + 1 for line in (*q.lines, q.question)) + 1
        for part in data.parts.values()
        for q in part.questions
    ]
    ((name, value),) = limit.items()
    n_long = sum(size > value for size in sizes)
    assert 0 < n_long < len(sizes)
    lengths = f"longer than {value} {unit} (longest: {max(sizes)}) and were truncated at the start"
    expected = f"{n_long} of {len(sizes)} stories are {lengths}; train with {name}={max(sizes)}"
    assert expected in run.facts["notices"]
    notices = list[str]()
    run.evaluate("test", listen=lambda event, **facts: notices.append(facts["text"]))
    assert expected in notices


def test_only_the_vectors_within_the_memory_are_kept(memnet):
    texts = [f"{who} went to the {where}." for who in ("Joe", "Mary") for where in ("kitchen", "garden") * 4]
    latest = texts[-memnet.recipe.model.memory :]
    complete, end = memnet.story(texts), memnet.story(latest)
    assert len(complete.memory) == len(latest) < len(texts)
    assert torch.equal(complete.scores("Where is Mary?"), end.scores("Where is Mary?"))


@pytest.mark.parametrize(
    ("line", "message"), [("  ", "line='  ': has no words; give a line"), (3, "line=3: must be a string")]
)
def test_an_invalid_line_is_refused(memnet, line, message):
    with pytest.raises(BadInput, match=message):
        memnet.story().write(line)


# --- the verb ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def call_cli(monkeypatch, capsys):
    def call(*arguments) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["harken", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        captured = capsys.readouterr()
        return end.value.code or 0, captured.out, captured.err

    return call


def test_ask_answers_the_questions_of_a_file_with_the_lines_of_each_hop(memnet, call_cli, tmp_path):
    story = "1 Joe went to the kitchen.\n2 Joe ran to the garden.\n3 Where is Joe?\tgarden\t2\n"
    (tmp_path / "joe.txt").write_text(story)
    code, out, _ = call_cli("ask", memnet.path, tmp_path / "joe.txt")
    assert code == 0
    heads, *lines, answer = out.splitlines()
    assert heads.split() == ["hop", "1", "hop", "2"]
    assert any(line.endswith("Joe ran to the garden.") for line in lines)
    assert answer.startswith("Where is Joe?   garden   (")
    assert "correct is garden" in answer
    _, out, _ = call_cli("ask", memnet.path, tmp_path / "joe.txt", "--json")
    assert json.loads(out)["correct_answer"] == "garden"


def test_ask_answers_questions_and_reports_unknown_words(memnet, call_cli, tmp_path):
    (tmp_path / "joe.txt").write_text("Joe went to the kitchen.\nThe zebra ran to the garden.\n")
    _, out, _ = call_cli("ask", memnet.path, tmp_path / "joe.txt", "Where is Joe?", "Where is Mary?", "--json")
    first, second = json.loads(out)["answers"]
    assert (first["answer"], first["unknown_words"]) == ("kitchen", ["zebra"])
    assert second["question"] == "Where is Mary?"


def test_ask_prints_only_the_lines_with_weight_and_counts_the_others(memnet, call_cli, tmp_path):
    lines = [
        f"{name} went to the {place}." for name in ("Mary", "Joe") for place in ("kitchen", "garden", "office") * 20
    ]
    (tmp_path / "long.txt").write_text("\n".join(lines))
    _, out, _ = call_cli("ask", memnet.path, tmp_path / "long.txt", "Where is Joe?")
    _, *shown, left_out, answer = out.splitlines()
    assert len(shown) <= 20
    weights = [max(map(float, line.split()[:2])) for line in shown]
    assert min(weights) >= 0.1
    assert left_out == f"(left out: {len(lines) - len(shown)} lines with weights below 0.1; --json has all)"
    assert answer.startswith("Where is Joe?   ")
    _, out, _ = call_cli("ask", memnet.path, tmp_path / "long.txt", "Where is Joe?", "--json")
    assert len(json.loads(out)["lines"]) == len(lines)


def test_ask_answers_a_table_of_questions_about_stories(memnet, call_cli, tmp_path):
    story = "1 Joe went to the kitchen.\n2 Where is Joe?\tkitchen\t1\n3 Joe ran to the garden."
    rows = [{"question": "Where is Joe?", "story": story}, {"question": "Where is the zebra?", "story": story}]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = call_cli("ask", memnet.path, "--in", tmp_path / "q.jsonl", "--out", tmp_path / "a.jsonl")
    assert (code, err) == (0, "unknown to this run and read as <unk>: 'zebra'\n")
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    best = memnet.ask("Where is Joe?", story)
    assert answers[0] == {**rows[0], "answer": best["answer"], "score": best["score"], "line": 1}
    assert (answers[1]["unknown_words"], answers[1]["line"]) == (["zebra"], 2)


def test_an_empty_question_has_no_answer_and_a_low_probability_is_unknown(memnet, call_cli, tmp_path):
    (tmp_path / "joe.txt").write_text("Joe went to the kitchen.\n")
    code, out, _ = call_cli("ask", memnet.path, tmp_path / "joe.txt", "", "--json")
    assert (code, json.loads(out)["answer"], json.loads(out)["reason"]) == (0, None, "the question is empty")
    assert call_cli("ask", memnet.path, tmp_path / "joe.txt", "")[1] == "null  (the question is empty)\n"
    assert memnet.ask("Where is Joe?", "Joe went to the kitchen.", min_probability=1.0)["answer"] == "unknown"
    assert memnet.story(["Joe went home."]).ask("Where is Joe?", min_probability=1.0)["answer"] == "unknown"


def test_ask_reports_an_error_in_one_line(memnet, call_cli, tmp_path):
    (tmp_path / "two.txt").write_text("1 Joe ran to the garden.\n1 Mary ran to the office.\n")
    code, _, err = call_cli("ask", memnet.path, tmp_path / "two.txt", "Where is Joe?")
    assert code == 2
    assert "context: has 2 stories; give one story, or omit the question" in err
    code, _, err = call_cli("ask", memnet.path, tmp_path / "two.txt")
    assert code == 2
    assert "two.txt: the file has no question; give one" in err
    with pytest.raises(BadInput, match="this run answers questions about a story; use harken ask"):
        memnet.generate("Joe")


def test_words_that_no_training_question_has_are_named(memnet, call_cli, tmp_path):
    reply = memnet.ask("Where is the kitchen?", "Joe went to the kitchen.")
    assert (reply["unknown_words"], reply["unasked_words"]) == ([], ["kitchen", "the"])
    assert memnet.ask("Where is Joe?", "The zebra went to the kitchen.")["unasked_words"] == []
    (tmp_path / "joe.txt").write_text("Joe went to the kitchen.\n")
    _, out, _ = call_cli("ask", memnet.path, tmp_path / "joe.txt", "Where is the kitchen?")
    assert out.rstrip().endswith(", in no training question: kitchen, the)")
    (tmp_path / "q.jsonl").write_text(
        json.dumps({"question": "Where is the kitchen?", "story": "Joe ran to the office."})
    )
    call_cli("ask", memnet.path, "--in", tmp_path / "q.jsonl", "--out", tmp_path / "a.csv")
    header, row = (tmp_path / "a.csv").read_text().splitlines()
    assert "unasked_words" in header
    assert '"[""kitchen"", ""the""]"' in row


# --- the demo ---------------------------------------------------------------------------------------------------------


def test_the_demo_answers_the_lectures_story_in_hops(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lectures, "N_QUESTIONS", 60)
    monkeypatch.setattr(lectures, "STORIES", {"train.steps": 3, "train.threads": 1, "model.hops": 2})
    monkeypatch.setattr(lectures, "train", lambda *a, minutes, **how: harken.train(*a, **how))
    output = lectures.stories(out=tmp_path / "out")
    heads, *lines, empty, answer = output.lines
    assert (heads.split(), empty) == (["hop", "1", "hop", "2"], "")
    assert [line.split("   ")[-1] for line in lines] == list(lectures.JOE)
    assert answer.startswith(f"{lectures.QUESTION}   ")
    asked = [shlex.split(hint) for hint in output.hints if hint.startswith("harken ask")]
    assert [Path(story).read_text().count("\n") > 5 for *_, story, _ in asked] == [False, True]
    assert (tmp_path / "out" / "joe.txt").read_text().splitlines() == list(lectures.JOE)
    *_, story, question = asked[1]
    assert not output.run.ask(question, Path(story).read_text())["unknown_words"]
    assert output.run.ask("Where is Joe?", Path(story).read_text())["unasked_words"] == ["joe"]
    assert all((tmp_path / "out").name in hint or "compare" in hint for hint in output.hints)
