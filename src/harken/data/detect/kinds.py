"""Detection of the kind of a data set, with the reason, the alternatives and the detected settings.

Each detector returns a Detection or None, and the first Detection wins. A column is given by its header name or, if the
name is missing or not unique, by its number from 1.
"""

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from harken.data.graphs import files as graph_files
from harken.data.label_warnings import several_labels_hint
from harken.data.sets.columns import SetColumns, detect_set_columns
from harken.data.tables.read import input_error, parse_json
from harken.errors import BadInput

from . import dialect, preview
from .preview import TABLE_SUFFIXES, ColumnStats, FileHead, TablePreview, TextPreview

TIMESTAMP = re.compile(r"\W?(\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\w+[-/]\d{4}|\d+\.\d+\.\d+\.\d+)\D")
CHUNK = re.compile(r"O|[BIESLU]-\S+")
PART_OF_SPEECH = re.compile(r"[A-Z][A-Z0-9$+|-]{0,9}|[^\w\s]{1,4}|-[LR][RCS]B-")
LEAF = re.compile(r"\((?:[A-Z0-9.,:$#`'][A-Z0-9$.,:`'|=+-]*|-[A-Z]+-) [^\s()]+\s*\)")
IMAGE_PATH = re.compile(r"\.(png|jpe?g|gif|bmp|webp|p[gp]m|tiff?|npz\[\d+\])$", re.I)
SPLIT_NAME = re.compile(r"(?<![a-z])(train|valid|val|dev|test)(?:ing|ation)?(?![a-z])")
ACCEPTED_JSON = 'accepted: SQuAD ({"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}), or one object per line'
MIN_CAPTION_WORDS = 2.5  # mean words of a caption
EDGE_COLUMNS = ("source|src|from|u", "target|dst|to|v", graph_files.COLUMN_PATTERNS["weight"])
MIN_SHARED_NODES = 0.3  # fraction of the nodes that occur in both columns of an edge list
AS_TEXT = ("text", "every UTF-8 file can be read as plain text, but its structure would be lost")


@dataclass(frozen=True)
class Detection:
    """The kind of data, the reason, detected settings, and alternatives as (kind, reason against it)."""

    kind: str
    reason: str
    settings: dict[str, Any]
    alternatives: tuple[tuple[str, str], ...]
    user_specified: bool = False

    @property
    def is_plain_text(self) -> bool:
        """Whether it is text and not a text column of a table."""
        return self.kind == "text" and "data.text" not in self.settings


def detect_kind(path: str | Path) -> Detection:
    """The kind of data in a file or a folder; BadInput if it is not supported."""
    if not str(path):
        raise input_error("''", "an empty path", "a file or folder is needed", "give its name")
    path = Path(path)
    if preview.is_folder(path):
        return _detect_folder(path)
    start = preview.read_head(path)
    if path.suffix.lower() in (".gml", ".graphml"):
        return Detection("graph", f"a {path.suffix} file", {}, (AS_TEXT,))
    if detection := _detect_arrays(start):
        return detection
    text, detectors = preview.preview_text(start), (_detect_trees, _detect_json, _detect_stories, _detect_tags)
    return next((detection for detect in detectors if (detection := detect(text))), None) or _detect_table(text)


