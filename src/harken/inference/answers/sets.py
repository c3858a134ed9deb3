"""What sets are, by a run that was trained on sets: all of a table, one of them (points.csv[7]), or arrays of rows."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from harken.data.sets.source import Floats, Set, SetWords, laid, sets_of
from harken.errors import BadInput, did_you_mean, near_name
from harken.events import Listener, silent
from harken.tasks.sets import answers

from .classify import said

if TYPE_CHECKING:
    from harken.inference.run import Run


def label_sets(run: "Run", given: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """For each set its labels, the likeliest first, or its number."""
    words, some = cast(SetWords, run.tokenizer), [one for each in given for one in _sets(run, each)]
    if not some:
        return []
    rows = [words.numbers(one.few(run.recipe.data.max_rows)) for one in some]
    return said(words, answers(run.model, laid(rows, np.zeros(len(rows), np.int64), [one.name for one in some])))


def named_sets(run: "Run", given: Sequence[str], listen: Listener = silent) -> tuple[list[str], list[Floats]]:
    """The names and the rows of all sets that are meant."""
    some = [one for each in given for one in _sets(run, each, listen)]
    return [one.name for one in some], [one.rows for one in some]


def _sets(run: "Run", given: Any, listen: Listener = silent) -> list[Set]:
    words = cast(SetWords, run.tokenizer)
    if isinstance(given, str | Path):
        return _of_table(str(given), words, listen)
    rows = np.asarray(given)
    if rows.dtype.kind not in "iuf" or rows.ndim != 2 or rows.shape[1] != len(words.columns) or not len(rows):
        accepted = f"rows of {len(words.columns)} numbers are accepted ({', '.join(map(str, words.columns))})"
        raise BadInput(f"an array of {rows.dtype}, shape {rows.shape}: {accepted}, or the path of a table")
    if not np.isfinite(rows).all():
        raise BadInput("an array with numbers that are not finite; mend it")
    return [Set("", rows.astype(np.float64), "", "")]


def _of_table(name: str, words: SetWords, listen: Listener) -> list[Set]:
    place = re.fullmatch(r"(.+)\[(.+)\]", name)
    path, one = (Path(place[1]), place[2]) if place and Path(place[1]).is_file() else (Path(name), None)
    if not path.is_file():
        raise BadInput(f"{name}: there is no such table; check the name{near_name(name)}")
    found = sets_of(path, words.group, None, words.columns, listen)
    mine = found if one is None else [each for each in found if each.name == one]
    if not mine:
        names = [each.name for each in found]
        some = f"it has {len(names):,}, such as {', '.join(names[:3])}.{did_you_mean(str(one), names)}"
        raise BadInput(f"{path}: has no set {one!r}; {some}")
    return mine
