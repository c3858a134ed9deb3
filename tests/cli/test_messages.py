"""The words a user reads when something is wrong, word for word: one line on stderr, and the exit code."""

import shutil
import sys

import pytest

import harken as package
from harken import registry
from harken.cli import COMMANDS
from harken.cli.demo import DEMOS

DATA, MODELS = (", ".join(registry.kind_names(section)) for section in ("data", "model"))  # with the plug-ins that are there


@pytest.fixture
def wrong(harken):
    """What harken says of this command: its one line without the name, after the exit code was seen."""

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


def test_an_unknown_verb_names_the_near_one(wrong):
    assert wrong("trian", "my.txt") == "'trian' is not a verb; see harken --help. Did you mean train?"


def test_an_unknown_verb_without_a_near_one_names_the_help(wrong):
    assert wrong("xyzzy") == "'xyzzy' is not a verb; see harken --help"


@pytest.mark.parametrize("verb", [verb for verb in COMMANDS if verb != "train"])
def test_under_torchrun_the_first_process_says_that_only_train_runs_so_and_the_others_nothing(
    wrong, harken, monkeypatch, verb
):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert wrong(verb, "runs/my") == (
        f"{verb}: 2 processes would each do it; only train runs under torchrun; call harken {verb}"
    )
    monkeypatch.setenv("RANK", "1")  # torchrun would end the first before it speaks, if this one failed
    output = harken(verb, "runs/my")
    assert (output.code, output.out, output.err) == (0, "", "")


def test_an_unknown_option_names_the_near_one_and_the_help(wrong):
    assert wrong("generate", "runs/my", "--tokns", 5) == (
        "generate: no such option --tokns; see harken generate --help. Did you mean --tokens?"
    )
    assert wrong("runs", "--zzz") == "runs: no such option --zzz; see harken runs --help"


def test_a_missing_argument_is_named(wrong):
    assert wrong("train") == "train: missing argument 'DATA|RECIPE|RUN'; see harken train --help"
    assert wrong("eval") == "eval: missing argument 'RUN'; see harken eval --help"


def test_check_without_anything_says_what_it_wants(wrong):
    assert wrong("check") == (
        "check: name the data or the recipe to check, or a kind with --settings; see harken check --help"
    )


def test_score_without_a_text_at_a_terminal_does_not_wait_for_one(wrong, run):
    assert wrong("score", run) == (
        "score: give a text, or - to read texts from stdin, one a line; see harken score --help"
    )


@pytest.mark.parametrize("verb", ["score", "generate"])
def test_no_text_and_an_empty_stdin_are_a_missing_text(wrong, harken, run, verb):
    assert wrong(verb, run, stdin=b"") == (
        f"{verb}: no text is given, and stdin is empty; give a text (with - no line is no error); "
        f"see harken {verb} --help"
    )
    assert harken(verb, run, "-", stdin=b"").code == 0  # as any filter


@pytest.mark.parametrize(
    ("options", "said"),
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
        (("--next", "3", "--tokens", "5"), "generate: with --next, --tokens means nothing; {see}"),
        (("--out", "a.jsonl"), "generate: without --in, --out means nothing; {see}"),
        (("--in", "a.txt"), "generate: with --in, PROMPT means nothing; {see}"),
    ],
)
def test_a_bad_value_of_an_option_of_generate_is_noticed_before_the_run_is_looked_for(wrong, options, said):
    assert wrong("generate", "no/run", "Tom", *options) == said.format(see="see harken generate --help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eval", "no/run", "my.txt", "--split", "test"), "eval: for other data, --split means nothing; {see} eval"),
        (("check", "my.txt", "--settings", "gpt"), "check: with --settings, DATA|RECIPE means nothing; {see} check"),
        (("train", "my.txt", "--show", "--resume"), "train: with --show, --resume means nothing; {see} train"),
        (("score", "no/run", "Tom", "--in", "my.txt"), "score: with --in, TEXT... means nothing; {see} score"),
        (("train", "my.txt", "--resume", "--force"), "resume goes on with a run, and force writes over it; give one"),
        (("train", "my.txt", "--force"), "force writes over a folder that is named; name it with out (--out DIR)"),
        (("train", "my.txt", "--minutes", "1", "train.steps=3"), "train.steps and train.minutes: only one of them"),
    ],
)
def test_what_would_be_passed_over_in_silence_is_refused(wrong, text, words, said):
    assert wrong(*words).startswith(said.format(see="see harken"))


