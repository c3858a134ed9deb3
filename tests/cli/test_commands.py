"""The output of each command: lines, or one JSON object with --json; from arguments, stdin and pipes."""

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest

from harken import registry
from harken.cli import COMMANDS

TINY = [
    "model.d=16",
    "model.layers=1",
    "model.heads=2",
    "model.context=16",
    "train.steps=2",
    "train.batch=4",
    "train.eval_every=2",
]


@pytest.fixture
def stdout_of(harken):
    """The stdout of a command that succeeds."""

    def call(*args: object, stdin: bytes | None = None) -> str:
        output = harken(*args, stdin=stdin)
        assert output.code == 0, output
        return output.out

    return call


@pytest.fixture
def json_of(stdout_of):
    """The JSON object on stdout, which has nothing else."""
    return lambda *args, stdin=None: json.loads(stdout_of(*args, "--json", stdin=stdin))


@pytest.fixture
def few_tales(monkeypatch):
    from harken.data import catalogue

    monkeypatch.setitem(catalogue.ENTRIES["tales"].arguments, "count", 20)


# --- --json: at least the keys of the contract ------------------------------------------------------------------------


def test_json_of_train(json_of, text):
    actual = json_of("train", text, *TINY)
    assert {"run", "kind", "parameters", "steps", "seconds", "metrics", "baseline", "cost", "audit"} <= actual.keys()
    assert (actual["run"], actual["kind"], actual["steps"]) == ("runs/my", "gpt", 2)
    assert {"loss", "perplexity", "bits_per_character"} == actual["metrics"].keys()


def test_json_of_check(json_of, text):
    actual = json_of("check", text, *TINY)
    assert {"kind", "reason", "alternatives", "override", "recipe", "origins", "estimate"} <= actual.keys()
    assert actual["kind"] == "text"
    assert actual["origins"]["model.d"] == "override"
    assert {"parameters", "steps", "minutes", "kwh", "memory_mib"} <= actual["estimate"].keys()


def test_json_of_eval(json_of, run):
    actual = json_of("eval", run)
    assert {"metrics", "baseline", "split", "examples", "protocol"} <= actual.keys()
    assert actual["split"] == "valid"
    assert actual["protocol"]["context"] == 16


def test_json_of_eval_on_other_data(json_of, run, text):
    actual = json_of("eval", run, text)
    assert actual["split"] == "other data"
    assert actual["examples"] == os.path.getsize(text) - 1


def test_json_of_generate(json_of, run):
    actual = json_of("generate", run, "Tom", "--tokens", 7)
    assert {"text", "tokens", "tokens_per_second"} <= actual.keys()
    assert (len(actual["text"]), actual["tokens"]) == (7, 7)


def test_json_of_several_continuations_has_a_list_of_texts(json_of, run):
    actual = json_of("generate", run, "Tom", "--tokens", 7, "--n", 3)
    assert [len(text) for text in actual["text"]] == [7, 7, 7]
    assert actual["tokens"] == 21


def test_json_of_next(json_of, run):
    actual = json_of("generate", run, "Tom", "--next", 3)["next"]
    assert len(actual) == 3
    assert all(word.keys() == {"text", "probability"} for word in actual)


def test_json_of_score(json_of, run):
    actual = json_of("score", run, "Tom had")
    assert {"words", "perplexity"} <= actual.keys()
    assert [word["word"] for word in actual["words"]] == ["Tom", " had"]


def test_json_of_data(json_of, few_tales):
    listed = json_of("data")["sets"]
    assert {"name", "kind", "bytes", "license", "attribution", "cached"} <= listed[0].keys()
    assert {row["kind"] for row in listed} <= {*registry.kind_names("data"), "weights"}
    actual = json_of("data", "tales")
    assert os.path.isfile(actual["path"])
    assert len(actual["sha256"]) == 64


def test_json_of_runs(json_of, run):
    (actual,) = json_of("runs", run.parent)["runs"]
    assert {"run", "state", "kind", "parameters", "metrics", "date", "seconds", "kwh"} <= actual.keys()
    assert actual["state"] == "finished"


