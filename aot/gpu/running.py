"""What checking and measuring share: a GPU to run on, the kernels asked for. Needs torch.

None of this imports what builds: bundles run on machines that have only torch and the bundle.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.manifest import KernelRecord, Manifest

from ..bundle.details import read_details
from ..bundle.layout import details_name
from ..declare.expressions import shape_of
from ..errors import UsageError
from .inputs import InputMaker, torch_dtype

__all__ = [
    "Gpu",
    "arguments_text",
    "calls_of",
    "choices_of",
    "find_gpu",
    "make_outputs",
    "select_kernels",
    "variants_of",
]


@dataclass(frozen=True)
class Gpu:
    """The device that kernels run on; tests put a CPU here."""

    name: str
    capability: tuple[int, int]
    device: str = "cuda"

    def synchronize(self) -> None:
        import torch

        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def facts(self) -> dict[str, str]:
        """What a result depends on."""
        import torch

        return {
            "gpu": self.name,
            "capability": f"{self.capability[0]}.{self.capability[1]}",
            "date": datetime.date.today().isoformat(),
            "torch": str(torch.__version__),
        }


def find_gpu(command: str) -> Gpu:
    """The current GPU; :class:`UsageError` where there is none to run on."""
    try:
        import torch
    except ModuleNotFoundError:
        raise UsageError(f"`{command}` needs torch, which is not installed here") from None
    if not torch.cuda.is_available():
        raise UsageError(f"`{command}` needs an NVIDIA GPU, and torch finds none here")
    major, minor = torch.cuda.get_device_capability()
    return Gpu(torch.cuda.get_device_name(), (int(major), int(minor)))


def select_kernels(manifest: Manifest, globs: Sequence[str]) -> list[str]:
    chosen = [name for name in manifest.kernels if any(fnmatch.fnmatchcase(name, glob) for glob in globs or ("*",))]
    if not chosen:
        raise UsageError(f"no kernel matches {', '.join(globs)}", hint=f"there are: {', '.join(manifest.kernels)}")
    return chosen


def choices_of(record: KernelRecord) -> Iterator[dict[str, str]]:
    """Every combination of a kernel's choices that was built."""
    names = [choice.name for choice in record.choices]
    for labels in product(*(choice.values for choice in record.choices)):
        if "__".join((record.name, *labels)) in record.functions:
            yield dict(zip(names, labels, strict=True))


def calls_of(
    record: KernelRecord, inputs: Callable[..., Any], dtypes: Sequence[str], device: str
) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    """Dtype, choices and arguments of each call that a contract's ``inputs`` make, with each of those dtypes."""
    for choices in choices_of(record):
        for dtype in dtypes:
            for arguments in inputs(InputMaker(device), dtype):
                yield dtype, choices, arguments


def variants_of(bundle: Path, manifest: Manifest) -> dict[Arch, list[dict[str, Any]]]:
    archs = sorted({arch for record in manifest.kernels.values() for arch in record.archs})
    return {arch: read_details(bundle / details_name(arch)) for arch in archs}


def make_outputs(record: KernelRecord, arguments: Mapping[str, Any], device: str, margin: int = 0) -> dict[str, Any]:
    """Tensors of the declared shapes and dtypes, between ``margin`` bytes, every bit set: NaN in every float type."""
    import torch

    made: dict[str, Any] = {}
    for parameter in record.parameters:
        if parameter.output:
            assert parameter.shape is not None and parameter.dtype is not None
            name, dot, _ = parameter.dtype.partition(".")
            dtype = arguments[name].dtype if dot else torch_dtype(name)
            shape = shape_of(parameter.shape, {**arguments, **made})
            size = dtype.itemsize
            for extent in shape:
                size *= extent
            raw = torch.full((margin + size + margin,), 255, dtype=torch.uint8, device=device)
            made[parameter.name] = raw[margin : margin + size].view(dtype).view(shape)
    return made


def arguments_text(arguments: Mapping[str, Any]) -> str:
    """``x 33x256 (512, 1)``: shapes, and strides where rows do not follow each other."""
    parts = []
    for name, value in arguments.items():
        if not hasattr(value, "shape"):
            parts.append(f"{name} {value}")
            continue
        strides = "" if value.is_contiguous() else f" strides {tuple(value.stride())}"
        parts.append(f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}{strides}")
    return ", ".join(parts)
