"""Recipes: the shipped ones run, a written one reads back, later layers take precedence, errors are one line."""

import json
import math
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken import recipe, registry
from harken.data.synthetic.stories import stories
from harken.data.synthetic.tales import tales
from harken.errors import BadInput, BadSetting
from harken.events import silent
from harken.recipe import OVERRIDE, Recipe, parse_override, read, resolve, shipped, shipped_names, to_toml_value
from harken.training.settings import Train

LABELLED = ("table", "tags", "spans")
MODELS, DATA, TASKS = (
    ", ".join(registry.kind_names(section)) for section in ("model", "data", "task")
)  # including plug-ins


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n".join(tales(12)))
    return path


@pytest.fixture(scope="module")
def files(text: Path, pair_file: Path) -> dict[str, Path]:
    """A data set for each shipped recipe."""
    paths = {"text": text, "pairs": pair_file} | {kind: text.with_name(f"toy.{kind}") for kind in LABELLED}
    paths["tags"].write_text("\n\n".join(f"Ada{n} B-PER\nran O" for n in range(60)))
    context = "Ada ran home, and then she slept."
    qa = {"question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 2}]}
    paragraphs = [{"context": f"{n} {context}", "qas": [{"id": f"{n}", **qa}]} for n in range(10, 70)]
    paths["spans"].write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    paths["images"] = paths["tags"].with_name("images.npz")
    x = np.random.default_rng(0).integers(0, 256, (60, 20, 20), np.uint8)
    np.savez(paths["images"], x=x, y=np.arange(60) % 2)
    paths["stories"] = paths["tags"].with_name("stories.txt")
    paths["stories"].write_text("".join(stories(1, 60)))
    paths["table"] = paths["table"].with_suffix(".csv")
    paths["table"].write_text("text,label\n" + "".join(f"word {n} is here,{'ab'[n % 2]}\n" for n in range(60)))
    paths["sets"] = paths["tags"].with_name("sets.csv")
    rows = "".join(f"c{n},{n},{k},{'ab'[n % 2]}\n" for n in range(60) for k in range(3))
    paths["sets"].write_text("cloud,n,k,kind\n" + rows)
    paths["captions"] = paths["tags"].with_name("captions.tsv")
    lines = "".join(f"images.npz[{n}]\ta picture of the number {n % 3}\n" for n in range(60))
    paths["captions"].write_text("image\tcaption\n" + lines)
    paths["graph"] = paths["tags"].with_name("graph")
    paths["graph"].mkdir()
    (paths["graph"] / "nodes.csv").write_text(
        "node,x,label\n" + "".join(f"{n},{n % 7},{'ab'[n % 2]}\n" for n in range(60))
    )
    (paths["graph"] / "edges.csv").write_text("source,target\n" + "".join(f"{n},{(n + 2) % 60}\n" for n in range(60)))
    return paths


# --- the shipped recipes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_is_valid(name):
    kinds = {"translate": "pairs", "labels": "table"} | {
        kind: kind for kind in ("pairs", "tags", "spans", "stories", "graph", "images", "maths", "sets", "captions")
    }
    assert resolve((name, shipped(name))).data.kind == kinds.get(name.partition("-")[0], "text")


@pytest.mark.parametrize("name", shipped_names())
def test_the_first_line_of_every_shipped_recipe_is_its_purpose(name):
    first = (Path(recipe.__file__).parent / "recipes" / f"{name}.toml").read_text().splitlines()[0]
    assert re.match("# An? ", first)


@pytest.mark.parametrize("name", shipped_names())
def test_two_steps_of_every_shipped_recipe_run(name, files, tmp_path, monkeypatch):
    from harken.experiments import train as experiment

    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    tiny = {"model.d": 16, "train.steps": 2, "train.batch": 4}
    recipe = resolve((name, shipped(name)))
    tiny |= {"model.layers": 1} if "layers" in type(recipe.model).model_fields else {}
    generated = {"data.valid": 50, "data.test": 50}
    tiny |= generated if recipe.data.kind == "maths" else {"data.path": str(files[recipe.data.kind])}
    tiny |= {"data.vocab_size": 300} if "vocab_size" in type(recipe.data).model_fields else {}
    tiny |= {"model.context": 8} if recipe.data.kind == "text" else {}
    tiny |= {f"task.{n}": 200 for n in ("eval_pairs", "eval_tokens") if n in type(recipe.task).model_fields}
    tiny |= {"model.heads": 2} if "heads" in type(recipe.model).model_fields else {}
    run = experiment.train(name, settings=tiny, out=tmp_path / "run")
    assert run.facts["steps"] == 2
    assert math.isfinite(run.metrics["valid"]["loss"])


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_sets_the_learning_rate_it_was_tuned_with(name):
    settings, recipe = shipped(name), resolve((name, shipped(name)))
    assert {"train.lr", "train.weight_decay", "train.betas"} <= settings.keys()
    assert all(recipe.settings()[path] == value for path, value in settings.items())


@pytest.mark.parametrize("optimizer", ["adamw", "rmsprop", "sgd"])
def test_an_optimizer_override_brings_its_own_learning_rate(optimizer):
    resolved = resolve(("recipe char", shipped("char")), (OVERRIDE, {"train.optimizer": optimizer}))
    assert resolved.train.lr == type(resolved.train)(optimizer=optimizer).lr != shipped("char")["train.lr"]
    assert {resolved.origins[f"train.{name}"] for name in ("lr", "weight_decay", "betas", "momentum")} == {
        f"optimizer = {optimizer}"
    }
    overrides = {"train.optimizer": optimizer, "train.lr": 0.7}
    assert resolve(("recipe char", shipped("char")), (OVERRIDE, overrides)).train.lr == 0.7


@pytest.mark.parametrize("name", ["char", "word"])
@pytest.mark.parametrize("optimizer", Train.model_fields["optimizer"].annotation.__args__)
def test_every_optimizer_is_better_than_the_unigram_baseline(optimizer, name, tmp_path):
    from harken.experiments.train import prepare

    (tmp_path / "tales.txt").write_text("\n\n".join(tales(60)) + "\n")
    small = {"data.path": str(tmp_path / "tales.txt"), "model.d": 32, "model.layers": 2, "model.heads": 2}
    small |= {
        "model.context": 32,
        "train.batch": 8,
        "train.steps": 100,
        "train.optimizer": optimizer,
        "train.threads": 1,
    }
    _, trainer = prepare(resolve((name, shipped(name)), (OVERRIDE, small)), silent)
    trainer.fit(tmp_path, 100)
    trainer.finish()
    assert trainer.evaluate("valid", quick=False).metrics["loss"] < trainer.task.baselines("valid")["unigram"]["loss"]


def test_an_unknown_shipped_recipe_is_an_error():
    with pytest.raises(BadInput, match=r"^recipe 'chars' is not one of harken's; there are bert, bpe, byte, captions"):
        shipped("chars")


# --- writing and reading ----------------------------------------------------------------------------------------------


def round_trip(recipe: Recipe, path: Path) -> Recipe:
    path.write_text(recipe.toml(), "utf-8")
    return resolve((str(path), read(path)))


def sections(recipe: Recipe) -> list:
    return [recipe.data, recipe.model, recipe.task, recipe.train]


@pytest.mark.parametrize("name", shipped_names())
def test_a_written_recipe_reads_back_as_the_same(name, tmp_path):
    path = {} if name == "maths" else {"data.path": "/a b/ü.txt"}
    resolved = resolve((name, shipped(name)), ("x", {**path, "train.steps": 7}))
    assert sections(round_trip(resolved, tmp_path / "recipe.toml")) == sections(resolved)


NASTY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ['"', "\\", '"""', "'", "\n", "\r\n", "\t", "\x00", "\x7f", "\u2028", "\ufeff", "#", "=", "[data]", "😀", "\\u0041"]
)


