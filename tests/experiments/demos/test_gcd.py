"""harken demo gcd: accuracy and most frequent prediction per gcd."""

from harken.experiments import train
from harken.experiments.demos import lectures

TINY = {"model.d": 16, "model.layers": 1, "train.steps": 2, "data.valid": 100, "data.test": 300}


def test_the_gcd_demo_shows_the_accuracy_and_the_divisors_visible_in_the_base(tmp_path, monkeypatch):
    def small(what, settings, minutes, **options):
        assert (what, settings["data.outcomes"]) == ("maths:gcd", "log-uniform")
        return train.train(what, settings={**settings, **TINY}, **options)

    monkeypatch.setattr(lectures, "train", small)
    output = lectures.gcd(out=tmp_path / "run")
    lines = output.text_lines()
    assert [line.split("->")[0].strip() for line in lines[: len(lectures.PROBLEMS)]] == list(lectures.PROBLEMS)
    rows = [line.split() for line in lines if line.strip()[:1].isdigit() and "%" in line]
    divisors = {int(row[0]): int(row[-1]) for row in rows}
    assert divisors == {k: divisor for k, divisor in {7: 1, 11: 1, 14: 2}.items() if k in divisors} | {
        k: k for k in divisors if k not in (7, 11, 14)
    }
    assert len(rows) > 6
    learned = output.run.facts["protocol"]["test"]["gcds_learned"]
    n_learned, n_gcds = output.run.metrics["test"]["learned"], len(output.run.facts["parts"]["test"])
    assert lines[-1] == f"learned: {n_learned:.0f} of {n_gcds}: {learned}"
    assert next(iter(output.hints)) == f'harken translate {tmp_path / "run"} "160 120"'
