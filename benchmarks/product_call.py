"""What a call of the shipped products costs in C: as a measured table chooses, and as models of their times do.

    python benchmarks/product_call.py --out results.json

Against the CUDA stand-in of the tests, so nothing is computed: the time is that of finding the variant and of its launcher.
One bundle has the table of the H200 under the stand-in's name. In the other one the stand-in is a device without a table, so
a call compares the usual tilings by what they prefer.
"""

from __future__ import annotations

import ctypes
import json
import platform
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from _common import PROJECT, interleaved_medians, parser, print_rows, report
from dispatch import BF16, F8, F32, Arguments, Given, build, compile_loop

sys.path.insert(0, str(PROJECT / "tests"))
CALLS, ROUNDS = 20_000, 41
EXTENTS = ((16, 8192, 8192), (2048, 4096, 4096))
KERNELS = ("gemm", "gemm_fp8", "gemm_f32")


def tensors_of(m: int, n: int, k: int) -> dict[str, list[Given]]:
    """The arguments of a product, by function."""
    return {
        "gemm__identity": [(BF16, (m, k)), (BF16, (n, k)), (BF16, (m, n)), None],
        "gemm_fp8": [(F8, (m, k)), (F8, (n, k)), (F32, (m,)), (F32, (n,)), (BF16, (m, n))],
        "gemm_f32__identity__tf32": [(F32, (m, k)), (F32, (n, k)), (F32, (m, n)), None],
    }


def stand_ins_table(folder: Path) -> Path:
    table = json.loads((PROJECT / "kernels" / "tuning" / "nvidia_h200_132.json").read_text())
    table["device"]["name"] = "Stand-in 9.0"
    file = folder / "table.json"
    file.write_text(json.dumps(table))
    return file


def timed(loop: Any, entries: Mapping[str, Any], function: str, arguments: Arguments) -> dict[str, float]:
    """Nanoseconds of a call through each of the entry libraries."""
    runs = {}
    for name, entry in entries.items():
        address = ctypes.cast(getattr(entry, f"__tvm_ffi_{function}"), ctypes.c_void_p).value
        assert loop(address, arguments.array, arguments.count, 1) > 0, "the first call opens the kernel's library"
        runs[name] = partial(loop, address, arguments.array, arguments.count, CALLS)
    return interleaved_medians(runs, ROUNDS)


def main() -> None:
    options = parser(__doc__).parse_args()
    import standin

    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        cuda = standin.Standin.load(standin.build(folder / "standin"))
        cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
        cuda.set_recording(False)
        import tvm_ffi  # noqa: F401  its library must be in the process before a bundle is

        loop = compile_loop(folder)
        entries = {}
        for name, table in {"by the table": stand_ins_table(folder), "by models": None}.items():
            bundle = build(PROJECT / "kernels", folder / name.replace(" ", "_"), "sm_90a", table, KERNELS)
            entries[name] = ctypes.CDLL(str(bundle / "lib" / f"{platform.machine()}-linux-gnu" / "libbundle.so"))
        for extents in EXTENTS:
            for function, tensors in tensors_of(*extents).items():
                name = f"{function}, {' x '.join(map(str, extents))}"
                results[name] = timed(loop, entries, function, Arguments(*tensors))
    print_rows(
        ("product", "by the table, ns", "by models, ns"), [(name, *row.values()) for name, row in results.items()]
    )
    report("product_call", results, options.out)


if __name__ == "__main__":
    main()
