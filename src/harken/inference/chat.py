"""Talk with a model that was taught to answer. Whose turn it is, is written with the marks it has learned.

The three ways of writing turns are ours, chosen by the marks the tokenizer has; no template of a model is executed. A
mark that stands in what somebody says is read as plain letters: nobody can end another's turn.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harken.decode.sampling import Choice
from harken.errors import BadInput

SYSTEM = "You are a helpful assistant."


@dataclass(frozen=True)
class Format:
    """How turns are written: a mark, who speaks, maybe another mark, what is said, a mark that ends it."""

    opens: str
    ends: str
    middle: str = ""  # a mark behind the name of who speaks
    gap: str = "\n"  # between the name and what is said
    tail: str = ""  # behind the mark that ends
    answers: str = "assistant"
    system: bool = True  # whether it has a turn of its own; else it stands before what is said first


FORMATS = (
    Format("<|im_start|>", "<|im_end|>", tail="\n"),
    Format("<|start_header_id|>", "<|eot_id|>", middle="<|end_header_id|>", gap="\n\n"),
    Format("<start_of_turn>", "<end_of_turn>", tail="\n", answers="model", system=False),
)


class Chat:
    """A conversation. `say` gives the answer piece by piece; what was said before is remembered.

    Of a conversation that has become longer than the model's context the oldest turns are left out.
    """

    def __init__(
        self, run: Any, *, system: str | None = SYSTEM, tokens: int = 512, seed: int = 0, **choice: Any
    ) -> None:
        run.must("generate")
        self.run, self.tokens, self.seed, self.choice = run, tokens, seed, Choice.of({"temperature": 0.6, **choice})
        marks = dict(zip(run.tokenizer.words(run.tokenizer.marks), run.tokenizer.marks, strict=True))
        found = [way for way in FORMATS if {way.opens, way.ends, way.middle or way.ends} <= marks.keys()]
        if not found:
            raise BadInput(
                f"{run.path}: this run knows no marks of turns; chat is for instruct models; use harken generate"
            )
        self.way, self.marks = found[0], marks
        self.messages: list[tuple[str, str]] = [("system", system)] if system else []

    def say(self, text: str) -> Iterator[str]:
        """What is answered to this, as it is written."""
        self.messages.append(("user", text))
        ids, said = self._fit(), ""
        last = {self.marks[self.way.ends], self.run.tokenizer.end}
        never = [mark for mark in self.run.tokenizer.marks if mark not in last]
        decode = self.run.tokenizer.stream_decoder()
        for token in ids:
            decode(token)
        for (token,) in self.run.writer.write([ids], self.tokens, self.choice, seed=self.seed, never=never):
            if int(token) in last:
                break
            piece = decode(int(token)) if said else decode(int(token)).lstrip()
            said += piece
            yield piece
        self.messages.append((self.way.answers, said.strip()))

    def _fit(self) -> list[int]:
        """All turns as ids, ready for the answer; without the oldest, where they are too many."""
        most = (self.run.model.context or 10**9) - 1
        while len(ids := self._ids()) > max(most - self.tokens, most // 2):
            oldest = 1 if self.messages[0][0] == "system" else 0
            if len(self.messages) <= oldest + 1:
                raise BadInput(f"this message has {len(ids)} tokens with its turn; this model reads {most}; say less")
            del self.messages[oldest]
        return ids

    def _ids(self) -> list[int]:
        way, turns = self.way, list(self.messages)
        if not way.system and turns[0][0] == "system":
            turns[:2] = [(turns[1][0], f"{turns[0][1]}\n\n{turns[1][1]}")]
        ids = list(self.run.tokenizer.begin)
        for who, text in turns:
            ids += [*self._opened(who, text.strip()), self.marks[way.ends], *self._plain(way.tail)]
        return ids + self._opened(way.answers, "")

    def _opened(self, who: str, text: str) -> list[int]:
        """A turn up to the end of what is said in it."""
        opens = [self.marks[self.way.opens]]
        if not self.way.middle:
            return opens + self._plain(f"{who}{self.way.gap}{text}")
        return opens + self._plain(who) + [self.marks[self.way.middle]] + self._plain(self.way.gap + text)

    def _plain(self, text: str) -> list[int]:
        """The ids of a text in which every mark is broken into letters."""
        pieces, rest = [], text
        while there := [rest.index(mark) for mark in self.marks if mark in rest]:
            pieces.append(rest[: min(there) + 1])
            rest = rest[min(there) + 1 :]
        return [int(i) for piece in (*pieces, rest) if piece for i in self.run.tokenizer.encode(piece)]
