"""What kinds of argument the variants of a kernel take, and what that makes each parameter for a caller."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from aot_runtime.description.kernel_records import KernelRecord

from ..kinds import BOOL, DTYPES, FLOAT, HANDLE, INT, NONE, TENSOR, TUPLE
from .details import VariantDetails

__all__ = ["Interval", "Kinds", "function_kinds", "tensors_of", "type_of", "with_types"]

Interval = tuple[int, int]
Kinds = Mapping[str, frozenset[Interval]]  # label of an argument or element -> what its variants take

_MOST_TENSORS = 8
_DTYPES = {dtype.packed: dtype.torch for dtype in DTYPES.values()}

_TYPES: dict[frozenset[Interval], str] = {
    frozenset({(TENSOR, TENSOR)}): "tensor",
    frozenset({(TENSOR, TENSOR), (NONE, NONE)}): "tensor?",
    frozenset({(NONE, TENSOR)}): "tensor?",
    frozenset({(NONE, NONE)}): "tensor?",  # of no dtype: the variants that take one were not built
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
    variants = list(variants)
    kinds = function_kinds(variants).values()
    parameters = []
    for parameter in kernel.parameters:
        taken = frozenset().union(*(own.get(parameter.name, frozenset()) for own in kinds))
        # Variants say nothing of a workspace: dispatch supplies it, if the caller passes none.
        kind = "tensor?" if parameter.workspace is not None else type_of(taken)
        parameters.append(parameter.replace(type=kind, accepts=tensors_of(parameter.name, variants)))
    return kernel.replace(parameters=tuple(parameters))


def tensors_of(parameter: str, variants: Iterable[VariantDetails]) -> tuple[str, ...]:
    """What tensors the variants take for a parameter, each kind once: ``float16[:, 128]``."""
    seen = dict.fromkeys(_tensor(parameter, variant) for variant in variants)
    found = tuple(text for text in seen if text)
    if len(found) <= _MOST_TENSORS:
        return found
    # Many fixed extents: dtypes and ranks say enough.
    return tuple(dict.fromkeys(re.sub(r"\d+(?=[,\]])", ":", text) for text in found))


def _tensor(parameter: str, variant: VariantDetails) -> str:
    """Empty if the variant takes no tensor there, or one of any dtype."""
    ranges = {(one.label, one.operation): (one.low, one.high) for one in variant.requirements}
    dtype = _DTYPES.get(ranges.get((f"{parameter}.dtype", "dtype"), (0, 0))[0])
    rank = ranges.get((f"{parameter}.ndim", "ndim"), (0, 0))[0]
    if dtype is None:
        return ""
    extents = [ranges.get((f"{parameter}.shape[{i}]", "extent"), (0, 1)) for i in range(rank)]
    return f"{dtype}[{', '.join(str(low) if low == high else ':' for low, high in extents)}]"
