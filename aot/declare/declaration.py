"""Declaring a kernel: data, and one function that makes its specs for one point of the grid.

    @aot.kernel(
        parameters=(aot.In("x"), aot.Out("out", shape="x.shape", dtype="x.dtype")),
        archs=("sm_80", "sm_90a"),
        axes={"dtype": ("f16", "f32")},
    )
    def double(target, dtype):
        \"\"\"``out = 2 * x``.\"\"\"
        x = aot.Tensor(dtype, ("n",))
        return aot.Spec(Double(), {"x": x, "out": x, "stream": aot.Stream()})

Nothing is compiled here and no GPU is needed.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from aot_runtime.description.kernel_records import Backward, Parameter
from aot_runtime.description.records import is_name

from ..errors import DeclarationError
from ..kinds import dtype_of
from . import expressions
from .archs import parse_served
from .backward import check_backward
from .contracts import check_contract, contract_functions
from .kernel import VARIANT_BUDGET, Kernel, is_label
from .specs import Cost
from .workspace import check_workspace

__all__ = ["In", "Out", "kernel"]

_MISSING: Any = object()
MAX_TUNED_BY = 4
# Attributes of a loaded bundle. A kernel of such a name could not be called.
_RESERVED = frozenset({"aot", "explain", "kernels", "manifest", "name", "path", "preload"})


def In(name: str, doc: str = "", *, default: Any = _MISSING) -> Parameter:
    """A parameter that the kernel reads. ``default`` is a number or None."""
    if default is _MISSING:
        return Parameter(name, doc)
    if default is not None and (not isinstance(default, (bool, int, float)) or default != default):
        raise DeclarationError(f"parameter {name}: the default {default!r} is neither a number nor None")
    if isinstance(default, int) and not -(2**63) <= default < 2**63:
        raise DeclarationError(f"parameter {name}: the default {default} does not fit in 64 bits")
    return Parameter(name, doc, has_default=True, default=default)


def Out(
    name: str, doc: str = "", *, shape: str, dtype: str, may_be: str | Sequence[str] = (), default: None = _MISSING
) -> Parameter:
    """A parameter that the kernel writes. ``shape`` and ``dtype`` are expressions of the inputs.

    ``default=None`` makes it optional: a call that leaves it out passes None, for which there must be a variant.

    ``may_be`` lists inputs that may be the same tensor as this output: the kernel then works in place. Any other
    overlap with an output is refused before a launch.
    """
    expressions.check_shape(shape)
    expressions.check_dtype(dtype)
    if not _are_texts(may_be):
        raise DeclarationError(f"parameter {name}: may_be is {may_be!r}", hint="pass the names of inputs")
    inputs = (may_be,) if isinstance(may_be, str) else tuple(may_be)
    if default is not _MISSING and default is not None:
        raise DeclarationError(f"parameter {name}: the default of an output can only be None, not {default!r}")
    own = dtype_of(dtype)
    dtype = own.name if own is not None else dtype
    return Parameter(name, doc, default is None, output=True, shape=shape, dtype=dtype, may_be=inputs)


def kernel(
    *,
    parameters: Sequence[Parameter],
    archs: Sequence[str] | Mapping[str, str],
    axes: Mapping[str, Any] | None = None,
    choices: Mapping[str, Any] | None = None,
    choice_defaults: Mapping[str, str] | None = None,
    name: str | None = None,
    contract: ModuleType | None = None,
    reference: Callable[..., Any] | None = None,
    inputs: Callable[..., Any] | None = None,
    cost: Callable[..., Cost] | None = None,
    options: str = "",
    backward: Backward | None = None,
    tuned_by: Sequence[str] = (),
    variant_budget: int = VARIANT_BUDGET,
) -> Callable[[Callable[..., Any]], Kernel]:
    """Declare a kernel. The decorated function returns the spec, or specs, of one point of the grid.

    ``archs`` lists architectures that each have code of their own. A mapping names, by architecture, the one that its
    code was written for: ``{"sm_80": "sm_80", "sm_100f": "sm_80"}`` serves ``sm_100f`` by portable code.
    ``axes`` differ in something that the arguments of a call show: a dtype, an alignment, a guard. ``choices`` are
    named by the caller: an epilogue. Both map a name to its values: a sequence, or a mapping from labels to values of
    any kind. ``contract`` is the module of what checks and benchmarks need; ``reference``, ``inputs``
    and ``cost`` are its functions, for those who have no such module. ``options`` is appended to the
    options of ``cute.compile``. ``backward`` names the kernel that computes gradients, an ``aot.Backward``, or the
    calls that do, an ``aot.Composed``.
    ``tuned_by`` are expressions such as ``m`` or ``m * n``, at most four: ``python -m aot tune`` chooses among the specs
    of a point by their values, over the calls that the contract's ``tune_inputs`` (or ``bench_inputs``) yield.
    ``variant_budget`` is how many variants may be compiled for one architecture before a build warns.
    """

    def declare(make: Callable[..., Any]) -> Kernel:
        origin = _origin(make)
        _check_types(origin, name, parameters, axes, choices, options, tuned_by, variant_budget)
        served = parse_served(archs, origin)
        called = contract_functions(contract, {"reference": reference, "inputs": inputs, "cost": cost}, origin)
        declared = Kernel(
            name=name or make.__name__,
            doc=inspect.cleandoc(make.__doc__ or ""),
            parameters=tuple(parameters),
            archs=tuple(served),
            axes={axis: _labelled(axis, values, origin) for axis, values in (axes or {}).items()},
            choices={choice: _labelled(choice, values, origin) for choice, values in (choices or {}).items()},
            choice_defaults=dict(choice_defaults or {}),
            make=make,
            origin=origin,
            **called,
            options=options,
            backward=backward,
            tuned_by=(tuned_by,) if isinstance(tuned_by, str) else tuple(tuned_by),
            variant_budget=variant_budget,
            written_for=served,
        )
        _check_kernel(declared)
        _check_is_first(declared)
        return declared

    return declare


def _check_types(
    origin: str,
    name: Any,
    parameters: Any,
    axes: Any,
    choices: Any,
    options: Any,
    tuned_by: Any,
    variant_budget: Any,
) -> None:
    """Raise if an argument of :func:`kernel` has the wrong type."""
    if name is not None and not isinstance(name, str):
        raise DeclarationError(f"{origin}: the name is {name!r}, not a text")
    if not isinstance(parameters, Sequence):
        raise DeclarationError(
            f"{origin}: the parameters are {parameters!r}", hint="pass a tuple of aot.In(...) and aot.Out(...)"
        )
    for what, values in {"axes": axes, "choices": choices}.items():
        if values is not None and not isinstance(values, Mapping):
            raise DeclarationError(f"{origin}: {what} are {values!r}", hint='pass a mapping: {"dtype": ("f16", "f32")}')
        if "target" in (values or {}):
            raise DeclarationError(
                f"{origin}: an axis or a choice is called target, which the function gets already", hint="rename it"
            )
    if not isinstance(options, str):
        raise DeclarationError(f"{origin}: options are {options!r}, not a text", hint='write them like "--opt-level 2"')
    if not _are_texts(tuned_by):
        raise DeclarationError(f"{origin}: tuned_by is {tuned_by!r}", hint='pass expressions like ("m", "n // 2")')
    if type(variant_budget) is not int or variant_budget < 0:
        raise DeclarationError(
            f"{origin}: variant_budget is {variant_budget!r}",
            hint="pass how many variants are few enough; 0: any number",
        )


def _are_texts(given: Any) -> bool:
    """Whether this is a text, or several."""
    return isinstance(given, str) or (isinstance(given, Sequence) and all(isinstance(item, str) for item in given))


def _origin(make: Callable[..., Any]) -> str:
    code = inspect.unwrap(make).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _labelled(axis: str, values: Any, origin: str) -> dict[str, Any]:
    pairs = _pairs(axis, values, origin)
    for label, _ in pairs:
        if not is_label(label):
            raise DeclarationError(
                f"{origin}: {label!r}, of axis {axis}, cannot be part of a name",
                hint="pass a mapping from labels of letters and digits to the values",
            )
    labelled = dict(pairs)
    if len(labelled) != len(pairs) or not pairs:
        listed = ", ".join(label for label, _ in pairs)
        raise DeclarationError(f"{origin}: axis {axis} needs different values, at least one; got: {listed or 'none'}")
    return labelled


def _pairs(axis: str, values: Any, origin: str) -> list[tuple[Any, Any]]:
    if isinstance(values, Mapping):
        return list(values.items())
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [(_label(axis, value), value) for value in values]
    raise DeclarationError(f"{origin}: the values of axis {axis} are {values!r}", hint="pass a list or a mapping")


def _label(axis: str, value: Any) -> str:
    if isinstance(value, bool):
        return axis if value else f"not_{axis}"
    return f"{axis}{value}" if isinstance(value, int) else str(value)


def _check_kernel(kernel: Kernel) -> None:
    where = f"{kernel.origin}: kernel {kernel.name}"
    if not (is_name(kernel.name) and is_label(kernel.name)) or keyword.iskeyword(kernel.name):
        raise DeclarationError(f"{where}: the name is not an identifier of letters and digits joined by single `_`")
    if kernel.name in _RESERVED:
        raise DeclarationError(f"{where}: bundles have an attribute of that name", hint="pass another `name`")
    _check_names(kernel, where)
    _check_function(kernel, where)
    _check_outputs(kernel, where)
    check_workspace(kernel.parameters, where)
    _check_defaults(kernel, where)
    _check_tuned_by(kernel, where)
    check_backward(kernel, where)
    check_contract(kernel, where)


def _check_is_first(kernel: Kernel) -> None:
    """Raise if the file has declared another kernel of that name, which this one would hide from a build."""
    file, line = kernel.origin.rpartition(":")[::2]
    others = getattr(inspect.unwrap(kernel.make), "__globals__", {}).values()
    for other in [one for one in others if isinstance(one, Kernel) and one.name == kernel.name]:
        other_file, other_line = other.origin.rpartition(":")[::2]
        if other_file == file and other_line != line:
            raise DeclarationError(
                f"two kernels are called {kernel.name}: {other.origin} and {kernel.origin}", hint="rename one of them"
            )


def _check_tuned_by(kernel: Kernel, where: str) -> None:
    if len(kernel.tuned_by) > MAX_TUNED_BY:
        raise DeclarationError(
            f"{where}: tuned_by has {len(kernel.tuned_by)} expressions; a table has room for {MAX_TUNED_BY}"
        )
    if len(set(kernel.tuned_by)) != len(kernel.tuned_by):
        raise DeclarationError(f"{where}: tuned_by names an expression twice: {', '.join(kernel.tuned_by)}")


def _check_names(kernel: Kernel, where: str) -> None:
    for parameter in kernel.parameters:
        if not isinstance(parameter, Parameter):
            raise DeclarationError(f"{where}: {parameter!r} is not a parameter", hint="use aot.In(...) or aot.Out(...)")
        if not isinstance(parameter.doc, str):
            raise DeclarationError(f"{where}: {parameter.name}: its documentation is {parameter.doc!r}, not a text")
    names: list[Any] = [*(parameter.name for parameter in kernel.parameters), *kernel.choices]
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise DeclarationError(f"{where}: {name!r} cannot name a parameter")
    if len(set(names)) != len(names):
        raise DeclarationError(f"{where}: two parameters or choices have the same name: {', '.join(names)}")
    both = kernel.axes.keys() & kernel.choices.keys()
    if both:
        raise DeclarationError(f"{where}: both an axis and a choice: {', '.join(sorted(both))}")


def _check_function(kernel: Kernel, where: str) -> None:
    """Raise if the decorated function cannot be called as builds call it: for a target, with a value of each axis."""
    names = [*kernel.axes, *kernel.choices]
    try:
        inspect.signature(kernel.make).bind(None, **dict.fromkeys(names))
    except TypeError as error:
        raise DeclarationError(
            f"{where}: the function cannot be called with a target and the axes and choices: {error}",
            hint=f"write `def {kernel.make.__name__}({', '.join(['target', *map(str, names)])})`",
        ) from None


def _check_outputs(kernel: Kernel, where: str) -> None:
    known = {parameter.name for parameter in kernel.parameters}
    for parameter in kernel.parameters:
        named = expressions.check_shape(parameter.shape) if parameter.shape is not None else set()
        named |= expressions.check_dtype(parameter.dtype) if parameter.dtype is not None else set()
        if named - known:
            raise DeclarationError(
                f"{where}: the shape or dtype of {parameter.name} refers to {', '.join(sorted(named - known))}",
                hint=f"known: {', '.join(sorted(known))}",
            )
    inputs = [parameter.name for parameter in kernel.parameters if not parameter.output]
    for parameter in kernel.parameters:
        unknown = [name for name in parameter.may_be if name not in inputs]
        if unknown:
            raise DeclarationError(
                f"{where}: {parameter.name} may be {', '.join(unknown)}, which is not an input",
                hint=f"inputs: {', '.join(inputs) or 'none'}",
            )


def _check_defaults(kernel: Kernel, where: str) -> None:
    seen_default = False
    for parameter in kernel.parameters:
        if seen_default and not parameter.has_default:
            raise DeclarationError(f"{where}: {parameter.name} has no default but follows a parameter that has one")
        seen_default |= parameter.has_default
    for choice, label in kernel.choice_defaults.items():
        if label not in kernel.choices.get(choice, {}):
            raise DeclarationError(f"{where}: {choice} has no value {label!r} to default to")
