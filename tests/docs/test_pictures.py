"""docs/pictures: the pictures of the lectures are current, and scripts/pictures.py writes the same bytes again."""

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

HOME = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "scripts"))

import pictures  # noqa: E402

EXACT = ("position-geometry", "bigbird", "point-cloud")  # the others depend on the rounding of a training
PAGE = (HOME / "docs" / "lectures.md").read_text("utf-8")


@pytest.mark.parametrize("name", EXACT)
def test_a_picture_is_current(name: str, tmp_path: Path) -> None:
    assert pictures.main([name, "--out", str(tmp_path)]) == 0
    assert (tmp_path / f"{name}.svg").read_bytes() == (pictures.PICTURES / f"{name}.svg").read_bytes()


@pytest.mark.parametrize("name", pictures.DRAWINGS)
def test_every_picture_is_a_file_that_a_row_of_the_lectures_refers_to(name: str) -> None:
    texts = [element.text for element in ElementTree.parse(pictures.PICTURES / f"{name}.svg").iter() if element.text]
    assert len(texts) > 10
    assert f"(pictures/{name}.svg)" in PAGE


def test_the_saddle_has_the_texts_of_its_file() -> None:
    drawn, stored = (ElementTree.fromstring(text) for text in (pictures.saddle(), _stored("saddle")))
    assert [e.text for e in drawn.iter() if e.text] == [e.text for e in stored.iter() if e.text]


def _stored(name: str) -> str:
    return (pictures.PICTURES / f"{name}.svg").read_text("utf-8")


def test_an_unknown_picture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pictures.main(["pigs"])
    assert "no such picture: pigs; there are position-geometry, bigbird" in capsys.readouterr().err
