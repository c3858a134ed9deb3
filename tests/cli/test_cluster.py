"""harken cluster: its output, its JSON and its error messages."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def points(harken):  # in the folder of harken
    rng = np.random.default_rng(0)
    np.save("p.npy", np.concatenate([rng.normal(center, 0.3, (30, 2)) for center in ([0, 0], [5, 5])]))


def test_clusters_are_printed_with_all_inertias_and_a_plot(harken, points):
    output = harken("cluster", "p.npy", "--k", "2-4", "--restarts", 3)
    assert output.code == 0
    rows = [line.split() for line in output.out.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["2", "3", "4"]
    assert all(len(row) == 4 + 3 for row in rows)
    assert "is highest at k = 2, which is used" in output.out
    assert "2 clusters of 60 points" in output.out
    assert "plot: runs/p-clusters/clusters.svg" in output.out


def test_decimal_commas_are_read_with_the_option_that_the_message_names(harken, tmp_path):
    (tmp_path / "p.csv").write_text("x;y\n" + "".join(f"{n % 2 * 5},{n}5;1,{n}\n" for n in range(20)))
    refused = harken("cluster", "p.csv", "--k", 2)
    assert refused.code == 2
    assert "p.csv: column 'x': '0,05' has a decimal comma; " in refused.err
    assert refused.err.endswith("set --decimal ','\n")
    assert "2 clusters of 20 points" in harken("cluster", "p.csv", "--k", 2, "--restarts", 2, "--decimal", ",").out


def test_json_of_cluster_has_k_inertia_and_labels(harken, points):
    actual = json.loads(harken("cluster", "p.npy", "--k", 2, "--out", "there", "--json").out)
    assert actual["k"] == 2
    assert actual["inertia"] == min(actual["inertias"])
    assert sorted(np.bincount(actual["labels"])) == [30, 30]
    assert [name.rpartition("/")[2] for name in actual["files"]] == [
        "centers.npy",
        "clusters.csv",
        "clusters.json",
        "clusters.svg",
        "report.html",
    ]


def test_texts_name_the_rows_of_a_file_of_vectors(harken, points, tmp_path):
    with open("t.txt", "w") as file:
        file.writelines(f"a {'cat' if n < 30 else 'dog'} {n}\n" for n in range(60))
    actual = json.loads(harken("cluster", "p.npy", "t.txt", "--k", 2, "--json").out)
    assert sorted(cluster["words"] for cluster in actual["clusters"]) == [["cat"], ["dog"]]


def test_a_run_embeds_the_texts_of_a_file(harken, run):
    with open("t.txt", "w") as file:
        file.writelines(f"{'a hat' if n % 2 else 'Tom ran'} {n}\n" for n in range(20))
    actual = json.loads(harken("cluster", run, "t.txt", "--k", 2, "--layer", 1, "--json").out)
    assert len(actual["labels"]) == 20
    assert actual["settings"]["layer"] == 1


def test_a_table_of_texts_is_clustered_with_the_line_of_each_row_and_without_empty_texts(harken, run):
    words = [f"{'a hat' if n % 2 else 'Tom ran'} {n}" for n in range(20)]
    words[3], words[7] = " ", '"Tom\nran"'
    with open("t.csv", "w") as file:
        file.write("word,n\n" + "".join(f"{word},{n}\n" for n, word in enumerate(words)))
    done = harken("cluster", run, "t.csv", "--k", 2, "--column", "word", "--out", "out")
    assert "t.csv: 1 row has no text and no cluster" in done.out + done.err
    with open("out/clusters.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["line"], row["text"]) for row in rows[5:8]] == [("8", words[6]), ("9", "Tom\nran"), ("11", words[8])]
    assert [int(row["row"]) for row in rows] == list(range(1, 20))
    assert {"2", "3", "4", "6"} <= {row["line"] for row in rows}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nope.npy"], "nope.npy: no such file; give a .npy file or a table of vectors"),
        (["p.npy", "data.decimal=,"], "cluster has no settings; use an option, such as --decimal or --column"),
        (["p.npy", "--k", "61"], "k=61: there are 60 points; k must be between 1 and 60"),
        (["p.npy", "--k", "two"], "expected a number (3), a range (2-8) or a list (2,4,8)"),
        (["p.npy", "--finetune-minutes", "1"], "--finetune-minutes has no effect without --regress"),
        (["p.npy", "--regress"], "--regress needs the target column: harken cluster p.npy --regress COLUMN"),
        (["p.npy", "--regress", "5"], "p.npy: no column '5'; its columns are 1, 2"),
        (["p.npy", "--components", "2"], "components=2: has no effect without regress"),
        (["p.npy", "--layer", "2"], "layer=2: is for a run"),
        (["p.npy", "--start", "best"], "'best' is not one of"),
        (["p.npy", "nope.txt"], "nope.txt: no such file; name a file of texts"),
    ],
)
def test_invalid_arguments_are_refused_in_one_line(harken, points, args, message):
    output = harken("cluster", *args)
    assert output.code == 2
    assert message in output.err
    assert output.err.count("\n") == 1


def test_a_folder_that_is_not_empty_is_refused(harken, points):
    harken("cluster", "p.npy", "--k", 2, "--out", "there")
    assert "there: is not empty" in harken("cluster", "p.npy", "--k", 2, "--out", "there").err
    harken("cluster", "p.npy", "--k", 2)
    assert "runs/p-clusters-2/" in harken("cluster", "p.npy", "--k", 2).out


def test_embed_takes_a_layer(harken, run):
    first, last, full = (harken("embed", run, "Tom", *more).out for more in (["--layer", 0], ["--layer", 1], []))
    assert len({first, last, full}) == 3
    assert "layer=2: this run has 1" in harken("embed", run, "Tom", "--layer", 2).err


# --- labels and regression --------------------------------------------------------------------------------------------


@pytest.fixture
def table(harken):  # in the folder of harken
    rng = np.random.default_rng(0)
    F = rng.normal(size=(120, 3))
    x, y = F @ rng.normal(size=(3, 6)), F @ [2, -1, 0.5]
    rows = [[*(f"{v:.9f}" for v in row), f"{t:.9f}", "hot" if t > 0 else "cold"] for row, t in zip(x, y, strict=True)]
    with open("reg.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "d", "e", "f", "price", "kind"], *rows])
    return x, y


def test_the_target_of_a_table_is_regressed_on_the_components_of_the_other_columns(harken, table):
    x, y = table
    facts = json.loads(harken("cluster", "reg.csv", "--regress", "price", "--k", "2-3", "--out", "o", "--json").out)
    fit = facts["regression"]
    assert (fit["target"], fit["components"], facts["columns"]) == ("price", 3, 6)
    assert fit["r2"] > 0.99
    assert [*fit["coefficients"]] == ["a", "b", "c", "d", "e", "f"]
    predicted = fit["intercept"] + x @ [*fit["coefficients"].values()]
    assert predicted == pytest.approx(y, abs=1e-5)
    with open("o/regression.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["predicted"]) for row in rows] == pytest.approx(predicted.tolist(), abs=1e-6)
    assert "R^2 over components" in Path("o/clusters.svg").read_text()
    assert "Regression" in Path("o/report.html").read_text()
    z = (x - x.mean(0)) / x.std(0)
    total = ((z - z.mean(0)) ** 2).sum()
    assert facts["inertia"] < total
    assert facts["candidates"][0]["inertia"] > 0.2 * total  # of standardized columns without the target


def test_the_regression_of_a_table_is_printed_with_its_components_and_coefficients(harken, table):
    output = harken("cluster", "reg.csv", "--regress", "price", "--components", 2, "--k", 2, "--columns", "a,b,price")
    lines = output.out.splitlines()
    assert "price from 2 components: R^2 " in output.out
    assert [line.split()[0] for line in lines if line[:2] in ("a ", "b ", "c ")] == ["a", "b"]
    assert "reg.csv: the text column 'kind' names the rows" in output.err + output.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--regress", "prise"],
            "no column 'prise'; its columns are a, b, c, d, e, f, price, kind. Did you mean price?",
        ),
        (["--regress", "kind"], "'kind' has text, such as 'hot'; a regression needs numbers; its columns of numbers: "),
        (["--regress", "price", "--components", "9"], "components=9: this table has 1 to 3 components with variance"),
        (["--regress", "price", "--columns", "price"], "the only column is the target 'price'"),
    ],
)
def test_an_impossible_regression_is_refused_in_one_line(harken, table, args, message):
    output = harken("cluster", "reg.csv", *args)
    assert output.code == 2
    assert message in output.err.splitlines()[-1]


def test_clusters_are_compared_with_the_labels_of_a_table(harken, run):
    with open("t.csv", "w") as file:
        file.write("text,kind\n" + "".join(f"{'a hat' if n % 2 else 'Tom ran!'},{'xy'[n % 2]}\n" for n in range(20)))
    output = harken("cluster", run, "t.csv", "--k", 2, "--out", "o")
    assert "Compared with the 2 labels, which the clustering does not use: NMI 1.00, purity 1.00." in output.out
    assert "cluster 0: 10 points" in output.out
    with open("o/clusters.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["label"], row["text"]) for row in rows} == {("x", "Tom ran!"), ("y", "a hat")}
    facts = json.loads(harken("cluster", run, "t.csv", "--k", 2, "--json").out)
    assert (facts["true_labels"], facts["nmi"], facts["purity"]) == (2, pytest.approx(1), 1)
    assert sorted([*cluster["labels"].items()] for cluster in facts["clusters"]) == [[("x", 10)], [("y", 10)]]


@pytest.mark.parametrize("option", [["--column", "text"], ["--decimal", ","], ["--k", "3"]])
def test_an_option_without_effect_on_a_regression_of_a_run_is_refused(harken, run, option):
    Path("t.csv").write_text("text,kind\n")
    output = harken("cluster", run, "t.csv", "--regress", "kind", *option)
    assert (output.code, f"{option[0]} has no effect with --regress and a run" in output.err) == (2, True)


def test_a_table_named_after_regress_is_reported(harken, run):
    Path("t.csv").write_text("text,kind\n")
    message = f"before --regress: harken cluster {run} t.csv --regress"
    assert message in harken("cluster", run, "--regress", "t.csv").err