def _detect_arrays(start: FileHead) -> Detection | None:
    """Named arrays in .npz: `edges` is a graph, `x` and `y` are images with labels; or an idx file."""
    if header := preview.idx_header(start):
        shape, what = header[0], "labels" if len(header[0]) == 1 else "images"
        return Detection("images", f"an idx file of {shape[0]} {what}, shape {' x '.join(map(str, shape))}", {}, ())
    if start.path.suffix.lower() != ".npz" and not start.head.startswith(b"PK\3\4"):
        return None
    names = preview.zip_names(start)
    arrays = [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    if "edges" in arrays:
        return Detection("graph", f"an .npz file with the array edges (of {_listed(arrays)})", {}, ())
    if {"x", "y"} <= set(arrays):
        return Detection("images", f"an .npz file with the arrays x and y (of {_listed(arrays)})", {}, ())
    if any(name.endswith(".pkl") for name in names):
        raise input_error(start.path, preview.PICKLE, preview.ACCEPTED, "export its text to a file")
    if arrays and len(arrays) == len(names):
        arrays_needed = "edges, or x and y, are needed"
        raise input_error(start.path, f"an .npz file with {_listed(arrays)}", arrays_needed, "rename the arrays")
    office = {"xl": "an Excel workbook", "word": "a Word document"}
    what = next((office[top] for name in names if (top := name.split("/")[0]) in office), "a zip archive")
    raise input_error(start.path, what, preview.ACCEPTED, "save it as plain text, or unpack it")


def _detect_trees(text: TextPreview) -> Detection | None:
    """Bracketed sentences of a treebank."""
    part = text.text[:100_000]
    leaves = LEAF.findall(part) if part.lstrip().startswith("(") else []
    if len(leaves) < 2 or len(leaves) < 0.9 * len(re.findall(r"\([^()]*\)", part)):
        return None
    return Detection("trees", f"bracketed sentences with leaves such as {leaves[0]}; read as pairs", {}, (AS_TEXT,))


def _detect_json(text: TextPreview) -> Detection | None:
    """SQuAD, or one object per line. A file without a JSON suffix that does not parse may be text."""
    json_suffix, jsonl_suffix = text.suffix in (".json", ".jsonl", ".ndjson"), text.suffix in (".jsonl", ".ndjson")
    opening = text.text.lstrip()[:1]
    if not json_suffix and opening != "{":
        return None
    try:
        if not jsonl_suffix and _is_squad(text):
            return Detection("spans", "SQuAD JSON: paragraphs with a context and questions (qas)", {}, (AS_TEXT,))
        first = text.text.lstrip().partition("\n")[0].rstrip()
        if jsonl_suffix or (len(text.lines) > 1 and first[:1] + first[-1:] == "{}"):
            return _detect_columns(text, preview.preview_json_lines(text), "JSON with one object per line; ")
        if json_suffix and text.size_ratio == 1:
            parse_json(text.path, text.text)
    except BadInput:
        if json_suffix:
            raise
    if not json_suffix:
        return None
    value = {"{": "a JSON object", "[": "a JSON list"}.get(opening, "a single JSON value")
    fix = "write one object per line, as jq -c '.[]' does"
    raise input_error(text.path, f"{value} that is not SQuAD", ACCEPTED_JSON, fix)


def _is_squad(text: TextPreview) -> bool:
    has_keys = all(f'"{key}"' in text.text for key in ("data", "paragraphs", "context", "qas"))
    if not has_keys or text.size_ratio > 1:
        return has_keys and text.text.lstrip().startswith("{")
    content: Any = parse_json(text.path, text.text)
    try:
        return {"context", "qas"} <= set(content["data"][0]["paragraphs"][0])
    except (TypeError, LookupError):
        return False


def _detect_stories(text: TextPreview) -> Detection | None:
    """bAbI: numbered lines that restart at 1; a question is followed by a tab and its answer."""
    lines = [line for line in text.lines[:5000] if line.strip()]
    numbers = [int(match[1]) for line in lines if (match := re.match(r"(\d{1,6}) \S", line))]
    n_questions = sum("\t" in line for line in lines)
    n_steps = sum(b in (1, a + 1) for a, b in pairwise(numbers))
    if numbers[:1] != [1] or not 0 < n_questions < len(lines) or min(len(numbers), n_steps + 1) < 0.95 * len(lines):
        return None
    reason = f"numbered lines; {n_questions} of the first {len(lines)} are a question, a tab and an answer"
    return Detection("stories", reason, {}, (AS_TEXT,))


def _detect_tags(text: TextPreview) -> Detection | None:
    """CoNLL: a token with its tags on each line, and a blank line between sentences."""
    stripped = [line.strip() for line in text.lines[:5000] if not re.match(r"# |#$", line)]
    lines = [line for line in stripped if line]
    tabs = sum("\t" in line for line in lines) >= 0.95 * len(lines)
    rows = [line.split("\t") if tabs else line.split() for line in lines]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    full = [row for row in rows if len(row) == width]
    if width < 2 or len(full) < max(3, 0.95 * len(rows)):
        return None
    conll_u = width == 10 and all(row[0][:1].isdigit() for row in full)  # number, word, lemma, tag, ...
    word, tag = (1, 3) if conll_u else (0, width - 1)
    tags = Counter(row[tag] for row in full)
    n_single = sum(" " not in row[word] for row in full)
    matches = [sum(n for name, n in tags.items() if form.fullmatch(name)) for form in (CHUNK, PART_OF_SPEECH)]
    are_chunks, are_pos_tags = (count >= 0.95 * len(full) for count in matches)
    has_blank = len(stripped) > len(lines) + (not stripped[-1])
    few_tags = len(tags) <= min(100, len(full) / 2)
    known = are_pos_tags or text.suffix.startswith((".conll", ".iob", ".bio"))
    fits = (few_tags and has_blank and known) or (are_chunks and (has_blank or 1 < len(tags) <= 100))
    if not fits or n_single < 0.95 * len(full):
        return None
    reason = f"each line is a token with its tag ({_listed(list(tags))}), and a blank line ends a sentence"
    against = "its lines have the same number of cells, but the blank lines or the tags indicate sentences"
    return Detection("tags", reason, {"data.text": word + 1, "data.label": tag + 1}, (("table", against), AS_TEXT))


def _detect_table(text: TextPreview) -> Detection:
    """Rows of cells: a label column makes a table, otherwise two text columns make pairs. Anything else is text."""
    table = dialect.preview_table(text)
    if table and table.is_regular and (width := len(table.rows[0])) > preview.MAX_COLUMNS:
        accepted = f"at most {preview.MAX_COLUMNS} are accepted"
        raise input_error(text.path, f"a table of {width} columns", accepted, "keep the text and label columns")
    if table and table.is_regular and _is_tabular(text, table):
        delimiter = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}[table.delimiter]
        note = f"{len(table.rows[0])} columns separated by {delimiter}, {'a' if table.header else 'no'} header; "
        note += f"{1 - table.agreement:.1%} of the rows have another number of cells; " if table.agreement < 1 else ""
        return _detect_columns(text, table, note)
    alternatives: tuple[tuple[str, str], ...] = ()
    if table and table.agreement >= 0.3:
        cells = f"{table.agreement:.0%} of its lines split at {table.delimiter!r} into {len(table.rows[0])} cells"
        if len(text.lines) == 1 and text.suffix in TABLE_SUFFIXES:
            problem, fix = f"a table of one line with {len(table.rows[0])} cells", "add lines, or set data.kind=text"
            raise input_error(text.path, problem, "two or more lines are needed", fix)
        if text.suffix in TABLE_SUFFIXES and not table.is_regular and table.agreement >= 0.5:
            raise dialect.irregular_error(text, table)
        why = "they do not look like columns" if table.is_regular else "a table needs 95 %, and at least two lines"
        alternatives = (("table", f"{cells}, but {why}"),)
    length = sum(map(len, text.lines)) // len(text.lines)
    truncated = text.size_ratio > 1 and len(text.lines) == 1
    lines = f"a line of more than {length} characters" if truncated else f"lines of {length} characters on average"
    return Detection("text", f"plain UTF-8 text, {lines}, no columns", {}, alternatives)


