"""Speed on a CPU beside CTranslate2 with the same random weights: GPT-2 124M and beam search, without prompt lookup.

    python benchmarks/ctranslate2_speed.py gpt2 --batch 1        greedy, prompt 32, 64 tokens per text
    python benchmarks/ctranslate2_speed.py gpt2 --batch 8
    python benchmarks/ctranslate2_speed.py demo --batch 64       the recipe of the demo, beam 4, 32 tokens each
    python benchmarks/ctranslate2_speed.py base --batch 32       Transformer base with 32,001 tokens

Each implementation has a process of its own and they take turns: in one process the thread pools of both libraries
would exceed the number of cores, and OpenMP then puts waiting threads to sleep. `ratio` is that of the medians;
`same` is the fraction of outputs that equal those of harken in float32, token by token for gpt2, else whole outputs.
Without ctranslate2 only harken is measured.
"""

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from harken.decode.beam import BeamSearch, SearchSettings
from harken.decode.sampling import SamplingSettings, TextGenerator
from harken.inference.prepare import prepare_inference
from harken.models.gpt import GPT, GPTSettings
from harken.models.seq2seq import Seq2Seq, TransformerSettings

Outputs = list[list[int]]
GREEDY = SamplingSettings(temperature=0)
VOCAB = {"gpt2": 50_257, "demo": 4_001, "base": 32_001}
SETTINGS = {
    "gpt2": GPTSettings(style="gpt2", size="124m"),
    "demo": TransformerSettings(d=128, layers=2, heads=4, d_ff=512, positions="rotary"),
    "base": TransformerSettings(size="base", norm="post", activation="relu", positions="sinusoid"),
}


def build(options: argparse.Namespace) -> tuple[GPT | Seq2Seq, Outputs]:
    """The model and its inputs, the same in every process."""
    torch.manual_seed(0)
    settings, vocab = SETTINGS[options.shape], VOCAB[options.shape]
    if options.shape == "gpt2":
        return settings.build(vocab).eval(), torch.randint(vocab, (options.batch, 32)).tolist()
    model = settings.build((vocab, vocab)).eval()
    if options.shape == "base":
        model.embedding_scale = math.sqrt(settings.d)
    for weights in model.parameters():
        weights.data.mul_(3.0 if weights.dim() > 1 else 1.0)  # larger weights, so that rounding decides fewer ties
    lengths = torch.randint(12, 36, (options.batch,)).tolist()
    return model, [[*torch.randint(vocab - 1, (n - 1,)).tolist(), vocab - 1] for n in lengths]


def harken_turn(options: argparse.Namespace) -> Callable[[], Outputs]:
    model, inputs = build(options)
    model = prepare_inference(model, options.precision)
    if options.shape == "gpt2":
        generator = TextGenerator(model, lookup=False)
        return lambda: torch.stack([*generator.generate(inputs, options.tokens, GREEDY, seed=0)], 1).tolist()
    search, settings = BeamSearch(model), SearchSettings(beam=options.beam, max_new_tokens=options.tokens)
    return lambda: [found[0].tokens for found in search.search_all(inputs, settings)]


def ctranslate2_turn(options: argparse.Namespace) -> Callable[[], Outputs]:
    import ctranslate2

    from harken.bridge import ctranslate2_spec

    (model, inputs), vocab = build(options), VOCAB[options.shape]
    names, settings = [*map(str, range(vocab - 1)), "</s>"], SETTINGS[options.shape]
    vocabulary, index = ctranslate2_spec.Vocabulary(names), {name: n for n, name in enumerate(names)}
    rows = [[names[i] for i in row] for row in inputs]
    place = {"device": "cpu", "compute_type": options.precision, "intra_threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        if options.shape == "gpt2":
            spec = ctranslate2_spec.language_model_spec(model, settings, vocabulary)
            ctranslate2_spec.write_model(spec, Path(folder), options.precision)
            generator = ctranslate2.Generator(folder, **place)
            limits = {"max_length": options.tokens, "end_token": [], "include_prompt_in_result": False}
            return lambda: [found.sequences_ids[0] for found in generator.generate_batch(rows, **limits)]
        spec = ctranslate2_spec.encoder_decoder_spec(model, settings, vocabulary, vocabulary, vocabulary)
        spec.config.unk_token = names[0]
        spec.config.bos_token = spec.config.eos_token = spec.config.decoder_start_token = names[-1]
        ctranslate2_spec.write_model(spec, Path(folder), options.precision)
        translator = ctranslate2.Translator(folder, **place, inter_threads=1)
    limits = {"beam_size": options.beam, "max_decoding_length": options.tokens, "max_input_length": 0}
    limits |= {"max_batch_size": options.batch, "length_penalty": 1.0}
    return lambda: [[index[t] for t in found.hypotheses[0]] for found in translator.translate_batch(rows, **limits)]


def work(options: argparse.Namespace) -> None:
    """One turn per line of stdin: seconds and outputs as one line of JSON."""
    turn = {"harken": harken_turn, "ctranslate2": ctranslate2_turn}[options.worker](options)
    print(flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        outputs = turn()
        print(json.dumps([time.perf_counter() - start, outputs]), flush=True)


def same(outputs: Outputs, expected: Outputs, *, by_token: bool) -> float:
    if by_token:
        return statistics.mean(
            a == b for x, y in zip(outputs, expected, strict=True) for a, b in zip(x, y, strict=True)
        )
    return statistics.mean(x == y for x, y in zip(outputs, expected, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SETTINGS)
    parser.add_argument("--batch", type=int, default=8, help="texts, or sentences")
    parser.add_argument("--tokens", type=int, help="default: 64 for gpt2, else 32")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=["float32", "int8"])
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--precision", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tokens = options.tokens or (64 if options.shape == "gpt2" else 32)
    if options.worker:
        return work(options)
    names = ["harken", *["ctranslate2"] * (importlib.util.find_spec("ctranslate2") is not None)]
    if len(names) == 1:
        print(json.dumps({"name": "ctranslate2", "left_out": "not installed"}))
    keys = [(name, precision) for precision in options.precisions for name in names]
    command, pipe = [sys.executable, *sys.argv], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = {k: subprocess.Popen([*command, "--worker", k[0], "--precision", k[1]], **pipe) for k in keys}
    for worker in workers.values():
        worker.stdout.readline()
    speeds, outputs = {key: [] for key in keys}, {}
    for n in range(-1, options.rounds):  # one warm-up round
        for key, worker in workers.items():
            print(file=worker.stdin, flush=True)
            seconds, outputs[key] = json.loads(worker.stdout.readline())
            if n >= 0:
                speeds[key].append(sum(map(len, outputs[key])) / seconds)
    for worker in workers.values():
        worker.communicate()
    for (name, precision), rates in speeds.items():
        row = {"shape": options.shape, "batch": options.batch, "name": name, "precision": precision}
        row |= {"tokens_per_second": round(statistics.median(rates), 1)}
        row |= {"spread": [round(min(rates), 1), round(max(rates), 1)]}
        if (peer := ("ctranslate2", precision)) in speeds:
            row["ratio"] = round(statistics.median(rates) / statistics.median(speeds[peer]), 3)
        row["same"] = round(same(outputs[name, precision], outputs[keys[0]], by_token=options.shape == "gpt2"), 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
