"""The exact text of each error message: one line on stderr, and the exit code."""

import shutil
import sys

import pytest

import harken as package
from harken import registry
from harken.cli import COMMANDS
from harken.cli.demo import DEMOS

DATA, MODELS = (", ".join(registry.kind_names(section)) for section in ("data", "model"))  # including plug-ins


@pytest.fixture
def error_of(harken):
    """Run a command that fails, check its exit code, and return its one error line without the prefix."""

    def call(*args: object, code: int = 2, stdin: bytes | None = None) -> str:
        output = harken(*args, stdin=stdin)
        assert output.code == code, output
        assert output.err.startswith("harken: "), output.err
        assert output.err.count("\n") == 1, output.err
        return output.err.removeprefix("harken: ").removesuffix("\n")

    return call


@pytest.fixture
def text(tales, tmp_path) -> str:
    shutil.copy(tales, tmp_path / "my.txt")
    return "my.txt"


# --- the command itself -----------------------------------------------------------------------------------------------


def test_an_unknown_command_suggests_the_nearest(error_of):
    assert error_of("trian", "my.txt") == "'trian' is not a command; see harken --help. Did you mean train?"


def test_an_unknown_command_without_a_near_one_refers_to_the_help(error_of):
    assert error_of("xyzzy") == "'xyzzy' is not a command; see harken --help"


def test_a_command_without_settings_names_no_setting_for_a_text_that_is_not_utf8(error_of, tmp_path):
    (tmp_path / "points.csv").write_bytes("name,x\nGrün,1\nBlau,2\n".encode("cp1252"))
    fix = "convert it: iconv -f cp1252 -t utf-8 points.csv > points.utf8.csv"
    assert error_of("cluster", "points.csv").endswith(f"harken reads UTF-8; {fix}")
    assert error_of("train", "points.csv").endswith(f"harken reads UTF-8; set data.encoding=cp1252, or {fix}")


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb != "train"])
def test_under_torchrun_only_the_first_process_reports_that_only_train_is_supported(
    error_of, harken, monkeypatch, verb
):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert error_of(verb, "runs/my") == (
        f"{verb}: only train runs under torchrun (2 processes); run harken {verb} without it"
    )
    monkeypatch.setenv("RANK", "1")  # torchrun would end rank 0 before it prints, if this one failed
    output = harken(verb, "runs/my")
    assert (output.code, output.out, output.err) == (0, "", "")


def test_an_unknown_option_suggests_the_nearest_and_refers_to_the_help(error_of):
    assert error_of("generate", "runs/my", "--tokns", 5) == (
        "generate: no such option --tokns; see harken generate --help. Did you mean --tokens?"
    )
    assert error_of("runs", "--zzz") == "runs: no such option --zzz; see harken runs --help"


def test_an_option_with_the_name_of_a_setting_suggests_the_setting(error_of):
    assert error_of("train", "my.txt", "--steps", 5).endswith("see harken train --help. Did you mean train.steps=N?")
    assert error_of("compare", "my.txt", "--lr", 5).endswith("see harken compare --help. Did you mean train.lr=N?")
    assert error_of("train", "my.txt", "--minuts", 5).endswith("Did you mean --minutes?")
    assert error_of("eval", "runs/my", "--steps", 5).endswith("Did you mean --shots?")  # eval takes no settings


def test_a_misspelled_split_suggests_the_option(error_of, run):
    for name, split in (("tset", "test"), ("valid", "valid")):
        assert error_of("eval", run, name) == (
            f"{name}: no such data; a split of the run's own data is an option. Did you mean --split {split}?"
        )
    assert "check the name" in error_of("eval", run, "my-other-data.csv")


def test_a_missing_argument_is_named(error_of):
    assert error_of("train") == "train: missing argument 'DATA|RECIPE|RUN'; see harken train --help"
    assert error_of("eval") == "eval: missing argument 'RUN'; see harken eval --help"


def test_check_without_arguments_names_the_accepted_arguments(error_of):
    assert error_of("check") == (
        "check: give the data or recipe to check, or a kind with --settings; see harken check --help"
    )


def test_score_without_a_text_at_a_terminal_fails_without_waiting(error_of, run):
    assert error_of("score", run) == (
        "score: give a text, or - to read texts from stdin, one per line; see harken score --help"
    )


