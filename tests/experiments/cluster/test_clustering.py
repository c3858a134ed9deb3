"""harken.cluster and principal component regression: descriptions, files, and equal splits."""

import csv
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import harken
from harken.errors import BadInput
from harken.experiments.choose import choose
from harken.experiments.cluster import pcr
from harken.experiments.cluster.clustering import distinctive_words
from harken.experiments.cluster.pcr import label_counts, principal_component_regression


@pytest.fixture
def three_clusters() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(middle, 0.5, (40, 2)) for middle in ([0, 0], [5, 0], [0, 5])]).astype(np.float32)


def test_a_folder_has_the_clusters_their_centers_and_charts(three_clusters, tmp_path):
    clustering = harken.cluster(three_clusters, k="2-5", out=tmp_path / "out")
    facts = json.loads((tmp_path / "out/clusters.json").read_text())
    assert clustering.k == facts["k"] == 3
    assert facts["choice"] == {"silhouette": 3, "elbow": 3, "stability": 3}
    assert len(facts["candidates"]) == 4
    assert all(len(row["inertias"]) == 10 and row["inertia"] == min(row["inertias"]) for row in facts["candidates"])
    rows = list(csv.DictReader((tmp_path / "out/clusters.csv").read_text().splitlines()))
    assert [int(row["cluster"]) for row in rows] == facts["labels"] == clustering.labels.tolist()
    centers = np.load(tmp_path / "out/centers.npy", allow_pickle=False)
    distances = np.linalg.norm(three_clusters - centers[clustering.labels], axis=1)
    assert [float(row["distance"]) for row in rows] == pytest.approx(distances.tolist(), rel=1e-4)
    svg = ET.parse(tmp_path / "out/clusters.svg").getroot()
    text = " ".join(svg.itertext())
    assert all(f"k = {k}" in text for k in (2, 3, 4, 5))
    assert sum(1 for dot in svg.iter() if dot.tag.endswith("circle") and "seed" in dot.get("class")) == 4 * 120
    assert "k = 3, which is used" in (tmp_path / "out/report.html").read_text()


def test_the_examples_are_the_nearest_points(three_clusters):
    names = [f"point {n}" for n in range(120)]
    clustering = harken.cluster(three_clusters, names, k=3)
    for description in clustering.facts["clusters"]:
        members = np.flatnonzero(clustering.labels == description["cluster"])
        distances = np.linalg.norm(three_clusters[members] - three_clusters[members].mean(0), axis=1)
        expected = members[np.argsort(distances)[:3]].tolist()
        assert [example["row"] - 1 for example in description["examples"]] == expected
        assert [example["text"] for example in description["examples"]] == [names[n] for n in expected]
        assert description["size"] == 40


def test_words_common_to_all_clusters_are_not_distinctive():
    texts = [f"the {animal} runs over the hill" for animal in ("cat", "dog") * 10]
    assert distinctive_words(texts, [0, 1] * 10, 2) == [["cat"], ["dog"]]


def test_columns_are_scaled_only_on_request(three_clusters):
    stretched = three_clusters * [1, 1000] + [[0, 5]]
    scaled = harken.cluster(stretched, k=3, scale=True)
    assert scaled.facts["inertia"] < 200
    assert harken.cluster(stretched, k=3).facts["inertia"] > 1e6


def test_embeddings_are_clustered_at_any_layer(char, folders, tmp_path):
    texts = ["Tom had a hat", "a cat", "the dog ran", "Tom had a cat", "a hat", "the dog saw a cat"]
    (tmp_path / "my.txt").write_text("\n".join(texts) + "\n")
    last, first = (harken.cluster(folders["char"], tmp_path / "my.txt", k=2, layer=layer) for layer in (None, 0))
    assert last.points.x == pytest.approx(char.embed(texts), abs=1e-6)
    assert first.points.x == pytest.approx(char.embed(texts, layer=0), abs=1e-6)
    assert list(last.points.names) == texts


def test_a_run_without_texts_clusters_its_own_data(folders, tales):
    clustering = harken.cluster(folders["char"], k=2, restarts=1)
    assert len(clustering.labels) == sum(1 for line in tales.read_text().splitlines() if line.strip())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 500}, "there are 120 points"),
        ({"k": "many"}, "a range"),
        ({"k": "9-3"}, "a rising range below the 120 points"),
        ({"restart": 3}, "Did you mean restarts"),
        ({"start": "k-means"}, "accepted are"),
    ],
)
def test_invalid_options_are_refused(three_clusters, options, message):
    with pytest.raises(BadInput, match=message):
        harken.cluster(three_clusters, **options)


def test_columns_are_selected_by_name_or_number_and_an_unknown_one_is_reported(tmp_path):
    file = tmp_path / "points.csv"
    rows = [f"p{n},{n},{n % 2 * 100},{n % 3}" for n in range(12)]
    file.write_text("\n".join(["name,id,x,y", *rows]))
    clusterings = [harken.cluster(str(file), k=2, columns=columns) for columns in ("x", " 3")]
    assert all(clustering.facts["labels"] in ([0, 1] * 6, [1, 0] * 6) for clustering in clusterings)
    assert clusterings[0].facts["columns"] == 1
    assert clusterings[0].points.names == [f"p{n}" for n in range(12)]
    with pytest.raises(BadInput, match="no column 'z'; its columns are name, id, x, y"):
        harken.cluster(str(file), k=2, columns="x,z")
    np.save(tmp_path / "points.npy", np.arange(12.0).reshape(4, 3))
    assert harken.cluster(str(tmp_path / "points.npy"), k=2, columns="1,3").facts["columns"] == 2