@settings(max_examples=300, deadline=None)
@given(path=NASTY, mix=st.dictionaries(NASTY.filter(bool), st.floats(0.01, 9), min_size=1, max_size=3))
def test_unusual_paths_survive_a_round_trip(path, mix):
    resolved = resolve(("x", {"data.path": path, "data.mix": mix}))
    tables = tomllib.loads(resolved.toml())
    assert (tables["data"]["path"], tables["data"]["mix"]) == (path, mix)
    assert resolve(("y", {f"data.{k}": v for k, v in tables["data"].items()})).data == resolved.data


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False) | st.integers() | st.booleans() | NASTY | st.lists(st.integers() | NASTY))
def test_every_value_survives_a_round_trip(value):
    parsed = tomllib.loads(f"x = {to_toml_value(value)}")["x"]
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_path_that_is_not_utf8_is_an_error():
    with pytest.raises(BadInput, match="this name is not UTF-8, and a recipe is UTF-8; rename the file"):
        resolve(("x", {"data.path": "caf\udce9.txt"})).toml()


def test_an_old_recipe_without_the_section_report_has_its_defaults_and_a_resolved_one_shows_them(tmp_path):
    (tmp_path / "old.toml").write_text('[data]\nkind = "text"\n')
    recipe = resolve(("old.toml", read(tmp_path / "old.toml")))
    assert recipe.report.samples == 10
    assert '[report]\nkind = "page"\nsamples = 10\n' in recipe.toml()
    assert resolve(("x", {"report.samples": 0})).report.samples == 0


