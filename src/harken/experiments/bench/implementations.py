"""Who is measured by a bench: harken in some precisions and its peer, and the ceiling each of them is held against.

Training is held against a large matrix product, in FLOP/s. Writing is held against reading as many bytes as the weights
are, since each step reads all of them once. Weights and tokens are random: all of the work, nothing to learn.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.decode.sampling import Choice, Writer
from harken.events import Listener
from harken.inference.prepare import lighten
from harken.models import LanguageModel
from harken.models.gpt import Shape
from harken.tasks import Learning, Loss
from harken.tasks.next_word import nll
from harken.training import cost
from harken.training.cuda_graph import WARM
from harken.training.loop import Trainer
from harken.training.settings import Train

from . import transformers_gpt2

VOCAB = 50_257  # GPT-2's
PROMPT = 32  # tokens read before the first is written
FAR = 10**9  # steps of a training without an end
REPEAT = 10  # how often a ceiling's work is done in one turn
SIDE = {"cuda": 8192, "cpu": 1024}  # of the product's matrices
Turn = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    device: torch.device
    shape: Shape
    batch: int
    tokens: int  # of each row in one turn
    rounds: int
    precisions: tuple[str, ...]
    compiled: bool


@dataclass(frozen=True, eq=False)
class Ceiling:
    """What the machine can do at most: the same work done in one or several ways, of which the fastest counts."""

    unit: str
    work: float  # of one turn
    ways: Sequence[Turn]


@dataclass(frozen=True, eq=False)
class Contender:
    """Who takes turns, and what each of its tokens needs from the ceiling."""

    name: str
    precision: str
    turn: Turn
    tokens: int  # of one turn
    need: float
    ceiling: Ceiling
    facts: Mapping[str, Any]


@contextmanager
def _settling(who: str, plan: Plan, listen: Listener, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """Notes what it takes until a contender is ready for its turns: seconds and, on a GPU, the highest memory."""
    facts: dict[str, Any] = {"compiled": compiled, "memory_mib": None}
    gpu, before, begin = plan.device.type == "cuda", cost.held(plan.device), time.perf_counter()
    cost.forget_peak(plan.device)
    yield facts
    machine.wait(plan.device)
    facts["setup_seconds"] = time.perf_counter() - begin
    if gpu:
        facts["memory_mib"] = (cost.peak(plan.device) - before) / 2**20
        torch.cuda.empty_cache()
    listen("settled", who=who, seconds=facts["setup_seconds"])


def _repeated(once: Turn, times: int) -> Turn:
    def turn() -> None:
        for _ in range(times):
            once()

    return turn


# --- training ---------------------------------------------------------------------------------------------------------


class Noise:
    """Next-word prediction on random tokens."""

    steps, splits = FAR, ()

    def __init__(self, rows: int, L: int) -> None:
        self.tokens = rows * L
        self.batches = [torch.randint(VOCAB, (rows, L + 1)) for _ in range(4)]

    def batch(self, epoch: int, step: int) -> Batch:
        made = self.batches[step % len(self.batches)]
        return Batch(made[:, :-1], made[:, 1:])

    def loss(self, model: LanguageModel, batch: Batch, start: int = 0) -> Loss:
        return Loss(nll(model, batch)[0])

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """There is none."""


def training(plan: Plan, listen: Listener) -> list[Contender]:
    """Updates by AdamW: harken in each precision, the peer in the first of them."""
    noise, need = Noise(plan.batch, plan.shape.context), flops(plan.shape)
    steps = max(1, plan.tokens // plan.shape.context)
    tops = {precision: product(machine.PRECISIONS[precision], plan.device) for precision in plan.precisions}

    def ours(train: Train) -> Turn:
        trainer = Trainer(plan.shape.build(VOCAB), cast(Learning, noise), train, listen=listen)
        trainer.model.train()
        return lambda: trainer.update(FAR, read=False)

    def theirs(train: Train) -> Turn:
        return transformers_gpt2.learning(transformers_gpt2.build(plan.shape, VOCAB), noise.batch, train)

    def contender(name: str, precision: str, make: Callable[[Train], Turn]) -> Contender:
        where = {"device": str(plan.device), "precision": precision, "compile": "yes" if plan.compiled else "no"}
        with _settling(f"{name}, {precision}", plan, listen, compiled=plan.compiled) as facts:
            step = make(Train.model_validate({"steps": FAR, "batch": plan.batch, "lr": 1e-4, **where}))
            for _ in range(WARM + 2 if plan.device.type == "cuda" else 1):
                step()
        return Contender(name, precision, _repeated(step, steps), steps * noise.tokens, need, tops[precision], facts)

    found = [contender("harken", precision, ours) for precision in plan.precisions]
    return (
        [*found, contender(transformers_gpt2.NAME, plan.precisions[0], theirs)] if transformers_gpt2.there() else found
    )


def flops(shape: Shape) -> float:
    """FLOPs of a token's matrix products, forward and backward, with the whole square of the attention.

    They are counted on tensors without numbers: nothing is computed.
    """
    with torch.device("meta"):
        model, tokens = shape.build(VOCAB), torch.zeros(1, shape.context, dtype=torch.long)
    return cost.flops_per_token(model, lambda: model.scores(tokens).sum().backward(), shape.context)


def product(dtype: torch.dtype, device: torch.device) -> Ceiling:
    """The FLOP/s of a large product of random matrices."""
    n = SIDE[device.type]
    A, B = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return Ceiling("FLOP/s", REPEAT * 2 * n**3, [_repeated(lambda: A @ B, REPEAT)])


# --- writing ----------------------------------------------------------------------------------------------------------


def decoding(plan: Plan, listen: Listener) -> list[Contender]:
    """Greedy texts by one model: harken in each precision, the peer in the first that is not int8.

    A row says what share of its tokens is that of harken in float32; harken's, by how much scores differ at most.
    """
    many, prompt = plan.batch * plan.tokens, torch.randint(VOCAB, (plan.batch, PROMPT))
    plain, rival = (
        plan.shape.build(VOCAB).eval(),
        transformers_gpt2.build(plan.shape, VOCAB) if transformers_gpt2.there() else None,
    )
    if rival is not None:
        transformers_gpt2.give(rival, plain)
    text = _writing(Writer(plain.to(plan.device)), prompt, plan.tokens)()
    whole = torch.cat([prompt, text], 1)[:1].to(plan.device)
    tops: dict[str, tuple[float, Ceiling]] = {}
    found = []

    def below(precision: str, model: nn.Module) -> tuple[float, Ceiling]:
        if precision not in tops:
            size = weight_bytes(model)
            tops[precision] = size / plan.batch, reading(size, plan.device)
        return tops[precision]

    for precision in plan.precisions:
        with _settling(f"harken, {precision}", plan, listen, compiled=plan.compiled) as facts:
            model = lighten(deepcopy(plain), precision)
            turn = _writing(Writer(model, compiled=plan.compiled), prompt, plan.tokens)
            made = turn()
        facts |= {"same_tokens": _same(made, text), "logit_difference": difference(model, plain, whole)}
        found.append(Contender("harken", precision, turn, many, *below(precision, model), facts))
    if rival is not None:
        precision = next((p for p in plan.precisions if p != "int8"), "float32")
        with _settling(f"{transformers_gpt2.NAME}, {precision}", plan, listen, compiled=False) as facts:
            turn = transformers_gpt2.writing(rival.to(plan.device, machine.PRECISIONS[precision]), prompt, plan.tokens)
            facts["same_tokens"] = _same(turn(), text)
        found.append(Contender(transformers_gpt2.NAME, precision, turn, many, *below(precision, plain), facts))
    return found


def _writing(writer: Writer, prompt: Tensor, tokens: int) -> Callable[[], Tensor]:
    def turn() -> Tensor:
        made = writer.write(prompt.tolist(), tokens, Choice(temperature=0), seed=0)
        return torch.stack([token.cpu() for token in made], 1)

    return turn


def _same(made: Tensor, text: Tensor) -> float:
    return float((made == text).float().mean())


@torch.inference_mode()
def difference(light: LanguageModel, plain: LanguageModel, text: Tensor) -> float:
    """By how much the scores of two models for this text (B L) differ at most."""
    one, other = (model.scores(text).float() for model in (light, plain))
    return float((one - other).abs().max())


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that a step reads: all but tables, of which it reads a row. What it remembers is not counted."""
    read: dict[int, int] = {}  # by where they lie: q, k and v are views of what they share
    for part in model.modules():
        if not isinstance(part, nn.Embedding):
            own = [t.untyped_storage() for t in (*part.parameters(recurse=False), *part.buffers(recurse=False))]
            read |= {stored.data_ptr(): stored.nbytes() for stored in own}
    return sum(read.values())


def reading(size: int, device: torch.device) -> Ceiling:
    """The bytes per second of reading so many again and again; a cache helps as much as it helps with the weights."""
    W, x = torch.ones(max(1, size // 4096), 1024, device=device), torch.ones(1024, device=device)
    return Ceiling("B/s", REPEAT * W.nbytes, [_repeated(W.sum, REPEAT), _repeated(lambda: W @ x, REPEAT)])
