"""How the work is told: a bar where somebody watches, lines elsewhere, numbers in few figures, verdicts in columns."""

import sys

import pytest

from harken.cli.say import Teller, columns, duration, energy, figure, number, verdict


@pytest.fixture
def terminal(monkeypatch):
    """stdout and stderr say they are a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("env", "live"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=["plain", "no", "dumb"]
)
def test_a_bar_is_drawn_only_where_somebody_watches(terminal, monkeypatch, env, live):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert Teller(quiet=False).live is live
    assert not Teller(quiet=True).live


def test_no_bar_is_drawn_when_stdout_goes_into_a_file(terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not Teller(quiet=False).live


def test_the_bar_shows_the_last_known_loss_and_speed_and_is_put_away(terminal, monkeypatch):
    with Teller(quiet=False) as teller:
        teller("step", step=1, steps=9, loss=2.5, tokens_per_second=4321)
        teller("step", step=2, steps=9, loss=2.25)
        assert teller.bar.tasks[0].fields["text"] == "loss 2.2500   4.32 k tokens/s"
        assert (teller.bar.tasks[0].completed, teller.bar.tasks[0].total) == (2, 9)
    assert teller.bar is None


def test_elsewhere_the_looks_at_the_valid_split_and_the_last_step_are_lines(capsys):
    with Teller(quiet=False) as teller:
        teller.last = float("inf")  # as if a line had just been written
        for step, more in ((1, {}), (2, {"valid": 2.0}), (3, {}), (4, {})):
            teller("step", step=step, steps=4, loss=2.5, **more)
    assert capsys.readouterr().out.splitlines() == [
        "  step       2 of 4   loss 2.5000   valid 2.0000",
        "  step       4 of 4   loss 2.5000   valid 2.0000",
    ]


def test_with_json_only_notices_are_told_and_on_stderr(capsys):
    with Teller(quiet=True) as teller:
        teller("measure")
        teller("judge")
        teller("fetch", name="x", done=0, total=9)
        teller("notice", text="mind the gap")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "mind the gap\n")


def test_something_that_travels_is_told_on_stderr_once(capsys):
    with Teller(quiet=False) as teller:
        teller("fetch", name="shakespeare", done=0, total=5_400_000)
        teller("fetch", name="shakespeare", done=5_400_000, total=5_400_000)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "fetching shakespeare, 5.4 MB ...\n")


def test_an_event_nobody_knows_is_passed_over(capsys):
    Teller(quiet=False)("eclipse", moon=1)
    assert capsys.readouterr().out == ""


FACTS = {
    "metrics": {"valid": {"loss": 2.5, "bits_per_character": 3.6}, "other data": {"loss": 12.5}},
    "baseline": {"valid": {"unigram": {"loss": 3.1234567, "bits_per_character": 4.5}}},
    "parts": {"valid": {"a.txt": {"loss": 2.0}}},
    "protocol": {"valid": {"tokens": 12345, "context": 16, "how": "as ever"}},
}


def test_a_verdict_has_model_parts_baselines_and_protocol_one_below_the_other():
    assert verdict(FACTS) == [
        "  valid       loss  2.500   bits per character  3.600   this model",
        "              loss  2.000   this model on a.txt",
        "              loss  3.123   bits per character  4.500   unigram, for free",
        "              (tokens 12,345, context 16, how as ever)",
        "  other data  loss  12.50   this model",
    ]


def test_a_verdict_without_held_out_text_says_so():
    assert verdict({"metrics": {}}) == ["  (no text is held out, so nothing is judged: data.valid, data.test)"]


def test_numbers_are_told_in_few_figures():
    assert [number(n) for n in (7, 1234, 1_234_567, 2e9)] == ["7", "1.23 k", "1.23 M", "2 G"]
    assert [duration(s) for s in (2.345, 95, 7300)] == ["2.35 s", "1 min 35 s", "2.0 h"]
    assert [energy(kwh) for kwh in (0.0123, 2.5)] == ["12.3 Wh", "2.5 kWh"]
    assert [figure(x) for x in (2.71, 0.5, 1234.4, 56789.2)] == ["2.710", "0.5000", "1234", "56,789"]


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == ["a    bb  c", "aaa  b"]
