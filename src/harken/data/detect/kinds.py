"""Detection of the kind of a data set, with the reason, the alternatives and the detected settings.

Each detector returns a Detection or None, and the first Detection wins.
"""

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from harken.data.graphs.columns import read_columns
from harken.data.graphs.files import folder_of_graph, label_column
from harken.data.labelled.folders import text_folders
from harken.data.partition import SPLIT_FILE_NAMES, SPLIT_OF_NAME
from harken.data.tables.read import input_error, parse_json
from harken.data.tables.text_file import (
    BINARY_TABLES,
    FRAME_SUFFIX,
    JSON_SUFFIXES,
    ROWS_SUFFIX,
    TABLE_SUFFIXES,
    json_layout,
)
from harken.errors import BadInput

from . import dialect, preview
from .detection import AS_TEXT, Detection, join_names
from .preview import FileHead, TablePreview, TextPreview
from .table_kinds import detect_columns, label_candidates

TIMESTAMP = re.compile(r"\W?(\d{4}[-/]\d\d[-/]\d\d|\d\d[-/]\w+[-/]\d{4}|\d+\.\d+\.\d+\.\d+)\D")
CHUNK = re.compile(r"O|[BIESLU]-\S+")
PART_OF_SPEECH = re.compile(r"[A-Z][A-Z0-9$+|-]{0,9}|[^\w\s]{1,4}|-[LR][RCS]B-")
LEAF = re.compile(r"\((?:[A-Z0-9.,:$#`'][A-Z0-9$.,:`'|=+-]*|-[A-Z]+-) [^\s()]+\s*\)")
SPLIT_NAME = re.compile(r"(?<![a-z])(train|valid|val|dev|test)(?:ing|ation)?(?![a-z])")
ACCEPTED_JSON = 'accepted: SQuAD ({"data": [{"paragraphs": [{"context": ..., "qas": [...]}]}]}), or a list of objects'


def detect_kind(path: str | Path, encoding: str | None = None, names: Collection[object] = ()) -> Detection:
    """The kind of data in a file or a folder; BadInput if it is not supported.

    `names`: columns, or lists of columns, that the user set. A first row that holds one of them is the header.
    """
    if not str(path):
        raise input_error("''", "an empty path", "a file or folder is needed", "give its name")
    if preview.is_folder(path := Path(path)):
        try:
            return _detect_text_folders(path, encoding) or _detect_folder(path, encoding, names)
        except BadInput as error:
            raise preview.without_conversion(error) from None
    start = preview.read_head(path, encoding=encoding)
    if path.suffix.lower() in (".gml", ".graphml"):
        return Detection("graph", f"a {path.suffix} file", {}, (AS_TEXT,))
    if start.suffix != ROWS_SUFFIX and (detection := _detect_arrays(start)):
        return detection
    text, detectors = preview.preview_text(start), (_detect_trees, _detect_json, _detect_stories, _detect_tags)
    detections = (detect(text) for detect in detectors if text.suffix != ROWS_SUFFIX)
    detection = next(filter(None, detections), None) or _detect_table(text, _flatten(names))
    is_text = path.suffix.lower() not in (*BINARY_TABLES, FRAME_SUFFIX)
    if (fix := folder_of_graph(path)) and detection.kind == "graph":
        detection = replace(detection, notice=fix)
    elif fix:
        alone = f"; to learn from this table alone: data.kind={detection.kind}" * (not detection.refusal)
        detection = replace(detection, refusal=fix + alone)
    return replace(detection, alternatives=tuple(a for a in detection.alternatives if is_text or a != AS_TEXT))


def _flatten(names: Iterable[object]) -> list[object]:
    return [name for value in names for name in (value if isinstance(value, list) else [value])]


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
        level = "pair" if "pairs" in arrays else "" if {"label", "y"} & {*arrays} else "edge"
        settings: dict[str, object] = {"data.target_level": level} if level else {}
        return Detection("graph", f"an .npz file with the array edges (of {join_names(arrays)})", settings, ())
    if {"x", "y"} <= set(arrays):
        return Detection("images", f"an .npz file with the arrays x and y (of {join_names(arrays)})", {}, ())
    if any(name.endswith(".pkl") for name in names):
        raise input_error(start.path, preview.PICKLE, preview.ACCEPTED, "export its text to a file")
    if arrays and len(arrays) == len(names):
        arrays_needed = "edges, or x and y, are needed"
        raise input_error(start.path, f"an .npz file with {join_names(arrays)}", arrays_needed, "rename the arrays")
    office = {"xl": "an Excel workbook without the suffix .xlsx", "word": "a Word document"}
    what = next((office[top] for name in names if (top := name.split("/")[0]) in office), "a zip archive")
    fix = f"rename it to {start.path.stem}.xlsx" if "Excel" in what else "save it as plain text, or unpack it"
    raise input_error(start.path, what, preview.ACCEPTED, fix)


