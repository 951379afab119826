"""What a key adds to loading a bundle: the module that checks signatures is imported, and one signature is checked.

Each figure is the median over 20 fresh processes, by the clock and in the processor's time: on a machine that others use
too the two are far apart. The bundle has one kernel with one variant; the check does not depend on its size, since the
signature covers `manifest.json`, which stays small.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from _common import PROJECT, parser, print_rows, report
from dispatch import build
from load import PROCESSES, measure

from aot.bundle.signature import Signer, new_key, public_path, sign

LIMIT_MS = 5.0  # more than without a key, the import of the module included

LOAD = """
import json, sys, time
import tvm_ffi, aot_runtime
aot_runtime.load
key = {"key": sys.argv[2].split(",")} if sys.argv[2] else {}
started = time.perf_counter(), time.process_time()
aot_runtime.load(sys.argv[1], **key)
print(json.dumps([1e3 * (time.perf_counter() - started[0]), 1e3 * (time.process_time() - started[1])]))
"""


def main() -> None:
    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        bundle = build(PROJECT / "benchmarks" / "kernels", folder / "one", "sm_90a", AOT_BENCHMARK_VARIANTS="1")
        for name in ("release", "next"):
            new_key(folder / name)
        sign(bundle, Signer.read(folder / "release"))
        release, other = (str(public_path(folder / name)) for name in ("release", "next"))
        keys = {"no key": "", "one key": release, "two keys, the second signed": f"{other},{release}"}
        results = {what: measure(sys.executable, LOAD, ("load",), bundle, given) for what, given in keys.items()}
    print_rows(("load with", "ms", "CPU ms"), [(what, *found.values()) for what, found in results.items()])
    more = results["one key"]["load_cpu_ms"] - results["no key"]["load_cpu_ms"]
    facts = {"processes": PROCESSES, "load_average": os.getloadavg()[0], "limit_ms": LIMIT_MS}
    report("signature", {**facts, "more_for_one_key_cpu_ms": more, **results}, options.out)
    if more > LIMIT_MS:
        sys.exit(f"a key costs {more:.2f} ms more, the limit is {LIMIT_MS} ms")


if __name__ == "__main__":
    main()
