"""A bundle's kernels as JAX functions, through ``jax-tvm-ffi``, which the extra ``jax`` installs.

import aot_runtime, aot_runtime.jax
kernels = aot_runtime.load("dist/kernels")
functions = aot_runtime.jax.register(kernels)
y = functions.rmsnorm(x, weight)          # inside jax.jit or outside

XLA allocates the outputs; their shapes and dtypes come from the bundle. Functions work under ``jax.jit``, ``jax.vmap``
(one call per element of the batch) and ``jax.export``, and XLA may record them in CUDA graphs. ``jax.grad`` works if the
bundle has the backward kernel; other derivatives are refused as JAX refuses those of every foreign call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import tvm_ffi

try:
    import jax
    import jax.export
    import jax.numpy as jnp
    import jax_tvm_ffi
except ModuleNotFoundError as missing:
    message = f"`aot_runtime.jax` needs JAX and jax-tvm-ffi, and `{missing.name}` is not installed"
    raise ModuleNotFoundError(f"{message}\n\nhint: `pip install jax jax-tvm-ffi`", name=missing.name) from None

from ..core.bundle import Bundle
from ..core.functions import documentation, function_symbol
from ..description.kernel_records import Choice, KernelRecord, Parameter
from ..errors import ArgumentError
from .exposed import Exposed, expose, split_parameters
from .fakes import UNKNOWN, make_check, tensor_facts
from .jax_gradients import FromCalls
from .outputs import SHAPE_FUNCTIONS, dtype_source, framework_dtype, shape_source

__all__ = ["Functions", "export_checks", "register"]

_SCALARS = {"float": float, "int": int, "bool": bool}
_ARRAYS = ("tensor", "tensor?")
_registered: dict[str, Functions] = {}


class Functions(Exposed):
    """The functions of one bundle, as attributes."""

    __module__ = __name__.replace(".frameworks.", ".")  # where callers import it from

    def _make(self, record: KernelRecord) -> Any:
        return _Function(self._bundle, record, self)


def register(bundle: Bundle, *, name: str | None = None) -> Functions:
    """Make the kernels of a bundle known to XLA as ``<name>.<function>``; the name is by default the bundle's."""
    return expose(_registered, bundle, name or bundle.name, Functions)


def export_checks(functions: Functions) -> list[Any]:
    """What to pass as ``disabled_checks`` to ``jax.export.export``, which knows no foreign functions but its own."""
    names = [name for kernel in functions for name in getattr(functions, kernel).targets]
    return [jax.export.DisabledSafetyCheck.custom_call(name) for name in names]