def test_json_of_demo(json_of, few_tales, monkeypatch):
    from harken.data import catalogue

    fetch = catalogue.fetch
    monkeypatch.setattr(catalogue, "fetch", lambda name, **_: fetch("tales"))
    actual = json_of("demo", "text", "--minutes", 0.001)
    assert {"run", "metrics", "files", "attribution"} <= actual.keys()
    assert all(os.path.isfile(file) for file in actual["files"])


def test_json_of_settings_and_of_show(json_of, text):
    assert {"path", "default", "accepted", "description"} == json_of("check", "--settings", "gpt")["settings"][0].keys()
    assert json_of("train", text, "--show", *TINY)["recipe"]["model.d"] == 16


def test_json_with_a_notice_keeps_stdout_clean(harken, run):
    output = harken("train", run, "--resume", "--json")
    assert output.err == f"{run}: this run is already finished\n"
    assert json.loads(output.out)["run"] == str(run)


# --- stdin ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dash", [("-",), ()])
def test_each_line_of_stdin_gets_one_line_including_empty_lines(stdout_of, run, dash):
    out = stdout_of("generate", run, *dash, "--tokens", 8, stdin=b"Tom\n\nNora had\n")
    assert (out.count("\n"), out.splitlines()[1]) == (3, "null  (the text is empty)")


@pytest.mark.parametrize("options", [(), ("--temperature", 0)])
def test_the_first_line_of_stdin_and_an_argument_get_the_same_answer(json_of, run, options):
    alone = json_of("generate", run, "Tom", "--tokens", 8, *options)["text"]
    assert json_of("generate", run, "--tokens", 8, *options, stdin=b"Tom\nTom\n")["text"][0] == alone


def test_lines_have_independent_samples_and_a_seed_reproduces_them(json_of, run, tmp_path):
    def answers(seed: int) -> list[str]:
        return json_of("generate", run, "--tokens", 8, "--seed", seed, stdin=b"Tom\n" * 9)["text"]

    assert len(set(answers(3))) > 1
    assert answers(3) == answers(3) != answers(4)
    (tmp_path / "ask.txt").write_text("Tom\n" * 9)
    json_of("generate", run, "--tokens", 8, "--seed", 3, "--in", "ask.txt", "--out", "out.jsonl")
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in written] == answers(3)


def test_a_bom_and_crlf_in_stdin_are_removed_from_the_prompt(json_of, run):
    plain, windows = b"Tom\nNora\n", b"\xef\xbb\xbfTom\r\nNora\r\n"
    actual = [json_of("generate", run, "--tokens", 2, stdin=options)["text"] for options in (plain, windows)]
    assert actual[0] == actual[1]


def test_json_of_several_lines_has_lists_with_one_entry_per_line(json_of, run):
    actual = json_of("generate", run, "-", "--tokens", 4, stdin=b"Tom\n\nNora\n")
    assert actual["prompt"] == ["Tom", "", "Nora"]
    assert [text and len(text) for text in actual["text"]] == [4, None, 4]
    assert (actual["tokens"], actual["reasons"]) == ([4, 0, 4], [None, "the text is empty", None])


def test_a_line_without_a_score_has_a_reason(stdout_of, json_of, run):
    first, empty, short, last = stdout_of("score", run, stdin=b"Tom had\n\na\nNora had\n").splitlines()
    assert all(line.startswith("perplexity ") for line in (first, last))
    assert empty == "null  (the text is empty): ''"
    assert short == "null  (the text is too short to be scored): 'a'"
    actual = json_of("score", run, stdin=b"Tom had\n\n")
    assert [p is None for p in actual["perplexity"]] == [False, True]
    assert (actual["words"][1], actual["reasons"]) == (None, [None, "the text is empty"])
    assert json_of("score", run, "") == {"words": None, "perplexity": None, "tokens": 0, "reason": "the text is empty"}


def test_several_texts_are_scored_one_per_line(stdout_of, run):
    first, second = stdout_of("score", run, "Tom had", "a hat").splitlines()
    assert first.startswith("perplexity ")
    assert (first.rpartition(": ")[2], second.rpartition(": ")[2]) == ("'Tom had'", "'a hat'")


def test_train_reads_a_text_from_stdin(stdout_of, tales):
    assert "  run     runs/stdin " in stdout_of("train", "-", *TINY, stdin=tales.read_bytes())


# --- check, show, runs ------------------------------------------------------------------------------------------------


