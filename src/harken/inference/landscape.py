"""The landscape of the training loss of a run."""

from typing import Unpack

from harken.analysis.landscape import Landscape, LandscapeOptions, Objective, landscape
from harken.errors import BadInput
from harken.events import Listener, silent

from .loaded_model import LoadedModel
from .prepare import Int8Linear


class RunLandscapeOptions(LandscapeOptions, total=False):
    """Options of `run.landscape`."""

    batches: int
    listen: Listener


def landscape_of_run(
    run: LoadedModel, *, batches: int = 4, listen: Listener = silent, **options: Unpack[LandscapeOptions]
) -> Landscape:
    """The loss around the weights of a run, on the first batches of its training data.

    The weights are in float64, without dropout. `analysis.landscape.landscape` documents the other options.
    """
    if any(isinstance(module, Int8Linear) for module in run.model.modules()):
        raise BadInput("precision='int8': integers have no gradient; load the run with precision='float32'")
    task = run.recipe.bind(run.recipe.load_data(run.tokenizer, listen=listen))
    return landscape(Objective.of_task(run.model, task, batches), **options)
