"""harken translate, and the other commands on a run of pairs."""

import json
import os
import shlex
import subprocess
import sys

import pytest

NULL = "null  (the text is empty)"
TEXTS = ["she saw the red cat.", "Tom lost the dog."]


@pytest.fixture
def stdout_of(harken):
    def call(*args: object, stdin: bytes | None = None) -> str:
        output = harken(*args, stdin=stdin)
        assert (output.code, output.err) == (0, ""), output
        return output.out

    return call


@pytest.fixture
def json_of(stdout_of):
    return lambda *args, stdin=None: json.loads(stdout_of(*args, "--json", stdin=stdin))


@pytest.fixture(scope="module")
def targets(pair_folder) -> list[str]:
    """The translations by the Python API."""
    import harken

    return harken.load(pair_folder).translate(TEXTS)


# --- input and output -------------------------------------------------------------------------------------------------


def test_each_argument_is_a_source_with_one_output_line(stdout_of, pair_folder, targets):
    lines = stdout_of("translate", pair_folder, *TEXTS).splitlines()
    assert lines == [f"{text} -> {target}" for text, target in zip(TEXTS, targets, strict=True)]
    assert stdout_of("translate", pair_folder, TEXTS[0]) == f"{targets[0]}\n"


@pytest.mark.parametrize("dash", [["-"], []])
def test_each_line_of_stdin_has_one_output_line_including_empty_and_unterminated_lines(
    stdout_of, pair_folder, targets, dash
):
    stdin_bytes = f"\ufeff{TEXTS[0]}\r\n\n{TEXTS[1]}".encode()
    assert stdout_of("translate", pair_folder, *dash, stdin=stdin_bytes).split("\n") == [
        targets[0],
        NULL,
        targets[1],
        "",
    ]


def test_more_lines_than_one_batch_keep_their_order(stdout_of, pair_folder, targets):
    from harken.cli.translate import BATCH_SIZE

    sources = [TEXTS[n % 3 == 0] for n in range(BATCH_SIZE + 3)]
    lines = stdout_of("translate", pair_folder, "-", stdin="\n".join(sources).encode()).splitlines()
    assert lines == [targets[n % 3 == 0] for n in range(BATCH_SIZE + 3)]


def test_json_has_text_score_and_source_of_each(json_of, pair_folder, targets):
    actual = json_of("translate", pair_folder, *TEXTS)
    assert actual.keys() == {"translations"}
    assert [translation["text"] for translation in actual["translations"]] == targets
    assert [translation["source"] for translation in actual["translations"]] == TEXTS
    assert all(
        translation.keys() == {"source", "text", "score"} and translation["score"] < 0
        for translation in actual["translations"]
    )


def test_json_of_an_explicit_empty_stdin_has_no_translations(json_of, pair_folder):
    assert json_of("translate", pair_folder, "-", stdin=b"") == {"translations": []}


def test_json_with_alternatives_has_them_best_first(json_of, pair_folder, targets):
    (translation,) = json_of("translate", pair_folder, TEXTS[0], "--alternatives", 5)["translations"]
    scores = [candidate["score"] for candidate in translation["alternatives"]]
    assert (len(scores), scores) == (5, sorted(scores, reverse=True))
    assert translation["alternatives"][0] == {"text": translation["text"], "score": translation["score"]}


def test_alternatives_are_lines_for_an_argument_and_columns_for_stdin(stdout_of, pair_folder):
    lines = stdout_of("translate", pair_folder, TEXTS[0], "--alternatives", 3).splitlines()
    assert len(lines) == 3
    assert all(float(line.split()[0]) < 0 for line in lines)
    stdin_bytes = f"{TEXTS[0]}\n\n".encode()
    assert (
        stdout_of("translate", pair_folder, "--alternatives", 3, stdin=stdin_bytes) == "\t".join(lines) + f"\n{NULL}\n"
    )


def test_search_options_are_passed_on(json_of, pair_folder):
    import harken

    run = harken.load(pair_folder)
    search = {"beam": 3, "length_penalty": 0.0, "no_repeat": 1, "max_new_tokens": 4}
    options = [word for name, value in search.items() for word in (f"--{name.replace('_', '-')}", value)]
    (translation,) = json_of("translate", pair_folder, TEXTS[0], *options)["translations"]
    ((best,),) = run.alternatives([TEXTS[0]], **search)
    assert {"source": TEXTS[0], **best} == translation
    assert best["text"] != run.translate(TEXTS[0])


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_weights_of_lower_precision_translate(json_of, pair_folder, precision, monkeypatch):
    monkeypatch.setattr("harken.inference.prepare.MIN_WEIGHTS", 0)
    (translation,) = json_of("translate", pair_folder, TEXTS[0], "--precision", precision)["translations"]
    (plain,) = json_of("translate", pair_folder, TEXTS[0])["translations"]
    assert translation["score"] != plain["score"]
    assert translation["score"] == pytest.approx(plain["score"], abs=0.05)


