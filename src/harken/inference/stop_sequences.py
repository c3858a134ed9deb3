"""End a stream of generated text before a stop sequence."""


class StopSequence:
    """Truncates a text stream before the first occurrence of a stop sequence, even if it spans several pieces."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.pending, self.done = stop, "", False

    def feed(self, piece: str) -> str:
        """The text that can be shown after this piece. A possible beginning of the stop sequence is held back."""
        if not self.stop or self.done:
            return "" if self.done else piece
        text = self.pending + piece
        if self.stop in text:
            self.done, self.pending = True, ""
            return text[: text.index(self.stop)]
        lengths = range(min(len(self.stop) - 1, len(text)), 0, -1)
        n_pending = next((n for n in lengths if self.stop.startswith(text[-n:])), 0)
        self.pending = text[len(text) - n_pending :]
        return text[: len(text) - n_pending]

    def flush(self) -> str:
        """The text still held back at the end of the stream."""
        return self.pending
