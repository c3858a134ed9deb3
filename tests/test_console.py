"""Progress and evaluation on the console: a bar on a terminal, lines elsewhere, rounded numbers, aligned columns."""

import sys
import time
from types import ModuleType

import pytest

from harken import console
from harken.console import ConsoleListener, columns, evaluation_lines


@pytest.fixture
def terminal(monkeypatch):
    """stdout and stderr are a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.mark.parametrize(
    ("env", "live"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)], ids=["plain", "no", "dumb"]
)
def test_a_bar_is_drawn_only_on_a_terminal(terminal, monkeypatch, env, live):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert ConsoleListener(to_stderr=False).live is live
    assert ConsoleListener(to_stderr=True).live is live


def test_no_bar_is_drawn_when_stdout_is_a_file(terminal, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not ConsoleListener(to_stderr=False).live
    assert ConsoleListener(to_stderr=True).live  # the bar is drawn on stderr


def test_the_bar_shows_the_last_loss_and_speed_and_is_removed(terminal, monkeypatch):
    with ConsoleListener(to_stderr=False) as listener:
        listener("step", step=1, steps=9, loss=2.5, tokens_per_second=4321)
        listener("step", step=2, steps=9, loss=2.25, lr=0.00123)
        assert listener.bar.tasks[0].fields["text"] == "loss 2.2500   lr 0.0012   4,321 tokens/s"
        assert (listener.bar.tasks[0].completed, listener.bar.tasks[0].total) == (2, 9)
    assert listener.bar is None


def test_without_a_terminal_validations_and_the_last_step_are_lines(capsys):
    with ConsoleListener(to_stderr=False) as listener:
        listener.last = time.monotonic() - 5  # long enough for a validation line, too short for a step line
        for step, more in ((1, {}), (2, {"valid": 2.0}), (3, {}), (4, {})):
            listener("step", step=step, steps=4, loss=2.5, lr=0.1 / step, **more)
    assert capsys.readouterr().out.splitlines() == [
        "  step       2 of 4   loss 2.5000   valid 2.0000 (fast validation)   lr 0.05",
        "  step       4 of 4   loss 2.5000   lr 0.025",  # an old validation loss is not repeated
    ]


def test_of_validations_within_a_second_the_first_and_the_last_are_printed(capsys, monkeypatch):
    monkeypatch.setattr(console.time, "monotonic", lambda: now)
    with ConsoleListener(to_stderr=False) as listener:
        for step in range(1, 36):
            now = 100 + step / 10
            listener("step", step=step, steps=400, loss=2.5, valid=2.0)
        listener("notice", text="stopped early")
        for step in (36, 37):
            listener("step", step=step, steps=400, loss=2.5, valid=2.0)
        now += 2
        listener("step", step=38, steps=400, loss=2.5)  # no validation: the held line is printed
        listener("step", step=39, steps=400, loss=2.5, valid=2.0)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == [1, 12, 23, 34, 35, 37, 39]


def test_with_to_stderr_every_event_is_printed_on_stderr(capsys):
    with ConsoleListener(to_stderr=True) as listener:
        listener("measure")
        listener("evaluate")
        listener("notice", text="mind the gap")
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.split()[0] for line in output.err.splitlines()] == ["measuring", "final", "mind"]


def test_a_download_is_printed_once_on_stderr(capsys):
    with ConsoleListener(to_stderr=False) as listener:
        listener("fetch", name="shakespeare", done=0, total=5_400_000)
        listener("fetch", name="shakespeare", done=5_400_000, total=5_400_000)
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "downloading shakespeare, 5.4 MB ...\n")


def test_an_unknown_event_is_ignored(capsys):
    ConsoleListener(to_stderr=False)("eclipse", moon=1)
    assert capsys.readouterr().out == ""


FACTS = {
    "metrics": {"valid": {"loss": 2.5, "bits_per_character": 3.6}, "other data": {"loss": 12.5}},
    "baseline": {"valid": {"unigram": {"loss": 3.1234567, "bits_per_character": 4.5}}},
    "parts": {"valid": {"a.txt": {"loss": 2.0}}},
    "protocol": {"valid": {"tokens": 12345, "context": 16, "how": "as ever"}},
}


def test_an_evaluation_lists_model_groups_baselines_and_protocol():
    assert evaluation_lines(FACTS) == [
        "  valid       loss  2.500   bits per character  3.600   this model",
        "              loss  2.000                               this model on a.txt",
        "              loss  3.123   bits per character  4.500   baseline: unigram",
        "              (tokens 12,345, context 16, how as ever)",
        "  other data  loss  12.50   this model",
    ]


def test_an_evaluation_shows_skipped_updates_non_finite_metrics_and_a_failed_audit():
    audit = {"passed": False, "summary": "1 of 7 checks failed: causal"}
    assert evaluation_lines({"metrics": {"valid": {"loss": None}}, "audit": audit, "skipped": 9, "steps": 10}) == [
        "  valid   loss    nan   this model",
        "          9 of 10 updates were skipped: their loss or gradient was not finite.",
        "  audit   The metrics are not reliable: 1 of 7 checks failed: causal.",
    ]


def test_an_evaluation_without_a_held_out_split_is_explained():
    assert evaluation_lines({"metrics": {}}) == [
        "  (no split is held out, so there is no evaluation; set data.valid or data.test)"
    ]


def test_an_evaluation_on_too_few_tokens_gives_no_verdict():
    small = FACTS | {"protocol": {"valid": {"tokens": 999}}}
    assert "              (too few tokens for a verdict; 1,000 are needed)" in evaluation_lines(small)
    assert not any("too few" in line for line in evaluation_lines(FACTS))


def test_columns_are_as_wide_as_their_widest_cell():
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == ["a    bb  c", "aaa  b"]


def test_columns_are_aligned_with_wide_characters():
    assert columns([("三国", "x"), ("abc", "y")]) == ["三国  x", "abc   y"]


def test_a_finished_run_prints_its_verdict_against_the_baseline():
    facts = {
        "metrics": {"test": {"loss": 0.7, "accuracy": 0.5}},
        "baseline": {"test": {"bag of words": {"loss": 0.1, "accuracy": 1.0}}},
        "protocol": {"test": {"texts": 40, "primary_metric": "accuracy"}},
        "audit": {"passed": True, "summary": "all is well"},
    }
    assert evaluation_lines(facts)[-2:] == [
        "  verdict Accuracy 0.500 on the test split, no better than the best trivial baseline 1.00 (bag of words).",
        "  audit   all is well",
    ]


def test_small_groups_of_pairs_are_shown_only_in_the_report():
    parts = {
        "3 words": {"bleu": 9.0, "pairs": 9, "position": 3.0},
        "4 words": {"bleu": 8.0, "pairs": 10, "position": 4.0},
    }
    shown = "\n".join(evaluation_lines({"metrics": {"test": {"bleu": 8.5}}, "parts": {"test": parts}}))
    assert "this model on 4 words" in shown
    assert "3 words" not in shown


def test_data_is_counted_in_its_unit_and_one_step_is_singular(capsys):
    with ConsoleListener(to_stderr=False) as listener:
        counts = {"tokens": {"train": 4046}, "texts": {"train": 90}, "unit": "texts", "token": "bpe", "vocab": 200}
        listener("data", facts=counts, parameters=5)
        pairs = {"pairs": {"train": 90, "valid": 30}, "references": {"valid": 10.0}, "overlap": 0}
        listener("data", facts=pairs | {"token": "word", "vocab": [7, 7]}, parameters=5)
        listener("start", step=0, steps=1, epochs=0.5, predicted=None)
    messages = capsys.readouterr().out.splitlines()
    assert messages[0] == "  data    train 90 texts (byte pairs, vocabulary 200)"
    assert messages[2].endswith("; references per held-out source: 10.0 on average")
    assert messages[4] == "  train   1 step = 0.5 epochs"


# --- harken.train -----------------------------------------------------------------------------------------------------


class KernelApp:
    """The application of a notebook kernel."""

    @staticmethod
    def initialized() -> bool:
        return True


@pytest.fixture
def notebook(monkeypatch):
    """This process is the kernel of a notebook."""
    kernel = ModuleType("ipykernel.kernelapp")
    kernel.IPKernelApp = KernelApp
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", kernel)


def test_output_to_a_file_is_not_interactive_and_a_terminal_and_a_notebook_are(monkeypatch, request):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert not console.is_interactive()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert console.is_interactive()
    monkeypatch.setattr(sys, "stdout", None)  # a program without a console
    assert not console.is_interactive()
    request.getfixturevalue("notebook")
    assert console.is_interactive()


TINY = {"model.d": 16, "model.layers": 1, "model.heads": 2, "model.context": 16, "train.steps": 1, "train.batch": 4}


def trained_output(tales, folder, capsys, **options) -> str:
    import harken

    capsys.readouterr()
    harken.train(tales, out=folder, settings=TINY, **options)
    return capsys.readouterr().out


def test_train_prints_its_progress_in_a_notebook_unless_it_is_quiet(notebook, tales, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    events = []
    out = trained_output(tales, tmp_path / "a", capsys)
    assert [text in out for text in ("  data    ", "  step       1 of 1", "  final evaluation")] == [True] * 3
    assert trained_output(tales, tmp_path / "b", capsys, quiet=True) == ""
    assert trained_output(tales, tmp_path / "c", capsys, listen=lambda event, **_: events.append(event)) == ""
    assert {"data", "start", "step", "evaluate"} <= set(events)


def test_train_prints_nothing_when_its_output_goes_to_a_file(tales, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("harken.experiments.report.sections.SAMPLE_TOKENS", 2)
    assert trained_output(tales, tmp_path / "a", capsys) == ""