def test_a_split_that_cannot_be_judged(wrong, run):
    assert wrong("eval", run, "--split", "train") == (
        "eval: invalid value for '--split': 'train' is not one of 'valid', 'test'; see harken eval --help"
    )
    assert wrong("eval", run, "--split", "test") == (
        "split test: not in this run, which has valid; or give it another text to judge"
    )


def test_a_demo_that_is_not_there(wrong, harken):
    all_of_them = ", ".join(DEMOS)
    assert wrong("demo", "sums") == f"demo: 'sums' is no demo. There are {all_of_them}; see harken demo --help"
    near = f"demo: 'review' is no demo. Did you mean reviews? There are {all_of_them}; see harken demo --help"
    assert wrong("demo", "review") == near
    messages = harken("demo", "--help").out
    assert all(f"{name} " in messages and demo.what in messages for name, demo in DEMOS.items())


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.layrs=4", "model.layrs is not a setting. Did you mean model.layers?"),
        ("model.zzz=4", "model.zzz is not a setting; harken check --settings gpt lists them"),
        ("layers=4", "'layers=4' is not a setting; settings look like model.layers=6"),
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
            "train.optimizer = 'adamW': accepted: adamw, muon, adam, rmsprop, sgd. Did you mean adamw?",
        ),
        ("train.average=ema", "train.average = 'ema': accepted: none, moving, last. Did you mean moving?"),
        (
            "data.tokenizer=chars",
            "data.tokenizer = 'chars': accepted: char, byte, word, bpe, wordpiece. Did you mean char?",
        ),
        ("model.heads=5", "model: d=96 does not split over 5 heads; try d=100"),
        (
            "data.mix={my.txt=1}",
            "my.txt: data.mix says too what is read; leave one of them out; with data.mix, name a "
            "recipe instead: harken train char data.mix=...",
        ),
        ("model.kind=gtp", f"model.kind = 'gtp' is not a kind of model; accepted: {MODELS}. Did you mean gpt?"),
        ("data.kind=texts", f"data.kind = 'texts' is not a kind of data; accepted: {DATA}. Did you mean text?"),
    ],
)
def test_a_setting_that_is_wrong_takes_no_folder(wrong, text, setting, said, tmp_path):
    assert wrong("train", text, setting, "model.positions=rotary" if "heads" in setting else "data.valid=0.2") == said
    assert not (tmp_path / "runs").exists()


def test_minutes_are_more_than_none(wrong, text):
    assert wrong("train", text, "--minutes", 0) == "train.minutes = 0.0: accepted: number > 0"


def test_a_setting_that_is_wrong_in_a_recipe_names_the_file(wrong, tmp_path):
    (tmp_path / "lm.toml").write_text("[model]\nlayrs = 2\n")
    assert wrong("train", "lm.toml") == "lm.toml: model.layrs is not a setting. Did you mean model.layers?"


def test_a_recipe_that_is_no_toml_says_where(wrong, tmp_path):
    (tmp_path / "lm.toml").write_text("[model\n")
    assert wrong("check", "lm.toml").startswith("lm.toml: is not valid TOML (Expected ']' ")


def test_a_recipe_with_a_setting_outside_a_section(wrong, tmp_path):
    (tmp_path / "lm.toml").write_text("layers = 2\n")
    assert wrong("check", "lm.toml") == (
        "lm.toml: layers stands outside a section; put it under one of [data], [model], [task], [train]"
    )


def test_settings_of_a_kind_that_is_not_there(wrong):
    output = wrong("check", "--settings", "gtp")
    assert output.startswith(f"--settings gtp: not a kind; there are {DATA}, {MODELS}, ")
    assert output.endswith("translate, train. Did you mean gpt?")
    assert "rnn-attention of pairs, " in output
    assert "bert of labels, " in output


