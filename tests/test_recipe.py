"""Recipes: every shipped one runs, a written one reads back, later layers win, and mistakes get their one line."""

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
from harken.recipe import GIVEN, Recipe, as_toml, override, read, resolve, shipped, shipped_names
from harken.training.settings import Train

LABELLED = ("table", "tags", "spans")
MODELS, DATA, TASKS = (
    ", ".join(registry.names(section)) for section in ("model", "data", "task")
)  # with the plug-ins that are there


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "tales.txt"
    path.write_text("\n".join(tales(12)))
    return path


@pytest.fixture(scope="module")
def files(text: Path, pair_file: Path) -> dict[str, Path]:
    """Data of each kind that a shipped recipe is for."""
    made = {"text": text, "pairs": pair_file} | {kind: text.with_name(f"toy.{kind}") for kind in LABELLED}
    made["tags"].write_text("\n\n".join(f"Ada{n} B-PER\nran O" for n in range(60)))
    context = "Ada ran home, and then she slept."
    asked = {"question": "Who ran?", "answers": [{"text": "Ada", "answer_start": 2}]}
    paragraphs = [{"context": f"{n} {context}", "qas": [{"id": f"{n}", **asked}]} for n in range(10, 70)]
    made["spans"].write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    made["images"] = made["tags"].with_name("images.npz")
    x = np.random.default_rng(0).integers(0, 256, (60, 20, 20), np.uint8)
    np.savez(made["images"], x=x, y=np.arange(60) % 2)
    made["stories"] = made["tags"].with_name("stories.txt")
    made["stories"].write_text("".join(stories(1, 60)))
    made["table"] = made["table"].with_suffix(".csv")
    made["table"].write_text("text,label\n" + "".join(f"word {n} is here,{'ab'[n % 2]}\n" for n in range(60)))
    made["sets"] = made["tags"].with_name("sets.csv")
    rows = "".join(f"c{n},{n},{k},{'ab'[n % 2]}\n" for n in range(60) for k in range(3))
    made["sets"].write_text("cloud,n,k,kind\n" + rows)
    made["captions"] = made["tags"].with_name("captions.tsv")
    shots = "".join(f"images.npz[{n}]\ta picture of the number {n % 3}\n" for n in range(60))
    made["captions"].write_text("image\tcaption\n" + shots)
    made["graph"] = made["tags"].with_name("graph")
    made["graph"].mkdir()
    (made["graph"] / "nodes.csv").write_text(
        "node,x,label\n" + "".join(f"{n},{n % 7},{'ab'[n % 2]}\n" for n in range(60))
    )
    (made["graph"] / "edges.csv").write_text("source,target\n" + "".join(f"{n},{(n + 2) % 60}\n" for n in range(60)))
    return made


# --- those that are shipped -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_is_valid(name):
    of = {"translate": "pairs", "labels": "table"} | {
        kind: kind for kind in ("pairs", "tags", "spans", "stories", "graph", "images", "maths", "sets", "captions")
    }
    assert resolve((name, shipped(name))).data.kind == of.get(name.partition("-")[0], "text")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_recipe_says_in_its_first_line_what_it_is_for(name):
    first = (Path(recipe.__file__).parent / "recipes" / f"{name}.toml").read_text().splitlines()[0]
    assert re.match("# An? ", first)


@pytest.mark.parametrize("name", shipped_names())
def test_two_steps_of_every_shipped_recipe_run(name, files, tmp_path, monkeypatch):
    from harken.experiments import train as study

    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    tiny = {"model.d": 16, "train.steps": 2, "train.batch": 4}
    made = resolve((name, shipped(name)))
    tiny |= {"model.layers": 1} if "layers" in type(made.model).model_fields else {}
    drawn = {"data.valid": 50, "data.test": 50}  # of mathematics, which is not read
    tiny |= drawn if made.data.kind == "maths" else {"data.path": str(files[made.data.kind])}
    tiny |= {"data.vocab_size": 300} if "vocab" in type(made.data).model_fields else {}
    tiny |= {"model.context": 8} if made.data.kind == "text" else {}
    tiny |= {f"task.{n}": 200 for n in ("eval_pairs", "eval_tokens") if n in type(made.task).model_fields}
    tiny |= {"model.heads": 2} if "heads" in type(made.model).model_fields else {}
    run = study.train(name, settings=tiny, out=tmp_path / "run")
    assert run.facts["steps"] == 2
    assert math.isfinite(run.metrics["valid"]["loss"])


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_recipe_keeps_the_rate_it_was_tuned_with(name):
    said, made = shipped(name), resolve((name, shipped(name)))
    assert {"train.lr", "train.weight_decay", "train.betas"} <= said.keys()
    assert all(made.settings()[path] == value for path, value in said.items())


