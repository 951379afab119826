"""What kinds of argument the variants of a kernel take, and what that makes each parameter for a caller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aot_runtime.kernel_records import KernelRecord

from ..kinds import BOOL, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE
from .details import VariantDetails

__all__ = ["Interval", "Kinds", "function_kinds", "type_of", "with_types"]

Interval = tuple[int, int]
Kinds = Mapping[str, frozenset[Interval]]  # label of an argument or element -> what its variants take

_TYPES: dict[frozenset[Interval], str] = {
    frozenset({(TENSOR, TENSOR)}): "tensor",
    frozenset({(TENSOR, TENSOR), (NONE, NONE)}): "tensor?",
    frozenset({(FLOAT, INT)}): "float",
    frozenset({(BOOL, INT)}): "int",
    frozenset({(INT, HANDLE)}): "pointer",
    frozenset({(TUPLE, TUPLE)}): "tuple",
}


def function_kinds(details: Iterable[VariantDetails]) -> dict[str, Kinds]:
    """What the variants of each function take, by the argument's label: ``x``, ``pair[0]``."""
    found: dict[str, dict[str, set[Interval]]] = {}
    for variant in details:
        labels = found.setdefault(variant.function, {})
        for requirement in variant.requirements:
            if requirement.operation in ("kind", "length"):
                labels.setdefault(requirement.label, set()).add((requirement.low, requirement.high))
    return {
        function: {label: frozenset(kinds) for label, kinds in labels.items()} for function, labels in found.items()
    }


def type_of(kinds: frozenset[Interval]) -> str:
    """What a parameter is to a caller, given the kinds that its variants take."""
    return _TYPES.get(kinds, "any")


def with_types(kernel: KernelRecord, variants: Iterable[VariantDetails]) -> KernelRecord:
    """The kernel with the type of each parameter, if all its functions agree on it; ``any`` if they do not."""
    kinds = function_kinds(variants).values()
    parameters = []
    for parameter in kernel.parameters:
        taken = frozenset().union(*(own.get(parameter.name, frozenset()) for own in kinds))
        # Variants say nothing of a workspace: dispatch supplies it, if the caller passes none.
        parameters.append(parameter.replace(type="tensor?" if parameter.workspace is not None else type_of(taken)))
    return kernel.replace(parameters=tuple(parameters))
