"""Marian and BART: the Transformer of 2017, as translators and as summarisers have it.

Their targets begin and end with marks of their own. Ours have one edge for both: a row of its own behind the words,
which is their beginning where it is read, and their end where it is written and behind a source.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from harken.bridge.weight_mapping import Config, Count, Edged, Layers, Take, both, stacked
from harken.data.tokenizers.pairs import Tokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.errors import BadInput
from harken.inference.run import Run

ACTS = {"swish": "silu", "gelu_new": "gelu-tanh"}
Mark = Field(ge=0, le=10_000_000)
READS = ("embed.weight", "W_q.weight", "W_k.weight", "W_v.weight", "W_1.weight")  # a state, in their columns
WRITES = ("W_o.weight", "W_o.bias", "W_2.weight", "W_2.bias", "norm.weight", "norm.bias")  # one, in their rows


class Marian(Config):
    """The config of a Marian: sinusoids, and three tables of words, for the edge is another row in each."""

    check: ClassVar = "encoder-decoder"
    auto: ClassVar = "AutoModelForSeq2SeqLM"
    unread: ClassVar = r"model\.(en|de)coder\.embed_(positions|tokens)\.weight|lm_head\.weight"
    places: ClassVar[Mapping[str, Any]] = {"model.positions": "sinusoid-halves"}

    d_model: Count
    encoder_layers: Layers
    decoder_layers: Layers
    encoder_attention_heads: Count
    decoder_attention_heads: Count
    encoder_ffn_dim: Count
    decoder_ffn_dim: Count
    max_position_embeddings: Count
    activation_function: Literal["swish", "silu", "relu", "gelu", "gelu_new"] = "swish"
    scale_embedding: bool = False
    normalize_before: Literal[False] = False
    add_final_layer_norm: Literal[False] = False
    static_position_embeddings: Literal[True] = True
    share_encoder_decoder_embeddings: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    eos_token_id: int = Mark
    decoder_start_token_id: int = Mark
    pad_token_id: int = Mark

    @property
    def apart(self) -> bool:
        """Whether a target begins with another mark than it ends with."""
        return self.eos_token_id != self.decoder_start_token_id

    def words(self, tokenizer: Tokenizer) -> Tokenizers:
        if tokenizer.vocab != self.vocab_size:
            raise BadInput(
                f"the tokenizer has {tokenizer.vocab} ids, the model {self.vocab_size} words; they must agree"
            )
        return Tokenizers(tokenizer, tokenizer)

    def settings(self) -> dict[str, Any]:
        if self.encoder_attention_heads != self.decoder_attention_heads:
            given = (
                f"{self.encoder_attention_heads} heads in the encoder and {self.decoder_attention_heads} in the decoder"
            )
            raise BadInput(f"{given}: models with as many in both are read; import another one")
        return {
            "data.kind": "pairs",
            "data.tokenizer": "bpe",
            "data.shared_vocab": True,
            "model.kind": "transformer",
            "model.d": self.d_model,
            "model.layers": self.decoder_layers,
            "model.encoder_layers": self.encoder_layers,
            "model.heads": self.encoder_attention_heads,
            "model.d_ff": self.encoder_ffn_dim,
            "model.context": self.max_position_embeddings,
            "model.norm": "post",
            "model.activation": ACTS.get(self.activation_function, self.activation_function),
            "model.embedding_scale": math.sqrt(self.d_model) if self.scale_embedding else 1.0,
            "model.head_bias": True,
            "model.share_embeddings": not self.apart,
            "model.tie_embeddings": not self.apart,
            **self.places,
        }

    def names(self) -> dict[str, Take]:
        own, cross = _attention("look", "self_attn"), _attention("cross", "encoder_attn")
        mlp = {**both("mlp.W_1", "fc1"), **both("mlp.W_2", "fc2"), **both("mlp_sub.norm", "final_layer_norm")}
        words, end = "model.shared.weight", self.eos_token_id
        many = self.vocab_size
        tables = {"embed.weight": Edged(words, words=True, mark=self.decoder_start_token_id, many=many)}
        if self.apart:
            for name in ("source_embed", "head"):
                tables[f"{name}.weight"] = Edged(words, words=True, mark=end, many=many)
        return {
            **tables,
            "head_bias": Edged("final_logits_bias", mark=end, many=many, instead=True),
            **dict(stacked(self.encoder_layers, "encoder.blocks.#.", "model.encoder.layers.#.", own | mlp)),
            **dict(stacked(self.decoder_layers, "stack.blocks.#.", "model.decoder.layers.#.", own | cross | mlp)),
        }


def alike(shape: Any) -> dict[str, Any]:
    """What `folded` makes the same: the order of sines and cosines, and how loud words are."""
    return {
        "embedding_scale": None,
        "positions": shape.positions if shape.positions != "sinusoid" else "sinusoid-halves",
    }


def folded(run: Run, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the same model as they have it: all sines before all cosines, words as loud as they are, or
    sqrt(d) times as loud, and a bias for each word's score."""
    shape, last = run.recipe.model, f"stack.blocks.{run.recipe.model.layers - 1}.mlp_sub.norm."
    own = {"head_bias": torch.zeros(run.model.vocab), **own}
    if shape.positions == "sinusoid":  # the numbers of a state change places, wherever it is read and written
        order = torch.cat([torch.arange(0, shape.d, 2), torch.arange(1, shape.d, 2)])
        own |= {name: w[:, order] for name, w in own.items() if name.endswith(READS)}
        own |= {name: w[order] for name, w in own.items() if name.endswith(WRITES)}
    if (loud := shape.loudness()) not in (1, math.sqrt(shape.d)):  # the scores read the same table, after the last norm
        own["embed.weight"] = own["embed.weight"] * loud
        own |= {f"{last}{part}": own[f"{last}{part}"] / loud for part in ("weight", "bias")}
    return own


def _attention(ours: str, theirs: str) -> dict[str, Take]:
    maps = {"W_q": "q_proj", "W_k": "k_proj", "W_v": "v_proj", "W_o": "out_proj"}
    each = {name: take for a, b in maps.items() for name, take in both(f"{ours}.{a}", f"{theirs}.{b}").items()}
    return each | both(f"{ours}_sub.norm", f"{theirs}_layer_norm")


class BART(Marian):
    """The config of a BART: learned places that begin in row 2, and a norm behind embedding + places."""

    unread: ClassVar = r"model\.(en|de)coder\.embed_tokens\.weight|lm_head\.weight"
    places: ClassVar = {"model.positions": "learned", "model.embed_norm": True}

    activation_function: Literal["gelu", "gelu_new", "relu", "swish", "silu"] = "gelu"
    static_position_embeddings: Literal[False] = False  # type: ignore[assignment]

    def names(self) -> dict[str, Take]:
        found = super().names()
        for ours, lift, side in (("encoder", "source_lift", "encoder"), ("stack", "input_projection", "decoder")):
            table = Take(f"model.{side}.embed_positions.weight", skip=2)
            found |= {f"{ours}.positions.table.weight": table} | both(f"{lift}.1", f"model.{side}.layernorm_embedding")
        return found
