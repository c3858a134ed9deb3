"""A text as documents of sentences: where each ends, and pairs of passages of which the second follows or does not.

Sentences end with a sign and white space, in some texts with the line; documents with a blank line, a line or a file.
In the encoded text SEP stands behind each sentence and CLS behind each document, so that one stream of ids says it all.
"""

import re
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from harken.data.batch import Tokens, dice
from harken.data.tokenizers.tokenizer import CLS, SEP
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

    Which they are is a pure function of (seed, epoch, step). Half of the seconds follow. Those that do not look alike:
    as long, begun with a sentence that is not the first of its document, ended with a document where the following one
    ends so, else cut where its length is reached. So only what is said tells them apart.
    """

    def __init__(self, documents: Documents, L: int, rows: int, *, seed: int) -> None:
        self.documents, self.L, self.seed = documents, L, seed
        self.windows = documents.windows(L)
        if len(self.windows) < 2:
            raise BadInput("data: there are fewer than two passages, so none comes from elsewhere; give a longer text")
        self.rows = min(rows, len(self.windows))
        self.steps = len(self.windows) // self.rows
        self._epoch: tuple[int, Tokens] = (-1, self.windows)
        ends, second = documents.documents[1:], np.searchsorted(documents.sentences, documents.documents[:-1]) + 1
        behind = (ends - np.minimum(documents.sentences[second], ends))[self.windows[:, 2]]  # a first sentence
        self.order = np.argsort(behind, kind="stable")  # windows of one document stay side by side
        self.behind, self.rank, self.many = behind[self.order], np.argsort(self.order), np.bincount(self.windows[:, 2])

    def picks(self, epoch: int, step: int) -> Tokens:
        if self._epoch[0] != epoch:
            self._epoch = (epoch, dice(self.seed, 6, epoch).permutation(len(self.windows)))
        return self._epoch[1][step * self.rows : (step + 1) * self.rows]

    def pairs(self, picks: Tokens, rng: np.random.Generator) -> tuple[Tokens, Tokens, Tokens]:
        """Of these windows: the firsts and the seconds, each as [start, stop] (N 2), and whether the second follows."""
        start, stop, _ = self.windows[picks].T
        cut = self._cut(start, stop, rng)
        follows = rng.random(len(picks)) < 0.5
        second = np.where(follows[:, None], np.stack([cut, stop], 1), self._elsewhere(picks, cut, rng))
        return np.stack([start, cut], 1), second, follows

    def whole(self, spans: Tokens) -> Tokens:
        """Whether each [start, stop] ends where a sentence does."""
        return self._begins(spans[:, 1])

    def _begins(self, at: Tokens) -> Tokens:
        """Whether a sentence begins here, or the text ends: found in a sorted list, as there are millions."""
        sentences = self.documents.sentences
        found: Tokens = sentences[np.minimum(np.searchsorted(sentences, at), len(sentences) - 1)] == at
        return found

    def _cut(self, start: Tokens, stop: Tokens, rng: np.random.Generator) -> Tokens:
        """A sentence that begins inside each window; the middle of one that has none."""
        sentences, dice = self.documents.sentences, rng.random(len(start))
        low, high = np.searchsorted(sentences, start, "right"), np.searchsorted(sentences, stop, "left")
        found = sentences[np.minimum(low + (dice * (high - low)).astype(np.int64), len(sentences) - 1)]
        return np.where(low < high, found, (start + stop) // 2)

    def _elsewhere(self, picks: Tokens, cut: Tokens, rng: np.random.Generator) -> Tokens:  # N 2
        """For each window that is cut here, what could stand in the place of its second."""
        start, stop, of = self.windows[picks].T
        sentences, documents, length = self.documents.sentences, self.documents.documents, stop - cut
        low, high, there = self.windows[self._others(picks, length, rng)].T
        end, last = documents[there + 1], (stop == documents[of + 1]) & (there != of)  # ended with its document
        whole, latest = self._begins(cut), np.maximum(end - length, documents[there])
        begins = np.where(whole, self._cut(low, high, rng), (low + high) // 2)
        wanted = np.where(last, latest, np.minimum(begins, latest))
        before = sentences[np.searchsorted(sentences, wanted, "right") - 1]
        after = sentences[np.searchsorted(sentences, wanted)]
        room = end - (self.L - (cut - start))  # a passage up to the end that begins earlier does not fit
        nearer = (after - wanted < wanted - before) | (before < room)
        begin = np.where(last & (after < end) & nearer, after, before)
        begin = np.where(whole, np.where(last, np.maximum(begin, room), begin), wanted)
        return np.stack([begin, np.where(last, end, np.minimum(begin + length, end))], 1)

    def _others(self, picks: Tokens, length: Tokens, rng: np.random.Generator) -> Tokens:
        """For each window one of another document that is so long behind its first sentence; else any other one."""
        total, of = len(self.windows), self.windows[:, 2]
        low, drawn = np.searchsorted(self.behind, length), rng.random(len(picks))
        first, own = self.rank[np.searchsorted(of, of[picks])], self.many[of[picks]]
        own = np.where(first < low, 0, own)
        free = total - low - own
        alone = free == 0
        n = (drawn * np.where(alone, total - 1, free)).astype(np.int64)
        return self.order[np.where(alone, (self.rank[picks] + 1 + n) % total, low + n + own * (low + n >= first))]
