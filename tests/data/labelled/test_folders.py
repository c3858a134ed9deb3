"""Folders of texts with labels, with and without folders of splits."""

from pathlib import Path

import pytest

from harken.data.detect.kinds import detect_kind
from harken.data.labelled.source import TableSource
from harken.errors import BadInput, BadSetting


def write_texts(folder: Path, *labels: str, count: int = 6, suffix: str = ".txt") -> Path:
    for label in labels:
        (folder / label).mkdir(parents=True)
        for n in range(count):
            (folder / label / f"{n}{suffix}").write_text(f"{label} words {n}\nin {folder.name}\n")
    return folder


def rows(part) -> list[tuple[str, str]]:
    return sorted((*row.texts, *row.labels) for row in part.rows)


def test_each_text_has_the_name_of_its_folder_as_label(tmp_path):
    path = write_texts(tmp_path / "news", "sport", "politics")
    detection = detect_kind(path)
    assert (detection.kind, detection.settings) == ("table", {})
    assert detection.reason == "12 texts, each in a folder that is its label (politics, sport)"
    data = TableSource(path=str(path), tokenizer="char").load_data()
    expected = [(f"{label} words {n} in news", label) for label in ("sport", "politics") for n in range(6)]
    assert sorted(row for part in data.parts.values() for row in rows(part)) == sorted(expected)
    assert data.train.rows[0].location.endswith(".txt:1")


@pytest.mark.parametrize("names", [("train", "test"), ("20news-bydate-train", "20news-bydate-test")])
def test_folders_of_splits_are_the_splits_and_other_labels_are_ignored(names, tmp_path):
    train, test = (tmp_path / "set" / name for name in names)
    write_texts(train, "pos", "neg", "unsup", suffix="" if "news" in names[0] else ".txt")
    write_texts(test, "pos", "neg", count=2, suffix="" if "news" in names[0] else ".txt")
    (tmp_path / "set" / "imdb.vocab").write_text("words\n")
    (train / "urls.txt").write_text("http://a\n")
    assert (
        f"in train and test; not read, because not every split has this label: {names[0]}/unsup"
        in detect_kind(tmp_path / "set").reason
    )
    data = TableSource(path=str(tmp_path / "set"), tokenizer="char", valid=0).load_data()
    assert data.processor.labels == ["neg", "pos"]
    assert rows(data.splits["test"]) == [(f"{x} words {n} in {names[1]}", x) for x in ("neg", "pos") for n in range(2)]
    assert len(data.train) == 12


def test_a_changed_text_changes_the_checksum(tmp_path):
    path = write_texts(tmp_path / "news", "sport", "politics")
    first = TableSource(path=str(path), tokenizer="char").load_data().sha256
    (path / "sport" / "0.txt").write_text("other words")
    assert TableSource(path=str(path), tokenizer="char").load_data().sha256 != first


def test_a_run_on_a_table_is_evaluated_on_a_folder(tmp_path):
    path = write_texts(tmp_path / "news", "sport", "politics")
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "".join(f"text {n},{'sport' if n % 2 else 'politics'}\n" for n in range(30))
    )
    source = TableSource(path=str(tmp_path / "a.csv"), text="text", label="label", tokenizer="char")
    data = source.load_data()
    assert len(source.load_split(str(path), "test", tokenizer=data.processor).splits["test"]) == 12


@pytest.mark.parametrize("kind", ["few", "one", "stories"])
def test_other_folders_of_texts_are_not_labelled(kind, tmp_path):
    path = write_texts(tmp_path / "books", "a", *["b"] * (kind != "one"), count=2 if kind == "few" else 6)
    for file in path.rglob("*.txt") if kind == "stories" else ():
        file.write_text("1 Joe went home.\n2 Where is Joe?\thome\t1\n" * 3)
    assert detect_kind(path).kind == ("stories" if kind == "stories" else "text")


def test_a_folder_of_programs_is_not_labelled(tmp_path):
    path = write_texts(tmp_path / "books", "a", "b")
    for n in range(5):
        (path / "a" / f"{n}.py").write_text("print()")
    with pytest.raises(BadInput, match="a folder of folders"):
        detect_kind(path)


@pytest.mark.parametrize("name", ["group", "time"])
def test_a_column_that_decides_the_split_is_refused_for_a_folder(tmp_path, name):
    path = write_texts(tmp_path / "news", "sport", "politics")
    with pytest.raises(
        BadSetting, match=r"politics: a folder of texts has no columns; remove data\.group and data\.time$"
    ):
        TableSource(path=str(path), tokenizer="char", **{name: "author"}).load_data()


def test_the_folder_of_one_label_is_refused_and_the_folder_above_it_is_named(tmp_path):
    path = write_texts(tmp_path / "news", "sport", "politics")
    source = TableSource(path=str(path), tokenizer="char")
    processor = source.load_data().processor
    with pytest.raises(BadInput, match=rf"sport has texts of one label; give the folder above it, {path}$"):
        source.load_split(str(path / "sport"), "test", tokenizer=processor)
