"""Runs on sets: train, evaluate, audit, resume, compare, classify."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, mean_squared_error, r2_score

import harken
from harken.errors import BadInput
from harken.experiments.audit.audit import audit
from harken.experiments.choose import choose
from harken.tasks.sets import SetTask, predict

TINY = {"model.size": "tiny", "train.threads": 1, "train.batch": 16, "train.lr": 5e-3}


def windows(path: Path, n_sets: int = 160, seed: int = 0, *, label: bool = True, amount: bool = False) -> Path:
    """Correlated or anticorrelated readings with equal means and standard deviations."""
    rng = np.random.default_rng(seed)
    lines = ["window,a,b" + ",kind" * label]
    for n in range(n_sets):
        kind, size = n % 2, int(rng.integers(8, 14))
        a = rng.normal(size=size)
        b = (a if kind else -a) + 0.1 * rng.normal(size=size)
        target = f"{a.max() - a.min():.3f}" if amount else ("against", "together")[kind]
        lines += [f"w{n},{x:.4f},{y:.4f}" + f",{target}" * label for x, y in zip(a, b, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    return windows(tmp_path_factory.mktemp("sets") / "windows.csv")


@pytest.fixture(scope="module")
def trained(table, tmp_path_factory) -> harken.Run:
    return harken.train(table, out=tmp_path_factory.mktemp("runs") / "w", settings={**TINY, "train.steps": 150})


@pytest.fixture(scope="module")
def regression(tmp_path_factory) -> harken.Run:
    table = windows(tmp_path_factory.mktemp("amounts") / "range.csv", amount=True)
    return harken.train(table, out=tmp_path_factory.mktemp("runs") / "r", settings={**TINY, "train.steps": 60})


def test_a_set_model_learns_what_means_and_deviations_do_not_show(trained):
    baseline, metrics = trained.facts["baseline"]["test"], trained.metrics["test"]
    assert set(baseline) == {"most frequent label", "regression on means and standard deviations"}
    assert metrics["accuracy"] > 0.9
    assert baseline["regression on means and standard deviations"]["accuracy"] < 0.8
    assert trained.facts["data"]["unit"] == "sets"


def test_a_set_of_which_a_sample_is_read_gives_a_notice(trained):
    run, rows = harken.load(trained.path), np.random.default_rng(0).normal(size=(12, 2))
    run.recipe, notices = run.recipe.change(data__max_rows=10), []
    run.classify([rows, rows[:10]], listen=lambda event, **facts: notices.append(facts["text"]))
    counts = "1 of 2 sets is longer than 10 rows (longest: 12) and was sampled"
    assert notices == [f"{counts}; increase data.max_rows to keep more"]


def test_the_audit_checks_permutation_batching_and_padding(trained):
    outcomes = {check["name"]: check["outcome"] for check in trained.facts["audit"]["checks"]}
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    assert passed == {"padding", "permutation", "batching", "accumulation"}


def test_the_audit_detects_a_model_that_uses_positions(trained):
    model = harken.load(trained.path).model

    class Counting(type(model.body)):
        def forward(self, x, lengths=None):
            return super().forward(x + 0.1 * torch.arange(x.shape[1])[:, None], lengths)

    model.body.__class__ = Counting
    assert [check.name for check in audit(model).checks if check.outcome == "failed"] == ["permutation"]


def test_metrics_match_scikit_learn(trained, regression):
    for run in (trained, regression):
        dataset = run.recipe.load_data(run.tokenizer)
        part, processor = dataset.splits["test"], run.tokenizer
        y, metrics = predict(run.model, part), run.metrics["test"]
        if processor.target_type == "label":
            pooled = run.evaluate("test").metrics
            assert pooled["accuracy"] == pytest.approx((y.argmax(1).numpy() == part.targets).mean())
            assert pooled["f1"] == pytest.approx(f1_score(part.targets, y.argmax(1), pos_label=1))
            continue
        gold, predicted = (
            x * processor.std + processor.mean for x in (part.targets[:, 0].astype(float), y[:, 0].double().numpy())
        )
        assert metrics["r2"] == pytest.approx(r2_score(gold, predicted), abs=1e-4)
        assert metrics["mse"] == pytest.approx(mean_squared_error(gold, predicted), rel=1e-4)
        assert {"loss", "r2", "mse", "pearson", "spearman", "mae", "rmse"} == metrics.keys()
        baseline = run.facts["baseline"]["test"]
        assert baseline["mean of all"]["r2"] <= 0
        assert metrics["r2"] > baseline["mean of all"]["r2"]


def test_the_baseline_features_are_mean_deviation_and_size(trained):
    part = trained.recipe.load_data(trained.tokenizer).splits["test"]
    for row, start, stop in zip(SetTask.features(None, part), part.starts, part.starts[1:], strict=False):
        rows = part.rows[start:stop].double().numpy()
        expected = [*rows.mean(0), *rows.std(0), np.log(len(rows))]
        np.testing.assert_allclose(row.numpy(), expected, atol=1e-6)


def test_tables_single_sets_and_arrays_give_the_same_answers(trained, tmp_path):
    other = windows(tmp_path / "other.csv", 6, seed=5, label=False)
    predictions = trained.classify(str(other))
    assert len(predictions) == 6
    single = trained.classify(f"{other}[w3]")
    cells = [line.split(",") for line in other.read_text().splitlines()[1:]]
    rows = np.array([[float(a), float(b)] for name, a, b in cells if name == "w3"])
    for prediction in (single, *trained.classify([rows[::-1]])):
        assert prediction[0]["label"] == predictions[3][0]["label"]
        assert prediction[0]["probability"] == pytest.approx(predictions[3][0]["probability"], abs=1e-5)
    with pytest.raises(BadInput, match=r"give rows of 2 numbers \(a, b\)"):
        trained.classify([rows[:, :1]])
    with pytest.raises(BadInput, match=r"has no set 'w7'; it has 6, such as w0, w1, w2"):
        trained.classify(f"{other}[w7]")


def test_a_regression_target_has_its_unit(regression, tmp_path):
    other = windows(tmp_path / "other.csv", 4, seed=5, label=False)
    values = [labels[0]["value"] for labels in regression.classify(str(other))]
    assert {labels[0]["label"] for labels in regression.classify(str(other))} == {"kind"}
    assert 0.5 < np.mean(values) < 7


def test_other_sets_are_evaluated_with_their_own_labels(trained, tmp_path):
    other = windows(tmp_path / "other.csv", 20, seed=6)
    score, baseline = trained.evaluate("test", data=str(other))
    predicted = [labels[0]["label"] for labels in trained.classify(str(other))]
    accuracy = np.mean([label == ("against", "together")[n % 2] for n, label in enumerate(predicted)])
    assert score.protocol["sets"] == 20
    assert score.metrics["accuracy"] == pytest.approx(accuracy)
    assert baseline
    with pytest.raises(BadInput, match="no column 'kind'"):
        trained.evaluate("test", data=str(windows(tmp_path / "bare.csv", 4, label=False)))


def test_settings_are_compared_on_the_same_sets(table, tmp_path):
    axes = {"model.pool": ["mean", "first", "seed"]}
    comparison = harken.compare(table, axes, settings={**TINY, "train.steps": 8}, seeds=1, out=tmp_path / "c")
    assert [row["settings"]["model.pool"] for row in comparison.rows] == axes["model.pool"]
    assert all(0 <= row["metrics"]["accuracy"] <= 1 for row in comparison.rows)


def test_a_run_initializes_another_on_the_same_columns(trained, tmp_path):
    settings = {"from": str(trained.path), "transfer": "frozen", "train.steps": 5, "data.test": 0}
    run = harken.train(windows(tmp_path / "more.csv", 60, seed=3), out=tmp_path / "run", settings=settings)
    assert run.tokenizer.feature_mean == trained.tokenizer.feature_mean
    old, new = trained.model.body.state_dict(), run.model.body.state_dict()
    assert all((old[name] == new[name]).all() for name in old)


def test_a_group_column_makes_sets_of_a_table(tmp_path):
    path = windows(tmp_path / "a.csv")
    path.write_text(path.read_text().replace("window,", "colour,"))
    with pytest.raises(BadInput, match=r"no column holds text; .*data\.kind=sets data\.group=COLUMN"):
        choose(str(path))
    choice = choose(str(path), {"data.group": "colour"})
    assert (choice.recipe.data.kind, choice.recipe.model.kind, choice.recipe.task.kind) == ("sets", "set", "set")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("source\ttarget\tfar\n" + "".join(f"a line of {n} words\tone of {n}\t{n}\n" for n in range(50)))
    assert choose(str(pairs), {"data.group": "far"}).recipe.data.kind == "pairs"  # its groups are evaluated separately


def test_other_sets_are_read_with_the_decimal_sign_of_the_run(tmp_path):
    table = windows(tmp_path / "a.csv", 40)
    table.write_text(table.read_text().replace(",", ";").replace(".", ","))
    with pytest.raises(BadInput, match=r"column 'a': '.*' has a decimal comma; .* set data\.decimal=','$"):
        harken.train(table, out=tmp_path / "refused", settings={**TINY, "train.steps": 2})
    settings = {**TINY, "train.steps": 2, "data.decimal": ","}
    run = harken.train(table, out=tmp_path / "run", settings=settings)
    assert len(run.classify(str(table))) == 40
    assert run.evaluate(data=str(table)).metrics["loss"] > 0
    windows(table, 40)
    with pytest.raises(BadInput, match="has a decimal point; numbers with a decimal comma are accepted"):
        run.classify(str(table))


def test_an_unsupported_trace_is_refused_in_one_line(trained):
    with pytest.raises(BadInput, match="this run classifies sets of rows; its attention is not traced"):
        trained.trace("a text")


def test_the_suggested_command_accepts_the_sets_of_the_report(trained):
    example = trained.facts["example"]
    assert trained.classify(example)[0]["label"] in ("against", "together")
    assert "windows.csv[w" in (trained.path / "report.html").read_text()
