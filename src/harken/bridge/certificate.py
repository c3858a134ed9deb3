"""The parity certificate: our model and the one it was brought from are asked the same, and say the same.

transformers is the oracle where it is installed; what could not be compared is listed by name, never passed over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from harken import __version__
from harken.data.tokenizers.pairs import Tokenizers
from harken.decode.beam import Search
from harken.decode.sampling import Choice
from harken.errors import HarkenError
from harken.inference.answers.embed import vectors
from harken.inference.run import Run
from harken.models import EncoderDecoder

from . import transformers_reference
from .families import vit
from .special_tokens import LOST, around, carried
from .weight_mapping import Config, Source

TOLERANCE = 1e-5  # of a score, or of the largest score where that is more than 1
RANDOM, GREEDY = 64, 32  # tokens: of a row drawn at random, and written one after the other
TEXTS = (
    "The capital of France is",
    "It's 12:45, isn't it? I'd say we've paid $1,234.56 (or 7e-3).",
    "  two spaces,\ttab\nand lines\r\n\n\nend ",
    "naïve café, Größe, œuvre, ﬁn, İstanbul, привет мир, γειά σου, שלום, مرحبا, नमस्ते",
    "你好，世界。今日は。안녕하세요 👩‍👩‍👧 🇫🇷 é e\u0301 \u200b \ufeff",
    "def f(x):\n    return x ** 2  # 1234567890",
    "\x00\x04\x7f\x1d control",
    "<|endoftext|> <s> </s> [CLS] [SEP] <unk> <0x0A> ▁ Ġ",
    "",
)
HOW = 'install it with: pip install "harken[hf]"'
VERSIONS = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "onnx", "onnxruntime")


class Witness:
    """Their model. A language model is asked at once and let go: so it is never in memory together with ours."""

    def __init__(self, family: Config, source: Source, tokenizer: Any, context: int | None) -> None:
        self.said: Any = None
        self.missing: list[str] = []
        with _quiet(), _theirs(source, "what the model says", self.missing):
            theirs = transformers_reference.witness(family, source)
            asked = family.check == "language model"
            self.said = _asked(theirs, tokenizer, min(RANDOM, context or RANDOM)) if asked else theirs


def certify(run: Run, family: Config, source: Source, witness: Witness | None = None) -> dict[str, Any]:
    """Compare the run with what it was made of; `passed` is False as soon as one comparison fails."""
    witness = witness or Witness(family, source, run.tokenizer, getattr(run.model, "context", None))
    found: dict[str, Any] = {"source": source.place, "family": source.config["model_type"]}
    missing = list(witness.missing)
    with _quiet():
        if family.check == "pictures":
            missing.append(vit.LOST)
        elif not carried(run):
            missing.append(LOST)
        else:
            with _theirs(source, "ids of texts", missing):
                found["tokenizer"] = _tokens(run, source)
        if witness.said is not None:
            found |= CHECKS[family.check](run, witness.said)
            missing += found.pop("not_checked", [])
    parts = [part for part in found.values() if isinstance(part, dict)]
    return {"passed": all(part["passed"] for part in parts), **found, "not_checked": missing, "versions": versions()}


def failure(certificate: dict[str, Any]) -> str:
    """What a certificate that failed says, in a few words."""
    bad = {name: part for name, part in certificate.items() if isinstance(part, dict) and part.get("passed") is False}
    return "; ".join(f"{name} differ ({part})" for name, part in bad.items())


def versions() -> dict[str, str]:
    """What took part, where it is installed."""
    return {"harken": __version__, **{name: got for name in VERSIONS if (got := _version(name))}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@contextmanager
def _theirs(source: Source, asked: str, missing: list[str]) -> Iterator[None]:
    """Where other libraries work: one that is not installed is listed, and what else fails is told in a line."""
    try:
        yield
    except HarkenError:
        raise
    except Exception as error:  # of any kind: it is theirs
        if isinstance(error, ModuleNotFoundError) and error.name in transformers_reference.LIBRARIES:
            missing.append(f"{asked}, for lack of {error.name}; {HOW}")
            return
        said = " ".join(str(error).split())[:200]
        raise HarkenError(f"{source.place}: transformers cannot load it ({said}); it is not imported") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers tells of its progress; here it is a witness, and speaks when it is asked."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield
        return
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _tokens(run: Run, source: Source) -> dict[str, Any]:
    """Ids of some texts, beside those that the `tokenizers` library gives by their own file."""
    expected = source.encode(TEXTS)
    found = [_marked(run.tokenizer, text, source.config.get("eos_token_id")) for text in TEXTS]
    equal = [list(a) == list(b) for a, b in zip(found, expected, strict=True)]
    odd = {} if all(equal) else {"first_different": TEXTS[equal.index(False)]}
    return {"passed": all(equal), "texts": len(TEXTS), "tokens": sum(map(len, found)), "equal": sum(equal), **odd}


def _marked(tokens: Any, text: str, end: int | None = None) -> list[int]:
    """The ids of a text with the marks around it."""
    if isinstance(tokens, Tokenizers):  # there the end of a text is our edge, and a mark of theirs
        return [*tokens.source.begin, *tokens.source.encode(text).tolist(), cast(int, end)]
    before, behind = around(tokens)
    return [*before, *getattr(tokens, "tokenizer", tokens).encode(text).tolist(), *behind]


@dataclass(frozen=True)
class Said:
    """What a language model was asked, at random and of a text, and what it said and wrote."""

    rows: list[list[int]]
    scores: list[Tensor]  # L vocab each
    written: list[int]  # after the first half of the text


@torch.inference_mode()
def _asked(theirs: Any, tokenizer: Any, most: int) -> Said:
    drawn = np.random.default_rng(0).integers(0, tokenizer.vocab, most).tolist()
    rows = [drawn, _marked(tokenizer, " ".join(TEXTS[:3]))[:most]]
    scores = [theirs(torch.tensor([ids])).logits[0, :, : tokenizer.vocab].float() for ids in rows]
    start = rows[1][: most // 2]
    return Said(rows, scores, greedy(theirs, start, min(GREEDY, most - len(start)), tokenizer.vocab))


@torch.inference_mode()
def _language_model(run: Run, said: Said) -> dict[str, Any]:
    """Scores on random and real tokens, and what both write with their memories, greedily."""
    ours = torch.cat([run.model.scores(torch.tensor([ids]))[0] for ids in said.rows])
    start, many = said.rows[1][: len(said.rows[0]) // 2], len(said.written)
    written = [int(t) for t in run.writer.write([start], many, Choice(temperature=0.0), seed=0)]
    equal = sum(a == b for a, b in zip(written, said.written, strict=True))
    counts = dict(zip(("random", "text"), map(len, said.rows), strict=True))
    return {
        "logits": near(ours, torch.cat(said.scores)) | {"tokens": counts},
        "greedy": {"passed": equal == many, "tokens": many, "equal": equal},
    }


def greedy(theirs: Any, ids: list[int], many: int, vocab: int) -> list[int]:
    """What a model of transformers writes with its own memory, always the likeliest token."""
    tokens, memory, found = torch.tensor([ids]), None, []
    for _ in range(many):
        said = theirs(tokens, past_key_values=memory, use_cache=True)
        memory, tokens = said.past_key_values, said.logits[:, -1:, :vocab].argmax(-1)
        found.append(int(tokens))
    return found


@torch.inference_mode()
def _encoder(run: Run, theirs: Any) -> dict[str, Any]:
    """States of padded rows, random and real, and the scores of hidden words; and the texts' vectors."""
    model, vocab = run.model, run.tokenizer.vocab
    most = min(RANDOM, model.context or RANDOM)
    rows = [
        np.random.default_rng(0).integers(0, vocab, most).tolist(),
        *(_marked(run.tokenizer, t)[:most] for t in TEXTS),
    ]
    lengths = torch.tensor(list(map(len, rows)))
    real = torch.arange(most) < lengths[:, None]
    tokens = torch.full((len(rows), most), theirs.config.pad_token_id or 0)
    tokens[real] = torch.tensor([i for row in rows for i in row])
    tokens = tokens.where((tokens != theirs.config.pad_token_id) | ~real, 1 + tokens)  # their places skip this one
    h = theirs.base_model(tokens, attention_mask=real.long()).last_hidden_state
    pairs = {"states": (model(tokens, lengths=lengths)[real], h[real])}
    if getattr(model, "transform", None) is not None:
        said = theirs(tokens, attention_mask=real.long())
        scores = said.prediction_logits if "prediction_logits" in said else said.logits
        pairs["logits"] = (model.scores(tokens, lengths=lengths)[real], scores[real][:, :vocab])
    mean = (h * real[..., None]).sum(1) / lengths[:, None]
    pairs["vectors"] = (
        torch.from_numpy(vectors(model, [t[:n].tolist() for t, n in zip(tokens, lengths, strict=True)], "mean")),
        torch.nn.functional.normalize(mean, dim=-1),
    )
    told, missing = _two_segments(model, theirs, tokens, real) if model.segments is not None else ({}, [])
    parts = {name: near(*pair) | {"tokens": int(lengths.sum())} for name, pair in (pairs | told).items()}
    return {**parts, "not_checked": missing}


