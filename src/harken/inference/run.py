"""A run, loaded: what users hold in their hands after `harken.load` or `harken.train`."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from harken import machine, run_folder
from harken import recipe as recipes
from harken.core import watching
from harken.decode.beam import Finder, Search
from harken.decode.sampling import Choice, Reader, Writer
from harken.errors import BadInput, refuse_unknown
from harken.events import Listener, silent
from harken.models import EncoderDecoder, LanguageModel
from harken.recipe import Recipe
from harken.tasks import Judged

from .abilities import DOES, LABELS
from .answers.ask import ask_text
from .answers.caption import caption, trace_caption
from .answers.embed import Corpus, Vectors, encoded, nearest, reader, vectors
from .answers.fill import filled
from .answers.images import trace_picture
from .answers.score import scored
from .answers.stories import Story, ask_story
from .answers.tag import tag_texts
from .answers.translate import traced, translations
from .chat import Chat
from .prepare import lighten
from .prompt import label_by_prompt
from .stop_sequences import Cut
from .trace import Trace


class Run:
    """A trained model with its words. Make one with `harken.load(folder)`."""

    def __init__(self, path: Path, recipe: Recipe, facts: dict[str, Any], model: LanguageModel, tokenizer: Any) -> None:
        self.path, self.recipe, self.facts, self.model, self.tokenizer = path, recipe, facts, model, tokenizer
        self.model.eval()

    @cached_property
    def writer(self) -> Writer:
        return Writer(self.model)

    @cached_property
    def finder(self) -> Finder:
        return Finder(cast(EncoderDecoder, self.model))

    def compile(self) -> "Run":
        """Compile the step of one token: the first text comes half a minute later, every other one faster."""
        self.writer = Writer(self.model, compiled=True)
        return self

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics of each split, as they were at the end of the training."""
        return dict(self.facts["metrics"])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def parameters(self) -> int:
        return run_folder.size(self.model)

    @property
    def pairs(self) -> bool:
        """Whether it was trained on pairs: such a run translates, any other one writes and scores."""
        return isinstance(self.model, EncoderDecoder)

    @property
    def verb(self) -> str:
        """The verb that asks for what it was trained to do."""
        return DOES[self.recipe.task.kind][1]

    def must(self, verb: str) -> None:
        """Refuse what this run was not trained to do. Vectors can be had of all that read one text."""
        reads = hasattr(self.model, "context") and not self.pairs
        if verb != self.verb and (verb != "embed" or not reads):
            ask = ", or ask it with --prompt and --labels" if (verb, self.verb) == ("classify", "generate") else ""
            use = f"use harken {self.verb}, in Python run.{self.verb}{ask}"
            raise BadInput(f"{self.path}: this run {DOES[self.recipe.task.kind][0]}; {use}")

    def __repr__(self) -> str:
        return f"<harken run {self.path.name}: {self.recipe.model.kind}, {self.parameters:,} weights>"

    # --- generate -----------------------------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        n: int = 1,
        seed: int = 0,
        index: int = 0,
        stop: str | None = None,
        listen: Listener = silent,
        **choice: Any,
    ) -> Any:
        """The continuation of a prompt, without the prompt; a list if n > 1. Options: temperature, top_k, top_p.

        Many prompts may share a seed: by its `index` among them each has draws of its own.
        """
        _check(Integral, tokens=tokens, n=n, seed=seed)
        rows = self._pieces([self._prompt(prompt, listen)] * n, tokens, stop, Choice.of(choice), seed=seed, index=index)
        texts = ["".join(pieces) for pieces in zip(*rows, strict=True)]
        return texts[0] if n == 1 else texts

    def stream(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        seed: int = 0,
        index: int = 0,
        stop: str | None = None,
        listen: Listener = silent,
        **choice: Any,
    ) -> Iterator[str]:
        """The continuation, piece by piece as it is made."""
        _check(Integral, tokens=tokens, seed=seed)
        rows = self._pieces([self._prompt(prompt, listen)], tokens, stop, Choice.of(choice), seed=seed, index=index)
        return (piece for (piece,) in rows)

    def _pieces(
        self, prompts: list[list[int]], tokens: int, stop: str | None, choice: Choice, *, seed: int, index: int
    ) -> Iterator[list[str]]:
        """What the continuation of each prompt gains by a token, until all have come to the stop text."""
        decoders, cuts = [self.tokenizer.stream_decoder() for _ in prompts], [Cut(stop) for _ in prompts]
        for ids, text in zip(prompts, decoders, strict=True):
            for token in ids:
                text(token)
        never = self.tokenizer.marks
        for chosen in self.writer.write(prompts, tokens, choice, seed=seed, index=index, never=never):
            yield [cut.take(text(i)) for cut, text, i in zip(cuts, decoders, chosen.tolist(), strict=True)]
            if all(cut.done for cut in cuts):
                return
        yield [cut.rest() for cut in cuts]

    def _prompt(self, prompt: str, listen: Listener = silent) -> list[int]:
        """The prompt's tokens; without any, the mark that ends a text, or a new line, begins the next one."""
        self.must("generate")
        _check(str, prompt=prompt)
        if missing := self.tokenizer.missing(prompt):
            some = [repr(piece) for piece in dict.fromkeys(missing)]
            named = ", ".join(some[:5] + ["..."] * (len(some) > 5))
            listen("notice", text=f"prompt: unknown to this run, and read as <unk>: {named} ({len(missing)} in all)")
        ids = [*self.tokenizer.begin, *map(int, self.tokenizer.encode(prompt))]
        if self.tokenizer.kind == "word" and ids and ids[-1] == self.tokenizer.end and not prompt.endswith("\n"):
            ids.pop()  # the prompt's line goes on
        if not ids:
            start = self.tokenizer.end
            ids = [int(self.tokenizer.encode("\n")[0]) if start is None else start]
        return ids

    def chat(self, **how: Any) -> Chat:
        """A conversation, for instruct models. Options: system, tokens, seed, temperature, top_k, top_p."""
        return Chat(self, **how)

    @torch.inference_mode()
    def next(self, prompt: str, k: int = 10, *, listen: Listener = silent) -> list[dict[str, Any]]:
        """The k likeliest next tokens and their probabilities, <unk> among them: the model's whole expectation."""
        _check(Integral, k=k)
        if k < 1:
            raise BadInput(f"k={k}: ask for at least 1 word")
        p = Reader(self.model, [self._prompt(prompt, listen)], 1).logits[0].float().softmax(-1)
        best = p.topk(min(k, len(p)))
        words = self.tokenizer.words(best.indices.tolist())
        return [{"text": w, "probability": q} for w, q in zip(words, best.values.tolist(), strict=True)]

    # --- judge --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(self, text: str) -> dict[str, Any]:
        """ln p of each word given all before it, the perplexity of the text (per token), and how many were unknown."""
        self.must("generate")
        _check(str, text=text)
        ids = [int(t) for t in self.tokenizer.encode(text)]
        start = next(iter(self.tokenizer.begin), self.tokenizer.end)
        given = ids if start is None else [start, *ids]
        if len(given) < 2:
            raise BadInput(f"{text!r}: too short to be scored; give a longer text")
        each = self._each(torch.tensor(given)).tolist()
        logs = ([None] if start is None else []) + [-x for x in each]  # the first token has nothing before it
        perplexity = math.exp(min(sum(each) / len(each), 700))
        found = {"words": scored(text, logs, self.tokenizer), "perplexity": perplexity, "tokens": len(each)}
        return found | {"unknown": len(self.tokenizer.missing(text))}

    def _each(self, tokens: Tensor) -> Tensor:
        """-ln p of every token but the first, with as much context as the model takes."""
        L = self.model.context or len(tokens)
        half = max(1, L // 2)
        starts = [0, *range(half, len(tokens) - 1 - L + half, half)] if len(tokens) > L + 1 else [0]
        found: list[Tensor] = []
        for start in starts:
            piece = tokens[start : start + L + 1].to(self.device)
            logits = self.model.scores(piece[None, :-1])[0].float()
            each = torch.nn.functional.cross_entropy(logits, piece[1:], reduction="none")
            found.append(each[sum(len(f) for f in found) - start :])  # the window before has answered the first ones
        return torch.cat(found)

    def evaluate(self, split: str | None = None, *, data: str | None = None, listen: Listener = silent) -> Judged:
        """The task's metrics on a split of the run's own data, or on other data; and those of the free baselines.

        Without a split it is test, if there is one, else valid.
        """
        split = split or ("test" if data or "test" in self.metrics else "valid")
        opened = self.recipe.open(self.tokenizer, other=None if data is None else (data, split), listen=listen)
        if split not in opened.splits:
            there = f"has {', '.join(opened.splits)}" if opened.splits else "held nothing out"
            raise BadInput(f"split {split}: not in this run, which {there}; or give it another text to judge")
        task = self.recipe.bind(opened)
        score = task.evaluate(self.model, split)
        if data is not None and (share := score.protocol.get("unknown")):
            told = f"{100 * share:.3g} % of its tokens are unknown to this run, and judged as <unk>"
            listen("notice", text=f"{data}: {told}")
        return Judged(score, task.baselines(split))

    # --- translate ----------------------------------------------------------------------------------------------------

    def translate(self, text: str | Sequence[str], *, listen: Listener = silent, **search: Any) -> Any:
        """The best target of a source, or of each of a list.

        Options: beam, length_penalty, no_repeat, longest, temperature, top_k, top_p, seed; `prefix`, how it begins.
        """
        many = isinstance(text, Sequence) and not isinstance(text, str)
        best = self.alternatives(text if many else [text], listen=listen, **search)  # type: ignore[list-item]
        return [each[0]["text"] for each in best] if many else best[0][0]["text"]

    def alternatives(
        self, texts: Sequence[str], *, prefix: str = "", index: int = 0, listen: Listener = silent, **search: Any
    ) -> list[list[dict[str, Any]]]:
        """For each source its best targets, as many as `alternatives` says: text and score (mean ln p), best first.

        `index` is the place of the first source among those that share a seed.
        """
        self.must("translate")
        _check(str, prefix=prefix)
        _check(Integral, index=index)
        usual = getattr(self.recipe.task, "usual_beam", 0)
        how = Search.of({"max_new_tokens": self.recipe.task.max_new_tokens, **search}, "prefix", beam=usual)
        asked = {"prefix": prefix, "index": index, "grammar": self.recipe.task.grammar}
        return translations(self.finder, self.tokenizer, texts, how, listen, **asked)

    def caption(self, picture: Any, **search: Any) -> Any:
        """What a picture shows, in words, or each of a list: paths, or arrays of bytes. Options as in translate."""
        return caption(self, picture, **search)

    # --- labels -------------------------------------------------------------------------------------------------------

    def classify(
        self, text: Any, *, prompt: str | None = None, labels: Sequence[str] = (), listen: Listener = silent
    ) -> Any:
        """The labels of a text, or of each of a list, the likeliest first: label and probability (of a number: value).

        Where two texts were learned, each is a pair of them, or one with a tab between; where pictures were, a path or
        an array of bytes; where sets were, an array of rows, or a table, of which all are answered. A language model is
        asked: prompt="Review: {text} Sentiment:", labels=["good", "bad"].
        """
        alone = isinstance(text, str | Path)
        given = [text] if alone else text
        if empty := sum(isinstance(each, str) and not each.strip() for each in given):
            listen("notice", text=f"empty texts: {empty:,}; what is said of them is what is said of no words at all")
        if prompt is None:
            self.must("classify")
            found = LABELS[self.recipe.task.kind](self, given)
        else:
            found = label_by_prompt(self, given, prompt, labels, listen)
        return found[0] if alone and len(found) == 1 else found

    def tag(self, text: str | Sequence[str]) -> Any:
        """The tagged spans of a text, or of each of a list: label, text, start and end (characters), probability."""
        self.must("tag")
        found = tag_texts(self.model, self.tokenizer, [text] if isinstance(text, str) else text, self.recipe.data)
        return found[0] if isinstance(text, str) else found

    def ask(self, question: str, context: str) -> dict[str, Any]:
        """The answer to a question that stands in a text (answer, score, start, end), or about a story (hops)."""
        self.must("ask")
        _check(str, question=question, context=context)
        return (ask_story if self.recipe.task.kind == "answer" else ask_text)(self, question, context)

    def story(self, lines: Sequence[str] = ()) -> Story:
        """A story to write line by line and to ask: `run.story().write("Joe went home.").ask("Where is Joe?")`."""
        return Story(self, lines)

    # --- fill ---------------------------------------------------------------------------------------------------------

    def fill(self, text: str, k: int = 5, *, listen: Listener = silent) -> list[list[dict[str, Any]]]:
        """For each [MASK] of a text the k likeliest words, best first: word and probability."""
        self.must("fill")
        _check(str, text=text)
        _check(Integral, k=k)
        return filled(self.model, self.tokenizer, text, k, listen)

    # --- vectors ------------------------------------------------------------------------------------------------------

    def embed(self, text: str | Sequence[str], *, pool: str = "mean", listen: Listener = silent, **how: Any) -> Vectors:
        """The vector of a text, or one for each of a list: the mean of its states, that of its first token, or last.

        Options: normalised (False: not brought to length 1), layer (the states behind so many; None: the last).
        """
        refuse_unknown(how, ("normalised", "layer"))
        self.must("embed")
        body, words = reader(self.model, self.tokenizer)
        tokens = partial(encoded, words, most=self.model.context, listen=listen)
        texts = [text] if isinstance(text, str) else text
        found = vectors(body, [tokens(each) for each in texts], pool, **how)
        return found[0] if isinstance(text, str) else found

    def corpus(self, path: str | Path, *, pool: str = "mean", listen: Listener = silent) -> Corpus:
        """The lines of a text file, to be searched: `run.corpus("notes.txt").search("a warm day")`."""
        kinds = sorted({str(t.dtype) for some in (self.model.parameters(), self.model.buffers()) for t in some})
        key = f"{pool} {self.facts['sha256']} {kinds}"  # lighter weights give other vectors
        return Corpus(Path(path), partial(self.embed, pool=pool, listen=listen), key, listen)

    def nearest(self, word: str, k: int = 10) -> list[dict[str, Any]]:
        """The k words whose vectors in the model's table are nearest to this word's, with their cosines."""
        self.must("embed")
        body, words = reader(self.model, self.tokenizer)
        return nearest(body.embed.weight, words, word, k)

    # --- look ---------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def trace(self, text: str, target: str | None = None) -> "Trace":
        """Run the text at full speed; attention weights are computed when they are asked for.

        Of an encoder-decoder the text is the source; its target is the one it writes, unless one is given. Of pictures
        it is a path: the patches look at each other, and the words of a caption at them.
        """
        if self.recipe.task.kind == "image":
            return trace_picture(self, text)
        if self.recipe.task.kind == "caption":
            return trace_caption(self, text, target)
        if isinstance(self.model, EncoderDecoder):
            return traced(self.model, self.tokenizer, text, self.translate(text) if target is None else target)
        if not hasattr(self.model, "context"):
            raise BadInput(f"{self.path}: this run {DOES[self.recipe.task.kind][0]}; what it looks at is not traced")
        most = self.model.context
        writes = self.verb == "generate"
        ids = self._prompt(text)[-(most or 10**9) :] if writes else encoded(self.tokenizer, text, most, silent)
        with watching(self.model) as views:
            self.model(torch.tensor([ids], device=self.device))
        return Trace(self.tokenizer.words(ids), {"self": list(views.values())})


def _check(kind: type, **given: Any) -> None:
    """Refuse an argument of another type by its name, before torch does it in its own words."""
    for name, value in given.items():
        if not isinstance(value, kind) or (isinstance(value, Integral) and value < 0):
            accepted = "a text" if kind is str else "a whole number of 0 or more"
            raise BadInput(f"{name}={value!r}: {accepted} is accepted")


def load(path: str | Path, *, device: str = "auto", precision: str = "float32") -> Run:
    """A finished run from its folder; every file it needs is checked first.

    device: auto, cpu, cuda or cuda:N; precision: float32, or bfloat16 or (on a CPU) int8 to write faster.
    """
    folder, own = Path(path), "cpu" if precision == "int8" else "auto"
    where = machine.pick_device(own if device == "auto" else device, "device")
    facts = run_folder.facts(folder, "recipe.toml", "model.safetensors", *run_folder.TOKENS)
    recipe = recipes.resolve((str(folder / "recipe.toml"), recipes.read(folder / "recipe.toml")))
    tokenizer = recipe.data.words(folder)
    model = fitted(recipe, tokenizer.vocab, run_folder.read_tensors(folder / "model.safetensors"))
    return Run(folder, recipe, facts, lighten(model.to(where), precision), tokenizer)


def fitted(recipe: Recipe, vocab: Any, weights: dict[str, Tensor]) -> LanguageModel:
    """The model of a recipe with these weights; sizes are compared before anything is allocated.

    The weights are taken out of the dictionary one by one: never are all of them in memory twice.
    """
    with torch.random.fork_rng(devices=[]), run_folder.Unborn():
        with torch.device("meta"):
            run_folder.fit(recipe.build(vocab), weights)
        model: LanguageModel = recipe.build(vocab)
    with torch.no_grad():
        for name, own in run_folder.weights(model).items():
            own.copy_(weights.pop(name))
    return model
