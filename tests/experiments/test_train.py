"""harken.train: the run folder has the files of the contract and the cost of the training."""

import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import torch

import harken
from harken import machine, run_folder
from harken.data.synthetic.tales import tales as generate_tales
from harken.errors import BadInput
from harken.experiments.estimate import estimate
from harken.recipe import resolve
from harken.training.loop import restore_torch_state

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
    path.write_text("\n\n".join(generate_tales(20)) + "\n")
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


def test_the_run_folder_holds_exactly_the_files_of_the_contract(run):
    assert {p.name for p in run.path.iterdir() if not p.name.startswith(".")} == PARTS | {"checkpoints"}
    assert {p.name for p in run.path.iterdir() if p.name.startswith(".")} <= {".lock"}


def test_the_recipe_records_the_index_of_the_device(tales, tmp_path, monkeypatch):
    requested = []
    device = torch.device("cpu", 0)  # with an index, like cuda:1
    monkeypatch.setattr(machine, "pick_device", lambda wanted="auto", name="": requested.append(wanted) or device)
    trained = harken.train(tales, out=tmp_path / "run", settings={**TINY, "train.steps": 1})
    assert trained.recipe.train.device == "cpu:0"
    assert requested[-1] == "cpu:0"  # the returned run uses it too


def test_a_checkpoint_holds_its_state_and_its_manifest(run):
    checkpoints = sorted((run.path / "checkpoints").iterdir())
    assert [place.name for place in checkpoints] == ["step-000003", "step-000006"]
    assert {p.name for p in checkpoints[0].iterdir()} == {"state.safetensors", "manifest.json"}


def test_harken_json_has_the_sha256_of_every_other_file(run):
    hashes = {name: hashlib.sha256((run.path / name).read_bytes()).hexdigest() for name in PARTS - {"harken.json"}}
    assert read(run, "harken.json")["sha256"] == hashes


def test_harken_json_describes_the_run(run):
    facts = read(run, "harken.json")
    assert (facts["format"], facts["kind"], facts["task"]) == (2, "gpt", "next-word")
    assert facts["versions"].keys() == {"harken", "torch"}
    assert facts["data"]["sha256"] == run.recipe.data.sha256
    assert facts["steps"] == 6


def test_the_recipe_stores_the_absolute_path_the_checksum_and_the_steps(run, tales):
    recipe = tomllib.loads((run.path / "recipe.toml").read_text())
    assert recipe["data"]["path"] == str(tales)
    assert len(recipe["data"]["sha256"]) == 64
    assert recipe["train"]["steps"] == 6


