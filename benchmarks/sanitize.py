"""Calls every kernel of a bundle with small and ragged inputs, for compute-sanitizer to watch.

    compute-sanitizer --tool memcheck  --error-exitcode 9 python benchmarks/sanitize.py dist/kernels
    compute-sanitizer --tool racecheck --error-exitcode 9 python benchmarks/sanitize.py dist/kernels --dtype bf16
    compute-sanitizer --tool initcheck --error-exitcode 9 python benchmarks/sanitize.py dist/kernels --dtype bf16

Inputs are made, and results compared, on the CPU; the GPU sees copies and our kernels, nothing of torch's, whose
reductions have races of their own to report. Beside the bundle it takes torch, apache-tvm-ffi and aot_runtime; the
inputs and references are those of the contracts in the bundle. `python -m aot check` compares more closely. Under
racecheck a call takes seconds: `--kernel`, `--dtype`, `--variant`, `--each` and `--elements` narrow what is called.
With `--every` a call also runs the variants that take it and that dispatch does not select: a variant for large problems
gets small ones. After `--seconds` no further call begins, so the tool still writes its summary.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import itertools
import json
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

GUARD = 256  # bytes on either side of an output
FUNCTIONS = {"min": min, "max": max}  # that the shape of an output may call


def torch_dtype(name: str) -> Any:
    import torch
    from aot_runtime.dtypes import DTYPES

    return getattr(torch, DTYPES[name].torch)


def tolerance(*dtypes: str) -> float:
    """Relative to the norm of a result: above what such dtypes are rounded to, far below the effect of a wrong element.

    Sums in f32 are rounded too. A result of integers is exact.
    """
    from aot_runtime.dtypes import find_dtype

    digits = [found.digits for dtype in dtypes if (found := find_dtype(dtype)) is not None]
    return max(3 * 2.0 ** -min(digits), 1e-5) if all(digits) else 0.0


class Inputs:
    """Makes tensors for the contracts, as in a check, but on the CPU. Calls with larger ones are not made."""

    def __init__(self, elements: int = sys.maxsize) -> None:
        import torch

        self.torch, self.device, self.elements = torch, torch.device("cpu"), elements
        self.generator = torch.Generator().manual_seed(0)

    def tensor(self, shape: tuple[int, ...], dtype: str, *, stride: int | None = None, offset: int = 0) -> Any:
        *rows, columns = shape
        width = columns if stride is None else stride
        count = width
        for extent in rows:
            count *= extent
        if count > self.elements:
            return self.torch.zeros(shape, dtype=torch_dtype(dtype))  # takes less time than random numbers
        flat = self.torch.randn(count + offset, generator=self.generator)
        return flat.to(torch_dtype(dtype))[offset:].view(*rows, width)[..., :columns]


@dataclass
class Wanted:
    """Which calls are made, by the variant that runs, and how many calls of each variant were made."""

    globs: Sequence[str] = ("*",)
    each: int = sys.maxsize  # calls of one variant
    every: bool = False  # also those that dispatch does not select
    until: float = float("inf")  # of time.monotonic
    made: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.until

    def take(self, variant: str) -> bool:
        """Whether to make a call of the variant; counts it if so."""
        if not any(fnmatch.fnmatchcase(variant, glob) for glob in self.globs) or self.made.get(variant, 0) >= self.each:
            return False
        self.made[variant] = self.made.get(variant, 0) + 1
        return True


def load_contract(bundle: Path, kernel: str) -> Any:
    """The module of a contract. It needs only ``Cost`` of the builder, which is not used here."""
    sys.dont_write_bytecode = True  # a bundle holds what its manifest lists
    sys.modules.setdefault("aot", types.ModuleType("aot"))
    if str(bundle) not in sys.path:
        sys.path.insert(0, str(bundle))
    path = next((bundle / "contracts").rglob(f"{kernel}.py"))
    return importlib.import_module(".".join(path.relative_to(bundle).with_suffix("").parts))


def dtypes_of(bundle: Any, kernel: str) -> list[str]:
    """The dtypes that the kernel was built for, on any architecture. A kernel without an axis ``dtype`` takes f32."""
    details = [json.loads(path.read_text()) for path in sorted((Path(bundle.path) / "details").glob("*.json"))]
    variants = (variant for detail in details for variant in detail["variants"] if variant["kernel"] == kernel)
    return sorted({variant["point"].get("dtype", "f32") for variant in variants})


def choices_of(record: Any) -> Iterator[dict[str, str]]:
    for labels in itertools.product(*(choice.values for choice in record.choices)):
        if "__".join((record.name, *labels)) in record.functions:
            yield {choice.name: label for choice, label in zip(record.choices, labels, strict=True)}


def on_device(tensor: Any, device: str) -> Any:
    """A copy of the tensor's whole storage with the same view, so that no kernel gathers elements."""
    import torch

    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
    return whole.to(device, copy=True).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def make_outputs(record: Any, arguments: Mapping[str, Any], picked: str) -> dict[str, Any]:
    """Outputs of the declared shapes on the CPU, between guard bytes, every bit set: NaN.

    If the caller picks the dtype of an output, it is ``picked``. An optional output that the arguments have as None is
    left out.
    """
    import torch

    made: dict[str, Any] = {}
    for parameter in record.parameters:
        if parameter.output and arguments.get(parameter.name, ...) is not None:
            name, dot, _ = parameter.dtype.partition(".")
            given = arguments.get(name)
            dtype = torch_dtype(picked if dot else name) if given is None else given.dtype
            known = {**FUNCTIONS, **arguments, **made}
            shape = eval(parameter.shape, {"__builtins__": {}}, known)  # an expression of the manifest
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            raw = torch.full((GUARD + size + GUARD,), 255, dtype=torch.uint8)
            made[parameter.name] = raw[GUARD : GUARD + size].view(dtype).view(shape)
    return made