# --- data -------------------------------------------------------------------------------------------------------------

MISSING = "there is no such file, folder, catalogue name (harken data) or recipe; check the name"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("my.tx", f"my.tx: {MISSING}. Did you mean my.txt?"),
        ("shakespear", f"shakespear: {MISSING}. Did you mean shakespeare?"),
        ("nothing.txt", f"nothing.txt: {MISSING}"),  # an ending in common makes no near name
        ("no/such/place.txt", f"no/such/place.txt: {MISSING}"),
        ("mt.txt", f"mt.txt: {MISSING}. Did you mean my.txt?"),  # one letter of two
        ("lm.toml", "lm.toml: there is no such recipe; check the name"),
        ("", f"'': {MISSING}"),
        (
            "data.source=a.en",
            "data.source=a.en: a setting stands where the data is named; name the data or a recipe before it, as in: "
            "harken train translate data.source=a.en",
        ),
    ],
)
@pytest.mark.parametrize("verb", ["train", "check"])
def test_data_that_is_not_there(wrong, text, verb, given, said):
    assert wrong(verb, given) == said


def test_near_names_in_another_folder_come_with_it(wrong, text, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "novel.txt").write_text("x")
    assert wrong("check", "sub/novell.txt") == f"sub/novell.txt: {MISSING}. Did you mean sub/novel.txt?"


def test_other_data_to_judge_that_is_not_there(wrong, run, text):
    assert wrong("eval", run, "my_.txt") == f"my_.txt: {MISSING}. Did you mean my.txt?"


def test_a_set_that_is_not_in_the_catalogue(wrong):
    output = wrong("data", "tale")
    assert output.startswith("data tale: no such set; there are tales, shakespeare, ")
    assert output.endswith(". Did you mean tales?")


def test_a_text_that_is_not_utf_8_says_where_and_how_to_convert_it(wrong, tmp_path):
    (tmp_path / "latin.txt").write_bytes("un café\n".encode("latin-1") * 20)
    assert wrong("train", "latin.txt") == (
        "latin.txt:1: byte 0xe9 at column 7 is not UTF-8 (it looks like Latin-1); harken reads UTF-8; "
        "convert it: iconv -f latin1 -t utf-8 latin.txt > latin.utf8.txt"
    )


def test_stdin_that_is_not_utf_8_says_in_which_line(wrong, run):
    assert wrong("generate", run, "-", "--tokens", 2, stdin=b"Tom\ncaf\xe9\n") == (
        "stdin:2: byte 0xe9 is not UTF-8; harken reads UTF-8; convert it: iconv -f latin1 -t utf-8"
    )


def test_a_set_without_a_reader_is_refused_before_it_is_fetched(wrong, monkeypatch):
    from harken.data import catalogue

    monkeypatch.setattr(catalogue, "fetch", lambda *_, **__: pytest.fail("it was fetched"))
    assert wrong("train", "minilm") == (
        "minilm: this is weights (all-MiniLM-L6-v2, a BERT for sentences), and this harken has no reader for weights "
        f"yet; it reads {DATA}"
    )


def test_random_bytes_are_not_called_latin_1(wrong, tmp_path):
    (tmp_path / "bin.dat").write_bytes(bytes(range(256)) * 40)
    assert wrong("train", "bin.dat", "data.kind=text") == (
        "bin.dat:1: a binary file; harken reads UTF-8 text; give a file of text"
    )


def test_a_text_that_is_one_column_among_others_is_refused_with_the_way_out(wrong, tmp_path, run):
    (tmp_path / "t.jsonl").write_text("".join(f'{{"id": {n}, "body": "line {n} of a tale"}}\n' for n in range(30)))
    why = "JSON with one object per line; column 'body' holds text, and no column is a label"
    assert wrong("train", "t.jsonl") == (
        f"t.jsonl: this is text ({why}), and this harken reads plain text; write column 'body' out as one "
        "(of JSONL: jq -r .body). To take it for text all the same: data.kind=text"
    )
    assert wrong("eval", run, "t.jsonl") == (
        f"t.jsonl: this is text ({why}), and this run reads text; give it a plain text"
    )


