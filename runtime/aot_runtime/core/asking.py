"""What is asked of a bundle beside calling its kernels. A loader imports this when somebody asks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi

from ..arch import Capability
from ..dtypes import find_dtype
from ..errors import ArgumentError, DeviceError, IncompleteBundleWarning
from ..gpus import parse_device
from .explain import Device, Explanation, TensorInfo, parse_explanation
from .functions import make_function

if TYPE_CHECKING:
    from typing import Protocol

    from ..description.kernel_records import KernelRecord
    from ..description.manifest import Manifest

    class Asked(Protocol):
        """As much of a bundle as is needed to ask it."""

        @property
        def kernels(self) -> tuple[str, ...]: ...
        def _record(self, name: str) -> KernelRecord: ...
        def _symbols_of(self, name: str) -> tuple[str, ...]: ...
        def _symbol(self, name: str) -> Any: ...
        def _call(self, name: str, *args: Any) -> Any: ...


_EXPLAINS_DEVICES, _EXPLAINS_PARTS = 1002, 1005  # earlier bundles have no tables, or only for devices of one name

__all__ = ["explain", "preload", "variant_function", "warn_incomplete", "why_missing"]


def preload(bundle: Asked, kernels: Any, device: Any) -> None:
    """See :meth:`Bundle.preload`. A device may come first, alone or with the kernels after it."""
    if _is_device(kernels):
        kernels, device = (None if _is_device(device) else device), kernels
    index = _device_index(device)
    names = bundle.kernels if kernels is None else [kernels] if isinstance(kernels, str) else list(kernels)
    functions = [function for name in names for function in bundle._symbols_of(name)]
    refused: list[DeviceError] = []
    for function in functions:
        try:
            bundle._call("aot__preload", function, index)
        except DeviceError as error:
            refused.append(error)
    if refused and (kernels is not None or len(refused) == len(functions)):
        raise refused[0]


def _is_device(given: Any) -> bool:
    """Whether this names a device, or tries to; a name of a kernel does not."""
    if isinstance(given, str):
        return not given.isidentifier() or given in ("cuda", "cpu")
    return given is not None and not hasattr(given, "__iter__")


def _device_index(device: Any) -> int:
    if isinstance(device, str):
        kind, _, index = device.partition(":")
        if kind == "cuda" and (index or "0").isdecimal():
            return int(index or 0)
    elif isinstance(device, int) and not isinstance(device, bool) and abs(device) < 1 << 63:
        return device
    elif getattr(device, "type", "cuda") == "cuda" and hasattr(device, "index") and not callable(device.index):
        return int(device.index or 0)
    raise ArgumentError(
        f"not a CUDA device: {device!r}", hint='pass an index, "cuda:1", or a device object of your framework'
    )


def explain(
    bundle: Asked, kernel: str, device: str | Capability | Device, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Explanation:
    """See :meth:`Bundle.explain`."""
    major, minor = parse_device(device.capability if isinstance(device, Device) else device)
    symbol, bound = _bind(bundle, kernel, args, kwargs)
    values = [_described(bundle, value) for value in bound]
    protocol = bundle._call("aot__protocol") if isinstance(device, Device) else 0
    if isinstance(device, Device) and protocol >= _EXPLAINS_DEVICES:
        facts = (symbol, major, minor, device.name, device.multiprocessors)
        if protocol >= _EXPLAINS_PARTS:
            return parse_explanation(bundle._call("aot__explain_part", *facts, device.bandwidth, *values))
        return parse_explanation(bundle._call("aot__explain_on", *facts, *values))
    return parse_explanation(bundle._call("aot__explain", symbol, major, minor, *values))


def variant_function(bundle: Asked, kernel: str, variant: str) -> Callable[..., Any]:
    """A kernel as a function that runs one of its variants, whatever selection would choose: for measuring it."""
    run = bundle._symbol("aot__run_variant")
    return make_function(bundle._record(kernel), kernel, lambda symbol: partial(run, symbol, variant))


def _bind(bundle: Asked, kernel: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, list[Any]]:
    bound: list[Any] = []
    function = make_function(
        bundle._record(kernel), kernel, lambda symbol: lambda *values: bound.extend((symbol, values))
    )
    function(*args, **kwargs)
    return bound[0], list(bound[1])


def _described(bundle: Asked, value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_described(bundle, item) for item in value]
    if not isinstance(value, TensorInfo):
        return value
    numbers = (*value.shape, *value.resolved_strides())
    known = find_dtype(str(value.dtype))
    if known is not None:
        kind = (known.code, known.bits, known.lanes)
    else:  # vectors of several
        try:
            dtype = tvm_ffi.dtype(value.dtype)
        except (TypeError, ValueError):
            raise ArgumentError(f"there is no dtype {value.dtype!r}", hint="write it like f32 or float32") from None
        kind = (int(dtype.type_code), dtype.bits, dtype.lanes)
    return bundle._call("aot__describe", *kind, value.align, len(value.shape), *numbers)


def why_missing(manifest: Manifest, *names: str) -> str:
    """What failed to build under one of these names, as lines of a message."""
    found = [failure for failure in manifest.failures if failure.get("kernel") in names]
    return "".join(
        f"\n  {failure.get('variant') or failure['kernel']} failed to build for {failure.get('arch') or 'any architecture'}: "
        + failure.get("message", "")
        for failure in found
    )


def warn_incomplete(path: Path, manifest: Manifest) -> None:
    names = sorted({failure["kernel"] for failure in manifest.failures if failure.get("kernel")})
    missing = f": {', '.join(names[:10])}{', ...' if len(names) > 10 else ''}" if names else ""
    warnings.warn(
        f"`{path}` is incomplete, {len(manifest.failures)} builds failed{missing}; "
        "`python -m aot inspect` lists what is missing",
        IncompleteBundleWarning,
        stacklevel=4,
    )
