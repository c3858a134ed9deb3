"""The dialect of a table: its delimiter, quotes, header and the lines before it. Training and --in use the same one."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import islice

from harken.data.tables.numbers import is_missing
from harken.data.tables.read import NumberedRows, input_error, parse_quoted
from harken.data.tables.text_file import FRAME_SUFFIX, ROWS_SUFFIX, TABLE_SUFFIXES
from harken.errors import BadInput

from .preview import (
    COMMON_NAME,
    ID_NAME,
    LABEL_NAME,
    LANGUAGE_NAME,
    MAX_CELLS,
    NUMBER,
    SOURCE_NAME,
    TARGET_NAME,
    TEXT_NAME,
    TablePreview,
    TextPreview,
    normalize_name,
    padded,
)

DELIMITERS = "\t;|,"  # in the order in which they are tried
SEPARATOR_LINE = re.compile(r'"?sep=([\t;|,])"?', re.I)  # the first line of some files of Excel
QUOTED_CELL = r'(?:^|{0})"(?:[^"\n]|"")*"(?={0}|$)'  # in one line
SAMPLE_CHARACTERS = 100_000  # searched for quoted cells


def preview_table(text: TextPreview) -> TablePreview | None:
    """The best table for the text, regular or not, without blank lines, `sep=;` and # comments before it."""
    if text.suffix == ROWS_SUFFIX:
        return _sheet(text)
    delimiters = DELIMITERS
    skip = _count_leading(text.lines, lambda line: not line.strip())
    if skip < len(text.lines) and (separator := SEPARATOR_LINE.fullmatch(text.lines[skip].strip(" "))):
        skip, delimiters = skip + 1, separator[1]
    comments = _count_leading(text.lines[skip:], lambda line: line.startswith("#") or not line.strip())
    table = _best_table(text, skip + comments, delimiters) if comments else None
    if table and table.is_regular:
        width = len(table.rows[0])
        if table.header:  # a # line before a header is a comment, whatever its number of cells
            return table
        comments = _count_leading(
            text.lines[skip : skip + comments], lambda line: len(line.split(table.delimiter)) != width
        )
        skip += comments
    return _best_table(text, skip, delimiters)


def _count_leading(lines: list[str], is_counted: Callable[[str], bool]) -> int:
    """The number of lines before the first that is not counted."""
    return next((n for n, line in enumerate(lines) if not is_counted(line)), len(lines))


