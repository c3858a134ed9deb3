"""A text as documents of sentences: where each ends, and pairs of passages of which the second follows or does not.

Sentences end with a sign and white space, in some texts with the line; documents with a blank line, a line or a file.
In the encoded text SEP stands behind each sentence and CLS behind each document, so that one stream of ids says it all.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from harken.data.batch import Tokens, dice
from harken.data.tokens import CLS, SEP
from harken.errors import BadInput

LOOKED_AT = 1 << 20  # characters of a text by which its layout is known
SHORTEST = 4  # tokens of a passage that is worth a row
_ABBREVIATED = "".join(rf"(?<!\b{word}\.)" for word in ("Mr", "Mrs", "Ms", "Dr", "St", "vs", "No", "[A-Z]"))
# a sign, closing quotes, then white space and no small letter; a sign that stands alone ends even before a small one
_END = re.compile(rf"""(?<=[.!?]){_ABBREVIATED}["'”’)\]]*\s+(?![a-zß-ÿ])|(?<=\s[.!?])\s+|(?<=[。！？])""")
_BLANK, _LINE = re.compile(r"\n[^\S\n]*\n\s*"), re.compile(r"\n\s*")


@dataclass(frozen=True)
class Layout:
    """How a text shows where a document ends, and whether the end of a line ends a sentence."""

    documents: Literal["file", "blank", "line"]
    lines: bool
    END: ClassVar[str] = f" {SEP} {CLS} "

    def marked(self, text: str) -> str:
        """The text with SEP behind each sentence and CLS behind each document that ends in it."""
        if self.documents != "file":
            text = (_BLANK if self.documents == "blank" else _LINE).sub(self.END, text)
        if self.lines:
            text = _LINE.sub(f" {SEP} ", text)
        return _END.sub(lambda gap: f"{gap[0]} {SEP} ", text)

    @property
    def key(self) -> list[object]:
        return [1, self.documents, self.lines]


def layout(text: str, documents: str = "auto") -> Layout:
    """Of a text, from its beginning: blank lines part documents, else lines that hold several sentences, else files."""
    text = text[:LOOKED_AT].strip()
    rows = [line.strip() for line in text.split("\n") if line.strip()]
    many = len(_END.findall(text.replace("\n", " "))) + 1
    ended = sum(line.endswith((".", "!", "?", '."', '!"', '?"', ".”", "!”", "?”", "。")) for line in rows)
    lines = 2 * ended > len(rows) or 4 * many < len(rows)  # else lines are wrapped where they are full
    if documents == "auto":
        documents = "blank" if _BLANK.search(text) else "line" if many > 2 * len(rows) > 2 else "file"
    return Layout(documents, lines)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Documents:
    """The ids of a text without marks, and where its sentences and documents begin; the last of both is the end."""

    ids: Tokens
    sentences: Tokens
    documents: Tokens

    @classmethod
    def of(cls, marked: Tokens, sep: int, begin: int) -> "Documents":
        """From an encoded text with its marks; what is empty between two marks is no sentence and no document."""
        real = (marked != sep) & (marked != begin)
        before = np.cumsum(real)  # tokens up to each place: behind a mark, where the next one begins
        starts = [
            np.unique(np.concatenate([[0], before[~real if m is None else marked == m], [real.sum()]]))
            for m in (None, begin)
        ]
        return cls(marked[real], *starts)

    def windows(self, L: int) -> Tokens:  # N 3
        """Passages of at most L tokens, each of one document: where they begin and end, and which document it is."""
        lengths = np.diff(self.documents)
        counts = -(-lengths // L)
        of = np.repeat(np.arange(len(lengths)), counts)
        start = self.documents[of] + (np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)) * L
        stop = np.minimum(start + L, self.documents[of + 1])
        return np.stack([start, stop, of], 1)[stop - start >= SHORTEST]


class Passages:
    """Pairs of passages: the second follows the first, or comes from another document. A batch has rows of one width.

    Which they are is a pure function of (seed, epoch, step). Half of the seconds follow, and those that do not are as
    long and begin with a sentence too, so that only what is said tells them apart.
    """

    def __init__(self, documents: Documents, L: int, rows: int, *, seed: int) -> None:
        self.documents, self.L, self.seed = documents, L, seed
        self.windows = documents.windows(L)
        if len(self.windows) < 2:
            raise BadInput("data: there are fewer than two passages, so none comes from elsewhere; give a longer text")
        self.rows = min(rows, len(self.windows))
        self.steps = len(self.windows) // self.rows
        self.firsts = np.searchsorted(self.windows[:, 2], np.arange(len(documents.documents)))  # of each document
        self._epoch: tuple[int, Tokens] = (-1, self.firsts)

    def picks(self, epoch: int, step: int) -> Tokens:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, dice(self.seed, 6, epoch).permutation(len(self.windows)))
        return self._epoch[1][step * self.rows : (step + 1) * self.rows]

    def pairs(self, picks: Tokens, rng: np.random.Generator) -> tuple[Tokens, Tokens, Tokens]:
        """Of these windows: the firsts and the seconds, each as [start, stop] (N 2), and whether the second follows."""
        start, stop, of = self.windows[picks].T
        cut = self._cut(start, stop, rng)
        follows = rng.random(len(picks)) < 0.5
        other = self._elsewhere(picks, of, rng)
        begin = self._sentence(other, stop - cut, rng)
        end = np.minimum(begin + stop - cut, self.documents.documents[self.windows[other, 2] + 1])
        second = np.where(follows[:, None], np.stack([cut, stop], 1), np.stack([begin, end], 1))
        return np.stack([start, cut], 1), second, follows

    def _cut(self, start: Tokens, stop: Tokens, rng: np.random.Generator) -> Tokens:
        """A sentence that begins inside each window; the middle of one that has none."""
        sentences, dice = self.documents.sentences, rng.random(len(start))
        low, high = np.searchsorted(sentences, start, "right"), np.searchsorted(sentences, stop, "left")
        found = sentences[np.minimum(low + (dice * (high - low)).astype(np.int64), len(sentences) - 1)]
        return np.where(low < high, found, (start + stop) // 2)

    def _elsewhere(self, picks: Tokens, of: Tokens, rng: np.random.Generator) -> Tokens:
        """For each window one of another document; of a single document, any other one."""
        total, own = len(self.windows), self.firsts[of + 1] - self.firsts[of]
        alone, drawn = own == total, rng.random(len(picks))
        free = (drawn * np.where(alone, total - 1, total - own)).astype(np.int64)
        return np.where(alone, (picks + 1 + free) % total, free + own * (free >= self.firsts[of]))

    def _sentence(self, windows: Tokens, length: Tokens, rng: np.random.Generator) -> Tokens:
        """A sentence that begins in or before each window, early enough for its document to be so long behind it."""
        start, stop, of = self.windows[windows].T
        sentences, home = self.documents.sentences, self.documents.documents
        latest = np.maximum(np.minimum(self._cut(start, stop, rng), home[of + 1] - length), home[of])
        return sentences[np.searchsorted(sentences, latest, "right") - 1]