def _two_segments(
    model: Any, theirs: Any, tokens: Tensor, real: Tensor
) -> tuple[dict[str, tuple[Tensor, Tensor]], list[str]]:
    """The same rows, the most of each in the last segment: states, what CLS says, and whether it follows."""
    late = torch.arange(tokens.shape[1]) >= tokens.shape[1] // 4
    segments = late.long().expand_as(tokens) * (model.segments.num_embeddings - 1)
    given = {"attention_mask": real.long(), "token_type_ids": segments}
    body, h = theirs.base_model(tokens, **given), model(tokens, lengths=real.sum(1), segments=segments)
    pairs, missing = {"segments": (h[real], body.last_hidden_state[real])}, []
    if model.pooler is not None and body.pooler_output is None:
        missing.append(f"what stands for a whole text: {type(theirs).__name__} has no pooler")
    elif model.pooler is not None:
        pairs["pooled"] = (model.pooled(h[:, 0]), body.pooler_output)
    if model.W_follows is not None:
        pairs["follows"] = (model.next_sentence_scores(h[:, 0]), theirs(tokens, **given).seq_relationship_logits)
    return pairs, missing


@torch.inference_mode()
def _encoder_decoder(run: Run, theirs: Any) -> dict[str, Any]:
    """Scores of a target drawn at random for a real source, and what both write for it, greedily."""
    model, end, start = (
        cast(EncoderDecoder, run.model),
        theirs.config.eos_token_id,
        theirs.config.decoder_start_token_id,
    )
    most = min(RANDOM, model.context or RANDOM)
    source = run.tokenizer.encode_source(" ".join(TEXTS[:2])).tolist()
    source = [*source[: most - 1], model.edge]
    drawn = [i for i in np.random.default_rng(0).integers(0, model.edge, most - 1).tolist() if i != end]
    asked = torch.tensor([[*source[:-1], end]])
    expected = theirs(asked, decoder_input_ids=torch.tensor([[start, *drawn]])).logits[0].log_softmax(-1)
    ours = model.scores(torch.tensor([[model.edge, *drawn]]), source=torch.tensor([source]))[0].log_softmax(-1)
    ours[:, end] = ours[:, model.edge]  # their mark and ours
    many = min(GREEDY, most - 1)
    written = run.finder.search([source], Search(beam=1, max_new_tokens=many))[0][0].tokens
    found = [start]
    while len(found) <= many and found[1:][-1:] != [end]:
        found.append(int(theirs(asked, decoder_input_ids=torch.tensor([found])).logits[0, -1].argmax()))
    greedily = [i for i in found[1:] if i != end]
    words = max(model.edge, end + 1)  # a mark that was added for our edge is one of them; what is behind it is none
    return {
        "logits": near(ours[:, :words], expected[:, :words]) | {"tokens": len(ours)},
        "greedy": {"passed": written == greedily, "tokens": len(greedily)},
    }


