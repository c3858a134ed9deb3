"""JSON lists as JSON lines, compared with json.loads."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.data.tables import json_list
from harken.data.tables.json_list import json_list_lines
from harken.errors import BadInput

PATH = Path("a.json")
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


def lines(text: str, size: int = 1 << 20) -> list[str]:
    parts = (text[start : start + size] for start in range(0, len(text), size))
    return "".join(json_list_lines(PATH, parts)).split("\n")[:-1]


@settings(max_examples=60)
@given(
    st.lists(st.text() | st.dictionaries(st.text(), VALUES), max_size=5),
    st.sampled_from([None, 0, 3]),
    st.integers(1, 9),
)
def test_the_values_are_those_of_json_loads_however_the_text_arrives(values, indent, size):
    text = json.dumps(values, indent=indent, ensure_ascii=False)
    assert [json.loads(line) for line in lines(text, size) if line] == values


def test_a_value_is_on_its_line_of_the_file_or_the_next_free_one():
    assert lines('[\n{"a":\n 1},\n\n{"b": 2}, {}\n, "c"]') == ["", '{"a":  1}', "", "", '{"b": 2}', "{}", '"c"']


def test_numbers_stay_as_they_are_written():
    numbers = '{"a": [1.50, 1e400, 12345678901234567890123]}'
    assert lines(f"[{numbers}]", 1) == [numbers]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "a.json:1: .*the end of the file"),
        ("[{},\n]", "a.json:2: "),
        ('[{}\n"a"]', 'a.json:2: .*, or ] is expected, not "'),
        ("[{}]\n\n]", "a.json:3: .*text after the list"),
        ('[{},\n"a\nb"]', "a.json:2: .*control character"),
        ("[{},\n{", "a.json:2: "),
        ("[{},\n12]", "a.json:2: .*neither an object nor a text"),
        ("[" + '{"a":' * 100_000, "a.json:1: .*nested too deeply"),
    ],
)
def test_an_invalid_list_is_refused_with_its_line(text, place):
    with pytest.raises(BadInput, match=place) as caught:
        lines(text)
    assert "\n" not in str(caught.value)


def test_a_value_that_does_not_end_is_not_read_to_the_end_of_the_file(monkeypatch):
    monkeypatch.setattr(json_list, "MAX_VALUE", 1000)
    parts = iter(['["', *["a" * 100] * 1000])
    with pytest.raises(BadInput):
        list(json_list_lines(PATH, parts))
    assert len(list(parts)) > 900