def _sheet(text: TextPreview) -> TablePreview:
    """The table of a DataFrame or an Excel sheet, without blank rows and title rows (of one cell) before its header."""
    try:
        rows: list[list[str]] = list(islice(map(json.loads, text.lines), MAX_CELLS // 10))
    except ValueError:
        accepted, fix = "a row of at most 1 MiB is accepted", "shorten its texts"
        raise input_error(text.path, "a row of more than 1 MiB", accepted, fix) from None
    if text.path.suffix == FRAME_SUFFIX:
        return TablePreview(rows[0], [padded(row, len(rows[0])) for row in rows[1:]], "\t")
    if (blank := _count_leading(text.lines, lambda line: line == "[]")) == len(rows):
        raise input_error(text.path, f"{blank:,} blank rows before the data", "a header is needed", "delete them")
    titles = next((n for n, row in enumerate(rows) if sum(map(bool, row)) > 1), blank)
    for skip in (titles, blank):
        header, table = _split_header([padded(row, len(rows[skip])) for row in rows[skip:] if row])
        if header:
            return TablePreview(header, table, "\t", skip=skip)
    width = max(map(len, rows))
    return TablePreview([], [padded(row, width) for row in rows[blank:] if row], "\t", skip=blank)


def reading_table(text: TextPreview) -> TablePreview | None:
    """The table for reading rows: like preview_table, but a file with a table suffix may have a single column."""
    table = preview_table(text)
    if text.suffix == ROWS_SUFFIX:
        return table
    skip = table.skip if table else _count_leading(text.lines, lambda line: not line.strip())
    first = text.lines[min(skip, len(text.lines) - 1)]
    if text.suffix not in TABLE_SUFFIXES or (table and (table.is_regular or table.delimiter in first)):
        return table
    delimiter, quoted = ("," if text.suffix == ".csv" else "\t"), text.suffix == ".csv" and '"' in text.text
    rows = _split_rows("\n".join(text.lines[skip:]), delimiter, quoted=quoted, complete=text.size_ratio == 1)[0]
    return TablePreview([], rows, delimiter, quoted, is_regular=False, skip=skip)


def first_row(text: TextPreview, table: TablePreview) -> list[str]:
    """The cells of the first row without blanks around them, also if most rows have another number of cells."""
    if text.suffix == ROWS_SUFFIX:
        return [cell.strip() for cell in table.rows[0]]
    rows, _ = _split_rows("\n".join(text.lines[table.skip :]), table.delimiter, quoted=table.quoted, complete=False)
    return [cell.strip() for cell in rows[0]] if rows else []


def irregular_error(text: TextPreview, table: TablePreview) -> BadInput | None:
    """The error for a table with too many ragged rows, with the line of the first; None if there is no such row."""
    width, bad = len(table.rows[0]), list[tuple[int, str]]()
    lines = iter(list(enumerate(text.lines, 1))[table.skip :])
    split: NumberedRows = ((n, line.split(table.delimiter)) for n, line in lines)
    if table.quoted:
        split = parse_quoted(lines, table.delimiter, lambda n, reason: bad.append((n, reason)))
    bad += [(n, f"{len(row)} columns instead of {width}") for n, row in split if len(row) != width and any(row)]
    if not bad:
        return None
    line, reason = min(bad)
    share = f"{table.agreement:.0%}" if width > 1 else "most"
    accepted = f"95 % of the rows of a table need the same number of columns, two or more, and {share} have {width}"
    return input_error(f"{text.path}:{line}", reason, accepted, "quote cells with a delimiter, or set data.kind=text")


def _best_table(text: TextPreview, skip: int, delimiters: str = DELIMITERS) -> TablePreview | None:
    """The best table after the skipped lines; tab is tried first, comma last."""
    text = replace(text, text=text.text.split("\n", skip)[-1], lines=text.lines[skip:])
    best = None
    for delimiter in delimiters:
        if delimiter in text.text and not (best and best.is_regular):
            table = _try_quotes(text, delimiter)
            better = best is None or (table.is_regular, table.agreement) > (best.is_regular, best.agreement)
            best = table if better else best
    return best and replace(best, skip=skip)


def _try_quotes(text: TextPreview, delimiter: str) -> TablePreview:
    """The table with quotes that are literal, or that enclose cells: the reading with more regular rows.

    One unclosed quote does not make the quotes of the other rows literal.
    """
    literal = _try_delimiter(text, delimiter, quoted=False)
    if '"' not in text.text:
        return literal
    quoted = _try_delimiter(text, delimiter, quoted=True)
    if delimiter == "\t" and quoted.bad_quotes:  # in these tables a quote is usually literal
        return literal
    sample = text.text[:SAMPLE_CHARACTERS]
    n_cells = len(re.findall(QUOTED_CELL.format(re.escape(delimiter)), sample, re.M))
    n_cells += sum("\n" in cell for row in quoted.rows for cell in row)
    if quoted.rows and len(quoted.rows[0]) == 1 and 2 * n_cells > sample.count("\n"):  # one column of quoted cells
        return quoted
    return max(
        (literal, quoted), key=lambda t: (t.quoted and n_cells > t.bad_quotes, t.is_regular, len(t.rows), t.quoted)
    )


def _split_rows(text: str, delimiter: str, *, quoted: bool, complete: bool) -> tuple[list[list[str]], int]:
    """Rows of cells, at most MAX_CELLS, and the number of rows with a bad quote, which are empty."""
    rows: list[list[str]] = []
    bad: list[int] = []
    n_cells = 0
    lines = enumerate(text.split("\n"), 1)
    split: NumberedRows = ((number, line.split(delimiter)) for number, line in lines)
    if quoted:
        is_strict = delimiter == "\t"
        split = parse_quoted(lines, delimiter, lambda n, _: bad.append(n), strict=is_strict, complete=complete)
    for _, row in split:
        rows.append(row)
        n_cells += len(row) + 1
        if n_cells > MAX_CELLS and len(rows) > 2:
            break
    return rows + [[]] * len(bad), len(bad)


def _try_delimiter(text: TextPreview, delimiter: str, *, quoted: bool) -> TablePreview:
    is_complete = text.size_ratio == 1
    rows, bad_quotes = _split_rows(text.text.rstrip("\n"), delimiter, quoted=quoted, complete=is_complete)
    if not is_complete and len(rows) > 1 + bad_quotes:
        rows.pop(len(rows) - bad_quotes - 1)
    width, count = Counter(len(row) if any(row) else 1 for row in rows or [[]]).most_common(1)[0]
    n_empty = sum(len(row) > 1 and not any(row) for row in rows)  # of a spreadsheet
    agreement = 0.0 if width < 2 else count / (len(rows) - n_empty)
    table = [row for row in rows if len(row) == width and any(row)]
    for part in text.later if agreement else ():
        sample, _ = _split_rows(part, delimiter, quoted=quoted, complete=False)
        regular = [row for row in sample if len(row) == width and any(row)]
        table += regular if len(regular) >= 0.95 * len(sample) else []  # a sample may start inside a quoted cell
    header, table = _split_header(table) if table[:1] == rows[:1] else ([], table)
    is_regular = agreement >= 0.95 and len(rows) > 1
    return TablePreview(header, table, delimiter, quoted, agreement, is_regular, bad_quotes)


def _split_header(table: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """The header (empty if there is none), and the other rows."""
    first = [cell.strip() for cell in table[0]] if table else []
    return (first, table[1:]) if len(table) > 1 and _is_header(first, table[1:1001]) else ([], table)


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first row can be names, and one of them is typical or its column holds numbers or labels."""
    if not can_be_header(first, rows):
        return False
    names = [normalize_name(cell) for cell in first]
    typical = sum(bool(LANGUAGE_NAME.fullmatch(name)) for name in names) > 1  # a single one may be a word: no, it
    patterns = (SOURCE_NAME, TARGET_NAME, LABEL_NAME, TEXT_NAME, ID_NAME)
    typical |= any(pattern.fullmatch(name) for pattern in patterns for name in names)
    known = (*patterns, LANGUAGE_NAME, COMMON_NAME)  # these also name a header if all of its cells are such words
    n_known = sum(any(pattern.fullmatch(name) for pattern in known) for name in names)
    are_words = all(len(cell.split()) == 1 for cell in first if cell)
    typical |= len(names) > 1 and (n_known == len(names) or (are_words and n_known > max(1, len(names) / 2)))
    for column in zip(*rows, strict=True):
        present = [value for value in column if not is_missing(value)]
        numeric = bool(present) and all(NUMBER.fullmatch(value[:100].strip()) for value in present)
        typical = typical or (_repeats(column) and len(set(column)) > 1) or numeric
    return typical


def with_named_header(table: TablePreview, names: Collection[object]) -> TablePreview:
    """The table whose first row is its header if it holds one of these names of columns."""
    first = [] if table.header or len(table.rows) < 2 else [cell.strip() for cell in table.rows[0]]
    return replace(table, header=first, rows=table.rows[1:]) if any(name in first for name in names) else table


def likely_header(table: TablePreview) -> list[str]:
    """The first row of a table without a header if it could be one: few words, unlike nearly all other rows."""
    first = [] if table.header or not table.rows else [cell.strip() for cell in table.rows[0]]
    rows = table.rows[1:1001]
    if not first or len(rows) < 5 or not _is_title(first) or not can_be_header(first, rows):
        return []
    length = len("".join(first))
    n_similar = sum(_is_title(row) for row in rows)
    n_short = sum(len("".join(row)) <= 1.5 * length for row in rows)
    return first if min(n_similar, n_short) <= 0.02 * len(rows) else []


def _is_title(row: list[str]) -> bool:
    """Whether each cell has one to three words with a capital at the start and no mark at the end."""
    cells = [cell.strip() for cell in row]
    return all(cell[:1].isupper() and cell[-1:].isalnum() and len(cell.split()) <= 3 for cell in cells)


def can_be_header(first: list[str], rows: list[list[str]]) -> bool:
    """Whether the first row may hold names: short, not numbers, not values of their columns."""
    columns = list(zip(*rows, strict=True)) if rows else [("",)] * len(first)
    empty = [any(column) for cell, column in zip(first, columns, strict=True) if not cell]
    if any(len(cell) > 60 or NUMBER.fullmatch(cell) for cell in first) or any(empty[not first[0] :]):
        return False  # only the first column, an index, and empty columns have no name
    return not any(
        _repeats(column) and cell in map(str.strip, column) for cell, column in zip(first, columns, strict=True) if cell
    )


def _repeats(column: Sequence[str]) -> bool:
    return len(set(column)) * 5 <= len(column)