def test_check_prints_the_kind_its_reason_and_how_to_override_it(stdout_of, text):
    lines = stdout_of("check", text, *TINY).splitlines()
    assert lines[0].startswith("my.txt is text: plain UTF-8 text, lines of ")
    assert "  override with data.kind=..." in lines


def test_check_names_the_settings_that_overrule_a_regression(stdout_of, tmp_path):
    rows = "".join(f"a text of {n} words and more,{n}.5\n" for n in range(60))
    (tmp_path / "scores.csv").write_text(f"text,score\n{rows}")
    lines = stdout_of("check", "scores.csv", *TINY).splitlines()
    assert lines[0].endswith("column 'score' holds numbers and is named like a target (regression)")
    assert "  override with data.label=..., data.target_type=..., data.kind=..." in lines


def test_check_prints_the_runners_up(stdout_of, tmp_path):
    (tmp_path / "half.txt").write_text("one, two\n" * 40 + "a line of prose without any\n" * 40)
    assert "\n  not table: 50% of its lines split at ','" in stdout_of("check", "half.txt", *TINY)


def test_check_prints_each_setting_with_its_origin_in_columns(stdout_of, text):
    lines = [line for line in stdout_of("check", text, *TINY).splitlines() if " = " in line]
    origins = {line.split()[0]: line.partition("# ")[2] for line in lines}
    assert origins["model.d"] == "override"
    assert origins["data.path"] == "my.txt"
    assert origins["model.kind"] == "default for this data"
    assert origins["train.seed"] == "default"
    assert len({line.index("= ") for line in lines}) == len({line.index("# ") for line in lines}) == 1


def test_check_prints_the_run_that_a_recipe_starts_from(stdout_of, text, folders):
    lines = stdout_of("check", text, f"from={folders['char']}", "train.steps=1").splitlines()
    assert next(line for line in lines if line.startswith("from ")).endswith("# override")


def test_check_lists_settings_that_differ_from_the_size(stdout_of, text):
    lines = stdout_of("check", text, "train.steps=1").splitlines()
    assert next(line for line in lines if line.startswith("model.size ")).endswith("# default, except d")
    lines = stdout_of("check", text, "train.steps=1", "model.size=tiny").splitlines()
    assert next(line for line in lines if line.startswith("model.size ")).endswith("# override")


def test_check_ends_with_the_expected_cost(stdout_of, text):
    weights, cost = stdout_of("check", text, *TINY).splitlines()[-2:]
    assert "weights" in weights
    assert "MiB of memory" in weights
    assert cost.startswith("2 steps, about ")
    assert "(estimated: " in cost or "(measured: " in cost


def test_check_prints_the_minutes_and_energy_of_its_json(stdout_of, json_of, text, monkeypatch):
    from harken.training.loop import Trainer
    from harken.training.timing import Timing

    monkeypatch.setattr(
        Trainer, "measure", lambda *_: Timing(step_seconds=40.0, validation_seconds=10.0, watts=400.0, source="known")
    )
    actual = json_of("check", text, *TINY)["estimate"]
    assert (actual["minutes"], actual["energy_source"]) == (pytest.approx(90 / 60), "known")
    assert actual["kwh"] == pytest.approx(0.4 * 90 / 3600 * 1.58)
    assert "2 steps, about 1 min 30 s, 16 Wh (known) and 6.8 g CO2e on" in stdout_of("check", text, *TINY)


def test_check_trains_nothing(stdout_of, text, tmp_path):
    stdout_of("check", text, *TINY)
    assert not (tmp_path / "runs").exists()


def test_check_settings_lists_every_setting_with_its_description(stdout_of):
    out = stdout_of("check", "--settings", "gpt")
    assert "model.heads" in out
    assert "number of attention heads" in out
    assert "scaled-dot, dot, bilinear" in out


@pytest.mark.parametrize("kind", ["text", "train", "next-word", "lstm", "model"])
def test_check_settings_accepts_every_kind_and_section(stdout_of, kind):
    heads, *rows = stdout_of("check", "--settings", kind).splitlines()
    assert heads.split() == ["setting", "default", "description", "accepted"]
    assert {row.split()[0] for row in rows if "kind of this section" in row} == {
        row.split()[0] for row in rows if row.split()[0].endswith(".kind")
    }


