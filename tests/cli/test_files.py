"""--in FILE --out FILE: one answer for each text of a file, in order."""

import json

import pytest

from harken.cli.files import work_through
from harken.errors import BadInput


def told(tmp_path, name: str, content: str) -> list[str]:
    source, out = tmp_path / name, tmp_path / "answers.jsonl"
    source.write_text(content, "utf-8")
    count = work_through(str(source), str(out), lambda text: {"length": len(text)})
    answers = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    assert len(answers) == count
    assert all(answer["length"] == len(answer["input"]) for answer in answers)
    return [answer["input"] for answer in answers]


def test_plain_lines_keep_their_order_and_empty_ones_their_place(tmp_path):
    assert told(tmp_path, "a.txt", "one\n\nthree\r\n") == ["one", "", "three"]


def test_the_text_column_of_a_csv_is_taken_with_its_quotes_undone(tmp_path):
    assert told(tmp_path, "a.csv", 'id,text\n1,"He said ""hi"", twice"\n2,b\n') == ['He said "hi", twice', "b"]


def test_the_first_column_is_taken_where_none_is_named_text(tmp_path):
    assert told(tmp_path, "a.csv", "what,other\nx,y\n") == ["x"]


def test_objects_and_strings_of_jsonl_are_read(tmp_path):
    assert told(tmp_path, "a.jsonl", '{"prompt": "p"}\n"s"\n{"text": "t"}\n') == ["p", "s", "t"]


@pytest.mark.parametrize("line", ["{}", "[1]", "{", '{"other": 1}'])
def test_a_line_that_is_no_text_is_named_by_its_number(tmp_path, line):
    with pytest.raises(BadInput, match=r"a\.jsonl:2: is no JSON object with a key text or prompt$"):
        told(tmp_path, "a.jsonl", f'"good"\n{line}\n')


def test_a_file_that_exists_is_not_written_over(tmp_path):
    (tmp_path / "answers.jsonl").write_text("precious")
    with pytest.raises(BadInput, match="there is such a file"):
        told(tmp_path, "a.txt", "x\n")
    assert (tmp_path / "answers.jsonl").read_text() == "precious"
