"""The inputs of a command that are not texts: images, nodes, graphs or sets, as its arguments or --in select them."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from harken.events import Listener

from .answers import is_empty
from .inputs import InputRow, Inputs

if TYPE_CHECKING:
    from harken.inference.answers import InputReader
    from harken.inference.run import Run

BATCH_SIZE = 256  # inputs per batch


def selected_batches(
    model: "Run", reader: "InputReader", selected: Sequence[str], inputs: Inputs, listen: Listener
) -> tuple[list[str], list[Sequence[object]]]:
    """The names of the inputs that these arguments select, and the inputs in batches."""
    from harken.inference.answers.sets import list_sets

    select = partial(list_sets, encoding=inputs.encoding) if inputs.in_ else reader.select
    groups = [list(selected)] if reader.one_batch else [[name] for name in selected]
    parts = [(group, group) if any(map(is_empty, group)) else select(model, group, listen) for group in groups]
    names = [name for part_names, _ in parts for name in part_names]
    items: list[object] = [item for _, part_items in parts for item in part_items]
    if inputs.in_:
        inputs.set_rows([InputRow(None, {"set": name}, name) for name in names])
    size = max(1, len(items)) if reader.one_batch else BATCH_SIZE
    return names, [items[n : n + size] for n in range(0, len(items), size)]
