"""Scratch memory of a kernel: declared by its size, supplied by the framework or the program that makes the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot_runtime.description.kernel_records import Parameter

from ..errors import DeclarationError
from . import expressions
from .arguments import Dim, Tensor, is_made

__all__ = ["Workspace", "check_workspace", "check_workspace_arguments"]

ALIGNMENT = 128  # of runtime/src/aot_workspace.c


def Workspace(name: str, doc: str = "", *, bytes: str, zeroed: bool = False) -> Parameter:
    """Scratch memory of a call. ``bytes`` is an expression of the inputs.

    The caller need not pass it: memory comes from the framework that makes the call, on the stream of the call. In a
    spec it is an ``aot.Tensor`` of one dimension and any dtype, or None if the variant needs none. With ``zeroed`` the
    kernel finds zeros in it.
    """
    if not expressions.check_size(bytes) and not _is_possible(bytes):
        raise DeclarationError(
            f"workspace {name}: {bytes!r} is not a number of bytes", hint="pass a number from 0 to 2^63 - 1"
        )
    if not isinstance(zeroed, bool):
        raise DeclarationError(f"workspace {name}: zeroed is {zeroed!r}", hint="pass True or False")
    return Parameter(name, doc, has_default=True, default=None, workspace=bytes, zeroed=zeroed)


def _is_possible(size: str) -> bool:
    """Whether a size without names in it is one. Others are known when a call is made."""
    try:
        return 0 <= expressions.value_of(size, {}) < 2**63
    except ZeroDivisionError:
        return False


def check_workspace(parameters: Sequence[Parameter], where: str) -> None:
    """Raise unless there is at most one workspace, whose size follows from the inputs."""
    found = [parameter for parameter in parameters if parameter.workspace is not None]
    if len(found) > 1:
        raise DeclarationError(
            f"{where}: {len(found)} workspaces: {', '.join(parameter.name for parameter in found)}",
            hint="declare one, with room for all",
        )
    inputs = {item.name for item in parameters if not item.output and item.workspace is None}
    for parameter in found:
        unknown = expressions.check_size(parameter.workspace or "") - inputs
        if unknown:
            raise DeclarationError(
                f"{where}: the size of {parameter.name} refers to {', '.join(sorted(unknown))}",
                hint=f"inputs: {', '.join(sorted(inputs)) or 'none'}",
            )


def check_workspace_arguments(parameters: Sequence[Parameter], arguments: Mapping[str, Any], where: str) -> None:
    """Raise unless a spec takes the workspace as dispatch supplies it."""
    for parameter in parameters:
        argument = arguments[parameter.name]
        if parameter.workspace is None or argument is None:
            continue
        if not _is_plain(argument):
            raise DeclarationError(
                f"{where}: the workspace {parameter.name} is {argument!r}",
                hint='pass aot.Tensor("f32", ("length",)), of any dtype and name, or None',
            )
        if argument.alignment > ALIGNMENT:
            raise DeclarationError(
                f"{where}: the workspace {parameter.name} wants an alignment of {argument.alignment} bytes",
                hint=f"at most {ALIGNMENT} are promised",
            )


def _is_plain(argument: Any) -> bool:
    """Whether this is a tensor of one free extent, elements side by side."""
    return (
        isinstance(argument, Tensor)
        and not is_made(argument)
        and argument.strides is None
        and len(argument.shape) == 1
        and isinstance(argument.shape[0], Dim)
        and argument.shape[0].divisible_by == 1
    )
