"""BigBird's blocks compared with block_sparse of transformers and dense attention: forward and backward, interleaved.

    python benchmarks/bigbird.py                        4096 16384 65536 on a GPU; 1024 2048 4096 8192 on a CPU
    python benchmarks/bigbird.py 1024 2048 --rounds 5
    python benchmarks/bigbird.py --only attention       one attention layer instead of a model

First, values and gradients of the blocks are compared with the dense mask, in float64. Then encoders of one size are
timed for each length (random tokens, random weights, no dropout, no head): harken with structure = bigbird,
BigBirdModel of transformers with block_sparse, and harken with full attention (PyTorch's dense kernel). All have blocks
of 64 words: 3 window blocks, 3 random and 2 global. harken is also timed with blocks of 128 (3 window blocks, 1 random,
1 global), which suit the GPU kernel and cover 640 words instead of 512. Then one attention layer is timed. Each JSON
line has the median and range of the turns, tokens per second, the ratio to transformers and to dense attention, and the
memory: the peak on a GPU, the tensors saved for the backward pass on a CPU. The last lines show how the time grows with
the length.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from harken import machine
from harken.core import FULL, ScaledDot, Structure, attend, bigbird, explicit
from harken.core.backends.blocks import blockwise
from harken.models.bert import BERTSettings

VOCAB = 1000
BLOCKS = {
    "harken bigbird": {"block_size": 64, "window_blocks": 1, "global_blocks": 2, "random_blocks": 3},
    "harken bigbird, 128": {"block_size": 128, "window_blocks": 1, "global_blocks": 1, "random_blocks": 1},
}
Turn = Callable[[], None]


def block_structure(L: int, block_size: int, window_blocks: int, global_blocks: int, random_blocks: int) -> Structure:
    return blockwise(bigbird(-(-L // block_size), window_blocks, global_blocks, random_blocks), block_size)


def proof(L: int, device: torch.device) -> dict[str, Any]:
    """Return the largest difference between the blocks and the dense mask."""
    structure, D = block_structure(L, 64, 1, 2, 3), 64
    layout = structure.layout(1, L, L, device)
    q, k, v, grad = (torch.randn(1, 2, L, D, dtype=torch.float64, device=device) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    gaps = []
    for kind in (torch.float64, torch.float32):
        outputs = []
        for route in (partial(attend, structure=layout), partial(explicit, layout=layout)):
            copies = [x.detach().to(kind).requires_grad_() for x in inputs]
            o = route(*copies, ScaledDot(D))
            outputs.append((o, *torch.autograd.grad((o * grad.to(kind)).sum(), copies)))
        gaps.append(max(float((a - b).detach().abs().max()) for a, b in zip(*outputs, strict=True)))
    return {"proof": "blocks against the dense mask", "L": L, "float64": gaps[0], "float32": gaps[1]}


# --- implementations --------------------------------------------------------------------------------------------------


def build_transformers(options: argparse.Namespace, L: int) -> torch.nn.Module:
    config = transformers.BigBirdConfig(
        vocab_size=VOCAB,
        hidden_size=options.d,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.d,
        max_position_embeddings=L,
        attention_type="block_sparse",
        block_size=64,
        num_random_blocks=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BigBirdModel(config, add_pooling_layer=False)


def models(options: argparse.Namespace, L: int, device: torch.device, kind: torch.dtype) -> dict[str, Turn]:
    """Return a forward and backward pass of each encoder."""
    shape = {"d": options.d, "layers": options.layers, "heads": options.heads, "context": L, "dropout": 0.0}
    plain = {"activation": "gelu-tanh", "pooler": False, "nsp_head": False, "mlm_head": False}
    encoders = {
        name: BERTSettings(**shape, **plain, structure="bigbird", **how).build(VOCAB) for name, how in BLOCKS.items()
    }
    encoders |= {
        "transformers block_sparse": build_transformers(options, L),
        "harken dense": BERTSettings(**shape, **plain).build(VOCAB),
    }
    tokens = torch.randint(VOCAB, (options.batch, L), device=device)

    def turn(model: torch.nn.Module) -> None:
        model.zero_grad(set_to_none=True)
        h = model(tokens)
        (h if isinstance(h, Tensor) else h.last_hidden_state).float().square().mean().backward()

    return {name: partial(turn, model.to(device, kind).train()) for name, model in encoders.items()}


def attentions(options: argparse.Namespace, L: int, device: torch.device, kind: torch.dtype) -> dict[str, Turn]:
    """Return a forward and backward pass of one attention layer per structure."""
    H, D = options.heads, options.d // options.heads
    q, k, v = (torch.randn(options.batch, H, L, D, device=device, dtype=kind, requires_grad=True) for _ in range(3))
    grad = torch.randn_like(q)

    def turn(structure: Structure) -> None:
        attend(q, k, v, ScaledDot(D), structure).backward(grad)

    known = {name: block_structure(L, **how) for name, how in BLOCKS.items()} | {"harken dense": FULL}
    return {name: partial(turn, structure) for name, structure in known.items()}


# --- turns ------------------------------------------------------------------------------------------------------------


def memory(turn: Turn, device: torch.device) -> int:
    """Return bytes: the peak of a turn on a GPU, otherwise the tensors saved for the backward pass."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        turn()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    saved: dict[int, int] = {}

    def record(x: Tensor) -> Tensor:
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        turn()
    return sum(saved.values())


