"""Training speed of GPT-2 124M: harken and GPT2LMHeadModel of transformers (compiled), interleaved.

    python benchmarks/gpt2_training.py --batch 32 --steps 10 --rounds 5

`harken bench train` with settings for a GPU: bfloat16 autocast, AdamW, gradient clipping at 1, the same random tokens.
"""

import argparse
import json

from harken.console import ConsoleListener
from harken.experiments.bench.benchmark import bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", default="124m")
    parser.add_argument("--compile", default="yes")
    parser.add_argument("--device", default="cuda")
    options = vars(parser.parse_args())
    options |= {"tokens": options.pop("steps") * options["context"], "compiled": options.pop("compile") != "no"}
    with ConsoleListener(to_stderr=True) as listener:
        print(json.dumps(bench("train", precisions=("bfloat16",), listen=listener, **options)))


if __name__ == "__main__":
    main()
