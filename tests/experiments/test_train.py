"""harken.train: from a text to a run folder that holds what the contract says, and says what it cost."""

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import torch

import harken
from harken import machine
from harken import run_folder as run_room
from harken.data.synthetic.tales import tales as told
from harken.errors import BadInput
from harken.experiments.estimate import estimate
from harken.recipe import resolve
from harken.training.loop import as_before

TINY = {
    "model.d": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.context": 16,
    "train.steps": 6,
    "train.batch": 4,
    "train.eval_every": 3,
    "train.log_every": 1,
    "train.checkpoint_every": 3,
}
PARTS = {"recipe.toml", "harken.json", "model.safetensors", "tokenizer.json", "log.jsonl", "cost.json", "report.html"}


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)


@pytest.fixture(scope="module")
def tales(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n\n".join(told(20)) + "\n")
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory, tales):
    """A finished run, with a test split. Tests only read it."""
    home = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARKEN_CACHE", str(home / "cache"))
        patch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 5)
        return harken.train(tales, out=home / "run", settings={**TINY, "data.test": 0.1})


def read(run, name: str) -> dict:
    return json.loads((run.path / name).read_text())


# --- the folder -------------------------------------------------------------------------------------------------------


def test_the_run_folder_holds_the_files_of_the_contract_and_no_others(run):
    assert {p.name for p in run.path.iterdir() if not p.name.startswith(".")} == PARTS | {"checkpoints"}
    assert {p.name for p in run.path.iterdir() if p.name.startswith(".")} <= {".lock"}


def test_the_run_keeps_which_device_of_its_kind_was_used(tales, tmp_path, monkeypatch):
    asked = []
    here = torch.device("cpu", 0)  # as cuda:1 is, among GPUs
    monkeypatch.setattr(machine, "pick_device", lambda wanted="auto", name="": asked.append(wanted) or here)
    made = harken.train(tales, out=tmp_path / "run", settings={**TINY, "train.steps": 1})
    assert made.recipe.train.device == "cpu:0"
    assert asked[-1] == "cpu:0"  # the run that is handed back is there too


def test_a_checkpoint_holds_its_state_and_its_manifest(run):
    shelf = sorted((run.path / "checkpoints").iterdir())
    assert [place.name for place in shelf] == ["step-000003", "step-000006"]
    assert {p.name for p in shelf[0].iterdir()} == {"state.safetensors", "manifest.json"}


def test_harken_json_has_the_sha256_of_every_other_file(run):
    hashes = {name: hashlib.sha256((run.path / name).read_bytes()).hexdigest() for name in PARTS - {"harken.json"}}
    assert read(run, "harken.json")["sha256"] == hashes


def test_harken_json_says_what_the_run_is(run):
    facts = read(run, "harken.json")
    assert (facts["format"], facts["kind"], facts["task"]) == (1, "gpt", "next-word")
    assert facts["versions"].keys() == {"harken", "torch"}
    assert facts["data"]["sha256"] == run.recipe.data.sha256
    assert facts["steps"] == 6


def test_the_recipe_stores_the_path_absolute_with_its_fingerprint_and_the_steps(run, tales):
    recipe = tomllib.loads((run.path / "recipe.toml").read_text())
    assert recipe["data"]["path"] == str(tales)
    assert len(recipe["data"]["sha256"]) == 64
    assert recipe["train"]["steps"] == 6


def test_the_log_has_one_object_a_step_each_step_once(run):
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all({"loss", "lr", "gradient", "tokens_per_second"} <= line.keys() for line in lines)
    assert [line["step"] for line in lines if "valid" in line] == [3, 6]


def test_the_cost_says_seconds_energy_where_it_comes_from_and_co2(run):
    cost = read(run, "cost.json")
    wanted = {"seconds", "joules", "energy_source", "kwh", "co2e_kg", "flops", "flops_per_token", "price_usd"}
    assert wanted <= cost.keys()
    assert cost["flops"] == pytest.approx(cost["flops_per_token"] * 6 * 4 * 16)
    assert cost["energy_source"].startswith(("measured", "estimated"))