def _is_tabular(text: TextPreview, table: TablePreview) -> bool:
    """Whether a regular number of delimiters means columns: in verse, logs and lists it may not."""
    columns = preview.column_stats(table)
    rows = table.rows[:1000]
    table_suffix = text.suffix in TABLE_SUFFIXES
    is_log = not table_suffix and sum(bool(TIMESTAMP.match(row[0])) for row in rows) > 0.9 * len(rows)
    is_markdown = table.delimiter == "|" and re.search(r"^[|: ]*---[|: -]*$", text.text, re.M)
    if sum(c.filled_fraction >= 0.5 for c in columns) < 2 or (is_log and not table.header) or is_markdown:
        return False
    if table.delimiter == "\t" or table.header:
        return True
    later = [cell for row in rows for cell in row[1:] if cell]
    if sum(cell[0] == " " for cell in later) > 0.9 * len(later):
        return False
    numeric = any(c.number_fraction > 0.95 for c in columns)
    certain = table.delimiter == "|" or f'"{table.delimiter}' in text.text or numeric
    return table_suffix or (len(rows) > 2 and bool(certain or _label_candidates(text, columns)))


def _label_candidates(text: TextPreview, columns: list[ColumnStats]) -> list[ColumnStats]:
    """Possible label columns, best first: a label name, no empty cells, few values, few words, last position."""
    labels = [c for c in columns if not _not_a_label(text, c)]
    labels.sort(key=lambda c: (not _has_label_name(c), c.filled_fraction < 1, c.n_values, c.mean_words, -c.index))
    return labels


