"""The texts of a file by line: columns of a table or of JSON, or the lines of a plain text."""

from collections.abc import Sequence
from pathlib import Path

from harken.data.detect import dialect, preview
from harken.data.detect.kinds import detect_kind
from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import similar_path

from .columns import ColumnRef, iter_columns
from .read import SkippedRows
from .text_file import JSON_SUFFIXES, TABLE_SUFFIXES, text_file


def read_texts(
    path: Path, listen: Listener, column: str | None = None, trained_on: Sequence[ColumnRef] = ()
) -> dict[int, str]:
    """The text of each line or row, by its line; some may be empty.

    The text of a table is in `column`, else in the columns that a run was trained on, with tabs between them, else in
    the detected column.
    """
    if not path.is_file():
        raise BadInput(f"{path}: no such file; name a file of texts{similar_path(path)}")
    refs = [column] if column else _trained_columns(path, trained_on) or _text_column(path)
    if not refs:
        texts = dict(enumerate(preview.read_utf8(path).split("\n"), 1))
        texts = {line: text for line, text in texts.items() if text.strip()}
    else:
        skipped = SkippedRows("no text")
        rows = iter_columns(path, [("--column", ref) for ref in refs], skipped)
        texts = {line: "\t".join(" ".join(cell.split("\t")) for cell in cells) for line, cells in rows}
        skipped.report(listen)
    if not any(map(str.strip, texts.values())):
        raise BadInput(f"{path}: there is no text; expected one text per line, or a column of texts")
    return texts


def _preview_columns(path: Path) -> list[preview.ColumnStats]:
    """The columns of a table or of JSON lines, by the name of the file; empty for another one."""
    suffix = text_file(path).suffix
    if suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        return []
    text = preview.preview_text(preview.read_head(path))
    table = preview.preview_json_lines(text) if suffix in JSON_SUFFIXES else dialect.preview_table(text)
    return preview.column_stats(table) if table else []


def _trained_columns(path: Path, trained_on: Sequence[ColumnRef]) -> list[ColumnRef]:
    """The columns that a run was trained on if the file is a table; a single one only if the table has its name."""
    columns = _preview_columns(path) if trained_on else []
    return [*trained_on] if columns and (len(trained_on) > 1 or trained_on[0] in [c.name for c in columns]) else []


def _text_column(path: Path) -> list[ColumnRef]:
    """The text column of a table; empty if each line is a text."""
    detection = detect_kind(path)
    if detection.kind == "table" and isinstance(ref := detection.settings.get("data.text"), str | int):
        return [ref]
    columns = _preview_columns(path)
    texts = [c for c in columns if c.text_fraction > c.number_fraction and not c.is_identifier]
    named = [c for c in texts if preview.TEXT_NAME.fullmatch(c.name.lower())]
    if len(chosen := named or texts) == 1:
        return [chosen[0].ref]
    if not columns:
        return []
    known = ", ".join(str(c.ref) for c in columns)
    raise BadInput(f"{path}: a table with the columns {known}; name that of the texts: --column {columns[0].ref}")