@pytest.mark.parametrize("verb", ["score", "generate"])
def test_an_empty_stdin_without_a_text_is_a_missing_text(error_of, harken, run, verb):
    assert error_of(verb, run, stdin=b"") == (
        f"{verb}: no text is given and stdin is empty; give a text, or - to accept empty input; "
        f"see harken {verb} --help"
    )
    assert harken(verb, run, "-", stdin=b"").code == 0  # explicit -: empty input is valid


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tokens", "-1"), "generate: invalid value for '--tokens': -1 is not in the range x>=0; {see}"),
        (("--tokens", "many"), "generate: invalid value for '--tokens': 'many' is not a valid integer range; {see}"),
        (("--n", "0"), "generate: invalid value for '--n': 0 is not in the range 1<=x<=1000; {see}"),
        (
            ("--temperature", "hot"),
            "generate: invalid value for '--temperature': 'hot' is not a valid float range; {see}",
        ),
        (("--temperature", "-1"), "generate: invalid value for '--temperature': -1.0 is not in the range x>=0; {see}"),
        (("--top-k", "0"), "generate: invalid value for '--top-k': 0 is not in the range x>=1; {see}"),
        (("--top-p", "2"), "generate: invalid value for '--top-p': 2.0 is not in the range 0<x<=1; {see}"),
        (("--next", "0"), "generate: invalid value for '--next': 0 is not in the range x>=1; {see}"),
        (("--next", "3", "--tokens", "5"), "generate: --tokens has no effect with --next; {see}"),
        (("--out", "a.jsonl"), "generate: --out has no effect without --in; {see}"),
        (("--in", "a.txt"), "generate: PROMPT has no effect with --in; {see}"),
    ],
)
def test_a_bad_option_value_of_generate_is_reported_before_the_run_is_loaded(error_of, options, message):
    assert error_of("generate", "no/run", "Tom", *options) == message.format(see="see harken generate --help")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("eval", "no/run", "my.txt", "--split", "test"), "eval: --split has no effect for other data; {see} eval"),
        (("check", "my.txt", "--settings", "gpt"), "check: DATA|RECIPE has no effect with --settings; {see} check"),
        (("train", "my.txt", "--show", "--resume"), "train: --resume has no effect with --show; {see} train"),
        (("score", "no/run", "Tom", "--in", "my.txt"), "score: TEXT... has no effect with --in; {see} score"),
        (
            ("train", "my.txt", "--resume", "--force"),
            "resume continues a run and force overwrites it; set only one of them",
        ),
        (("train", "my.txt", "--force"), "force needs a folder to overwrite; name it with out (--out DIR)"),
        (
            ("train", "my.txt", "--minutes", "1", "train.steps=3"),
            "train.steps and train.minutes: these settings exclude each other; set one",
        ),
    ],
)
def test_options_without_effect_are_refused(error_of, text, args, message):
    assert error_of(*args).startswith(message.format(see="see harken"))


def test_a_split_that_cannot_be_evaluated_is_refused(error_of, run):
    assert error_of("eval", run, "--split", "train") == (
        "eval: invalid value for '--split': 'train' is not one of 'valid', 'test'; see harken eval --help"
    )
    assert error_of("eval", run, "--split", "test") == (
        "split test: not in this run, which has valid; or give other data to evaluate"
    )