def test_settings_that_are_none_are_not_written():
    assert "kv_heads" not in resolve().toml()


# --- precedence -------------------------------------------------------------------------------------------------------


def test_precedence_is_defaults_dials_file_command_line():
    resolved = resolve(
        ("lm.toml", {"model.size": "tiny", "model.d": 48, "model.layers": 3}), ("command line", {"model.layers": 5})
    )
    assert (resolved.model.dropout, resolved.model.heads, resolved.model.d, resolved.model.layers) == (0.0, 2, 48, 5)


def test_the_origin_of_each_value_is_recorded():
    resolved = resolve(
        ("lm.toml", {"model.size": "tiny", "model.d": 48, "model.layers": 3}), ("command line", {"model.layers": 5})
    )
    origins = {name: resolved.origins.get(f"model.{name}") for name in ("dropout", "heads", "d", "layers")}
    assert origins == {"dropout": None, "heads": "size = tiny", "d": "lm.toml", "layers": "command line"}


def test_a_changed_value_has_the_origin_computed():
    resolved = resolve().change(train__steps=12)
    assert (resolved.train.steps, resolved.origins["train.steps"]) == (12, "computed")
    unchanged = resolve(("override", {"train.steps": 12})).change(train__steps=12)
    assert unchanged.origins["train.steps"] == "override"


def test_a_dial_on_the_command_line_takes_precedence_over_the_fields_of_the_file():
    resolved = resolve(
        ("recipe char", {"model.d": 96, "model.positions": "rotary"}), ("command line", {"model.size": "tiny"})
    )
    assert (resolved.model.d, resolved.model.positions) == (64, "rotary")
    assert resolved.origins["model.d"] == "size = tiny"


def test_a_field_takes_precedence_over_a_dial_of_the_same_layer():
    assert resolve(("x", {"model.d": 96, "model.size": "tiny"})).model.d == 96


@pytest.mark.parametrize("name", ["tiny", "medium"])
def test_a_dial_has_the_same_meaning_in_python_and_in_a_recipe(name):
    settings_class = registry.find_kind("model", "gpt")
    assert settings_class(size=name, heads=1) == resolve(("x", {"model.size": name, "model.heads": 1})).model


@pytest.mark.parametrize("budget", [{"train.minutes": 1.0}, {"train.epochs": 2.0}, {"train.tokens": 99}])
def test_a_budget_on_the_command_line_takes_precedence_over_that_of_the_file(budget):
    resolved = resolve(("lm.toml", {"train.steps": 500, "train.minutes": 9}), ("command line", budget))
    assert resolved.train.steps is None
    assert "train.steps" not in resolved.origins


