"""harken.compare: any axis, several seeds; failures are rows; finished trials are not trained again."""

import hashlib
import json
import re
import xml.etree.ElementTree
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import harken
from harken import run_folder
from harken.data.synthetic.tales import tales as generate_tales
from harken.errors import BadInput, BadSetting, HarkenError, Stopped
from harken.experiments import folders
from harken.experiments import train as train_module
from harken.experiments.compare import comparison as comparison_module
from harken.experiments.compare.comparison import evaluate_under
from harken.experiments.compare.plan import format_value, parse_axis, trial_name
from harken.experiments.compare.summary import comparison_table
from harken.experiments.report.html import escape
from harken.recipe import parse_override, resolve

TINY = {
    "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 4, "train.batch": 4,
    "train.eval_every": 2, "train.checkpoint_every": 2, "train.threads": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_samples(monkeypatch, tmp_path):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tales) -> Any:
    """Numbers of heads, one of them invalid, with two seeds, also evaluated at twice the length."""
    home = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        axes = {"model.heads": [1, 2, 3], "model.positions": ["rotary", "learned"]}
        evals = {"model.context": [16, 32]}
        return harken.compare(tales, axes, settings=shared(), evals=evals, seeds=2, out=home / "heads")


def shared(**extra: Any) -> dict[str, Any]:
    return {k: v for k, v in TINY.items() if k != "model.heads"} | {"data.test": 0.1} | extra


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("model.heads=1,2,8", [1, 2, 8]),
        ("model.kind=gpt, lstm", ["gpt", "lstm"]),
        ("train.betas=[0.9,0.99]", [[0.9, 0.99]]),
        ("train.betas=[0.9,0.99],[0.9,0.999]", [[0.9, 0.99], [0.9, 0.999]]),
        ("data.mix={a.txt = 0.6, b.txt = 0.4}", [{"a": {"txt": 0.6}, "b": {"txt": 0.4}}]),
        ('data.path="a,b.txt",c.txt', ["a,b.txt", "c.txt"]),
        ("data.path=it's.txt,b.txt", ["it's.txt", "b.txt"]),
        ("model.tie_embeddings=true,false", [True, False]),
        ("model.layers=6", [6]),
        ("data.decimal=,", [","]),
    ],
)
def test_commas_separate_values_except_inside_brackets_and_quotes(text, values):
    assert parse_axis(text) == (text.partition("=")[0], values)


@pytest.mark.parametrize("text", ["model.heads=1,,2", "model.heads=1,", "model.heads=,1"])
def test_an_empty_value_is_refused(text):
    with pytest.raises(BadInput, match="a value is missing before or after a comma; expected model"):
        parse_axis(text)


@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"])) | st.integers() | st.booleans() | st.floats(-9, 9)
)
def test_a_formatted_value_parses_to_itself(value):
    assert parse_axis(f"x.x={format_value(value)}") == ("x.x", [value])


def test_a_single_value_parses_as_in_train():
    for text in ("model.d=16", "data.path=a b", "train.betas=[0.9, 0.99]", "data.path="):
        assert parse_axis(text) == (parse_override(text)[0], [parse_override(text)[1]])


# --- invalid plans ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"axes": {"model.haeds": [1, 2]}}, "model.haeds is not a setting. Did you mean model.heads?"),
        ({"axes": {"model.heads": [1, "many"]}}, "model.heads = 'many': accepted: whole number"),
        ({"axes": {"model.kind": ["gpt", "lsmt"]}}, "Did you mean lstm?"),
        ({"axes": {"model.kind": ["gpt", "lstm"], "model.heads": [1, 2]}}, "model.heads is not a setting"),
        ({"settings": {"train.sedes": 3}}, "train.sedes is not a setting"),
        ({"axes": {"model.heads": [1, 1]}}, "model.heads: 1 is listed twice"),
        ({"axes": {"model.heads": 8}}, "model.heads = 8: expected a list of values"),
        ({"axes": {"model.kind": "gpt"}}, "model.kind = 'gpt': expected a list of values"),
        ({"axes": {"train.seed": [1, 2]}}, "train.seed cannot be a comparison axis; use --seeds N"),
        ({"axes": {"model.d": [8, 16]}, "settings": {"model.d": 8}}, "model.d: is both an axis and a setting"),
        ({"evals": {"train.lr": [1.0]}}, "train.lr: --eval accepts settings of model and task only"),
        ({"evals": {"model.contxt": [32]}}, "model.contxt is not a setting. Did you mean model.context?"),
        ({"seeds": 0}, "seeds = 0: at least 1 is required"),
        ({"seeds": "3"}, "seeds = '3': at least 1 is required"),
        ({}, "there is nothing to compare; give a setting several values, such as model.heads=1,2"),
        ({"axes": ["model.heads=1,2"]}, "axes = ['model.heads=1,2']: expected a dictionary"),
    ],
)
def test_an_invalid_plan_is_refused_before_any_training(tales, tmp_path, arguments, message):
    with pytest.raises(BadInput) as error:
        harken.compare(tales, arguments.pop("axes", {}), out=tmp_path / "no", **arguments)
    assert message in str(error.value)
    assert not (tmp_path / "no").exists()


