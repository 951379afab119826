"""Python functions for the entries of a bundle: names, defaults, documentation, keywords.

A plain ``def`` around a TVM-FFI function costs a few tens of nanoseconds and has a signature, defaults
and keywords by nature. One is generated per function, when the function is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import product
from typing import Any

from ..description.kernel_records import KernelRecord, Parameter
from ..errors import ArgumentError
from .named_streams import named_streams

__all__ = ["ByChoice", "call_plainly", "documentation", "function_symbol", "make_function", "parameter_facts"]


def function_symbol(kernel: str, choices: tuple[str, ...]) -> str:
    """The symbol of a kernel for named choices: ``activation`` and ``relu`` give ``activation__relu``."""
    return "__".join((kernel, *choices))


def make_function(record: KernelRecord, name: str, symbol: Callable[[str], Callable[..., Any]]) -> Callable[..., Any]:
    """A Python function for a kernel, or for one of its functions if ``name`` fixes the choices."""
    if name != record.name or not record.choices:
        return _direct(record, name, symbol(name))
    by_choice = ByChoice(record)
    for values in product(*(choice.values for choice in record.choices)):
        full_name = function_symbol(record.name, values)
        if full_name in record.functions:
            by_choice[values if len(values) > 1 else values[0]] = _direct(record, full_name, symbol(full_name))
    return _choosing(record, by_choice)


class ByChoice(dict):  # type: ignore[type-arg]  # a generic base takes long to create
    """The functions of a kernel by the choices that the caller names. Unknown names raise :class:`ArgumentError`."""

    def __init__(self, record: KernelRecord) -> None:
        super().__init__()
        self.record = record

    def __missing__(self, key: Any) -> Callable[..., Any]:
        names = ", ".join(choice.name for choice in self.record.choices)
        known = ", ".join(repr(value) for value in self)
        raise ArgumentError(f"{self.record.name}: {names} = {key!r} was not built; known: {known}")


# Arrays that need more than TVM-FFI does with them cost others next to nothing: they are looked for if a stream is named,
# if CuPy is imported, and after a call was refused.
_DIRECT = """\
if not _named_streams and "cupy" not in _modules:
        try:
            return _target({arguments})
        except _ArgumentError:
            if not _has_foreign({arguments}):
                raise
    return _call_with_views(_target, {arguments})"""


def _direct(record: KernelRecord, name: str, target: Callable[..., Any]) -> Callable[..., Any]:
    body = _DIRECT.format(arguments=", ".join(parameter.name for parameter in record.parameters))
    return _define(
        record, name, _parameters(record), body, {**_DIRECT_NAMES, "_named_streams": named_streams(), "_target": target}
    )


def call_plainly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel's compiled function as the function of its bundle does."""
    if not named_streams() and "cupy" not in sys.modules:
        try:
            return function(*arguments)
        except ArgumentError:
            if not _has_foreign(*arguments):
                raise
    return _call_with_views(function, *arguments)


def _has_foreign(*arguments: Any) -> bool:
    from .arrays import has_foreign  # imported with the first call that needs it

    return has_foreign(*arguments)


def _call_with_views(function: Callable[..., Any], *arguments: Any) -> Any:
    from .arrays import call_with_views

    return call_with_views(function, *arguments)


_DIRECT_NAMES = {
    "_modules": sys.modules,
    "_ArgumentError": ArgumentError,
    "_has_foreign": _has_foreign,
    "_call_with_views": _call_with_views,
}


def _choosing(record: KernelRecord, by_choice: ByChoice) -> Callable[..., Any]:
    defaults = {f"_choice_{i}": choice.default for i, choice in enumerate(record.choices)}
    keywords = [
        choice.name if choice.default is None else f"{choice.name}=_choice_{i}"
        for i, choice in enumerate(record.choices)
    ]
    key = ", ".join(choice.name for choice in record.choices)
    names = ", ".join(parameter.name for parameter in record.parameters)
    parameters = [*_parameters(record), "*", *keywords]
    body = f"return _targets[{key}]({names})"
    function = _define(record, record.name, parameters, body, {"_targets": by_choice, **defaults})
    if len(record.choices) == 1:
        function.__dict__.update(by_choice)  # activation.relu(x, out)
    return function


def _parameters(record: KernelRecord) -> list[str]:
    return [f"{p.name}=_default_{i}" if p.has_default else p.name for i, p in enumerate(record.parameters)]


def _define(
    record: KernelRecord, name: str, parameters: list[str], body: str, namespace: dict[str, Any]
) -> Callable[..., Any]:
    # The names come from a manifest, whose reader admits identifiers alone.
    namespace |= {f"_default_{i}": p.default for i, p in enumerate(record.parameters) if p.has_default}
    source = f"def {name}({', '.join(parameters)}):\n    {body}\n"
    exec(compile(source, f"<aot bundle function {name}>", "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    function.__doc__ = documentation(record)
    function.__module__ = __name__
    return function


def documentation(record: KernelRecord) -> str:
    """What ``help`` shows of a function: what it does, what it takes, and what it writes."""
    lines = [record.doc.strip(), ""]
    lines += [_parameter_line(parameter) for parameter in record.parameters]
    for choice in record.choices:
        lines.append(f"{choice.name}: one of {', '.join(choice.values)}. {choice.doc}".rstrip())
    return "\n".join(lines).strip()


def _parameter_line(parameter: Parameter) -> str:
    facts = parameter_facts(parameter)
    shown = f" ({'; '.join(facts)})" if facts else ""
    return f"{parameter.name}{shown}: {parameter.doc}".rstrip(": ")


_WORDS = {"tensor": "tensor", "tensor?": "tensor or None", "pointer": "address", "any": ""}


def parameter_facts(parameter: Parameter) -> list[str]:
    """What a caller has to know of a parameter: what is taken for it, and of an output its shape and dtype."""
    word = _WORDS.get(parameter.type, parameter.type)
    if parameter.accepts:
        word = " or ".join([*parameter.accepts, *(["None"] if parameter.type == "tensor?" else [])])
    facts = [word] if word else []
    if parameter.output:
        facts.append("written")
        # The shape of an output that the caller picks is an expression of the output itself.
        own = f"{parameter.name}."
        facts += [f"shape {parameter.shape}"] if parameter.shape and not parameter.shape.startswith(own) else []
        facts += [f"dtype {parameter.dtype}"] if parameter.dtype and not parameter.dtype.startswith(own) else []
    if parameter.workspace is not None:
        facts.append(f"scratch memory of {parameter.workspace} bytes, made if it is None")
    elif parameter.has_default:
        facts.append(f"default {parameter.default}")
    return facts
