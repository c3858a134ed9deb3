"""Models: one file per architecture, with its settings and its module. Here: their base classes and initialization."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from harken.core import FULL, BlockConfig, FixedMemory, Stack, Structure, bigbird, blockwise, keep
from harken.errors import BadSetting
from harken.settings import Settings

from .pointer import CopyStates, Pointer

INIT_STD = 0.02  # standard deviation of the initial weights (GPT-2)
DIALS = tomllib.loads((files("harken.models") / "dials.toml").read_text("utf-8"))  # model -> dials of its settings


def init_weights(module: nn.Module) -> None:
    """Initialize a linear layer or an embedding."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def is_frozen(module: nn.Module) -> bool:
    """Whether none of its weights are trained."""
    return not any(p.requires_grad for p in module.parameters())


def scale_residual_init(stack: nn.Module, sublayers: int) -> None:
    """Scale the initial output projections by 1 / sqrt(number of residual sublayers) (GPT-2)."""
    for name, module in stack.named_modules():
        if name.endswith(("W_o", "W_2")):
            nn.init.normal_(module.weight, std=INIT_STD / math.sqrt(sublayers))


class ModelSettings(Settings):
    """Settings of a model kind; `build(vocab)` constructs the model. Optional abilities have defaults."""

    task: ClassVar[str] = "next-word"  # default task on text
    stateful: ClassVar[bool] = False  # recurrent: a batch continues the text of the previous one
    by_line: ClassVar[bool] = False  # reads a story line by line instead of as one text
    body_kind: ClassVar[str] = ""  # models with the same body: one can start from a run of another; "": same class only
    stack_seeds: ClassVar[bool] = False  # training the seeds of a comparison as one stacked model is faster

    @property
    def supports_packing(self) -> bool:
        """Whether several texts can share a row."""
        return False

    @property
    def notice(self) -> str | None:
        """Message for the user before training starts."""
        return None

    @property
    def max_context(self) -> int | None:
        """Longest sequence that the model reads; None: no limit."""
        context = dict(self).get("context")
        return context if isinstance(context, int) else None

    def n_tokens(self, image_size: int) -> int:
        """Number of tokens of an image."""
        return 1

    def block_config(self) -> BlockConfig:
        """Configuration of a Transformer block: the settings with the names of its fields, except the similarity."""
        names = {field.name for field in fields(BlockConfig)} & type(self).model_fields.keys() - {"similarity"}
        return BlockConfig(**self.model_dump(include=names))


