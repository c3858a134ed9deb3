"""--in FILE --out FILE: one prediction for each text of a file, in order."""

import csv
import io
import json

import openpyxl
import pytest
from click import Context

from harken.cli.inputs import Inputs, refuse_file_names
from harken.cli.score import score
from harken.errors import BadInput


def inputs_read(tmp_path, name: str, content: str, *, column: str | None = None, **options: object) -> list[str]:
    source, out = tmp_path / name, tmp_path / "answers.jsonl"
    source.write_text(content, "utf-8")
    with Context(score):
        inputs = Inputs((), in_=str(source), out_=str(out), column=column)
    texts = [text for batch in inputs.batches(2, **options) for text in batch]
    inputs.write(({"length": len(text), "place": n} for n, text in enumerate(texts)), (), json_=False)
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    out.unlink()
    assert len(answers) == inputs.total == len(texts)
    assert [answer["length"] for answer in answers] == list(map(len, texts))
    assert [answer["place"] for answer in answers] == list(range(inputs.total))
    assert all(text in row.values() for text, row in zip(texts, answers, strict=True))
    return texts


def test_plain_lines_keep_their_order_including_empty_lines(tmp_path):
    assert inputs_read(tmp_path, "a.txt", "one\n\nthree\r\n") == ["one", "", "three"]


def test_the_text_column_of_a_csv_is_unquoted(tmp_path):
    assert inputs_read(tmp_path, "a.csv", 'id,text\n1,"He said ""hi"", twice"\n2,b\n') == ['He said "hi", twice', "b"]


def test_a_single_csv_column_may_have_any_name_and_several_need_a_choice(tmp_path):
    assert inputs_read(tmp_path, "a.csv", "what\nx\ny\n") == ["x", "y"]
    hint = "choose one with --column, or rename a column to text or prompt"
    with pytest.raises(BadInput, match=rf"a\.csv: the columns are what, other; {hint}$"):
        inputs_read(tmp_path, "a.csv", "what,other\nx,y\n")


@pytest.mark.parametrize(("column", "texts"), [("other", ["y"]), ("2", ["y"]), ("what", ["x"])])
def test_a_column_is_chosen_by_name_or_number(tmp_path, column, texts):
    assert inputs_read(tmp_path, "a.csv", "what,other\nx,y\n", column=column) == texts
    assert inputs_read(tmp_path, "a.tsv", "what\tother\ntext\tname\nx\ty\n", column=column)[-1:] == texts


@pytest.mark.parametrize("column", ["text", "3", "0"])
def test_a_missing_column_is_refused(tmp_path, column):
    with pytest.raises(BadInput, match=r"a\.csv: the columns are prompt, other; choose one with --column$"):
        inputs_read(tmp_path, "a.csv", "prompt,other\nx,y\n", column=column)


def test_a_short_row_is_reported_with_its_line(tmp_path):
    with pytest.raises(BadInput, match=r"a\.csv:3: only 1 column; every row needs 2 columns, .*; fix the row$"):
        inputs_read(tmp_path, "a.csv", "id,text\n1,x\n2\n")


def test_a_tsv_is_read_by_its_header_and_its_quotes_are_literal(tmp_path):
    assert inputs_read(tmp_path, "a.tsv", 'id\ttext\n1\t"Hi" there\n\n2\tb\n') == ['"Hi" there', "", "b"]


def test_without_a_header_the_training_column_number_is_used(tmp_path):
    rows = "".join(f"a cat {n}\tun chat {n}\n" for n in range(9))
    assert inputs_read(tmp_path, "a.tsv", rows, columns=("text", 2))[:2] == ["un chat 0", "un chat 1"]
    hint = "choose one with --column, or add a header that names one text or prompt"
    with pytest.raises(BadInput, match=rf"a\.tsv: it has 2 columns and no header; {hint}$"):
        inputs_read(tmp_path, "a.tsv", rows)
    with pytest.raises(BadInput, match=r"a\.tsv: the columns are English, French; choose one with --column"):
        inputs_read(tmp_path, "a.tsv", "English\tFrench\n" + rows, columns=("text", "other", 2))


def test_lines_with_tabs_are_complete_texts_with_keep_tabs(tmp_path):
    assert inputs_read(tmp_path, "a.tsv", "one\ttwo\nthree\tfour\n", keep_tabs=True) == ["one\ttwo", "three\tfour"]


def test_a_sheet_of_excel_is_a_table_with_keep_tabs_too(tmp_path):
    workbook = openpyxl.Workbook()
    for row in (["id", "text"], [1, "a\tb"], [2, "c"]):
        workbook.active.append(row)
    workbook.save(tmp_path / "a.xlsx")
    inputs = Inputs((), in_=str(tmp_path / "a.xlsx"), out_=str(tmp_path / "b.jsonl"))
    assert list(inputs.batches(8, ["text"], keep_tabs=True)) == [["a\tb", "c"]]