def test_an_unknown_demo_lists_the_demos(error_of, harken):
    demo_names = ", ".join(DEMOS)
    assert error_of("demo", "sums") == f"demo: 'sums' is not a demo. Accepted: {demo_names}; see harken demo --help"
    near = f"demo: 'review' is not a demo. Did you mean reviews? Accepted: {demo_names}; see harken demo --help"
    assert error_of("demo", "review") == near
    messages = harken("demo", "--help").out
    assert all(f"{name} " in messages and demo.what in messages for name, demo in DEMOS.items())


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.layrs=4", "model.layrs is not a setting. Did you mean model.layers?"),
        ("model.zzz=4", "model.zzz is not a setting; harken check --settings gpt lists them"),
        ("layers=4", "'layers=4' is not a setting; settings look like model.layers=6. Did you mean model.layers=4?"),
        ("hedas=4", "'hedas=4' is not a setting; settings look like model.layers=6. Did you mean model.heads=4?"),
        ("steps=4", "'steps=4' is not a setting; settings look like model.layers=6. Did you mean train.steps=4?"),
        ("zzzzz=4", "'zzzzz=4' is not a setting; settings look like model.layers=6"),
        ("model.layers", "'model.layers' is not a setting; settings look like model.layers=6"),
        ("model.layers=0", "model.layers = 0: accepted: whole number ≥ 1 and ≤ 1000"),
        (
            "model.positions=sine",
            "model.positions = 'sine': accepted: sinusoid, sinusoid-halves, learned, rotary, rotary-interleaved, "
            "alibi, none",
        ),
        ("train.lr=fast", "train.lr = 'fast': accepted: number > 0"),
        (
            "train.optimizer=adamW",
            "train.optimizer = 'adamW': accepted: adamw, muon, rmsprop, sgd. Did you mean adamw?",
        ),
        ("train.average=emma", "train.average = 'emma': accepted: none, ema, last. Did you mean ema?"),
        (
            "data.tokenizer=chars",
            "data.tokenizer = 'chars': accepted: char, byte, word, bpe, wordpiece. Did you mean char?",
        ),
        ("model.heads=5", "model: d=96 is not divisible by heads=5; use d=100"),
        (
            "data.mix={my.txt=1}",
            "my.txt: data.mix also names the data; remove one of them, or name a recipe: "
            "harken train char data.mix=...",
        ),
        ("model.kind=gtp", f"model.kind = 'gtp' is not a kind of model; accepted: {MODELS}. Did you mean gpt?"),
        ("data.kind=texts", f"data.kind = 'texts' is not a kind of data; accepted: {DATA}. Did you mean text?"),
    ],
)
def test_an_invalid_setting_is_refused_and_creates_no_folder(error_of, text, setting, message, tmp_path):
    assert (
        error_of("train", text, setting, "model.positions=rotary" if "heads" in setting else "data.valid=0.2")
        == message
    )
    assert not (tmp_path / "runs").exists()


def test_zero_minutes_are_refused(error_of, text):
    assert error_of("train", text, "--minutes", 0) == "train.minutes = 0.0: accepted: number > 0"


def test_an_unknown_setting_in_a_recipe_is_reported_with_the_file(error_of, tmp_path):
    (tmp_path / "lm.toml").write_text("[model]\nlayrs = 2\n")
    assert error_of("train", "lm.toml") == "lm.toml: model.layrs is not a setting. Did you mean model.layers?"


def test_a_recipe_that_is_not_toml_is_reported_with_the_position(error_of, tmp_path):
    (tmp_path / "lm.toml").write_text("[model\n")
    assert error_of("check", "lm.toml").startswith("lm.toml: is not valid TOML (Expected ']' ")


def test_a_setting_outside_a_section_of_a_recipe_is_refused(error_of, tmp_path):
    (tmp_path / "lm.toml").write_text("layers = 2\n")
    assert error_of("check", "lm.toml") == (
        "lm.toml: layers is outside a section; move it to one of [data], [model], [task], [train], [cost], [report]"
    )


def test_settings_of_an_unknown_kind_list_the_kinds(error_of):
    output = error_of("check", "--settings", "gtp")
    assert output.startswith(f"--settings gtp: not a kind; accepted: {DATA}, {MODELS}, ")
    assert output.endswith("translate, train, cost, report. Did you mean gpt?")
    assert "rnn-attention of pairs, " in output
    assert "bert of labels, " in output


# --- data -------------------------------------------------------------------------------------------------------------

MISSING = "no such file, folder, catalogue entry (harken data) or recipe; check the name"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("my.tx", f"my.tx: {MISSING}. Did you mean my.txt?"),
        ("shakespear", f"shakespear: {MISSING}. Did you mean shakespeare?"),
        ("nothing.txt", f"nothing.txt: {MISSING}"),  # a common suffix is not similar enough
        ("no/such/place.txt", f"no/such/place.txt: {MISSING}"),
        ("mt.txt", f"mt.txt: {MISSING}. Did you mean my.txt?"),  # one letter of two
        ("lm.toml", "lm.toml: no such recipe; check the name"),
        (
            "karate",
            f"karate: {MISSING.partition(';')[0]}; the demo of this name trains on its own data: harken demo karate",
        ),
        ("", f"'': {MISSING}"),
        (
            "data.source=a.en",
            "data.source=a.en: a setting where the data is expected; put the data or a recipe before it, as in: "
            "harken train translate data.source=a.en",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["train", "check"])
