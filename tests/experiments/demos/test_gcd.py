"""harken demo gcd: which gcds are known, and what is said of the others."""

from harken.experiments import train
from harken.experiments.demos import gcd

TINY = {"model.d": 16, "model.layers": 1, "train.steps": 2, "data.valid": 100, "data.test": 300}


def test_the_gcd_demo_shows_the_accuracy_and_the_divisors_visible_in_the_base(tmp_path, monkeypatch):
    def small(what, settings, minutes, **how):
        assert (what, settings["data.outcomes"]) == ("maths:gcd", "log-uniform")
        return train.train(what, settings={**settings, **TINY}, **how)

    monkeypatch.setattr(gcd, "train", small)
    shown = gcd.gcd(out=tmp_path / "run")
    said = shown.said()
    assert [line.split("->")[0].strip() for line in said[: len(gcd.ASKED)]] == list(gcd.ASKED)
    rows = [line.split() for line in said if line.strip()[:1].isdigit() and "%" in line]
    rules = {int(row[0]): int(row[-1]) for row in rows}
    assert rules == {k: rule for k, rule in {7: 1, 11: 1, 14: 2}.items() if k in rules} | {
        k: k for k in rules if k not in (7, 11, 14)
    }
    assert len(rows) > 6
    known = shown.run.facts["protocol"]["test"]["gcds_learned"]
    assert (
        said[-1]
        == f"learned: {shown.run.metrics['test']['learned']:.0f} of {len(shown.run.facts['parts']['test'])}: {known}"
    )
    assert next(iter(shown.hints)) == f'harken translate {tmp_path / "run"} "160 120"'