def test_a_price_of_an_hour_makes_a_price_of_the_run(my, tmp_path):
    made = harken.train(my, out=tmp_path / "run", settings={**TINY, "train.price_per_hour": 3.6})
    cost = read(made, "cost.json")
    assert cost["price_usd"] == pytest.approx(cost["seconds"] / 1000)
    assert "train.price_per_hour: 3.6 USD an hour" in (made.path / "report.html").read_text()


def test_a_token_of_packed_documents_costs_what_any_other_does(run, tales, tmp_path):
    packed = {"data.batching": "packed", "data.documents": "line", "train.steps": 1}
    (tmp_path / "words.txt").write_text(tales.read_text().replace(" ", "\n"))  # in every row a few end and ask nothing
    made = harken.train(tmp_path / "words.txt", out=tmp_path / "run", settings={**TINY, **packed})
    assert read(made, "cost.json")["flops_per_token"] == read(run, "cost.json")["flops_per_token"]


def test_every_split_has_its_metrics_beside_the_free_baselines(run):
    facts = read(run, "harken.json")
    assert facts["metrics"].keys() == facts["baseline"].keys() == facts["protocol"].keys() == {"valid", "test"}
    for split in ("valid", "test"):
        assert facts["baseline"][split].keys() == {"unigram", "5-gram Kneser-Ney"}
        for values in (facts["metrics"][split], *facts["baseline"][split].values()):
            assert values.keys() == {"loss", "perplexity", "bits_per_character"}


# --- which folder -----------------------------------------------------------------------------------------------------


