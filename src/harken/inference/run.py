"""A loaded run: the object that `harken.load` and `harken.train` return."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, cast, overload

import numpy as np
from torch import Tensor

from harken import machine, registry, run_folder
from harken import recipe as recipes
from harken.data.tables.frame import Data, Frame
from harken.events import Listener, silent, warn, warn_of_overflow
from harken.tasks import Evaluation

from .answers import (
    Array,
    CaptionOptions,
    ClassifyOptions,
    GenerationOptions,
    Image,
    LabelScore,
    OverflowMode,
    SamplingOptions,
    SearchOptions,
    Trace,
    check_overflow,
    check_text,
    to_list,
)
from .answers.ask import Answer, Story, answer_question, answer_story
from .answers.caption import Caption, caption_images
from .answers.classify import is_single_input
from .answers.corpus import Corpus, open_corpus
from .answers.embed import EmbeddingOptions, EmbeddingSettings, NearbyWord, Vectors, embed_inputs, nearest_words
from .answers.fill import WordProbability, fill_masks
from .answers.generate import TokenProbability, generate_texts, next_tokens, stream_prompts
from .answers.rows import Prediction, RowOptions, best_label, predict_rows, typed_prediction
from .answers.score import TextScore, score_texts
from .answers.tag import TaggedSpan, tag_texts
from .answers.translate import Candidate, TranslationOptions, translations
from .answers.unknown import mark_unknown
from .chat import DEFAULT_SYSTEM_MESSAGE, Chat
from .evaluate import EvaluationOptions, evaluate_run
from .loaded_model import LoadedModel, build_model
from .prepare import prepare_inference
from .prompt import classify_by_prompt
from .trace import trace_input

Labels = list[LabelScore]  # of one input, most probable first
Classifier = Callable[..., list[Labels]]  # of a run, its inputs, and a listener; of texts also overflow


class Run(LoadedModel):
    """A trained model with its tokenizer, from `harken.load(folder)` or `harken.train(data)`.

    >>> run.verb, run.parameters > 0, sorted(run.metrics)
    ('generate', True, [...])
    >>> run.device.type, run.family.data, run.input_reader, run.is_encoder_decoder
    ('...', 'text', None, False)
    >>> run.backbone.context, run.text_tokenizer.vocab > 0
    (..., True)
    """

    # --- generate -----------------------------------------------------------------------------------------------------

    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str = ..., *, n: Literal[1] = ..., **options: Unpack[GenerationOptions]
    ) -> str: ...
    @overload
    def generate(  # type: ignore[overload-overlap]
        self, prompt: str = ..., *, n: int, **options: Unpack[GenerationOptions]
    ) -> str | list[str]: ...
    @overload
    def generate(
        self, prompt: Iterable[str], *, n: int = ..., **options: Unpack[GenerationOptions]
    ) -> list[str] | list[list[str]]: ...
    def generate(
        self, prompt: str | Iterable[str] = "", *, n: int = 1, **options: Unpack[GenerationOptions]
    ) -> str | list[str] | list[list[str]]:
        """The continuation of a prompt, or of each of a list, without the prompt; with n > 1 a list of n for each.

        Options: max_new_tokens (200), stop, temperature, top_k, top_p, seed, listen. Prompts that share a seed have
        different random streams if their `index` differs; in a list, `index` is the number of the first one.

        >>> run.generate("Tom had", max_new_tokens=5, temperature=0)
        '...'
        >>> run.generate(["Tom had", "Lily sat"], max_new_tokens=5)
        ['...', '...']
        """
        single = isinstance(prompt, str)
        texts = generate_texts(self, [prompt] if isinstance(prompt, str) else to_list(prompt, "prompt"), n, **options)
        if n == 1:
            return texts[0][0] if single else [text for (text,) in texts]
        return texts[0] if single else texts

    def stream(self, prompt: str = "", **options: Unpack[GenerationOptions]) -> Iterator[str]:
        """The continuation, piece by piece as it is generated.

        >>> "".join(run.stream("Tom had", max_new_tokens=5)) == run.generate("Tom had", max_new_tokens=5)
        True
        """
        return (piece for (piece,) in stream_prompts(self, [prompt], **options))

    def chat(
        self,
        *,
        system: str | None = DEFAULT_SYSTEM_MESSAGE,
        max_new_tokens: int = 512,
        seed: int = 0,
        listen: Listener = warn_of_overflow,
        **sampling: Unpack[SamplingOptions],
    ) -> Chat:
        """A conversation with an instruct model. Options: temperature, top_k, top_p.

        >>> "".join(run.chat(max_new_tokens=5).send("Hello"))
        '...'
        """
        return Chat(self, system=system, max_new_tokens=max_new_tokens, seed=seed, listen=listen, **sampling)

    def next(self, prompt: str, k: int = 10, *, listen: Listener = warn_of_overflow) -> list[TokenProbability]:
        """The k most probable next tokens with their probabilities.

        >>> run.next("Tom", k=1)
        [{'text': '...', 'probability': ...}]
        """
        return next_tokens(self, prompt, k, listen)

    # --- evaluate -----------------------------------------------------------------------------------------------------

    @overload
    def score(self, text: str) -> TextScore: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, text: Iterable[str]) -> list[TextScore]: ...
    def score(self, text: str | Iterable[str]) -> TextScore | list[TextScore]:
        """Of a text, or of each of a list: ln p of each word given all words before it, perplexity, unknown tokens.

        >>> run.score("Tom had a hat")["perplexity"] > 1
        True
        """
        scores = score_texts(self, [text] if isinstance(text, str) else to_list(text))
        return scores[0] if isinstance(text, str) else scores

    def evaluate(
        self, split: str | None = None, *, data: Data | None = None, **options: Unpack[EvaluationOptions]
    ) -> Evaluation:
        """The metrics, with 95 % intervals, of this model and of baselines on a split (test, else valid) or other data.

        Options: encoding of the other data; overflow="windows" reads long texts as `classify` does; listen.

        >>> run.evaluate("valid").metrics["loss"] > 0
        True
        """
        return evaluate_run(self, split, data, **options)

    # --- translate ----------------------------------------------------------------------------------------------------

    @overload
    def translate(self, text: str, **options: Unpack[TranslationOptions]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def translate(self, text: Iterable[str], **options: Unpack[TranslationOptions]) -> list[str]: ...
    def translate(self, text: str | Iterable[str], **options: Unpack[TranslationOptions]) -> str | list[str]:
        """The best target of a source, or of each of a list; `prefix` is the start of every target.

        Options: beam, length_penalty, no_repeat, max_new_tokens, temperature, top_k, top_p, seed, listen.

        >>> run.translate("Tom saw the cat.", beam=1)
        '...'
        """
        best = self.alternatives([text] if isinstance(text, str) else text, **options)
        texts = [candidates[0]["text"] for candidates in best]
        return texts[0] if isinstance(text, str) else texts

    def alternatives(self, texts: Iterable[str], **options: Unpack[TranslationOptions]) -> list[list[Candidate]]:
        """For each source the best targets with their scores (mean ln p); the option `alternatives` is their number.

        `index` is the number of the first source among those that share a seed.

        >>> [targets] = run.alternatives(["Tom saw the cat."], alternatives=2)
        >>> targets[0]["score"] >= targets[1]["score"]
        True
        """
        return translations(self, to_list(texts), **options)

    @overload
    def caption(self, image: str | Path, **search: Unpack[CaptionOptions]) -> str: ...  # type: ignore[overload-overlap]
    @overload
    def caption(self, image: Sequence[Image], **search: Unpack[CaptionOptions]) -> list[str]: ...
    @overload
    def caption(
        self, image: Image | Sequence[Image], *, index: int = ..., **search: Unpack[SearchOptions]
    ) -> Caption | list[Caption]: ...
    def caption(
        self, image: Image | Sequence[Image], *, index: int = 0, **search: Unpack[SearchOptions]
    ) -> Caption | list[Caption] | list[str]:
        """The caption of an image, or of each of a list: paths, or uint8 arrays. Options as in translate.

        >>> run.caption(image)
        '...'
        """
        single = isinstance(image, str | Path) or (isinstance(image, np.ndarray | Tensor) and image.ndim in (2, 3))
        captions = caption_images(self, cast(Sequence[Image], [image] if single else image), index=index, **search)
        return captions[0] if single else captions

    # --- labels -------------------------------------------------------------------------------------------------------

    @overload
    def classify(  # type: ignore[overload-overlap]
        self, text: str | Path | tuple[str, str], **options: Unpack[ClassifyOptions]
    ) -> Labels: ...
    @overload
    def classify(
        self, text: Iterable[str | Path | Sequence[str] | Array], **options: Unpack[ClassifyOptions]
    ) -> list[Labels]: ...
    def classify(
        self,
        text: str | Path | Iterable[str | Path | Sequence[str] | Array],
        *,
        prompt: str | None = None,
        labels: Sequence[str] = (),
        min_probability: float = 0.0,
        overflow: OverflowMode = "truncate",
        listen: Listener = warn_of_overflow,
    ) -> Labels | list[Labels]:
        """The labels of an input, or of each of a list, most probable first (for a regression target: its value).

        A pair (or several texts) is a tuple, or a string with tabs; for a BERT: does the second text follow? An image
        is a path or a uint8 array, a set an array; ["sets.csv"] are all sets of a table. A language model needs labels
        and prompt="Review: {text} Sentiment:". If no label has `min_probability`, the first is "unknown".
        overflow="windows": the mean over windows.

        >>> run.classify("a good film")[0]["label"]
        '...'
        """
        single = isinstance(text, str | Path) or is_single_input(text, self.n_texts)
        inputs: list[Any] = [text] if single else to_list(cast(Iterable[Any], text))
        check_overflow(overflow, allowed=prompt is None and self.recipe.task.kind == "classify")
        if prompt is None:
            self.require("classify")
            predict = cast(Classifier, registry.load_object(self.family.classify))
            rows = predict(self, inputs, listen, **({} if overflow == "truncate" else {"overflow": overflow}))
        else:
            rows = classify_by_prompt(self, inputs, prompt, labels, listen)
        rows = mark_unknown(rows, min_probability)
        return rows[0] if single and len(rows) == 1 else rows

    def predict(self, frame: Frame, *, listen: Listener = warn, **options: Unpack[RowOptions]) -> list[Prediction]:
        """The prediction for each row of a DataFrame (pandas, polars): a label or a number; of runs on pairs a text.

        A row without a text in the column of the training gets None, one with several labels a list; labels have the
        type of the trained column (int, bool, float, str). A warning names new columns. Options as in classify.

        >>> run.predict(frame)
        ['...', '...']
        """

        def answer(texts: list[tuple[str, ...]]) -> list[Prediction]:
            if self.verb == "translate":
                return cast(list[Prediction], self.translate([row[0] for row in texts], listen=listen))
            labels = self.classify(texts, listen=listen, **options)
            return [typed_prediction(self, best_label(self, scores)) for scores in labels]

        return predict_rows(self, frame, answer, listen, **options)

    @overload
    def tag(  # type: ignore[overload-overlap]
        self, text: str, *, min_probability: float = ..., listen: Listener = ...
    ) -> list[TaggedSpan]: ...
    @overload
    def tag(
        self, text: Iterable[str], *, min_probability: float = ..., listen: Listener = ...
    ) -> list[list[TaggedSpan]]: ...
    def tag(
        self, text: str | Iterable[str], *, min_probability: float = 0.0, listen: Listener = warn_of_overflow
    ) -> list[TaggedSpan] | list[list[TaggedSpan]]:
        """The tagged spans of a text, or of each of a list: label, text, start and end (characters), probability.

        The label of a span with a lower probability than `min_probability` is "unknown".

        >>> [span["text"] for span in run.tag("Ada lives in Rome")]
        [...]
        """
        spans = tag_texts(self, [text] if isinstance(text, str) else to_list(text), min_probability, listen)
        return spans[0] if isinstance(text, str) else spans

    def ask(
        self, question: str, context: str, *, min_probability: float = 0.0, listen: Listener = warn_of_overflow
    ) -> Answer:
        """The answer to a question, extracted from a text (with its offsets) or about a story (with its hops).

        If the probability of the answer is below `min_probability`, it is "unknown".

        >>> run.ask("Where is Mary?", "Mary went to the kitchen.")["answer"]
        '...'
        """
        self.require("ask")
        check_text(question=question, context=context)
        if self.recipe.task.kind == "answer":
            return answer_story(self, question, context, min_probability, listen)
        return answer_question(self, question, context, min_probability, listen)

    def story(self, lines: Sequence[str] = (), *, listen: Listener = warn_of_overflow) -> Story:
        """A story that grows line by line and answers questions.

        >>> run.story(["Mary went to the kitchen."]).ask("Where is Mary?")["answer"]
        '...'
        """
        return Story(self, lines, listen)

    def fill(self, text: str, k: int = 5, *, listen: Listener = silent) -> list[list[WordProbability]]:
        """For each [MASK] of a text the k most probable words, best first.

        >>> [[best]] = run.fill("Tom had a [MASK].", k=1)
        """
        return fill_masks(self, text, k, listen)

    # --- embeddings ---------------------------------------------------------------------------------------------------

    def embed(
        self,
        text: str | Path | Iterable[str | Path | Array],
        *,
        normalize: bool = True,
        listen: Listener = warn_of_overflow,
        **options: Unpack[EmbeddingOptions],
    ) -> Vectors:
        """The vector of a text, image, node, graph or set, or one row for each of a list; normalize: of length 1.

        pool: mean, cls or last (token). layer: hidden states after this many blocks; None: the model's output. word:
        the vector of a word in its context, of all its occurrences or the one with the number `occurrence`.
        overflow="windows": the mean over the overlapping windows of a text that is longer than the context.

        >>> run.embed(["Tom had a hat.", "Lily sat."]).shape
        (2, 16)
        >>> run.embed("Tom had a hat.", word="hat", layer=1).shape
        (16,)
        """
        single = isinstance(text, str | Path)
        rows: list[Any] = [text] if single else to_list(cast(Iterable[Any], text))
        vectors = embed_inputs(self, rows, EmbeddingSettings(**options), listen, normalize=normalize)
        return cast(Vectors, vectors[0]) if single and len(vectors) == 1 else vectors

    def corpus(
        self,
        path: str | Path | None = None,
        *,
        column: str | None = None,
        listen: Listener = warn_of_overflow,
        **options: Unpack[EmbeddingOptions],
    ) -> Corpus:
        """The texts of a file (of a table: a column), or other inputs, embedded for search; None: its own data.

        >>> [hit] = run.corpus("notes.txt").search("a hat", k=1)
        """
        return open_corpus(self, path, column, partial(self.embed, **options), EmbeddingSettings(**options), listen)

    def nearest(self, word: str, k: int = 10) -> list[NearbyWord]:
        """The k words of the embedding table with the highest cosine similarity to a word.

        >>> run.nearest("Tom", k=1)
        [{'word': '...', 'similarity': ...}]
        """
        return nearest_words(self, word, k)

    # --- attention ----------------------------------------------------------------------------------------------------

    def trace(self, text: Image, target: str | None = None) -> Trace:
        """Run the model on an input; attention weights are computed on demand.

        For an encoder-decoder the text is the source, and the target is generated unless given. For image models it is
        a path or a uint8 array: patches attend to each other, and the words of a caption attend to the patches.

        >>> run.trace("Tom had").attention(layer=0, head=0).shape
        torch.Size([2, 2])
        """
        return trace_input(self, text, target)


def load(path: str | Path, *, device: str = "auto", precision: str = "float32") -> Run:
    """Load a finished run from its folder; the checksum of every file is verified first.

    device: auto, cpu, cuda or cuda:N. precision: float32, bfloat16, or int8 (CPU only), which decode faster.

    >>> load(folder).generate("Tom had", max_new_tokens=5)
    '...'
    """
    folder, default_device = Path(path), "cpu" if precision == "int8" else "auto"
    torch_device = machine.pick_device(default_device if device == "auto" else device, "device")
    facts = run_folder.read_manifest(folder, "recipe.toml", "model.safetensors", *run_folder.TOKENIZER_FILES)
    recipe = recipes.resolve((str(folder / "recipe.toml"), recipes.read(folder / "recipe.toml")))
    tokenizer = recipe.data.load_processor(folder)
    model = build_model(recipe, tokenizer.vocab, run_folder.read_tensors(folder / "model.safetensors"))
    return Run(folder, recipe, facts, prepare_inference(model.to(torch_device), precision), tokenizer)
