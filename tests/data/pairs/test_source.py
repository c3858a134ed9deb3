"""Pairs are split by source sentence and encoded; everything that is dropped is reported."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from harken.data.pairs import files
from harken.data.pairs.source import PairData, PairSource
from harken.data.split import split_hash
from harken.data.tokenizers.pairs import PairTokenizers
from harken.errors import BadInput, BadSetting

NOUNS = ["cat", "dog", "bird", "fish", "horse", "cow", "pig", "hen", "duck", "goat"]
PAIRS = [(f"The {noun} is number {n}.", f"Das {noun} hat Nummer {n}.") for n in range(30) for noun in NOUNS]


def write_table(path: Path, rows) -> str:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(path: object, notices: list[str] | None = None, **settings) -> PairData:
    def listen(event: str, **facts) -> None:
        if event == "notice" and notices is not None:
            notices.append(facts["text"])

    return PairSource(**{"tokenizer": "char", "path": path and str(path)} | settings).load_data(listen=listen)


def train_pairs(data: PairData) -> list[tuple[str, str]]:
    return list(data.texts())


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_column_groups_the_held_out_sources_and_is_not_trained_on(tmp_path):
    rows = [(source, target, str(n % 3)) for n, (source, target) in enumerate(PAIRS)]
    data = load(write_table(tmp_path / "a.tsv", [("source", "target", "distance"), *rows]), group="distance")
    groups = {source: group for source, _, group in rows}
    for split in data.splits.values():
        assert split.groups == [groups[source] for source in split.sources]
    assert train_pairs(data) == train_pairs(load(tmp_path / "a.tsv"))
    assert not load(tmp_path / "a.tsv").splits["valid"].groups


def test_a_missing_group_column_or_one_with_too_many_values_is_refused(tmp_path, monkeypatch):
    path = write_table(tmp_path / "a.tsv", [("source", "target"), *PAIRS])
    with pytest.raises(BadInput, match=r"no column 'length'; its columns are source, target; set data\.group"):
        load(path, group="length")
    rows = [(*pair, str(n)) for n, pair in enumerate(PAIRS)]
    path = write_table(tmp_path / "b.tsv", [("source", "target", "id"), *rows])
    monkeypatch.setattr(files, "MAX_GROUPS", 2)
    with pytest.raises(BadInput, match=r"data\.group = 'id': \d+ values; name a column with at most 2"):
        load(path, group="id")


def test_aligned_files_have_no_groups(tmp_path):
    for name, side in (("a.en", 0), ("a.de", 1)):
        (tmp_path / name).write_text("".join(pair[side] + "\n" for pair in PAIRS))
    with pytest.raises(BadInput, match=r"aligned files have no columns; remove data\.group=length"):
        load(None, source=str(tmp_path / "a.en"), target=str(tmp_path / "a.de"), group="length")


def test_other_pairs_without_the_group_column_are_evaluated(tmp_path):
    header, rows = ("source", "target", "distance"), [(*pair, str(n % 3)) for n, pair in enumerate(PAIRS)]
    data = load(write_table(tmp_path / "a.tsv", [header, *rows]), group="distance")

    def test_split(path: str):
        return data.settings.load_split(path, "test", tokenizer=data.tokenizer).splits["test"]

    assert test_split(write_table(tmp_path / "b.tsv", [header, *rows[:9]])).groups == [row[2] for row in rows[:9]]
    without = test_split(write_table(tmp_path / "c.tsv", [("source", "target"), *PAIRS[:9]]))
    assert not without.groups
    assert len(without) == 9


def test_lines_that_are_not_pairs_are_counted_and_reported_with_their_location(tmp_path):
    path = tmp_path / "a.tsv"
    write_table(path, PAIRS[:20])
    lines = path.read_bytes().splitlines()
    lines[3:7] = [b"one column", b"\tnur rechts", b"caf\xe9\tKaffee", b""]
    path.write_bytes(b"\n".join(lines) + b"\n")
    notices: list[str] = []
    facts = load(path, notices, source=1, target=2, valid=0.0, test=0.0).facts()
    assert facts["pairs"]["train"] == 16
    assert facts["skipped"]["count"] == sum(facts["skipped"]["reasons"].values()) == 4
    reasons = ["4: only 1 column", "5: the source is empty", "6: byte 0xe9 is not UTF-8", "7: an empty line"]
    assert facts["skipped"]["first"] == [f"{path}:{reason}" for reason in reasons]
    assert notices == [f"skipped 4 rows (no pair): {', '.join(facts['skipped']['first'])}"]


# --- splits -----------------------------------------------------------------------------------------------------------

SOURCES = st.integers(0, 60).map(lambda n: f"source {n}")
# in train for every fraction below 0.45
TRAIN_PAIR = next((f"kept {n}", "1") for n in range(99) if 0.45 < split_hash(f"kept {n}") / 2**64 < 0.55)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(SOURCES, st.integers(0, 9).map(str)), min_size=1, max_size=150), draw=st.data())
def test_no_source_is_in_two_splits_and_no_pair_is_lost(rows, draw, tmp_path_factory):
    path = write_table(tmp_path_factory.mktemp("a") / "a.tsv", [*rows, TRAIN_PAIR])
    valid, test = draw.draw(st.sampled_from([(0.1, 0.05), (0.4, 0.4), (0.0, 0.3)]))
    data = load(path, source=1, target=2, valid=valid, test=test)
    sources = {"train": {source for source, _ in train_pairs(data)}}
    sources |= {split: set(pairs.sources) for split, pairs in data.splits.items()}
    assert sum(map(len, sources.values())) == len(set.union(*sources.values()))
    held_out = {(s, r) for p in data.splits.values() for s, rs in zip(p.sources, p.references, strict=True) for r in rs}
    assert held_out | set(train_pairs(data)) == {*rows, TRAIN_PAIR}
    assert data.facts()["overlap"] == 0


def test_adding_lines_moves_no_source(tmp_path):
    fewer, more = (load(write_table(tmp_path / f"{n}.tsv", PAIRS[:n]), source=1, target=2) for n in (200, 300))
    for split in ("valid", "test"):
        before, after = (set(data.splits[split].sources) for data in (fewer, more))
        assert before <= after
        assert before == after & {source for source, _ in PAIRS[:200]}


def test_another_valid_fraction_does_not_change_the_test_split(tmp_path):
    path = write_table(tmp_path / "a.tsv", PAIRS)
    small, large = (load(path, source=1, target=2, valid=valid) for valid in (0.1, 0.5))
    assert small.splits["test"].sources == large.splits["test"].sources
    assert 0 < len(small.splits["valid"]) < len(large.splits["valid"])


def test_a_fraction_holds_out_a_limited_number_of_sources(tmp_path, monkeypatch):
    path = write_table(tmp_path / "a.tsv", PAIRS)
    unlimited = load(path, source=1, target=2, valid=0.5).splits["valid"].sources
    monkeypatch.setattr(files, "MAX_HELD_OUT", 10)
    assert load(path, source=1, target=2, valid=0.5).splits["valid"].sources == unlimited[:10]


def test_fewer_training_examples_do_not_change_the_held_out_splits(tmp_path):
    path = write_table(tmp_path / "a.tsv", PAIRS)
    full, limited = (load(path, source=1, target=2, examples=n) for n in (None, 20))
    assert train_pairs(limited) == train_pairs(full)[:20]
    assert limited.splits["test"].sources == full.splits["test"].sources


def test_the_distinct_translations_of_a_source_are_its_references(tmp_path):
    rows = [("Hi.", "Hallo."), ("Go.", "Geh."), (" Hi. ", "Hallo!"), ("Hi.", "Hallo.")]
    path = write_table(tmp_path / "valid.tsv", rows)
    valid = load(write_table(tmp_path / "a.tsv", PAIRS), source=1, target=2, valid=path).splits["valid"]
    assert dict(zip(valid.sources, valid.references, strict=True)) == {"Hi.": ["Hallo.", "Hallo!"], "Go.": ["Geh."]}


def test_composed_and_decomposed_accents_are_one_source(tmp_path):
    decomposed, composed = unicodedata.normalize("NFD", "Übung"), "Übung"
    path = write_table(tmp_path / "valid.tsv", [(decomposed, "practice"), ("Go.", "Geh.")])
    data = load(write_table(tmp_path / "a.tsv", [*PAIRS, (composed, "exercise")]), source=1, target=2, valid=path)
    assert composed in data.splits["valid"].sources
    assert composed not in {source for source, _ in train_pairs(data)}


def test_training_pairs_with_a_source_in_a_valid_file_are_dropped_with_a_notice(tmp_path):
    path, notices = write_table(tmp_path / "held.tsv", PAIRS[:5]), []
    data = load(write_table(tmp_path / "a.tsv", PAIRS), notices, source=1, target=2, valid=path, test=0.0)
    assert data.splits["valid"].sources == [source for source, _ in PAIRS[:5]]
    assert train_pairs(data) == PAIRS[5:]
    assert data.facts()["in_held_out"] == 5
    (notice,) = notices
    places = ", ".join(f"{tmp_path / 'a.tsv'}:{n}" for n in (1, 2, 3))
    assert notice == f"training pairs dropped because their source is in a held-out split: 5 ({places})"


def test_sources_in_both_held_out_files_are_counted(tmp_path):
    notices: list[str] = []
    valid, test = write_table(tmp_path / "v.tsv", PAIRS[:9]), write_table(tmp_path / "t.tsv", PAIRS[6:12])
    load(write_table(tmp_path / "a.tsv", PAIRS[20:]), notices, source=1, target=2, valid=valid, test=test)
    assert notices == ["sources in both valid and test: 3; test metrics are biased by model selection"]
    notices.clear()
    load(tmp_path / "a.tsv", notices, source=1, target=2, valid=valid)
    assert not notices


def test_overlap_with_the_training_data_is_counted_for_other_pairs(tmp_path):
    path = write_table(tmp_path / "a.tsv", PAIRS)
    source = PairSource(path=path, source=1, target=2, tokenizer="char", valid=0.0, test=0.0)
    other = write_table(tmp_path / "b.tsv", [*PAIRS[:4], ("New.", "Neu.")])
    data = source.load_split(other, "test", tokenizer=source.load_data().tokenizers)
    assert data.splits["test"].sources[-1] == "New."
    assert data.facts()["overlap"] == 4


def test_pairs_are_evaluated_without_the_training_data(tmp_path):
    source = PairSource(path=write_table(tmp_path / "a.tsv", PAIRS), source=1, target=2, tokenizer="char")
    tokenizers = source.load_data().tokenizers
    (tmp_path / "a.tsv").unlink()
    data = source.load_split(write_table(tmp_path / "b.tsv", PAIRS[:9]), "test", tokenizer=tokenizers)
    assert not data.has_train
    assert len(data.splits["test"]) == 9
    assert data.facts()["pairs"]["test"] == 9


# --- folders and names ------------------------------------------------------------------------------------------------


def write_languages(folder: Path, **parts) -> Path:
    folder.mkdir()
    for stem, rows in parts.items():
        for suffix, side in (("en", 0), ("de", 1), ("fr", 1)):
            (folder / f"{stem}.{suffix}").write_text("".join(row[side] + "\n" for row in rows))
    return folder


SPLIT = {"train": PAIRS[:90], "val": PAIRS[90:95], "test_2016_flickr": PAIRS[95:99]}


@pytest.mark.parametrize("mode", ["language", "file", "detected"])
def test_a_folder_with_a_file_per_language_and_split_is_read(mode, tmp_path):
    folder = write_languages(tmp_path / "m", **SPLIT)
    source, target = {
        "language": ("de", "en"),
        "file": (str(folder / "train.de"), str(folder / "train.en")),
        "detected": (None, None),
    }[mode]
    data = load(folder, source=source, target=target)
    pairs = [row if mode == "detected" else row[::-1] for row in PAIRS]
    assert train_pairs(data) == pairs[:90]
    assert data.splits["valid"].sources == [source for source, _ in pairs[90:95]]
    assert data.splits["test"].references == [[target] for _, target in pairs[95:99]]


def test_a_folder_of_tables_is_split_by_file_names(tmp_path):
    for name, rows in (("train", PAIRS[:90]), ("dev", PAIRS[90:95]), ("test", PAIRS[95:99])):
        write_table(tmp_path / f"{name}.tsv", rows)
    data = load(tmp_path, source=1, target=2)
    assert (len(data.train), len(data.splits["valid"]), len(data.splits["test"])) == (90, 5, 4)


@pytest.mark.parametrize("valid", ["val", "val.de", "val.en"])
def test_aligned_files_are_named_by_their_stem_or_by_one_of_them(valid, tmp_path):
    folder = write_languages(tmp_path / "m", **SPLIT)
    sides = {"source": str(folder / "train.en"), "target": str(folder / "train.de")}
    data = load(None, **sides, test=0.0, valid=str(folder / valid))
    assert train_pairs(data) == PAIRS[:90]
    assert data.splits["valid"].sources == [source for source, _ in PAIRS[90:95]]


def test_paths_become_absolute_and_columns_do_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_languages(tmp_path / "m", **SPLIT)
    write_table(tmp_path / "a.tsv", PAIRS)
    (tmp_path / "en").write_text("not this one")

    def absolute(**settings) -> PairSource:
        return PairSource(**settings).with_absolute_paths()

    assert absolute(path="a.tsv", source="en", target=2).source == "en"
    assert absolute(path="m", source="de", target="en").source == "de"
    assert absolute(source="m/train.en", target="m/train.de").target == str(tmp_path / "m" / "train.de")
    assert absolute(path="m", source="m/train.en", target="de", valid="m/val").source.startswith("/")


def test_files_that_differ_from_the_recipe_are_refused(tmp_path):
    path = write_table(tmp_path / "a.tsv", PAIRS)
    digest = load(path, source=1, target=2).sha256
    write_table(tmp_path / "a.tsv", PAIRS[1:])
    with pytest.raises(BadInput, match=r"a\.tsv: SHA-256 mismatch: the files differ from those of this recipe"):
        load(path, source=1, target=2, sha256=digest)


REFUSED = {
    "no path": ({"path": None, "source": None}, "data.path is not set; set data.path to a file or folder"),
    "all too long": ({"max_length": 1}, "no training pairs"),
    "one column twice": ({"target": 1}, "a.tsv: column 1 is used twice; set data.source and data.target"),
    "no such file": ({"valid": "nowhere.tsv"}, "nowhere.tsv: no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_input_is_refused_in_one_line(case, tmp_path):
    change, message = REFUSED[case]
    path = write_table(tmp_path / "a.tsv", PAIRS[:30])
    with pytest.raises((BadInput, BadSetting), match=message) as error:
        PairSource(**{"path": path, "source": 1, "target": 2, "tokenizer": "char"} | change).load_data()
    assert "\n" not in str(error.value)


INVALID = {
    "a fraction above 1": {"valid": 1.5},
    "fractions with a sum above 1": {"valid": 0.6, "test": 0.5},
    "a fraction that leaves none for the test": {"valid": 0.97},
    "dropout without merges": {"bpe_dropout": 0.1, "tokenizer": "char"},
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_settings_are_refused_before_anything_is_read(case):
    with pytest.raises(ValidationError, match=r"fractions of the sources|only the bpe tokenizer has merges"):
        PairSource(**INVALID[case])


def test_one_language_for_both_sides_is_refused(tmp_path):
    message = r"m: de is both source and target; set data.source and data.target to two languages"
    with pytest.raises(BadInput, match=message):
        load(write_languages(tmp_path / "m", **SPLIT), source="de", target=str(tmp_path / "m" / "train.de"))


# --- encoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("tokenizer", ["char", "word", "bpe"])
def test_training_pairs_are_decoded_without_loss_and_the_tokenizers_are_saved(tokenizer, shared, tmp_path):
    rows = [("He's (very) fast!", "Il est « très » rapide !"), ("l'été - 5,5 %", "« 5,5 % »"), *PAIRS[:40]]
    settings = {"tokenizer": tokenizer, "shared_vocab": shared, "valid": 0.0, "test": 0.0}
    data = load(write_table(tmp_path / "a.tsv", rows), source=1, target=2, **settings)
    assert train_pairs(data) == rows
    for name, content in data.tokenizers.files().items():
        (tmp_path / name).write_bytes(content)
    loaded = PairTokenizers.load(tmp_path)
    assert loaded.vocab == data.vocab == (data.tokenizers.source.vocab + 1, data.tokenizers.target.vocab + 1)
    assert (loaded.source is loaded.target) == shared
    source, target = loaded.encode_source(rows[0][0]), loaded.encode_target(rows[0][1])
    assert source.tolist() == [*data.train.source[0], loaded.source.vocab]
    assert target.tolist() == data.train.target[0].tolist()
    assert loaded.decode_target([*target, loaded.target.vocab, 0, 0]) == rows[0][1]


def test_sources_with_too_many_words_are_in_no_split(tmp_path):
    rows = [*PAIRS, *((f"{s} It is not a small one.", t) for s, t in PAIRS)]
    data = load(write_table(tmp_path / "a.tsv", rows), max_words=5)
    assert sum(data.facts()["pairs"].values()) == len(PAIRS)
    valid = write_table(tmp_path / "valid.tsv", rows[-5:] + rows[:2])
    data = load(tmp_path / "a.tsv", valid=valid, max_words=5)
    assert data.splits["valid"].sources == [s for s, _ in PAIRS[:2]]


def test_training_pairs_that_are_too_long_are_dropped_and_held_out_ones_truncated(tmp_path):
    path, notices = write_table(tmp_path / "v.tsv", [("x" * 50, "y" * 9), ("z", "b" * 50)]), []
    rows = [("a" * 20, "b"), ("a", "b" * 21), ("c", "d"), ("e" * 21, "f")]
    settings = {"source": 1, "target": 2, "valid": path, "test": 0.0, "max_length": 20}
    data = load(write_table(tmp_path / "a.tsv", rows), notices, **settings)
    assert train_pairs(data) == [rows[0], rows[2]]
    valid = data.splits["valid"]
    assert valid.source.lengths.tolist() == [20, 1]
    assert valid.target.lengths.tolist() == [9, 20]
    assert valid.references == [["y" * 9], ["b" * 50]]
    truncated = "2 of 4 held-out sentences are longer than 20 tokens (longest: 50) and were truncated"
    dropped = "training pairs dropped because a side exceeds data.max_length=20: 2"
    assert notices == [dropped, f"{truncated}; increase data.max_length"]


# --- split by group, by time, in folds --------------------------------------------------------------------------------


def write_documents(folder, count=200):
    rows = [f"source {n}\ttarget {n}\tdoc{n % 25}\t{2000 + n % 20}" for n in range(count)]
    path = folder / "documents.tsv"
    path.write_text("\n".join(["source\ttarget\tdocument\tyear", *rows]) + "\n")
    return path


DOCUMENTS = {"source": "source", "target": "target", "tokenizer": "word", "valid": 0.1, "test": 0.1}


def sources_of(data):
    train = {source for source, _ in data.texts()}
    return {"train": train, **{split: set(part.sources) for split, part in data.splits.items()}}


def test_pairs_of_a_document_are_in_one_split(tmp_path):
    data = PairSource(path=str(write_documents(tmp_path)), **DOCUMENTS, split_group="document").load_data()
    parts = sources_of(data)
    documents = [{int(source.split()[1]) % 25 for source in part} for part in parts.values()]
    assert sum(map(len, documents)) == len(set.union(*documents)) == 25
    assert sum(map(len, parts.values())) == 200
    assert "'document'" in data.facts()["split"]


def test_pairs_of_a_document_in_the_test_file_are_not_trained_on(tmp_path):
    test = tmp_path / "test.tsv"
    test.write_text("source\ttarget\tdocument\nnew\tneu\tdoc3\n")
    settings = {**DOCUMENTS, "test": str(test), "split_group": "document"}
    path, notices = write_documents(tmp_path), []
    parts = sources_of(load(path, notices, **settings))
    assert parts["test"] == {"new"}
    places = ", ".join(f"{path}:{n}" for n in (5, 30, 55))
    reason = "training pairs dropped because their source or 'document' is in a held-out split"
    assert f"{reason}: 8 ({places})" in notices
    assert not {source for source in parts["train"] | parts["valid"] if int(source.split()[1]) % 25 == 3}


def test_the_newest_pairs_are_the_test_split(tmp_path):
    parts = sources_of(PairSource(path=str(write_documents(tmp_path)), **DOCUMENTS, time="year").load_data())
    years = {split: {int(source.split()[1]) % 20 for source in part} for split, part in parts.items()}
    assert (years["test"], years["valid"], max(years["train"])) == ({18, 19}, {16, 17}, 15)


def test_folds_of_pairs_are_a_partition(tmp_path):
    path = write_documents(tmp_path)
    folds = [
        sources_of(PairSource(path=str(path), **DOCUMENTS, fold=f"{k}/4").load_data())["test"] for k in (1, 2, 3, 4)
    ]
    assert sum(map(len, folds)) == len(set.union(*folds)) == 200


def test_near_duplicates_of_held_out_sources_are_named(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(f"{text}\tx {n}" for n in range(60) for text in (f"A cat {n}.", f"a CAT {n}")) + "\n")
    notices = []
    load(path, notices, tokenizer="word", valid=0.2, test=0.0)
    (near,) = [text for text in notices if "valid examples (" in text]
    assert f"({path}:" in near
    assert f" ~ {path}:" in near
    assert "cat " not in "".join(notices).lower()


def test_held_out_pairs_know_their_document_also_in_other_data(tmp_path):
    source = PairSource(path=str(write_documents(tmp_path)), **DOCUMENTS, split_group="document")
    data = source.load_data()
    for part in data.splits.values():
        assert part.units == [f"doc{int(text.split()[1]) % 25}" for text in part.sources]
    other = tmp_path / "other.tsv"
    other.write_text("source\ttarget\tdocument\n" + "".join(f"new {n}\tneu\td{n // 3}\n" for n in range(9)))
    units = source.load_split(str(other), "test", tokenizer=data.processor).splits["test"].units
    assert units == [f"d{n // 3}" for n in range(9)]
    other.write_text("source\ttarget\nnew\tneu\n")
    assert source.load_split(str(other), "test", tokenizer=data.processor).splits["test"].units == []