def test_missing_data_suggests_similar_names(error_of, text, verb, source, message):
    assert error_of(verb, source) == message


def test_similar_names_in_another_folder_include_the_folder(error_of, text, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "novel.txt").write_text("x")
    assert error_of("check", "sub/novell.txt") == f"sub/novell.txt: {MISSING}. Did you mean sub/novel.txt?"


def test_missing_evaluation_data_suggests_similar_names(error_of, run, text):
    assert error_of("eval", run, "my_.txt") == f"my_.txt: {MISSING}. Did you mean my.txt?"


def test_an_unknown_dataset_lists_the_catalogue(error_of):
    output = error_of("data", "tale")
    assert output.startswith("data tale: unknown dataset; available: tales, shakespeare, ")
    assert output.endswith(". Did you mean tales?")


def test_a_text_that_is_not_utf_8_is_reported_with_its_position_and_a_conversion(error_of, tmp_path):
    (tmp_path / "latin.txt").write_bytes("un café\n".encode("latin-1") * 20)
    assert error_of("train", "latin.txt") == (
        "latin.txt:1: byte 0xe9 at column 7 is not UTF-8 (probably Windows-1252); harken reads UTF-8; "
        "set data.encoding=cp1252, or convert it: iconv -f cp1252 -t utf-8 latin.txt > latin.utf8.txt"
    )


def test_stdin_that_is_not_utf_8_is_reported_with_its_line(error_of, run):
    assert error_of("generate", run, "-", "--tokens", 2, stdin=b"Tom\ncaf\xe9\n") == (
        "stdin:2: byte 0xe9 is not UTF-8; harken reads UTF-8; convert it: iconv -f cp1252 -t utf-8"
    )


def test_a_dataset_without_a_reader_is_refused_before_the_download(error_of, monkeypatch):
    from harken.data import catalogue

    monkeypatch.setattr(catalogue, "fetch", lambda *_, **__: pytest.fail("it was downloaded"))
    assert error_of("train", "minilm") == (
        "minilm: detected as weights (all-MiniLM-L6-v2, a BERT for sentences), but harken has no reader for weights"
        f"; it reads {DATA}"
    )


def test_random_bytes_are_reported_as_binary(error_of, tmp_path):
    (tmp_path / "bin.dat").write_bytes(bytes(range(256)) * 40)
    assert error_of("train", "bin.dat", "data.kind=text") == (
        "bin.dat:1: a binary file; harken reads UTF-8 text; give a text file"
    )


def test_a_text_column_of_a_table_is_refused_with_a_conversion(error_of, tmp_path, run):
    (tmp_path / "t.jsonl").write_text("".join(f'{{"id": {n}, "body": "line {n} of a tale"}}\n' for n in range(30)))
    why = "JSON with one object per line; column 'body' holds text, and no column is a label"
    assert error_of("train", "t.jsonl") == (
        f"t.jsonl: detected as text ({why}), but a text and a label, or two texts, are needed; "
        "name the column to predict (data.label=...), or write column 'body' to a text file (jq -r .body). "
        "To read it as text: data.kind=text"
    )
    assert error_of("eval", run, "t.jsonl") == (
        f"t.jsonl: detected as text ({why}); this run needs plain text; give a text file"
    )


def test_paths_in_a_recipe_are_relative_to_its_folder(error_of, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "r.toml").write_text('[data]\npath = "mt.txt"\n')
    (tmp_path / "sub" / "my.txt").write_text("A line.\n" * 50)
    assert error_of("check", "sub/r.toml") == ("sub/mt.txt: no such file; check the name. Did you mean sub/my.txt?")


def test_a_text_that_differs_from_the_recipe_is_refused_with_a_remedy(error_of, text, tmp_path):
    (tmp_path / "r.toml").write_text('[data]\npath = "my.txt"\nsha256 = "abc"\n')
    assert error_of("train", "r.toml") == (
        "my.txt: SHA-256 mismatch: the files differ from those of this recipe; restore them, "
        "or train a new run: harken train my.txt"
    )


def test_an_empty_stdin_is_refused(error_of):
    assert error_of("train", "-", stdin=b"") == "stdin: it is empty; pipe a text into it: harken train - < my.txt"


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["generate", "score", "eval"])
def test_a_missing_run_refers_to_harken_runs(error_of, verb):
    extra = ("x",) if verb != "eval" else ()
    assert error_of(verb, "runs/x", *extra) == "runs/x: no such folder; harken runs lists the existing ones"