def test_show_prints_the_recipe_and_trains_nothing(stdout_of, text, tmp_path):
    out = stdout_of("train", text, "--show", "--minutes", 3, "model.layers=7")
    shown = [line.split()[:3] for line in out.splitlines()]
    assert ["model.layers", "=", "7"] in shown
    assert ["train.minutes", "=", "3.0"] in shown
    assert not (tmp_path / "runs").exists()


def test_runs_distinguishes_finished_unfinished_and_damaged_runs(stdout_of, json_of, run, tmp_path):
    for name in ("complete", "half", "odd", "bare"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "half" / "harken.json").unlink()
    (tmp_path / "runs" / "odd" / "cost.json").write_text("{}")
    (tmp_path / "runs" / "bare" / "model.safetensors").unlink()
    (tmp_path / "runs" / "complete" / "report.html").write_text("edited")
    (tmp_path / "runs" / "mess").mkdir()
    (tmp_path / "runs" / "mess" / "harken.json").write_text('{"format": 1, "sha256": {}, "metrics": 3}')
    states = {row["run"]: row["state"] for row in json_of("runs")["runs"]}
    assert states == {
        "runs/bare": "damaged",
        "runs/half": "not finished",
        "runs/mess": "damaged",
        "runs/odd": "damaged",
        "runs/complete": "finished",
    }
    out = stdout_of("runs")
    assert "runs/half  not finished: resume with: harken train runs/half --resume" in out
    assert "runs/odd   damaged: runs/odd/cost.json: SHA-256 mismatch: the file was modified" in out
    assert "runs/bare  damaged: runs/bare/model.safetensors: is missing" in out
    table = [line.split()[:3] for line in out.splitlines()]
    assert ["runs/bare", "damaged", "gpt"] in table
    assert ["runs/complete", "finished", "gpt"] in table