def test_objects_and_strings_of_jsonl_are_read(tmp_path):
    assert inputs_read(tmp_path, "a.jsonl", '{"prompt": "p"}\n"s"\n{"text": "t"}\n') == ["p", "s", "t"]


@pytest.mark.parametrize("line", ["{}", "[1]", "{", '{"other": 1}'])
def test_a_json_line_without_text_is_reported_with_its_number(tmp_path, line):
    with pytest.raises(BadInput, match=r"a\.jsonl:2: expected a JSON string, or an object with a key text or prompt$"):
        inputs_read(tmp_path, "a.jsonl", f'"good"\n{line}\n')


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            ("ask.txt", "taken.jsonl"),
            "--out taken.jsonl: the file exists; overwrite it with --force, or choose another name",
        ),
        (("ask.txt", None), "--in ask.txt: --out is missing; add --out answers.csv"),
        (("ack.txt", "a.jsonl"), "--in ack.txt: no such file; check the name. Did you mean ask.txt?"),
    ],
)
def test_files_that_cannot_be_processed_are_refused(tmp_path, monkeypatch, files, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ask.txt").write_text("x\n")
    (tmp_path / "taken.jsonl").write_text("precious")
    with Context(score), pytest.raises(BadInput) as refused:
        Inputs((), in_=files[0], out_=files[1])
    assert str(refused.value) == message


def test_a_file_that_is_not_utf_8_is_reported_with_its_position(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ncaf\xe9\n")
    with (
        Context(score),
        pytest.raises(BadInput, match=r"a.txt:2: byte 0xe9 at column 4 is not UTF-8 \(probably Windows-1252\); "),
    ):
        Inputs((), in_=str(tmp_path / "a.txt"), out_=str(tmp_path / "b.jsonl")).batches(1)


FILMS = ["A good film, really", "Dull; long, slow", 'He said "no", twice', "Two lines\nof praise"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("before", ["", "sep={}\n", "# exported, on Monday\n", "\n"])
def test_a_table_of_the_csv_module_is_read_as_written_with_every_delimiter(tmp_path, delimiter, name, before):
    table = io.StringIO()
    rows = [(n, FILMS[n % 4] + f" {n}", ("pos", "neg")[n % 2]) for n in range(40)]
    csv.writer(table, delimiter=delimiter).writerows([("id", " text ", "label"), *rows])
    texts = inputs_read(tmp_path, name, before.format(delimiter) + table.getvalue())
    assert texts == [text for _, text, _ in rows]


def test_a_semicolon_table_without_a_header_loses_no_row_and_no_word(tmp_path):
    rows = "".join(f"A good film, really {n};{('pos', 'neg')[n % 2]}\n" for n in range(40))
    assert inputs_read(tmp_path, "a.csv", rows, column="1") == [f"A good film, really {n}" for n in range(40)]
    assert len(inputs_read(tmp_path, "a.csv", rows, columns=("text", 1, 2))) == 40


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('"never closed,pos', "a quote is not closed"),
        ("an unquoted, comma,pos", "3 columns instead of 2"),
        ("no label", "only 1 column"),
        ("caf\udce9,pos", "byte 0xe9 is not UTF-8"),
    ],
)
@pytest.mark.parametrize("line", [2, 5, 41])
def test_a_bad_row_is_named_by_its_line_before_the_first_answer(tmp_path, bad, reason, line):
    rows = [f'"A film, the {n}th",{("pos", "neg")[n % 2]}' for n in range(40)]
    rows.insert(line - 2, bad)
    (tmp_path / "a.csv").write_bytes("\n".join(["text,label", *rows, ""]).encode("utf-8", "surrogateescape"))
    with Context(score), pytest.raises(BadInput, match=rf"a\.csv:{line}: {reason}; .*; fix the row$"):
        Inputs((), in_=str(tmp_path / "a.csv"), out_=str(tmp_path / "b.jsonl")).batches(1)
    assert not (tmp_path / "b.jsonl").exists()


def test_an_unquoted_comma_in_a_file_with_one_column_is_refused_with_its_line(tmp_path):
    with pytest.raises(BadInput, match=r"a\.csv:3: 2 columns instead of 1; "):
        inputs_read(tmp_path, "a.csv", "text\nfine\nnot, fine\n")


def test_a_cell_longer_than_the_limit_of_the_csv_module_is_read(tmp_path):
    long = "word, " * 50_000
    assert inputs_read(tmp_path, "a.csv", f'text,label\n"{long}",pos\nshort,neg\n') == [long, "short"]


def test_texts_that_are_all_names_of_files_are_refused_and_those_among_texts_are_reported(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my essay.txt").write_text("a text")
    (tmp_path / "word").write_text("a text")
    (tmp_path / "sub").mkdir()
    with pytest.raises(BadInput, match=r"^my essay.txt is a file; .*; use --in 'my essay.txt' --out answers.csv$"):
        refuse_file_names(["my essay.txt"])
    with pytest.raises(BadInput, match=r"^sub/ is a folder; .*; use --in FILE --out answers.csv$"):
        refuse_file_names(["sub/", "my essay.txt"])
    refuse_file_names(["word", "sub", "no.txt", "and/or", "x" * 9999, "a\0.b", "", "-"])
    assert capsys.readouterr().err == ""
    refuse_file_names(["a good film", "my essay.txt"])
    assert capsys.readouterr().err.startswith("harken: my essay.txt is a file; ")


def test_the_name_of_a_file_is_not_a_prompt(harken, run, text):
    output = harken("generate", run, text, "--tokens", 2)
    assert output.code == 2
    assert output.err.startswith(f"harken: {text} is a file; ")
    assert output.err.endswith(f"use --in {text} --out answers.csv\n")


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ("a\nb\n", "2 answers"),
        ("a\n\n", "1 answer and 1 row without one"),
        ("\n\na\nb\n", "2 answers and 2 rows without one"),
    ],
)
def test_rows_without_an_answer_are_counted_apart(tmp_path, content, printed, capsys):
    (tmp_path / "a.txt").write_text(content)
    for json_ in (False, True):
        with Context(score):
            inputs = Inputs((), in_=str(tmp_path / "a.txt"), out_=str(tmp_path / "out.csv"), force=True)
            texts = [text for batch in inputs.batches(9) for text in batch]
            answers = [{"n": 1} if text else {"n": None, "reason": "the text is empty"} for text in texts]
            inputs.write(answers, ("n",), json_=json_)
    line, counts = capsys.readouterr().out.splitlines()
    assert line == f"{printed} in {tmp_path / 'out.csv'}"
    assert (json.loads(counts)["answers"], json.loads(counts)["unanswered"]) == (len(texts), texts.count(""))