def _has_label_name(c: ColumnStats) -> bool:
    return bool(preview.LABEL_NAME.fullmatch(c.name))


def _not_a_label(text: TextPreview, c: ColumnStats) -> str:
    """Why this column is not a label; empty if it may be one."""
    if c.is_identifier or c.filled_fraction < 0.5:
        return f"{c} identifies or credits a row" if c.is_identifier else f"{c} is empty in most rows"
    if _has_label_name(c) and c.number_fraction > 0.95 and c.n_values > 100:
        return ""
    # unread rows count as well, once values repeat
    repeats = c.n_filled >= 5 * c.n_values
    repeats = repeats or (c.n_filled >= 2 * c.n_values and c.n_filled * text.size_ratio >= 5 * c.n_values)
    mean = c.n_filled / max(1, c.n_values)
    observed = f"{c} has {c.n_values} values with {mean:.1f} occurrences on average, but a label has"
    if not (2 <= c.n_values <= 100 and repeats):
        return f"{observed} at most 100, each with at least 5 occurrences"
    if not _has_label_name(c) and c.mean_words > 3:  # repeated sentences are not labels
        return f"{observed} at most 3 words, and these have {c.mean_words:.1f}"
    return ""


def _edge_columns(table: TablePreview, columns: list[ColumnStats]) -> list[ColumnStats] | None:
    """The two node columns of an edge list, if the table has no other columns except a weight."""
    named = [next((c for c in columns if re.fullmatch(form, c.name.lower())), None) for form in EDGE_COLUMNS]
    ends = [c for c in named[:2] if c is not None]
    if not table.header or len(ends) < 2 or len(columns) != 2 + (named[2] is not None):
        return None
    sources, targets = ({row[c.index].strip() for row in table.rows[:1000]} for c in ends)
    shared = len(sources & targets) >= MIN_SHARED_NODES * min(len(sources), len(targets))
    return ends if shared and all(cell.isdigit() for cell in sources | targets) else None


