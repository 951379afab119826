"""What checking and measuring share: finding the GPU, selecting kernels, making inputs and outputs. Needs torch.

Nothing here imports the builder: bundles run on machines that have only torch and the bundle.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypedDict

from aot_runtime.arch import Arch
from aot_runtime.core.explain import Device
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.manifest import Manifest

from ..bundle.details import VariantDetails, read_details
from ..bundle.globs import matching
from ..bundle.layout import details_name
from ..declare.expressions import check_dtype, check_shape, shape_of
from ..errors import UsageError
from .inputs import InputMaker, torch_dtype
from .machine import read_driver

__all__ = [
    "Gpu",
    "GpuFacts",
    "arguments_text",
    "calls_of",
    "choices_of",
    "find_gpu",
    "make_outputs",
    "select_kernels",
    "variants_of",
]


class GpuFacts(TypedDict):
    """The GPU that something ran on, and when."""

    gpu: str  # its name
    capability: str  # its compute capability, such as 9.0
    date: str  # year, month and day
    torch: str  # version of torch


@dataclass(frozen=True)
class Gpu:
    """The device that kernels run on. Tests use a CPU."""

    name: str
    capability: tuple[int, int]
    device: str = "cuda"
    multiprocessors: int = 0
    bandwidth: int = 0  # of its memory in GB/s
    clock: int = 0  # of its multiprocessors in MHz

    @property
    def described(self) -> Device:
        """As ``explain`` takes it: with what tables go by."""
        return Device(self.capability, self.name, self.multiprocessors, self.bandwidth)

    def synchronize(self) -> None:
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def facts(self) -> GpuFacts:
        """Facts about the machine that a result depends on."""
        import torch

        return {
            "gpu": self.name,
            "capability": f"{self.capability[0]}.{self.capability[1]}",
            "date": datetime.date.today().isoformat(),
            "torch": str(torch.__version__),
        }


def find_gpu(command: str) -> Gpu:
    """The current GPU; :class:`UsageError` if there is none."""
    try:
        import torch
    except ModuleNotFoundError:
        raise UsageError(f"`{command}` needs torch, which is not installed", hint="`pip install torch`") from None
    if not torch.cuda.is_available():
        raise UsageError(
            f"`{command}` needs an NVIDIA GPU, and torch finds none", hint="`python -m aot doctor` says what is missing"
        )
    major, minor = torch.cuda.get_device_capability()
    index = torch.cuda.current_device()
    count = torch.cuda.get_device_properties(index).multi_processor_count
    known = read_driver().devices
    bandwidth, clock = (known[index].bandwidth, known[index].clock) if index < len(known) else (0, 0)
    return Gpu(torch.cuda.get_device_name(), (int(major), int(minor)), "cuda", int(count), bandwidth, clock)


def select_kernels(manifest: Manifest, globs: Sequence[str]) -> list[str]:
    return matching(manifest.kernels, globs)


def choices_of(record: KernelRecord, functions: Sequence[str] = ()) -> Iterator[dict[str, str]]:
    """Every combination of a kernel's choices that was built, or those of some of its functions."""
    names = [choice.name for choice in record.choices]
    for labels in product(*(choice.values for choice in record.choices)):
        if "__".join((record.name, *labels)) in (functions or record.functions):
            yield dict(zip(names, labels, strict=True))


def calls_of(
    record: KernelRecord, inputs: Callable[..., Any], dtypes: Sequence[str], device: str, functions: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Dtype, choices and arguments of each call that a contract's ``inputs`` yield, for each of the dtypes."""
    for choices in choices_of(record, functions):
        for dtype in dtypes:
            for arguments in inputs(InputMaker(device), dtype):
                yield dtype, choices, arguments


def variants_of(bundle: Path, manifest: Manifest) -> dict[Arch, list[VariantDetails]]:
    files = {arch: details_name(arch) for arch in manifest.archs}
    return {arch: read_details(bundle / name, expected=manifest.files.get(name)) for arch, name in files.items()}


def make_outputs(
    record: KernelRecord, arguments: Mapping[str, Any], device: str, margin: int = 0, picked: str | None = None
) -> dict[str, Any]:
    """Outputs of the declared shapes and dtypes, with ``margin`` bytes on both sides.

    Every bit is set, which is NaN in every float type: elements that a kernel does not write are noticed. If the caller
    picks the dtype of an output, it is ``picked``. An optional output that the arguments have as None is left out.
    """
    _check_outputs(record, picked)
    import torch

    made: dict[str, Any] = {}
    for parameter in record.parameters:
        if parameter.output and arguments.get(parameter.name, ...) is not None:
            assert parameter.shape is not None and parameter.dtype is not None
            name, dot, _ = parameter.dtype.partition(".")
            known = {**arguments, **made}
            dtype = known[name].dtype if name in known else torch_dtype(name if not dot else str(picked))
            shape = shape_of(parameter.shape, known)
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            raw = torch.full((margin + size + margin,), 255, dtype=torch.uint8, device=device)
            made[parameter.name] = raw[margin : margin + size].view(dtype).view(shape)
    return made


def _check_outputs(record: KernelRecord, picked: str | None) -> None:
    known = {parameter.name for parameter in record.parameters if not parameter.output}
    for parameter in (parameter for parameter in record.parameters if parameter.output):
        assert parameter.shape is not None and parameter.dtype is not None
        of_dtype = set() if picked and parameter.dtype == f"{parameter.name}.dtype" else check_dtype(parameter.dtype)
        if (check_shape(parameter.shape) | of_dtype) - known:
            raise UsageError(
                f"{record.name}: the caller picks the shape or dtype of {parameter.name} "
                f"(shape={parameter.shape!r}, dtype={parameter.dtype!r}), so it cannot be made here",
                hint="select other kernels with `--kernel`, or declare both as expressions of the inputs",
            )
        known.add(parameter.name)


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """``x 33x256 strides (512, 1)``: shapes, and strides if the tensor is not contiguous."""
    parts = []
    for name, value in arguments.items():
        if not hasattr(value, "shape"):
            parts.append(f"{name} {value}")
            continue
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        parts.append(f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}{strides}")
    return ", ".join(parts)