@pytest.mark.parametrize("rule", ["adamw", "adam", "rmsprop", "sgd"])
def test_a_rule_that_is_given_over_a_recipe_brings_its_own_rate(rule):
    made = resolve(("recipe char", shipped("char")), (GIVEN, {"train.optimizer": rule}))
    assert made.train.lr == type(made.train)(optimizer=rule).lr != shipped("char")["train.lr"]
    assert {made.origins[f"train.{name}"] for name in ("lr", "weight_decay", "betas", "momentum")} == {
        f"optimizer = {rule}"
    }
    given = {"train.optimizer": rule, "train.lr": 0.7}
    assert resolve(("recipe char", shipped("char")), (GIVEN, given)).train.lr == 0.7


@pytest.mark.parametrize("name", ["char", "word"])
@pytest.mark.parametrize("rule", Train.model_fields["optimizer"].annotation.__args__)
def test_every_rule_beats_the_unigram_with_its_own_settings(rule, name, tmp_path):
    from harken.experiments.train import prepare

    (tmp_path / "tales.txt").write_text("\n\n".join(tales(60)) + "\n")
    small = {"data.path": str(tmp_path / "tales.txt"), "model.d": 32, "model.layers": 2, "model.heads": 2}
    small |= {"model.context": 32, "train.batch": 8, "train.steps": 100, "train.optimizer": rule, "train.threads": 1}
    _, trainer = prepare(resolve((name, shipped(name)), (GIVEN, small)), silent)
    trainer.fit(tmp_path, 100)
    trainer.finish()
    assert trainer.look("valid", quick=False).metrics["loss"] < trainer.task.baselines("valid")["unigram"]["loss"]


def test_a_recipe_that_is_not_shipped_is_refused():
    with pytest.raises(BadInput, match=r"^recipe 'chars' is not one of harken's; there are bert, bpe, byte, captions"):
        shipped("chars")


# --- written and read back --------------------------------------------------------------------------------------------


def again(made: Recipe, path: Path) -> Recipe:
    path.write_text(made.toml(), "utf-8")
    return resolve((str(path), read(path)))


def parts(made: Recipe) -> list:
    return [made.data, made.model, made.task, made.train]


@pytest.mark.parametrize("name", shipped_names())
def test_a_written_recipe_reads_back_as_the_same(name, tmp_path):
    path = {} if name == "maths" else {"data.path": "/a b/ü.txt"}
    made = resolve((name, shipped(name)), ("x", {**path, "train.steps": 7}))
    assert parts(again(made, tmp_path / "recipe.toml")) == parts(made)


NASTY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ['"', "\\", '"""', "'", "\n", "\r\n", "\t", "\x00", "\x7f", "\u2028", "\ufeff", "#", "=", "[data]", "😀", "\\u0041"]
)


@settings(max_examples=300, deadline=None)
@given(path=NASTY, mix=st.dictionaries(NASTY.filter(bool), st.floats(0.01, 9), min_size=1, max_size=3))
def test_names_however_odd_read_back_as_they_were(path, mix):
    made = resolve(("x", {"data.path": path, "data.mix": mix}))
    found = tomllib.loads(made.toml())
    assert (found["data"]["path"], found["data"]["mix"]) == (path, mix)
    assert resolve(("y", {f"data.{k}": v for k, v in found["data"].items()})).data == made.data


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False) | st.integers() | st.booleans() | NASTY | st.lists(st.integers() | NASTY))
def test_every_value_reads_back_as_it_was(value):
    found = tomllib.loads(f"x = {as_toml(value)}")["x"]
    assert found == value
    assert type(found) is type(value)


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(BadInput, match="this name is not UTF-8, and a recipe is; rename the file"):
        resolve(("x", {"data.path": "caf\udce9.txt"})).toml()


def test_settings_that_are_none_are_left_out():
    assert "kv_heads" not in resolve().toml()


# --- which layer wins -------------------------------------------------------------------------------------------------


def test_defaults_give_way_to_dials_dials_to_the_file_and_the_file_to_the_command_line():
    made = resolve(
        ("lm.toml", {"model.size": "tiny", "model.d": 48, "model.layers": 3}), ("command line", {"model.layers": 5})
    )
    assert (made.model.dropout, made.model.heads, made.model.d, made.model.layers) == (0.0, 2, 48, 5)


def test_each_value_remembers_where_it_came_from():
    made = resolve(
        ("lm.toml", {"model.size": "tiny", "model.d": 48, "model.layers": 3}), ("command line", {"model.layers": 5})
    )
    named = {name: made.origins.get(f"model.{name}") for name in ("dropout", "heads", "d", "layers")}
    assert named == {"dropout": None, "heads": "size = tiny", "d": "lm.toml", "layers": "command line"}


def test_a_value_that_was_worked_out_says_so():
    made = resolve().change(train__steps=12)
    assert (made.train.steps, made.origins["train.steps"]) == (12, "worked out")
    given = resolve(("given", {"train.steps": 12})).change(train__steps=12)
    assert given.origins["train.steps"] == "given"


