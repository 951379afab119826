"""A bundle's kernels as JAX functions, through ``jax-tvm-ffi``: ``pip install 'cute-aot[jax]'``.

import aot_runtime, aot_runtime.jax
kernels = aot_runtime.load("dist/kernels")
functions = aot_runtime.jax.register(kernels)
y = functions.rmsnorm(x, weight)          # inside jax.jit or outside

XLA allocates the outputs; their shapes and dtypes come from the bundle. Functions work under ``jax.jit`` and
``jax.export``, and XLA may record them in CUDA graphs. They have no derivative and no batching rule: ``jax.grad`` and
``jax.vmap`` refuse them as they refuse every foreign call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_tvm_ffi
import tvm_ffi

from .bundle import Bundle
from .errors import ArgumentError
from .exposed import Exposed, expose, split_parameters
from .functions import function_symbol
from .kernel_records import KernelRecord, Parameter
from .outputs import dtype_source, shape_source

__all__ = ["Functions", "register"]


_DTYPES = {
    "bool": "bool_", "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32",
    "i64": "int64", "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "f8e8m0": "float8_e8m0fnu",
}  # fmt: skip
_SCALARS = {"float": float, "int": int, "bool": bool}
_registered: dict[str, Functions] = {}


class Functions(Exposed):
    """The functions of one bundle, as attributes."""

    def _make(self, record: KernelRecord) -> Any:
        return _Function(self._bundle, record, self._name)


def register(bundle: Bundle, *, name: str | None = None) -> Functions:
    """Make the kernels of a bundle known to XLA as ``<name>.<function>``; the name is by default the bundle's."""
    return expose(_registered, bundle, name or bundle.name, Functions)


class _Function:
    """One kernel; calling it makes a foreign call of XLA."""

    def __init__(self, bundle: Bundle, record: KernelRecord, prefix: str) -> None:
        self.record = record
        self.inputs, self.outputs = split_parameters(record, ("tensor", "tensor?", *_SCALARS))
        self.shapes = _shapes(self.inputs, self.outputs)
        self._bundle, self._prefix = bundle, prefix
        self._targets: set[str] = set()
        self.__name__ = record.name
        self.__doc__ = record.doc

    def __call__(self, *args: Any, in_place: str | None = None, **kwargs: Any) -> Any:
        """Call the kernel; ``in_place`` names an input whose memory the first output may take, if XLA can give it."""
        values, choices = self._bind(args, kwargs)
        arrays = [p.name for p in self.inputs if p.type in ("tensor", "tensor?") and values[p.name] is not None]
        absent = tuple(p.name for p in self.inputs if p.type == "tensor?" and values[p.name] is None)
        target = self._target(function_symbol(self.record.name, choices), absent)
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.shapes(**values)]
        call = jax.ffi.ffi_call(
            target, results if len(results) > 1 else results[0], input_output_aliases=self._aliases(in_place, arrays)
        )
        scalars = {p.name: _SCALARS[str(p.type)](values[p.name]) for p in self.inputs if p.type in _SCALARS}
        return call(*(jnp.asarray(values[name]) for name in arrays), **scalars)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        names = [parameter.name for parameter in self.inputs]
        if len(args) > len(names):
            raise ArgumentError(
                f"{self.record.name} takes {len(names)} arguments ({', '.join(names)}), got {len(args)}"
            )
        values = dict(zip(names, args, strict=False))
        known = {*names, *(choice.name for choice in self.record.choices)}
        for name, value in kwargs.items():
            if name in values or name not in known:
                problem = "was passed twice" if name in values else f"is not one of {', '.join(sorted(known))}"
                raise ArgumentError(f"{self.record.name}: `{name}` {problem}")
            values[name] = value
        for parameter in self.inputs:
            if parameter.name not in values and not parameter.has_default:
                raise ArgumentError(f"{self.record.name}: `{parameter.name}` is missing")
            values.setdefault(parameter.name, parameter.default)
        chosen = []
        for choice in self.record.choices:
            value = values.pop(choice.name, choice.default)
            if value not in choice.values:
                raise ArgumentError(f"{self.record.name}: {choice.name} = {value!r}; known: {', '.join(choice.values)}")
            chosen.append(str(value))
        return values, tuple(chosen)

    def _aliases(self, in_place: str | None, arrays: list[str]) -> dict[int, int]:
        if in_place is None:
            return {}
        allowed = self.outputs[0].may_be
        if in_place not in allowed or in_place not in arrays:
            raise ArgumentError(
                f"{self.record.name} cannot work in place on {in_place!r}; it can on: {', '.join(allowed) or 'none'}"
            )
        return {arrays.index(in_place): 0}

    def _target(self, symbol: str, absent: tuple[str, ...]) -> str:
        """The name under which XLA knows a compiled function, registered when it is first used."""
        name = ".".join((self._prefix, symbol, *(f"no_{parameter}" for parameter in absent)))
        if name not in self._targets:
            function = self._bundle._symbol(symbol)
            spec, order = _order(self.record.parameters, absent)
            if order is not None:
                function = tvm_ffi.convert(_reordered(function, order))
            jax_tvm_ffi.register_ffi_target(name, function, spec, platform="gpu", allow_cuda_graph=True)
            self._targets.add(name)
        return name


def _order(parameters: tuple[Parameter, ...], absent: tuple[str, ...]) -> tuple[list[str], list[int | None] | None]:
    """What ``jax-tvm-ffi`` passes, and where each parameter is among it; None if that is the kernel's own order.

    XLA hands over all arrays, then all results, then attributes; a kernel may want them in another order, and None
    for an array that is absent.
    """
    arrays = [p.name for p in parameters if not p.output and p.type not in _SCALARS and p.name not in absent]
    results = [p.name for p in parameters if p.output]
    scalars = [p.name for p in parameters if not p.output and p.type in _SCALARS]
    passed = [*arrays, *results, *scalars]
    spec = ["args", "rets", *(f"attrs.{name}" for name in scalars)]
    if [p.name for p in parameters] == passed:
        return spec, None
    return spec, [passed.index(p.name) if p.name in passed else None for p in parameters]


def _reordered(function: Callable[..., Any], order: list[int | None]) -> Callable[..., Any]:
    def call(*args: Any) -> None:
        function(*(None if index is None else args[index] for index in order))

    return call


def _shapes(inputs: list[Parameter], outputs: list[Parameter]) -> Callable[..., list[tuple[tuple[int, ...], Any]]]:
    """A function from the inputs to the shapes and dtypes of the outputs."""
    names = [parameter.name for parameter in inputs]
    namespace: dict[str, Any] = {}
    pairs = []
    for parameter in outputs:
        dtype = dtype_source(str(parameter.dtype), names)
        if dtype is None:
            namespace[f"_{parameter.name}"] = getattr(jnp, _DTYPES[str(parameter.dtype)])
            dtype = f"_{parameter.name}"
        pairs.append(f"({shape_source(str(parameter.shape), names)}, {dtype})")
    source = f"def shapes({', '.join(names)}):\n    return [{', '.join(pairs)}]\n"
    exec(compile(source, "<aot shapes>", "exec"), namespace)
    function: Callable[..., list[tuple[tuple[int, ...], Any]]] = namespace["shapes"]
    return function
