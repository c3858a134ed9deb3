"""harken.cluster and the regression on components: what is told, what is written, and that splits are the same."""

import csv
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import harken
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.experiments.cluster import pcr as regressing
from harken.experiments.cluster.clustering import telling
from harken.experiments.cluster.pcr import regress, sizes


@pytest.fixture
def three() -> np.ndarray:
    draw = np.random.default_rng(0)
    return np.concatenate([draw.normal(middle, 0.5, (40, 2)) for middle in ([0, 0], [5, 0], [0, 5])]).astype(np.float32)


def test_a_folder_holds_the_clusters_their_centres_and_the_pictures(three, tmp_path):
    made = harken.cluster(three, k="2-5", out=tmp_path / "out")
    facts = json.loads((tmp_path / "out/clusters.json").read_text())
    assert made.k == facts["k"] == 3
    assert facts["choice"] == {"silhouette": 3, "elbow": 3, "stability": 3}
    assert len(facts["tried"]) == 4
    assert all(len(row["inertias"]) == 10 and row["inertia"] == min(row["inertias"]) for row in facts["tried"])
    rows = list(csv.DictReader((tmp_path / "out/clusters.csv").read_text().splitlines()))
    assert [int(row["cluster"]) for row in rows] == facts["labels"] == made.labels.tolist()
    centres = np.load(tmp_path / "out/centres.npy", allow_pickle=False)
    apart = np.linalg.norm(three - centres[made.labels], axis=1)
    assert [float(row["distance"]) for row in rows] == pytest.approx(apart.tolist(), rel=1e-4)
    svg = ET.parse(tmp_path / "out/clusters.svg").getroot()
    text = " ".join(svg.itertext())
    assert all(f"k = {k}" in text for k in (2, 3, 4, 5))
    assert sum(1 for dot in svg.iter() if dot.tag.endswith("circle") and "seed" in dot.get("class")) == 4 * 120
    assert "k = 3, which is taken" in (tmp_path / "out/report.html").read_text()


def test_the_nearest_examples_are_the_nearest(three):
    names = [f"point {n}" for n in range(120)]
    made = harken.cluster(three, names, k=3)
    for told in made.facts["clusters"]:
        own = np.flatnonzero(made.labels == told["cluster"])
        apart = np.linalg.norm(three[own] - three[own].mean(0), axis=1)
        expected = own[np.argsort(apart)[:3]].tolist()
        assert [example["row"] - 1 for example in told["examples"]] == expected
        assert [example["text"] for example in told["examples"]] == [names[n] for n in expected]
        assert told["size"] == 40


def test_words_that_all_clusters_share_tell_none_of_them():
    texts = [f"the {animal} runs over the hill" for animal in ("cat", "dog") * 10]
    assert telling(texts, [0, 1] * 10, 2) == [["cat"], ["dog"]]


def test_columns_are_brought_to_one_scale_only_if_it_is_asked_for(three):
    wide = three * [1, 1000] + [[0, 5]]
    other = harken.cluster(wide, k=3, scale=True)
    assert other.facts["inertia"] < 200
    assert harken.cluster(wide, k=3).facts["inertia"] > 1e6


def test_the_vectors_of_a_run_are_clustered_at_any_layer(char, folders, tmp_path):
    texts = ["Tom had a hat", "a cat", "the dog ran", "Tom had a cat", "a hat", "the dog saw a cat"]
    (tmp_path / "my.txt").write_text("\n".join(texts) + "\n")
    last, first = (harken.cluster(folders["char"], tmp_path / "my.txt", k=2, layer=layer) for layer in (None, 0))
    assert last.points.x == pytest.approx(char.embed(texts), abs=1e-6)
    assert first.points.x == pytest.approx(char.embed(texts, layer=0), abs=1e-6)
    assert list(last.points.names) == texts


def test_a_run_without_texts_is_asked_about_its_own(folders, tales):
    made = harken.cluster(folders["char"], k=2, restarts=1)
    assert len(made.labels) == sum(1 for line in tales.read_text().splitlines() if line.strip())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"k": 500}, "there are 120 points"),
        ({"k": "many"}, "a range"),
        ({"k": "9-3"}, "two numbers below"),
        ({"restart": 3}, "Did you mean restarts"),
        ({"start": "k-means"}, "accepted are"),
    ],
)
def test_options_that_make_no_clusters_are_refused(three, given, message):
    with pytest.raises(BadInput, match=message):
        harken.cluster(three, **given)


def test_columns_are_taken_by_name_or_number_and_a_wrong_one_is_told(tmp_path):
    file = tmp_path / "points.csv"
    rows = [f"p{n},{n},{n % 2 * 100},{n % 3}" for n in range(12)]
    file.write_text("\n".join(["name,id,x,y", *rows]))
    both = [harken.cluster(str(file), k=2, columns=said) for said in ("x", " 3")]
    assert all(made.facts["labels"] in ([0, 1] * 6, [1, 0] * 6) for made in both)
    assert both[0].facts["columns"] == 1
    assert both[0].points.names == [f"p{n}" for n in range(12)]
    with pytest.raises(BadInput, match="there is no column 'z'; there are: name, id, x, y"):
        harken.cluster(str(file), k=2, columns="x,z")
    np.save(tmp_path / "points.npy", np.arange(12.0).reshape(4, 3))
    assert harken.cluster(str(tmp_path / "points.npy"), k=2, columns="1,3").facts["columns"] == 2