def problem_of(result: Any, exact: Any, dtype: str) -> str:
    """What is wrong with an output of a call in a dtype, or "". Both tensors are on the CPU."""
    import torch

    storage = torch.empty(0, dtype=torch.uint8).set_(result.untyped_storage())
    if not bool((storage[:GUARD] == 255).all()) or not bool((storage[storage.numel() - GUARD :] == 255).all()):
        return "bytes beside the output were overwritten"
    rounded, values = exact.to(result.dtype).double(), result.double()
    finite = torch.isfinite(rounded)
    if not torch.equal(finite, torch.isfinite(values)):
        return "not finite in other places than the reference"
    error, size = float((values - exact.double())[finite].norm()), float(exact.double()[finite].norm())
    limit = tolerance(str(result.dtype), dtype) * size + 1e-6
    return f"the error's norm is {error:.3g}, {limit:.3g} tolerated" if error > limit else ""


def takers(bundle: Any, kernel: str, arguments: Mapping[str, Any]) -> list[str]:
    """The variants that take a call on the GPU, first the one that dispatch selects."""
    import aot_runtime
    import torch

    gpu = torch.cuda.get_device_properties(0)
    device = aot_runtime.Device((gpu.major, gpu.minor), gpu.name, gpu.multi_processor_count)
    explained = bundle.explain(kernel, device, **arguments)
    chosen = explained.chosen
    if chosen is None:
        return []
    others = (one.variant for one in explained.candidates if not one.reason and one.arch == chosen.arch)
    return [chosen.variant, *(variant for variant in others if variant != chosen.variant)]


def run_variant(bundle: Any, kernel: str, variant: str, arguments: Mapping[str, Any]) -> None:
    from aot_runtime.core.asking import variant_function

    variant_function(bundle, kernel, variant)(**arguments)


