"""harken translate, and what the other verbs say of a run of pairs."""

import json
import os
import shlex
import subprocess
import sys

import pytest

TEXTS = ["she saw the red cat.", "Tom lost the dog."]


@pytest.fixture
def told(harken):
    def call(*args: object, stdin: bytes | None = None) -> str:
        output = harken(*args, stdin=stdin)
        assert (output.code, output.err) == (0, ""), output
        return output.out

    return call


@pytest.fixture
def asked(told):
    return lambda *args, stdin=None: json.loads(told(*args, "--json", stdin=stdin))


@pytest.fixture(scope="module")
def targets(pair_folder) -> list[str]:
    """What Python gives for the same texts."""
    import harken

    return harken.load(pair_folder).translate(TEXTS)


# --- in and out -------------------------------------------------------------------------------------------------------


def test_each_argument_is_a_source_and_has_a_line(told, pair_folder, targets):
    assert told("translate", pair_folder, *TEXTS).splitlines() == targets


@pytest.mark.parametrize("dash", [["-"], []])
def test_each_line_of_stdin_has_a_line_empty_ones_and_a_last_one_without_an_end_too(told, pair_folder, targets, dash):
    typed = f"\ufeff{TEXTS[0]}\r\n\n{TEXTS[1]}".encode()
    assert told("translate", pair_folder, *dash, stdin=typed).split("\n") == [targets[0], "", targets[1], ""]


def test_more_lines_than_are_translated_together_keep_their_order(told, pair_folder, targets):
    from harken.cli.translate import BATCH_SIZE

    many = [TEXTS[n % 3 == 0] for n in range(BATCH_SIZE + 3)]
    lines = told("translate", pair_folder, "-", stdin="\n".join(many).encode()).splitlines()
    assert lines == [targets[n % 3 == 0] for n in range(BATCH_SIZE + 3)]


def test_json_has_text_score_and_source_of_each(asked, pair_folder, targets):
    actual = asked("translate", pair_folder, *TEXTS)
    assert actual.keys() == {"translations"}
    assert [one["text"] for one in actual["translations"]] == targets
    assert [one["source"] for one in actual["translations"]] == TEXTS
    assert all(one.keys() == {"source", "text", "score"} and one["score"] < 0 for one in actual["translations"])


def test_json_of_an_empty_stdin_that_was_asked_for_has_no_translations(asked, pair_folder):
    assert asked("translate", pair_folder, "-", stdin=b"") == {"translations": []}


def test_json_with_alternatives_has_them_best_first(asked, pair_folder, targets):
    (one,) = asked("translate", pair_folder, TEXTS[0], "--alternatives", 5)["translations"]
    scores = [other["score"] for other in one["alternatives"]]
    assert (len(scores), scores) == (5, sorted(scores, reverse=True))
    assert one["alternatives"][0] == {"text": one["text"], "score": one["score"]}


def test_alternatives_of_an_argument_are_lines_and_of_a_line_of_stdin_columns(told, pair_folder):
    lines = told("translate", pair_folder, TEXTS[0], "--alternatives", 3).splitlines()
    assert len(lines) == 3
    assert all(float(line.split()[0]) < 0 for line in lines)
    typed = f"{TEXTS[0]}\n\n".encode()
    assert told("translate", pair_folder, "--alternatives", 3, stdin=typed) == "\t".join(lines) + "\n\n"


def test_the_options_of_the_search_reach_it(asked, pair_folder):
    import harken

    run = harken.load(pair_folder)
    how = {"beam": 3, "length_penalty": 0.0, "no_repeat": 1, "max_new_tokens": 4}
    options = [word for name, value in how.items() for word in (f"--{name.replace('_', '-')}", value)]
    (one,) = asked("translate", pair_folder, TEXTS[0], *options)["translations"]
    ((best,),) = run.alternatives([TEXTS[0]], **how)
    assert {"source": TEXTS[0], **best} == one
    assert best["text"] != run.translate(TEXTS[0])


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_lighter_weights_translate_too(asked, pair_folder, precision):
    (one,) = asked("translate", pair_folder, TEXTS[0], "--precision", precision)["translations"]
    (plain,) = asked("translate", pair_folder, TEXTS[0])["translations"]
    assert one["score"] != plain["score"]
    assert one["score"] == pytest.approx(plain["score"], abs=0.05)


def test_a_file_is_worked_through_into_another(told, asked, pair_folder, tmp_path, targets):
    (tmp_path / "ask.csv").write_text("id,text\n" + "".join(f'1,"{text}"\n' for text in [*TEXTS, ""]))
    assert told("translate", pair_folder, "--in", "ask.csv", "--out", "a.jsonl") == "3 answers in a.jsonl\n"
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [answer["input"] for answer in answers] == [*TEXTS, ""]
    assert [answer["text"] for answer in answers] == [*targets, ""]
    assert asked("translate", pair_folder, "--in", "ask.csv", "--out", "b.jsonl") == {"answers": 3, "out": "b.jsonl"}


