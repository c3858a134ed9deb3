"""The kind of a table by its columns.

A column is given by its header name or, if the name is missing or not unique, by its number from 1.
"""

import json
import re
import shlex
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from harken.data.graphs import files as graph_files
from harken.data.label_warnings import several_labels_hint
from harken.data.sets.columns import SetColumns, detect_set_columns
from harken.data.tables.read import input_error
from harken.data.tables.text_file import BINARY_TABLES, FRAME_SUFFIX, JSON_SUFFIXES, TABLE_SUFFIXES

from . import preview
from .detection import AS_TEXT, Detection, join_names
from .preview import ColumnStats, TablePreview, TextPreview

IMAGE_PATH = re.compile(r"\.(png|jpe?g|gif|bmp|webp|p[gp]m|tiff?|npz\[\d+\])$", re.I)
MIN_CAPTION_WORDS = 2.5  # mean words of a caption
EDGE_COLUMNS = ("source|src|from|u", "target|dst|to|v", graph_files.COLUMN_PATTERNS["weight"])
MIN_SHARED_NODES = 0.3  # fraction of the nodes that occur in both columns of an edge list
MAX_NODES = 0.6  # distinct names per cell of an edge list; a tree has one node per two cells
MAX_NAME_WORDS = 3  # mean words of a node name
FEW_VALUES = "a label has at most 100 values, each with at least 5 occurrences"


def label_candidates(text: TextPreview, columns: list[ColumnStats]) -> list[ColumnStats]:
    """Possible labels and targets, best first: by name, no empty cells, few values, few words, last position."""
    labels = [c for c in columns if not _not_a_label(text, c)]
    labels.sort(key=lambda c: (not _has_target_name(c), c.filled_fraction < 1, c.n_values, c.mean_words, -c.index))
    return labels


def _has_label_name(c: ColumnStats) -> bool:
    return bool(preview.LABEL_NAME.fullmatch(c.name))


def _has_target_name(c: ColumnStats) -> bool:
    """Whether the column is named like a label, or is numeric and named like a regression target."""
    return _has_label_name(c) or _has_number_name(c)


def _has_number_name(c: ColumnStats) -> bool:
    return _is_numeric(c) and bool(preview.NUMBER_TARGET_NAME.fullmatch(c.name))


def _is_numeric(c: ColumnStats) -> bool:
    return c.number_fraction > 0.95


def _repeats(text: TextPreview, c: ColumnStats) -> bool:
    """Whether each value occurs at least 5 times on average; unread rows count as well, once values repeat."""
    often = c.n_filled >= 5 * c.n_values
    return often or (c.n_filled >= 2 * c.n_values and c.n_filled * text.size_ratio >= 5 * c.n_values)


def _is_regression(text: TextPreview, c: ColumnStats) -> bool:
    """Whether the column holds numbers, is named like a target, and has too many values for a label."""
    if c.n_values < 2 or (c.n_values <= 100 and _repeats(text, c)):
        return False
    is_measured = c.n_values > 100 or (c.has_decimals and not _may_be_named_label(c))
    return _has_number_name(c) or (_has_label_name(c) and _is_numeric(c) and is_measured)


def _may_be_named_label(c: ColumnStats) -> bool:
    """Whether the values repeat often enough for a label if the name of the column says that it is one."""
    return _has_label_name(c) and 2 * c.n_values <= c.n_filled and c.n_values <= 100


def _not_a_label(text: TextPreview, c: ColumnStats) -> str:
    """Why this column is neither a label nor a target; empty if it may be one."""
    if c.is_identifier or c.filled_fraction < 0.5:
        return f"{c} identifies or credits a row" if c.is_identifier else f"{c} is empty in most rows"
    if _is_regression(text, c):
        return ""
    mean = c.n_filled / max(1, c.n_values)
    observed = f"{c} has {c.n_values} values with {mean:.1f} occurrences on average, but a label has"
    if c.n_values < 2 or not (_may_be_named_label(c) or (c.n_values <= 100 and _repeats(text, c))):
        return f"{observed} at most 100, each with at least 5 occurrences"
    if not _has_label_name(c) and c.mean_words > 3:  # repeated sentences are not labels
        return f"{observed} at most 3 words, and these have {c.mean_words:.1f}"
    return ""