def time_turns(turns: dict[str, Turn], facts: dict[str, Any], device: torch.device, rounds: int) -> dict[str, float]:
    """Print a row per implementation for one length; return the median seconds."""
    bytes_, seconds = dict[str, int](), dict[str, list[float]]()
    for name, turn in turns.items():
        try:  # warm-up: kernels are selected and code is compiled; implementations without enough memory are skipped
            turn()
            bytes_[name] = memory(turn, device)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            print(json.dumps({**facts, "name": name, "failed": "out of memory"}), flush=True)
    for _ in range(rounds):
        for name in bytes_:
            machine.synchronize(device)
            start = time.perf_counter()
            turns[name]()
            machine.synchronize(device)
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    for name, times in seconds.items():
        row = {**facts, "name": name, "ms": round(1e3 * medians[name], 2)}
        row |= {"spread_ms": [round(1e3 * min(times), 2), round(1e3 * max(times), 2)]}
        row |= {"tokens_per_second": round(facts["batch"] * facts["L"] / medians[name])}
        for reference in ("transformers block_sparse", "harken dense"):
            if reference in medians and reference != name:
                row[f"times {reference}"] = round(medians[reference] / medians[name], 3)
        print(json.dumps(row | {"memory_mb": round(bytes_[name] / 1e6, 1)}), flush=True)
    return medians


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", nargs="*", type=int)
    parser.add_argument("--rounds", type=int, default=10 if gpu else 3)
    parser.add_argument("--batch", type=int, default=2 if gpu else 1)
    parser.add_argument("--only", choices=("model", "attention"))
    for name, base in (("layers", 4 if gpu else 2), ("d", 768 if gpu else 256), ("heads", 12 if gpu else 4)):
        parser.add_argument(f"--{name}", type=int, default=base)
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    device, kind = torch.device("cuda" if gpu else "cpu"), torch.bfloat16 if gpu else torch.float32
    lengths = options.lengths or ([4096, 16384, 65536] if gpu else [1024, 2048, 4096, 8192])
    facts = {"shape": [options.layers, options.d, options.heads], "precision": str(kind), "rounds": options.rounds}
    print(json.dumps(facts | {"transformers": transformers.__version__, **machine.describe(device)}))
    print(json.dumps(proof(1000, torch.device("cpu"))), flush=True)
    for what, build in (("model", models), ("attention", attentions)):
        if options.only not in (None, what):
            continue
        seconds = dict[str, dict[int, float]]()
        for L in lengths:
            row_facts = {"what": what, "L": L, "batch": options.batch}
            for name, median in time_turns(build(options, L, device, kind), row_facts, device, options.rounds).items():
                seconds.setdefault(name, {})[L] = median
        for name, by_length in seconds.items():
            steps = [
                f"{a} to {b}: {by_length[b] / by_length[a]:.2f}"
                for a, b in zip(by_length, list(by_length)[1:], strict=False)
            ]
            print(json.dumps({"what": what, "name": name, "growth": steps}), flush=True)


if __name__ == "__main__":
    main()
