"""Weight mappings: one module per model family of other libraries."""

import re

from pydantic import ValidationError

from harken.bridge.weight_mapping import ModelMapping, WeightSource
from harken.errors import BadInput

from . import bert, gpt2, heads, llama, marian, vit

FAMILIES: tuple[type[ModelMapping], ...] = (
    gpt2.GPT2Mapping,
    llama.LlamaMapping,
    llama.MistralMapping,
    llama.Qwen2Mapping,
    llama.GemmaMapping,
    bert.BERTMapping,
    bert.DistilBERTMapping,
    bert.RoBERTaMapping,
    vit.ViTMapping,
    marian.MarianMapping,
    marian.BARTMapping,
)
HEADS: tuple[type[heads.HeadMapping], ...] = (
    heads.BERTClassifierMapping,
    heads.BERTTaggerMapping,
    heads.DistilBERTTaggerMapping,
    heads.BERTSpanMapping,
    heads.DistilBERTSpanMapping,
    heads.GPT2ClassifierMapping,
)
HEAD_PATTERN = re.compile(
    r"\w+For(Sequence|Token)Classification|\w+ForQuestionAnswering|\w+ForMultipleChoice", re.ASCII
)


def find_mapping(source: WeightSource) -> ModelMapping:
    """The mapping of a source, by the model_type and architecture of its config."""
    kind, families = source.config.get("model_type"), {family.model_type: family for family in FAMILIES}
    if not isinstance(kind, str) or kind not in families:
        raise BadInput(f"{source.location}: model_type {str(kind)[:40]!r} is unknown; known: {', '.join(families)}")
    architectures = source.config.get("architectures")
    architecture = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    accepted = {head.architecture: head for head in HEADS if head.importable}
    head = accepted.get(architecture)
    if HEAD_PATTERN.fullmatch(architecture) and (head is None or head.model_type != kind):
        problem = f"is not supported; accepted models with a head: {', '.join(accepted)}"
        raise BadInput(f"{source.location}: {architecture[:60]} {problem}")
    try:
        fields = {**source.config, "tensor_names": frozenset(source.shapes)}  # some layers appear only there
        return (head or families[kind]).model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field, value = ".".join(map(str, first["loc"])), first["input"]
        problem = "is missing" if first["type"] == "missing" else f"= {repr(value)[:60]}: {first['msg'][:120].lower()}"
        raise BadInput(f"{source.location}: config {field} {problem}; this {kind} cannot be imported") from None