@pytest.mark.parametrize("name", ["log.jsonl", "cost.json", "tokenizer.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "modified"])
def test_runs_flags_every_missing_or_modified_file(json_of, run, tmp_path, name, damage):
    file = shutil.copytree(run, tmp_path / "runs" / "my") / name
    file.unlink() if damage == "missing" else file.write_bytes(file.read_bytes() + b" ")
    (row,) = json_of("runs")["runs"]
    assert (row["state"], row["kind"]) == ("damaged", "gpt")
    assert row["problem"].startswith(f"runs/my/{name}: ")
    assert damage in row["problem"]


def test_runs_lists_the_trials_of_a_comparison_and_a_single_run(json_of, run, tmp_path):
    for name in ("my", "c/model.heads=1-seed=0", "c/model.heads=2-seed=0"):
        shutil.copytree(run, tmp_path / "runs" / name)
    (tmp_path / "runs" / "c" / "compare.json").write_text("{}")
    trials = ["runs/c/model.heads=1-seed=0", "runs/c/model.heads=2-seed=0"]
    assert [row["run"] for row in json_of("runs")["runs"]] == [*trials, "runs/my"]
    assert [row["run"] for row in json_of("runs", "runs/c")["runs"]] == trials
    assert [row["run"] for row in json_of("runs", "runs/my")["runs"]] == ["runs/my"]


BROKEN = ("train.lr=1e30", "train.optimizer=sgd", "train.grad_clip=0", "train.warmup=0", "train.steps=6")


def test_a_training_with_a_non_finite_loss_fails_and_suggests_no_next_step(harken, text):
    output = harken("train", text, *TINY, *BROKEN, "train.on_nan=skip")
    assert output.code == 1
    assert "of 6 updates were skipped: their loss or gradient was not finite." in output.out
    assert "next" not in output.out
    assert output.err.splitlines()[-1] == (
        "harken: runs/my: the valid loss is not finite; train again with a lower train.lr"
    )
    assert harken("train", text, *TINY, *BROKEN, "train.on_nan=skip", "--json").code == 1


def test_runs_does_not_suggest_to_resume_a_run_with_a_non_finite_loss(harken, stdout_of, text):
    assert harken("train", text, *TINY, *BROKEN).code == 1
    line = stdout_of("runs")
    assert "not finished: it ended at step " in line
    assert [word in line for word in ("not finite", "lower train.lr", "--resume")] == [True, True, False]


def test_runs_without_runs_suggests_train(stdout_of):
    assert stdout_of("runs") == "no runs in runs; train one: harken train my.txt\n"


def test_default_names_of_runs_are_numbered(stdout_of, text, tmp_path):
    for _ in range(3):
        stdout_of("train", text, *TINY)
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["my", "my-2", "my-3"]


def test_resume_without_a_checkpoint_starts_again_with_a_notice(harken, text):
    output = harken("train", text, "--resume", *TINY)
    assert output.code == 0
    assert output.err == "runs/my: there is no run to resume; a new run starts\n"


def test_a_training_prints_its_phases_and_the_next_command(stdout_of, text):
    out = stdout_of("train", text, *TINY)
    marks = ("text", "data", "model", "recipe", "train", "step", "valid", "cost", "run", "next")
    actual = [line.split()[0] for line in out.splitlines() if line.split()[0] in marks]
    assert list(dict.fromkeys(actual)) == list(marks)
    assert "  next    harken generate runs/my 'Once upon a time'" in out


def test_with_json_the_progress_is_printed_on_stderr(harken, text):
    output = harken("train", text, *TINY, "--json")
    assert json.loads(output.out)["steps"] == 2
    assert "  recipe  runs/my/recipe.toml (every setting)" in output.err
    assert "  step       2 of 2" in output.err


def test_without_a_held_out_split_there_is_no_evaluation(harken, text):
    output = harken("train", text, *TINY, "data.valid=0")
    assert "final evaluation" not in output.out
    assert "  (no split is held out, so there is no evaluation; set data.valid or data.test)" in output.out
    output = harken("eval", "runs/my")
    assert output.err == (
        "harken: split valid: not in this run, which has no held-out split; or give other data to evaluate\n"
    )


def test_eval_prints_the_model_above_the_baselines(stdout_of, run):
    model, unigram, counts, intervals, protocol = stdout_of("eval", run).splitlines()
    assert model.endswith("this model")
    assert unigram.endswith("baseline: unigram")
    assert counts.endswith("baseline: 5-gram Kneser-Ney")
    assert "context 16, stride 8" in protocol
    assert "95 % intervals" in intervals


# --- help, pipes and terminals ----------------------------------------------------------------------------------------


def test_harken_alone_prints_its_help(stdout_of):
    assert stdout_of() == stdout_of("--help")
    assert all(f"  {verb}" in stdout_of("--help") for verb in COMMANDS)


HELP = """
import sys
from harken.cli import COMMANDS, main
for verb in ["", *COMMANDS]:
    sys.argv = ["harken", *([verb] if verb else []), "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, verb
    heavy = {"torch", "numpy", "pydantic", "rich"} & sys.modules.keys()
    assert not heavy, (verb, heavy)
"""


@pytest.mark.process
def test_the_help_of_every_command_imports_neither_torch_nor_numpy_nor_rich():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: harken") == 1 + len(COMMANDS)


@pytest.mark.process
@pytest.mark.parametrize("verb", [(), ("train",), ("data",)])
def test_help_takes_less_than_200_milliseconds(verb):
    def cpu_seconds() -> float:
        before = os.times()
        subprocess.run([sys.executable, "-m", "harken", *verb, "--help"], capture_output=True, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(cpu_seconds() for _ in range(3)) < 0.2  # measured: 0.07


@pytest.mark.process
def test_a_closed_stdout_is_not_an_error():
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "harken", "data"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


def at_a_terminal(*args: str, **env: str) -> str:
    """The output of harken on a terminal of 100 columns."""
    actual, child_end = pty.openpty()
    everything = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **env}
    process = subprocess.Popen(
        [sys.executable, "-m", "harken", *args], stdout=child_end, stderr=child_end, env=everything
    )
    os.close(child_end)
    shown = b""
    try:
        while block := os.read(actual, 1 << 16):
            shown += block
    except OSError:  # the process closed its end
        pass
    os.close(actual)
    assert process.wait() == 0
    return shown.decode()


@pytest.mark.process
def test_a_table_has_escape_codes_on_a_terminal_and_none_with_no_color():
    assert "\x1b[1m" in at_a_terminal("data")
    assert "\x1b" not in at_a_terminal("data", NO_COLOR="1")


def test_without_a_terminal_there_are_no_escape_codes(stdout_of, text):
    assert "\x1b" not in stdout_of("train", text, *TINY) + stdout_of("data") + stdout_of("check", "--settings", "text")
