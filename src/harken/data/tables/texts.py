"""The texts of a file by line: a column of a table or of JSON, or the lines of a plain text."""

from pathlib import Path

from harken.data.detect import dialect, preview
from harken.data.detect.kinds import detect_kind
from harken.errors import BadInput
from harken.events import Listener
from harken.suggestions import similar_path

from .columns import ColumnRef, iter_columns
from .read import SkippedRows
from .text_file import JSON_SUFFIXES, TABLE_SUFFIXES, text_file


def read_texts(path: Path, listen: Listener, column: str | None = None) -> dict[int, str]:
    """The text of each line or row, by its line; some may be empty. The text column of a table is detected."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file; name a file of texts{similar_path(path)}")
    ref = column or _text_column(path)
    if ref is None:
        texts = dict(enumerate(preview.read_utf8(path).split("\n"), 1))
        texts = {line: text for line, text in texts.items() if text.strip()}
    else:
        skipped = SkippedRows("no text")
        texts = {line: cells[0] for line, cells in iter_columns(path, [("--column", ref)], skipped)}
        skipped.report(listen)
    if not any(map(str.strip, texts.values())):
        raise BadInput(f"{path}: there is no text; expected one text per line, or a column of texts")
    return texts


def _text_column(path: Path) -> ColumnRef:
    """The text column of a table; None if each line is a text."""
    detection = detect_kind(path)
    if detection.kind == "table" and isinstance(ref := detection.settings.get("data.text"), str | int):
        return ref
    suffix = text_file(path).suffix
    if suffix not in (*TABLE_SUFFIXES, *JSON_SUFFIXES):
        return None
    text = preview.preview_text(preview.read_head(path))
    table = preview.preview_json_lines(text) if suffix in JSON_SUFFIXES else dialect.preview_table(text)
    columns = preview.column_stats(table) if table else []
    texts = [c for c in columns if c.text_fraction > c.number_fraction and not c.is_identifier]
    named = [c for c in texts if preview.TEXT_NAME.fullmatch(c.name.lower())]
    if len(chosen := named or texts) == 1:
        return chosen[0].ref
    if not columns:
        return None
    known = ", ".join(str(c.ref) for c in columns)
    raise BadInput(f"{path}: a table with the columns {known}; name that of the texts: --column {columns[0].ref}")