def _edge_columns(table: TablePreview, columns: list[ColumnStats]) -> list[ColumnStats]:
    """The two columns named as the ends of edges, if the table has no other columns except a weight."""
    named = [next((c for c in columns if re.fullmatch(form, c.name.lower())), None) for form in EDGE_COLUMNS]
    ends = [c for c in named[:2] if c is not None]
    is_edge_list = table.header and len(ends) == 2 and len(columns) == 2 + (named[2] is not None)
    return ends if is_edge_list else []


def _are_nodes(table: TablePreview, ends: list[ColumnStats]) -> bool:
    """Whether the two columns hold node numbers, or short names that repeat, and share values."""
    rows = [tuple(row[c.index].strip() for c in ends) for row in table.rows[:1000]]
    sources, targets = ({row[k] for row in rows} for k in (0, 1))
    if not all(cell.isdigit() for cell in sources | targets):
        rows = [row for row in rows if row[0] != row[1]]  # a word may be its own translation
        sources, targets = ({row[k] for row in rows} for k in (0, 1))
        if max(c.mean_words for c in ends) > MAX_NAME_WORDS or len(sources | targets) > 1 + MAX_NODES * 2 * len(rows):
            return False
    n_shared = len(sources & targets)
    return n_shared > 0 and n_shared >= MIN_SHARED_NODES * min(len(sources), len(targets))


def detect_columns(text: TextPreview, table: TablePreview, note: str) -> Detection:
    """The kind of a table by its columns."""
    columns = preview.column_stats(table)
    texts = [c for c in columns if c.text_fraction >= 0.5 and not c.is_identifier]
    ends = _edge_columns(table, columns)
    if ends and _are_nodes(table, ends):
        reason = f"{note}{ends[0]} and {ends[1]} hold nodes and share values"
        alternatives = (("pairs", "a source of a pair is seldom the target of another"), AS_TEXT)
        return Detection("graph", reason, {"data.target_level": "edge"}, alternatives)
    sides = [c for side in (preview.SOURCE_NAME, preview.TARGET_NAME) for c in columns if side.fullmatch(c.name)]
    if len(sides) != 2 or preview.SOURCE_NAME.fullmatch(sides[1].name):
        sides = [c for c in columns if preview.LANGUAGE_NAME.fullmatch(c.name) and not _is_numeric(c)]
    if len(sides) == 2:
        return _pairs(text, sides, columns, f"{note}{sides[0]} and {sides[1]} are named as two sides", ends)
    sets = None if any(c.mean_words > 3 for c in columns) else detect_set_columns(table)
    if sets and sets.label and not sets.ignored:
        return _sets(sets, note)
    images = [c for c in columns if c.filled_fraction >= 0.9 and all(map(IMAGE_PATH.search, _filled_cells(table, c)))]
    if images and (detection := _detect_picture_texts(table, images[0], columns, note)):
        return detection
    if len(columns) > 2 and all(map(_is_numeric, columns)):
        return _numbers(text, columns, note)
    has_text = texts and not images
    labels = [c for c in label_candidates(text, columns) if has_text or not _is_regression(text, c)]
    if detection := _constant_label(labels, columns, texts, note):
        return detection
    if labels:
        if images:
            settings = {"data.image": images[0].ref, "data.label": labels[0].ref}
            reason = f"{note}{images[0]} holds image paths, {labels[0]} has {labels[0].n_values} values"
            return Detection("images", reason, settings, (("table", "a path is not a text to learn from"), AS_TEXT))
        return _labelled(text, labels, texts if len(columns) > 2 else columns, columns, note)
    if len(texts) >= 2:
        reason = f"{note}{texts[0]} and {texts[1]} hold text, and no column is a label"
        return _pairs(text, texts[:2], columns, reason + several_labels_hint(table.rows, texts))
    numbered = columns and columns[0].number_fraction > 0.9 and columns[0].n_values == columns[0].n_filled
    filled = min((c.filled_fraction for c in columns), default=0.0) > 0.9
    if len(columns) == 2 and table.delimiter == "\t" and not numbered and filled:
        return _pairs(text, columns, columns, f"{note}two columns, and neither is a label or a row number")
    return _one_text(text, table, columns, texts, note)


