"""Train one recipe under many settings, several at a time, and print a table sorted by a metric.

    python benchmarks/sweep.py DATA sweep.txt --at-once 8 --split valid --metric perplexity

Each line of sweep.txt is one trial: settings as on the command line (`model.d=192 train.lr=3e-3`). The script prints
one JSON line per finished trial, then the table. Select on the validation split. The trials share the machine, so their
seconds do not measure speed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def trial(data: str, settings: str, folder: Path, number: int) -> dict:
    output = ["--out", str(folder / str(number)), "--json"]
    command = [sys.executable, "-m", "harken", "train", data, *settings.split(), *output]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    facts = json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr.strip()[-300:]}
    row = {k: facts[k] for k in ("parameters", "steps", "seconds", "splits", "error") if k in facts}
    print(json.dumps({"settings": settings, **row}), flush=True)
    return {"settings": settings, **row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("trials", type=Path)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--split", default="valid")
    parser.add_argument("--metric", default="loss")
    options = parser.parse_args()
    lines = [line.strip() for line in options.trials.read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(lambda n: trial(options.data, lines[n], Path(folder), n), range(len(lines))))
    good = [r for r in rows if "splits" in r]
    for r in sorted(good, key=lambda r: r["splits"][options.split][options.metric]):
        scores = " ".join(f"{s} {v[options.metric]:9.4f}" for s, v in r["splits"].items())
        print(f"{scores}  {r['parameters'] / 1e6:6.3f} M  {r['steps']:6d} steps  {r['settings']}")


if __name__ == "__main__":
    main()
