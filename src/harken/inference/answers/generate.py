"""Text generation with a language model: prompt ids, streamed pieces, next-token probabilities."""

from collections.abc import Iterator, Sequence
from typing import TypedDict, Unpack

import torch

from harken.decode.sampling import IncrementalDecoder, SamplingSettings
from harken.events import Listener, Overflow, report_overflow, silent, warn_of_overflow
from harken.inference.loaded_model import LoadedModel

from . import GenerationOptions, SamplingOptions, check_count, check_text, check_texts

BATCH_ROWS = 32  # continuations that are generated together


class TokenProbability(TypedDict):
    """A candidate for the next token."""

    text: str
    probability: float


def encode_prompt(run: LoadedModel, prompt: str, listen: Listener = silent) -> list[int]:
    """The ids of a prompt; an empty prompt is the end-of-text token, or a line break."""
    run.require("generate")
    check_text(prompt=prompt)
    tokenizer = run.tokenizer
    if missing := tokenizer.unknown_pieces(prompt):
        pieces = [repr(piece) for piece in dict.fromkeys(missing)]
        unknown = ", ".join(pieces[:5] + ["..."] * (len(pieces) > 5))
        listen("notice", text=f"prompt: unknown to this run and read as <unk>: {unknown} ({len(missing)} in total)")
    ids = [*tokenizer.prefix_ids, *map(int, tokenizer.encode(prompt))]
    if tokenizer.kind == "word" and ids and ids[-1] == tokenizer.end_id and not prompt.endswith("\n"):
        ids.pop()  # the line of the prompt is continued
    return ids or [int(tokenizer.encode("\n")[0]) if tokenizer.end_id is None else tokenizer.end_id]


def prompt_overflow(run: LoadedModel, prompts: Sequence[Sequence[int]]) -> Overflow:
    """The prompts of which only the last tokens fit into the context."""
    words = {"inputs": "prompts", "consequence": "truncated at the start", "remedy": "give a shorter prompt"}
    return Overflow.of(list(map(len, prompts)), run.model.context, **words)


class StopSequence:
    """Truncates a text stream before the first occurrence of a stop sequence, even if it spans several pieces."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.pending, self.done = stop, "", False

    def feed(self, piece: str) -> str:
        """The text that can be shown after this piece. A possible beginning of the stop sequence is held back."""
        if not self.stop or self.done:
            return "" if self.done else piece
        text = self.pending + piece
        if self.stop in text:
            self.done, self.pending = True, ""
            return text[: text.index(self.stop)]
        lengths = range(min(len(self.stop) - 1, len(text)), 0, -1)
        n_pending = next((n for n in lengths if self.stop.startswith(text[-n:])), 0)
        self.pending = text[len(text) - n_pending :]
        return text[: len(text) - n_pending]

    def flush(self) -> str:
        """The text still held back at the end of the stream."""
        return self.pending


def generate_texts(
    run: LoadedModel, prompts: Sequence[str], n: int, **options: Unpack[GenerationOptions]
) -> list[list[str]]:
    """n continuations of each prompt, in batches; the option `index` is the number of the first prompt."""
    run.require("generate")
    check_texts(prompts, "prompt", allow_empty=True)
    first, rows, n_prompts = options.get("index", 0), list[str](), max(1, BATCH_ROWS // max(1, n))
    for start in range(0, len(prompts), n_prompts):
        options["index"] = first + start
        stream = stream_prompts(run, prompts[start : start + n_prompts], n, **options)
        rows += ["".join(pieces) for pieces in zip(*stream, strict=True)]
    return [rows[k * n : (k + 1) * n] for k in range(len(prompts))]


def stream_prompts(
    run: LoadedModel,
    prompts: Sequence[str],
    n: int = 1,
    *,
    max_new_tokens: int = 200,
    seed: int = 0,
    index: int = 0,
    stop: str | None = None,
    listen: Listener = warn_of_overflow,
    **sampling: Unpack[SamplingOptions],
) -> Iterator[list[str]]:
    """The new text of n continuations of each prompt, token by token. Arguments are checked before the first token."""
    check_count(max_new_tokens=max_new_tokens, n=n, seed=seed)
    settings = SamplingSettings.from_options(sampling)
    encoded = [encode_prompt(run, prompt, listen) for prompt in prompts]
    report_overflow(listen, prompt_overflow(run, encoded))
    rows = [ids for row in encoded for ids in [row] * n]
    return stream_batch(run, rows, max_new_tokens, stop, settings, seed=seed, index=index, n_copies=n)


def stream_batch(
    run: LoadedModel,
    prompts: list[list[int]],
    max_new_tokens: int,
    stop: str | None,
    sampling: SamplingSettings,
    *,
    seed: int = 0,
    index: int = 0,
    n_copies: int | None = None,
) -> Iterator[list[str]]:
    """The new text of each continuation, token by token, until all have reached the stop sequence."""
    tokenizer, stops = run.tokenizer, [StopSequence(stop) for _ in prompts]
    decoders = [tokenizer.stream_decoder() for _ in prompts]
    for ids, decode in zip(prompts, decoders, strict=True):
        for token in ids:
            decode(token)
    rng = {"seed": seed, "index": index, "n_copies": n_copies or len(prompts)}
    ids = tokenizer.special_ids
    for tokens in run.text_generator.generate(prompts, max_new_tokens, sampling, banned_ids=ids, **rng):
        yield [end.feed(decode(i)) for end, decode, i in zip(stops, decoders, tokens.tolist(), strict=True)]
        if all(end.done for end in stops):
            return
    yield [end.flush() for end in stops]


@torch.inference_mode()
def next_tokens(run: LoadedModel, prompt: str, k: int, listen: Listener) -> list[TokenProbability]:
    """The k most probable next tokens, <unk> included."""
    check_count(1, k=k)
    ids = encode_prompt(run, prompt, listen)
    report_overflow(listen, prompt_overflow(run, [ids]))
    p = IncrementalDecoder(run.model, [ids], 1).logits[0].float().softmax(-1)
    best = p.topk(min(k, len(p)))
    tokens = run.tokenizer.token_texts(best.indices.tolist())
    return [{"text": token, "probability": q} for token, q in zip(tokens, best.values.tolist(), strict=True)]
