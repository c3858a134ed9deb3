"""A model with its recipe, manifest and tokenizer, and the checks of what it supports."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import torch
from torch import Tensor

from harken import registry, run_folder
from harken.analysis.landscape import Landscape, LandscapeOptions, Objective, landscape
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.labelled.source import TextLabelProcessor
from harken.data.labelled.tags import WORD
from harken.data.source import Vocab
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.decode.beam import BeamSearch
from harken.decode.sampling import TextGenerator
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.models import EncoderDecoder, LanguageModel, Model
from harken.recipe import Recipe
from harken.tasks import Score

from .answers import NEXT_SENTENCE_LABELS, InputReader
from .answers.unknown import unknown_pieces
from .int8 import Int8Linear

if TYPE_CHECKING:
    from .answers.embed import Embedder


class LoadedModel:
    """A model with its recipe, manifest and tokenizer, ready for inference."""

    def __init__(
        self, path: Path, recipe: Recipe, facts: Mapping[str, object], model: Model, tokenizer: object
    ) -> None:
        self.path, self.recipe, self.facts = path, recipe, cast(dict[str, Any], facts)
        self.model, self.tokenizer = cast(LanguageModel, model), cast(Any, tokenizer)
        self.graph_cache: dict[str | None, tuple[Any, Any]] = {}  # loaded graphs by path, each with its bound task
        self.final_scores: Mapping[str, Score] = {}  # of each split, if this process has trained the run
        self.model.eval()

    @cached_property
    def text_generator(self) -> TextGenerator:
        return TextGenerator(self.model)

    @cached_property
    def beam_search(self) -> BeamSearch:
        return BeamSearch(cast(EncoderDecoder, self.model))

    def compile(self) -> Self:
        """Compile the decoding step: the first text takes half a minute longer, all later ones are faster.

        >>> run.compile().generate("Once upon a time")  # doctest: +SKIP
        """
        self.text_generator = TextGenerator(self.model, compiled=True)
        return self

    def landscape(
        self, *, batches: int = 4, listen: Listener = silent, **options: Unpack[LandscapeOptions]
    ) -> Landscape:
        """The loss around the weights on the first training batches: extreme curvatures, and a plane along two of them.

        The weights are in float64, without dropout. Options: grid (21), points per side of the plane; radius, half its
        side; directions, "top" (of the two largest eigenvalues of the Hessian) or "extreme" (of the largest and the
        smallest one); steps (60) of the Lanczos iteration; seed.

        >>> run.landscape(batches=1, grid=3, steps=4).losses.shape
        (3, 3)
        """
        if any(isinstance(module, Int8Linear) for module in self.model.modules()):
            raise BadInput("precision='int8': integers have no gradient; load the run with precision='float32'")
        task = self.recipe.bind(self.recipe.load_data(self.tokenizer, listen=listen))
        return landscape(Objective.of_task(self.model, task, batches), **options)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each split at the end of training."""
        return dict(self.facts["metrics"])

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return run_folder.count_parameters(self.model)

    @property
    def backbone(self) -> LanguageModel:
        """The model without its head."""
        return cast(LanguageModel, self.model.backbone)

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer of a single text, without labels."""
        processor = self.tokenizer
        tokenizer: Tokenizer = processor.tokenizer if isinstance(processor, TokenLabelProcessor) else processor
        return tokenizer

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it was trained on pairs, and so translates."""
        return isinstance(self.model, EncoderDecoder)

    @property
    def family(self) -> registry.Family:
        """The registry record of its task."""
        return registry.FAMILIES[self.recipe.task.kind]

    @property
    def input_reader(self) -> InputReader | None:
        """How the command line selects inputs that are not texts."""
        return cast(InputReader, registry.load_object(self.family.inputs)) if self.family.inputs else None

    @property
    def embedder(self) -> "Embedder":
        """How its inputs become vectors."""
        return cast("Embedder", registry.load_object(self.family.embed))

    @property
    def n_texts(self) -> int:
        """The number of texts of an input of `classify`: of labelled texts; of next-sentence prediction two."""
        if isinstance(self.tokenizer, TextLabelProcessor):
            return self.tokenizer.n_texts
        return 2 if self.verb == "fill" else 1

    @property
    def text_names(self) -> list[str]:
        """The columns of these texts in the training data, if they are known."""
        return list(map(str, self.text_columns)) if len(self.text_columns) > 1 else []

    @property
    def text_columns(self) -> list[int | str]:
        """The columns of the input in the training data, by name or number; empty if they were not set or detected."""
        columns = self.recipe.data.input_column
        if isinstance(columns, list):
            return columns
        return [] if columns is None or Path(str(columns)).is_absolute() else [columns]

    @property
    def labels(self) -> list[str]:
        """The labels that `classify` predicts."""
        return list(NEXT_SENTENCE_LABELS if self.verb == "fill" else self.tokenizer.labels)

    @property
    def verb(self) -> str:
        """The method, and the command, for the task it was trained on; embed for a model without a head."""
        return "embed" if self.model.only_embeds else self.family.verb

    @property
    def ability(self) -> str:
        """What it does, after "this run"."""
        return "only embeds texts" if self.model.only_embeds else self.family.ability

    def require(self, verb: str) -> None:
        """Raise BadInput unless this run supports a verb. Every family with an Embedder supports embed.

        >>> run.require("generate")
        """
        classifies = bool(self.family.classify) and not self.model.only_embeds
        if verb != self.verb and not {"embed": bool(self.family.embed), "classify": classifies}.get(verb):
            prompt = ", or give --prompt and --labels" if (verb, self.verb) == ("classify", "generate") else ""
            hint = f"use harken {self.verb}, in Python run.{self.verb}{prompt}"
            raise BadInput(f"{self.path}: this run {self.ability}; {hint}")

    def unknown_words(self, *texts: str) -> list[str]:
        """The words of these texts that are not in the vocabulary, each once; an answer cannot depend on them.

        With a tokenizer of characters they are characters. Byte pairs and bytes have none.

        >>> run.unknown_words("Tom had a zebra")
        [...]
        """
        texts = tuple(" ".join(WORD.findall(text)) for text in texts) if self.verb == "tag" else texts
        return list(dict.fromkeys(piece for text in texts for piece in unknown_pieces(self.tokenizer, text)))

    def __repr__(self) -> str:
        return f"<harken run {self.path.name}: {self.recipe.model.kind}, {self.parameters:,} weights>"


def build_model(recipe: Recipe, vocab: Vocab, weights: dict[str, Tensor]) -> Model:
    """The model of a recipe with these weights; shapes are checked before anything is allocated.

    Weights are removed from the dictionary one by one, so memory never holds all of them twice.
    """
    with torch.random.fork_rng(devices=[]), run_folder.SkipInit():
        with torch.device("meta"):
            run_folder.matching_weights(recipe.build(vocab), weights)
        model = recipe.build(vocab)
    with torch.no_grad():
        for name, parameter in run_folder.weights(model).items():
            parameter.copy_(weights.pop(name))
    return model