def test_the_paths_in_a_recipe_are_seen_from_its_folder(wrong, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "r.toml").write_text('[data]\npath = "mt.txt"\n')
    (tmp_path / "sub" / "my.txt").write_text("A line.\n" * 50)
    assert wrong("check", "sub/r.toml") == (
        "sub/mt.txt: there is no such file; check the name. Did you mean sub/my.txt?"
    )


def test_another_text_than_that_of_the_recipe_names_the_way_out(wrong, text, tmp_path):
    (tmp_path / "r.toml").write_text('[data]\npath = "my.txt"\nsha256 = "abc"\n')
    assert wrong("train", "r.toml").endswith("bring that one back, or train anew on this one: harken train my.txt")


def test_an_empty_stdin_is_named(wrong):
    assert wrong("train", "-", stdin=b"") == "stdin: there is nothing in it; give it a text: harken train - < my.txt"


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["generate", "score", "eval"])
def test_a_run_that_is_not_there(wrong, verb):
    extra = ("x",) if verb != "eval" else ()
    assert wrong(verb, "runs/x", *extra) == "runs/x: there is no such folder; harken runs lists those that are there"


def test_a_folder_that_is_no_run(wrong, tmp_path):
    (tmp_path / "stuff").mkdir()
    assert wrong("generate", "stuff", "x") == (
        "stuff: this is no run folder (it has no harken.json); harken runs lists those that are there"
    )


def test_a_run_that_is_not_finished_says_how_to_go_on(wrong, run, tmp_path):
    shutil.copytree(run, tmp_path / "half")
    (tmp_path / "half" / "harken.json").unlink()
    assert wrong("generate", "half", "x", code=1) == (
        "half: this run is not finished; go on with: harken train half --resume"
    )


def test_a_trial_that_is_not_finished_says_how_its_comparison_goes_on(wrong, harken, run, tmp_path):
    trial = tmp_path / "runs" / "x-compare" / "model.heads=1-seed=0"
    shutil.copytree(run, trial)
    (trial / "harken.json").unlink()
    (trial.parent / "compare.json").write_text("{}")
    hint = "go on with: harken compare runs/x-compare --resume"
    place = "runs/x-compare/model.heads=1-seed=0"
    assert wrong("generate", place, "x", code=1) == f"{place}: this run is not finished; {hint}"
    for verb in ("runs", "cost"):
        assert hint in harken(verb).out


def test_a_file_of_data_is_nothing_to_import(wrong, text):
    output = wrong("import", text)
    assert output.startswith("my.txt: is a file, and no .gguf one; accepted are a folder, a .gguf file, ")
    assert output.endswith("; of data, make a run with: harken train my.txt")


