"""harken chat: one message, lines of stdin, a conversation on a terminal, JSON."""

import json
from collections.abc import Iterator

import pytest

from harken.console import ConsoleListener


class Echo:
    """A run whose conversation repeats each message in two pieces."""

    def __init__(self):
        self.options, self.messages = {}, []

    def chat(self, **options):
        self.options = options
        return self

    def send(self, message: str) -> Iterator[str]:
        self.messages += [("user", message), ("assistant", f"You said:\n{message}")]
        yield "You said:\n"
        yield message


@pytest.fixture
def run(monkeypatch):
    echo = Echo()
    monkeypatch.setattr("harken.inference.run.load", lambda path, precision: echo)
    return echo


def test_one_message_is_answered_once(harken, run):
    output = harken("chat", "runs/any", "Hello", "--system", "Be kind.", "--temperature", 0, "--tokens", 7)
    assert output.out == "You said:\nHello\n"
    assert isinstance(run.options.pop("listen"), ConsoleListener)
    assert run.options == {"system": "Be kind.", "max_new_tokens": 7, "temperature": 0.0, "top_p": None, "seed": 0}


def test_an_empty_system_message_is_none(harken, run):
    harken("chat", "runs/any", "Hello", "--system", "")
    assert run.options["system"] is None


def test_each_line_of_stdin_gets_one_line(harken, run):
    assert harken("chat", "runs/any", stdin=b"Hello\nBye\n").out == "You said:\\nHello\nYou said:\\nBye\n"


def test_json_has_the_conversation(harken, run):
    messages = json.loads(harken("chat", "runs/any", "-", "--json", stdin=b"Hello\n").out)["messages"]
    assert messages == [{"role": "user", "text": "Hello"}, {"role": "assistant", "text": "You said:\nHello"}]


def test_on_a_terminal_an_empty_line_ends_the_conversation(harken, run, monkeypatch):
    lines = iter(["Hello", "Bye", ""])
    monkeypatch.setattr("click.prompt", lambda *args, **options: next(lines))
    assert harken("chat", "runs/any").out == "You said:\nHello\nYou said:\nBye\n"