def test_a_dial_on_the_command_line_beats_the_fields_of_the_file():
    made = resolve(
        ("recipe char", {"model.d": 96, "model.positions": "rotary"}), ("command line", {"model.size": "tiny"})
    )
    assert (made.model.d, made.model.positions) == (64, "rotary")
    assert made.origins["model.d"] == "size = tiny"


def test_a_dial_and_a_field_of_the_same_layer_leave_the_field():
    assert resolve(("x", {"model.d": 96, "model.size": "tiny"})).model.d == 96


@pytest.mark.parametrize("name", ["tiny", "medium"])
def test_a_dial_means_the_same_in_python_as_in_a_recipe(name):
    part = registry.find("model", "gpt")
    assert part(size=name, heads=1) == resolve(("x", {"model.size": name, "model.heads": 1})).model


@pytest.mark.parametrize("said", [{"train.minutes": 1.0}, {"train.epochs": 2.0}, {"train.tokens": 99}])
def test_a_budget_on_the_command_line_beats_that_of_the_file(said):
    made = resolve(("lm.toml", {"train.steps": 500, "train.minutes": 9}), ("command line", said))
    assert made.train.steps is None
    assert "train.steps" not in made.origins


def test_steps_of_a_file_stay_when_the_command_line_says_nothing_of_the_budget():
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
def test_a_setting_of_the_command_line_is_toml_or_else_plain_text(text, value):
    assert override(text) == (text.partition("=")[0], value)


# --- what is said when it is wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model.layrs": 4}, "lm.toml: model.layrs is not a setting. Did you mean model.layers?"),
        ({"train.stepz": 4}, "lm.toml: train.stepz is not a setting. Did you mean train.steps?"),
        ({"model.xyzzy": 4}, "lm.toml: model.xyzzy is not a setting; harken check --settings gpt lists them"),
        (
            {"modle.layers": 4},
            "lm.toml: modle.layers is not a setting; the sections are data, model, task, train. Did you mean model?",
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
        ({"data.mix": {"a": {"txt": -1}}}, "lm.toml: data.mix: weights are 0 or more, and one of them is more"),
        (
            {"model.kind": "gtp"},
            f"lm.toml: model.kind = 'gtp' is not a kind of model; accepted: {MODELS}. Did you mean gpt?",
        ),
        (
            {"data.kind": "films"},
            f"lm.toml: data.kind = 'films' is not a kind of data; accepted: {DATA}. "
            "A plug-in that brings it may be missing.",
        ),
        ({"task.kind": "chess"}, f"lm.toml: task.kind = 'chess' is not a kind of task; accepted: {TASKS}."),
        ({"train.epochs": math.inf}, "lm.toml: train.epochs = inf: accepted: a finite number"),
        ({"model.dropout": 1.0}, "lm.toml: model.dropout = 1.0: accepted: number ≥ 0 and < 1"),
        *(
            (
                {"train.nesterov": True, **rule},
                "lm.toml: train.nesterov = True: only sgd with a momentum looks ahead; "
                "set train.optimizer=sgd and train.momentum=0.9",
            )
            for rule in ({}, {"train.optimizer": "muon"}, {"train.optimizer": "sgd", "train.momentum": 0})
        ),
    ],
)
def test_a_wrong_setting_is_answered_word_for_word(said, message):
    with pytest.raises(BadSetting) as refused:
        resolve(("lm.toml", said))
    assert str(refused.value) == message


def test_what_was_given_just_now_needs_no_place_before_it():
    with pytest.raises(BadSetting, match=r"^model.layers = 0: accepted: "):
        resolve((GIVEN, {"model.layers": 0}))


def test_two_budgets_at_once_are_refused():
    with pytest.raises(BadSetting, match=r"^train.steps and train.minutes: only one of them counts; give one$"):
        resolve((GIVEN, {"train.minutes": 3, "train.steps": 5}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[model\n",
            r"^{path}: is not valid TOML \(.*line 1.*\); a recipe has sections like \[model\] with lines d = 128$",
        ),
        (
            "d = 4\n",
            r"^{path}: d stands outside a section; put it under one of \[data\], \[model\], \[task\], \[train\]$",
        ),
        ("\ud800", r"^{path}: cannot be read"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path, content, message):
    path = tmp_path / "lm.toml"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadInput, match=message.replace("{path}", str(path))):
        read(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match=rf"^{tmp_path}/no.toml: cannot be read"):
        read(tmp_path / "no.toml")


@pytest.mark.parametrize("text", ["layers=6", "model.layers", "=6", "--out"])
def test_what_is_no_setting_is_shown_one(text):
    with pytest.raises(BadInput, match=r"is not a setting; settings look like model.layers=6$"):
        override(text)


@pytest.mark.parametrize("name", ["model.dropout", "task.label_smoothing"])
def test_a_setting_in_the_wrong_section_is_shown_its_own(name):
    wrong = name.replace(name.partition(".")[0], "train")
    with pytest.raises(BadSetting, match=rf"^{wrong} is not a setting\. Did you mean {name}\?$"):
        resolve((GIVEN, {wrong: 0.1}))
