"""A call from Python with torch tensors on a GPU: through a bundle, through CuTe DSL's own function, torch's own.

Needs a GPU, torch, and a bundle of the shipped kernels. Also measures CuTe DSL if it is installed. All are called
positionally with the same small tensors and take turns. The numbers are medians of host time per call.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import interleaved_medians, parser, print_rows, report

CALLS, ROUNDS = 2000, 51


def per_call(function: Callable[..., Any], *arguments: Any, calls: int = CALLS) -> Callable[[], float]:
    """Nanoseconds of host time per call. Waiting for the GPU is outside the measurement."""
    import torch

    def run() -> float:
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for _ in range(calls):
            function(*arguments)
        elapsed = time.perf_counter_ns() - started
        torch.cuda.synchronize()
        return elapsed / calls

    return run


def torch_with_gpu() -> Any:
    """Torch, on a machine that can run the benchmark; ends the program with a sentence elsewhere."""
    try:
        import torch
    except ImportError:
        sys.exit("this benchmark needs torch")
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU")
    return torch


def cute_dsl_function(x: Any) -> Callable[..., Any] | None:
    """The same kernel compiled in this process by CuTe DSL, as its users do."""
    try:
        import cutlass.cute as cute
        from aot_runtime.arch import Arch
    except ImportError:
        return None
    from cutlass.cute.runtime import from_dlpack, make_fake_stream

    import aot.declare.discover

    kernels = {
        kernel.name: kernel
        for kernel in aot.declare.discover.discover(str(Path(__file__).parents[1] / "kernels")).kernels
    }
    variant = next(
        v for v in kernels["add"].variants(Arch(9, 0, "a")) if v.point["dtype"] == "f16" and v.point["rank"] == "rank1"
    )
    tensor = from_dlpack(x, assumed_align=16, enable_tvm_ffi=True).mark_layout_dynamic()
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    return cute.compile(variant.spec.function, tensor, tensor, tensor, stream, options="--enable-tvm-ffi")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path)
    options = arguments.parse_args()
    torch = torch_with_gpu()
    import aot_runtime

    bundle = aot_runtime.load(options.bundle)
    x, y, out = (torch.ones(4096, device="cuda", dtype=torch.float16) for _ in range(3))
    runs = {
        "bundle.add": per_call(bundle.add, x, y, out),
        "its TVM-FFI function alone": per_call(bundle._symbol("add"), x, y, out),
        "torch.add(out=)": per_call(lambda: torch.add(x, y, out=out)),
        "x + y": per_call(lambda: x + y),
    }
    compiled = cute_dsl_function(x)
    if compiled is not None:
        runs["CuTe DSL's own function"] = per_call(compiled, x, y, out)
    medians = interleaved_medians(runs, ROUNDS)
    print_rows(("call", "ns"), list(medians.items()))
    report("python_call", medians, options.out)


if __name__ == "__main__":
    main()
