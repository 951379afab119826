"""Draw results of ``python -m aot bench --out`` from their files, as bars in plain SVG.

    python benchmarks/plot.py benchmarks/results/h200-kernels.json --out benchmarks/results/h200-kernels.svg

Several files make one picture. They must come from the same GPU model.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aot.errors import AotError
from aot.gpu.bench import read_results
from aot.gpu.plot import plot


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        read = [read_results(path) for path in options.results]
    except AotError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    gpus = {gpu for gpu, _ in read}
    if len(gpus) > 1:
        print(f"error: results of different GPUs: {', '.join(sorted(gpus))}", file=sys.stderr)
        return 2
    options.out.write_text(plot(gpus.pop(), [result for _, results in read for result in results]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