def test_a_folder_without_harken_json_is_refused(error_of, tmp_path):
    (tmp_path / "stuff").mkdir()
    assert error_of("generate", "stuff", "x") == (
        "stuff: is not a run folder (it has no harken.json); harken runs lists the existing ones"
    )


def test_an_unfinished_run_is_refused_with_the_command_to_resume(error_of, run, tmp_path):
    shutil.copytree(run, tmp_path / "half")
    (tmp_path / "half" / "harken.json").unlink()
    assert error_of("generate", "half", "x", code=1) == (
        "half: this run is not finished; resume with: harken train half --resume"
    )


def test_an_unfinished_trial_is_refused_with_the_command_to_resume_its_comparison(error_of, harken, run, tmp_path):
    trial = tmp_path / "runs" / "x-compare" / "model.heads=1-seed=0"
    shutil.copytree(run, trial)
    (trial / "harken.json").unlink()
    (trial.parent / "compare.json").write_text("{}")
    hint = "resume with: harken compare runs/x-compare --resume"
    place = "runs/x-compare/model.heads=1-seed=0"
    assert error_of("generate", place, "x", code=1) == f"{place}: this run is not finished; {hint}"
    for verb in ("runs", "cost"):
        assert hint in harken(verb).out


def test_a_data_file_cannot_be_imported(error_of, text):
    output = error_of("import", text)
    assert output.startswith("my.txt: is a file, but not .gguf; accepted: a folder, a .gguf file, ")
    assert output.endswith("; to train on data use harken train my.txt")


