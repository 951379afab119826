"""Whether the functions of a contract take what the kernel takes: found before anything is compiled."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from ..errors import DeclarationError
from .kernel import Kernel
from .signatures import POSITIONAL, parameters_of

__all__ = ["check_contract", "contract_file", "contract_functions"]


def contract_functions(contract: Any, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Reference, inputs and cost: of the module of a contract, or those that were given one by one."""
    if contract is None:
        return dict(given)
    if not isinstance(contract, ModuleType):
        raise DeclarationError(
            f"{where}: the contract is {contract!r}", hint="import its module and pass that: `contract=scale_contract`"
        )
    if any(function is not None for function in given.values()):
        raise DeclarationError(f"{where}: both a contract and {_listed(given)}", hint="pass `contract` alone")
    missing = [name for name in ("reference", "inputs") if not callable(getattr(contract, name, None))]
    if missing:
        raise DeclarationError(
            f"{where}: the contract {contract.__name__} has no {' and no '.join(missing)}",
            hint=f"define `{missing[0]}` in {contract.__file__}",
        )
    return {name: getattr(contract, name, None) for name in given}


def _listed(given: Mapping[str, Any]) -> str:
    return ", ".join(name for name, function in given.items() if function is not None)


def check_contract(kernel: Kernel, where: str) -> None:
    """The functions of a contract take the inputs and choices of the kernel, by their names."""
    beside = _beside(kernel)
    called = {"reference": kernel.reference, "cost": kernel.cost, "torch_equivalent": beside.get("torch_equivalent")}
    for what, function in called.items():
        parameters = parameters_of(function) if function is not None else None
        if parameters is not None:
            for problem in _mismatches(kernel, parameters):
                raise DeclarationError(
                    f"{where}: its {what} {problem}",
                    hint=f"it is called with the inputs and choices by name: {', '.join(_names(kernel))}",
                )
    yielding = {"inputs": kernel.inputs, **{name: beside.get(name) for name in ("bench_inputs", "tune_inputs")}}
    for what, function in yielding.items():
        parameters = parameters_of(function) if function is not None else None
        if parameters is not None and not _takes_two(parameters):
            raise DeclarationError(
                f"{where}: its {what} take ({', '.join(parameters)})", hint=f"write `def {what}(make, dtype)`"
            )
    contract_file(kernel, where)


def contract_file(kernel: Kernel, where: str = "") -> str:
    """The file of a kernel's contract, which goes into the bundle; empty if the kernel has no contract.

    A bundle is checked where CuTe DSL is not installed, so that the file of the kernel itself will not do.
    """
    if kernel.reference is None or kernel.inputs is None:
        return ""
    files = {what: _file_of(getattr(kernel, what)) for what in ("reference", "inputs")}
    own, hint = (
        kernel.origin.rpartition(":")[0],
        f"move both to `contracts/{kernel.name}.py` and import them from there",
    )
    for what, file in files.items():
        if file == own:
            raise DeclarationError(
                f"{where}: its {what} is in the kernel's own file, which needs CuTe DSL; `check` runs without it",
                hint=hint,
            )
        if not file:
            raise DeclarationError(f"{where}: its {what} is not a function of a file, which a bundle needs", hint=hint)
    if len(set(files.values())) > 1:
        raise DeclarationError(
            f"{where}: its reference and inputs are in two files: {', '.join(files.values())}", hint=hint
        )
    return files["reference"]


def _file_of(function: Callable[..., Any]) -> str:
    return str(getattr(getattr(function, "__code__", None), "co_filename", ""))


def _beside(kernel: Kernel) -> Mapping[str, Callable[..., Any]]:
    """What a contract has that a declaration does not name: functions of the file that the reference is in."""
    module = sys.modules.get(getattr(kernel.reference, "__module__", None) or "")
    if module is None or module.__name__ == kernel.make.__module__:
        return {}
    names = ("torch_equivalent", "bench_inputs", "tune_inputs")
    return {name: found for name in names if callable(found := getattr(module, name, None))}


def _mismatches(kernel: Kernel, parameters: Mapping[str, inspect.Parameter]) -> Iterator[str]:
    known = _names(kernel)
    for parameter in parameters.values():
        named = parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        if named and parameter.name not in known and parameter.default is inspect.Parameter.empty:
            yield f"takes {parameter.name}, which is neither an input nor a choice"
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    always = [p.name for p in kernel.parameters if not p.output and not p.has_default]
    for name in (*always, *kernel.choices):
        if name in known and name not in parameters:
            yield f"does not take {name}"


def _names(kernel: Kernel) -> list[str]:
    return [*(parameter.name for parameter in kernel.parameters if not parameter.output), *kernel.choices]


def _takes_two(parameters: Mapping[str, inspect.Parameter]) -> bool:
    if any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return True
    takes = [parameter for parameter in parameters.values() if parameter.kind in POSITIONAL]
    required = [parameter for parameter in takes if parameter.default is inspect.Parameter.empty]
    return len(required) <= 2 <= len(takes)
