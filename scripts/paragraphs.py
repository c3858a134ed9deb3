"""Paragraphs of a lecture's text, and which of them a row or a reason of docs/lectures.md refers to.

A paragraph is a bullet, a display equation, a row of a table, or a block of lines between blank lines. It is covered if
one of the key phrases in lecture_phrases.toml occurs in it, word by word; a phrase of one word must be the paragraph.
These kinds make no statement of their own:

    heading   a line that starts with #
    outline   everything below a heading with a name in OUTLINES, up to the next heading of that level
    notebook  the frame of a notebook, its imports and paths (NOTEBOOK)
    link      a web or mail address with at most 5 words beside it, or a line of names with an @
    label     text of a figure: at most 2 words, or a number
    lead      at most 6 words that end with a colon: the bullets or the equation below are paragraphs

Neighbouring pieces of a figure's text, of at most 4 words each, are one paragraph.
"""

import html
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

PHRASES = Path(__file__).with_name("lecture_phrases.toml")
OUTLINES = ("Outline", "Agenda", "Logistics and Agenda", "Next Time:", "Questions?")
NOTEBOOK = re.compile(r"```|In \[\d+\]:|jupyter |File Edit View|Drive already mounted|if torch\.cuda")
BULLET = re.compile(r"\s*(?:[-*•·]|\d+\.|\([a-z]\))\s")
LINK = re.compile(r"https?://\S+|\S*@\S*")
FIGURE_WORDS, LABEL_WORDS, LINK_WORDS, LEAD_WORDS = 4, 2, 5, 6
MAX_PHRASE_WORDS = 6  # enough to identify a paragraph, too few to repeat the lecture


@dataclass(frozen=True)
class Paragraph:
    """A paragraph with its first line in the file; `kind` is empty if it makes a statement."""

    line: int
    text: str
    kind: str = ""
    is_figure: bool = False  # a short piece without a bullet


def words(text: str) -> list[str]:
    """The words of a text in lower case, without HTML tags and names of LaTeX commands."""
    plain = re.sub(r"<[^<>]+>|\\[A-Za-z]+", " ", html.unescape(text))
    return re.findall(r"[^\W_]+", plain.lower())


def contains(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether the words of a phrase follow each other in a text; a single word must be the text."""
    if len(phrase) < 2:
        return text == phrase
    return any(list(text[n : n + len(phrase)]) == list(phrase) for n in range(len(text) - len(phrase) + 1))


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of each bullet, equation, row of a table, heading and block of lines."""
    start, lines, in_equation = 0, list[str](), False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        opens = not in_equation and (line.startswith(("#", "$$", "```")) or "\t" in line or bool(BULLET.match(line)))
        ends = lines and (lines[-1].startswith("#") or "\t" in lines[-1] or lines[-1].rstrip().endswith("$$"))
        if lines and not in_equation and (opens or ends or not line.strip()):
            yield start, "\n".join(lines)
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(line)
        if line.count("$$") % 2:
            in_equation = not in_equation
    if lines:
        yield start, "\n".join(lines)


def classify(text: str) -> str:
    """The kind of a block by its own text; empty for a statement."""
    if text.startswith("#"):
        return "heading"
    if NOTEBOOK.match(text):
        return "notebook"
    plain = re.sub(r"<[^<>]+>", " ", text)
    if "@" in plain or (LINK.search(plain) and len(words(LINK.sub(" ", plain))) <= LINK_WORDS):
        return "link"
    if not re.search(r"[^\W\d_]", BULLET.sub("", text)):
        return "label"
    is_lead = text.rstrip("* ").endswith(":") and len(words(text)) <= LEAD_WORDS
    return "lead" if is_lead else ""


def read(text: str) -> list[Paragraph]:
    """Return the paragraphs of a lecture."""
    pieces, outline_level = list[Paragraph](), 0
    for line, block in blocks(html.unescape(text)):
        kind, count = classify(block), len(words(block))
        if kind == "heading":
            level, title = len(block) - len(block.lstrip("#")), block.strip("#* ")
            if title in OUTLINES:
                outline_level = level
            elif level <= outline_level:
                outline_level = 0
        is_figure = count <= FIGURE_WORDS and not (kind or "$$" in block or "\t" in block or BULLET.match(block))
        if count:
            pieces.append(Paragraph(line, block, kind or ("outline" if outline_level else ""), is_figure))
    return list(_join_figures(pieces))


def _join_figures(paragraphs: Sequence[Paragraph]) -> Iterator[Paragraph]:
    """Join neighbouring pieces of a figure; one or two words are a label."""
    for (is_figure, _), group in groupby(paragraphs, lambda p: (p.is_figure, p.kind)):
        if not is_figure:
            yield from group
            continue
        pieces = list(group)
        text = " ".join(piece.text for piece in pieces)
        is_label = len(words(text)) <= LABEL_WORDS
        yield replace(pieces[0], text=text, kind=pieces[0].kind or ("label" if is_label else ""))


@dataclass(frozen=True)
class Phrases:
    """Key phrases of the rows (by demonstration or command) and of the reasons (by name)."""

    rows: Mapping[str, Sequence[str]]
    reasons: Mapping[str, Sequence[str]]

    def references(self, paragraph: Paragraph) -> list[str]:
        """Return the rows, and the reasons in parentheses, with a key phrase in the paragraph."""
        text = words(paragraph.text)
        named = [*self.rows.items(), *((f"({name})", phrases) for name, phrases in self.reasons.items())]
        return [name for name, phrases in named if any(contains(text, words(phrase)) for phrase in phrases)]


def load(path: Path = PHRASES) -> Phrases:
    """Read the key phrases."""
    return Phrases(**tomllib.loads(path.read_text("utf-8")))


def lecture_files(folder: Path) -> list[Path]:
    """The text files of a folder, or the file itself."""
    files = sorted(folder.glob("*.txt")) if folder.is_dir() else [folder]
    if not files or not all(file.is_file() for file in files):
        raise FileNotFoundError(f"{folder}: neither a text file nor a folder with .txt files")
    return files