def _detect_columns(text: TextPreview, table: TablePreview, note: str) -> Detection:
    """The kind of a table by its columns."""
    columns = preview.column_stats(table)
    texts = [c for c in columns if c.text_fraction >= 0.5 and not c.is_identifier]
    if (ends := _edge_columns(table, columns)) is not None:
        reason = f"{note}{ends[0]} and {ends[1]} hold node numbers and share values"
        return Detection("graph", reason, {}, (("pairs", "numbers in both columns are not translations"), AS_TEXT))
    sides = [c for side in (preview.SOURCE_NAME, preview.TARGET_NAME) for c in columns if side.fullmatch(c.name)]
    if len(sides) != 2 or preview.SOURCE_NAME.fullmatch(sides[1].name):
        sides = [c for c in columns if preview.LANGUAGE_NAME.fullmatch(c.name)]
    if len(sides) == 2:
        return _pairs(text, sides, columns, f"{note}{sides[0]} and {sides[1]} are named as two sides")
    sets = None if any(c.mean_words > 3 for c in columns) else detect_set_columns(table)
    if sets and sets.label and not sets.ignored:
        return _sets(sets, note)
    images = [c for c in columns if c.filled_fraction >= 0.9 and all(map(IMAGE_PATH.search, _filled_cells(table, c)))]
    captions = [c for c in texts if c not in images and c.mean_words >= MIN_CAPTION_WORDS]
    if images and captions:
        caption = max(captions, key=lambda c: c.mean_words)
        settings = {"data.image": images[0].ref, "data.caption": caption.ref}
        reason = f"{note}{images[0]} holds image paths, {caption} has {caption.mean_words:.3g} words per cell"
        return Detection("captions", reason, settings, (("pairs", "a path is not a text to translate"), AS_TEXT))
    if labels := _label_candidates(text, columns):
        if images:
            settings = {"data.image": images[0].ref, "data.label": labels[0].ref}
            reason = f"{note}{images[0]} holds image paths, {labels[0]} has {labels[0].n_values} values"
            return Detection("images", reason, settings, (("table", "a path is not a text to learn from"), AS_TEXT))
        return _labelled(labels, texts if len(columns) > 2 else columns, note)
    if len(texts) >= 2:
        reason = f"{note}{texts[0]} and {texts[1]} hold text, and no column is a label"
        return _pairs(text, texts[:2], columns, reason + several_labels_hint(table.rows, texts))
    numbered = columns and columns[0].number_fraction > 0.9 and columns[0].n_values == columns[0].n_filled
    filled = min((c.filled_fraction for c in columns), default=0.0) > 0.9
    if len(columns) == 2 and table.delimiter == "\t" and not numbered and filled:
        return _pairs(text, columns, columns, f"{note}two columns, and neither is a label or a row number")
    if not texts and not table.delimiter:
        problem = f"objects with {_listed(table.header) or 'no keys'}"
        raise input_error(text.path, problem, "text under one key or two, or text and a label, is needed", "add it")
    reason = f"{note}{texts[0] if texts else 'no column'} holds text, and no column is a label"
    against = ("table", "it has columns, but a label has at most 100 values, each with at least 5 occurrences")
    return Detection("text", reason, {"data.text": texts[0].ref} if texts else {}, (against,))


def _filled_cells(table: TablePreview, column: ColumnStats) -> list[str]:
    """The first cells of a column that are not empty."""
    return [*islice(filter(None, (row[column.index].strip() for row in table.rows)), 100)]


def _sets(sets: SetColumns, note: str) -> Detection:
    group, label = sets.group, sets.label
    assert label is not None
    settings = {"data.group": group.ref, "data.label": label.ref, "data.columns": [c.ref for c in sets.columns]}
    sizes = f"sets of {group.n_filled / group.n_values:.3g} rows on average"
    reason = f"{note}{group} identifies {sizes}, {label} is constant in each; {len(sets.columns)} numeric columns"
    return Detection("sets", reason, settings, (("table", "there is a label, but no text to learn from"), AS_TEXT))


def _labelled(labels: list[ColumnStats], texts: list[ColumnStats], note: str) -> Detection:
    label = labels[0]
    texts = [c for c in texts if c not in labels] or [c for c in texts if c is not label]
    longest = sorted(texts, key=lambda c: -c.mean_words)[:2]
    texts = sorted((c for c in longest if c is longest[0] or c.mean_words >= 3), key=lambda c: c.index)
    settings: dict[str, Any] = {"data.label": label.ref}
    if texts:
        settings["data.text"] = texts[0].ref if len(texts) == 1 else [c.ref for c in texts]
    reason = f"{note}{label} has {label.n_values} values with {label.n_filled // label.n_values} occurrences on average"
    if labels[1:]:
        reason += f" (other possible labels: {', '.join(map(str, labels[1:4]))})"
    pairs = (("pairs", f"{texts[0]} and {texts[1]} hold text, but there is a label"),) if texts[1:] else ()
    return Detection("table", reason, settings, (*pairs, AS_TEXT))


