"""What kind of data is this? A guess with its reason, the runners-up, and the settings that were found.

Each recogniser answers a Guess or None, and the first Guess wins. peek.py reads: a file's start and a few samples.
A column is told by the name in its header or, where it has no name of its own, by its number, counted from 1.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from harken.data.graphs import files as graph_files
from harken.data.sets.columns import Found, set_columns
from harken.errors import BadInput

from . import preview
from .preview import Column, Start, Table, Text, bad

STAMP = re.compile(r"\W?(\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\w+[-/]\d{4}|\d+\.\d+\.\d+\.\d+)\D")
CHUNK = re.compile(r"O|[BIESLU]-\S+")
PART_OF_SPEECH = re.compile(r"[A-Z][A-Z0-9$+|-]{0,9}|[^\w\s]{1,4}|-[LR][RCS]B-")
LEAF = re.compile(r"\((?:[A-Z0-9.,:$#`'][A-Z0-9$.,:`'|=+-]*|-[A-Z]+-) [^\s()]+\s*\)")
PICTURE = re.compile(r"\.(png|jpe?g|gif|bmp|webp|p[gp]m|tiff?|npz\[\d+\])$", re.I)
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
SPLIT = re.compile(r"(?<![a-z])(train|valid|val|dev|test)(?:ing|ation)?(?![a-z])")
SQUAD = 'SQuAD ({"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}) and one object per line are accepted'
CAPTION = 2.5  # words of a caption, at least, in the mean
ENDS = {"source": "source|src|from|u", "target": "target|dst|to|v", "weight": graph_files.CALLED["weight"]}
BOTH = 0.3  # share of the nodes that stand on either side of an edge list
TABLES = (".csv", ".tsv", ".tab", ".psv")
AS_TEXT = ("text", "every UTF-8 file can be read as plain text, but its structure would be mere characters")


@dataclass(frozen=True)
class Guess:
    """The kind of data, why, what was found, and what else it could be as (kind, what speaks for and against)."""

    kind: str
    reason: str
    settings: dict[str, Any]
    others: tuple[tuple[str, str], ...]
    named: bool = False  # by the user, who need not be told how to overrule it

    @property
    def plain(self) -> bool:
        """Whether it is text and nothing else: not a column of text among others."""
        return self.kind == "text" and "data.text" not in self.settings


def sniff(path: str | Path) -> Guess:
    """Say what kind of data a file or a folder holds; BadInput, in one line, if it holds none."""
    if not str(path):
        raise bad("''", "an empty path", "a file or folder is needed", "give its name")
    path = Path(path)
    if preview.is_folder(path):
        return _folder(path)
    start = preview.start_of(path)
    if path.suffix.lower() in (".gml", ".graphml"):
        return Guess("graph", f"a {path.suffix} file", {}, (AS_TEXT,))
    if guess := _arrays(start):
        return guess
    text = preview.text_of(start)
    return next(found for recognise in RECOGNISERS if (found := recognise(text)))


def _arrays(start: Start) -> Guess | None:
    """Arrays by name in .npz: `edges` makes a graph, `x` and `y` make pictures with labels; or an idx file."""
    if shape := preview.idx_shape(start):
        what = "labels" if len(shape) == 1 else "pictures"
        return Guess("images", f"an idx file of {shape[0]} {what}, shape {' x '.join(map(str, shape))}", {}, ())
    if start.path.suffix.lower() != ".npz" and not start.head.startswith(b"PK\3\4"):
        return None
    names = preview.zip_names(start)
    arrays = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    if "edges" in arrays:
        return Guess("graph", f"an .npz file with the array edges (of {_listed(arrays)})", {}, ())
    if {"x", "y"} <= set(arrays):
        return Guess("images", f"an .npz file with the arrays x and y (of {_listed(arrays)})", {}, ())
    if any(name.endswith(".pkl") for name in names):
        raise bad(start.path, preview.PICKLE, preview.ACCEPTED, "write its text out into a file")
    if arrays and len(arrays) == len(names):
        raise bad(start.path, f"an .npz file with {_listed(arrays)}", "edges, or x and y, are needed", "rename them")
    office = {"xl": "an Excel workbook", "word": "a Word document"}
    what = next((office[top] for name in names if (top := name.split("/")[0]) in office), "a zip archive")
    raise bad(start.path, what, preview.ACCEPTED, "save it as plain text, or unpack it")


def _trees(text: Text) -> Guess | None:
    """Bracketed sentences, as treebanks write them."""
    part = text.text[:100_000]
    leaves = LEAF.findall(part) if part.lstrip().startswith("(") else []
    if len(leaves) < 2 or len(leaves) < 0.9 * len(re.findall(r"\([^()]*\)", part)):
        return None
    return Guess("trees", f"sentences in brackets, with leaves such as {leaves[0]}; read as pairs", {}, (AS_TEXT,))


def _json(text: Text) -> Guess | None:
    """SQuAD, or one object per line. A file that is not called JSON and does not parse may still be text."""
    called, lined = text.suffix in (".json", ".jsonl", ".ndjson"), text.suffix in (".jsonl", ".ndjson")
    opens = text.text.lstrip()[:1]
    if not called and opens != "{":
        return None
    try:
        if not lined and _squad(text):
            return Guess("spans", "SQuAD JSON: paragraphs with a context and questions (qas)", {}, (AS_TEXT,))
        first = text.text.lstrip().partition("\n")[0].rstrip()
        if lined or (len(text.lines) > 1 and first[:1] + first[-1:] == "{}"):
            return _judge(text, preview.objects_of(text), "JSON with one object per line; ")
        if called and text.grow == 1:
            preview.parsed(text.path, text.text)
    except BadInput:
        if called:
            raise
    if not called:
        return None
    given = {"{": "a JSON object", "[": "a JSON list"}.get(opens, "a single JSON value")
    raise bad(text.path, f"{given} that is not SQuAD", SQUAD, "write one object per line, as jq -c '.[]' does")


def _squad(text: Text) -> bool:
    seen = all(f'"{mark}"' in text.text for mark in ("data", "paragraphs", "context", "qas"))
    if not seen or text.grow > 1:
        return seen and text.text.lstrip().startswith("{")
    try:
        return {"context", "qas"} <= set(preview.parsed(text.path, text.text)["data"][0]["paragraphs"][0])
    except (TypeError, LookupError):
        return False


def _stories(text: Text) -> Guess | None:
    """bAbI: numbered lines that start again at 1; a question has its answer behind a tab."""
    lines = [line for line in text.lines[:5000] if line.strip()]
    numbers = [int(found[1]) for line in lines if (found := re.match(r"(\d{1,6}) \S", line))]
    asked = sum("\t" in line for line in lines)
    steps = sum(b in (1, a + 1) for a, b in pairwise(numbers))
    if numbers[:1] != [1] or not 0 < asked < len(lines) or min(len(numbers), steps + 1) < 0.95 * len(lines):
        return None
    reason = f"numbered lines; {asked} of the first {len(lines)} are a question, a tab and its answer"
    return Guess("stories", reason, {}, (AS_TEXT,))


def _tags(text: Text) -> Guess | None:
    """CoNLL: a token and its tags on each line, a blank line between sentences."""
    kept = [line.strip() for line in text.lines[:5000] if not re.match(r"# |#$", line)]
    lines = [line for line in kept if line]
    tabs = sum("\t" in line for line in lines) >= 0.95 * len(lines)
    rows = [line.split("\t") if tabs else line.split() for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    full = [row for row in rows if len(row) == width]
    if width < 2 or len(full) < max(3, 0.95 * len(rows)):
        return None
    universal = width == 10 and all(row[0][:1].isdigit() for row in full)  # CoNLL-U: number, word, lemma, tag, ...
    word, tag = (1, 3) if universal else (0, width - 1)
    tags = Counter(row[tag] for row in full)
    single = sum(" " not in row[word] for row in full)
    shape = [sum(n for name, n in tags.items() if form.fullmatch(name)) for form in (CHUNK, PART_OF_SPEECH)]
    chunks, parts = (count >= 0.95 * len(full) for count in shape)
    blank = len(kept) > len(lines) + (not kept[-1])
    few = len(tags) <= min(100, len(full) / 2)
    known = parts or text.suffix.startswith((".conll", ".iob", ".bio"))
    fits = (few and blank and known) or (chunks and (blank or 1 < len(tags) <= 100))
    if not fits or single < 0.95 * len(full):
        return None
    reason = f"each line is a token with its tag ({_listed(list(tags))}), and a blank line ends a sentence"
    against = "its lines have equally many cells, but the blank lines or the tags speak for sentences"
    return Guess("tags", reason, {"data.text": word + 1, "data.label": tag + 1}, (("table", against), AS_TEXT))


def _table(text: Text) -> Guess:
    """Rows of cells: a label column makes a table, else two text columns make pairs. Everything else is text."""
    table = preview.table_of(text)
    if table and table.steady and (width := len(table.rows[0])) > preview.WIDEST:
        raise bad(
            text.path, f"a table of {width} columns", f"up to {preview.WIDEST} are accepted", "keep text and label"
        )
    if table and table.steady and _plausible(text, table):
        split = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}[table.delimiter]
        ragged = f"{1 - table.agree:.1%} of the rows have another number of cells; " if table.agree < 1 else ""
        note = f"{len(table.rows[0])} columns split at {split}, {'a' if table.header else 'no'} header; {ragged}"
        return _judge(text, table, note)
    others: tuple[tuple[str, str], ...] = ()
    if table and table.agree >= 0.3:
        cells = f"{table.agree:.0%} of its lines split at {table.delimiter!r} into {len(table.rows[0])} cells"
        if len(text.lines) == 1 and text.suffix in TABLES:
            given = f"a table of one line, of {len(table.rows[0])} cells"
            raise bad(
                text.path, given, "two lines or more are needed", "add lines, or take it for text: data.kind=text"
            )
        why = "they do not look like columns" if table.steady else "a table has 95 % of them, and two lines or more"
        others = (("table", f"{cells}, but {why}"),)
    length = sum(map(len, text.lines)) // len(text.lines)
    cut = text.grow > 1 and len(text.lines) == 1  # its end was not read
    lines = f"a line of more than {length} characters" if cut else f"lines of {length} characters on average"
    return Guess("text", f"plain UTF-8 text, {lines}, no columns", {}, others)


def _plausible(text: Text, table: Table) -> bool:
    """Whether equally many delimiters mean columns: in verse, logs and lists they may not."""
    columns = preview.columns_of(table)
    rows = table.rows[:1000]
    tabular = text.suffix in TABLES
    stamped = not tabular and sum(bool(STAMP.match(row[0])) for row in rows) > 0.9 * len(rows)
    ruled = table.delimiter == "|" and re.search(r"^[|: ]*---[|: -]*$", text.text, re.M)  # a table in Markdown
    if sum(column.filled >= 0.5 for column in columns) < 2 or (stamped and not table.header) or ruled:
        return False
    if table.delimiter == "\t" or table.header:
        return True
    later = [cell for row in rows for cell in row[1:] if cell]
    if sum(cell[0] == " " for cell in later) > 0.9 * len(later):
        return False
    told = table.delimiter == "|" or f'"{table.delimiter}' in text.text or any(c.number > 0.95 for c in columns)
    return tabular or (len(rows) > 2 and bool(told or _labels(text, columns)))


def _labels(text: Text, columns: list[Column]) -> list[Column]:
    """Columns that may be the label, likeliest first: a telling name, no gaps, few values, few words, at the end."""
    found = [c for c in columns if not _against(text, c)]
    return sorted(found, key=lambda c: (not _telling(c), c.filled < 1, c.values, c.words, -c.index))


def _telling(c: Column) -> bool:
    return bool(preview.LABEL.fullmatch(c.name))


def _against(text: Text, c: Column) -> str:
    """Why this column is no label; nothing, if it may be one."""
    if c.identity or c.filled < 0.5:
        return f"{c} names or credits a row" if c.identity else f"{c} is empty in most rows"
    if _telling(c) and c.number > 0.95 and c.values > 100:
        return ""
    # rows that were not read count too, once values are seen to repeat
    often = c.rows >= 5 * c.values or (c.rows >= 2 * c.values and c.rows * text.grow >= 5 * c.values)
    seen = f"{c} has {c.values} values, each seen {c.rows / max(1, c.values):.1f} times on average, but a label has"
    if not (2 <= c.values <= 100 and often):
        return f"{seen} at most 100, each seen 5 times or more"
    if not _telling(c) and c.words > 3:  # sentences that repeat are no labels
        return f"{seen} 3 words at most, and these {c.words:.1f}"
    return ""


def _ends(table: Table, columns: list[Column]) -> list[Column] | None:
    """The columns that hold the numbers of two nodes, if there is nothing else in the table but their weight."""
    named = [next((c for c in columns if re.fullmatch(ENDS[end], c.name.lower())), None) for end in ENDS]
    ends = [c for c in named[:2] if c is not None]
    if not table.header or len(ends) < 2 or len(columns) != 2 + (named[2] is not None):
        return None
    one, other = ({row[c.index].strip() for row in table.rows[:1000]} for c in ends)
    shared = len(one & other) >= BOTH * min(len(one), len(other))
    return ends if shared and all(cell.isdigit() for cell in one | other) else None


def _judge(text: Text, table: Table, note: str) -> Guess:
    """Judge a table by its columns."""
    columns = preview.columns_of(table)
    words = [c for c in columns if c.wordy >= 0.5 and not c.identity]
    if (ends := _ends(table, columns)) is not None:
        why = f"{note}{ends[0]} and {ends[1]} number the two ends of edges, and share their numbers"
        return Guess("graph", why, {}, (("pairs", "numbers that stand on both sides are no translations"), AS_TEXT))
    sides = [c for side in (preview.SOURCE, preview.TARGET) for c in columns if side.fullmatch(c.name)]
    if len(sides) != 2 or preview.SOURCE.fullmatch(sides[1].name):
        sides = [c for c in columns if preview.LANGUAGE.fullmatch(c.name)]
    if len(sides) == 2:
        return _pairs(text, sides, columns, f"{note}{sides[0]} and {sides[1]} are named as two sides")
    if not any(c.words > 3 for c in columns) and (sets := set_columns(table)) and sets.label and not sets.left:
        return _sets(sets, note)
    shots = [c for c in columns if c.filled >= 0.9 and all(map(PICTURE.search, _filled(table, c)))]
    if shots and (told := sorted((c for c in words if c not in shots and c.words >= CAPTION), key=lambda c: -c.words)):
        found = {"data.image": shots[0].place, "data.caption": told[0].place}
        reason = f"{note}{shots[0]} holds paths of pictures, {told[0]} {told[0].words:.3g} words each"
        return Guess("captions", reason, found, (("pairs", "a path is no text to translate"), AS_TEXT))
    if labels := _labels(text, columns):
        if shots:
            found = {"data.image": shots[0].place, "data.label": labels[0].place}
            reason = f"{note}{shots[0]} holds paths of pictures, {labels[0]} has {labels[0].values} values"
            return Guess("images", reason, found, (("table", "a path is no text to learn from"), AS_TEXT))
        return _labelled(labels, words if len(columns) > 2 else columns, note)
    if len(words) >= 2:
        return _pairs(text, words[:2], columns, f"{note}{words[0]} and {words[1]} hold text, and no column is a label")
    counted = columns and columns[0].number > 0.9 and columns[0].values == columns[0].rows
    if len(columns) == 2 and table.delimiter == "\t" and not counted and min(c.filled for c in columns) > 0.9:
        return _pairs(text, columns, columns, f"{note}two columns, and neither is a label or a running number")
    if not words and not table.delimiter:
        given = f"objects with {_listed(table.header) or 'nothing in them'}"
        raise bad(text.path, given, "text under one key, or two, or text and a label, is needed", "add it")
    reason = f"{note}{words[0] if words else 'no column'} holds text, and no column is a label"
    against = ("table", "it has columns, but a label has at most 100 values, each seen 5 times or more")
    return Guess("text", reason, {"data.text": words[0].place} if words else {}, (against,))


def _filled(table: Table, column: Column) -> list[str]:
    """The first cells of a column that are not empty."""
    return [*islice(filter(None, (row[column.index].strip() for row in table.rows)), 100)]


def _sets(found: Found, note: str) -> Guess:
    group, label = found.group, found.label
    assert label is not None
    settings = {"data.group": group.place, "data.label": label.place, "data.columns": [c.place for c in found.columns]}
    sets = f"{group} names sets of {group.rows / group.values:.3g} rows on average, and {label} is the same in each"
    reason = f"{note}{sets}; {len(found.columns)} columns hold numbers"
    return Guess("sets", reason, settings, (("table", "there is a label, but no text to learn from"), AS_TEXT))


def _labelled(labels: list[Column], words: list[Column], note: str) -> Guess:
    label = labels[0]
    texts = [c for c in words if c not in labels] or [c for c in words if c is not label]
    longest = sorted(texts, key=lambda c: -c.words)[:2]
    texts = sorted((c for c in longest if c is longest[0] or c.words >= 3), key=lambda c: c.index)
    settings: dict[str, Any] = {"data.label": label.place}
    if texts:
        settings["data.text"] = texts[0].place if len(texts) == 1 else [c.place for c in texts]
    reason = f"{note}{label} has {label.values} values, each seen {label.rows // label.values} times on average"
    if labels[1:]:
        reason += f" ({', '.join(map(str, labels[1:4]))} could be the label too)"
    others = (("pairs", f"{texts[0]} and {texts[1]} hold text, but there is a label"),) if texts[1:] else ()
    return Guess("table", reason, settings, (*others, AS_TEXT))


def _pairs(text: Text, sides: list[Column], columns: list[Column], reason: str) -> Guess:
    others = [AS_TEXT]
    if near := min((c for c in columns if 1 < c.values < c.rows), key=lambda c: c.values, default=None):
        why = _against(text, near) or f"{near} could be a label, but {sides[0]} and {sides[1]} are named as two sides"
        others.insert(0, ("table", why))
    return Guess("pairs", reason, {"data.source": sides[0].place, "data.target": sides[1].place}, tuple(others))


RECOGNISERS = (_trees, _json, _stories, _tags, _table)


def _folder(path: Path) -> Guess:
    """Judge a folder by its pictures, by two aligned files, or by its first file: train, if there is one."""
    files = preview.files_of(path)
    some = files[:: max(1, len(files) // 20)]
    if sum(map(preview.picture, some)) > len(some) / 2:
        for table in sorted(file for file in path.iterdir() if file.suffix.lower() in TABLES and file.is_file())[:1]:
            with suppress(BadInput):  # a list beside the pictures may be of any kind
                if (guess := sniff(table)).kind == "captions":
                    return replace(guess, reason=f"a folder of pictures, with {table.name}: {guess.reason}")
        names = sorted({file.parent.name for file in files if file.parent != path})
        labels = f"its subfolders ({_listed(names)}) are the labels" if names else "no subfolders, so no labels"
        return Guess("images", f"a folder of pictures; {labels}", {}, ())
    top = [file for file in files if file.parent == path]
    if "edges.csv" in (names := [file.name for file in top]):
        others = " and nodes.csv" * ("nodes.csv" in names)
        return Guess("graph", f"a folder with edges.csv{others}", {}, ())
    if not top and {file.suffix for file in files} != {".txt"}:
        inside = _listed(sorted({file.relative_to(path).parts[0] for file in files}))
        raise bad(path, "a folder of folders", "a folder with files or pictures is needed", f"give one of {inside}")
    top = top or files
    if sides := _aligned(top):
        reason = f"{sides[0].name} and {sides[1].name} have one name and two languages: line by line a pair"
        return Guess("pairs", reason, {"data.source": str(sides[0]), "data.target": str(sides[1])}, (AS_TEXT,))
    splits = [(SPLITS[found[1]], file) for file in top if (found := SPLIT.search(file.name.lower()))]
    splits.sort(key=lambda split: list(SPLITS).index(split[0]))
    if {name for name, _ in splits} <= {"train"}:  # one name alone says nothing: a-train-ride.txt
        splits = []
    first = splits[0][1] if splits else top[0]
    mixed = not splits and len({file.suffix for file in top}) > 1
    guess = Guess("text", "files of several kinds, all of them UTF-8", {}, ()) if mixed else sniff(first)
    if not mixed:
        guess = replace(guess, reason=f"judged by {first.name}: {guess.reason}")
    for file in [file for _, file in splits] or top if guess.kind == "text" else []:
        preview.text_of(preview.start_of(file))
    if len({name for name, _ in splits}) == len(splits):
        return replace(guess, settings=guess.settings | {f"data.{name}": str(file) for name, file in splits})
    return guess


def _aligned(files: list[Path]) -> list[Path]:
    """Two files of one name that end in language codes, as train.en and train.de do."""
    stems: dict[str, list[Path]] = {}
    for file in files:
        if len(file.suffix) == 3 and preview.LANGUAGE.fullmatch(file.suffix[1:]):
            stems.setdefault(file.stem, []).append(file)
    both = sorted((stem for stem in stems if len(stems[stem]) > 1), key=lambda stem: "train" not in stem)
    return sorted(stems[both[0]], key=lambda file: file.suffix != ".en")[:2] if both else []


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