def test_a_file_is_translated_into_another(stdout_of, json_of, pair_folder, tmp_path, targets):
    (tmp_path / "ask.csv").write_text("id,text\n" + "".join(f'1,"{text}"\n' for text in [*TEXTS, ""]))
    assert stdout_of("translate", pair_folder, "--in", "ask.csv", "--out", "a.jsonl") == (
        "2 answers and 1 row without one in a.jsonl (predicted_text: the file has text)\n"
    )
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [answer["text"] for answer in answers] == [*TEXTS, ""]
    assert [answer["predicted_text"] for answer in answers] == [*targets, None]
    assert [(answer["line"], answer.get("reason")) for answer in answers][1:] == [(3, None), (4, "the text is empty")]
    expected = {"answers": 3, "unanswered": 1, "out": "b.jsonl", "columns": {"text": "predicted_text"}}
    assert json_of("translate", pair_folder, "--in", "ask.csv", "--out", "b.jsonl") == expected


def test_an_output_line_has_the_columns_of_its_row_and_the_source_column_is_detected(
    stdout_of, pair_folder, tmp_path, targets
):
    (tmp_path / "ask.csv").write_text("id,source,target\n" + "".join(f'7,"{text}",x\n' for text in TEXTS))
    (tmp_path / "ask.jsonl").write_text("".join(json.dumps({"target": "x", "source": text}) + "\n" for text in TEXTS))
    for name in ("ask.csv", "ask.jsonl"):
        stdout_of("translate", pair_folder, "--in", name, "--out", f"{name}.out.jsonl")
        answers = [json.loads(line) for line in (tmp_path / f"{name}.out.jsonl").read_text().splitlines()]
        assert [(answer["source"], answer["text"]) for answer in answers] == list(zip(TEXTS, targets, strict=True))
        assert all(answer.keys() - {"id"} == {"source", "target", "text", "score", "line"} for answer in answers)


def test_unknown_columns_are_refused(harken, pair_folder, tmp_path):
    (tmp_path / "ask.csv").write_text("id,words\n1,she saw the cat.\n")
    output = harken("translate", pair_folder, "--in", "ask.csv", "--out", "a.jsonl")
    hint = "the columns are id, words; choose one with --column, or rename a column to source, text or prompt"
    assert (output.code, output.err) == (2, f"harken: ask.csv: {hint}\n")


@pytest.mark.parametrize("header", ["", "source\ttarget\n", "English\tFrench\n"])
def test_only_the_sources_of_a_tsv_are_translated(harken, pair_folder, tmp_path, targets, header):
    (tmp_path / "ask.tsv").write_text(header + "".join(f"{text}\tun texte {n}.\n" for n, text in enumerate(TEXTS)))
    where = ["--column", "English"] if header.startswith("E") else []
    output = harken("translate", pair_folder, "--in", "ask.tsv", "--out", "a.jsonl", *where)
    assert (output.code, output.err) == (0, "")
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    sources = [next(iter(answer.values())) for answer in answers]
    assert list(zip(sources, (answer["text"] for answer in answers), strict=True)) == list(
        zip(TEXTS, targets, strict=True)
    )


def test_a_tab_in_a_source_is_reported_once(harken, pair_folder):
    output = harken("translate", pair_folder, "-", stdin=b"a\tb\nc\td\n")
    assert output.code == 0
    assert (
        output.err.count(
            "a tab is part of the source; to translate a column of a table: --in FILE --column NAME --out FILE"
        )
        == 1
    )


def test_targets_start_with_the_prefix(json_of, harken, pair_folder):
    actual = json_of("translate", pair_folder, *TEXTS, "--prefix", "il a", "--beam", 2)["translations"]
    assert all(translation["text"].startswith("il a ") for translation in actual)
    output = harken("translate", pair_folder, TEXTS[0], "--prefix", "zeppelin")
    hint = "'zeppelin' is not in this run's vocabulary; use known words"
    assert (output.code, output.err) == (2, f"harken: prefix='zeppelin': {hint}\n")


