"""What a spec passes against what the jit function takes: found before anything is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aot_runtime.description.kernel_records import Parameter

from ..errors import DeclarationError
from .arguments import Tensor
from .specs import Spec

__all__ = ["POSITIONAL", "check_call", "check_output_dtypes", "parameters_of"]

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_call(spec: Spec, where: str) -> None:
    """The arguments of a spec are passed by position: their names must not stand in another order than the function's."""
    parameters = parameters_of(spec.function)
    if parameters is None or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values()):
        return
    takes = [parameter for parameter in parameters.values() if parameter.kind in POSITIONAL]
    names, passed = [parameter.name for parameter in takes], list(spec.arguments)
    required = [parameter for parameter in takes if parameter.default is inspect.Parameter.empty]
    if not len(required) <= len(passed) <= len(takes):
        return  # ``compile/signature.py`` says what is missing
    shown = f"`{_name(spec.function)}` takes ({', '.join(names)}), and aot.Spec passes ({', '.join(passed)})"
    swapped = [key for key, name in zip(passed, names, strict=False) if key != name and key in names]
    if swapped:
        raise DeclarationError(
            f"{where}: {shown}: {', '.join(swapped)} would be passed as something else",
            hint="write the arguments of aot.Spec in the order of the jit function; callers may use another",
        )


def check_output_dtypes(parameters: Sequence[Parameter], spec: Spec, where: str) -> None:
    """An output that is declared as ``x.dtype`` or ``f32`` has that dtype in every variant."""
    for parameter in parameters:
        out = spec.arguments.get(parameter.name)
        if not parameter.output or parameter.dtype is None or not isinstance(out, Tensor):
            continue
        name, dot, _ = parameter.dtype.partition(".")
        source = spec.arguments.get(name) if dot else None
        declared = name if not dot else source.dtype if isinstance(source, Tensor) else None
        if declared is not None and declared != out.dtype:
            raise DeclarationError(
                f"{where}: {parameter.name} is declared with dtype={parameter.dtype!r}, that is {declared}, and this "
                f"variant writes {out.dtype}",
                hint=f'correct one of them; if the caller picks the dtype, declare dtype="{parameter.name}.dtype"',
            )


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function, method or object; None if they cannot be known."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__qualname__)
