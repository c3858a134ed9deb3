"""Translation speed: harken and Marian of transformers with the same weights, interleaved; the outputs must be equal.

    python benchmarks/pairs_decoding.py --device cpu --batch 16 --tokens 32 --threads 2
    python benchmarks/pairs_decoding.py --device cuda --dtype bfloat16                    batch 64, beam 4, base size
    python benchmarks/pairs_decoding.py --device cpu --threads 2 --run runs/marian-like   sentences of a test split

With random weights every output has the maximum length. A run must have the settings of Marian: model.norm=post
model.activation=relu model.positions=sinusoid-halves. transformers gets the sentences in batches in their order, harken
gets all sentences at once. The speed is tokens of the best outputs per second; the ratio is the ratio of medians.
"""

import argparse
import json
import math
import statistics
import time

import torch
from transformers import MarianConfig, MarianMTModel

import harken
from harken import machine
from harken.decode.beam import BeamSearch, SearchSettings
from harken.models.seq2seq import Seq2Seq, TransformerSettings

LAYER = {
    "self_attn.q_proj": "attention.W_q", "self_attn.k_proj": "attention.W_k", "self_attn.v_proj": "attention.W_v",
    "self_attn.out_proj": "attention.W_o", "self_attn_layer_norm": "attention_sublayer.norm",
    "encoder_attn.q_proj": "cross.W_q",
    "encoder_attn.k_proj": "cross.W_k", "encoder_attn.v_proj": "cross.W_v", "encoder_attn.out_proj": "cross.W_o",
    "encoder_attn_layer_norm": "cross_sublayer.norm", "fc1": "mlp.W_1", "fc2": "mlp.W_2",
    "final_layer_norm": "mlp_sublayer.norm",
}  # fmt: skip


def build_marian(model: Seq2Seq, shape: TransformerSettings, vocab: int) -> MarianMTModel:
    """Build a Marian model with the weights of harken."""
    d_ff, boundaries = shape.d_ff or 4 * shape.d, dict.fromkeys(("pad", "eos", "decoder_start"), vocab - 1)
    sizes = {"d_model": shape.d, "encoder_layers": shape.layers, "decoder_layers": shape.layers}
    sizes |= {f"{side}_{what}": n for side in ("encoder", "decoder")
              for what, n in (("attention_heads", shape.heads), ("ffn_dim", d_ff))}  # fmt: skip
    special_tokens = {f"{name}_token_id": value for name, value in boundaries.items()} | {"bos_token_id": None}
    config = MarianConfig(
        vocab_size=vocab, **sizes, **special_tokens, forced_eos_token_id=None, activation_function="relu", dropout=0.0,
        scale_embedding=True, max_position_embeddings=shape.context,
    )  # fmt: skip
    marian = MarianMTModel(config).eval()
    for side in (marian.model.encoder, marian.model.decoder):
        side.embed_scale = model.embedding_scale
    our_weights, weights = dict(model.named_parameters()), marian.state_dict()
    weights["model.shared.weight"].copy_(our_weights["embed.weight"][:vocab])
    for side, stack in (("encoder", "encoder"), ("decoder", "stack")):
        for n in range(shape.layers):
            for their_name, our_name in LAYER.items():
                for part in ("weight", "bias"):
                    if (name := f"model.{side}.layers.{n}.{their_name}.{part}") in weights:
                        weights[name].copy_(our_weights[f"{stack}.blocks.{n}.{our_name}.{part}"])
    return marian


def random(options: argparse.Namespace) -> tuple[Seq2Seq, TransformerSettings, list[list[int]], int]:
    shape = TransformerSettings(size=options.size, norm="post", activation="relu", positions="sinusoid-halves")
    model = shape.build((options.vocab, options.vocab)).eval()
    model.embedding_scale = math.sqrt(shape.d)
    for weights in model.parameters():
        weights.data.mul_(3.0 if weights.dim() > 1 else 1.0)  # larger weights, so that rounding decides no ties
    lengths = torch.randint(options.source // 2, options.source * 3 // 2, (options.batch,)).tolist()
    sources = [[*torch.randint(options.vocab - 1, (n - 1,)).tolist(), options.vocab - 1] for n in lengths]
    return model, shape, sources, options.vocab


def trained(options: argparse.Namespace) -> tuple[Seq2Seq, TransformerSettings, list[list[int]], int]:
    run = harken.load(options.run, device="cpu")
    texts = run.recipe.load_data(run.tokenizer).splits["test"].sources[: options.sentences]
    return run.model, run.recipe.model, [run.tokenizer.encode_source(t).tolist() for t in texts], run.model.vocab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--run", help="run to translate with; default: random weights")
    parser.add_argument("--sentences", type=int, default=512, help="number of sentences of the test split of --run")
    parser.add_argument("--size", default="base")
    parser.add_argument("--vocab", type=int, default=32_001)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--source", type=int, default=24, help="mean number of tokens of a source")
    parser.add_argument("--tokens", type=int, default=32, help="maximum number of tokens of an output")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model, shape, sources, vocab = trained(options) if options.run else random(options)
    marian = build_marian(model, shape, vocab)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    model, marian = model.to(device, dtype), marian.to(device, dtype)
    search, settings = BeamSearch(model), SearchSettings(beam=options.beam, max_new_tokens=options.tokens)
    generate_options = {
        "num_beams": options.beam,
        "max_new_tokens": options.tokens,
        "do_sample": False,
        "length_penalty": 1.0,
    }

    def harken_outputs() -> list[list[int]]:
        return [candidates[0].tokens for candidates in search.search_all(sources, settings)]

    def transformers_outputs() -> list[list[int]]:
        outputs = []
        for start in range(0, len(sources), options.batch):
            batch = sources[start : start + options.batch]
            lengths = torch.tensor([len(s) for s in batch])
            input_ids = torch.full((len(batch), int(lengths.max())), vocab - 1)
            for row, source in zip(input_ids, batch, strict=True):
                row[: len(source)] = torch.tensor(source)
            mask = (torch.arange(input_ids.shape[1]) < lengths[:, None]).to(device)
            outputs += marian.generate(input_ids.to(device), attention_mask=mask, **generate_options)[:, 1:].tolist()
        return [ids[: ids.index(vocab - 1)] if vocab - 1 in ids else ids for ids in outputs]

    rates, texts = {"harken": [], "transformers": []}, {}
    for n in range(-2, options.rounds):  # two warm-up rounds: kernels are selected, steps are captured
        for name, turn in (("harken", harken_outputs), ("transformers", transformers_outputs)):
            machine.synchronize(device)
            start = time.perf_counter()
            texts[name] = turn()
            machine.synchronize(device)
            if n >= 0:
                rates[name].append(sum(map(len, texts[name])) / (time.perf_counter() - start))
    equal = sum(a == b for a, b in zip(texts["harken"], texts["transformers"], strict=True))
    for name, speeds in rates.items():
        row = {"name": name, "tokens_per_second": round(statistics.median(speeds), 1)}
        row["ratio"] = round(statistics.median(speeds) / statistics.median(rates["transformers"]), 3)
        row |= {"spread": [round(min(speeds), 1), round(max(speeds), 1)], "equal_outputs": equal / len(sources)}
        print(
            json.dumps(row | {k: getattr(options, k) for k in ("size", "batch", "beam", "dtype", "device")}), flush=True
        )


if __name__ == "__main__":
    main()