# --- rows and runs ----------------------------------------------------------------------------------------------------


def test_every_combination_is_a_row_and_every_seed_a_run(finished):
    assert [tuple(row["settings"].values()) for row in finished.rows] == [
        (heads, positions) for heads in (1, 2, 3) for positions in ("rotary", "learned")
    ]
    runs = [Path(run) for row in finished.rows for run in row["runs"]]
    assert len(runs) == len(set(runs)) == 8
    assert {run.parent for run in runs} == {finished.path}
    assert harken.load(runs[2]).recipe.model.positions == "learned"


def test_a_trial_equals_the_training_of_train(finished, tales, tmp_path):
    row = finished.rows[2]
    alone = harken.train(tales, out=tmp_path / "alone", settings=shared() | row["settings"] | {"train.seed": 1})
    hashes = [
        hashlib.sha256((Path(p) / "model.safetensors").read_bytes()).digest() for p in (row["runs"][1], alone.path)
    ]
    assert hashes[0] == hashes[1]


def test_a_row_has_the_keys_of_the_contract(finished):
    wanted = {"model", "settings", "metrics", "interval", "seconds", "parameters", "flops", "kwh", "co2e_kg"}
    assert all(wanted <= row.keys() for row in finished.rows)
    assert json.loads((finished.path / "compare.json").read_text()) == json.loads(json.dumps(finished.facts))


def test_a_row_has_the_mean_of_its_runs_and_its_interval(finished):
    row = finished.rows[0]
    for split in ("valid", "test"):
        losses = [harken.load(run).metrics[split]["loss"] for run in row["runs"]]
        low, high = row["splits"][split]["interval"]["loss"]
        assert row["splits"][split]["metrics"]["loss"] == pytest.approx(fmean(losses))
        assert (high - low) / 2 == pytest.approx(12.706 * abs(losses[0] - losses[1]) / 2, rel=1e-3)
    assert row["metrics"] == row["splits"]["valid"]["metrics"]


def test_a_refused_setting_is_a_row_with_its_reason(finished):
    assert [len(row["seeds"]) for row in finished.rows] == [2, 2, 2, 2, 0, 0]
    for row in finished.rows[4:]:
        assert [failed["seed"] for failed in row["failed"]] == [0, 1]
        assert "is not divisible by heads=3" in row["failed"][0]["reason"]
    assert "Failed: model.heads=3 model.positions=rotary and model.heads=3 model.positions=learned." in finished.verdict


def test_a_diverging_training_is_a_row_with_its_reason(tales):
    comparison = harken.compare(tales, {"train.lr": [1e-3, 1e30]}, settings=TINY | {"train.grad_clip": 0.0}, seeds=1)
    assert [len(row["failed"]) for row in comparison.rows] == [0, 1]
    assert "the update was skipped" in comparison.rows[1]["failed"][0]["reason"]


def test_an_unexpected_exception_is_a_row_with_its_reason(tales, monkeypatch):
    original = comparison_module.train

    def failing_train(*args: Any, **options: Any) -> Any:
        if options["settings"]["model.heads"] == 1:
            raise RuntimeError("out of\nmemory")
        return original(*args, **options)

    monkeypatch.setattr(comparison_module, "train", failing_train)
    comparison = harken.compare(tales, {"model.heads": [1, 2]}, settings=shared(), seeds=1)
    assert comparison.rows[0]["failed"] == [{"seed": 0, "reason": "RuntimeError: out of memory"}]
    assert comparison.rows[1]["seeds"] == [0]


