"""Loading a bundle, and the first use of a kernel, by the number of its variants.

Against the CUDA stand-in of the tests. Each figure is the median over processes of their own, since a
process loads a bundle once; "first call" is explained by opening and hashing the kernel's own library.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, parser, print_rows, report
from dispatch import build

DEFAULT_COUNTS, PROCESSES = (1, 20, 200, 1000), 15

# Runs in a process of its own; prints milliseconds.
MEASURE = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import standin
cuda = standin.Standin.load(Path(sys.argv[2]))
cuda.reset(capabilities=[(9, 0)])
import tvm_ffi, aot_runtime
aot_runtime.load
warm = cuda.tensor((64,), "float16")
started = time.perf_counter()
bundle = aot_runtime.load(sys.argv[3])
loaded = time.perf_counter()
function = bundle.copy0
found = time.perf_counter()
function(warm, warm)
first = time.perf_counter()
function(warm, warm)
second = time.perf_counter()
print(json.dumps([1e3 * (b - a) for a, b in zip((started, loaded, found, first), (loaded, found, first, second))]))
"""


def measure(standin: Path, bundle: Path) -> list[float]:
    command = [sys.executable, "-c", MEASURE, str(PROJECT / "tests"), str(standin), str(bundle)]
    runs = [json.loads(subprocess.check_output(command, env=os.environ)) for _ in range(PROCESSES)]
    return [statistics.median(column) for column in zip(*runs, strict=True)]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--bundles", type=Path, help="keep the bundles here, to measure them elsewhere")
    arguments.add_argument("--counts", type=int, nargs="+", default=DEFAULT_COUNTS, help="numbers of variants")
    options = arguments.parse_args()
    sys.path.insert(0, str(PROJECT / "tests"))
    import standin

    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.bundles or Path(scratch)
        built = standin.build(Path(scratch) / "standin")
        for count in options.counts:
            bundle = build(
                PROJECT / "benchmarks" / "kernels", folder / f"many{count}", "sm_90a", AOT_BENCHMARK_VARIANTS=str(count)
            )
            load, find, first, second = measure(built, bundle)
            library = next(bundle.glob(f"lib/{platform.machine()}-*/sm_90a/copy0.so")).stat().st_size
            results[count] = {
                "load_ms": load,
                "first_attribute_ms": find,
                "first_call_ms": first,
                "second_call_ms": second,
                "library_bytes": library,
            }
    rows = [(count, *(f"{value:.3f}" for value in row.values())) for count, row in results.items()]
    print_rows(("variants", "load ms", "attribute ms", "first call ms", "second call ms", "library bytes"), rows)
    report("load", results, options.out)


if __name__ == "__main__":
    main()
