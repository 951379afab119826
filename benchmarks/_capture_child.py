"""One process of ``capture.py``: it imports, waits for a line on its input, measures, and prints JSON.

``compiled`` and ``served`` measure the first result of every operation and later calls; ``both`` compares later calls in
one process and writes down what the compiled functions are called with; ``alone`` calls the bundle's functions with that,
without the library. ``library`` and ``bundle`` wait with nothing but torch imported, and measure from there to the first
result of FlashAttention-4.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS, ROUNDS = 100, 11
FORWARD = "forward, causal, head dimension 128"


def main() -> None:
    mode, library, bundle, folder = sys.argv[1:]
    found = MODES[mode](library, bundle, folder)
    print(json.dumps(found), flush=True)
    # What torch and CUDA do at the end takes as long as some measurements, and the next process waits for it.
    os._exit(0)


def operations(library: str) -> dict[str, Callable[[], Any]]:
    """Calls of a library with small tensors, by the name of the operation."""
    import torch

    def random(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape, device="cuda").to(dtype)

    if library == "fa4":
        from flash_attn.cute.interface import flash_attn_func

        q, k, v = (random(2, 1024, 8, 128) for _ in range(3))
        return {FORWARD: lambda: flash_attn_func(q, k, v, causal=True)}
    from quack.cross_entropy import cross_entropy_fwd
    from quack.gemm_interface import gemm, gemm_act
    from quack.rmsnorm import layernorm_fwd, rmsnorm_fwd
    from quack.softmax import softmax_fwd

    x, weight = random(8, 4096), random(4096, dtype=torch.float32)
    target = torch.arange(8, device="cuda")
    a, b = random(1024, 512), random(512, 768)
    return {
        "rmsnorm": lambda: rmsnorm_fwd(x, weight),
        "layernorm": lambda: layernorm_fwd(x, weight),
        "softmax": lambda: softmax_fwd(x),
        "cross entropy": lambda: cross_entropy_fwd(x, target),
        "gemm": lambda: gemm(a, b, tuned=False),
        "gemm with ReLU": lambda: gemm_act(a, b, activation="relu", tuned=False),
    }


def public_functions(library: str) -> dict[str, Callable[[], Any]]:
    """The functions that the documentation of a library names, with support for gradients around the operations above."""
    import torch

    if library == "fa4":
        return {}
    import quack

    x, weight = torch.randn(8, 4096, device="cuda").bfloat16(), torch.randn(4096, device="cuda")
    target = torch.arange(8, device="cuda")
    return {
        "rmsnorm": lambda: quack.rmsnorm(x, weight),
        "softmax": lambda: quack.softmax(x),
        "cross entropy": lambda: quack.cross_entropy(x, target, reduction="none"),
    }


def wait() -> None:
    import torch

    torch.cuda.synchronize()
    pause()


def pause() -> None:
    """Say that everything so far is done, and go on when told to."""
    print("ready", flush=True)
    sys.stdin.readline()


def first_results(library: str, serving: Any) -> dict[str, dict[str, Any]]:
    """For each operation: the wait for its first result, the look-up in it, and later calls."""
    import torch

    calls = operations(library)
    torch.zeros(64, device="cuda").sum().item()  # the device is awake, and torch's own kernels are loaded
    wait()
    found: dict[str, dict[str, Any]] = {}
    for name, call in calls.items():
        looked_up = serving.seconds if serving is not None else 0.0
        torch.cuda.synchronize()
        started = time.perf_counter()
        try:
            call()
        except Exception as error:  # one operation that is not in the bundle does not lose the others
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
            continue
        torch.cuda.synchronize()
        found[name] = {"first_ms": (time.perf_counter() - started) * 1e3}
        if serving is not None:
            found[name]["look_up_ms"] = (serving.seconds - looked_up) * 1e3
    for name, call in [(name, call) for name, call in calls.items() if "failed" not in found[name]]:
        found[name]["later_us"] = statistics.median(host_time(call) for _ in range(ROUNDS))
    return found


def host_time(call: Callable[..., Any], *args: Any, **kwargs: Any) -> float:
    """Microseconds of the host per call. Waiting for the GPU is outside the measurement."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter_ns()
    for _ in range(CALLS):
        call(*args, **kwargs)
    elapsed = time.perf_counter_ns() - started
    torch.cuda.synchronize()
    return elapsed / CALLS / 1e3


