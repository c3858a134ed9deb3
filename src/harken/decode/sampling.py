"""Token-by-token generation with a language model. A memory (KV cache or state) holds the tokens that were read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real

import torch
from torch import Tensor

from harken.errors import BadInput
from harken.models import LanguageModel
from harken.suggestions import reject_unknown_options

from .counter_rng import row_seeds, uniform
from .cuda_graph import (
    MIN_STEPS,
    CapturedDecodeLoop,
    DecodeSession,
    Prefill,
    can_capture,
    has_repeatable_steps,
    weights_key,
)

ModelCall = Callable[..., Tensor]
Sessions = dict[tuple[int, int], DecodeSession]  # by rows and capacity
MAX_SESSIONS = 4
PROMPT_MULTIPLE = 32  # on a GPU prompts are padded to a multiple of this many tokens
CAPACITY_MULTIPLE = 64  # a memory has room for a multiple of this many tokens
LOOKUP_TOKENS = 2  # guessed tokens read with the last one: on a CPU a product of three rows costs as much as one row
MIN_TEMPERATURE = 1e-4  # below it sampling is greedy; dividing the logits by it could overflow


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is sampled. The defaults are those of `Run.generate` and of `harken generate`."""

    temperature: float = 0.8
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        temperature, k, p = self.temperature, self.top_k, self.top_p
        if not (isinstance(temperature, Real) and 0 <= temperature < float("inf")):
            raise BadInput(f"temperature={temperature!r}: must be a finite number ≥ 0; 0 is greedy, 0.8 is usual")
        if k is not None and not (isinstance(k, Integral) and k >= 1):
            raise BadInput(f"top_k={k!r}: must be an integer ≥ 1; set it to 1 for greedy decoding")
        if p is not None and not (isinstance(p, Real) and 0 < p <= 1):
            raise BadInput(f"top_p={p!r}: must be > 0 and ≤ 1; 0.9 is usual")

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> "SamplingSettings":
        """The settings with these options; an unknown name raises BadInput."""
        reject_unknown_options(options, [field.name for field in fields(cls)])
        return cls(**options)  # type: ignore[arg-type]

    def filter_logits(self, logits: Tensor) -> Tensor:
        """The logits with all tokens outside top-k and top-p set to -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            threshold = logits.topk(self.top_k, -1).values[..., -1:]
            logits = logits.masked_fill(logits < threshold, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            ordered, index = logits.sort(-1, descending=True)
            p = ordered.softmax(-1)
            outside = p.cumsum(-1) - p >= self.top_p  # the token that crosses the threshold stays
            logits = logits.masked_fill(outside.scatter(-1, index, outside), -torch.inf)
        return logits

    def sample(self, logits: Tensor, seeds: Tensor, n: Tensor) -> Tensor:
        """The n-th token of each row: B. Each row has its own seed, so it does not depend on the rest of the batch."""
        if self.temperature < MIN_TEMPERATURE:
            return logits.argmax(-1)
        logits = self.filter_logits(logits.float() / self.temperature)
        # Gumbel-max trick: equal to sampling from softmax(logits)
        return (logits - (-uniform(seeds, n, logits.shape[-1]).log()).log()).argmax(-1)


class TextGenerator:
    """Generates text with a model. Memories and captured graphs are reused by later texts of the same size.

    `lookup`: a single text on a CPU is continued with prompt-lookup decoding.
    """

    def __init__(self, model: LanguageModel, *, compiled: bool = False, lookup: bool = True) -> None:
        self.model, self.sessions, self.weights = model, Sessions(), tuple[object, ...]()
        self.lookup = lookup
        self.call: ModelCall = model.scores
        if compiled:  # the compiler turns products of one row into sums and fuses them
            self.call = torch.compile(model.scores, dynamic=False, options={"coordinate_descent_tuning": True})

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        n_tokens: int,
        sampling: SamplingSettings,
        *,
        seed: int,
        index: int = 0,
        n_copies: int | None = None,
        banned_ids: Sequence[int] = (),
    ) -> Iterator[Tensor]:
        """Yield the tokens after the prompts, one per row (B) at a time. Prompts may differ in length.

        Each `n_copies` rows (None: all) are copies of one prompt; `index` numbers the first of these prompts.
        """
        texts = [list(p) for p in prompts]
        if can_capture(self.model) and self.weights != (weights := weights_key(self.model)):
            self.weights, self.sessions = weights, Sessions()
        decoder = IncrementalDecoder(self.model, texts, n_tokens, call=self.call, sessions=self.sessions)
        copies = n_copies or len(texts)
        parts = [row_seeds(seed, index + k, copies) for k in range(len(texts) // copies)]
        seeds, banned = torch.cat(parts), torch.tensor(banned_ids, dtype=torch.long)
        sampler = TokenSampler(sampling, tuple(banned_ids), banned.to(decoder.device))
        try:
            single = len(texts) == 1 and decoder.device.type == "cpu" and has_repeatable_steps(self.model)
            lookup = PromptLookup() if single and self.lookup else None
            for token in decoder.generate(texts, n_tokens, seeds.to(decoder.device), sampler, lookup):
                for text, token_id in zip(texts, token.tolist(), strict=True):
                    text.append(token_id)
                yield token
        finally:
            decoder.release()


@dataclass(frozen=True)
class TokenSampler:
    """Samples among all tokens except the banned ones."""

    sampling: SamplingSettings
    banned_ids: tuple[int, ...]
    banned: Tensor = field(compare=False)  # the same ids on the device of the logits

    def __call__(self, logits: Tensor, seeds: Tensor, n: Tensor) -> Tensor:
        logits = logits.index_fill(-1, self.banned, -torch.inf) if self.banned_ids else logits
        return self.sampling.sample(logits, seeds, n)


class IncrementalDecoder:
    """A model with the memory of the texts it has read, and the logits of their next tokens."""

    def __init__(
        self,
        model: LanguageModel,
        texts: Sequence[Sequence[int]],
        n_tokens: int,
        *,
        call: ModelCall | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.model, self.device, self.n_tokens = model, next(model.parameters()).device, n_tokens
        self.call, self.session = call or model.scores, DecodeSession(None)
        self.sessions = sessions if can_capture(model) else None
        self.context = model.context
        self.starts = [0 if self.context is None else max(0, len(t) - self.context) for t in texts]
        self._prefill(texts)

    def _prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Read all texts at once, right-padded; the causal mask hides what the padding writes."""
        texts = [t[start:] for t, start in zip(texts, self.starts, strict=True)]
        self.lengths = [len(t) for t in texts]
        longest = max(self.lengths)
        # few different sizes, so that compiled code and captured graphs are reused
        capacity = -(-(longest + self.n_tokens) // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
        self.capacity = capacity if self.context is None else min(self.context, capacity)
        padded = -(-longest // PROMPT_MULTIPLE) * PROMPT_MULTIPLE
        width = longest if self.sessions is None else min(self.capacity, padded)
        rows = torch.zeros(len(texts), width, dtype=torch.long, device=self.device)
        for row, text in zip(rows, texts, strict=True):
            row[: len(text)] = torch.tensor(text, device=self.device)
        self.release()
        self.size = len(texts), self.capacity
        session = None if self.sessions is None else self.sessions.pop(self.size, None)
        self.session = session or DecodeSession(self.model.memory(*self.size))
        self.memory = self.session.memory
        lengths, same_length = torch.tensor(self.lengths, device=self.device), min(self.lengths) == longest
        # rows of equal length share their positions: one number instead of one per row
        self.position = lengths[:1] if same_length else lengths[:, None]
        if self.sessions is not None:
            self.logits = self.session.get(width, Prefill(self.model, self.memory))(rows, lengths)
            return
        ends = None if same_length else lengths
        h = self.model(rows, pos=torch.arange(longest, device=self.device), memory=self.memory, lengths=ends)
        self.logits = self.model.logits(h[torch.arange(len(rows), device=self.device), lengths - 1])

    def release(self) -> None:
        """Return memory and graphs to the pool for the next texts of this size."""
        if self.sessions is not None and self.session.memory is not None:
            self.sessions[self.size] = self.session
            while len(self.sessions) > MAX_SESSIONS:
                self.sessions.pop(next(iter(self.sessions)))

    def read(self, texts: Sequence[Sequence[int]], tokens: Tensor) -> None:
        """Read the last token of each text and optional guesses after it: B 1+guesses.

        When the context is full, its last half is read again into an empty memory.
        """
        if self.context is not None and max(self.lengths) >= self.capacity:
            half = max(1, self.context // 2)
            for row, (text, length) in enumerate(zip(texts, self.lengths, strict=True)):
                if length >= self.capacity:
                    self.starts[row] = len(text) - half
            self._prefill(texts)
            return
        positions = self.position + torch.arange(tokens.shape[1], device=self.device)
        self.logits = self.call(tokens, pos=positions, memory=self.memory).flatten(0, 1)
        self._advance(1)

    def _advance(self, n_tokens: int) -> None:
        self.position, self.lengths = self.position + n_tokens, [length + n_tokens for length in self.lengths]

    def generate(
        self,
        texts: Sequence[Sequence[int]],
        n_tokens: int,
        seeds: Tensor,
        sampler: TokenSampler,
        lookup: "PromptLookup | None" = None,
    ) -> Iterator[Tensor]:
        """Yield one token per row (B) at a time; long stretches replay a captured graph.

        With `lookup` a single text is read together with guesses of its next tokens: sampled tokens that equal their
        guess need no further model call.
        """
        n, guesses = 0, list[int]()
        while n < n_tokens:
            sampled = sampler(self.logits, seeds, n + torch.arange(1 + len(guesses), device=self.device))
            if guesses:
                correct = [g == t for g, t in zip(guesses, sampled.tolist(), strict=False)] + [False]
                sampled = sampled[: correct.index(False) + 1]
                self._advance(len(sampled) - 1)
            for token in sampled.split(len(texts)):
                yield token
            n += len(sampled) // len(texts)
            n_steps = min(n_tokens - n, self.capacity - max(self.lengths))
            if n_steps >= MIN_STEPS and self.sessions is not None:
                new_loop = CapturedDecodeLoop(self.call, self.memory, sampler)
                loop = self.session.get((sampler, self.position.shape), new_loop)
                loop.start(token, self.position, torch.tensor(n, device=self.device), seeds)
                yield from loop.replay(n_steps)
                n, token, self.position = n + n_steps, loop.token.clone(), loop.position.clone()
                self.lengths = [length + n_steps for length in self.lengths]
            if n < n_tokens:
                guesses = lookup(texts[0]) if lookup and n_steps > LOOKUP_TOKENS else []
                self.read(texts, torch.cat([token, token.new_tensor(guesses)]).view(len(texts), -1))


class PromptLookup:
    """Prompt-lookup decoding: guesses the tokens that followed the last occurrence of the text's last two tokens."""

    def __init__(self) -> None:
        self.follower: dict[tuple[int, int], int] = {}  # token pair -> index of the token after its last occurrence
        self.n_indexed = 2

    def __call__(self, text: Sequence[int]) -> list[int]:
        """The guessed next tokens; empty without an earlier occurrence."""
        for end in range(self.n_indexed, len(text)):
            self.follower[text[end - 2], text[end - 1]] = end
        self.n_indexed = max(2, len(text))
        start = self.follower.get((text[-2], text[-1])) if len(text) > 1 else None
        return [] if start is None else [text[start + i % (len(text) - start)] for i in range(LOOKUP_TOKENS)]
