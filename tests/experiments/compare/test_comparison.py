"""harken.compare: any setting, several seeds; what fails is a row; what is finished is not trained again."""

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
from harken import run_folder as run_room
from harken.data.synthetic.tales import tales as told
from harken.errors import BadInput, BadSetting, HarkenError, Stopped
from harken.experiments import train as training
from harken.experiments.compare import comparison as room
from harken.experiments.compare.comparison import as_word, judged_under, values
from harken.experiments.compare.summary import grid
from harken.experiments.report.line_chart import escape
from harken.recipe import override, resolve

TINY = {
    "model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 4, "train.batch": 4,
    "train.eval_every": 2, "train.checkpoint_every": 2, "train.threads": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def made(tmp_path_factory, tales) -> Any:
    """Heads against each other and one that cannot be built, with two seeds, judged at twice the length too."""
    home = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        axes = {"model.heads": [1, 2, 3], "model.positions": ["rotary", "learned"]}
        evals = {"model.context": [16, 32]}
        return harken.compare(tales, axes, settings=shared(), evals=evals, seeds=2, out=home / "heads")


def shared(**more: Any) -> dict[str, Any]:
    return {k: v for k, v in TINY.items() if k != "model.heads"} | {"data.test": 0.1} | more


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
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
    ],
)
def test_a_comma_parts_values_unless_it_stands_inside_one(text, found):
    assert values(text) == (text.partition("=")[0], found)


@pytest.mark.parametrize("text", ["model.heads=1,,2", "model.heads=1,", "model.heads=,1"])
def test_an_empty_value_is_refused(text):
    with pytest.raises(BadInput, match="nothing before or after a comma; values look like model"):
        values(text)


@given(
    st.text(st.characters(codec="ascii", exclude_categories=["Cc"])) | st.integers() | st.booleans() | st.floats(-9, 9)
)
def test_a_value_is_typed_as_it_is_read(value):
    assert values(f"x.x={as_word(value)}") == ("x.x", [value])


def test_one_value_is_read_as_train_reads_it():
    for text in ("model.d=16", "data.path=a b", "train.betas=[0.9, 0.99]", "data.path="):
        assert values(text) == (override(text)[0], [override(text)[1]])