class SparseAttentionSettings(ModelSettings):
    """Settings of a model with full or block-sparse attention (BigBird). Subclasses have the setting `context`."""

    structure: Literal["full", "bigbird"] = Field(
        "full", description="attention structure; bigbird: window, global and random blocks, for long texts"
    )
    block_size: int = Field(64, ge=1, le=65536, description="bigbird: tokens per block; 128 is fastest on a GPU")
    window_blocks: int = Field(1, ge=0, le=1000, description="bigbird: neighboring blocks attended to on each side")
    global_blocks: int = Field(
        1, ge=0, le=1000, description="bigbird: number of first blocks that attend to and are attended to by all blocks"
    )
    random_blocks: int = Field(3, ge=0, le=1000, description="bigbird: random earlier blocks that a block attends to")
    random_seed: int = Field(0, ge=0, description="bigbird: seed of the random blocks")

    @property
    def supports_packing(self) -> bool:
        """Packed texts would each need their own blocks."""
        return self.structure == "full"

    @property
    def notice(self) -> str | None:
        """bigbird saves nothing if each block attends to all others."""
        if self.structure == "full" or self.max_context is None:
            return None
        n_blocks = -(-self.max_context // self.block_size)
        attended = 2 * self.window_blocks + 1 + self.global_blocks + self.random_blocks
        if n_blocks > attended:
            return None
        blocks = f"model.context={self.max_context} has {n_blocks} blocks and each attends to up to {attended}"
        return f"model.structure=bigbird: {blocks}, so it saves nothing; set a larger model.context for longer texts"

    def block_structure(self, inside: Structure = FULL) -> Structure:
        """The structure of the settings, restricted to the blocks that `inside` allows."""
        if self.structure == "full":
            return FULL
        if dict(self).get("positions") == "alibi":
            problem = "model.positions=alibi needs a table of all pairs, which model.structure=bigbird avoids"
            raise BadSetting(f"{problem}; set model.positions=rotary")
        assert self.max_context is not None
        size = min(self.block_size, self.max_context)  # a larger block would be padding
        n = -(-self.max_context // size)
        with torch.device("cpu"):  # a table, also if the model is built on the meta device
            blocks = bigbird(n, self.window_blocks, self.global_blocks, self.random_blocks, self.random_seed)
            return blockwise(blocks & inside, size)


class Model(nn.Module):
    """Base class of all models. Declares optional abilities with their defaults."""

    context: int | None = None  # longest sequence; None: no limit
    compiles: bool = True  # torch.compile makes it faster
    reads_text: bool = False  # input is a sequence of tokens
    only_embeds: bool = False  # it has no head: no scores of tokens or labels
    vocab: int = 0  # number of tokens that have a score

    @property
    def backbone(self) -> nn.Module:
        """The model without its head."""
        return self

    @property
    def reusable_part(self) -> nn.Module:
        """The part that models of other tasks can reuse: a new run can load it from a run, and freeze it."""
        return self.backbone

    @property
    def transformer_blocks(self) -> Sequence[nn.Module]:
        stack = dict(self.named_children()).get("stack")
        return stack.blocks if isinstance(stack, Stack) else ()

    def pooled(self, h: Tensor) -> Tensor:
        """Representation of an input from the states of its parts, or of a text from the state of its first token."""
        return h


class HeadModel(Model):
    """A body, and its head y = W h + b."""

    def __init__(self, body: Model, d: int, n_outputs: int, *, dropout: float) -> None:
        super().__init__()
        self.body, self.dropout, self.W_y = body, nn.Dropout(dropout), nn.Linear(d, n_outputs)
        self.W_y.apply(init_weights)

    @property
    def backbone(self) -> Model:
        return self.body


class EncoderWithHead(HeadModel):
    """An encoder of images or sets with a head."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:  # B ... -> B outputs
        h = self.body(x) if lengths is None else self.body(x, lengths)
        return self.W_y(self.dropout(self.body.pooled(h)))


class LanguageModel(Model):
    """Scores of the next token. `forward(tokens, *, pos, structure, memory, lengths)` gives h: B L -> B L d."""

    causal: bool = True  # no token attends to later ones; False: it fills masks and does not generate
    reads_text = True
    head_bias: nn.Parameter | None

    def __init__(self, vocab: int, d: int, *, word_dropout: float = 0.0) -> None:
        super().__init__()
        self.vocab, self.word_dropout = vocab, word_dropout
        padded = math.ceil(vocab / 64) * 64  # kernels prefer multiples of 64; the extra scores are removed
        self.embed = nn.Embedding(padded, d)
        self.head = nn.Linear(d, padded, bias=False)
        self.register_parameter("head_bias", None)  # vocab

    @property
    def n_segments(self) -> int:
        """Number of segment embeddings; 0: `forward` takes no segments."""
        return 0

    def memory(self, B: int, capacity: int) -> object:
        """Empty memory for decoding B texts of up to `capacity` tokens."""
        raise NotImplementedError

    def embed_tokens(self, tokens: Tensor, table: nn.Embedding | None = None) -> Tensor:  # B L -> B L d
        """Token embeddings. Word dropout removes all occurrences of a token in a row (Gal 2016)."""
        table = table or self.embed
        x: Tensor = table(tokens)
        if not self.training or not self.word_dropout:
            return x
        scale = F.dropout(x.new_ones(len(tokens), table.num_embeddings), self.word_dropout)  # B V
        return x * scale.gather(1, tokens)[..., None]

    def logits(self, h: Tensor) -> Tensor:  # ... d -> ... vocab
        scores: Tensor = self.head(h)[..., : self.vocab]
        return scores if self.head_bias is None else scores + self.head_bias

    def scores(self, tokens: Tensor, **inputs: object) -> Tensor:  # B L -> B L vocab
        """Logits of the token after each token."""
        return self.logits(self(tokens, **inputs))


PackedPairs = tuple[Tensor, Tensor, Tensor, Tensor]  # pos and doc of the target, pos and doc of the source: B L each


@dataclass(frozen=True)
class EncodedSource:
    """An encoded source sentence: input of the decoder's cross-attention."""

    encoded: Any  # depends on the model; its tensors have the batch first
    real: Tensor | None = None  # B Ls, False at padding; None: no padding
    packed: Structure | None = None  # attention from target to source if several pairs share a row

    @property
    def structure(self) -> Structure:
        return self.packed or (FULL if self.real is None else keep(self.real))


class SourceMemory(Protocol):
    """Memory of a decoder, with its encoded sources."""

    def reorder(self, rows: Tensor, length: int) -> None: ...  # in place, among the texts of one source
    def prefix(self, n: int) -> "SourceMemory": ...  # the first n slots
    def select(self, rows: Tensor) -> "SourceMemory": ...  # these sources, with all texts of each


class EncoderDecoder(LanguageModel):
    """Language model of a target sentence given a source. The edge token starts and ends a target and ends a source.

    `forward(tokens, *, source, source_lengths, pos, memory, lengths)` gives h, or with a `pointer` the CopyStates; the
    memory stores nothing after a row's `lengths`. The attention to the source is an attribute `cross`: a trace finds it
    by this name.
    """

    encodes_edge: bool = True  # the encoder has a state for the edge token of a source

    def __init__(self, vocab: tuple[int, int], d: int, *, shared: bool, word_dropout: float = 0.0) -> None:
        super().__init__(vocab[1], d, word_dropout=word_dropout)
        self.source_vocab = vocab[0]
        self.edge = vocab[1] - 1
        if shared and vocab[0] != vocab[1]:
            fix = "set data.shared_vocab=true or model.share_embeddings=false"
            raise ValueError(f"share_embeddings: source and target have {vocab[0]} and {vocab[1]} tokens; {fix}")
        self.source_embed = self.embed if shared else nn.Embedding(math.ceil(vocab[0] / 64) * 64, d)
        self.pointer: Pointer | None
        self.register_module("pointer", None)  # a model that copies replaces it

    def encode(self, source: Tensor, real: Tensor | None) -> Sequence[Tensor | FixedMemory]:  # B Ls
        """The encoded source, with the batch first; `real` is False at padding."""
        raise NotImplementedError

    def logits(self, h: Tensor | CopyStates) -> Tensor:  # ... d -> ... vocab
        """The scores of the next token; of a model that copies their logarithms are normalized: ln p."""
        if isinstance(h, CopyStates):
            assert self.pointer is not None
            return self.pointer.log_probabilities(h, super().logits(h.h))
        return super().logits(h)

    def copy_losses(self, h: CopyStates, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:  # B L
        """-ln p of each target of a model that copies, plain and with label smoothing."""
        assert self.pointer is not None
        return self.pointer.losses(h, super().logits(h.h), targets, smoothing)

    def encoder_states(self, source: Tensor, real: Tensor | None) -> Tensor:  # B Ls -> B Ls d
        """The outputs of the encoder for the tokens of a source."""
        raise NotImplementedError

    @property
    def encoder_blocks(self) -> Sequence[nn.Module]:
        """The Transformer blocks of the encoder."""
        encoder = dict(self.named_children()).get("encoder")
        if isinstance(encoder, Stack):
            return encoder.blocks
        return encoder.transformer_blocks if isinstance(encoder, Model) else ()

    def memory(
        self, B: int, capacity: int, source: Tensor | None = None, source_lengths: Tensor | None = None
    ) -> SourceMemory:
        """Empty memory for decoding B texts, B / len(source) for each source."""
        raise NotImplementedError

    def source_mask(self, tokens: Tensor, lengths: Tensor | None) -> Tensor | None:  # B Ls, B -> B Ls
        """False at padding, from the length of a row on; None: no padding."""
        if lengths is None:
            return None
        real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
        return None if not real.is_cuda and bool(real.all()) else real  # on a GPU this would synchronize

    def encode_source(self, tokens: Tensor | None, lengths: Tensor | None) -> EncodedSource:  # B Ls, B
        """Encode source sentences; positions from their lengths on are padding."""
        if tokens is None:
            raise ValueError("an encoder-decoder needs a source, or a memory that contains an encoded source")
        real = self.source_mask(tokens, lengths)
        return EncodedSource(self.encode(tokens, real), real)