def _one_text(
    text: TextPreview, table: TablePreview, columns: list[ColumnStats], texts: list[ColumnStats], note: str
) -> Detection:
    """A table with one text column or none, and without a label."""
    if not texts and not table.delimiter:
        problem = f"objects with {join_names(table.header) or 'no keys'}"
        raise input_error(text.path, problem, "text under one key or two, or text and a label, is needed", "add it")
    reason = f"{note}{texts[0] if texts else 'no column'} holds text, and no column is a label"
    against = ("table", f"it has columns, but {FEW_VALUES}")
    detection = Detection("text", reason, {"data.text": texts[0].ref} if texts else {}, (against,))
    if texts or not (table.header or text.suffix in TABLE_SUFFIXES):
        return detection
    if all(map(_is_numeric, columns)):
        return _numbers(text, columns, note)
    fix = "name the columns: data.text=... data.label=...; or, to learn its lines as plain text: data.kind=text"
    refusal = f"{reason}; a text and a label, or two texts, are needed; {fix}"
    return replace(detection, refusal=refusal)


def _detect_picture_texts(
    table: TablePreview, image: ColumnStats, columns: list[ColumnStats], note: str
) -> Detection | None:
    """Captions, or a question and an answer per image, which no model here learns."""
    candidates = [c for c in columns if c is not image and not c.is_identifier and c.filled_fraction >= 0.5]
    questions = [c for c in candidates if _is_question(table, c)]
    remaining = [c for c in candidates if c not in questions]
    answers = [c for c in remaining if preview.ANSWER_NAME.fullmatch(c.name) or _has_label_name(c)]
    if questions and answers:
        reason = f"{note}{image} holds image paths, {questions[0]} questions and {answers[0]} answers"
        captions = f"data.kind=captions data.image={image.ref} data.caption={answers[0].ref}"
        pairs = f"data.kind=pairs data.source={questions[0].ref} data.target={answers[0].ref}"
        fix = f"to learn the answers as captions: {captions}; the answers without the images: {pairs}"
        refusal = f"{reason}; picture questions are not supported yet; {fix}"
        return Detection("picture questions", reason, {}, (), refusal=refusal)
    long_texts = [c for c in candidates if c.text_fraction >= 0.5 and c.mean_words >= MIN_CAPTION_WORDS]
    if not long_texts:
        return None
    caption = max(long_texts, key=lambda c: c.mean_words)
    settings = {"data.image": image.ref, "data.caption": caption.ref}
    reason = f"{note}{image} holds image paths, {caption} has {caption.mean_words:.3g} words per cell"
    alternatives = (("pairs", "a path is not a text to translate"), AS_TEXT)
    return Detection("captions", reason, settings, alternatives, overrides=("data.caption", "data.image", "data.kind"))


def _is_question(table: TablePreview, c: ColumnStats) -> bool:
    """Whether the column is named as a question, or its texts end with a question mark."""
    cells = _filled_cells(table, c)
    return bool(preview.QUESTION_NAME.fullmatch(c.name)) or sum(cell.endswith("?") for cell in cells) > 0.9 * len(cells)