def test_a_model_for_other_data_is_refused_with_the_accepted_models(error_of, tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    pair_models = ", ".join(registry.kind_names("model", "pairs"))
    assert error_of("compare", "p.tsv", "--models", "rnn,gpt") == (
        f"model.kind = 'gpt' is not a model of pairs; accepted: {pair_models}"
    )


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("transfer=frozn", "transfer = 'frozn': accepted: finetune, frozen, scratch, 4-shot. Did you mean frozen?"),
        ("from=runs/x", "runs/x: no such folder; harken runs lists the existing ones"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_invalid_initial_weights_are_refused_before_torch_is_imported(
    error_of, monkeypatch, text, verb, source, message
):
    for name in (
        "harken.experiments.train",
        "harken.experiments.compare.comparison",
        "harken.experiments.compare.summary",
    ):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it would fail
    assert error_of(verb, text, source) == message


def test_a_modified_run_file_is_reported_by_name(error_of, run, tmp_path):
    shutil.copytree(run, tmp_path / "odd")
    with (tmp_path / "odd" / "model.safetensors").open("ab") as file:
        file.write(b"!")
    assert error_of("generate", "odd", "x", code=1) == (
        "odd/model.safetensors: SHA-256 mismatch: the file was modified; restore it from a copy, or train again"
    )


def test_a_truncated_harken_json_is_reported_with_a_remedy(error_of, run, tmp_path):
    shutil.copytree(run, tmp_path / "odd")
    (tmp_path / "odd" / "harken.json").write_text("{")
    output = error_of("generate", "odd", "x", code=1)
    assert output.startswith("odd/harken.json: cannot be read as JSON (")
    assert output.endswith("); restore it from a copy, or train again")


def test_a_run_folder_is_not_accepted_as_data(error_of, run, tmp_path):
    shutil.copytree(run, tmp_path / "mine")
    assert error_of("train", "mine") == (
        "mine: a run folder, not data; resume with: harken train mine --resume; "
        "or repeat it with: harken train mine/recipe.toml"
    )


def test_a_run_without_its_recipe_is_refused_with_and_without_resume(error_of, run, tmp_path):
    shutil.copytree(run, tmp_path / "mine")
    (tmp_path / "mine" / "recipe.toml").unlink()
    output = "mine: a run folder without recipe.toml; restore the file or train again"
    assert error_of("train", "mine", "--resume") == error_of("train", "mine") == output


def test_a_training_that_ended_before_its_first_step_is_not_accepted_as_data(error_of, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").write_text("")
    assert error_of("train", "mine", "--resume") == (
        "mine: a run that stopped before its first step; train again from its data"
    )


def test_an_output_folder_that_is_not_empty_is_refused(error_of, text, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    for option in ("--resume", "--force"):
        assert error_of("train", text, "--out", "taken", option) == (
            "taken: is not empty and not a run folder (it has no recipe.toml); choose another folder"
        )
    (tmp_path / "taken" / "recipe.toml").write_text("")
    assert error_of("train", text, "--out", "taken") == (
        "taken: is not empty; resume the run (--resume), overwrite it (--force) or choose another folder (--out)"
    )


def test_an_output_folder_that_is_a_file_is_refused(error_of, text):
    assert error_of("train", text, "--out", text) == "my.txt: is a file; choose another folder"


def test_a_run_cannot_be_resumed_in_another_folder(error_of, run):
    assert error_of("train", run, "--resume", "--out", "other") == (
        f"{run}: a run is resumed in its own folder, not in other; remove out (--out)"
    )


def test_a_missing_folder_of_runs_suggests_similar_names(error_of, tmp_path):
    (tmp_path / "runs").mkdir()
    assert error_of("runs", "nope") == "nope: no such folder; check the name"
    assert error_of("runs", "rus") == "rus: no such folder; check the name. Did you mean runs?"


def test_a_file_is_refused_as_a_folder_of_runs(error_of, text):
    assert error_of("runs", text) == "my.txt: this is a file; give a run folder or a folder of runs"


def test_a_resumed_run_refuses_new_settings(error_of, run):
    assert error_of("train", run, "train.steps=9", "--resume") == (
        f"{run}: a run is resumed with its own recipe; train.steps cannot be changed"
    )


# --- unexpected errors ------------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    from harken.inference import run as model

    def load(path, **options):
        raise RuntimeError("the wheels came off\nand rolled away")

    monkeypatch.setattr(model, "load", load)


def test_an_unexpected_error_is_one_line(error_of, broken):
    assert (
        error_of("score", "runs/x", "Tom", code=1)
        == "RuntimeError: the wheels came off; set HARKEN_DEBUG=1 for the traceback"
    )


def test_ctrl_c_prints_no_traceback(harken, monkeypatch):
    from harken.inference import run as model

    monkeypatch.setattr(model, "load", lambda path, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    output = harken("score", "runs/x", "Tom")
    assert (output.code, output.err.strip()) == (130, "harken: stopped")


def test_harken_debug_shows_the_traceback_before_the_line(harken, broken, monkeypatch):
    monkeypatch.setenv("HARKEN_DEBUG", "1")
    output = harken("score", "runs/x", "Tom")
    assert output.code == 1
    assert output.err.startswith("Traceback (most recent call last):")
    assert output.err.splitlines()[-1].startswith("harken: RuntimeError: the wheels came off")


def test_harken_debug_keeps_the_exit_code(harken, monkeypatch):
    monkeypatch.setenv("HARKEN_DEBUG", "1")
    output = harken("check", "nothing.txt")
    assert "BadInput" in output.err
    assert output.code == 2


def test_the_public_errors_are_exported():
    assert issubclass(package.BadInput, package.HarkenError)
    assert issubclass(package.BadSetting, ValueError)


def test_json_leaves_stdout_empty_after_an_error(harken):
    for verb in COMMANDS:
        thing = ("nothing",) if verb not in ("runs", "demo") else ("--zzz",)
        output = harken(verb, *thing, *(("x",) if verb == "score" else ()), "--json")
        assert (output.code, output.out) == (2, ""), verb


def test_check_recommends_cross_validation_for_a_small_table(harken, tmp_path):
    rows = [f"word{n % 5} word{n % 3} number {n},{'good' if n % 3 else 'bad'}" for n in range(499)]
    (tmp_path / "small.csv").write_text("\n".join(["text,the label", *rows]) + "\n")
    settings = ["model.d=16", "model.layers=1", "model.heads=2", "train.steps=2", "data.tokenizer=word"]
    repeated = f"harken train small.csv {' '.join(settings)} 'data.label=the label' --folds 5\n"
    settings.append("data.label=the label")
    assert repeated in harken("check", "small.csv", *settings).out
    with (tmp_path / "small.csv").open("a") as file:
        file.write("the last one,good\n")
    assert "--folds" not in harken("check", "small.csv", *settings).out
    assert "--folds" not in harken("check", "small.csv", *settings, "data.fold=1/5").out