class _Function:
    """One kernel; calling it makes a foreign call of XLA."""

    def __init__(self, bundle: Bundle, record: KernelRecord, functions: Functions) -> None:
        self.record = record
        self.inputs, self.outputs = split_parameters(record, (*_ARRAYS, *_SCALARS))
        # Scratch memory is one more result, which nobody gets to see.
        self.scratch = [
            p.replace(output=True, shape=f"({p.workspace},)", dtype="u8") for p in record.parameters if p.workspace
        ]
        self.shapes = _shapes(self.inputs, [*self.outputs, *self.scratch])
        self._functions, self._prefix = functions, functions._name
        self._check = make_check(bundle)
        # All at once: a program that was exported elsewhere asks for them without tracing anything here.
        self.targets = [self._register(bundle, *pair) for pair in product(record.functions, _absences(self.inputs))]
        self.__name__ = record.name
        self.__doc__ = documentation(record)
        self.__signature__ = _signature(self.inputs, record.choices)

    def __call__(self, *args: Any, in_place: str | Mapping[str, str] | None = None, **kwargs: Any) -> Any:
        """Call the kernel.

        ``in_place`` names an input whose memory an output may take, if the declaration allows it, or maps outputs to
        such inputs. XLA copies the input first if it is still needed.
        """
        values, choices = self._bind(args, kwargs)
        arrays = [p.name for p in self.inputs if p.type in _ARRAYS and values[p.name] is not None]
        absent = tuple(p.name for p in self.inputs if p.type == "tensor?" and values[p.name] is None)
        scalars = {p.name: _SCALARS[str(p.type)](values[p.name]) for p in self.inputs if p.type in _SCALARS}
        results = self._results({**values, **scalars}, choices)
        call = jax.ffi.ffi_call(
            self._name(function_symbol(self.record.name, choices), absent),
            results if len(results) > 1 else results[0],
            input_output_aliases=self._aliases(in_place, arrays),
            vmap_method="sequential",  # a kernel has the rank that it was built for
        )
        given = [values[name] for name in arrays]
        smooth = {name for name, array in zip(arrays, given, strict=True) if jnp.issubdtype(array.dtype, jnp.inexact)}
        run = self._differentiable(lambda *given: self._kept(call(*given, **scalars)), arrays, smooth, scalars, choices)
        return run(*given)

    def _results(self, values: dict[str, Any], choices: tuple[str, ...]) -> list[Any]:
        """What XLA allocates. A call that the kernel would refuse is refused here, while it is traced."""
        try:
            results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in self.shapes(**values)]
        except Exception:  # an array without a dimension that a shape goes by
            self._check_call(values, [UNKNOWN for _ in self.outputs], choices)
            raise
        self._check_call(values, [_facts(result) for result in results[: len(self.outputs)]], choices)
        return results

    def _check_call(self, values: dict[str, Any], outputs: list[Any], choices: tuple[str, ...]) -> None:
        known = {p.name: _facts(values[p.name]) for p in self.inputs}
        known |= dict(zip((p.name for p in self.outputs), outputs, strict=True))
        symbol = function_symbol(self.record.name, choices)
        self._check(symbol, -1, *(known.get(p.name) for p in self.record.parameters))  # no scratch memory

    def _kept(self, results: Any) -> Any:
        """The results without scratch memory."""
        if not self.scratch:
            return results
        kept = results[: len(self.outputs)]
        return kept if len(kept) > 1 else kept[0]

    def _differentiable(
        self,
        call: Callable[..., Any],
        arrays: list[str],
        smooth: set[str],
        scalars: Mapping[str, Any],
        choices: tuple[str, ...],
    ) -> Callable[..., Any]:
        """The call with the gradients of its backward kernel, if the bundle has that and it serves every ``smooth`` array.

        Arrays of integers, such as classes, have no gradient.
        """
        named = self.record.backward
        if named is not None and not named.kernel:
            chosen = dict(zip((choice.name for choice in self.record.choices), choices, strict=True))
            others = {**{p.name: None for p in self.inputs if p.name not in arrays}, **scalars, **chosen}
            return FromCalls(self, named, self._functions, arrays, others).differentiable(call, chosen)
        if named is None or named.kernel not in self._functions or not smooth <= set(named.gradients):
            return call
        backward: _Function = getattr(self._functions, named.kernel)
        chosen = dict(zip((choice.name for choice in self.record.choices), choices, strict=True))

        def forward(*given: Any) -> tuple[Any, Any]:
            results = call(*given)
            outputs = dict(zip((p.name for p in self.outputs), _as_tuple(results), strict=True))
            values = {**dict(zip(arrays, given, strict=True)), **outputs}
            return results, {name: values[name] for name in named.saves if name in values}

        def gradients(saved: dict[str, Any], arriving: Any) -> tuple[Any, ...]:
            values = {**saved, **{name: value for name, value in scalars.items() if name in named.saves}}
            for parameter, gradient in zip(self.outputs, _as_tuple(arriving), strict=True):
                values["grad_" + parameter.name] = gradient
            taken = {p.name: values[p.name] for p in backward.inputs if p.name in values}  # others were not passed
            kept = {choice.name: chosen[choice.name] for choice in backward.record.choices}
            results = _as_tuple(backward(**taken, **kept))
            computed = dict(zip((p.name for p in backward.outputs), results, strict=True))
            return tuple(computed["grad_" + name] if name in smooth else None for name in arrays)

        made = jax.custom_vjp(call)
        made.defvjp(forward, gradients)
        run: Callable[..., Any] = made
        return run

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
            values[parameter.name] = self._taken(parameter, values.get(parameter.name, parameter.default))
        chosen = []
        for choice in self.record.choices:
            value = values.pop(choice.name, choice.default)
            if value not in choice.values:
                raise ArgumentError(f"{self.record.name}: {choice.name} = {value!r}; known: {', '.join(choice.values)}")
            chosen.append(str(value))
        return values, tuple(chosen)

    def _taken(self, parameter: Parameter, value: Any) -> Any:
        """An argument as JAX passes it on. Arrays of NumPy become JAX's, which may have narrower dtypes."""
        if parameter.type not in _ARRAYS or (value is None and parameter.type == "tensor?"):
            return value
        if not (hasattr(value, "shape") and hasattr(value, "dtype")):
            raise ArgumentError(f"{self.record.name}: `{parameter.name}` is an array, got {type(value).__name__}")
        return jnp.asarray(value)

    def _aliases(self, in_place: str | Mapping[str, str] | None, arrays: list[str]) -> dict[int, int]:
        """Which array's memory goes to which result, by their numbers."""
        outputs = [parameter.name for parameter in self.outputs]
        if isinstance(in_place, str):
            willing = next((parameter.name for parameter in self.outputs if in_place in parameter.may_be), outputs[0])
            in_place = {willing: in_place}
        aliases: dict[int, int] = {}
        for output, source in (in_place or {}).items():
            allowed = next((p.may_be for p in self.outputs if p.name == output), ())
            if source not in allowed or source not in arrays or arrays.index(source) in aliases:
                raise ArgumentError(
                    f"{self.record.name} cannot work in place on {source!r}; `{output}` can take the memory of: "
                    f"{', '.join(allowed) or 'none'}, each of which has room for one output"
                )
            aliases[arrays.index(source)] = outputs.index(output)
        return aliases

    def _name(self, symbol: str, absent: tuple[str, ...]) -> str:
        """The name under which XLA knows a compiled function."""
        return ".".join((self._prefix, symbol, *(f"no_{parameter}" for parameter in absent)))

    def _register(self, bundle: Bundle, symbol: str, absent: tuple[str, ...]) -> str:
        name, function = self._name(symbol, absent), bundle._symbol(symbol)
        spec, order = _order(self.record.parameters, absent)
        if order is not None:
            function = tvm_ffi.convert(_reordered(function, order))
        jax_tvm_ffi.register_ffi_target(name, function, spec, platform="gpu", allow_cuda_graph=True)
        # Without this, XLA only says that it has no implementation.
        refusal = tvm_ffi.convert(_refusal(self.record.name, bundle.name))
        jax_tvm_ffi.register_ffi_target(name, refusal, spec, platform="cpu")
        return name