def cluster_command(path: Path) -> str:
    """What groups the rows of a table of numbers."""
    if path.suffix == FRAME_SUFFIX:
        return "harken.cluster(df)"
    suffix = Path(path.stem if path.suffix == ".gz" else path).suffix.lower()
    is_read = suffix in (*TABLE_SUFFIXES, *JSON_SUFFIXES, *BINARY_TABLES)
    return f"harken cluster {shlex.quote(str(path))}" if is_read else "save it as .csv, then harken cluster"


def _fits_numbers(text: TextPreview) -> str:
    """What is accepted instead of a table of numbers, and what works on one."""
    sets = "if several rows form one example: data.kind=sets data.group=COLUMN data.label=COLUMN"
    is_table = text.suffix in TABLE_SUFFIXES or text.path.suffix.lower() in BINARY_TABLES
    cluster = cluster_command(text.path)
    lines = "" if is_table else "; or, to learn its lines as plain text: data.kind=text"
    return f"a column of text, or rows that form sets, are needed; to group the points: {cluster}; or, {sets}{lines}"


def _numbers(text: TextPreview, columns: list[ColumnStats], note: str) -> Detection:
    """A table of numbers only: no model here learns a column from the other columns."""
    reason = f"{note}every column holds numbers ({join_names([str(c.ref) for c in columns])})"
    return Detection("numbers", reason, {}, (AS_TEXT,), refusal=f"{reason}; {_fits_numbers(text)}")


def _constant_label(
    labels: list[ColumnStats], columns: list[ColumnStats], texts: list[ColumnStats], note: str
) -> Detection | None:
    """A column named like a label that has fewer than two values, if no other one is named so."""
    constant = next((c for c in columns if _has_label_name(c) and c.n_values < 2 and not c.is_identifier), None)
    candidates = [c for c in texts if c is not constant]
    if constant is None or not candidates or any(map(_has_target_name, labels)):
        return None
    if len(candidates) > 1 and not constant.name.endswith(("label", "labels")):  # a note beside two texts
        return None
    observed = f"{constant} has one value" if constant.n_values else f"{constant} is empty"
    fix = "add rows with other labels, or name another column: data.label=... (two texts: data.kind=pairs)"
    settings = {"data.text": candidates[0].ref, "data.label": constant.ref}
    refusal = f"{note}{observed}; a label needs at least two values; {fix}"
    return Detection("table", f"{note}{observed}", settings, (AS_TEXT,), refusal=refusal)


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


def _labelled(
    text: TextPreview, labels: list[ColumnStats], texts: list[ColumnStats], columns: list[ColumnStats], note: str
) -> Detection:
    """One or two texts with a label, or with a number to predict."""
    label = labels[0]
    is_regression = _is_regression(text, label)
    fallback = [c for c in texts if c is not label and not (is_regression and len(columns) > 2 and _repeats_words(c))]
    texts = [c for c in texts if c not in labels] or fallback
    texts = [c for c in texts if not preview.PERSON_NAME.fullmatch(c.name)] or texts  # who wrote it is no text
    longest = sorted(texts, key=lambda c: -c.mean_words)[:2]
    texts = sorted((c for c in longest if c is longest[0] or c.mean_words >= 3), key=lambda c: c.index)
    settings: dict[str, Any] = {"data.label": label.ref}
    if texts:
        settings["data.text"] = texts[0].ref if len(texts) == 1 else [c.ref for c in texts]
    if is_regression:
        settings["data.target_type"] = "number"
        reason = f"{note}{label} holds numbers and is named like a target (regression)"
    else:
        mean = label.n_filled // label.n_values
        reason = f"{note}{label} has {label.n_values} values with {mean} occurrences on average"
    if texts and len(columns) > 2:
        reason += f"; the text{'s are' if texts[1:] else ' is'} {' and '.join(map(str, texts))}"
        unused = [c for c in columns if _is_numeric(c) and not c.is_identifier and c not in (label, *texts)]
        reason += f"; numbers are not used: {join_names([str(c.ref) for c in unused])}" * bool(unused)
    if labels[1:]:
        reason += f" (other possible labels: {', '.join(map(str, labels[1:4]))})"
    pairs = (("pairs", f"{texts[0]} and {texts[1]} hold text, but there is a label"),) if texts[1:] else ()
    overrides = ("data.label", *["data.target_type"] * is_regression, "data.kind")
    left_out = _left_out([c for c in columns if c not in (*texts, label)], texts)
    numbers = [c for c in texts if _is_numeric(c)]
    notice = f"{numbers[0]} holds numbers, which are read as text: digits, not sizes" if numbers else ""
    detection = Detection(
        "table", reason, settings, (*pairs, AS_TEXT), overrides=overrides, notice=notice, left_out=left_out
    )
    if texts:
        return detection
    regress = f"to predict it from the numbers: {cluster_command(text.path)} --regress {shlex.quote(str(label.ref))}; "
    if words := next((c for c in columns if c is not label and _is_words(c)), None):
        regress += f"from the words: data.text={shlex.quote(str(words.ref))} data.label={shlex.quote(str(label.ref))}; "
    fits = regress * (is_regression and text.path.suffix != FRAME_SUFFIX) + _fits_numbers(text)
    return replace(detection, refusal=f"{reason}, and no column holds text; {fits}")


