"""Attention over short rows on a GPU: the explicit equation and PyTorch's fused kernel in a compiled step.

    python benchmarks/short_rows.py                     rows of 8 to 64 words, 16,384 words in total
    python benchmarks/short_rows.py --d 64 --heads 4

Forward and backward, compiled and captured as in a training, interleaved; the ratio is the time of the kernel divided
by that of the equation. core/attend.py selects the explicit backend up to EXPLICIT_MAX_LENGTH tokens.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable

import torch

from harken.core import CAUSAL, ScaledDot, attend, keep

LENGTHS, KINDS, TURNS, CALLS = (8, 16, 32, 64), ("padded", "causal"), 7, 20


def capture(call: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda: (graph.replay(), call)[0]  # keeps the inputs of `call` alive


def step(max_explicit: int, words: int, L: int, heads: int, D: int, kind: str) -> Callable[[], object]:
    """Return forward and backward of one attention with the explicit equation for up to `max_explicit` words."""
    sys.modules["harken.core.attend"].EXPLICIT_MAX_LENGTH = max_explicit  # type: ignore[attr-defined]
    torch._dynamo.reset()
    shape = words // L, heads, L, D
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    real = torch.arange(L, device="cuda") < torch.randint(L // 2, L + 1, (shape[0], 1), device="cuda")
    structure = {"causal": CAUSAL, "padded": keep(real)}[kind]
    attention = torch.compile(lambda *x: attend(*x, ScaledDot(D), structure), dynamic=False)
    return capture(lambda: torch.autograd.grad(attention(q, k, v).float().sum(), (q, k, v)))


def milliseconds(replay: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        replay()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=32, help="width of a head")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--words", type=int, default=16_384, help="total number of words")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {options.heads} heads of {options.d}")
    for L, kind in itertools.product(LENGTHS, KINDS):
        kernel, equation = (
            step(max_explicit, options.words, L, options.heads, options.d, kind) for max_explicit in (0, 10**9)
        )
        times = [(milliseconds(kernel), milliseconds(equation)) for _ in range(TURNS)]
        ratio = statistics.median(a / b for a, b in times)
        a, b = (1e3 * statistics.median(x) for x in zip(*times, strict=True))
        print(f"{options.words // L:5d} rows of {L:3d}, {kind}: kernel {a:.0f} us, equation {b:.0f} us, {ratio:.2f}")


if __name__ == "__main__":
    main()