def test_a_line_of_the_answers_has_its_text_once_and_the_column_source_is_found(told, pair_folder, tmp_path, targets):
    (tmp_path / "ask.csv").write_text("id,source,target\n" + "".join(f'7,"{text}",x\n' for text in TEXTS))
    (tmp_path / "ask.jsonl").write_text("".join(json.dumps({"target": "x", "source": text}) + "\n" for text in TEXTS))
    for name in ("ask.csv", "ask.jsonl"):
        told("translate", pair_folder, "--in", name, "--out", f"{name}.out")
        answers = [json.loads(line) for line in (tmp_path / f"{name}.out").read_text().splitlines()]
        assert [(answer["input"], answer["text"]) for answer in answers] == list(zip(TEXTS, targets, strict=True))
        assert all(answer.keys() == {"input", "text", "score"} for answer in answers)


def test_columns_that_are_not_known_are_refused(harken, pair_folder, tmp_path):
    (tmp_path / "ask.csv").write_text("id,words\n1,she saw the cat.\n")
    output = harken("translate", pair_folder, "--in", "ask.csv", "--out", "a.jsonl")
    hint = "its columns are id, words; say which with --column, or give one the name source, text or prompt"
    assert (output.code, output.err) == (2, f"harken: ask.csv: {hint}\n")


@pytest.mark.parametrize("header", ["", "source\ttarget\n", "English\tFrench\n"])
def test_of_a_table_split_at_tabs_only_the_sources_are_translated(harken, pair_folder, tmp_path, targets, header):
    (tmp_path / "ask.tsv").write_text(header + "".join(f"{text}\tun texte {n}.\n" for n, text in enumerate(TEXTS)))
    where = ["--column", "English"] if header.startswith("E") else []
    output = harken("translate", pair_folder, "--in", "ask.tsv", "--out", "a.jsonl", *where)
    assert (output.code, output.err) == (0, "")
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(answer["input"], answer["text"]) for answer in answers] == list(zip(TEXTS, targets, strict=True))


def test_a_tab_in_a_source_is_told_once(harken, pair_folder):
    output = harken("translate", pair_folder, "-", stdin=b"a\tb\nc\td\n")
    assert output.code == 0
    assert output.err.count("a tab is part of the source here; of a table, translate a column: --in FILE") == 1


def test_targets_begin_with_a_prefix(asked, harken, pair_folder):
    actual = asked("translate", pair_folder, *TEXTS, "--prefix", "il a", "--beam", 2)["translations"]
    assert all(one["text"].startswith("il a ") for one in actual)
    output = harken("translate", pair_folder, TEXTS[0], "--prefix", "zeppelin")
    hint = "this run cannot write 'zeppelin'; begin with words that it knows"
    assert (output.code, output.err) == (2, f"harken: prefix='zeppelin': {hint}\n")


def test_the_same_line_draws_anew_wherever_it_stands(told, asked, pair_folder, tmp_path):
    from harken.cli.translate import BATCH_SIZE

    typed, how = (f"{TEXTS[0]}\n" * (2 * BATCH_SIZE)).encode(), ["--temperature", 3.0]
    lines = told("translate", pair_folder, "-", *how, stdin=typed).splitlines()
    assert lines[:BATCH_SIZE] != lines[BATCH_SIZE:]
    (tmp_path / "ask.txt").write_bytes(b"\n" + typed)
    told("translate", pair_folder, "--in", "ask.txt", "--out", "a.jsonl", *how)
    answers = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert answers[1 : 2 * BATCH_SIZE] == lines[1:]  # an empty line has its place too


def test_a_file_with_a_bad_line_is_refused_before_the_first_answer(harken, pair_folder, tmp_path):
    (tmp_path / "ask.jsonl").write_text('"good"\n{}\n')
    output = harken("translate", pair_folder, "--in", "ask.jsonl", "--out", "a.jsonl")
    assert (output.code, output.err) == (2, "harken: ask.jsonl:2: is no JSON object with a key source, text or prompt\n")
    assert not (tmp_path / "a.jsonl").exists()


def test_what_is_unknown_to_the_run_is_told_on_stderr(harken, pair_folder):
    output = harken("translate", pair_folder, "Tom saw the zeppelin.", "--json")
    assert output.err == "unknown to this run, and read as <unk>: 'zeppelin'\n"
    assert json.loads(output.out)["translations"][0]["text"]