def _detect_trees(text: TextPreview) -> Detection | None:
    """Bracketed sentences of a treebank."""
    part = text.text[:100_000]
    leaves = LEAF.findall(part) if part.lstrip().startswith("(") else []
    if len(leaves) < 2 or len(leaves) < 0.9 * len(re.findall(r"\([^()]*\)", part)):
        return None
    return Detection("trees", f"bracketed sentences with leaves such as {leaves[0]}; read as pairs", {}, (AS_TEXT,))


def _detect_json(text: TextPreview) -> Detection | None:
    """SQuAD, or one object per line. A file without a JSON suffix that does not parse may be text."""
    json_suffix, jsonl_suffix = text.suffix in JSON_SUFFIXES, text.suffix in JSON_SUFFIXES[1:]
    opening = text.text.lstrip()[:1]
    if not json_suffix and opening != "{":
        return None
    try:
        if not jsonl_suffix and _is_squad(text):
            return Detection("spans", "SQuAD JSON: paragraphs with a context and questions (qas)", {}, (AS_TEXT,))
        first = text.text.lstrip().partition("\n")[0].rstrip()
        if jsonl_suffix or (len(text.lines) > 1 and first[:1] + first[-1:] == "{}"):
            return detect_columns(text, preview.preview_json_lines(text), f"{json_layout(text.path)}; ")
        if json_suffix and text.size_ratio == 1:
            parse_json(text.path, text.text)
    except BadInput:
        if json_suffix:
            raise
    if not json_suffix:
        return None
    value = {"{": "a JSON object", "[": "a JSON list"}.get(opening, "a single JSON value")
    fix = "write a list of objects, as pandas does with orient='records'"
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
    reason = f"each line is a token with its tag ({join_names(list(tags))}), and a blank line ends a sentence"
    against = "its lines have the same number of cells, but the blank lines or the tags indicate sentences"
    return Detection("tags", reason, {"data.text": word + 1, "data.label": tag + 1}, (("table", against), AS_TEXT))


def _detect_table(text: TextPreview, names: Collection[object]) -> Detection:
    """Rows of cells: a label column makes a table, otherwise two text columns make pairs. Anything else is text.

    A file with the suffix of a table is never text without data.kind=text.
    """
    table, table_suffix = dialect.preview_table(text), text.suffix in TABLE_SUFFIXES
    if table and table.is_regular:
        table = dialect.with_named_header(table, names)
    if table and table.is_regular and (width := len(table.rows[0])) > preview.MAX_COLUMNS:
        accepted = f"at most {preview.MAX_COLUMNS} are accepted"
        raise input_error(text.path, f"a table of {width} columns", accepted, "keep the text and label columns")
    if table and text.suffix == ROWS_SUFFIX:
        what = "a DataFrame" if text.path.suffix == FRAME_SUFFIX else "an Excel sheet"
        return _with_notice(detect_columns(text, table, f"{what} of {len(table.rows[0])} columns; "), table)
    if table and table.is_regular and _is_tabular(text, table):
        delimiter = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}[table.delimiter]
        note = f"{len(table.rows[0])} columns separated by {delimiter}, {'a' if table.header else 'no'} header; "
        if table.agreement < 1:
            note += f"{1 - table.agreement:.1%} of the rows are empty or have another number of cells; "
        return _with_notice(detect_columns(text, table, note), table)
    if table_suffix and table and not table.is_regular:
        if len(text.lines) == 1 and len(table.rows[0]) > 1:
            problem, fix = f"a table of one line with {len(table.rows[0])} cells", "add lines, or set data.kind=text"
            raise input_error(text.path, problem, "two or more lines are needed", fix)
        if error := dialect.irregular_error(text, table):
            raise error
    alternatives: tuple[tuple[str, str], ...] = ()
    if table and table.agreement >= 0.3:
        cells = f"{table.agreement:.0%} of its lines split at {table.delimiter!r} into {len(table.rows[0])} cells"
        why = "they do not look like columns" if table.is_regular else "a table needs 95 %, and at least two lines"
        alternatives = (("table", f"{cells}, but {why}"),)
    length = sum(map(len, text.lines)) // len(text.lines)
    truncated = text.size_ratio > 1 and len(text.lines) == 1
    lines = f"a line of more than {length} characters" if truncated else f"lines of {length} characters on average"
    needed = "a text and a label, or two texts, are needed; add a column; or, to learn its lines: data.kind=text"
    refusal = f"only one column of this table holds values; {needed}" if table_suffix else ""
    return Detection("text", f"plain UTF-8 text, {lines}, no columns", {}, alternatives, refusal=refusal)


def _with_notice(detection: Detection, table: TablePreview) -> Detection:
    """The detection with a notice if the first row, read as data, could be the header."""
    first = dialect.likely_header(table)
    columns = {key: ref for key, ref in detection.settings.items() if isinstance(ref, int)}
    if not first or not columns:
        return detection
    fix = " ".join(f"{key}={shlex.quote(first[ref - 1])}" for key, ref in columns.items())
    row = "; ".join(first)
    notice = f"the first row {row!r} is read as data; if it is the header, name its columns: {fix}"
    return replace(detection, notice=notice)