def test_if_every_trial_fails_an_error_is_raised_and_the_table_is_written(tales, tmp_path):
    with pytest.raises(HarkenError, match=r"every trial failed; the first: model: .*heads=3"):
        harken.compare(tales, settings=TINY | {"model.heads": 3}, seeds=1, out=tmp_path / "none")
    assert json.loads((tmp_path / "none" / "compare.json").read_text())["verdict"] == "Every trial failed."


@pytest.mark.parametrize("where", ["settings", "recipe"])
def test_seeds_count_from_train_seed(tales, where):
    settings = TINY | {"train.seed": 7, "train.steps": 1}
    if where == "settings":
        comparison = harken.compare(tales, settings=settings, seeds=2)
    else:
        Path("my.toml").write_text(resolve(("here", settings | {"data.path": str(tales)})).toml())
        comparison = harken.compare("my.toml", seeds=2)
    assert comparison.rows[0]["seeds"] == [7, 8]
    assert [harken.load(run).recipe.train.seed for run in comparison.rows[0]["runs"]] == [7, 8]


# --- evaluation settings ----------------------------------------------------------------------------------------------


def test_the_weights_are_evaluated_at_other_lengths(finished):
    equal_length, double_length = finished.rows[0]["evals"]
    assert equal_length["metrics"] == finished.rows[0]["metrics"]
    assert double_length["settings"] == {"model.context": 32}
    assert double_length["metrics"]["loss"] != equal_length["metrics"]["loss"]
    assert double_length["interval"]["loss"] is not None


def test_learned_positions_are_refused_beyond_the_context_with_a_fix(finished):
    equal_length, double_length = finished.rows[1]["evals"]
    assert equal_length["metrics"] == finished.rows[1]["metrics"]
    assert double_length["metrics"] == {}
    assert double_length["failed"] == (
        "learned positions exist only for the context of the training, 16; "
        "train with model.context=32, or with model.positions=rotary, alibi or sinusoid"
    )


def test_another_length_is_evaluated_like_a_run_of_that_length(finished):
    run, other = (harken.load(finished.rows[0]["runs"][0]) for _ in range(2))
    other.recipe = other.recipe.change(model__context=32)
    other.model.context = 32
    assert evaluate_under(run, {"model.context": 32}) == other.evaluate("valid")[0].metrics


def test_weights_that_do_not_fit_a_model_are_refused(finished):
    with pytest.raises(BadInput, match="the trained weights do not fit this model; train with this setting instead"):
        evaluate_under(harken.load(finished.rows[0]["runs"][0]), {"model.d": 32})


def test_a_model_that_cannot_be_built_is_refused_with_its_section(finished):
    with pytest.raises(BadSetting, match=r"^model: d=\d+ is not divisible by heads=3"):
        evaluate_under(harken.load(finished.rows[0]["runs"][0]), {"model.heads": 3})


# --- stop and resume --------------------------------------------------------------------------------------------------


def finish_times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/harken.json")}


def test_an_interrupted_comparison_resumes_where_it_stopped(tales, tmp_path):
    axes, steps = {"model.heads": [1, 2]}, []

    def stop(event: str, **facts: Any) -> None:
        if event == "step":
            steps.append(facts["step"])
            if len(steps) == 7:  # in the second trial, after its checkpoint
                raise Stopped("runs/x: stopped", 15)

    with pytest.raises(Stopped) as stopped:
        harken.compare(tales, axes, settings=shared(), seeds=1, out=tmp_path / "a b", listen=stop)
    assert str(stopped.value) == (
        f"{tmp_path}/a b: stopped in trial 2 of 2; resume with: harken compare '{tmp_path}/a b' --resume"
    )
    assert stopped.value.exit_code == 143
    before, events = finish_times(tmp_path / "a b"), []
    comparison = harken.compare(
        tmp_path / "a b",
        resume=True,
        listen=lambda event, **facts: events.append(facts.get("step")) if event == "step" else None,
    )
    assert events == [3, 4]
    assert finish_times(tmp_path / "a b").items() >= before.items()
    uninterrupted = harken.compare(tales, axes, settings=shared(), seeds=1, out=tmp_path / "whole")
    assert [row["metrics"] for row in comparison.rows] == [row["metrics"] for row in uninterrupted.rows]


