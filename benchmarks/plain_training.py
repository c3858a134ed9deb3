"""A plain PyTorch training loop for the shapes of three recipes: a GPT, an encoder-decoder and a ViT.

It imports torch and numpy only. benchmarks/training_peers.py starts it as a process of its own with a folder that has
config.json (the shape and the training settings) and data.npz (token ids or pixels), and asks it for turns: a line
"OPTIMIZER SECONDS" on stdin trains for these seconds, and is answered by a line with the number of targets, the number
of steps and the exact seconds.
"""

import json
import math
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence

IGNORE = -100


def rotate(x, rope):  # B H L D
    (c, s), (a, b) = rope, x.chunk(2, -1)
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class Attention(nn.Module):
    def __init__(self, d, heads, cross=False):
        super().__init__()
        self.heads, self.cross = heads, cross
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, source=None, rope=None, mask=None, causal=False):
        (B, L, d), D = x.shape, x.shape[-1] // self.heads
        if self.cross:
            W, b = self.qkv.weight.split([d, 2 * d]), self.qkv.bias.split([d, 2 * d])
            q = F.linear(x, W[0], b[0]).view(B, L, self.heads, D).transpose(1, 2)
            k, v = F.linear(source, W[1], b[1]).view(B, -1, 2, self.heads, D).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = self.qkv(x).view(B, L, 3, self.heads, D).permute(2, 0, 3, 1, 4)
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.out(o.transpose(1, 2).reshape(B, L, d))


class Block(nn.Module):
    def __init__(self, d, heads, d_ff, eps, cross=False):
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(d, eps), Attention(d, heads)
        self.norm_2, self.mlp = nn.LayerNorm(d, eps), nn.Sequential(nn.Linear(d, d_ff), nn.GELU(), nn.Linear(d_ff, d))
        if cross:
            self.norm_3, self.cross = nn.LayerNorm(d, eps), Attention(d, heads, cross=True)

    def forward(self, x, source=None, source_mask=None, **options):
        x = x + self.attention(self.norm_1(x), **options)
        if source is not None:
            x = x + self.cross(self.norm_3(x), source, mask=source_mask)
        return x + self.mlp(self.norm_2(x))


def init(module):
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class TextModel(nn.Module):
    """A GPT; with `source` tokens an encoder-decoder. Rotary positions, tied embeddings."""

    def __init__(self, c):
        super().__init__()
        shape = c["d"], c["heads"], c["d_ff"], c["eps"]
        self.embed, self.norm = nn.Embedding(c["vocab"], c["d"]), nn.LayerNorm(c["d"], c["eps"])
        self.encoder = nn.ModuleList(Block(*shape) for _ in range(c["encoder_layers"]))
        self.encoder_norm = nn.LayerNorm(c["d"], c["eps"]) if self.encoder else None
        self.blocks = nn.ModuleList(Block(*shape, cross=bool(self.encoder)) for _ in range(c["layers"]))
        D = c["d"] // c["heads"]
        angles = torch.arange(c["context"])[:, None] / 1e4 ** (torch.arange(0, D, 2) / D)
        self.register_buffer("rope", torch.stack([angles.cos(), angles.sin()]), persistent=False)
        self.apply(init)

    def forward(self, tokens, source=None, source_lengths=None):
        mask = None
        if source is not None:
            real = torch.arange(source.shape[1]) < source_lengths[:, None]
            mask = None if real.all() else real[:, None, None]
            source, rope = self.embed(source), self.rope[:, : source.shape[1]]
            for block in self.encoder:
                source = block(source, rope=rope, mask=mask)
            source = self.encoder_norm(source)
        x, rope = self.embed(tokens), self.rope[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, source, mask, rope=rope, causal=True)
        return F.linear(self.norm(x), self.embed.weight)


class ImageModel(nn.Module):
    """A ViT with a stem of convolutions, learned positions and the mean of the patches."""

    def __init__(self, c):
        super().__init__()
        widths = c["widths"]
        layers = [f for a, b in pairwise(widths) for f in (nn.Conv2d(a, b, 3, 2, 1), nn.GELU())]
        self.stem, self.border = nn.Sequential(*layers, nn.Conv2d(widths[-1], c["d"], 1)), c["border"]
        self.position = nn.Parameter(torch.randn(c["n_patches"], c["d"]) * 0.02)
        self.blocks = nn.ModuleList(Block(c["d"], c["heads"], c["d_ff"], c["eps"]) for _ in range(c["layers"]))
        self.norm, self.head = nn.LayerNorm(c["d"], c["eps"]), nn.Linear(c["d"], c["vocab"])
        self.apply(init)

    def forward(self, images):
        x = self.stem(F.pad(images, (0, self.border, 0, self.border)))
        x = x.flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


# --- batches: (inputs of the model, targets) --------------------------------------------------------------------------


