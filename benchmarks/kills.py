"""Train once in peace, and once killed (-9) at random moments and resumed: are weights and losses equal, bit for bit?

    python benchmarks/kills.py --kills 10 --model gpt --steps 300

Prints the SHA-256 of model.safetensors and of the list of logged losses for both runs; exit status 1 if they differ.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harken.data.tales import tales

SETTINGS = {"gpt": ["model.heads=2", "model.context=32"], "default": ["model.context=32"]}
COMMON = ["model.d=32", "model.layers=2", "model.dropout=0.1", "train.batch=8", "train.log_every=1", "train.lr=3e-3"]


def command(options: argparse.Namespace, data: Path, out: Path) -> list[str]:
    own = [f"model.kind={options.model}", *SETTINGS.get(options.model, SETTINGS["default"])]
    pace = [f"train.steps={options.steps}", f"train.checkpoint_every={options.checkpoint_every}"]
    return [sys.executable, "-m", "harken", "train", str(data), *COMMON, *own, *pace, "--out", str(out), "--resume"]


def logged(folder: Path) -> list[dict]:
    """The lines of the log that are whole."""
    path = folder / "log.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def killed_at(step: int, process: subprocess.Popen, folder: Path, dice: random.Random) -> int | None:
    """Kill the process some time after it has logged this step; the last step it logged, None if it was faster."""
    while process.poll() is None and (not logged(folder) or logged(folder)[-1]["step"] < step):
        time.sleep(0.005)
    time.sleep(dice.uniform(0, 0.05))
    if process.poll() is None:
        os.kill(process.pid, signal.SIGKILL)
    return logged(folder)[-1]["step"] if process.wait() == -signal.SIGKILL else None


def go(options: argparse.Namespace, data: Path, out: Path, stops: list[int]) -> int:
    """Train to the end, killed after each of these steps; how many kills there were."""
    dice, kills = random.Random(options.seed), 0
    for step in [*stops, None]:
        process = subprocess.Popen(
            command(options, data, out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if step is not None and (last := killed_at(step, process, out, dice)) is not None:
            kills += 1
            print(f"  kill {kills}: wanted after step {step}, was at step {last}", flush=True)
            continue
        said, _ = process.communicate()
        if process.returncode != 0:
            sys.exit(f"the run failed: {said.strip()[-500:]}")
        break
    return kills


def hashes(folder: Path) -> tuple[str, str]:
    losses = [[line["step"], line["loss"], line.get("valid")] for line in logged(folder)]
    weights = (folder / "model.safetensors").read_bytes()
    return hashlib.sha256(weights).hexdigest(), hashlib.sha256(json.dumps(losses).encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--model", default="gpt", help="gpt, rnn, gru or lstm")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--checkpoint-every", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    stops = sorted(random.Random(options.seed).sample(range(1, options.steps - 5), options.kills))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tales.txt").write_text("\n\n".join(tales(60)))
        go(options, folder / "tales.txt", folder / "peace", [])
        kills = go(options, folder / "tales.txt", folder / "war", stops)
        results = {"unbroken": hashes(folder / "peace"), f"{kills} kills": hashes(folder / "war")}
    for run, (weights, losses) in results.items():
        print(f"{options.model}, {options.steps} steps, {run:>9}: weights {weights}  losses {losses}")
    if kills < options.kills:
        sys.exit(f"only {kills} of {options.kills} kills came in time; give more --steps")
    if len(set(results.values())) > 1:
        sys.exit("the runs differ")
    print("equal, bit for bit")


if __name__ == "__main__":
    main()
