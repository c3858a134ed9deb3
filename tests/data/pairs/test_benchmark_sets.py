"""benchmarks/pairs_sets.py writes pairs, and no answer decides the source of a question."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from harken.data.pairs.source import PairSource

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "pairs_sets.py"
STORY = "Tom lives in Bern. He likes old books. {}, who sells hats in Rome, is his sister. It rains."


def run_script(monkeypatch, *arguments) -> None:
    monkeypatch.setattr(sys, "argv", ["pairs_sets.py", *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def write_squad(file: Path, answers: list[str], n_paragraphs: int) -> None:
    paragraphs = [
        {
            "context": STORY.format(name),
            "qas": [
                {"question": question, "answers": [{"text": answer} for answer in answers]}
                for question in (f"Who is {name}?", f"Where does {name} work?")
            ],
        }
        for name in (f"Anna{n}" for n in range(n_paragraphs))
    ]
    file.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    write_squad(tmp_path / "in" / "news.json", ["his sister", "Tom's sister", "his sister"], 60)
    write_squad(tmp_path / "in" / "dev.json", ["Rome", "in Rome"], 1)
    return tmp_path


def rows(folder: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]


def test_questions_become_pairs_with_all_answers_as_test_references(folder, monkeypatch):
    run_script(monkeypatch, "squad", folder / "in", folder / "out", "--words", 11)
    data = PairSource(path=str(folder / "out"), tokenizer="word").load_data()
    test = data.splits["test"]
    assert data.overlap() == 0
    assert set(map(tuple, test.references)) == {("Rome", "in Rome")}
    assert len(test) == 2
    assert {row["target"] for row in rows(folder / "out", "train")} == {"his sister"}
    assert "Who is Anna0? <sep> Anna0, who sells hats in Rome, is his sister. It rains." in test.sources


def test_the_questions_of_a_context_are_in_one_split(folder, monkeypatch):
    run_script(monkeypatch, "squad", folder / "in", folder / "out", "--words", 100)
    contexts = [{row["source"].split(" <sep> ")[1] for row in rows(folder / "out", s)} for s in ("train", "valid")]
    assert all(contexts)
    assert not set.intersection(*contexts)


def test_other_answers_change_no_source(folder, monkeypatch):
    run_script(monkeypatch, "squad", folder / "in", folder / "out")
    for file in ("news.json", "dev.json"):
        write_squad(folder / "in" / file, ["books"], 60 if file == "news.json" else 1)
    run_script(monkeypatch, "squad", folder / "in", folder / "again")
    for split in ("train", "valid", "test"):
        before, after = ({row["source"] for row in rows(folder / part, split)} for part in ("out", "again"))
        assert before == after


def test_titles_are_evaluated_on_the_latest_stories(tmp_path, monkeypatch):
    lines = [json.dumps({"body": f"story {n}", "title": f"title {n}"}) for n in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    run_script(monkeypatch, "titles", tmp_path / "a.jsonl", tmp_path / "out")
    data = PairSource(path=str(tmp_path / "out"), tokenizer="word").load_data()
    assert len(data.train) == 90
    assert data.splits["test"].sources == [f"story {n}" for n in range(95, 100)]
    assert data.splits["valid"].references == [[f"title {n}"] for n in range(90, 95)]