def text_batches(c, data, rng):
    """Windows at random offsets."""
    stream, L = data["stream"], c["context"]
    while True:
        starts = rng.integers(len(stream) - L, size=c["batch"])
        rows = torch.from_numpy(np.stack([stream[i : i + L + 1] for i in starts]).astype(np.int64))
        yield (rows[:, :-1],), rows[:, 1:]


def pair_batches(c, data, rng):
    """Pairs sorted by length in batches, so that there is hardly any padding; the batches in random order."""
    edge = np.array([c["vocab"] - 1])
    source, target = (np.split(data[f"{side}_ids"], data[f"{side}_ends"][:-1]) for side in ("source", "target"))
    lengths = [len(x) + 1 for x in source], [len(x) for x in target]
    sources = [torch.from_numpy(np.append(x, edge)) for x in source]
    inputs = [torch.from_numpy(np.append(edge, x)) for x in target]
    targets = [torch.from_numpy(np.append(x, edge)) for x in target]
    source_lengths = torch.tensor(lengths[0])
    while True:
        order = np.lexsort((rng.permutation(len(source)), *lengths))
        for start in rng.permutation(np.arange(0, len(order), c["batch"])):
            picks = order[start : start + c["batch"]]
            x, y = (pad_sequence([side[n] for n in picks], True, c["vocab"] - 1) for side in (sources, inputs))
            yield (y, x, source_lengths[picks]), pad_sequence([targets[n] for n in picks], True, IGNORE)


def image_batches(c, data, rng):
    """Shuffled images, shifted by up to `shift` pixels and normalized."""
    pixels, labels = torch.from_numpy(data["pixels"]), torch.from_numpy(data["labels"])
    mean, std = (torch.tensor(c[name])[:, None, None] for name in ("mean", "std"))
    size, shift, B = pixels.shape[-1], c["shift"], c["batch"]
    while True:
        order = torch.from_numpy(rng.permutation(len(pixels)))
        for picks in order[: len(order) // B * B].split(B):
            x = F.pad(pixels[picks], (shift,) * 4)
            top, left = torch.from_numpy(rng.integers(2 * shift + 1, size=(2, B)))
            rows, columns = top[:, None] + torch.arange(size), left[:, None] + torch.arange(size)
            channels = torch.arange(x.shape[1])[:, None, None]
            x = x[torch.arange(B)[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None]]
            yield ((x.float() / 255 - mean) / std,), labels[picks]


BATCHES = {"char": text_batches, "translate": pair_batches, "images": image_batches}


# --- the loop ---------------------------------------------------------------------------------------------------------


def optimizers(model, name, c):
    options = {"lr": c["lr"][name], "weight_decay": c["weight_decay"]}
    hidden = [m.weight for m in model.modules() if isinstance(m, nn.Linear)] if name == "muon" else []
    rest = [p for p in model.parameters() if all(p is not W for W in hidden)]
    groups = [{"params": [p for p in rest if p.dim() > 1]}, {"params": [p for p in rest if p.dim() < 2]}]
    groups[1]["weight_decay"] = 0.0
    adamw = torch.optim.AdamW(groups, betas=c["betas"], fused=True, **options)
    muon = [torch.optim.Muon(hidden, momentum=0.95, adjust_lr_fn="match_rms_adamw", **options)] if hidden else []
    return [adamw, *muon]


def train(c, data, name):
    """Train for ever; yield the number of targets of each step."""
    torch.manual_seed(0)
    model = (ImageModel if c["recipe"] == "images" else TextModel)(c)
    updates, warmup = optimizers(model, name, c), c["steps"] // 20
    batches = BATCHES[c["recipe"]](c, data, np.random.default_rng(0))
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    yield 0
    for step, (inputs, targets) in enumerate(batches):
        decay = 0.5 * (1 + math.cos(math.pi * min(1, step / c["steps"])))
        for optimizer in updates:
            for group in optimizer.param_groups:
                group["lr"] = c["lr"][name] * min((step + 1) / warmup, decay)
        y = model(*inputs)
        loss = F.cross_entropy(
            y.flatten(0, -2), targets.flatten(), ignore_index=IGNORE, label_smoothing=c["label_smoothing"]
        )
        for optimizer in updates:
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), c["grad_clip"])
        for optimizer in updates:
            optimizer.step()
        if step % 10 == 0 and not math.isfinite(loss.item()):
            raise ValueError(f"step {step}: the loss is {loss.item()}")
        yield int((targets != IGNORE).sum())


def main():
    folder, loops = Path(sys.argv[1]), {}
    config, data = json.loads((folder / "config.json").read_text()), dict(np.load(folder / "data.npz"))
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    for line in sys.stdin:
        name, seconds = line.split()
        if name not in loops:
            loops[name] = train(config, data, name)
            next(loops[name])
        start, count, steps = time.perf_counter(), 0, 0
        while time.perf_counter() - start < float(seconds):
            count, steps = count + next(loops[name]), steps + 1
        print(count, steps, time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