def test_equal_lines_have_independent_samples(stdout_of, json_of, pair_folder, tmp_path):
    from harken.cli.translate import BATCH_SIZE

    stdin_bytes, options = (f"{TEXTS[0]}\n" * (2 * BATCH_SIZE)).encode(), ["--temperature", 3.0]
    lines = stdout_of("translate", pair_folder, "-", *options, stdin=stdin_bytes).splitlines()
    assert lines[:BATCH_SIZE] != lines[BATCH_SIZE:]
    (tmp_path / "ask.txt").write_bytes(b"\n" + stdin_bytes)
    stdout_of("translate", pair_folder, "--in", "ask.txt", "--out", "a.jsonl", *options)
    answers = [json.loads(line)["text"] for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert answers[1 : 2 * BATCH_SIZE] == lines[1:]  # an empty line counts as one


def test_a_file_with_a_bad_line_is_refused_before_the_first_prediction(harken, pair_folder, tmp_path):
    (tmp_path / "ask.jsonl").write_text('"good"\n{}\n')
    output = harken("translate", pair_folder, "--in", "ask.jsonl", "--out", "a.jsonl")
    assert (output.code, output.err) == (
        2,
        "harken: ask.jsonl:2: expected a JSON string, or an object with a key source, text or prompt\n",
    )
    assert not (tmp_path / "a.jsonl").exists()


def test_unknown_words_are_reported_on_stderr(harken, pair_folder):
    output = harken("translate", pair_folder, "Tom saw the zeppelin.", "--json")
    assert output.err == "unknown to this run and read as <unk>: 'zeppelin'\n"
    assert json.loads(output.out)["translations"][0]["text"]


@pytest.mark.process
def test_a_line_is_answered_before_the_next_one_arrives(pair_folder, targets):
    command = [sys.executable, "-m", "harken", "translate", str(pair_folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as child:
        for text, target in zip(TEXTS, targets, strict=True):
            child.stdin.write(f"{text}\n{text[:4]}".encode())  # the next line has started
            child.stdin.flush()
            assert child.stdout.readline().decode() == f"{target}\n"
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
        child.stdin.close()
        assert child.wait() == 0


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "translate: give a text, or - to read texts from stdin, one per line; see harken translate --help"),
        (["a", "--beam", 2, "--alternatives", 3], "alternatives=3: must be ≤ beam=2; increase the beam"),
        (["a", "--out", "b"], "translate: --out has no effect without --in; see harken translate --help"),
        (["a", "--column", "b"], "translate: --column has no effect without --in; see harken translate --help"),
        (["a", "--in", "b", "--out", "c"], "translate: [TEXT...] has no effect with --in; see harken translate --help"),
    ],
)
def test_incompatible_arguments_are_refused_in_one_line(harken, pair_folder, args, message):
    assert (answer := harken("translate", pair_folder, *args)).code == 2
    assert answer.err == f"harken: {message}\n"


def test_an_empty_pipe_is_refused(harken, pair_folder):
    output = harken("translate", pair_folder, stdin=b"")
    assert (output.code, output.out) == (2, "")
    assert "no text is given and stdin is empty" in output.err


def test_translate_refuses_a_language_model_before_reading_stdin(harken, run):
    output = harken("translate", run, "-", stdin=b"")
    assert (output.code, output.err) == (
        2,
        f"harken: {run}: this run generates text; use harken generate, in Python run.generate\n",
    )


@pytest.mark.parametrize(
    "verb",
    [["generate", "RUN", "a"], ["generate", "RUN", "a", "--next", 3], ["score", "RUN", "a b"], ["score", "RUN", "-"]],
)
def test_commands_of_language_models_suggest_translate(harken, pair_folder, verb):
    output = harken(*(pair_folder if word == "RUN" else word for word in verb), stdin=b"a line\n")
    assert (output.code, output.out) == (2, "")
    use = "use harken translate, in Python run.translate"
    assert output.err == f"harken: {pair_folder}: this run translates; {use}\n"


# --- other commands ---------------------------------------------------------------------------------------------------


def test_a_run_of_pairs_is_evaluated_on_other_pairs(harken, pair_folder, tmp_path):
    (tmp_path / "other.tsv").write_text("".join(f"{text}\tun texte {n}.\n" for n, text in enumerate(TEXTS)))
    output = harken("eval", pair_folder, "other.tsv", "--json")
    assert output.err.startswith("other.tsv: 2 of 2 examples are also in the training split; ")
    actual = json.loads(output.out)
    assert (actual["split"], actual["examples"]) == ("other data", 2)
    assert actual["metrics"]["exact_match"] == 0
    assert "loss" not in actual["baseline"]["copy of the source"]


def test_labeled_texts_are_evaluated_as_pairs_with_a_notice(harken, pair_folder, tmp_path):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(f"{TEXTS[n % 2]} {n},{n % 2}\n" for n in range(40)))
    output = harken("eval", pair_folder, "reviews.csv", "--json")
    assert output.code == 0
    start, columns = "reviews.csv: looks like labelled texts (", "source and target are columns 1 and 2"
    assert output.err.startswith(start)
    assert f"); {columns} (data.source, data.target)\n" in output.err


def test_runs_shows_bleu_for_pairs(stdout_of, pair_folder):
    assert "  bleu " in stdout_of("runs", pair_folder)


def test_check_counts_the_tokens_of_both_sides(harken, pair_file):
    actual = json.loads(harken("check", pair_file, "data.tokenizer=word", "model.size=tiny", "--json").out)
    assert (actual["kind"], actual["recipe"]["model.kind"]) == ("pairs", "transformer")
    assert 2 * 1000 < actual["estimate"]["tokens"] < 2 * 2000  # about 215 pairs of 6 tokens on a side


def test_a_training_prints_bleu_at_each_validation_and_the_next_command(stdout_of, harken, pair_file):
    tiny = ["model.d=16", "model.layers=1", "model.heads=2", "train.steps=2", "train.eval_every=1", "task.eval_pairs=5"]
    lines = harken("train", pair_file, "data.tokenizer=word", *tiny).out.splitlines()
    step_lines = [line for line in lines if line.startswith("  step ")]
    assert len(step_lines) == 2
    assert all("   valid " in line and ", bleu " in line and "(fast validation)" in line for line in step_lines)
    assert lines[-1].startswith("  next    harken translate runs/pairs '")
    assert stdout_of(*shlex.split(lines[-1])[2:]).endswith("\n")