def test_a_model_of_other_data_is_told_apart_from_a_word_that_is_none(wrong, tmp_path):
    (tmp_path / "p.tsv").write_text("".join(f"a cat {n} sat\tun chat {n} dort\n" for n in range(30)))
    of_pairs = ", ".join(registry.kind_names("model", " of pairs"))
    assert wrong("compare", "p.tsv", "--models", "rnn,gpt") == (
        f"model.kind = 'gpt' is a kind of model, but none of pairs; accepted: {of_pairs}"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("transfer=frozn", "transfer = 'frozn': accepted: finetune, frozen, scratch, 4-shot. Did you mean frozen?"),
        ("from=runs/x", "runs/x: there is no such folder; harken runs lists those that are there"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_a_beginning_that_is_none_is_refused_before_torch_is_there(wrong, monkeypatch, text, verb, given, said):
    for name in (
        "harken.experiments.train",
        "harken.experiments.compare.comparison",
        "harken.experiments.compare.summary",
    ):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it would fail
    assert wrong(verb, text, given) == said


def test_a_run_that_was_tampered_with_names_the_file(wrong, run, tmp_path):
    shutil.copytree(run, tmp_path / "odd")
    with (tmp_path / "odd" / "model.safetensors").open("ab") as file:
        file.write(b"!")
    assert wrong("generate", "odd", "x", code=1) == (
        "odd/model.safetensors: is not the file this run was finished with; take it from a copy, or train again"
    )


def test_a_run_with_half_a_harken_json_names_the_way_out(wrong, run, tmp_path):
    shutil.copytree(run, tmp_path / "odd")
    (tmp_path / "odd" / "harken.json").write_text("{")
    output = wrong("generate", "odd", "x", code=1)
    assert output.startswith("odd/harken.json: cannot be read as JSON (")
    assert output.endswith("); take it from a copy, or train again")


def test_a_run_is_not_taken_for_data(wrong, run, tmp_path):
    shutil.copytree(run, tmp_path / "mine")
    assert wrong("train", "mine") == (
        "mine: this is a run, not data; go on with: harken train mine --resume; "
        "or repeat it with: harken train mine/recipe.toml"
    )


def test_a_run_that_has_lost_its_recipe_is_not_sent_in_a_circle(wrong, run, tmp_path):
    shutil.copytree(run, tmp_path / "mine")
    (tmp_path / "mine" / "recipe.toml").unlink()
    output = "mine: this is a run without its recipe.toml; take it from a copy, or train again"
    assert wrong("train", "mine", "--resume") == wrong("train", "mine") == output


def test_a_folder_that_was_left_before_the_first_step_is_not_taken_for_data(wrong, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".lock").write_text("")
    assert wrong("train", "mine", "--resume") == (
        "mine: a training that ended before its first step; begin it again with its data"
    )


def test_an_out_folder_that_is_not_empty(wrong, text, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes").write_text("mine")
    for option in ("--resume", "--force"):
        assert wrong("train", text, "--out", "taken", option) == (
            "taken: is not empty and no run folder (it has no recipe.toml); take another folder"
        )
    (tmp_path / "taken" / "recipe.toml").write_text("")
    assert wrong("train", text, "--out", "taken") == (
        "taken: is not empty; resume the run there (--resume), force to write over it (--force), "
        "or take another folder (--out)"
    )


def test_an_out_folder_that_is_a_file(wrong, text):
    assert wrong("train", text, "--out", text) == "my.txt: there is a file of this name; take another folder"


def test_a_run_goes_on_in_its_own_folder(wrong, run):
    assert wrong("train", run, "--resume", "--out", "other") == (
        f"{run}: a run goes on in its own folder, not in other; leave out away"
    )


def test_a_folder_of_runs_that_is_not_there(wrong, tmp_path):
    (tmp_path / "runs").mkdir()
    assert wrong("runs", "nope") == "nope: there is no such folder; check the name"
    assert wrong("runs", "rus") == "rus: there is no such folder; check the name. Did you mean runs?"


def test_a_file_is_no_folder_of_runs(wrong, text):
    assert wrong("runs", text) == "my.txt: this is a file; a folder with runs in it, or a run, is accepted"


def test_a_resumed_run_keeps_its_settings(wrong, run):
    assert wrong("train", run, "train.steps=9", "--resume") == (
        f"{run}: a run is resumed with the recipe it has; train.steps cannot be changed now"
    )


# --- what nobody foresaw ----------------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch):
    from harken.inference import run as model

    def load(path):
        raise RuntimeError("the wheels came off\nand rolled away")

    monkeypatch.setattr(model, "load", load)


def test_an_unforeseen_error_is_one_line_too(wrong, broken):
    assert wrong("score", "runs/x", "Tom", code=1) == "RuntimeError: the wheels came off; HARKEN_DEBUG=1 shows where"


def test_ctrl_c_is_no_traceback(harken, monkeypatch):
    from harken.inference import run as model

    monkeypatch.setattr(model, "load", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
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


def test_the_errors_a_program_may_catch_have_names_in_the_package():
    assert issubclass(package.BadInput, package.HarkenError)
    assert issubclass(package.BadSetting, ValueError)


def test_json_leaves_stdout_empty_when_something_is_wrong(harken):
    for verb in COMMANDS:
        thing = ("nothing",) if verb not in ("runs", "demo") else ("--zzz",)
        output = harken(verb, *thing, *(("x",) if verb == "score" else ()), "--json")
        assert (output.code, output.out) == (2, ""), verb