def _facts(value: Any) -> Any:
    """An argument or a result, for a check. Extents of exported programs may be symbols."""
    if not hasattr(value, "dtype"):
        return value
    return tensor_facts(value.dtype, [extent if isinstance(extent, int) else None for extent in value.shape])


def _signature(inputs: list[Parameter], choices: tuple[Choice, ...]) -> inspect.Signature:
    """What ``inspect.signature`` and editors show of a function."""
    empty, kind = inspect.Parameter.empty, inspect.Parameter
    return inspect.Signature(
        [
            *(kind(p.name, kind.POSITIONAL_OR_KEYWORD, default=p.default if p.has_default else empty) for p in inputs),
            *(kind(c.name, kind.KEYWORD_ONLY, default=empty if c.default is None else c.default) for c in choices),
            kind("in_place", kind.KEYWORD_ONLY, default=None),
        ]
    )


def _absences(inputs: list[Parameter]) -> Iterator[tuple[str, ...]]:
    """Every set of optional arrays that a call may leave out."""
    optional = [parameter.name for parameter in inputs if parameter.type == "tensor?"]
    for left_out in product((False, True), repeat=len(optional)):
        yield tuple(name for name, absent in zip(optional, left_out, strict=True) if absent)


def _refusal(kernel: str, bundle: str) -> Callable[..., None]:
    def refuse(*args: Any) -> None:
        raise ArgumentError(
            f"{kernel} of bundle {bundle!r} runs on NVIDIA GPUs, and this program runs on the CPU",
            hint="install JAX for CUDA, or put the arrays on a GPU: jax.device_put(x, jax.devices('gpu')[0])",
        )

    return refuse


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _order(parameters: tuple[Parameter, ...], absent: tuple[str, ...]) -> tuple[list[str], list[int | None] | None]:
    """What ``jax-tvm-ffi`` passes, and where each parameter is among it; None if that is the kernel's own order.

    XLA hands over all arrays, then all results, then attributes; a kernel may want them in another order, and None
    for an array that is absent.
    """
    inputs = [p for p in parameters if not p.output and p.workspace is None]
    arrays = [p.name for p in inputs if p.type not in _SCALARS and p.name not in absent]
    results = [*(p.name for p in parameters if p.output), *(p.name for p in parameters if p.workspace is not None)]
    scalars = [p.name for p in inputs if p.type in _SCALARS]
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
    namespace: dict[str, Any] = {**SHAPE_FUNCTIONS}
    pairs = []
    for parameter in outputs:
        dtype = dtype_source(str(parameter.dtype), names)
        if dtype is None:
            namespace[f"_dtype_{parameter.name}"] = framework_dtype(jnp, str(parameter.dtype))
            dtype = f"_dtype_{parameter.name}"
        pairs.append(f"({shape_source(str(parameter.shape), names)}, {dtype})")
    source = f"def shapes({', '.join(names)}):\n    return [{', '.join(pairs)}]\n"
    exec(compile(source, "<aot shapes>", "exec"), namespace)
    function: Callable[..., list[tuple[tuple[int, ...], Any]]] = namespace["shapes"]
    return function
