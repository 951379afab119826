"""A spec against the signature of its jit function, before anything is compiled.

Compiling a kernel takes seconds, and its own error names a line of CuTe DSL. What the signature tells is said here, with
the author's line.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from aot_runtime.serving.calls import is_constexpr, jit_function
from aot_runtime.serving.values.digests import UnstableError

from ..declare.arguments import ActiveClusters, Argument, Constant, Fixed, Multiprocessors, Scalar
from ..declare.kernel import Variant
from ..declare.specs import CapturedSpec
from ..errors import DeclarationError
from ..kinds import DTYPES

__all__ = ["fitted"]

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def fitted(variant: Variant) -> Variant:
    """The variant with constants as its jit function takes them; :class:`DeclarationError` if an argument cannot fit."""
    spec = variant.spec
    parameters = None if isinstance(spec, CapturedSpec) else _parameters(spec.function)
    if parameters is None:
        return variant
    where = f"{variant.kernel.origin}: kernel {variant.kernel.name}"
    _check_count(where, spec.function, parameters, len(spec.arguments))
    pairs = zip(spec.arguments.items(), parameters, strict=False)
    arguments = {name: _fitted(where, name, argument, parameter) for (name, argument), parameter in pairs}
    return replace(variant, spec=replace(spec, arguments=arguments))


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    """The parameters of a jit function without ``self``; None if its signature does not tell them one by one."""
    try:
        owner, jit = jit_function(function)
        parameters = list(inspect.signature(jit, eval_str=True).parameters.values())
    except (UnstableError, TypeError, ValueError, NameError):  # a name that is not there is an error of the compiler
        return None
    if any(parameter.kind in _VARIABLE for parameter in parameters):
        return None
    return parameters if owner is None else parameters[1:]


def _check_count(where: str, function: Any, parameters: list[inspect.Parameter], given: int) -> None:
    needed = sum(parameter.default is inspect.Parameter.empty for parameter in parameters)
    if not needed <= given <= len(parameters):
        takes = str(needed) if needed == len(parameters) else f"{needed} to {len(parameters)}"
        names = ", ".join(parameter.name for parameter in parameters)
        raise DeclarationError(
            f"{where}: the spec has {given} arguments, the jit function takes {takes}: {names}",
            hint="pass one argument for each parameter, in their order; aot.Constant(None) for one that is not used",
        )


def _fitted(where: str, name: str, argument: Argument, parameter: inspect.Parameter) -> Argument:
    if is_constexpr(parameter.annotation):
        if not isinstance(argument, Constant) and argument is not None:
            raise DeclarationError(
                f"{where}: argument {name} is {argument!r}, but the jit function's {parameter.name} is Constexpr",
                hint=_constexpr_hint(argument),
            )
        return argument
    if isinstance(argument, Scalar):
        _check_scalar(where, name, argument, parameter)
    if not isinstance(argument, Constant):
        return argument
    if argument.value is not None and not isinstance(argument.value, (bool, int, float)):
        raise DeclarationError(
            f"{where}: argument {name} is {argument!r}, but the jit function's {parameter.name} is not Constexpr",
            hint="annotate it with cutlass.Constexpr; without that, only None and numbers can be fixed",
        )
    return Fixed(argument.value)


def _check_scalar(where: str, name: str, argument: Scalar, parameter: inspect.Parameter) -> None:
    """A number of another type than the annotation's fails in the compiler, without a line."""
    takes = getattr(parameter.annotation, "__name__", "")
    known = {dtype.cutlass: short for short, dtype in DTYPES.items() if dtype.is_scalar}
    if takes in known and known[takes] != argument.dtype:
        raise DeclarationError(
            f"{where}: argument {name} is {argument!r}, but the jit function's {parameter.name} is cutlass.{takes}",
            hint=f'pass aot.Scalar("{known[takes]}"), or annotate {parameter.name} with '
            f"cutlass.{DTYPES[argument.dtype].cutlass}",
        )


def _constexpr_hint(argument: Argument) -> str:
    if isinstance(argument, (ActiveClusters, Multiprocessors)):
        return "wrap the jit function in one of your own with a cutlass.Int32 parameter, and pass that on"
    return "pass aot.Constant(value), or take the annotation away"