def test_more_seeds_and_values_train_only_the_missing_trials(tales, tmp_path):
    settings = shared(**{"train.steps": 1})
    harken.compare(tales, {"model.heads": [1]}, settings=settings, seeds=1, out=tmp_path / "c")
    before = finish_times(tmp_path / "c")
    grown = harken.compare(tales, {"model.heads": [1, 2]}, settings=settings, seeds=2, out=tmp_path / "c", resume=True)
    assert finish_times(tmp_path / "c").items() >= before.items()
    assert [row["seeds"] for row in grown.rows] == [[0, 1], [0, 1]]
    again = harken.compare(tales, {"model.heads": [1, 2]}, settings=settings, out=tmp_path / "c", resume=True)
    assert [row["seeds"] for row in again.rows] == [[0, 1], [0, 1]]


def test_fewer_seeds_than_before_are_refused(finished, tales):
    message = f"^{finished.path}: seeds = 1, but this comparison has 2; use 2 or more, or another folder$"
    with pytest.raises(BadInput, match=message):
        harken.compare(finished.path, seeds=1, resume=True)
    with pytest.raises(BadInput, match=message):
        harken.compare(tales, {"model.heads": [1]}, settings=shared(), seeds=1, out=finished.path, resume=True)


def test_all_seeds_of_a_row_have_the_same_steps(tales, tmp_path, monkeypatch):
    rates = iter((3, 4, 5, 6))  # steps, as estimated from noisy timings
    monkeypatch.setattr(train_module, "plan", lambda trainer, _: (trainer.train.steps or next(rates), None, None))
    settings = {path: value for path, value in TINY.items() if path not in ("train.steps", "model.heads")}

    def stop(event: str, **facts: Any) -> None:
        if event == "trial_start" and facts["number"] == 4:
            raise Stopped("stopped", 15)

    arguments = {"settings": settings | {"train.minutes": 0.5}, "seeds": 2, "out": tmp_path / "c"}
    with pytest.raises(Stopped):
        harken.compare(tales, {"model.heads": [1, 2]}, **arguments, listen=stop)
    comparison = harken.compare(tmp_path / "c", resume=True)
    assert [[harken.load(run).facts["steps"] for run in row["runs"]] for row in comparison.rows] == [[3, 3], [4, 4]]


def test_the_newest_comparison_of_this_data_and_these_settings_is_resumed(tales):
    settings, events = TINY | {"train.steps": 1}, []
    first = harken.compare(tales, settings=settings, seeds=1)
    other = harken.compare(tales, settings=settings | {"train.lr": 0.1}, seeds=1)
    assert (str(first.path), str(other.path)) == ("runs/tales-compare", "runs/tales-compare-2")
    resumed = harken.compare(tales, settings=settings, seeds=1, resume=True)
    assert resumed.path == first.path
    new = harken.compare(
        tales,
        settings=settings | {"train.lr": 0.2},
        seeds=1,
        resume=True,
        listen=lambda event, **facts: events.append((event, facts)),
    )
    assert str(new.path) == "runs/tales-compare-3"
    assert events[0] == ("notice", {"text": "runs/tales-compare: there is no comparison to resume; a new one starts"})


def test_simultaneous_comparisons_claim_different_folders(tales):
    with run_folder.lock_folder(Path("runs/tales-compare")), run_folder.lock_folder(Path("runs/tales-compare-2")):
        comparison = harken.compare(tales, settings=TINY, seeds=1)
    assert str(comparison.path) == "runs/tales-compare-3"


def test_a_folder_written_meanwhile_is_skipped(tmp_path, monkeypatch):
    """Another process writes and finishes between the check of a folder and its lock."""
    availability = iter([True, False, True, True])
    monkeypatch.setattr(folders, "is_available", lambda folder: next(availability))
    with ExitStack() as locks:
        assert folders.claim_folder(tmp_path / "my", locks) == tmp_path / "my-2"
        with (
            run_folder.lock_folder(tmp_path / "my"),
            pytest.raises(BadInput),
            run_folder.lock_folder(tmp_path / "my-2"),
        ):
            pass


def test_a_non_empty_folder_is_refused_with_a_fix(finished, tales, tmp_path):
    with pytest.raises(BadInput, match=r"is not empty; resume the comparison \(--resume\) or choose another folder"):
        harken.compare(tales, settings=TINY, seeds=1, out=finished.path)
    with pytest.raises(BadInput, match="this comparison has other data or settings; choose another folder"):
        harken.compare(tales, settings=TINY, seeds=1, out=finished.path, resume=True)
    with pytest.raises(BadInput, match="a comparison, not data; resume with: harken compare "):
        harken.compare(finished.path, settings=TINY)
    with pytest.raises(BadInput, match=r"remove them and out \(--out\), or repeat the first command with"):
        harken.compare(finished.path, settings=TINY, resume=True)


