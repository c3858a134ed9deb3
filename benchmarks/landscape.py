"""The loss around the weights of a run: extreme eigenvalues of its Hessian, and a picture of a plane.

python benchmarks/landscape.py runs/tales                          landscape.svg
python benchmarks/landscape.py runs/tales --directions extreme     the largest and the smallest curvature
python benchmarks/landscape.py runs/tales --batches 8 --grid 41 --json
"""

import argparse
import json
import sys
from pathlib import Path

import harken
from harken.errors import HarkenError
from harken.experiments.report.landscape_plot import landscape_svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--batches", type=int, default=4, help="training batches whose mean loss is used")
    parser.add_argument("--grid", type=int, default=21, help="points per side of the plane")
    parser.add_argument("--radius", type=float, help="half the side of the plane, as a distance of weights")
    parser.add_argument("--steps", type=int, default=60, help="Lanczos steps")
    parser.add_argument("--directions", choices=["top", "extreme"], default="top")
    parser.add_argument("--out", type=Path, default=Path("landscape.svg"))
    parser.add_argument("--json", action="store_true")
    options = vars(parser.parse_args())
    name, out, as_json = options.pop("run"), options.pop("out"), options.pop("json")
    try:
        landscape = harken.load(name).landscape(**options)
    except HarkenError as error:
        sys.exit(f"landscape.py: {error}")
    out.write_text(landscape_svg(landscape, f"Loss around the weights of {Path(name).name}"), "utf-8")
    print(json.dumps(landscape.facts()) if as_json else f"{landscape}; {out}")


if __name__ == "__main__":
    main()