@pytest.fixture
def my(tmp_path, monkeypatch):
    """A text in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("\n".join(told(12)))
    return "my.txt"


@pytest.mark.parametrize("settings", [{"model.heads": 3}, {"data.valid": "no.txt"}, {"train.device": "abacus"}])
def test_a_training_that_is_refused_takes_no_folder(my, tmp_path, settings):
    with pytest.raises(BadInput):
        harken.train(my, settings=TINY | settings)
    assert not (tmp_path / "runs").exists()


def test_a_lock_that_was_left_takes_no_number(my, tmp_path):
    for name in ("my", "my-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "my" / "recipe.toml").write_text("")
    (tmp_path / "runs" / "my-2" / ".lock").write_text("")
    assert harken.train(my, settings=TINY).path.name == "my-2"


def test_a_default_name_that_is_being_trained_in_is_passed_over(my):
    with run_room.writing(Path("runs/my")), run_room.writing(Path("runs/my-2")):
        assert harken.train(my, settings=TINY).path.name == "my-3"
        with pytest.raises(BadInput, match="another process is training here"):
            harken.train(my, settings=TINY, out="runs/my")


def test_a_training_that_stopped_early_says_so_in_its_facts_and_its_report(my):
    made = harken.train(
        my, settings=TINY | {"train.eval_every": 1, "train.early_stopping_patience": 1, "train.lr": 9.0}
    )
    assert made.facts["early"].startswith(f"stopped at step {made.facts['steps']} of 6: ")
    assert made.facts["early"][1:] in (made.path / "report.html").read_text()


def begun(my, *names: str) -> None:
    """Runs of this text that were stopped after their last step."""
    for name in names:
        made = harken.train(my, settings=TINY, out=f"runs/{name}")
        (made.path / "harken.json").unlink()


def test_resume_goes_on_with_the_newest_run_that_is_not_finished_and_says_which(my, tmp_path):
    begun(my, "my", "my-2", "my-10", "my-11")
    harken.train("runs/my-11", resume=True)
    heard = []
    again = harken.train(my, resume=True, listen=lambda event, **facts: heard.append((event, facts.get("text"))))
    assert str(again.path) == "runs/my-10"
    assert ("notice", "runs/my-10: this is the newest run to go on with") in heard
    assert [name for name in ("my", "my-2") if (tmp_path / "runs" / name / "harken.json").exists()] == []


def test_resume_does_not_take_the_run_of_a_text_with_a_like_name(my, tmp_path):
    (tmp_path / "my-2.txt").write_text("\n".join(told(12)))
    begun("my-2.txt", "my-2")
    assert str(harken.train(my, settings=TINY, resume=True).path) == "runs/my"


def test_a_resumed_run_reports_why_its_recipe_was_chosen(my):
    first = harken.train(my, settings=TINY).facts["reason"]
    report = (Path("runs") / "my" / "report.html").read_text()
    (Path("runs") / "my" / "harken.json").unlink()
    (Path("runs") / "my" / "report.html").unlink()
    again = harken.train("runs/my", resume=True)
    assert again.facts["reason"] == first
    assert (again.path / "report.html").read_text().count("# given") == report.count("# given") >= len(TINY)


def test_damaged_checkpoints_are_named_before_the_run_starts_anew(my):
    begun(my, "my")
    for state in Path("runs/my/checkpoints").glob("*/state.safetensors"):
        state.unlink()
    heard = []
    harken.train("runs/my", resume=True, listen=lambda event, **facts: heard.append(facts.get("text")))
    assert heard[1:4] == [
        "runs/my/checkpoints/step-000006/state.safetensors: is missing",
        "runs/my/checkpoints/step-000003/state.safetensors: is missing",
        "runs/my: there is no whole checkpoint; the run starts anew",
    ]


# --- from Python ------------------------------------------------------------------------------------------------------


def test_settings_may_be_given_as_a_dictionary(run):
    assert (run.recipe.model.d, run.recipe.model.layers, run.recipe.data.test) == (16, 1, 0.1)


def test_the_recipe_of_a_run_repeats_it_bit_for_bit(run, tmp_path):
    again = harken.train(run.path / "recipe.toml", out=tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (again.path / name).read_bytes() == (run.path / name).read_bytes()
    assert again.metrics == run.metrics


def test_threads_and_determinism_are_the_callers_again_after_a_training_and_an_estimate(tales, tmp_path):
    given = {**TINY, "train.steps": 1, "train.threads": 1}
    with as_before():
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True, warn_only=True)
        made = harken.train(tales, out=tmp_path / "run", settings=given)
        estimate(resolve(("here", {**given, "data.path": str(tales)})))
        assert made.recipe.train.threads == 1
        assert torch.get_num_threads() == 2
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_another_seed_gives_other_weights(run, tmp_path):
    other = harken.train(run.path / "recipe.toml", out=tmp_path / "other", settings={"train.seed": 1})
    assert (other.path / "model.safetensors").read_bytes() != (run.path / "model.safetensors").read_bytes()


def test_a_recipe_refuses_a_text_that_has_changed(tmp_path):
    text = tmp_path / "my.txt"
    text.write_text("\n".join(told(12)))
    first = harken.train(text, out=tmp_path / "first", settings=TINY)
    text.write_text("\n".join(told(12)) + "And then?")
    with pytest.raises(BadInput, match="the text is not the one this recipe was made for"):
        harken.train(first.path / "recipe.toml", out=tmp_path / "second")


@pytest.mark.parametrize("settings", ["model.layers=6", ["model.layers"], {6: "model.layers"}])
def test_settings_that_are_no_dictionary_of_names_are_refused_by_their_name(settings):
    with pytest.raises(BadInput, match=r"^settings = .*: a dictionary is accepted, such as"):
        harken.train("my.txt", settings=settings)


def test_a_finished_run_is_resumed_without_work(run):
    heard = []
    again = harken.train(run.path, resume=True, listen=lambda event, **facts: heard.append(event))
    assert heard == ["notice"]
    assert again.metrics == run.metrics


def test_minutes_become_steps_once_and_are_written_down(tales, tmp_path):
    short = {name: value for name, value in TINY.items() if name != "train.steps"}
    made = harken.train(tales, out=tmp_path / "short", minutes=0.005, settings=short)
    assert made.recipe.train.minutes == 0.005
    assert made.recipe.train.steps == made.facts["steps"] >= 1


def test_force_writes_over_a_run(tales, tmp_path):
    for seed in (1, 2):
        settings = {**TINY, "train.seed": seed}
        made = harken.train(tales, out=tmp_path / "over", settings=settings, force=True)
        assert made.recipe.train.seed == seed
    assert {p.name for p in made.path.iterdir() if not p.name.startswith(".")} == PARTS | {"checkpoints"}


def test_training_from_the_package_gives_a_run_that_writes(run):
    assert isinstance(run, harken.Run)
    assert len(run.generate("Tom", tokens=9)) == 9