# --- what is refused before anything is trained -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"axes": {"model.haeds": [1, 2]}}, "model.haeds is not a setting. Did you mean model.heads?"),
        ({"axes": {"model.heads": [1, "many"]}}, "model.heads = 'many': accepted: whole number"),
        ({"axes": {"model.kind": ["gpt", "lsmt"]}}, "Did you mean lstm?"),
        ({"axes": {"model.kind": ["gpt", "lstm"], "model.heads": [1, 2]}}, "model.heads is not a setting"),
        ({"settings": {"train.sedes": 3}}, "train.sedes is not a setting"),
        ({"axes": {"model.heads": [1, 1]}}, "model.heads: 1 is there twice"),
        ({"axes": {"model.heads": 8}}, "model.heads = 8: an axis is a list of values"),
        ({"axes": {"model.kind": "gpt"}}, "model.kind = 'gpt': an axis is a list of values"),
        ({"axes": {"train.seed": [1, 2]}}, "seeds are repetitions, not rivals; say how many with seeds (--"),
        (
            {"axes": {"model.d": [8, 16]}, "settings": {"model.d": 8}},
            "model.d: is given with one value and with several",
        ),
        ({"evals": {"train.lr": [1.0]}}, "train.lr: what was learned is judged under other settings of model and task"),
        ({"evals": {"model.contxt": [32]}}, "model.contxt is not a setting. Did you mean model.context?"),
        ({"seeds": 0}, "seeds = 0: at least 1 is needed"),
        ({"seeds": "3"}, "seeds = '3': at least 1 is needed"),
        ({}, "there is nothing to compare; give a setting several values, such as model.heads=1,2"),
        ({"axes": ["model.heads=1,2"]}, "axes = ['model.heads=1,2']: a dictionary is accepted"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(tales, tmp_path, how, said):
    with pytest.raises(BadInput) as error:
        harken.compare(tales, how.pop("axes", {}), out=tmp_path / "no", **how)
    assert said in str(error.value)
    assert not (tmp_path / "no").exists()


# --- what comes of it -------------------------------------------------------------------------------------------------


def test_every_combination_is_a_row_and_every_seed_a_run_of_its_own(made):
    assert [tuple(row["settings"].values()) for row in made.rows] == [
        (heads, place) for heads in (1, 2, 3) for place in ("rotary", "learned")
    ]
    runs = [Path(run) for row in made.rows for run in row["runs"]]
    assert len(runs) == len(set(runs)) == 8
    assert {run.parent for run in runs} == {made.path}
    assert harken.load(runs[2]).recipe.model.positions == "learned"


def test_a_trial_is_the_training_that_train_makes(made, tales, tmp_path):
    row = made.rows[2]
    alone = harken.train(tales, out=tmp_path / "alone", settings=shared() | row["settings"] | {"train.seed": 1})
    hashes = [
        hashlib.sha256((Path(p) / "model.safetensors").read_bytes()).digest() for p in (row["runs"][1], alone.path)
    ]
    assert hashes[0] == hashes[1]


def test_a_row_has_what_the_contract_says(made):
    wanted = {"model", "settings", "metrics", "interval", "seconds", "parameters", "flops", "kwh", "co2e_kg"}
    assert all(wanted <= row.keys() for row in made.rows)
    assert json.loads((made.path / "compare.json").read_text()) == json.loads(json.dumps(made.facts))


def test_a_row_holds_the_mean_of_its_runs_and_the_interval_around_it(made):
    row = made.rows[0]
    for split in ("valid", "test"):
        losses = [harken.load(run).metrics[split]["loss"] for run in row["runs"]]
        low, high = row["splits"][split]["interval"]["loss"]
        assert row["splits"][split]["metrics"]["loss"] == pytest.approx(fmean(losses))
        assert (high - low) / 2 == pytest.approx(12.706 * abs(losses[0] - losses[1]) / 2, rel=1e-3)
    assert row["metrics"] == row["splits"]["valid"]["metrics"]


def test_a_setting_that_is_refused_is_a_row_with_its_reason_and_not_the_end(made):
    assert [len(row["seeds"]) for row in made.rows] == [2, 2, 2, 2, 0, 0]
    for row in made.rows[4:]:
        assert [failed["seed"] for failed in row["failed"]] == [0, 1]
        assert "does not split over 3 heads" in row["failed"][0]["reason"]
    assert "model.heads=3 model.positions=rotary and model.heads=3 model.positions=learned failed" in made.verdict


def test_a_training_that_diverges_is_a_row_with_its_reason(tales):
    found = harken.compare(tales, {"train.lr": [1e-3, 1e30]}, settings=TINY | {"train.grad_clip": 0.0}, seeds=1)
    assert [len(row["failed"]) for row in found.rows] == [0, 1]
    assert "nothing was updated" in found.rows[1]["failed"][0]["reason"]


def test_an_error_that_nobody_foresaw_is_a_row_too(tales, monkeypatch):
    real = room.train

    def breaks(*args: Any, **how: Any) -> Any:
        if how["settings"]["model.heads"] == 1:
            raise RuntimeError("out of\nmemory")
        return real(*args, **how)

    monkeypatch.setattr(room, "train", breaks)
    found = harken.compare(tales, {"model.heads": [1, 2]}, settings=shared(), seeds=1)
    assert found.rows[0]["failed"] == [{"seed": 0, "reason": "RuntimeError: out of memory"}]
    assert found.rows[1]["seeds"] == [0]


def test_where_every_trial_fails_that_is_an_error_and_the_table_is_there_all_the_same(tales, tmp_path):
    with pytest.raises(HarkenError, match=r"every trial failed, the first by: model: .*3 heads"):
        harken.compare(tales, settings=TINY | {"model.heads": 3}, seeds=1, out=tmp_path / "none")
    assert json.loads((tmp_path / "none" / "compare.json").read_text())["verdict"] == "Every trial failed."


@pytest.mark.parametrize("where", ["settings", "recipe"])
def test_seeds_count_from_the_one_that_is_given(tales, where):
    given = TINY | {"train.seed": 7, "train.steps": 1}
    if where == "settings":
        found = harken.compare(tales, settings=given, seeds=2)
    else:
        Path("my.toml").write_text(resolve(("here", given | {"data.path": str(tales)})).toml())
        found = harken.compare("my.toml", seeds=2)
    assert found.rows[0]["seeds"] == [7, 8]
    assert [harken.load(run).recipe.train.seed for run in found.rows[0]["runs"]] == [7, 8]


# --- judged under other settings --------------------------------------------------------------------------------------


def test_the_weights_are_judged_at_other_lengths(made):
    same, twice = made.rows[0]["evals"]
    assert same["metrics"] == made.rows[0]["metrics"]
    assert twice["settings"] == {"model.context": 32}
    assert twice["metrics"]["loss"] != same["metrics"]["loss"]
    assert twice["interval"]["loss"] is not None


def test_learned_positions_are_refused_beyond_their_end_with_the_way_out(made):
    same, twice = made.rows[1]["evals"]
    assert same["metrics"] == made.rows[1]["metrics"]
    assert twice["metrics"] == {}
    assert twice["failed"] == (
        "learned positions are those of the training, 16; "
        "train with model.context=32, or with model.positions=rotary, alibi or sinusoid"
    )


def test_another_length_is_judged_as_a_run_of_that_length_would_be(made):
    run, other = (harken.load(made.rows[0]["runs"][0]) for _ in range(2))
    other.recipe = other.recipe.change(model__context=32)
    other.model.context = 32
    assert judged_under(run, {"model.context": 32}) == other.evaluate("valid")[0].metrics


def test_weights_that_do_not_fit_a_model_are_refused(made):
    with pytest.raises(BadInput, match="the trained weights do not fit this model; train with this setting instead"):
        judged_under(harken.load(made.rows[0]["runs"][0]), {"model.d": 32})


def test_a_model_that_cannot_be_built_is_refused_by_its_section(made):
    with pytest.raises(BadSetting, match=r"^model: d=\d+ does not split over 3 heads"):
        judged_under(harken.load(made.rows[0]["runs"][0]), {"model.heads": 3})


# --- stop and go on ---------------------------------------------------------------------------------------------------


def times(folder: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("*/harken.json")}


def test_a_comparison_that_was_stopped_goes_on_where_it_was(tales, tmp_path):
    axes, steps = {"model.heads": [1, 2]}, []

    def stop(event: str, **facts: Any) -> None:
        if event == "step":
            steps.append(facts["step"])
            if len(steps) == 7:  # in the second trial, after its checkpoint
                raise Stopped("runs/x: stopped", 15)

    with pytest.raises(Stopped) as stopped:
        harken.compare(tales, axes, settings=shared(), seeds=1, out=tmp_path / "a b", listen=stop)
    assert str(stopped.value) == (
        f"{tmp_path}/a b: stopped in trial 2 of 2; go on with: harken compare '{tmp_path}/a b' --resume"
    )
    assert stopped.value.exit_code == 143
    before, heard = times(tmp_path / "a b"), []
    found = harken.compare(
        tmp_path / "a b",
        resume=True,
        listen=lambda event, **facts: heard.append(facts.get("step")) if event == "step" else None,
    )
    assert heard == [3, 4]
    assert times(tmp_path / "a b").items() >= before.items()
    whole = harken.compare(tales, axes, settings=shared(), seeds=1, out=tmp_path / "whole")
    assert [row["metrics"] for row in found.rows] == [row["metrics"] for row in whole.rows]


def test_more_seeds_and_values_train_only_what_is_missing(tales, tmp_path):
    settings = shared(**{"train.steps": 1})
    harken.compare(tales, {"model.heads": [1]}, settings=settings, seeds=1, out=tmp_path / "c")
    before = times(tmp_path / "c")
    grown = harken.compare(tales, {"model.heads": [1, 2]}, settings=settings, seeds=2, out=tmp_path / "c", resume=True)
    assert times(tmp_path / "c").items() >= before.items()
    assert [row["seeds"] for row in grown.rows] == [[0, 1], [0, 1]]
    again = harken.compare(tales, {"model.heads": [1, 2]}, settings=settings, out=tmp_path / "c", resume=True)
    assert [row["seeds"] for row in again.rows] == [[0, 1], [0, 1]]


def test_fewer_seeds_than_there_are_would_drop_some_and_are_refused(made, tales):
    said = f"^{made.path}: seeds = 1: the comparison there has 2; take 2 or more, or another folder$"
    with pytest.raises(BadInput, match=said):
        harken.compare(made.path, seeds=1, resume=True)
    with pytest.raises(BadInput, match=said):
        harken.compare(tales, {"model.heads": [1]}, settings=shared(), seeds=1, out=made.path, resume=True)


def test_all_seeds_of_a_row_have_the_steps_that_its_minutes_became_once(tales, tmp_path, monkeypatch):
    rates = iter((3, 4, 5, 6))  # steps, as noisy timings would find them
    monkeypatch.setattr(training, "plan", lambda trainer: (trainer.train.steps or next(rates), None))
    settings = {path: value for path, value in TINY.items() if path not in ("train.steps", "model.heads")}

    def stop(event: str, **facts: Any) -> None:
        if event == "trial" and facts["number"] == 4:
            raise Stopped("stopped", 15)

    how = {"settings": settings | {"train.minutes": 0.5}, "seeds": 2, "out": tmp_path / "c"}
    with pytest.raises(Stopped):
        harken.compare(tales, {"model.heads": [1, 2]}, **how, listen=stop)
    found = harken.compare(tmp_path / "c", resume=True)
    assert [[harken.load(run).facts["steps"] for run in row["runs"]] for row in found.rows] == [[3, 3], [4, 4]]


def test_the_newest_comparison_of_this_data_and_these_settings_is_the_one_to_go_on_with(tales):
    settings, heard = TINY | {"train.steps": 1}, []
    first = harken.compare(tales, settings=settings, seeds=1)
    other = harken.compare(tales, settings=settings | {"train.lr": 0.1}, seeds=1)
    assert (str(first.path), str(other.path)) == ("runs/tales-compare", "runs/tales-compare-2")
    again = harken.compare(tales, settings=settings, seeds=1, resume=True)
    assert again.path == first.path
    new = harken.compare(
        tales,
        settings=settings | {"train.lr": 0.2},
        seeds=1,
        resume=True,
        listen=lambda event, **facts: heard.append((event, facts)),
    )
    assert str(new.path) == "runs/tales-compare-3"
    assert heard[0] == (
        "notice",
        {"text": "runs/tales-compare: there is nothing to go on with; the comparison starts anew"},
    )


def test_comparisons_that_begin_at_once_take_a_folder_each(tales):
    with run_room.writing(Path("runs/tales-compare")), run_room.writing(Path("runs/tales-compare-2")):
        found = harken.compare(tales, settings=TINY, seeds=1)
    assert str(found.path) == "runs/tales-compare-3"


def test_a_folder_that_was_written_while_it_was_looked_at_is_passed_over(tmp_path, monkeypatch):
    """Another writer comes, finishes and leaves between the look at a folder and the hold on it."""
    looks = iter([True, False, True, True])
    monkeypatch.setattr(training, "is_free", lambda folder: next(looks))
    with ExitStack() as held:
        assert training.take(tmp_path / "my", held) == tmp_path / "my-2"
        with run_room.writing(tmp_path / "my"), pytest.raises(BadInput), run_room.writing(tmp_path / "my-2"):
            pass


def test_a_folder_that_is_taken_is_refused_and_says_what_to_do(made, tales, tmp_path):
    with pytest.raises(BadInput, match="is not empty; resume the comparison there, or take another folder"):
        harken.compare(tales, settings=TINY, seeds=1, out=made.path)
    with pytest.raises(BadInput, match="the comparison there has other data or settings; take another folder"):
        harken.compare(tales, settings=TINY, seeds=1, out=made.path, resume=True)
    with pytest.raises(BadInput, match="this is a comparison, not data; go on with: harken compare "):
        harken.compare(made.path, settings=TINY)
    with pytest.raises(BadInput, match=r"leave them and out \(--out\) away, or repeat the first command with"):
        harken.compare(made.path, settings=TINY, resume=True)


def test_trials_that_learned_from_different_texts_are_not_compared(tmp_path):
    text, settings = tmp_path / "my.txt", TINY | {"train.steps": 1}
    text.write_text("\n".join(told(20)))
    harken.compare(text, settings=settings, seeds=1, out=tmp_path / "c")
    text.write_text("\n".join(told(21)))
    with pytest.raises(BadInput, match="was changed between two trials; compare anew in another folder"):
        harken.compare(text, settings=settings, seeds=2, out=tmp_path / "c", resume=True)


def test_a_tuple_among_the_settings_does_not_keep_it_from_going_on(tales, tmp_path):
    settings = TINY | {"train.steps": 1, "train.betas": (0.9, 0.95)}
    for resume in (False, True):
        found = harken.compare(tales, settings=settings, seeds=1, out=tmp_path / "c", resume=resume)
    assert found.rows[0]["seeds"] == [0]


def test_a_second_writer_is_refused(tales, tmp_path):
    with room.run.writing(tmp_path / "busy"), pytest.raises(BadInput, match="another process is training here"):
        harken.compare(tales, settings=TINY, seeds=1, out=tmp_path / "busy")


def test_the_command_of_a_comparison_repeats_it(made, tales):
    words = made.facts["command"].split()
    assert words[:3] == ["harken", "compare", str(tales)]
    assert "model.heads=1,2,3" in words
    assert words[-4:] == ["--eval", "model.context=16,32", "--seeds", "2"]


@pytest.mark.parametrize("value", ["a/b c", "x" * 300, [0.9, 0.99], 1e-3])
def test_every_trial_has_a_folder_name_of_its_own_without_odd_letters(value):
    names = {room.trial_name({"data.path": v}, seed) for v in (value, "a_b_c") for seed in (0, 1)}
    assert len(names) == 4
    assert all(len(name) < 120 and "/" not in name and " " not in name for name in names)


# --- what people see --------------------------------------------------------------------------------------------------


def test_the_page_and_the_picture_are_whole_and_fetch_nothing(made):
    page = (made.path / "report.html").read_text()
    assert page.count("<figure>") == 4
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    for said in (
        made.verdict,
        "model.heads=2 model.positions=learned",
        "5-gram Kneser-Ney, for free",
        "learned positions are",
    ):
        assert escape(said) in page, said
    picture = xml.etree.ElementTree.parse(made.path / "compare.svg").getroot()
    assert len(picture.findall("{*}g/{*}svg")) == 4
    assert "var(" not in (made.path / "compare.svg").read_text()
    assert "rem" not in (made.path / "compare.svg").read_text()


def test_what_a_rival_brings_along_stands_among_the_settings(tales, tmp_path):
    axes = {"train.optimizer": ["adamw", "muon"]}
    found = harken.compare(tales, axes, settings=TINY | {"train.weight_decay": 0.1}, seeds=1, out=tmp_path / "c")
    assert found.facts["follows"] == {"train.lr": [0.003, 0.02], "train.momentum": [0.9, 0.95]}
    assert "train.lr, row by row</dt><dd>0.003, 0.02</dd>" in (tmp_path / "c" / "report.html").read_text()


def test_the_tables_of_the_page_are_narrow_enough_to_be_seen_whole(made):
    page = (made.path / "report.html").read_text()
    heads = [re.findall(r"<th[^>]*>(.*?)</th>", head) for head in re.findall(r"<thead>(.*?)</thead>", page)]
    assert heads[0][:4] == ["valid loss", "valid perplexity", "test loss", "test perplexity"]
    assert heads[0][-1] == "seeds"
    assert heads[1] == ["weights", "tokens/s", "arithmetic", "energy", "CO2e", "a layer"]
    assert max(map(len, heads)) <= 8
    assert page.count("unigram, for free") == 1  # what is free has no costs


def test_the_table_has_a_row_for_each_setting_and_each_free_baseline(made):
    heads, lines = grid(made.facts)
    assert all(len(line) == len(heads) for line in lines)
    assert [line[0] for line in lines[-2:]] == ["unigram, for free", "5-gram Kneser-Ney, for free"]
    assert lines[4][1:] == ["-"] * (len(heads) - 2) + ["0, 2 failed"]
    assert {"valid loss", "valid perplexity", "test loss", "test perplexity", "time", "tokens/s", "energy"} <= set(
        heads
    )
