"""What a kernel costs the host as an operator of torch, against the plain call and torch's own operator.

With a bundle of the shipped kernels, on a GPU. Without a bundle, on any machine: TVM-FFI's function that does nothing
stands in for the compiled kernel, and takes tensors of the CPU. That shows what the operators add and nothing else.

All calls take the same small tensors, in turns. They are measured under ``no_grad``, under ``inference_mode``, and with
grad mode on but no gradient wanted. The figures are medians of the host's time per call, in nanoseconds. Turns are short, and
what one call takes more than another is the median of the differences within a round: the clock of a host varies by more
than that. Where code happens to lie in memory changes the differences by a hundred nanoseconds too, so several processes
measure all of it. They import torch and load the bundle side by side, and measure one after the other. The results are
the medians of their figures, and list the differences of each process.

If the bundle has the backward kernel, a call and its backward are measured too, of a tensor that requires a gradient.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _common import interleaved_samples, medians_of, paired_difference, parser, print_rows, report
from python_call import per_call, torch_with_gpu

CALLS, ROUNDS = 100, 101  # calls of a turn, and how many turns each function has
PROCESSES = 5
# What operators may add to the plain call, and to torch.empty_like and the plain call.
LIMITS_NS = {"out form": 1000, "functional form": 1000}
DIFFERENCES = {
    "out form over the plain call": ("ops.rmsnorm.out", "a lambda around the plain call"),
    # The plain call looks for arrays of other libraries; operators need not.
    "out form over the compiled function": ("ops.rmsnorm.out", "a lambda around the compiled function"),
    "functional form over torch.empty_like and the plain call": (
        "ops.rmsnorm",
        "torch.empty_like and the plain call",
    ),
}


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("bundle", type=Path, nargs="?", help="the shipped kernels, for a machine with a GPU")
    arguments.add_argument("--processes", type=int, default=PROCESSES, help="how many measure (default: %(default)s)")
    arguments.add_argument("--wait", action="store_true", help="with one process: measure after a line of input")
    options = arguments.parse_args()
    if options.processes > 1:
        results = combined(_measured_elsewhere(options.bundle, options.processes))
    else:
        ready = _on_gpu(options.bundle) if options.bundle else _without_gpu()
        if options.wait:
            print("ready", flush=True)
            sys.stdin.readline()
        results = measured(*ready)
    for name, figures in results.items():
        rows = [(key, value) for key, value in figures.items() if isinstance(value, float)]
        print_rows((f"call, {name}", "ns"), rows)
    report(
        "torch_call",
        {"calls": "GPU" if options.bundle else "no kernel", "limits_ns": LIMITS_NS, **results},
        options.out,
    )


def measured(torch: Any, operators: Any, device: str) -> dict[str, dict[str, Any]]:
    """All figures of this process, by the state in which calls were made."""
    states = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "grad mode on": torch.enable_grad}
    results = {}
    for name, state in states.items():
        with state():
            results[name] = measure(torch, operators, device)
    if "rmsnorm_backward" in operators[1]:
        results["forward and backward"] = differentiated(torch, operators[1], device)
    return results


def _measured_elsewhere(bundle: Path | None, processes: int) -> list[dict[str, dict[str, Any]]]:
    """What other processes measure, each in its turn."""
    given = [str(bundle)] if bundle else []
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder, f"{number}.json") for number in range(processes)]
        command = [sys.executable, __file__, *given, "--processes", "1", "--wait", "--out"]
        started = [
            subprocess.Popen([*command, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for out in outs
        ]
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # "ready": none of them imports any more while one measures
        for process in started:
            process.communicate("now\n")
            if process.returncode:
                sys.exit(f"a process that measures ended with {process.returncode}")
        found = [json.loads(out.read_text())["results"] for out in outs]
    return [{name: run[name] for name in run if name not in ("calls", "limits_ns")} for run in found]


def combined(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each figure of several processes; of what operators add, also the figures themselves."""
    made: dict[str, Any] = {}
    for key, first in runs[0].items():
        values = [run[key] for run in runs]
        made[key] = combined(values) if isinstance(first, dict) else statistics.median(values)
        if key in DIFFERENCES:
            made[f"{key}, by process"] = values
    return made


def _on_gpu(path: Path) -> tuple[Any, Any, str]:
    torch = torch_with_gpu()
    import aot_runtime
    import aot_runtime.torch

    bundle = aot_runtime.load(path)
    return torch, (bundle["rmsnorm"], aot_runtime.torch.register(bundle)), "cuda"


