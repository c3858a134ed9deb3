"""The implementations that a bench measures, harken and its peers, and the ceiling of the machine for each.

The ceiling of training is a large matrix product, in FLOP/s. The ceiling of decoding is reading as many bytes as the
weights have, because each step reads all of them once. Weights and tokens are random.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harken import machine
from harken.data.batch import Batch
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.events import Listener
from harken.inference.int8 import Int8Linear
from harken.inference.prepare import prepare_inference
from harken.models import LanguageModel
from harken.tasks import Loss, Task
from harken.tasks.next_word import nll
from harken.training import cost
from harken.training.loop import Trainer
from harken.training.settings import Train
from harken.training.step import WARMUP_STEPS

from .peers import PEERS, Generation
from .plan import PROMPT, BenchPlan

OURS = "harken"
UNLIMITED = 10**9  # steps
REPEAT = 10  # repetitions of a ceiling's work in one turn
MATRIX_SIZE = {"cuda": 8192, "cpu": 1024}
Turn = Callable[[], Any]


@dataclass(frozen=True, eq=False)
class Ceiling:
    """The most the machine can do: the same work in one or several variants, of which the fastest counts."""

    unit: str
    work: float  # per turn
    variants: Sequence[Turn]


@dataclass(frozen=True, eq=False)
class Implementation:
    """A measured implementation, and the work of its ceiling per token."""

    name: str
    precision: str
    turn: Turn
    tokens: int  # per turn
    need: float
    ceiling: Ceiling
    facts: Mapping[str, Any]


@contextmanager
def _measure_setup(name: str, plan: BenchPlan, listen: Listener, *, compiled: bool) -> Iterator[dict[str, Any]]:
    """The seconds of the setup inside and, on a GPU, its peak memory."""
    facts: dict[str, Any] = {"compiled": compiled, "memory_mib": None}
    gpu, before, start = plan.device.type == "cuda", cost.allocated_memory(plan.device), time.perf_counter()
    cost.reset_peak_memory(plan.device)
    yield facts
    machine.synchronize(plan.device)
    facts["setup_seconds"] = time.perf_counter() - start
    if gpu:
        facts["memory_mib"] = (cost.peak_memory(plan.device) - before) / 2**20
        torch.cuda.empty_cache()
    listen("setup_end", who=name, seconds=facts["setup_seconds"])


def _repeated(once: Turn, times: int) -> Turn:
    def turn() -> None:
        for _ in range(times):
            once()

    return turn


# --- training ---------------------------------------------------------------------------------------------------------


class RandomTokens(Task[Any, Any, LanguageModel, Batch]):
    """Next-token prediction on random tokens."""

    steps, splits = UNLIMITED, ()

    def __init__(self, vocab: int, rows: int, L: int) -> None:
        self.tokens_per_batch = rows * L
        self.token_rows = [torch.randint(vocab, (rows, L + 1)) for _ in range(4)]

    def batch(self, epoch: int, step: int) -> Batch:
        tokens = self.token_rows[step % len(self.token_rows)]
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, model: LanguageModel, batch: Batch, start: int = 0) -> Loss:
        return Loss(nll(model, batch)[0])


def training_implementations(plan: BenchPlan, listen: Listener) -> list[Implementation]:
    """Updates: harken with AdamW in each precision and with Muon in the first, peers with AdamW in the first."""
    task, need = RandomTokens(plan.vocab, plan.batch, plan.settings.context), flops(plan)
    steps = max(1, plan.tokens // plan.settings.context)
    ceilings = {precision: matmul_ceiling(machine.PRECISIONS[precision], plan.device) for precision in plan.precisions}

    def harken_step(train: Train) -> Turn:
        trainer = Trainer(plan.settings.build(plan.vocab), task, train, listen=listen)
        trainer.model.train()
        return lambda: trainer.update(UNLIMITED, read=False)

    def implementation(name: str, precision: str, optimizer: str, make_step: Callable[[Train], Turn]) -> Implementation:
        options = {"device": str(plan.device), "precision": precision, "compile": "yes" if plan.compiled else "no"}
        options |= {"optimizer": optimizer}
        with _measure_setup(f"{name}, {precision}, {optimizer}", plan, listen, compiled=plan.compiled) as facts:
            step = make_step(Train.model_validate({"steps": UNLIMITED, "batch": plan.batch, "lr": 1e-4, **options}))
            for _ in range(WARMUP_STEPS + 2 if plan.device.type == "cuda" else 1):
                step()
        facts["optimizer"] = optimizer
        turn, tokens = _repeated(step, steps), steps * task.tokens_per_batch
        return Implementation(name, precision, turn, tokens, need, ceilings[precision], facts)

    first = plan.precisions[0]
    variants = [*((precision, "adamw") for precision in plan.precisions), (first, "muon")]
    implementations = [implementation(OURS, precision, optimizer, harken_step) for precision, optimizer in variants]
    for peer in PEERS:
        if peer.train_step is not None and peer.is_installed:
            peer_step = partial(peer.train_step, plan, task.batch)
            implementations.append(implementation(peer.name, first, "adamw", peer_step))
    return implementations


def flops(plan: BenchPlan) -> float:
    """FLOPs per token of the matrix products, forward and backward, with the full square of the attention."""
    context = plan.settings.context
    with torch.device("meta"):  # nothing is computed
        model, tokens = plan.settings.build(plan.vocab), torch.zeros(1, context, dtype=torch.long)
    return cost.flops_per_token(model, lambda: model.scores(tokens).sum().backward(), context)


def matmul_ceiling(dtype: torch.dtype, device: torch.device) -> Ceiling:
    """The FLOP/s of a large product of random matrices."""
    n = MATRIX_SIZE[device.type]
    A, B = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return Ceiling("FLOP/s", REPEAT * 2 * n**3, [_repeated(lambda: A @ B, REPEAT)])


# --- decoding ---------------------------------------------------------------------------------------------------------


def decoding_implementations(plan: BenchPlan, listen: Listener) -> list[Implementation]:
    """Greedy decoding: harken in each precision, peers with the same weights in those that they have.

    A row has the fraction of tokens equal to harken's in float32; a row of harken also the largest logit difference.
    """
    n_tokens, prompt = plan.batch * plan.tokens, torch.randint(plan.vocab, (plan.batch, PROMPT))
    float_model = plan.settings.build(plan.vocab).eval()
    expected = _generation(TextGenerator(float_model.to(plan.device)), prompt, plan.tokens)()
    sequence = torch.cat([prompt, expected], 1)[:1].to(plan.device)
    ceilings: dict[str, tuple[float, Ceiling]] = {}
    implementations = []

    def ceiling(precision: str, model: nn.Module) -> tuple[float, Ceiling]:
        if precision not in ceilings:
            size = weight_bytes(model)
            ceilings[precision] = size / plan.batch, bandwidth_ceiling(size, plan.device)
        return ceilings[precision]

    for precision in plan.precisions:
        with _measure_setup(f"{OURS}, {precision}", plan, listen, compiled=plan.compiled) as facts:
            model = prepare_inference(deepcopy(float_model), precision)
            turn = _generation(TextGenerator(model, compiled=plan.compiled), prompt, plan.tokens)
            tokens = turn()
        facts["same_tokens"] = float((tokens == expected).float().mean())
        facts["logit_difference"] = max_logit_difference(model, float_model, sequence)
        implementations.append(Implementation(OURS, precision, turn, n_tokens, *ceiling(precision, model), facts))
    for name, precision, generation in _peer_generations(plan):
        try:
            with _measure_setup(f"{name}, {precision}", plan, listen, compiled=False) as facts:
                turn = generation(float_model, plan, precision, prompt)
                facts["same_tokens"] = float((turn() == expected).float().mean())
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # such as a library of the GPU that CTranslate2 does not find
            listen("notice", text=f"{name}, {precision}: does not run on this machine: {str(error).splitlines()[0]}")
            continue
        limits = ceiling(precision, float_model)
        implementations.append(Implementation(name, precision, turn, n_tokens, *limits, facts))
    return implementations


def _peer_generations(plan: BenchPlan) -> Iterator[tuple[str, str, Generation]]:
    """The name, precision and function of each installed peer that generates."""
    for peer in PEERS:
        if peer.generation is not None and peer.is_installed:
            for precision in peer.decode_precisions(plan):
                yield peer.name, precision, peer.generation


def _generation(generator: TextGenerator, prompt: Tensor, tokens: int) -> Callable[[], Tensor]:
    def turn() -> Tensor:
        steps = generator.generate(prompt.tolist(), tokens, SamplingSettings(temperature=0), seed=0)
        return torch.stack([token.cpu() for token in steps], 1)

    return turn


@torch.inference_mode()
def max_logit_difference(quantized: LanguageModel, model: LanguageModel, tokens: Tensor) -> float:
    """The largest difference between the logits of two models for these tokens (B L)."""
    a, b = (m.scores(tokens).float() for m in (quantized, model))
    return float((a - b).abs().max())


def weight_bytes(model: nn.Module) -> int:
    """Bytes of weights that a decoding step reads: all but embedding tables, of which it reads a row, and the cache."""
    sizes: dict[int, int] = {}  # by address: q, k and v are views of one tensor
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
            sizes |= {(storage := t.untyped_storage()).data_ptr(): storage.nbytes() for t in tensors}
        if isinstance(module, Int8Linear):
            sizes[id(module)] = module.weight_int8.shape.numel()
    return sum(sizes.values())


def bandwidth_ceiling(size: int, device: torch.device) -> Ceiling:
    """The bytes per second of repeatedly reading this many bytes; caches help as they do with the weights."""
    W, x = torch.ones(max(1, size // 4096), 1024, device=device), torch.ones(1024, device=device)
    return Ceiling("B/s", REPEAT * W.nbytes, [_repeated(W.sum, REPEAT), _repeated(lambda: W @ x, REPEAT)])


BENCHES = {"train": training_implementations, "decode": decoding_implementations}
