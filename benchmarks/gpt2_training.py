"""GPT-2 124M, one training step after the other: harken beside transformers' GPT2LMHeadModel (compiled), in one run.

    python benchmarks/gpt2_training.py --batch 32 --steps 10 --rounds 5

Both see the same random tokens, bfloat16 autocast, AdamW, clipping at 1. The two take turns; medians of the rounds, the
ratio, each one's peak memory, and the share of the matrix product the card reaches alone in the same run.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from harken.data.batch import Batch
from harken.models.gpt import Shape
from harken.recipe import resolve
from harken.tasks import Loss
from harken.tasks.next_word import nll
from harken.training.loop import Trainer
from harken.training.settings import Train

VOCAB = 50257


class Noise:
    """Next-word prediction on random tokens: all of the work, nothing to learn."""

    steps, splits = 10**9, ()

    def __init__(self, rows: int, L: int) -> None:
        self.tokens = rows * L
        self.batches = [torch.randint(VOCAB, (rows, L + 1)) for _ in range(4)]

    def batch(self, epoch: int, step: int) -> Batch:
        made = self.batches[step % 4]
        return Batch(made[:, :-1], made[:, 1:])

    def loss(self, model: nn.Module, batch: Batch, start: int = 0) -> Loss:
        return Loss(nll(model, batch)[0])

    def state(self) -> dict[str, torch.Tensor]:
        return {}


def ours(args: argparse.Namespace, noise: Noise):
    shape = resolve(("bench", {"model.kind": "gpt", "model.style": "gpt2", "model.size": args.size})).model
    assert isinstance(shape, Shape)
    shape = shape.model_copy(update={"context": args.context})
    train = Train(steps=10**6, batch=args.batch, lr=1e-4, device=args.device, compile=args.compile)
    trainer = Trainer(shape.build(VOCAB), noise, train)
    trainer.model.train()
    return lambda: trainer.update(10**6, read=False)


def theirs(args: argparse.Namespace, noise: Noise):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"124m": (768, 12, 12), "tiny": (64, 2, 2)}
    d, layers, heads = sizes[args.size]
    config = GPT2Config(
        vocab_size=VOCAB, n_positions=args.context, n_embd=d, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(args.device)
    call = model if args.compile == "no" else torch.compile(model)
    rule = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.99), weight_decay=0.1, fused=True)
    turn = iter(range(10**9))

    def step() -> None:
        batch = noise.batch(0, next(turn)).to(torch.device(args.device))
        with torch.autocast(args.device, torch.bfloat16):
            logits = call(input_ids=batch.tokens).logits
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rule.step()
        rule.zero_grad()

    return step


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def ceiling(device: str) -> float:
    """TFLOP/s of a large bfloat16 product of random numbers."""
    n = 8192 if device == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(12):
        wait(device)
        start = time.perf_counter()
        a @ b
        wait(device)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / statistics.median(times[2:]) / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="124m")
    parser.add_argument("--compile", default="yes")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.manual_seed(0)
    noise, peak, steps, speeds = Noise(args.batch, args.context), {}, {}, {}
    for name, make in (("harken", ours), ("transformers", theirs)):
        before = torch.cuda.memory_allocated() if args.device == "cuda" else 0
        if args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        steps[name], speeds[name] = make(args, noise), []
        for _ in range(6):
            steps[name]()
        wait(args.device)
        print(f"{name}: six steps with compilation {time.perf_counter() - begin:.1f} s", flush=True)
        if args.device == "cuda":
            peak[name] = (torch.cuda.max_memory_allocated() - before) / 2**30
            torch.cuda.empty_cache()
    for _ in range(args.rounds):
        for name, step in steps.items():
            wait(args.device)
            begin = time.perf_counter()
            for _ in range(args.steps):
                step()
            wait(args.device)
            speeds[name].append(args.steps * noise.tokens / (time.perf_counter() - begin))
    top = ceiling(args.device)
    flops = 855.4e6  # a token of 124M at context 1024, by nanoGPT's count
    rows = {}
    for name, found in speeds.items():
        middle = statistics.median(found)
        rows[name] = {"tokens_per_second": round(middle), "spread": [round(min(found)), round(max(found))]}
        rows[name] |= {"peak_gib": round(peak.get(name, 0), 2), "share_of_product": middle * flops / top / 1e12}
    ratio = rows["harken"]["tokens_per_second"] / rows["transformers"]["tokens_per_second"]
    print(json.dumps({"rows": rows, "ratio": ratio, "product_tflops": top, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
