"""Decoding speed of GPT-2 124M: harken and generate of transformers with the same random weights, interleaved.

    python benchmarks/gpt2_decoding.py --batches 1 64 --tokens 128 --rounds 5            on a GPU, bfloat16, compiled
    python benchmarks/gpt2_decoding.py --device cpu --dtype float32 --tokens 64          on a CPU, also int8

`harken bench decode` for several batch sizes. In float32 the texts must be equal.
"""

import argparse
import json

from harken.console import ConsoleListener
from harken.experiments.bench.benchmark import bench


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--size", default="124m")
    parser.add_argument("--batches", type=int, nargs="+", default=[1])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="do not compile")
    options = vars(parser.parse_args())
    batches, quantized = options.pop("batches"), ("int8",) * (options["device"] == "cpu")
    options |= {
        "precisions": (options.pop("dtype"), *quantized),
        "compiled": not options.pop("plain") and not quantized,
    }
    with ConsoleListener(to_stderr=True) as listener:
        for batch in batches:
            for row in bench("decode", batch=batch, listen=listener, **options)["rows"]:
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
