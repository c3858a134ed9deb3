"""The parity certificate: our model and the one it was brought from are asked the same, and say the same.

transformers is the oracle where it is installed; what could not be compared is listed by name, never passed over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken import __version__
from harken.decode.sample import Choice
from harken.use.embed import vectors
from harken.use.model import Run

from .family import Config, Source

TOLERANCE = 1e-5  # of a score, or of the largest score where that is more than 1
RANDOM, GREEDY = 64, 32  # tokens: of a row drawn at random, and written one after the other
TEXTS = (
    "The capital of France is",
    "It's 12:45, isn't it? I'd say we've paid $1,234.56 (or 7e-3).",
    "  two spaces,\ttab\nand lines\r\n\n\nend ",
    "naïve café, Größe, œuvre, ﬁn, İstanbul, привет мир, γειά σου, שלום, مرحبا, नमस्ते",
    "你好，世界。今日は。안녕하세요 👩‍👩‍👧 🇫🇷 é e\u0301 \u200b \ufeff",
    "def f(x):\n    return x ** 2  # 1234567890",
    "<|endoftext|> <s> </s> [CLS] [SEP] <unk> <0x0A> ▁ Ġ",
    "",
)
VERSIONS = ("torch", "transformers", "tokenizers", "safetensors", "gguf")


def certify(run: Run, family: Config, source: Source) -> dict[str, Any]:
    """Compare the run with what it was made of; `passed` is False as soon as one comparison fails."""
    found: dict[str, Any] = {"source": source.place, "family": source.config["model_type"]}
    missing: list[str] = []
    found["tokenizer"] = _tokens(run, source)
    with _quiet():
        try:
            theirs = source.oracle(family.auto)
        except ImportError as error:
            missing.append(f'scores and greedy tokens, for lack of {error.name}: pip install "harken[hf]"')
        else:
            found |= CHECKS[family.check](run, theirs)
    parts = [part for part in found.values() if isinstance(part, dict)]
    return {
        "passed": all(part["passed"] for part in parts),
        **found,
        "not_checked": missing,
        "versions": {"harken": __version__, **{name: got for name in VERSIONS if (got := _version(name))}},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


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
    found = [_marked(run, text) for text in TEXTS]
    equal = [list(a) == list(b) for a, b in zip(found, expected, strict=True)]
    odd = {} if all(equal) else {"first_different": TEXTS[equal.index(False)]}
    return {"passed": all(equal), "texts": len(TEXTS), "tokens": sum(map(len, found)), "equal": sum(equal), **odd}


def _marked(run: Run, text: str) -> list[int]:
    """The ids of a text with the marks around it."""
    tokens = run.tokenizer
    before, behind = (tokens.begin, ()) if tokens.cls is None else ((tokens.cls,), (tokens.sep,))
    return [*before, *tokens.encode(text).tolist(), *behind]


@torch.inference_mode()
def _language_model(run: Run, theirs: Any) -> dict[str, Any]:
    """Scores on random and real tokens, and what both write with their memories, greedily."""
    model, vocab = run.model, run.tokenizer.vocab
    most = min(RANDOM, (model.context or RANDOM))
    drawn = np.random.default_rng(0).integers(0, vocab, most)
    rows = {"random": drawn.tolist(), "text": _marked(run, " ".join(TEXTS[:3]))[:most]}
    differ, largest = 0.0, 0.0
    for ids in rows.values():
        tokens = torch.tensor([ids])
        expected = theirs(tokens).logits[..., :vocab].float()
        differ = max(differ, float((model.scores(tokens) - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
    limit = TOLERANCE * max(1.0, largest)
    start = rows["text"][: most // 2]
    many = min(GREEDY, most - len(start))
    written = [int(t) for t in run.writer.write([start], many, Choice(temperature=0.0), seed=0)]
    theirs_written = greedy(theirs, start, many, vocab)
    equal = sum(a == b for a, b in zip(written, theirs_written, strict=True))
    counts = {name: len(ids) for name, ids in rows.items()}
    return {
        "logits": {"passed": differ <= limit, "max_difference": differ, "tolerance": limit, "tokens": counts},
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
    rows = [np.random.default_rng(0).integers(0, vocab, most).tolist(), *(_marked(run, t)[:most] for t in TEXTS)]
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
    return {name: _near(*pair) | {"tokens": int(lengths.sum())} for name, pair in pairs.items()}


def _near(ours: Tensor, theirs: Tensor) -> dict[str, Any]:
    differ, limit = float((ours - theirs).abs().max()), TOLERANCE * max(1.0, float(theirs.abs().max()))
    return {"passed": differ <= limit, "max_difference": differ, "tolerance": limit}


# by `Config.check`: (run, their model) -> parts of the certificate, each with `passed`
CHECKS: dict[str, Callable[[Run, Any], dict[str, Any]]] = {"language model": _language_model, "encoder": _encoder}
