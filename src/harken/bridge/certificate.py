"""The parity certificate: our model and the model it was imported from give the same outputs.

transformers is the reference if it is installed; comparisons that were not possible are listed by name.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from harken import __version__
from harken.data.labelled.examples import TokenLabelProcessor
from harken.data.tokenizers.pairs import PairTokenizers
from harken.data.tokenizers.tokenizer import Tokenizer
from harken.decode.beam import SearchSettings
from harken.decode.sampling import SamplingSettings
from harken.errors import HarkenError
from harken.inference.answers.text_vectors import embed_token_ids, pool_ranges
from harken.inference.run import Run
from harken.models import EncoderDecoder

from . import transformers_reference
from .families import vit
from .special_tokens import NOT_PORTABLE, boundary_ids, is_portable
from .weight_mapping import ModelMapping, RunProcessor, WeightSource

TOLERANCE = 1e-5  # absolute, or relative to the largest logit if that exceeds 1
RANDOM_TOKENS, GREEDY_TOKENS = 64, 32  # of a random row, and of greedy decoding
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
INSTALL_HINT = 'install it with: pip install "harken[hf]"'
Comparison = dict[str, object]  # a part of the certificate: `passed`, and numbers
PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "onnx", "onnxruntime", "ctranslate2")


class ReferenceOutputs:
    """Outputs of the original model. A language model runs at once and is freed, so memory never holds it and ours."""

    def __init__(self, mapping: ModelMapping, source: WeightSource, processor: RunProcessor, limit: int | None) -> None:
        self.outputs: LanguageModelOutputs | nn.Module | None = None
        self.missing: list[str] = []
        with _silence_transformers(), _external_errors(source, "model outputs", self.missing):
            self.outputs = reference = transformers_reference.reference_model(mapping, source)
            if mapping.check == "language model" and isinstance(processor, Tokenizer):
                length = min(RANDOM_TOKENS, limit or RANDOM_TOKENS)
                self.outputs = _language_model_outputs(reference, processor, length)


def certify(
    run: Run, mapping: ModelMapping, source: WeightSource, reference: ReferenceOutputs | None = None
) -> dict[str, object]:
    """Compare the run with its source; `passed` is False if any comparison fails."""
    reference = reference or ReferenceOutputs(mapping, source, run.tokenizer, run.model.context)
    parts, missing = dict[str, Comparison](), list(reference.missing)
    with _silence_transformers():
        if mapping.check == "images":
            missing.append(vit.NOT_COMPARED)
        elif not is_portable(run):
            missing.append(NOT_PORTABLE)
        else:
            with _external_errors(source, "token ids", missing):
                parts["tokenizer"] = compare_token_ids(run, source.encode(TEXTS), source.config.get("eos_token_id"))
        if reference.outputs is not None:
            parts |= CHECKS[mapping.check](run, reference.outputs, missing)
    passed = all(part["passed"] for part in parts.values())
    origin = {"source": source.location, "family": mapping.model_type}
    return {"passed": passed, **origin, **parts, "not_checked": missing, "versions": versions()}


def failure_message(certificate: Mapping[str, object]) -> str:
    """The failed comparisons of a certificate."""
    parts = {name: part for name, part in certificate.items() if isinstance(part, dict)}
    return "; ".join(f"{name} differ ({part})" for name, part in parts.items() if part.get("passed") is False)


def versions() -> dict[str, str]:
    """Versions of the installed packages that are involved."""
    versions = {"harken": __version__}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


@contextmanager
def _external_errors(source: WeightSource, comparison: str, missing: list[str]) -> Iterator[None]:
    """Around calls of other libraries: a missing library is listed, any other error becomes one line."""
    try:
        yield
    except HarkenError:
        raise
    except Exception as error:  # other libraries raise errors of any kind
        if isinstance(error, ModuleNotFoundError) and error.name in transformers_reference.LIBRARIES:
            missing.append(f"{comparison}: {error.name} is not installed; {INSTALL_HINT}")
            return
        message = " ".join(str(error).split())[:200]
        raise HarkenError(f"{source.location}: transformers cannot load it ({message}); it is not imported") from None


@contextmanager
def _silence_transformers() -> Iterator[None]:
    """Without the log messages and progress bars of transformers."""
    try:
        from transformers.utils import logging
    except ImportError:
        yield
        return
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def compare_token_ids(run: Run, expected: Sequence[Sequence[int]], end: int | None) -> Comparison:
    """Ids of sample texts, compared with those of the `tokenizers` library for the other model."""
    ids = [_framed_ids(run.tokenizer, text, end) for text in TEXTS]
    equal = [list(a) == list(b) for a, b in zip(ids, expected, strict=True)]
    first = {} if all(equal) else {"first_different": TEXTS[equal.index(False)]}
    return {"passed": all(equal), "texts": len(TEXTS), "tokens": sum(map(len, ids)), "equal": sum(equal), **first}


def _framed_ids(processor: Any, text: str, end: int | None = None) -> list[int]:
    """The ids of a text with its special tokens."""
    if isinstance(processor, PairTokenizers):  # our edge token is their end token
        return [*processor.source.prefix_ids, *processor.source.encode(text).tolist(), cast(int, end)]
    prefix, suffix = boundary_ids(processor)
    tokenizer = processor.tokenizer if isinstance(processor, TokenLabelProcessor) else processor
    return [*prefix, *tokenizer.encode(text).tolist(), *suffix]


@dataclass(frozen=True)
class LanguageModelOutputs:
    """Inputs and outputs of a reference language model, on random tokens and on a text."""

    rows: list[list[int]]
    logits: list[Tensor]  # L vocab each
    continuation: list[int]  # greedy, of the first half of the text


def sample_rows(tokenizer: Tokenizer, limit: int) -> list[list[int]]:
    """Random tokens, and a text."""
    random = np.random.default_rng(0).integers(0, tokenizer.vocab, limit).tolist()
    return [random, _framed_ids(tokenizer, " ".join(TEXTS[:3]))[:limit]]


@torch.inference_mode()
def _language_model_outputs(reference: Any, tokenizer: Tokenizer, limit: int) -> LanguageModelOutputs:
    rows = sample_rows(tokenizer, limit)
    logits = [reference(torch.tensor([ids])).logits[0, :, : tokenizer.vocab].float() for ids in rows]
    start = rows[1][: limit // 2]
    n_tokens = min(GREEDY_TOKENS, limit - len(start))
    return LanguageModelOutputs(rows, logits, reference_greedy(reference, start, n_tokens, tokenizer.vocab))


@torch.inference_mode()
def _check_language_model(run: Run, expected: LanguageModelOutputs, _: list[str]) -> dict[str, Comparison]:
    """Logits on random and real tokens, and greedy decoding with the key-value memory."""
    logits = torch.cat([run.model.scores(torch.tensor([ids]))[0] for ids in expected.rows])
    start, n_tokens = expected.rows[1][: len(expected.rows[0]) // 2], len(expected.continuation)
    greedy = SamplingSettings(temperature=0.0)
    continuation = [int(t) for t in run.text_generator.generate([start], n_tokens, greedy, seed=0)]
    n_equal = sum(a == b for a, b in zip(continuation, expected.continuation, strict=True))
    counts = dict(zip(("random", "text"), map(len, expected.rows), strict=True))
    return {
        "logits": compare_tensors(logits, torch.cat(expected.logits)) | {"tokens": counts},
        "greedy": {"passed": n_equal == n_tokens, "tokens": n_tokens, "equal": n_equal},
    }


def reference_greedy(reference: nn.Module, ids: list[int], n_tokens: int, vocab_size: int) -> list[int]:
    """Greedy decoding of a transformers model with its key-value cache."""
    tokens, cache, continuation = torch.tensor([ids]), None, []
    for _ in range(n_tokens):
        outputs = reference(tokens, past_key_values=cache, use_cache=True)
        cache, tokens = outputs.past_key_values, outputs.logits[:, -1:, :vocab_size].argmax(-1)
        continuation.append(int(tokens))
    return continuation


@torch.inference_mode()
def _check_encoder(run: Run, reference: Any, missing: list[str]) -> dict[str, Comparison]:
    """Hidden states of padded rows, MLM logits and mean-pooled embeddings."""
    model, vocab_size = cast(Any, run.model), run.tokenizer.vocab
    limit = min(RANDOM_TOKENS, model.context or RANDOM_TOKENS)
    random = np.random.default_rng(0).integers(0, vocab_size, limit).tolist()
    rows = [random, *(_framed_ids(run.tokenizer, text)[:limit] for text in TEXTS)]
    lengths = torch.tensor(list(map(len, rows)))
    real = torch.arange(limit) < lengths[:, None]
    tokens = torch.full((len(rows), limit), reference.config.pad_token_id or 0)
    tokens[real] = torch.tensor([i for row in rows for i in row])
    # RoBERTa's positions skip the padding id
    tokens = tokens.where((tokens != reference.config.pad_token_id) | ~real, 1 + tokens)
    h = reference.base_model(tokens, attention_mask=real.long()).last_hidden_state
    pairs = {"states": (model(tokens, lengths=lengths)[real], h[real])}
    if model.transform is not None:
        outputs = reference(tokens, attention_mask=real.long())
        logits = outputs.prediction_logits if "prediction_logits" in outputs else outputs.logits
        pairs["logits"] = (model.scores(tokens, lengths=lengths)[real], logits[real][:, :vocab_size])
    mean = (h * real[..., None]).sum(1) / lengths[:, None]
    unpadded = [row[:n].tolist() for row, n in zip(tokens, lengths, strict=True)]
    ranges, width = pool_ranges(unpadded, "mean"), model.embed.embedding_dim
    vectors = torch.from_numpy(embed_token_ids(model, unpadded, ranges, width, tokens.device))
    pairs["vectors"] = torch.nn.functional.normalize(vectors, dim=-1), torch.nn.functional.normalize(mean, dim=-1)
    if model.n_segments:
        pairs |= _segment_outputs(model, reference, tokens, real, missing)
    n_tokens = int(lengths.sum())
    return {name: compare_tensors(*pair) | {"tokens": n_tokens} for name, pair in pairs.items()}


def _segment_outputs(
    model: Any, reference: Any, tokens: Tensor, real: Tensor, missing: list[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    """The same rows with two segments: hidden states, pooler output and next-sentence logits."""
    is_second = torch.arange(tokens.shape[1]) >= tokens.shape[1] // 4
    segments = is_second.long().expand_as(tokens) * (model.n_segments - 1)
    inputs = {"attention_mask": real.long(), "token_type_ids": segments}
    body, h = reference.base_model(tokens, **inputs), model(tokens, lengths=real.sum(1), segments=segments)
    pairs = {"segments": (h[real], body.last_hidden_state[real])}
    if model.pooler is not None and body.pooler_output is None:
        missing.append(f"pooler output: {type(reference).__name__} has no pooler")
    elif model.pooler is not None:
        pairs["pooled"] = (model.pooled(h[:, 0]), body.pooler_output)
    if model.nsp_head is not None:
        logits = reference(tokens, **inputs).seq_relationship_logits
        pairs["next_sentence"] = (model.next_sentence_scores(h[:, 0]), logits)
    return pairs


@torch.inference_mode()
def _check_encoder_decoder(run: Run, reference: Any, _: list[str]) -> dict[str, Comparison]:
    """Log-probabilities of a random target for a real source, and greedy decoding."""
    model, config = cast(EncoderDecoder, run.model), reference.config
    end, start = config.eos_token_id, config.decoder_start_token_id
    limit = min(RANDOM_TOKENS, model.context or RANDOM_TOKENS)
    source = run.tokenizer.encode_source(" ".join(TEXTS[:2])).tolist()
    source = [*source[: limit - 1], model.edge]
    random = [i for i in np.random.default_rng(0).integers(0, model.edge, limit - 1).tolist() if i != end]
    input_ids = torch.tensor([[*source[:-1], end]])
    expected = reference(input_ids, decoder_input_ids=torch.tensor([[start, *random]])).logits[0].log_softmax(-1)
    log_p = model.scores(torch.tensor([[model.edge, *random]]), source=torch.tensor([source]))[0].log_softmax(-1)
    log_p[:, end] = log_p[:, model.edge]  # our edge token is their end token
    max_tokens = min(GREEDY_TOKENS, limit - 1)
    target = run.beam_search.search([source], SearchSettings(beam=1, max_new_tokens=max_tokens))[0][0].tokens
    ids = [start]
    while len(ids) <= max_tokens and ids[1:][-1:] != [end]:
        ids.append(int(reference(input_ids, decoder_input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    expected_target = [i for i in ids[1:] if i != end]
    n_columns = max(model.edge, end + 1)  # includes an end token that was added for our edge token
    return {
        "logits": compare_tensors(log_p[:, :n_columns], expected[:, :n_columns]) | {"tokens": len(log_p)},
        "greedy": {"passed": target == expected_target, "tokens": len(expected_target)},
    }


@torch.inference_mode()
def _check_head(run: Run, reference: Any, _: list[str]) -> dict[str, Comparison]:
    """Logits and best labels for texts and random tokens, each with two segments."""
    processor = run.tokenizer
    limit = min(RANDOM_TOKENS, run.model.context or RANDOM_TOKENS) - 1
    random = np.random.default_rng(0).integers(0, processor.tokenizer.vocab, limit).tolist()
    has_segments = reference.config.model_type == "bert"
    logits, expected = [], []
    for row in (random, *(_framed_ids(processor, text)[:-1][:limit] for text in TEXTS)):
        tokens = torch.tensor([[*row, processor.end_id]])
        segments = (torch.arange(len(row) + 1) > len(row) // 2).long()[None] if has_segments else None
        outputs = reference(tokens, **({"token_type_ids": segments} if has_segments else {}))
        if "logits" in outputs:
            expected.append(outputs.logits[0])
        else:
            expected.append(torch.stack([outputs.start_logits, outputs.end_logits], -1)[0])
        logits.append(head_logits(run, tokens, segments=segments)[0])
    actual, target = (torch.cat([y.reshape(-1, y.shape[-1]) for y in rows]) for rows in (logits, expected))
    n_equal = int((actual.argmax(-1) == target.argmax(-1)).sum())
    counts = {"texts": 1 + len(TEXTS), "labels": len(actual), "equal": n_equal}
    return {"logits": compare_tensors(actual, target), "labels": {"passed": n_equal == len(actual), **counts}}


def head_logits(run: Run, tokens: Tensor, *, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
    """Outputs of a head per text (B C) or per token (B L C). Regression values are in the units of the data."""
    model, processor = cast(Any, run.model), run.tokenizer
    B, L = tokens.shape
    h = model(tokens, lengths=lengths, segments=segments)
    if model.outputs.per_token:
        return cast(Tensor, model.predict(h))
    text = torch.arange(B)[:, None].expand(B, L)
    text = text if lengths is None else text.where(torch.arange(L) < lengths[:, None], B)
    y: Tensor = model.predict(model.pool_texts(h, text, B))
    return y * processor.std + processor.mean if processor.target_type == "number" else y


def compare_tensors(actual: Tensor, expected: Tensor, *, tolerance: float = TOLERANCE) -> Comparison:
    """The largest difference and whether it is within the tolerance."""
    difference = float((actual - expected).abs().max())
    limit = tolerance * max(1.0, float(expected.abs().max()))
    return {"passed": difference <= limit, "max_difference": difference, "tolerance": limit}


# by `ModelMapping.check`: run, reference outputs or model, comparisons that are not possible -> comparisons
CHECKS: dict[str, Callable[[Run, Any, list[str]], dict[str, Comparison]]] = {
    "language model": _check_language_model,
    "encoder": _check_encoder,
    "encoder-decoder": _check_encoder_decoder,
    "head": _check_head,
    "images": lambda run, reference, _: {"logits": compare_tensors(*vit.compare_logits(run, reference))},
}
