"""CuTe DSL 4.7: as 4.8, but kernels carry no launch facts, so that cluster shapes are read off the launches."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from .interface import PUBLIC, Clusters
from .v4_8 import (
    BACKEND_FILES,
    BACKEND_MODULE,
    LAUNCHER,
    PRIVATE,
    RENAMING,
    entry_parameters,
    export,
    intercept,
    open_tuples,
    quick_tracing,
    when_traced,
)

__all__ = [
    "BACKEND_FILES", "BACKEND_MODULE", "COMPILE_KEYWORDS", "LAUNCHER", "NEEDS", "entry_parameters", "export", "intercept", "note_clusters",
    "open_tuples", "quick_tracing", "when_traced",
]  # fmt: skip

COMPILE_KEYWORDS: dict[str, Any] = {}
NEEDS = {**PUBLIC, **PRIVATE, "cutlass._mlir.ir": (*RENAMING, "IntegerAttr", "SymbolRefAttr")}

_SET_CLUSTER = "cuda.launch_cfg.cluster_dim"  # operands: the configuration, then the blocks along x, y and z
_LAUNCH = "cuda.launch_ex"  # its first operand is the configuration, the attribute ``callee`` the kernel
_CONSTANT = "arith.constant"


def note_clusters(clusters: Clusters) -> AbstractContextManager[Any]:
    return when_traced(lambda module: clusters.update(_clusters(module)))


def _clusters(module: Any) -> Clusters:
    """The cluster shapes that are fixed, for kernels whose launches all agree."""
    from cutlass._mlir import ir

    shapes: dict[Any, tuple[int | None, ...]] = {}  # launch configuration -> its cluster
    launches: dict[str, set[tuple[int | None, ...]]] = {}

    def visit(operation: Any) -> Any:
        if operation.name == _SET_CLUSTER:
            configuration, *sizes = operation.operands
            shapes[configuration] = tuple(_constant(size) for size in sizes)
        elif operation.name == _LAUNCH:
            kernel = ir.SymbolRefAttr(operation.attributes["callee"]).value[-1]
            launches.setdefault(kernel, set()).add(shapes.get(operation.operands[0], ()))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    found: Clusters = {}
    for kernel, seen in launches.items():
        shape = seen.pop()
        if not seen and len(shape) == 3 and None not in shape:
            found[kernel] = shape  # type: ignore[assignment]
    return found


def _constant(value: Any) -> int | None:
    from cutlass._mlir import ir

    owner = getattr(value, "owner", None)  # a parameter has a block as its owner, or none
    if getattr(owner, "name", "") != _CONSTANT:
        return None
    return int(ir.IntegerAttr(owner.attributes["value"]).value)  # type: ignore[union-attr]