def test_the_steps_of_a_file_are_used_if_the_command_line_has_no_budget():
    assert resolve(("lm.toml", {"train.steps": 500}), ("command line", {"train.lr": 0.1})).train.steps == 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("model.layers=6", 6),
        ("train.lr=1e-3", 1e-3),
        ("model.tie_embeddings=false", False),
        ("train.betas=[0.9, 0.95]", [0.9, 0.95]),
        ("data.mix={a.txt = 1}", {"a": {"txt": 1}}),
        ("data.path=my text.txt", "my text.txt"),
        ('data.path="6"', "6"),
        ("data.path=a=b", "a=b"),
        ("data.path=", ""),
    ],
)
def test_an_override_is_toml_or_else_plain_text(text, value):
    assert parse_override(text) == (text.partition("=")[0], value)


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model.layrs": 4}, "lm.toml: model.layrs is not a setting. Did you mean model.layers?"),
        ({"train.stepz": 4}, "lm.toml: train.stepz is not a setting. Did you mean train.steps?"),
        ({"model.xyzzy": 4}, "lm.toml: model.xyzzy is not a setting; harken check --settings gpt lists them"),
        (
            {"modle.layers": 4},
            "lm.toml: modle.layers is not a setting; the sections are data, model, task, train, cost, report. "
            "Did you mean model?",
        ),
        ({"model.layers": "four"}, "lm.toml: model.layers = 'four': accepted: whole number ≥ 1 and ≤ 1000"),
        ({"model.layers": 0}, "lm.toml: model.layers = 0: accepted: whole number ≥ 1 and ≤ 1000"),
        ({"model.norm": "before"}, "lm.toml: model.norm = 'before': accepted: pre, post, none"),
        ({"model.norm": "nome"}, "lm.toml: model.norm = 'nome': accepted: pre, post, none. Did you mean none?"),
        ({"model.tie_embeddings": "maybe"}, "lm.toml: model.tie_embeddings = 'maybe': accepted: true or false"),
        ({"train.betas": [0.9]}, "lm.toml: train.betas = [0.9]: accepted: list of 2, each a number ≥ 0 and < 1"),
        ({"train.betas": [0.9, "b"]}, "lm.toml: train.betas = 'b': accepted: a finite number"),
        ({"data.mix": 5}, "lm.toml: data.mix = 5: accepted: table {name = number}"),
        ({"data.mix": {"a": {"txt": "b"}}}, "lm.toml: data.mix: a.txt = 'b': accepted: a finite number"),
        ({"data.mix": {"a": {"txt": -1}}}, "lm.toml: data.mix: weights must be at least 0, and one of them above 0"),
        (
            {"model.kind": "gtp"},
            f"lm.toml: model.kind = 'gtp' is not a kind of model; accepted: {MODELS}. Did you mean gpt?",
        ),
        (
            {"data.kind": "films"},
            f"lm.toml: data.kind = 'films' is not a kind of data; accepted: {DATA}. Is the plug-in installed?",
        ),
        ({"task.kind": "tag"}, "lm.toml: task.kind = 'tag' is not a task of text; accepted: next-word, masked-words"),
        ({"task.kind": "chess"}, f"lm.toml: task.kind = 'chess' is not a kind of task; accepted: {TASKS}."),
        ({"train.epochs": math.inf}, "lm.toml: train.epochs = inf: accepted: a finite number"),
        ({"model.dropout": 1.0}, "lm.toml: model.dropout = 1.0: accepted: number ≥ 0 and < 1"),
        *(
            (
                {"train.nesterov": True, **optimizer},
                "lm.toml: train.nesterov = True: needs sgd with a momentum; "
                "set train.optimizer=sgd and train.momentum=0.9",
            )
            for optimizer in ({}, {"train.optimizer": "muon"}, {"train.optimizer": "sgd", "train.momentum": 0})
        ),
    ],
)
def test_the_message_for_an_invalid_setting(settings, message):
    with pytest.raises(BadSetting) as error:
        resolve(("lm.toml", settings))
    assert str(error.value) == message


def test_the_message_for_an_override_has_no_prefix():
    with pytest.raises(BadSetting, match=r"^model.layers = 0: accepted: "):
        resolve((OVERRIDE, {"model.layers": 0}))


def test_two_budgets_on_the_command_line_are_an_error():
    with pytest.raises(
        BadSetting, match=r"^train.steps and train.minutes: these settings exclude each other; set one$"
    ):
        resolve((OVERRIDE, {"train.minutes": 3, "train.steps": 5}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[model\n",
            r"^{path}: is not valid TOML \(.*line 1.*\); a recipe has sections like \[model\] with lines like d = 128$",
        ),
        (
            "d = 4\n",
            r"^{path}: d is outside a section; move it to one of \[data\], \[model\], \[task\], \[train\], \[cost\],"
            r" \[report\]$",
        ),
        ("\ud800", r"^{path}: cannot be read"),
    ],
)
def test_an_invalid_recipe_file_is_an_error_with_its_path(tmp_path, content, message):
    path = tmp_path / "lm.toml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadInput, match=message.replace("{path}", str(path))):
        read(path)


def test_a_missing_recipe_file_is_an_error_with_its_path(tmp_path):
    with pytest.raises(BadInput, match=rf"^{tmp_path}/no.toml: cannot be read"):
        read(tmp_path / "no.toml")


@pytest.mark.parametrize("text", ["zzzzz=6", "model.layers", "=6", "--out"])
def test_a_malformed_override_is_an_error_with_an_example(text):
    with pytest.raises(BadInput, match=r"is not a setting; settings look like model.layers=6$"):
        parse_override(text)


@pytest.mark.parametrize(
    ("text", "path"),
    [("heads=5", "model.heads=5"), ("batch=8", "train.batch=8"), ("tokeniser=bpe", "data.tokenizer=bpe")],
)
def test_a_setting_without_its_section_gets_the_path(text, path):
    with pytest.raises(BadInput, match=rf"'{text}' is not a setting; .* Did you mean {path}\?$"):
        parse_override(text)


@pytest.mark.parametrize("name", ["model.dropout", "task.label_smoothing"])
def test_a_setting_in_the_wrong_section_gets_a_suggestion(name):
    wrong = name.replace(name.partition(".")[0], "train")
    with pytest.raises(BadSetting, match=rf"^{wrong} is not a setting\. Did you mean {name}\?$"):
        resolve((OVERRIDE, {wrong: 0.1}))