def call(
    bundle: Any,
    kernel: str,
    contract: Any,
    arguments: dict[str, Any],
    choices: dict[str, str],
    dtype: str,
    device: str,
    wanted: Wanted,
) -> Iterator[str]:
    """Make one call with each wanted variant; yields what is wrong with each of them, or ""."""
    outputs = make_outputs(bundle.manifest.kernels[kernel], arguments, dtype)
    if not all(value.numel() for value in outputs.values()):
        return  # nothing is launched
    moved = {name: on_device(value, device) if hasattr(value, "shape") else value for name, value in arguments.items()}
    written = {name: on_device(value, device) for name, value in outputs.items()}
    variants = takers(bundle, kernel, {**moved, **written, **choices})
    expected: tuple[Any, ...] = ()
    for variant in filter(wanted.take, variants if wanted.every else variants[:1]):
        written = {name: on_device(value, device) for name, value in outputs.items()}
        run_variant(bundle, kernel, variant, {**moved, **written, **choices})
        returned = [on_device(value, "cpu") for value in written.values()]  # waits for the kernel
        if not expected:
            exact = contract.reference(**arguments, **choices)
            expected = exact if isinstance(exact, tuple) else (exact,)
        problems = [problem_of(result, exact, dtype) for result, exact in zip(returned, expected, strict=True)]
        yield "; ".join(filter(None, problems))


def calls_of(
    bundle: Any, kernel: str, dtypes: list[str], elements: int, device: str, wanted: Wanted
) -> Iterator[tuple[str, str]]:
    """Each wanted call that the kernel takes, as text, with what is wrong with it."""
    contract = load_contract(Path(bundle.path), kernel)
    for choices, dtype in itertools.product(choices_of(bundle.manifest.kernels[kernel]), dtypes):
        for arguments in contract.inputs(Inputs(elements), dtype):
            if wanted.over:
                return
            tensors = {name: value for name, value in arguments.items() if hasattr(value, "shape")}
            if max(value.numel() for value in tensors.values()) <= elements:
                shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())
                what = " ".join((kernel, *choices.values(), dtype, shapes))
                for problem in call(bundle, kernel, contract, arguments, choices, dtype, device, wanted):
                    yield what, problem


def record_of(counts: Mapping[str, int], wanted: Wanted, problems: list[str]) -> str:
    record = {"calls": counts, "variants": wanted.made, "problems": problems, "time was over": wanted.over}
    return json.dumps(record, indent=1) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--kernel", action="append", default=[], metavar="GLOB", help="only these; repeatable")
    parser.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="bf16 and f32 by default")
    parser.add_argument("--elements", type=int, default=300_000, help="of the largest tensor that is tried")
    parser.add_argument("--variant", action="append", default=[], metavar="GLOB", help="only its calls; repeatable")
    parser.add_argument("--each", type=int, default=sys.maxsize, metavar="N", help="at most N calls of a variant")
    parser.add_argument("--every", action="store_true", help="also variants that take a call and are not selected")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no call later than this")
    parser.add_argument("--out", type=Path, help="write what was called here, as JSON")
    options = parser.parse_args()
    import aot_runtime

    bundle = aot_runtime.load(options.bundle.resolve())
    chosen = [name for name in bundle.kernels if any(fnmatch.fnmatchcase(name, g) for g in options.kernel or ["*"])]
    counts: dict[str, int] = {}
    problems: list[str] = []
    until = time.monotonic() + options.seconds
    wanted = Wanted(options.variant or ("*",), options.each, options.every, until)
    for kernel in chosen:
        dtypes = [dtype for dtype in dtypes_of(bundle, kernel) if dtype in (options.dtype or ("bf16", "f32"))]
        try:
            for what, problem in calls_of(bundle, kernel, dtypes, options.elements, "cuda", wanted):
                counts[kernel] = counts.get(kernel, 0) + 1
                if problem:
                    problems.append(f"{what}: {problem}")
                    print(f"failed: {problems[-1]}", file=sys.stderr, flush=True)
                if options.out is not None:  # after each call: a tool that is killed leaves what was called
                    options.out.write_text(record_of(counts, wanted, problems))
        except Exception as error:  # one kernel that cannot be called does not keep the others from the tool
            problems.append(f"{kernel}: {type(error).__name__}: {error}")
            print(f"failed: {problems[-1]}", file=sys.stderr, flush=True)
        print(f"{kernel}: {counts.get(kernel, 0)} calls", file=sys.stderr, flush=True)
    if options.out is not None:
        options.out.write_text(record_of(counts, wanted, problems))
    print(f"{sum(counts.values())} calls, {len(problems)} wrong results")
    return 1 if problems or not counts else 0


if __name__ == "__main__":
    sys.exit(main())
