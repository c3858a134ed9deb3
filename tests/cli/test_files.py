"""--in FILE --out FILE: one answer for each text of a file, in order."""

import json

import pytest
from click import Context

from harken.cli.files import validate_files, process_file
from harken.cli.score import score
from harken.errors import BadInput


def told(tmp_path, name: str, content: str, **where: object) -> list[str]:
    source, out = tmp_path / name, tmp_path / "answers.jsonl"
    source.write_text(content, "utf-8")
    count = process_file(
        str(source), str(out), lambda texts: ({"length": len(t), "place": n} for n, t in enumerate(texts)), **where
    )
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(answers) == count
    assert all(answer["length"] == len(answer["input"]) for answer in answers)
    assert [answer["place"] for answer in answers] == list(range(count))
    return [answer["input"] for answer in answers]


def test_plain_lines_keep_their_order_and_empty_ones_their_place(tmp_path):
    assert told(tmp_path, "a.txt", "one\n\nthree\r\n") == ["one", "", "three"]


def test_the_text_column_of_a_csv_is_taken_with_its_quotes_undone(tmp_path):
    assert told(tmp_path, "a.csv", 'id,text\n1,"He said ""hi"", twice"\n2,b\n') == ['He said "hi", twice', "b"]


def test_the_only_column_of_a_csv_may_have_any_name_and_of_several_one_is_named(tmp_path):
    assert told(tmp_path, "a.csv", "what\nx\ny\n") == ["x", "y"]
    hint = "say which with --column, or give one the name text or prompt"
    with pytest.raises(BadInput, match=rf"a\.csv: its columns are what, other; {hint}$"):
        told(tmp_path, "a.csv", "what,other\nx,y\n")


@pytest.mark.parametrize(("column", "found"), [("other", ["y"]), ("2", ["y"]), ("what", ["x"])])
def test_a_column_that_is_named_by_its_name_or_number_is_taken(tmp_path, column, found):
    assert told(tmp_path, "a.csv", "what,other\nx,y\n", column=column) == found
    assert told(tmp_path, "a.tsv", "what\tother\ntext\tname\nx\ty\n", column=column)[-1:] == found


@pytest.mark.parametrize("column", ["text", "3", "0"])
def test_a_column_that_is_named_and_not_there_is_refused_though_others_are(tmp_path, column):
    with pytest.raises(BadInput, match=r"a\.csv: its columns are prompt, other; say which with --column$"):
        told(tmp_path, "a.csv", "prompt,other\nx,y\n", column=column)


def test_a_row_that_is_too_short_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"a\.csv: row 3 has 1 columns only; mend it$"):
        told(tmp_path, "a.csv", "id,text\n1,x\n2\n")


def test_a_table_split_at_tabs_is_read_by_its_header_and_a_quote_in_it_is_a_quote(tmp_path):
    assert told(tmp_path, "a.tsv", 'id\ttext\n1\t"Hi" there\n\n2\tb\n') == ['"Hi" there', "", "b"]


def test_without_a_header_the_column_is_the_number_the_run_learned_and_with_another_header_none(tmp_path):
    rows = "".join(f"a cat {n}\tun chat {n}\n" for n in range(9))
    assert told(tmp_path, "a.tsv", rows, columns=("text", 2))[:2] == ["un chat 0", "un chat 1"]
    with pytest.raises(BadInput, match=r"a\.tsv: it has 2 columns and no header; say which with --column, or give"):
        told(tmp_path, "a.tsv", rows)
    with pytest.raises(BadInput, match=r"a\.tsv: its columns are English, French; say which with --column"):
        told(tmp_path, "a.tsv", "English\tFrench\n" + rows, columns=("text", "other", 2))


def test_lines_with_tabs_are_whole_texts_where_that_is_asked(tmp_path):
    assert told(tmp_path, "a.tsv", "one\ttwo\nthree\tfour\n", whole=True) == ["one\ttwo", "three\tfour"]


def test_objects_and_strings_of_jsonl_are_read(tmp_path):
    assert told(tmp_path, "a.jsonl", '{"prompt": "p"}\n"s"\n{"text": "t"}\n') == ["p", "s", "t"]


@pytest.mark.parametrize("line", ["{}", "[1]", "{", '{"other": 1}'])
def test_a_line_that_is_no_text_is_named_by_its_number(tmp_path, line):
    with pytest.raises(BadInput, match=r"a\.jsonl:2: is no JSON object with a key text or prompt$"):
        told(tmp_path, "a.jsonl", f'"good"\n{line}\n')


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("ask.txt", "taken.jsonl"), "--out taken.jsonl: there is such a file; choose another name"),
        (("ask.txt", None), "--in ask.txt: say where the answers go: --out answers.jsonl"),
        (("ack.txt", "a.jsonl"), "--in ack.txt: there is no such file; check the name. Did you mean ask.txt?"),
    ],
)
def test_files_that_cannot_be_worked_through_are_refused(tmp_path, monkeypatch, given, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ask.txt").write_text("x\n")
    (tmp_path / "taken.jsonl").write_text("precious")
    with Context(score), pytest.raises(BadInput) as refused:
        validate_files(*given)
    assert str(refused.value) == said


def test_a_file_that_is_not_utf_8_is_told_as_one_that_is_trained_on_would_be(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(BadInput, match=r"a.txt:2: byte 0xe9 at column 4 is not UTF-8 \(it looks like Latin-1\); "):
        process_file(str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl"), lambda texts: iter(()))
