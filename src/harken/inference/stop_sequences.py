"""Where a text that comes piece by piece ends."""


class Cut:
    """Ends a stream of text before the first place where a stop text stands, even if it comes in pieces."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.held, self.done = stop, "", False

    def take(self, piece: str) -> str:
        if not self.stop or self.done:
            return "" if self.done else piece
        text = self.held + piece
        if self.stop in text:
            self.done, self.held = True, ""
            return text[: text.index(self.stop)]
        keep = next((n for n in range(min(len(self.stop) - 1, len(text)), 0, -1) if self.stop.startswith(text[-n:])), 0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        return self.held