def _is_tabular(text: TextPreview, table: TablePreview) -> bool:
    """Whether a regular number of delimiters means columns: in verse, logs and lists it may not."""
    columns = preview.column_stats(table)
    rows = table.rows[:1000]
    table_suffix = text.suffix in TABLE_SUFFIXES
    is_log = not table_suffix and sum(bool(TIMESTAMP.match(row[0])) for row in rows) > 0.9 * len(rows)
    is_markdown = table.delimiter == "|" and re.search(r"^[|: ]*---[|: -]*$", text.text, re.M)
    n_filled = sum(c.filled_fraction >= 0.5 for c in columns)
    if n_filled < 1 + (not table_suffix or not table.header) or (is_log and not table.header) or is_markdown:
        return False
    if table.delimiter == "\t" or table.header or table_suffix:
        return True
    later = [cell for row in rows for cell in row[1:] if cell]
    if sum(cell[0] == " " for cell in later) > 0.9 * len(later):
        return False
    numeric = any(c.number_fraction > 0.95 for c in columns)
    certain = table.delimiter == "|" or f'"{table.delimiter}' in text.text or numeric
    return len(rows) > 2 and bool(certain or label_candidates(text, columns))


def _detect_folder(path: Path, encoding: str | None, names: Collection[object]) -> Detection:
    """The kind of a folder: texts or images by label, two aligned files, or the kind of its first file (of train)."""
    files = preview.data_files(path)
    sample = files[:: max(1, len(files) // 20)]
    if sum(map(preview.is_image, sample)) > len(sample) / 2:
        return _detect_image_folder(path, files, encoding)
    top = [file for file in files if file.parent == path]
    if "edges.csv" in (names := [file.name for file in top]):
        tables = [name for name in ("edges.csv", "nodes.csv", "graphs.csv", "pairs.csv") if name in names]
        return Detection("graph", f"a folder with {' and '.join(tables)}", _target_level(path, tables, encoding), ())
    if not top and {file.suffix for file in files} != {".txt"}:
        folders = join_names(sorted({file.relative_to(path).parts[0] for file in files}))
        raise input_error(path, "a folder of folders", "files or images are needed in it", f"give one of {folders}")
    top = top or files
    if sides := preview.aligned_files(top):
        reason = f"{sides[0].name} and {sides[1].name} have one name and two languages: line by line a pair"
        return Detection("pairs", reason, {"data.source": str(sides[0]), "data.target": str(sides[1])}, (AS_TEXT,))
    splits = [(SPLIT_OF_NAME[match[1]], file) for file in top if (match := SPLIT_NAME.search(file.name.lower()))]
    splits.sort(key=lambda split: list(SPLIT_FILE_NAMES).index(split[0]))
    if {name for name, _ in splits} <= {"train"}:  # one name alone means nothing: a-train-ride.txt
        splits = []
    first = splits[0][1] if splits else top[0]
    if not splits and len({file.suffix for file in top}) > 1:
        detection = Detection("text", "files of several kinds, all of them UTF-8", {}, ())
    else:
        detection = detect_kind(first, encoding, names)
        detection = replace(detection, reason=f"based on {first.name}: {detection.reason}")
    for file in [file for _, file in splits] or top if detection.kind == "text" else []:
        preview.preview_text(preview.read_head(file, encoding=encoding))
    if len({name for name, _ in splits}) == len(splits):
        split_files = {f"data.{name}": str(file) for name, file in splits}
        return replace(detection, settings=detection.settings | split_files)
    return detection


def _target_level(path: Path, tables: Collection[str], encoding: str | None) -> dict[str, object]:
    """The setting for pairs of graphs, and for edges of a graph without labels."""
    if "pairs.csv" in tables:
        return {"data.target_level": "pair"}
    of_edges: dict[str, object] = {"data.target_level": "edge"}
    if "nodes.csv" not in tables:
        return of_edges
    with suppress(BadInput):  # the reader reports it
        columns = read_columns(path / "nodes.csv", encoding)
        return of_edges if "graphs.csv" not in tables and label_column(columns, {}, str(path)) is None else {}
    return {}


def _detect_text_folders(path: Path, encoding: str | None) -> Detection | None:
    """Texts in folders that are their labels."""
    tree = text_folders(path)
    if not (tree and tree.has_labels and all(detect_kind(file, encoding).is_plain_text for file in tree.samples)):
        return None
    return Detection("table", tree.describe(path), {}, (("text", "the names of its folders repeat, as labels do"),))


def _detect_image_folder(path: Path, files: list[Path], encoding: str | None) -> Detection:
    tables = sorted(file for file in path.iterdir() if file.suffix.lower() in TABLE_SUFFIXES and file.is_file())
    for table in tables[:1]:
        with suppress(BadInput):  # a table next to the images may be of any kind
            if (detection := detect_kind(table, encoding)).kind in ("captions", "picture questions"):
                return replace(detection, reason=f"a folder of images, with {table.name}: {detection.reason}")
    names = sorted({file.parent.name for file in files if file.parent != path})
    labels = f"its subfolders ({join_names(names)}) are the labels" if names else "no subfolders, so no labels"
    return Detection("images", f"a folder of images; {labels}", {}, ())