def test_columns_are_refused_for_other_inputs_and_an_empty_cell_names_no_row(tmp_path):
    with pytest.raises(BadInput, match="columns=x: is for a file of vectors"):
        harken.cluster(np.eye(4), k=2, columns="x")
    file = tmp_path / "points.csv"
    file.write_text("id,x,age\n" + "".join(f"{n},{n % 2},{n if n != 3 else ''}\n" for n in range(8)))
    assert harken.cluster(str(file), k=2, columns="x").points.names is None


def test_equal_points_and_a_limited_range_are_reported():
    notices = []
    listen = lambda what, **facts: notices.append(facts.get("text", what))  # noqa: E731
    harken.cluster(np.repeat(np.eye(3, 5, dtype=np.float32), 2, 0), k="2-8", listen=listen)
    assert "k=2-8: limited to 5, as there are 6 points" in notices
    assert "k=3: the points of each cluster are equal, so a larger k adds nothing" in notices


@pytest.mark.parametrize("scale", [False, True])
def test_points_keep_their_precision(tmp_path, scale):
    times = 1_700_000_000 + np.arange(60) % 2 + 0.1 * np.random.default_rng(0).random(60)
    (tmp_path / "x.csv").write_text("t,u\n" + "".join(f"{t},{t}\n" for t in times))
    for what in (str(tmp_path / "x.csv"), np.stack([times, times], 1)):
        clustering = harken.cluster(what, k="2-4", scale=scale)
        assert clustering.facts["k"] == 2
        assert clustering.facts["candidates"][0]["stability"] == 1.0
        assert abs(np.diff(clustering.labels[:2])) == 1
        assert len({*clustering.labels[::2]}) == len({*clustering.labels[1::2]}) == 1
        if not scale:
            assert sorted(clustering.best.centers[:, 0]) == pytest.approx(
                [times[::2].mean(), times[1::2].mean()], rel=0, abs=1e-5
            )


@pytest.mark.parametrize(
    ("x", "message"), [(np.ones((20, 2)), "all 20 points are equal"), (np.diag([0, 1e300]), "more than 1e19 apart")]
)
def test_invalid_points_are_refused(x, message):
    with pytest.raises(BadInput, match=message):
        harken.cluster(x, k=2)


def test_a_range_is_limited_by_the_number_of_points():
    assert [row["k"] for row in harken.cluster(np.eye(4)).facts["candidates"]] == [2, 3]


# --- regression -------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for n in range(150):
        animal, label = (("cat", "good"), ("dog", "bad"))[n % 2]
        rows.append(f"a {animal} {rng.integers(1000)}\t{label}")
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path / "table.tsv"


def test_regression_and_finetuning_use_the_same_labels_and_splits(table, folders, tmp_path, monkeypatch):
    monkeypatch.setattr(pcr, "MIN_LABELS", 40)
    embedded_texts, embed_points = [], pcr.embed_points
    monkeypatch.setattr(
        pcr,
        "embed_points",
        lambda model, texts, *rest: embedded_texts.append(list(texts)) or embed_points(model, texts, *rest),
    )
    facts = principal_component_regression(
        str(folders["char"]), str(table), finetune_minutes=0.001, out=tmp_path / "out"
    )
    assert [row["labels"] for row in facts["rows"]] == [40, len(embedded_texts[0])]
    for row in facts["rows"]:
        dataset = choose(str(table), {"data.examples": row["labels"]}).recipe.data.load_data()
        train, valid, test = ([r.texts[0] for r in part.rows] for part in dataset.parts.values())
        assert (train, valid, test) == (embedded_texts[0][: row["labels"]], *embedded_texts[1:])
        assert 0 <= row["finetuned"] <= 1
        assert 1 <= row["components"] <= 16
    assert facts["rows"][-1]["regression"] > facts["baseline"]
    assert "fine-tuned" in (tmp_path / "out/regression.svg").read_text()


def test_a_number_is_evaluated_by_its_correlation(folders, tmp_path):
    rows = [f"{'a' * (n % 13 + 1)} b{n}\t{n % 13 + 0.5}" for n in range(150)]
    (tmp_path / "n.tsv").write_text("text\tscore\n" + "\n".join(rows) + "\n")
    facts = principal_component_regression(str(folders["char"]), str(tmp_path / "n.tsv"), out=tmp_path / "out")
    assert facts["metric"] == "pearson"
    assert facts["rows"][-1]["regression"] > 0.7 > facts["baseline"]


def test_label_counts_grow_by_a_factor_of_three_up_to_all():
    assert label_counts(5000) == [100, 300, 1000, 3000, 5000]
    assert label_counts(1100) == [100, 300, 1100]
    assert label_counts(90) == [90]


def test_regression_needs_labels(folders, tales, tmp_path):
    with pytest.raises(BadInput, match="expected a table of texts with labels"):
        principal_component_regression(str(folders["char"]), str(tales), out=tmp_path / "out")