@pytest.mark.process
def test_a_line_is_answered_before_the_next_one_comes(pair_folder, targets):
    command = [sys.executable, "-m", "harken", "translate", str(pair_folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        for text, target in zip(TEXTS, targets, strict=True):
            child.stdin.write(f"{text}\n{text[:4]}".encode())  # the next line has begun
            child.stdin.flush()
            assert child.stdout.readline().decode() == f"{target}\n"
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
        child.stdin.close()
        assert child.wait() == 0


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "translate: give a text, or - to read texts from stdin, one a line; see harken translate --help"),
        (["a", "--beam", 2, "--alternatives", 3], "alternatives=3: a beam of 2 holds no more; take a larger beam"),
        (["a", "--out", "b"], "translate: without --in, --out means nothing; see harken translate --help"),
        (["a", "--column", "b"], "translate: without --in, --column means nothing; see harken translate --help"),
        (
            ["a", "--in", "b", "--out", "c"],
            "translate: with --in, [TEXT...] means nothing; see harken translate --help",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused_in_one_line(harken, pair_folder, args, said):
    assert (answer := harken("translate", pair_folder, *args)).code == 2
    assert answer.err == f"harken: {said}\n"


def test_an_empty_pipe_is_refused(harken, pair_folder):
    output = harken("translate", pair_folder, stdin=b"")
    assert (output.code, output.out) == (2, "")
    assert "no text is given, and stdin is empty" in output.err


def test_a_language_model_translates_nothing_even_if_nothing_is_asked(harken, run):
    output = harken("translate", run, "-", stdin=b"")
    assert (output.code, output.err) == (
        2,
        f"harken: {run}: this run writes text; use harken generate, in Python run.generate\n",
    )


@pytest.mark.parametrize(
    "verb",
    [["generate", "RUN", "a"], ["generate", "RUN", "a", "--next", 3], ["score", "RUN", "a b"], ["score", "RUN", "-"]],
)
def test_verbs_of_language_models_name_the_verb_of_pairs(harken, pair_folder, verb):
    output = harken(*(pair_folder if word == "RUN" else word for word in verb), stdin=b"a line\n")
    assert (output.code, output.out) == (2, "")
    use = "use harken translate, in Python run.translate"
    assert output.err == f"harken: {pair_folder}: this run translates; {use}\n"


# --- the other verbs --------------------------------------------------------------------------------------------------


def test_a_run_of_pairs_is_judged_on_other_pairs(asked, pair_folder, tmp_path):
    (tmp_path / "other.tsv").write_text("".join(f"{text}\tun texte {n}.\n" for n, text in enumerate(TEXTS)))
    actual = asked("eval", pair_folder, "other.tsv")
    assert (actual["split"], actual["examples"]) == ("other data", 2)
    assert actual["metrics"]["exact_match"] == 0
    assert "loss" not in actual["baseline"]["copy of the source"]


def test_texts_with_labels_are_judged_as_pairs_only_with_a_word(harken, pair_folder, tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(f"{TEXTS[n % 2]} {n},{n % 2}\n" for n in range(40)))
    output = harken("eval", pair_folder, "reviews.csv", "--json")
    assert output.code == 0
    looks, taken = "reviews.csv: looks like texts with labels (", "source and target are read from columns 1 and 2"
    assert output.err.startswith(looks)
    assert f"); {taken} (data.source, data.target)\n" in output.err


def test_runs_shows_the_metric_that_pairs_are_judged_by(told, pair_folder):
    assert "  bleu " in told("runs", pair_folder)


def test_check_counts_the_tokens_of_both_sides(harken, pair_file):
    actual = json.loads(harken("check", pair_file, "data.tokenizer=word", "model.size=tiny", "--json").out)
    assert (actual["kind"], actual["recipe"]["model.kind"]) == ("pairs", "transformer")
    assert 2 * 1000 < actual["estimate"]["tokens"] < 2 * 2000  # about 215 pairs of 6 tokens on a side


def test_a_training_tells_bleu_at_its_looks_and_how_to_translate_next(told, harken, pair_file):
    tiny = ["model.d=16", "model.layers=1", "model.heads=2", "train.steps=2", "train.eval_every=1", "task.eval_pairs=5"]
    lines = harken("train", pair_file, "data.tokenizer=word", *tiny).out.splitlines()
    looks = [line for line in lines if line.startswith("  step ")]
    assert len(looks) == 2
    assert all("   valid " in line and ", bleu " in line and "(quick look)" in line for line in looks)
    assert lines[-1].startswith("  next    harken translate runs/pairs '")
    assert told(*shlex.split(lines[-1])[2:]).endswith("\n")