def compiled(library: str, bundle: str, folder: str) -> Any:
    found = first_results(library, None)
    for name, call in public_functions(library).items():
        call()
        found[name]["public_us"] = statistics.median(host_time(call) for _ in range(ROUNDS))
    return {"operations": found}


def served(library: str, bundle: str, folder: str) -> Any:
    import aot_runtime

    serving = aot_runtime.serve(bundle)
    opening: list[float] = []
    original = serving._open

    def timed_open() -> Any:
        started = time.perf_counter()
        opened = original()
        opening.append((time.perf_counter() - started) * 1e3)
        return opened

    serving._open = timed_open  # type: ignore[method-assign]
    found = first_results(library, serving)
    return {
        "operations": found,
        "hits": serving.hits,
        "misses": serving.misses,
        "opening_ms": max(opening, default=0.0),
    }


class _Both:
    """Compiles every call and serves it too. ``mode`` says which of the two functions the library reaches."""

    def __init__(self, folder: str) -> None:
        self.folder, self.mode, self.operation = folder, "served", ""

    def install(self, bundle: str) -> None:
        import aot_runtime
        from cutlass.base_dsl.compiler import CompileCallable

        compile_it = CompileCallable._compile
        aot_runtime.serve(bundle)
        serve_it = CompileCallable._compile

        def answer(compiler: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
            if str(getattr(function, "__module__", type(function).__module__)).startswith("cutlass."):
                return compile_it(compiler, function, *args, **kwargs)
            made = {
                "served": serve_it(compiler, function, *args, **kwargs),
                "compiled": compile_it(compiler, function, *args, **kwargs),
            }
            return self._switch(made)

        CompileCallable._compile = answer

    def _switch(self, made: dict[str, Any]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return made[self.mode](*args, **kwargs)

        def first_call(*args: Any, **kwargs: Any) -> Any:
            chosen[0] = call
            self._write(made["served"].__name__, args, kwargs, call)

        chosen: list[Any] = [first_call]

        def switch(*args: Any, **kwargs: Any) -> Any:
            return chosen[0](*args, **kwargs)

        switch.__dict__["export_to_c"] = lambda *args, **kwargs: None
        return switch

    def _write(self, kernel: str, args: Any, kwargs: Any, call: Any) -> None:
        """What a kernel is called with, before and after."""
        import torch

        given = as_tuples((args, kwargs))
        before = copy.deepcopy(given)
        call(*args, **kwargs)
        torch.cuda.synchronize()
        torch.save({"kernel": kernel, "before": before, "after": given}, argument_file(self.folder, self.operation))


def as_tuples(value: Any) -> Any:
    """The same with plain tuples and numbers in place of classes of the library and of CuTe DSL."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(as_tuples(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, (tuple, list)):
        return tuple(as_tuples(item) for item in value)
    if isinstance(value, dict):
        return {name: as_tuples(item) for name, item in value.items()}
    number = getattr(value, "value", None)  # of CuTe DSL's Int32 and the like
    return number if isinstance(number, (bool, int, float)) else value


def argument_file(folder: str, operation: str) -> str:
    return os.path.join(folder, f"{operation}.pt")


def both(library: str, bundle: str, folder: str) -> Any:
    switch = _Both(folder)
    switch.install(bundle)
    calls = operations(library)
    found: dict[str, dict[str, Any]] = {}
    for switch.operation, call in calls.items():
        try:
            call()
        except Exception as error:  # as above
            found[switch.operation] = {"failed": f"{type(error).__name__}: {error}"[:2000]}
    wait()
    for name, call in [(name, call) for name, call in calls.items() if name not in found]:
        samples: dict[str, list[float]] = {"compiled": [], "served": []}
        for _ in range(3 * ROUNDS):
            for switch.mode in samples:
                samples[switch.mode].append(host_time(call))
        found[name] = {f"later, {mode}_us": statistics.median(times) for mode, times in samples.items()}
    return {"operations": found}


def alone(library: str, bundle: str, folder: str) -> Any:
    import aot_runtime
    import torch

    kernels = aot_runtime.load(bundle)
    torch.zeros(1, device="cuda")  # the device has a context
    empty, nothing = empty_launch()
    wait()
    found = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".pt")):
        saved = torch.load(os.path.join(folder, name), weights_only=False)
        if saved["kernel"] not in kernels.kernels:
            continue
        function, (args, kwargs) = kernels[saved["kernel"]], saved["before"]
        function(*args, **kwargs)
        torch.cuda.synchronize()
        same = is_same(saved["before"], saved["after"])
        times = [host_time(function, *args, **kwargs) for _ in range(ROUNDS)]
        found[name.removesuffix(".pt")] = {
            "bundle alone_us": statistics.median(times),
            "launch alone_us": statistics.median(host_time(empty) for _ in range(ROUNDS)),
            "ctypes alone_us": statistics.median(host_time(nothing) for _ in range(ROUNDS)),
            "same result alone": same,
        }
    assert not any(module == "cutlass" or module.startswith("cutlass.") for module in sys.modules)
    return {"operations": found}


EMPTY = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry empty() { ret; }
"""


def empty_launch() -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A launch of a kernel that does nothing, by the driver's own function: what no host code can go below.

    Then a function of C that does nothing, called by ctypes with the same arguments: that much of the launch is ctypes.
    """
    import ctypes

    driver = ctypes.CDLL("libcuda.so.1")
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), EMPTY) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(kernel), module, b"empty") == 0
    arguments = kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None
    return functools.partial(driver.cuLaunchKernel, *arguments), functools.partial(ctypes.CDLL(None).labs, *arguments)


def is_same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return all(is_same(item, other[name]) for name, item in one.items())
    return bool(one == other)


def start_library(library: str, bundle: str, folder: str) -> Any:
    import torch

    pause()
    steps = _Steps()
    q, k, v = (torch.zeros(2, 1024, 8, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    steps.done("tensors")
    from flash_attn.cute.interface import flash_attn_func

    steps.done("import")
    flash_attn_func(q, k, v, causal=True)
    torch.cuda.synchronize()
    found = steps.end()
    later = statistics.median(host_time(flash_attn_func, q, k, v, causal=True) for _ in range(ROUNDS))
    return {**found, "operations": {FORWARD: {"first_ms": found["first result"] * 1e3, "later_us": later}}}


def start_bundle(library: str, bundle: str, folder: str) -> Any:
    import torch

    pause()
    steps = _Steps()
    saved = torch.load(argument_file(folder, FORWARD), weights_only=False)
    steps.done("tensors")
    import aot_runtime

    kernels = aot_runtime.load(bundle)
    steps.done("import")
    args, kwargs = saved["before"]
    kernels[saved["kernel"]](*args, **kwargs)
    torch.cuda.synchronize()
    return steps.end()


class _Steps:
    """Seconds between steps. ``tensors`` is mostly torch's own work: creating a context on the device."""

    def __init__(self) -> None:
        self.started = self.last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def done(self, step: str) -> None:
        now = time.perf_counter()
        self.seconds[step], self.last = now - self.last, now

    def end(self) -> dict[str, float]:
        self.done("first result")
        total = self.last - self.started
        return {**self.seconds, "all": total, "all but tensors": total - self.seconds["tensors"]}


MODES = {
    "compiled": compiled,
    "served": served,
    "both": both,
    "alone": alone,
    "library": start_library,
    "bundle": start_bundle,
}

if __name__ == "__main__":
    main()