@pytest.mark.parametrize(
    ("content", "columns", "texts"),
    [
        ("id\tText\tlabel\n1\tgut, ja\tpos\n2\tböse\tneg\n", ("Text", "text"), ["gut, ja", "böse"]),
        ('sep=\t\nText\tlabel\n"gut\nund alt"\tpos\nböse\tneg\n', ("Text", "text"), ["gut\nund alt", "böse"]),
        ("# von Hand\n Text ; label \ngut, ja;pos\nböse;neg\n", ("Text", "text"), ["gut, ja", "böse"]),
        ("gut, ja\tpos\nböse\tneg\n", (1, "text"), ["gut, ja", "böse"]),
        ("gut, ja\nböse, nein\nalt, ja\n", (1, "text"), ["gut, ja", "böse, nein", "alt, ja"]),
        ("Text\ngut\n", ("Text", "text"), ["Text", "gut"]),
        ("\tgut\n\tböse\n", ("text", "prompt"), ["\tgut", "\tböse"]),
    ],
)
def test_a_txt_is_read_as_a_table_by_its_header_or_like_the_table_of_the_training(tmp_path, content, columns, texts):
    assert inputs_read(tmp_path, "a.txt", content, columns=columns) == texts


def test_json_lines_named_txt_are_read_as_in_training(tmp_path):
    lines = '{"text": "a good film", "label": "pos"}\n{"text": "a\\tbad film", "label": "neg"}\n'
    assert inputs_read(tmp_path, "a.txt", lines) == ["a good film", "a\tbad film"]
    assert inputs_read(tmp_path, "a.txt", lines, column="label") == ["pos", "neg"]
    prose = '{"text": unquoted}\n{a set in braces}\n'
    assert inputs_read(tmp_path, "a.txt", prose) == prose.splitlines()


def test_a_column_of_a_txt_is_chosen_or_needed(tmp_path):
    assert inputs_read(tmp_path, "a.txt", "gut\tpos\nböse\tneg\n", column="2") == ["pos", "neg"]
    with pytest.raises(BadInput, match="it has 2 columns and no header; choose one with --column"):
        inputs_read(tmp_path, "a.txt", "gut\tpos\nböse\tneg\n", columns=("Text", "text"))
    with pytest.raises(BadInput, match="contains no columns; a table is needed"):
        inputs_read(tmp_path, "a.txt", "gut\nböse\n", column="Text")
