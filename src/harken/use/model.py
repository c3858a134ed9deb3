"""A run, loaded: what users hold in their hands after `harken.load` or `harken.train`."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harken import recipe as recipes
from harken import run
from harken.core import View, watching
from harken.data.text import TextData
from harken.data.tokens import Tokenizer
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.models import LanguageModel
from harken.recipe import Recipe
from harken.tasks import Score

from .sample import Choice, Reader, decode


class Run:
    """A trained model with its words. Make one with `harken.load(folder)`."""

    def __init__(
        self, path: Path, recipe: Recipe, facts: dict[str, Any], model: LanguageModel, tokenizer: Tokenizer
    ) -> None:
        self.path, self.recipe, self.facts, self.model, self.tokenizer = path, recipe, facts, model, tokenizer
        self.model.eval()

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each split, as they were at the end of the training."""
        return dict(self.facts["metrics"])

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def __repr__(self) -> str:
        return f"<harken run {self.path.name}: {self.recipe.model.kind}, {self.parameters:,} weights>"

    # --- generate -----------------------------------------------------------------------------------------------------

    def generate(
        self, prompt: str = "", *, tokens: int = 200, n: int = 1, seed: int = 0, stop: str | None = None, **choice: Any
    ) -> Any:
        """The continuation of a prompt, without the prompt; a list if n > 1. Options: temperature, top_k, top_p."""
        if n == 1:
            return "".join(self.stream(prompt, tokens=tokens, seed=seed, stop=stop, **choice))
        return self._many([prompt] * n, tokens, seed, stop, Choice(**choice))

    def stream(
        self, prompt: str = "", *, tokens: int = 200, seed: int = 0, stop: str | None = None, **choice: Any
    ) -> Iterator[str]:
        """The continuation, piece by piece as it is made."""
        return self._pieces(self._prompt(prompt), tokens, seed, stop, Choice(**choice))

    def _pieces(self, ids: list[int], tokens: int, seed: int, stop: str | None, choice: Choice) -> Iterator[str]:
        piece, cut = self.tokenizer.stream_decoder(), Cut(stop)
        for token in ids:
            piece(token)
        for chosen in decode(self.model, [ids], tokens, choice, seed=seed):
            yield cut.take(piece(int(chosen)))
            if cut.done:
                return
        yield cut.rest()

    def _many(self, prompts: Sequence[str], tokens: int, seed: int, stop: str | None, choice: Choice) -> list[str]:
        ids = [self._prompt(p) for p in prompts]
        pieces, cuts, texts = [self.tokenizer.stream_decoder() for _ in ids], [Cut(stop) for _ in ids], [""] * len(ids)
        for row, before in enumerate(ids):
            for token in before:
                pieces[row](token)
        for chosen in decode(self.model, ids, tokens, choice, seed=seed):
            for row, token in enumerate(chosen.tolist()):
                texts[row] += cuts[row].take(pieces[row](token))
            if all(cut.done for cut in cuts):
                break
        return [text + cut.rest() for text, cut in zip(texts, cuts, strict=True)]

    def _prompt(self, prompt: str) -> list[int]:
        """The prompt's tokens; without any, the mark that ends a text, or a new line, begins the next one."""
        ids = [int(t) for t in self.tokenizer.encode(prompt)]
        if self.tokenizer.kind == "word" and ids and ids[-1] == self.tokenizer.end and not prompt.endswith("\n"):
            ids.pop()  # the prompt's line goes on
        if not ids:
            start = self.tokenizer.end
            ids = [int(self.tokenizer.encode("\n")[0]) if start is None else start]
        return ids

    @torch.inference_mode()
    def next(self, prompt: str, k: int = 10) -> list[dict[str, Any]]:
        """The k likeliest next tokens and their probabilities."""
        if k < 1:
            raise BadInput(f"--next {k}: ask for at least 1 word")
        p = Reader(self.model, [self._prompt(prompt)], 1).logits[0].float().softmax(-1)
        best = p.topk(min(k, len(p)))
        words = self.tokenizer.words(best.indices.tolist())
        return [{"text": w, "probability": q} for w, q in zip(words, best.values.tolist(), strict=True)]

    # --- judge --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(self, text: str) -> dict[str, Any]:
        """ln p of each word given all before it, and the perplexity of the text (per token)."""
        ids = [int(t) for t in self.tokenizer.encode(text)]
        start = self.tokenizer.end
        given = ids if start is None else [start, *ids]
        if len(given) < 2:
            raise BadInput(f"{text!r}: too short to be scored; give a longer text")
        each = self._each(torch.tensor(given)).tolist()
        logs = ([None] if start is None else []) + [-x for x in each]  # the first token has nothing before it
        perplexity = math.exp(min(sum(each) / len(each), 700))
        return {"words": _words(ids, logs, self.tokenizer), "perplexity": perplexity, "tokens": len(each)}

    def _each(self, tokens: Tensor) -> Tensor:
        """-ln p of every token but the first, with as much context as the model takes."""
        L = self.model.context or len(tokens)
        half = max(1, L // 2)
        starts = [0, *range(half, len(tokens) - 1 - L + half, half)] if len(tokens) > L + 1 else [0]
        found: list[Tensor] = []
        for start in starts:
            piece = tokens[start : start + L + 1].to(next(self.model.parameters()).device)
            logits = self.model.logits(self.model(piece[None, :-1]))[0].float()
            each = torch.nn.functional.cross_entropy(logits, piece[1:], reduction="none")
            found.append(each[sum(len(f) for f in found) - start :])  # the window before has answered the first ones
        return torch.cat(found)

    def evaluate(
        self, split: str = "valid", *, data: str | None = None, listen: Listener = silent
    ) -> tuple[Score, dict[str, Any]]:
        """The task's metrics on a split of the run's own data, or on other data; and those of the free baselines."""
        opened, whole = self._opened(split, data, listen)
        if split not in opened.splits:
            there = ", ".join(opened.splits) or "none"
            raise BadInput(
                f"--split {split}: this run has none; there is {there}. Or give a text: harken eval RUN FILE"
            )
        recipe = self.recipe
        task = recipe.task.bind(opened, recipe.model, batch=recipe.train.batch, seed=recipe.train.seed)
        return task.evaluate(self.model, split), task.baselines(split) if whole else {}

    def _opened(self, split: str, data: str | None, listen: Listener) -> tuple[Any, bool]:
        """The run's data, with other data as this split if there is any; and whether there is something to learn from.

        A run may have travelled without the text it learned from: then other data is judged without the baselines.
        """
        source, stateful = self.recipe.data, self.model.context is None
        if data is None:
            return source.open(stateful=stateful, tokenizer=self.tokenizer, listen=listen), True
        other, known = [source.other(data, self.tokenizer, listen=listen)], source.model_copy(update={"sha256": None})
        try:
            opened = known.open(stateful=stateful, tokenizer=self.tokenizer, listen=listen)
            opened.splits[split] = other
            return opened, True
        except BadInput as error:
            listen("notice", text=f"{error}; the free baselines learn from it and are left out")
        batches = "stream" if stateful else "windows"
        return TextData(self.tokenizer, other, {split: other}, ("text",), None, batches, other[0].sha256), False

    # --- look ---------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def trace(self, text: str) -> "Trace":
        """Run the text at full speed; attention weights are computed when they are asked for."""
        ids = self._prompt(text)[-(self.model.context or 10**9) :]
        device = next(self.model.parameters()).device
        with watching(self.model) as views:
            self.model(torch.tensor([ids], device=device))
        return Trace(self.tokenizer.words(ids), list(views.values()))


class Trace:
    """What a text did in a model: its tokens, and the attention of each layer."""

    def __init__(self, tokens: list[str], views: list[View]) -> None:
        self.tokens, self.views = tokens, views

    def attention(self, which: str = "self", *, layer: int, head: int) -> Tensor:
        """The weights of one head: queries by keys, rows sum to 1."""
        if which != "self":
            raise BadInput(f"{which!r}: a language model has self-attention only; ask for 'self'")
        if not 0 <= layer < len(self.views):
            raise BadInput(f"layer {layer}: this model has {len(self.views)} attention layers, counted from 0")
        if not 0 <= head < self.views[layer].q.shape[1]:
            raise BadInput(f"head {head}: this layer has {self.views[layer].q.shape[1]} heads, counted from 0")
        return self.views[layer].whole([head])[0, 0]


class Cut:
    """Ends a stream of text before the first place where a stop text stands, even if it comes in pieces."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.held, self.done = stop, "", False

    def take(self, piece: str) -> str:
        if not self.stop or self.done:
            return "" if self.done else piece
        text = self.held + piece
        if self.stop in text:
            self.done, self.held = True, ""
            return text[: text.index(self.stop)]
        keep = next((n for n in range(min(len(self.stop) - 1, len(text)), 0, -1) if self.stop.startswith(text[-n:])), 0)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def rest(self) -> str:
        return self.held


def _words(ids: list[int], logs: list[float | None], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Tokens joined to words, white space with the word after it. ln p of a word is the sum over its tokens."""
    pieces = tokenizer.words(ids)
    starts = [
        n
        for n, piece in enumerate(pieces)
        if n == 0 or tokenizer.kind == "word" or (piece[:1].isspace() and not pieces[n - 1].isspace())
    ]
    words = []
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        known = [log for log in logs[start:stop] if log is not None]
        text = pieces[start] if tokenizer.kind == "word" else tokenizer.decode(ids[start:stop])
        words.append({"word": text, "logprob": sum(known) if known else None})
    return words


def load(path: str | Path) -> Run:
    """A finished run from its folder; every file it needs is checked first."""
    folder = Path(path)
    facts = run.facts(folder)
    recipe = recipes.resolve((str(folder / "recipe.toml"), recipes.read(folder / "recipe.toml")))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    saved = run.read_tensors(folder / "model.safetensors")
    with torch.device("meta"):  # sizes are compared before anything is allocated
        run.fit(recipe.model.build(tokenizer.vocab), saved)
    with torch.random.fork_rng():
        model = recipe.model.build(tokenizer.vocab)
    run.load_weights(model, saved)
    return Run(folder, recipe, facts, model, tokenizer)