def _pairs(text: TextPreview, sides: list[ColumnStats], columns: list[ColumnStats], reason: str) -> Detection:
    alternatives = [AS_TEXT]
    if near := min((c for c in columns if 1 < c.n_values < c.n_filled), key=lambda c: c.n_values, default=None):
        named = f"{near} could be a label, but {sides[0]} and {sides[1]} are named as two sides"
        alternatives.insert(0, ("table", _not_a_label(text, near) or named))
    return Detection("pairs", reason, {"data.source": sides[0].ref, "data.target": sides[1].ref}, tuple(alternatives))


def _detect_folder(path: Path) -> Detection:
    """The kind of a folder: images, two aligned files, or the kind of its first file (train, if it exists)."""
    files = preview.data_files(path)
    sample = files[:: max(1, len(files) // 20)]
    if sum(map(preview.is_image, sample)) > len(sample) / 2:
        return _detect_image_folder(path, files)
    top = [file for file in files if file.parent == path]
    if "edges.csv" in (names := [file.name for file in top]):
        nodes = " and nodes.csv" * ("nodes.csv" in names)
        return Detection("graph", f"a folder with edges.csv{nodes}", {}, ())
    if not top and {file.suffix for file in files} != {".txt"}:
        folders = _listed(sorted({file.relative_to(path).parts[0] for file in files}))
        raise input_error(path, "a folder of folders", "files or images are needed in it", f"give one of {folders}")
    top = top or files
    if sides := _aligned_files(top):
        reason = f"{sides[0].name} and {sides[1].name} have one name and two languages: line by line a pair"
        return Detection("pairs", reason, {"data.source": str(sides[0]), "data.target": str(sides[1])}, (AS_TEXT,))
    splits = [(graph_files.SPLITS[match[1]], file) for file in top if (match := SPLIT_NAME.search(file.name.lower()))]
    splits.sort(key=lambda split: list(graph_files.SPLITS).index(split[0]))
    if {name for name, _ in splits} <= {"train"}:  # one name alone means nothing: a-train-ride.txt
        splits = []
    first = splits[0][1] if splits else top[0]
    if not splits and len({file.suffix for file in top}) > 1:
        detection = Detection("text", "files of several kinds, all of them UTF-8", {}, ())
    else:
        detection = detect_kind(first)
        detection = replace(detection, reason=f"based on {first.name}: {detection.reason}")
    for file in [file for _, file in splits] or top if detection.kind == "text" else []:
        preview.preview_text(preview.read_head(file))
    if len({name for name, _ in splits}) == len(splits):
        split_files = {f"data.{name}": str(file) for name, file in splits}
        return replace(detection, settings=detection.settings | split_files)
    return detection


def _detect_image_folder(path: Path, files: list[Path]) -> Detection:
    tables = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES and file.is_file())
    for table in tables[:1]:
        with suppress(BadInput):  # a table next to the images may be of any kind
            if (detection := detect_kind(table)).kind == "captions":
                return replace(detection, reason=f"a folder of images, with {table.name}: {detection.reason}")
    names = sorted({file.parent.name for file in files if file.parent != path})
    labels = f"its subfolders ({_listed(names)}) are the labels" if names else "no subfolders, so no labels"
    return Detection("images", f"a folder of images; {labels}", {}, ())


def _aligned_files(files: list[Path]) -> list[Path]:
    """Two files with one name and language codes as suffixes, such as train.en and train.de."""
    stems: dict[str, list[Path]] = {}
    for file in files:
        if len(file.suffix) == 3 and preview.LANGUAGE_NAME.fullmatch(file.suffix[1:]):
            stems.setdefault(file.stem, []).append(file)
    paired = sorted((stem for stem in stems if len(stems[stem]) > 1), key=lambda stem: "train" not in stem)
    return sorted(stems[paired[0]], key=lambda file: file.suffix != ".en")[:2] if paired else []


def _listed(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