def _repeats_words(c: ColumnStats) -> bool:
    """Whether a column holds a few repeated words, and its name does not say that it is a text."""
    return c.n_filled >= 5 * c.n_values and c.mean_words <= 3 and not preview.TEXT_NAME.fullmatch(c.name)


def _left_out(unread: list[ColumnStats], texts: list[ColumnStats]) -> str:
    """The columns with texts or with values that repeat, beside the texts that are read; how to read them as well."""
    filled = [c for c in unread if c.filled_fraction >= 0.5 and c.n_values > 1 and not _has_target_name(c)]
    useful = [c for c in filled if _is_words(c) or _is_category(c)]
    if not useful or not texts:
        return ""
    refs = json.dumps([c.ref for c in sorted((*useful, *texts), key=lambda c: c.index)], ensure_ascii=False)
    names = join_names([str(c) for c in useful])
    return f"left out: {names}; to read them too, each as a segment of the input: data.text={shlex.quote(refs)}"


def _is_words(c: ColumnStats) -> bool:
    return c.text_fraction >= 0.5 and not c.is_identifier


def _is_category(c: ColumnStats) -> bool:
    """Whether each value occurs twice on average, as those of users do."""
    return c.n_filled >= 2 * c.n_values


def _pairs(
    text: TextPreview,
    sides: list[ColumnStats],
    columns: list[ColumnStats],
    reason: str,
    ends: list[ColumnStats] | None = None,
) -> Detection:
    """Two texts per row. `ends`: they may also be the ends of edges."""
    alternatives = [AS_TEXT]
    if ends and all(c.n_values <= MAX_NODES * c.n_filled and c.mean_words <= MAX_NAME_WORDS for c in ends):
        alternatives.insert(0, ("graph", f"{ends[0]} and {ends[1]} repeat names, but share few of them"))
    if len(numbers := [c for c in sides if _is_numeric(c)]) == 1:
        (words,) = (c for c in sides if c not in numbers)
        learn = f"data.text={words.ref} data.label={numbers[0].ref} data.target_type=number"
        alternatives.insert(0, ("table", f"{numbers[0]} holds numbers, but is not named like a target; set {learn}"))
    elif near := min((c for c in columns if 1 < c.n_values < c.n_filled), key=lambda c: c.n_values, default=None):
        named = f"{near} could be a label, but {sides[0]} and {sides[1]} are named as two sides"
        alternatives.insert(0, ("table", _not_a_label(text, near) or named))
    return Detection("pairs", reason, {"data.source": sides[0].ref, "data.target": sides[1].ref}, tuple(alternatives))