def test_trials_on_different_data_are_not_compared(tmp_path):
    text, settings = tmp_path / "my.txt", TINY | {"train.steps": 1}
    text.write_text("\n".join(generate_tales(20)))
    harken.compare(text, settings=settings, seeds=1, out=tmp_path / "c")
    text.write_text("\n".join(generate_tales(21)))
    with pytest.raises(BadInput, match="changed between two trials; compare again in another folder"):
        harken.compare(text, settings=settings, seeds=2, out=tmp_path / "c", resume=True)


def test_a_tuple_in_the_settings_does_not_prevent_resuming(tales, tmp_path):
    settings = TINY | {"train.steps": 1, "train.betas": (0.9, 0.95)}
    for resume in (False, True):
        comparison = harken.compare(tales, settings=settings, seeds=1, out=tmp_path / "c", resume=resume)
    assert comparison.rows[0]["seeds"] == [0]


def test_a_locked_comparison_is_refused(tales, tmp_path):
    with (
        run_folder.lock_folder(tmp_path / "busy"),
        pytest.raises(BadInput, match="another process trains in this folder"),
    ):
        harken.compare(tales, settings=TINY, seeds=1, out=tmp_path / "busy")


def test_the_command_of_a_comparison_repeats_it(finished, tales):
    words = finished.facts["command"].split()
    assert words[:3] == ["harken", "compare", str(tales)]
    assert "model.heads=1,2,3" in words
    assert words[-4:] == ["--eval", "model.context=16,32", "--seeds", "2"]


@pytest.mark.parametrize("value", ["a/b c", "x" * 300, [0.9, 0.99], 1e-3])
def test_every_trial_has_a_unique_portable_folder_name(value):
    names = {trial_name({"data.path": v}, seed) for v in (value, "a_b_c") for seed in (0, 1)}
    assert len(names) == 4
    assert all(len(name) < 120 and "/" not in name and " " not in name for name in names)


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_and_the_svg_are_complete_and_fetch_nothing(finished):
    page = (finished.path / "report.html").read_text()
    assert page.count("<figure>") == 4
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for text in (
        finished.verdict,
        "model.heads=2 model.positions=learned",
        "baseline: 5-gram Kneser-Ney",
        "learned positions exist",
    ):
        assert escape(text) in page, text
    svg = xml.etree.ElementTree.parse(finished.path / "compare.svg").getroot()
    assert len(svg.findall("{*}g/{*}svg")) == 4
    assert "var(" not in (finished.path / "compare.svg").read_text()
    assert "rem" not in (finished.path / "compare.svg").read_text()


def test_implied_settings_are_on_the_page(tales, tmp_path):
    axes = {"train.optimizer": ["adamw", "muon"]}
    comparison = harken.compare(tales, axes, settings=TINY | {"train.weight_decay": 0.1}, seeds=1, out=tmp_path / "c")
    assert comparison.facts["implied_settings"] == {"train.lr": [0.003, 0.02], "train.momentum": [0.9, 0.95]}
    assert "train.lr, row by row</dt><dd>0.003, 0.02</dd>" in (tmp_path / "c" / "report.html").read_text()


def test_the_tables_of_the_page_are_narrow_enough(finished):
    page = (finished.path / "report.html").read_text()
    heads = [re.findall(r"<th[^>]*>(.*?)</th>", head) for head in re.findall(r"<thead>(.*?)</thead>", page)]
    assert heads[0][:4] == ["valid loss", "valid perplexity", "test loss", "test perplexity"]
    assert heads[0][-1] == "seeds"
    assert heads[1] == ["parameters", "tokens/s", "FLOPs", "energy", "CO2e"]
    assert max(map(len, heads)) <= 8
    assert page.count("baseline: unigram") == 1  # baselines have no cost


def test_the_table_has_a_row_for_each_setting_and_each_baseline(finished):
    heads, lines = comparison_table(finished.facts)
    assert all(len(line) == len(heads) for line in lines)
    assert [line[0] for line in lines[-2:]] == ["baseline: unigram", "baseline: 5-gram Kneser-Ney"]
    assert lines[4][1:] == ["-"] * (len(heads) - 2) + ["0, 2 failed"]
    assert {"valid loss", "valid perplexity", "test loss", "test perplexity", "time", "tokens/s", "energy"} <= set(
        heads
    )
