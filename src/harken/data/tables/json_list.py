"""A JSON list as JSON lines, without reading the whole list into memory."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from harken.errors import BadInput

from .read import input_error

MAX_VALUE = 1 << 26  # characters of a value of the list
SPACE = re.compile(r"[ \t\r\n\ufeff]*")
VALUES = tuple("[-0123456789tfn")  # the first characters of lists, numbers, true, false and null
DECODER = json.JSONDecoder()


def json_list_lines(path: Path, texts: Iterator[str]) -> Iterator[str]:
    """Each object or text of the list on one line: the line where it starts in the file, or the next free one."""
    scanner, written = _Scanner(path, texts), 0
    scanner.take("[")
    mark = scanner.take("]") if scanner.next_mark() == "]" else ","
    while mark == ",":
        if scanner.next_mark() in VALUES:
            raise scanner.error("a value that is neither an object nor a text")
        blank = max(0, scanner.line - 1 - written)
        yield "\n" * blank + re.sub(r"[\r\n]", " ", scanner.value()) + "\n"  # JSON has no line breaks inside a text
        written += blank + 1
        mark = scanner.take(",]")
    if scanner.next_mark():
        raise scanner.error("text after the list")


class _Scanner:
    """A position in a JSON text that arrives in parts."""

    def __init__(self, path: Path, texts: Iterator[str]) -> None:
        self.path, self.texts, self.buffer, self.position, self.line = path, texts, "", 0, 1

    def next_mark(self) -> str:
        """The next character after white space; empty at the end."""
        while True:
            match = SPACE.match(self.buffer, self.position)
            stop = match.end() if match else self.position
            self._advance(stop)
            if stop < len(self.buffer) or not self._read():
                return self.buffer[stop : stop + 1]

    def take(self, marks: str) -> str:
        """Skip one of these characters."""
        if not (mark := self.next_mark()) or mark not in marks:
            raise self.error(f"{' or '.join(marks)} is expected, not {mark or 'the end of the file'}")
        self.position += 1
        return mark

    def value(self) -> str:
        """Skip a value and return its text."""
        while True:
            try:
                stop = DECODER.raw_decode(self.buffer, self.position)[1]
                if stop < len(self.buffer) or not self._read():  # more digits may follow a number
                    text = self.buffer[self.position : stop]
                    self._advance(stop)
                    return text
            except RecursionError:
                raise self.error("nested too deeply") from None
            except ValueError as error:
                if len(self.buffer) - self.position > MAX_VALUE or not self._read():
                    reason = re.sub(r": line.*", "", str(error))
                    raise self.error(reason) from None

    def error(self, reason: str) -> BadInput:
        accepted = 'a list such as [{"text": "...", "label": "..."}, ...] is accepted'
        return input_error(f"{self.path}:{self.line}", f"invalid JSON ({reason})", accepted, "fix it")

    def _advance(self, stop: int) -> None:
        self.line += self.buffer.count("\n", self.position, stop)
        self.position = stop

    def _read(self) -> bool:
        """Append at least as much text as is left; False at the end."""
        rest, parts, size = self.buffer[self.position :], list[str](), 0
        for text in self.texts:
            parts.append(text)
            size += len(text)
            if size > len(rest):
                break
        self.buffer, self.position = rest + "".join(parts), 0
        return size > 0
