"""SmolLM2-135M on this machine: import, load, generation compared with transformers, classification by prompt.

    python benchmarks/smollm2.py ~/.cache/harken/data/smollm2/smollm2.gguf        the file of `harken data smollm2`
    python benchmarks/smollm2.py smollm2.gguf --sst2 SST-2 --texts 200 --shots 0,1,4,16

Import and load run in new processes; peak memory includes the libraries. Generation: greedy, batch 1, the same weights,
interleaved; the ratio is relative to transformers in float32. Classification: accuracy on the first --texts sentences
of dev.tsv; the prediction is the more likely of two words.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

import harken
from harken import machine
from harken.bridge.families import find_mapping
from harken.bridge.importer import open_source
from harken.bridge.transformers_reference import reference_model
from harken.decode.sampling import SamplingSettings
from harken.experiments.bench import transformers_gpt2
from harken.experiments.bench.benchmark import interleaved_seconds
from harken.inference.answers.generate import encode_prompt

PRECISIONS = ("float32", "bfloat16", "int8")
PROMPT = "The history of the world is the history of the ways in which people have lived together, and"
QUESTION, WORDS = "Review: {text}\nSentiment:", "0=negative,1=positive"
N_TRAIN = 2000  # training sentences from which the examples are drawn
TIMED = """
import json, resource, time
{before}
begin = time.perf_counter()
run = {call}
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({{"seconds": round(seconds, 2), "peak_bytes": peak, "weights_bytes": 4 * run.parameters}}))
"""


def run_in_new_process(before: str, call: str) -> dict:
    """Return seconds and peak memory of a call in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", TIMED.format(before=before, call=call)], stdout=subprocess.PIPE, check=True
    )
    output = json.loads(done.stdout.splitlines()[-1])
    return output | {"times_the_weights": round(output["peak_bytes"] / output["weights_bytes"], 3)}


def greedy_generation(run: harken.Run, ids: list[int], tokens: int) -> Callable[[], list[int]]:
    """Return a function that generates greedy tokens with harken."""
    return lambda: [
        int(token) for token in run.text_generator.generate([ids], tokens, SamplingSettings(temperature=0.0), seed=0)
    ]


def decode(source: Path, run_path: Path, tokens: int, rounds: int) -> None:
    runs = {f"harken, {p}": harken.load(run_path, device="cpu", precision=p) for p in PRECISIONS}
    ids = [int(n) for n in encode_prompt(runs["harken, float32"], PROMPT)]
    turns: dict[str, Callable] = {name: greedy_generation(run, ids, tokens) for name, run in runs.items()}
    opened = open_source(source)
    for kind in (torch.float32, torch.bfloat16):
        reference = reference_model(find_mapping(opened), opened).to(kind)
        reference.generation_config.eos_token_id = None
        generate = transformers_gpt2.greedy(reference, torch.tensor([ids]), tokens)
        turns[f"transformers, {str(kind).removeprefix('torch.')}"] = lambda generate=generate: generate()[0].tolist()
    texts = {name: turn() for name, turn in turns.items()}  # also the warm-up
    expected = texts["transformers, float32"]
    seconds = interleaved_seconds(list(turns.values()), rounds, wait=lambda: None)
    speeds = {name: [tokens / s for s in times] for name, times in zip(turns, seconds, strict=True)}
    for name, rates in speeds.items():
        row = {
            "name": name,
            "tokens_per_second": round(median(rates), 2),
            "spread": [round(min(rates), 2), round(max(rates), 2)],
        }
        row["ratio"] = round(median(rates) / median(speeds["transformers, float32"]), 3)
        row["same_tokens"] = sum(a == b for a, b in zip(texts[name], expected, strict=True)) / tokens
        print(json.dumps(row | {"prompt": len(ids), "tokens": tokens, "rounds": rounds}), flush=True)


def classification(run_path: Path, sst2: Path, texts: int, shots: str, folder: Path) -> None:
    for name, n_rows in (("train", N_TRAIN), ("dev", texts)):
        lines = (sst2 / f"{name}.tsv").read_text("utf-8").splitlines(keepends=True)
        (folder / f"{name}.tsv").write_text("".join(lines[: n_rows + 1]))
    eval_options = ["--prompt", QUESTION, "--labels", WORDS, "--shots", shots, "--split", "valid", "--json"]
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "harken", "eval", run_path, folder, *eval_options], stdout=subprocess.PIPE, check=True
    )
    output = json.loads(done.stdout)
    rows = {row["shots"]: round(row["metrics"]["accuracy"], 4) for row in output["rows"]}
    summary = {
        "accuracy_by_shots": rows,
        "texts": texts,
        "prompt": QUESTION,
        "labels": WORDS,
        "baseline": output["baseline"],
    }
    print(json.dumps(summary | {"seconds": round(time.perf_counter() - begin, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="GGUF file or model folder")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sst2", type=Path, help="folder with train.tsv and dev.tsv of SST-2")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--shots", default="0,1,4,16")
    options = parser.parse_args()
    print(json.dumps(machine.describe(torch.device("cpu"))))
    with tempfile.TemporaryDirectory() as home:
        run_path, folder = Path(home, "run"), Path(home, "sst2")
        folder.mkdir()
        call = f"import_model({str(options.source)!r}, {str(run_path)!r})"
        print(
            json.dumps(
                {"name": "import", **run_in_new_process("from harken.bridge.importer import import_model", call)}
            ),
            flush=True,
        )
        load = f"load({str(run_path)!r}, device='cpu')"
        print(
            json.dumps({"name": "load", **run_in_new_process("from harken.bridge.importer import load", load)}),
            flush=True,
        )
        decode(options.source, run_path, options.tokens, options.rounds)
        if options.sst2:
            classification(run_path, options.sst2, options.texts, options.shots, folder)


if __name__ == "__main__":
    main()
