"""Text generation with a language model: prompt ids, streamed pieces, next-token probabilities."""

from collections.abc import Iterator

import torch

from harken.decode.sampling import IncrementalDecoder, SamplingSettings
from harken.errors import BadInput
from harken.events import Listener, silent
from harken.inference.loaded_model import LoadedModel
from harken.inference.stop_sequences import StopSequence

from . import TokenProbability, check_text


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


def stream_batch(
    run: LoadedModel,
    prompts: list[list[int]],
    max_new_tokens: int,
    stop: str | None,
    sampling: SamplingSettings,
    *,
    seed: int,
    index: int,
) -> Iterator[list[str]]:
    """The new text of each continuation, token by token, until all have reached the stop sequence."""
    decoders, stops = [run.tokenizer.stream_decoder() for _ in prompts], [StopSequence(stop) for _ in prompts]
    for ids, decode in zip(prompts, decoders, strict=True):
        for token in ids:
            decode(token)
    banned_ids = run.tokenizer.special_ids
    for tokens in run.text_generator.generate(
        prompts, max_new_tokens, sampling, seed=seed, index=index, banned_ids=banned_ids
    ):
        yield [end.feed(decode(i)) for end, decode, i in zip(stops, decoders, tokens.tolist(), strict=True)]
        if all(end.done for end in stops):
            return
    yield [end.flush() for end in stops]


@torch.inference_mode()
def next_tokens(run: LoadedModel, prompt: str, k: int, listen: Listener) -> list[TokenProbability]:
    """The k most probable next tokens, <unk> included."""
    if k < 1:
        raise BadInput(f"k={k}: must be at least 1")
    p = IncrementalDecoder(run.model, [encode_prompt(run, prompt, listen)], 1).logits[0].float().softmax(-1)
    best = p.topk(min(k, len(p)))
    tokens = run.tokenizer.token_texts(best.indices.tolist())
    return [{"text": token, "probability": q} for token, q in zip(tokens, best.values.tolist(), strict=True)]