@torch.inference_mode()
def _head(run: Run, theirs: Any) -> dict[str, Any]:
    """What is said of texts, of random tokens, and of two texts in one; and which label wins."""
    words = run.tokenizer
    most = min(RANDOM, run.model.context or RANDOM) - 1
    drawn = np.random.default_rng(0).integers(0, words.tokenizer.vocab, most).tolist()
    told = theirs.config.model_type == "bert"
    found, expected = [], []
    for row in (drawn, *(_marked(words, text)[:-1][:most] for text in TEXTS)):
        tokens = torch.tensor([[*row, words.edge]])
        segments = (torch.arange(len(row) + 1) > len(row) // 2).long()[None] if told else None
        said = theirs(tokens, **({"token_type_ids": segments} if told else {}))
        both = "logits" in said
        expected.append(said.logits[0] if both else torch.stack([said.start_logits, said.end_logits], -1)[0])
        found.append(answered(run, tokens, segments=segments)[0])
    ours, other = (torch.cat([y.reshape(-1, y.shape[-1]) for y in some]) for some in (found, expected))
    equal = int((ours.argmax(-1) == other.argmax(-1)).sum())
    return {
        "logits": near(ours, other),
        "labels": {"passed": equal == len(ours), "texts": 1 + len(TEXTS), "labels": len(ours), "equal": equal},
    }


def answered(run: Run, tokens: Tensor, *, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
    """What a head says of each text, or of each token: B C or B L C. Numbers are those of the data."""
    model, words = cast(Any, run.model), run.tokenizer
    B, L = tokens.shape
    h = model(tokens, lengths=lengths, segments=segments)
    if model.asked.each_token:
        return cast(Tensor, model.answers(h))
    text = torch.arange(B)[:, None].expand(B, L)
    text = text if lengths is None else text.where(torch.arange(L) < lengths[:, None], B)
    y: Tensor = model.answers(model.texts(h, text, B))
    return y * words.spread + words.mean if words.target_type == "number" else y


def near(ours: Tensor, theirs: Tensor) -> dict[str, Any]:
    differ, limit = float((ours - theirs).abs().max()), TOLERANCE * max(1.0, float(theirs.abs().max()))
    return {"passed": differ <= limit, "max_difference": differ, "tolerance": limit}


# by `Config.check`: (run, what the witness said, or is) -> parts of the certificate, each with `passed`
CHECKS: dict[str, Callable[[Run, Any], dict[str, Any]]] = {
    "language model": _language_model,
    "encoder": _encoder,
    "encoder-decoder": _encoder_decoder,
    "head": _head,
    "pictures": lambda run, theirs: {"logits": near(*vit.said(run, theirs))},
}