def test_columns_of_what_is_no_file_of_vectors_are_refused_and_an_empty_cell_names_no_row(tmp_path):
    with pytest.raises(BadInput, match="columns=x: is for a file of vectors"):
        harken.cluster(np.eye(4), k=2, columns="x")
    file = tmp_path / "points.csv"
    file.write_text("id,x,age\n" + "".join(f"{n},{n % 2},{n if n != 3 else ''}\n" for n in range(8)))
    assert harken.cluster(str(file), k=2, columns="x").points.names is None


def test_points_that_are_all_the_same_and_a_range_that_is_cut_are_told():
    notices = []
    listen = lambda what, **facts: notices.append(facts.get("text", what))  # noqa: E731
    harken.cluster(np.repeat(np.eye(3, 5, dtype=np.float32), 2, 0), k="2-8", listen=listen)
    assert "k=2-8: there are 6 points, so it ends with 5" in notices
    assert "k=3: the points of each cluster are all the same; more clusters say nothing" in notices


@pytest.mark.parametrize("scale", [False, True])
def test_points_keep_the_digits_in_which_they_differ(tmp_path, scale):
    when = 1_700_000_000 + np.arange(60) % 2 + 0.1 * np.random.default_rng(0).random(60)
    (tmp_path / "x.csv").write_text("t,u\n" + "".join(f"{t},{t}\n" for t in when))
    for what in (str(tmp_path / "x.csv"), np.stack([when, when], 1)):
        made = harken.cluster(what, k="2-4", scale=scale)
        assert made.facts["k"] == 2
        assert made.facts["tried"][0]["stability"] == 1.0
        assert abs(np.diff(made.labels[:2])) == 1
        assert len({*made.labels[::2]}) == len({*made.labels[1::2]}) == 1
        if not scale:
            assert sorted(made.best.centres[:, 0]) == pytest.approx(
                [when[::2].mean(), when[1::2].mean()], rel=0, abs=1e-5
            )


@pytest.mark.parametrize(
    ("x", "said"), [(np.ones((20, 2)), "all 20 points are the same"), (np.diag([0, 1e300]), "more than 1e19 apart")]
)
def test_points_that_cannot_be_sorted_are_refused(x, said):
    with pytest.raises(BadInput, match=said):
        harken.cluster(x, k=2)


def test_a_range_ends_where_the_points_do():
    assert [row["k"] for row in harken.cluster(np.eye(4)).facts["tried"]] == [2, 3]


# --- regression -------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    draw = np.random.default_rng(0)
    rows = []
    for n in range(150):
        animal, label = (("cat", "good"), ("dog", "bad"))[n % 2]
        rows.append(f"a {animal} {draw.integers(1000)}\t{label}")
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path / "table.tsv"


def test_both_curves_learn_from_the_same_labels_and_are_judged_by_the_same(table, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(regressing, "LEAST", 40)
    asked, own = [], regressing.embedded
    monkeypatch.setattr(
        regressing, "embedded", lambda model, texts, *rest: asked.append(list(texts)) or own(model, texts, *rest)
    )
    facts = regress(str(folders["char"]), str(table), minutes=0.001, out=tmp_path / "out")
    assert [row["labels"] for row in facts["rows"]] == [40, len(asked[0])]
    for row in facts["rows"]:
        opened = choose(str(table), {"data.examples": row["labels"]}).recipe.data.open()
        learned, valid, test = ([r.texts[0] for r in part.rows] for part in opened.parts.values())
        assert (learned, valid, test) == (asked[0][: row["labels"]], *asked[1:])
        assert 0 <= row["finetuned"] <= 1
        assert 1 <= row["components"] <= 16
    assert facts["rows"][-1]["regression"] > facts["baseline"]
    assert "fine-tuned" in (tmp_path / "out/regression.svg").read_text()


def test_a_number_is_judged_by_its_correlation(folders, tmp_path):
    rows = [f"{'a' * (n % 13 + 1)} b{n}\t{n % 13 + 0.5}" for n in range(150)]
    (tmp_path / "n.tsv").write_text("text\tscore\n" + "\n".join(rows) + "\n")
    facts = regress(str(folders["char"]), str(tmp_path / "n.tsv"), out=tmp_path / "out")
    assert facts["metric"] == "pearson"
    assert facts["rows"][-1]["regression"] > 0.7 > facts["baseline"]


def test_the_labels_grow_by_three_and_end_with_all():
    assert sizes(5000) == [100, 300, 1000, 3000, 5000]
    assert sizes(1100) == [100, 300, 1100]
    assert sizes(90) == [90]


def test_what_has_no_labels_is_not_regressed_on(folders, tales, tmp_path):
    with pytest.raises(BadInput, match="a table of texts with labels is needed"):
        regress(str(folders["char"]), str(tales), out=tmp_path / "out")
