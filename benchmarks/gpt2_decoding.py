"""GPT-2 124M writing text: harken beside transformers' generate, with the same random weights, in one run.

    python benchmarks/gpt2_decoding.py --batches 1 64 --tokens 128 --rounds 5            on a GPU, bfloat16, compiled
    python benchmarks/gpt2_decoding.py --device cpu --dtype float32 --tokens 64          on a CPU

Greedy, a prompt of 32 tokens. The two take turns; medians, ratio, spread. In float32 the texts must be the same.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor

from harken.models.gpt import GPT
from harken.recipe import resolve
from harken.use.light import lighten
from harken.use.sample import Choice, Writer

PROMPT = 32


def pair(size: str) -> tuple[GPT, torch.nn.Module]:
    """The same weights as harken's model and as transformers'."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = resolve(("bench", {"model.kind": "gpt", "model.style": "gpt2", "model.size": size})).model
    config = GPT2Config(n_positions=shape.context, n_embd=shape.d, n_layer=shape.layers, n_head=shape.heads)
    config.bos_token_id = config.eos_token_id = None  # nobody stops early
    theirs = GPT2LMHeadModel(config).eval()
    ours = shape.build(config.vocab_size).eval()
    assert isinstance(ours, GPT)
    body = theirs.transformer
    with torch.no_grad():
        ours.embed.weight[: config.vocab_size] = body.wte.weight
        ours.stack.positions.table.weight.copy_(body.wpe.weight)
        for mine, block in zip(ours.stack.blocks, body.h, strict=True):
            looks, c = (mine.look.W_q, mine.look.W_k, mine.look.W_v), block.attn.c_attn
            for linear, W, b in zip(looks, c.weight.chunk(3, 1), c.bias.chunk(3), strict=True):
                linear.weight.copy_(W.T)
                linear.bias.copy_(b)
            others = (
                (mine.look.W_o, block.attn.c_proj),
                (mine.mlp.W_1, block.mlp.c_fc),
                (mine.mlp.W_2, block.mlp.c_proj),
            )
            for linear, conv in others:
                linear.weight.copy_(conv.weight.T)
                linear.bias.copy_(conv.bias)
            for norm, other in ((mine.look_sub.norm, block.ln_1), (mine.mlp_sub.norm, block.ln_2)):
                norm.load_state_dict(other.state_dict())
        ours.norm.load_state_dict(body.ln_f.state_dict())
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", default="124m")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    args = parser.parse_args()
    torch.manual_seed(0)
    ours, theirs = (m.to(args.device, getattr(torch, args.dtype)) for m in pair(args.size))
    writers = {"harken": Writer(ours)}
    if args.device == "cuda" and not args.plain:
        writers["harken, compiled"] = Writer(ours, compiled=True)
    if args.device == "cpu":
        writers["harken, int8"] = Writer(lighten(deepcopy(ours), "int8"))
    for batch in args.batches:
        prompt = torch.randint(50257, (batch, PROMPT))

        def write(writer: Writer, prompt: Tensor = prompt) -> Tensor:
            made = writer.write(prompt.tolist(), args.tokens, Choice(temperature=0), seed=0)
            return torch.stack([t.cpu() for t in made], 1)

        def generate(prompt: Tensor = prompt) -> Tensor:
            here = prompt.to(args.device)
            made = theirs.generate(here, max_new_tokens=args.tokens, min_new_tokens=args.tokens, do_sample=False,
                                   attention_mask=torch.ones_like(here), pad_token_id=0)  # fmt: skip
            return made[:, PROMPT:].cpu()

        makers: dict[str, Callable[[], Tensor]] = {name: (lambda w=w: write(w)) for name, w in writers.items()}
        makers["transformers"] = generate
        texts, speeds = {}, {name: [] for name in makers}
        for name, make in makers.items():
            begin = time.perf_counter()
            texts[name] = make()
            print(f"batch {batch}, {name}: first text after {time.perf_counter() - begin:.1f} s", flush=True)
        for _ in range(args.rounds):
            for name, make in makers.items():
                begin = time.perf_counter()
                make()
                speeds[name].append(batch * args.tokens / (time.perf_counter() - begin))
        theirs_speed = statistics.median(speeds["transformers"])
        for name, found in speeds.items():
            middle = statistics.median(found)
            same = float((texts[name] == texts["transformers"]).float().mean())
            row = {"batch": batch, "name": name, "tokens_per_second": round(middle, 1), "ratio": middle / theirs_speed}
            print(json.dumps(row | {"spread": [round(min(found), 1), round(max(found), 1)], "same_tokens": same}))


if __name__ == "__main__":
    main()