def test_the_log_has_one_object_per_step(run):
    lines = [json.loads(line) for line in (run.path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all({"loss", "lr", "gradient", "tokens_per_second"} <= line.keys() for line in lines)
    assert [line["step"] for line in lines if "valid" in line] == [3, 6]


def test_the_cost_has_seconds_energy_its_source_and_co2(run):
    cost = read(run, "cost.json")
    wanted = {"seconds", "joules", "energy_source", "kwh", "co2e_kg", "flops", "flops_per_token", "price_usd"}
    assert wanted <= cost.keys()
    assert cost["flops"] == pytest.approx(cost["flops_per_token"] * 6 * 4 * 16)
    assert cost["energy_source"].startswith(("measured", "estimated"))


def test_the_price_of_an_hour_gives_the_price_of_the_run(text_file, tmp_path):
    trained = harken.train(text_file, out=tmp_path / "run", settings={**TINY, "train.price_per_hour": 3.6})
    cost = read(trained, "cost.json")
    assert cost["price_usd"] == pytest.approx(cost["seconds"] / 1000)
    assert "train.price_per_hour: 3.6 USD per hour" in (trained.path / "report.html").read_text()


def test_packed_documents_have_the_same_flops_per_token(run, tales, tmp_path):
    packed = {"data.batching": "packed", "data.documents": "line", "train.steps": 1}
    (tmp_path / "words.txt").write_text(tales.read_text().replace(" ", "\n"))  # several documents end in every row
    trained = harken.train(tmp_path / "words.txt", out=tmp_path / "run", settings={**TINY, **packed})
    assert read(trained, "cost.json")["flops_per_token"] == read(run, "cost.json")["flops_per_token"]


def test_every_split_has_metrics_and_baselines(run):
    facts = read(run, "harken.json")
    assert facts["metrics"].keys() == facts["baseline"].keys() == facts["protocol"].keys() == {"valid", "test"}
    for split in ("valid", "test"):
        assert facts["baseline"][split].keys() == {"unigram", "5-gram Kneser-Ney"}
        for values in (facts["metrics"][split], *facts["baseline"][split].values()):
            assert values.keys() == {"loss", "perplexity", "bits_per_character"}


# --- choice of the folder ---------------------------------------------------------------------------------------------


@pytest.fixture
def text_file(tmp_path, monkeypatch):
    """A text in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text("\n".join(generate_tales(12)))
    return "my.txt"


@pytest.mark.parametrize("settings", [{"model.heads": 3}, {"data.valid": "no.txt"}, {"train.device": "abacus"}])
def test_a_refused_training_creates_no_folder(text_file, tmp_path, settings):
    with pytest.raises(BadInput):
        harken.train(text_file, settings=TINY | settings)
    assert not (tmp_path / "runs").exists()


def test_a_folder_with_only_a_lock_is_reused(text_file, tmp_path):
    for name in ("my", "my-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "my" / "recipe.toml").write_text("")
    (tmp_path / "runs" / "my-2" / ".lock").write_text("")
    assert harken.train(text_file, settings=TINY).path.name == "my-2"


def test_a_locked_default_folder_is_skipped(text_file):
    with run_folder.lock_folder(Path("runs/my")), run_folder.lock_folder(Path("runs/my-2")):
        assert harken.train(text_file, settings=TINY).path.name == "my-3"
        with pytest.raises(BadInput, match="another process trains in this folder"):
            harken.train(text_file, settings=TINY, out="runs/my")


def test_early_stopping_is_recorded_in_the_facts_and_the_report(text_file):
    trained = harken.train(
        text_file, settings=TINY | {"train.eval_every": 1, "train.early_stopping_patience": 1, "train.lr": 9.0}
    )
    assert trained.facts["early"].startswith(f"stopped early at step {trained.facts['steps']} of 6: ")
    assert trained.facts["early"][1:] in (trained.path / "report.html").read_text()


def train_unfinished(text_file, *names: str) -> None:
    """Runs on this text that stopped after their last step."""
    for name in names:
        trained = harken.train(text_file, settings=TINY, out=f"runs/{name}")
        (trained.path / "harken.json").unlink()


def test_resume_continues_the_newest_unfinished_run_and_reports_it(text_file, tmp_path):
    train_unfinished(text_file, "my", "my-2", "my-10", "my-11")
    harken.train("runs/my-11", resume=True)
    events = []
    resumed = harken.train(
        text_file, resume=True, listen=lambda event, **facts: events.append((event, facts.get("text")))
    )
    assert str(resumed.path) == "runs/my-10"
    assert ("notice", "runs/my-10: resuming the newest run") in events
    assert [name for name in ("my", "my-2") if (tmp_path / "runs" / name / "harken.json").exists()] == []


def test_resume_ignores_the_run_of_a_text_with_a_similar_name(text_file, tmp_path):
    (tmp_path / "my-2.txt").write_text("\n".join(generate_tales(12)))
    train_unfinished("my-2.txt", "my-2")
    assert str(harken.train(text_file, settings=TINY, resume=True).path) == "runs/my"


def test_a_resumed_run_reports_the_reason_for_its_recipe(text_file):
    first = harken.train(text_file, settings=TINY).facts["reason"]
    report = (Path("runs") / "my" / "report.html").read_text()
    (Path("runs") / "my" / "harken.json").unlink()
    (Path("runs") / "my" / "report.html").unlink()
    resumed = harken.train("runs/my", resume=True)
    assert resumed.facts["reason"] == first
    assert (resumed.path / "report.html").read_text().count("# override") == report.count("# override") >= len(TINY)


def test_damaged_checkpoints_are_reported_before_the_run_starts_from_step_0(text_file):
    train_unfinished(text_file, "my")
    for state in Path("runs/my/checkpoints").glob("*/state.safetensors"):
        state.unlink()
    events = []
    harken.train("runs/my", resume=True, listen=lambda event, **facts: events.append(facts.get("text")))
    assert events[1:4] == [
        "runs/my/checkpoints/step-000006/state.safetensors: is missing",
        "runs/my/checkpoints/step-000003/state.safetensors: is missing",
        "runs/my: there is no complete checkpoint; the run starts from step 0",
    ]


# --- from Python ------------------------------------------------------------------------------------------------------


def test_settings_can_be_passed_as_a_dictionary(run):
    assert (run.recipe.model.d, run.recipe.model.layers, run.recipe.data.test) == (16, 1, 0.1)


def test_the_recipe_of_a_run_repeats_it_bitwise(run, tmp_path):
    resumed = harken.train(run.path / "recipe.toml", out=tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (resumed.path / name).read_bytes() == (run.path / name).read_bytes()
    assert resumed.metrics == run.metrics


def test_training_and_estimate_restore_threads_and_determinism(tales, tmp_path):
    settings = {**TINY, "train.steps": 1, "train.threads": 1}
    with restore_torch_state():
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True, warn_only=True)
        trained = harken.train(tales, out=tmp_path / "run", settings=settings)
        estimate(resolve(("here", {**settings, "data.path": str(tales)})))
        assert trained.recipe.train.threads == 1
        assert torch.get_num_threads() == 2
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_another_seed_gives_different_weights(run, tmp_path):
    other = harken.train(run.path / "recipe.toml", out=tmp_path / "other", settings={"train.seed": 1})
    assert (other.path / "model.safetensors").read_bytes() != (run.path / "model.safetensors").read_bytes()


def test_a_recipe_refuses_changed_data(tmp_path):
    text = tmp_path / "my.txt"
    text.write_text("\n".join(generate_tales(12)))
    first = harken.train(text, out=tmp_path / "first", settings=TINY)
    text.write_text("\n".join(generate_tales(12)) + "And then?")
    with pytest.raises(BadInput, match="SHA-256 mismatch: the files differ from those of this recipe"):
        harken.train(first.path / "recipe.toml", out=tmp_path / "second")


@pytest.mark.parametrize("settings", ["model.layers=6", ["model.layers"], {6: "model.layers"}])
def test_settings_must_be_a_dictionary_with_string_keys(settings):
    with pytest.raises(BadInput, match=r"^settings = .*: expected a dictionary, such as"):
        harken.train("my.txt", settings=settings)


def test_resuming_a_finished_run_does_nothing(run):
    events = []
    resumed = harken.train(run.path, resume=True, listen=lambda event, **facts: events.append(event))
    assert events == ["notice"]
    assert resumed.metrics == run.metrics


def test_minutes_are_converted_to_steps_once_and_recorded(tales, tmp_path):
    short = {name: value for name, value in TINY.items() if name != "train.steps"}
    trained = harken.train(tales, out=tmp_path / "short", minutes=0.005, settings=short)
    assert trained.recipe.train.minutes == 0.005
    assert trained.recipe.train.steps == trained.facts["steps"] >= 1


def test_force_overwrites_a_run(tales, tmp_path):
    for seed in (1, 2):
        settings = {**TINY, "train.seed": seed}
        trained = harken.train(tales, out=tmp_path / "over", settings=settings, force=True)
        assert trained.recipe.train.seed == seed
    assert {p.name for p in trained.path.iterdir() if not p.name.startswith(".")} == PARTS | {"checkpoints"}


def test_harken_train_returns_a_run_that_generates(run):
    assert isinstance(run, harken.Run)
    assert len(run.generate("Tom", max_new_tokens=9)) == 9