def _without_gpu() -> tuple[Any, Any, str]:
    try:
        import torch
    except ImportError:
        sys.exit("this benchmark needs torch")
    import aot_runtime.torch
    from aot_runtime.core.functions import make_function

    bundle = _NoKernel()
    plain = make_function(bundle._record("rmsnorm"), "rmsnorm", bundle._symbol)
    return torch, (plain, aot_runtime.torch.register(bundle)), "cpu"  # type: ignore[arg-type]


class _NoKernel:
    """As much of a bundle as operators need. Its one kernel does nothing."""

    name, path, kernels = "kernels", Path("none"), ("rmsnorm",)

    def _replace(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)

    def _record(self, name: str) -> Any:
        from aot_runtime.description.kernel_records import KernelRecord, Parameter

        x, weight = (Parameter(name, type="tensor") for name in ("x", "weight"))
        out = Parameter("out", output=True, shape="x.shape", dtype="x.dtype", type="tensor")
        eps = Parameter("eps", has_default=True, default=1e-6, type="float")
        return KernelRecord(name, "", (x, weight, out, eps), (), (name,), (), 1)

    def _call(self, name: str) -> int:
        return 0  # an old protocol: nobody asks it about calls without memory

    def _symbol(self, name: str) -> Any:
        import tvm_ffi

        return tvm_ffi.get_global_func("testing.nop")


def tensors(torch: Any, device: str) -> tuple[Any, Any, Any]:
    x, out = (torch.ones(64, 256, device=device, dtype=torch.bfloat16) for _ in range(2))
    return x, torch.ones(256, device=device, dtype=torch.bfloat16), out


def measure(torch: Any, operators: Any, device: str) -> dict[str, Any]:
    plain, ops = operators
    x, weight, out = tensors(torch, device)
    timed = _timed(device)
    write = ops.rmsnorm.out  # neither side is looked up in its module for each call
    compiled = write.__globals__["_target"]

    def allocate_and_call() -> None:
        plain(x, weight, torch.empty_like(x))

    runs = {
        "the plain call": timed(plain, x, weight, out),
        "ops.rmsnorm.out": timed(lambda: write(x, weight, out=out)),
        "a lambda around the plain call": timed(lambda: plain(x, weight, out)),
        "a lambda around the compiled function": timed(lambda: compiled(x, weight, out, 1e-6)),
        "torch.empty_like and the plain call": timed(allocate_and_call),
        "ops.rmsnorm": timed(ops.rmsnorm, x, weight),
    }
    if device == "cuda":
        runs["torch.ops.kernels.rmsnorm, through the dispatcher"] = timed(torch.ops.kernels.rmsnorm.default, x, weight)
        own = torch.nn.functional.rms_norm
        runs["torch.nn.functional.rms_norm"] = timed(lambda: own(x, (256,), weight, 1e-6))
    samples = interleaved_samples(runs, ROUNDS)
    return {**medians_of(samples), **{name: paired_difference(samples, *pair) for name, pair in DIFFERENCES.items()}}


def differentiated(torch: Any, ops: Any, device: str) -> dict[str, float]:
    """A call and its backward, which gives the gradients of ``x`` and ``weight``."""
    x, weight, arriving = tensors(torch, device)
    x.requires_grad_(), weight.requires_grad_()
    own = torch.nn.functional.rms_norm
    forwards = {
        "ops.rmsnorm": lambda: ops.rmsnorm(x, weight),
        "torch.ops.kernels.rmsnorm, through the dispatcher": lambda: torch.ops.kernels.rmsnorm.default(x, weight),
        "torch.nn.functional.rms_norm": lambda: own(x, (256,), weight, 1e-6),
    }
    runs = {
        name: per_call(lambda forward=forward: torch.autograd.grad(forward(), (x, weight), arriving), calls=CALLS)
        for name, forward in forwards.items()
    }
    return medians_of(interleaved_samples(runs, 21))


def _timed(device: str) -> Callable[..., Callable[[], float]]:
    return partial(per_call, calls=CALLS) if device == "cuda" else _per_call


def _per_call(function: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    """Nanoseconds of the processor's time per call: other programs may run meanwhile."""

    def run() -> float:
        started = time.thread_time_ns()
        for _ in range(CALLS):
            function(*arguments)
        return (time.thread_time_ns() - started) / CALLS

    return run


if __name__ == "__main__":
    main()
