"""The words of a text with their log-probabilities."""

from typing import Any


def scored(written: str, logs: list[float | None], tokenizer: Any) -> list[dict[str, Any]]:
    """Tokens joined to words, white space with the word after it. ln p of a word is the sum over its tokens."""
    pieces, ids = tokenizer.split(written), tokenizer.encode(written)
    starts = [
        n
        for n, piece in enumerate(pieces)
        if n == 0 or tokenizer.kind == "word" or (piece[:1].isspace() and not pieces[n - 1].isspace())
    ]
    words = []
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        known = [log for log in logs[start:stop] if log is not None]
        bytewise = tokenizer.unknown is None  # a character may be in several pieces
        text = tokenizer.decode(ids[start:stop]) if bytewise else "".join(pieces[start:stop])
        words.append({"word": text, "logprob": sum(known) if known else None})
    return words
