"""CuTe DSL 4.8. The modules of older versions take from here what is the same in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from . import compile_calls, tracing
from .compile_calls import entry_parameters, intercept, open_tuples
from .interface import PUBLIC, Clusters, LauncherText
from .tracing import quick_tracing

__all__ = [
    "BACKEND_FILES", "BACKEND_MODULE", "COMPILE_KEYWORDS", "LAUNCHER", "NEEDS", "PRIVATE", "RENAMING", "entry_parameters", "export", "intercept",
    "note_clusters", "open_tuples", "quick_tracing", "when_traced",
]  # fmt: skip

RENAMING = (
    "Attribute.parse", "StringAttr", "SymbolTable.replace_all_symbol_uses", "SymbolTable.set_symbol_name", "WalkResult",
)  # fmt: skip
PRIVATE = {
    "cutlass._mlir._mlir_libs._cutlass_ir": ("_aot_support.export_module_to_bytes",),
    "cutlass._mlir.ir": RENAMING,
    "cutlass.cutlass_dsl": ("CuTeDSL._enter_gpu_module", "CuTeDSL._get_dsl", "CuTeDSL.trace_finalize_hooks"),
    **compile_calls.NEEDS,
    **tracing.NEEDS,
}
NEEDS = {
    **PUBLIC,
    **PRIVATE,
    "cutlass._mlir.ir": (*RENAMING, "DenseI64ArrayAttr", "DictAttr"),
    "cutlass.cutlass_dsl._launch_facts_metadata": ("EXACT_CLUSTER_DIM_FIELD", "LAUNCH_FACTS_ATTR"),
}

# Code that is exported is not run here: without an engine that could run it, a variant takes a quarter less time.
COMPILE_KEYWORDS = {"no_jit_engine": True}
BACKEND_MODULE = "cutlass._mlir._mlir_libs._cutlass_ir"
BACKEND_FILES = "dsl_packages/cutlass/_mlir/_mlir_libs/_cutlass_ir.cu{cuda}.*.so"

LAUNCHER = LauncherText(
    support=re.compile(r"_?cu(da)?[A-Z]\w*|cuda_dialect_\w+|CuteDSLRT_\w+"),
    once="cuda_dialect_init_library_once",
    unload="cuda_dialect_unload_library_once",
    asserting="cuda_dialect_assert_success",
    # The only functions of NVIDIA's launch support and of C that a launcher might call and never come back from.
    ends_process=re.compile(r"@(cuda_dialect_assert_success|abort|exit|_exit)\("),
    kernel_handle=re.compile(r"\n@(kernels_[\w$.]+|\"kernels_[^\"]+\") = internal global ptr undef(?=\n)"),
    loaders=("cuda_init", "cuda_load_to_device"),
    binaries=r"@{prefix}_cuda_num_binaries\(\) \{{\n  ret i32 (\d+)",
    argument_count=r'c"Expects (\d+) parameters',
    configuration=r"\{ \[3 x i32\], \[3 x i32\], i64, ptr, ptr, i32 \}",
    block=("i32 0, i32 1, i32 0", "i32 0, i32 1, i32 1", "i32 0, i32 1, i32 2"),
    shared_memory="i32 0, i32 2",
)


def note_clusters(clusters: Clusters) -> AbstractContextManager[Any]:
    """The attribute ``cutlass_launch_facts`` of a kernel holds the cluster shape that all its launches agree on."""
    from cutlass._mlir import ir
    from cutlass.cutlass_dsl._launch_facts_metadata import EXACT_CLUSTER_DIM_FIELD, LAUNCH_FACTS_ATTR

    def look(module: Any) -> None:
        for kernel in _kernels(module):
            attributes = kernel.attributes
            if LAUNCH_FACTS_ATTR in attributes and "sym_name" in attributes:
                facts = ir.DictAttr(attributes[LAUNCH_FACTS_ATTR])
                if EXACT_CLUSTER_DIM_FIELD in facts:
                    x, y, z = (int(size) for size in ir.DenseI64ArrayAttr(facts[EXACT_CLUSTER_DIM_FIELD]))
                    clusters[ir.StringAttr(attributes["sym_name"]).value] = (x, y, z)

    return when_traced(look)


def _kernels(module: Any) -> Iterator[Any]:
    """The kernels and device functions of a module: they lie side by side in its GPU module."""
    for operation in module.body.operations:
        if operation.operation.name == "gpu.module":
            for block in operation.operation.regions[0].blocks:
                yield from block.operations


def when_traced(look: Callable[[Any], object]) -> AbstractContextManager[Any]:
    """Within the context, ``look`` is called with the module of each compile once it is traced."""
    from cutlass.cutlass_dsl import CuTeDSL

    hooks: AbstractContextManager[Any] = CuTeDSL._get_dsl().trace_finalize_hooks(
        lambda owner, module, name: look(module)
    )
    return hooks


def export(function: Any, name: str, prefix: str) -> str:
    from cutlass._mlir._mlir_libs._cutlass_ir import _aot_support

    _rename(function.ir_module, f"__tvm_ffi_{function.function_name}", f"__tvm_ffi_{name}", prefix)
    exported = _aot_support.export_module_to_bytes(function.ir_module, format="ll", opt_level=0, enable_pic=True)
    return bytes(exported).decode()


def _rename(module: Any, entry: str, exported: str, prefix: str) -> None:
    """Rename the functions that a module defines, in place: a copy, as ``export_to_c`` makes it, takes 30 ms."""
    from cutlass._mlir import ir

    with module.context:
        hidden = ir.Attribute.parse("#llvm.linkage<internal>")
        for operation in list(module.body.operations):
            function = operation.operation
            if function.name != "llvm.func" or not any(len(region.blocks) for region in function.regions):
                continue  # it is declared only
            old = ir.StringAttr(function.attributes["sym_name"]).value
            new = exported if old == entry else f"{prefix}_{old}"
            ir.SymbolTable.replace_all_symbol_uses(old, new, module.operation)
            ir.SymbolTable.set_symbol_name(operation, new)
            if old != entry:
                function.attributes["linkage"] = hidden
