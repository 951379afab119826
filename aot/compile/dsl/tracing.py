"""What CuTe DSL does while it traces and need not do: replaced for the time of one compile.

Nothing here changes what is traced. These are private parts of CuTe DSL, the same in 4.6, 4.7 and 4.8; a version that
differs gets a module of its own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # The code in `_quick_wrapper` runs with the globals of that module.
    from cutlass._mlir_helpers.op import _ENABLE_FRAME_FILTERING, _VERIFY_TRACE_ENABLED, dsl_user_op

__all__ = ["NEEDS", "quick_tracing"]

NEEDS: Mapping[str, tuple[str, ...]] = {
    "cutlass._mlir.dialects.cuda": ("KernelOp",),
    "cutlass._mlir_helpers.op": ("_ENABLE_FRAME_FILTERING", "_VERIFY_TRACE_ENABLED", "dsl_user_op"),
    "cutlass.base_dsl.dsl": ("BaseDSL._BaseDSL__remove_empty_gpu_modules",),
    "cutlass.base_dsl.tvm_ffi_builder.mlir_builder": ("MLIRBuilder",),
    "cutlass.base_dsl.typing": ("Numeric.from_mlir_type",),
}


@contextmanager
def quick_tracing() -> Iterator[None]:
    """Within the context, a compile does without work that changes nothing.

    - Before it traces a kernel, CuTe DSL writes all that it has traced as text, and then the kernel, for a log that
      nobody keeps.
    - It lists all types whenever it asks what a type is called, and words an error for each that has no name, such as
      vectors; here it asks once for each type of a compile.
    - It walks all operations to find empty modules, and writes each symbol as text to look for one: here it looks at
      the top of the module, and in a table of symbols.
    - Around each operation it does work for its other frontend, for source locations and for checks that are off.
    """
    from cutlass._mlir import ir
    from cutlass._mlir.dialects import cuda
    from cutlass.base_dsl.dsl import BaseDSL
    from cutlass.base_dsl.tvm_ffi_builder.mlir_builder import MLIRBuilder
    from cutlass.base_dsl.typing import Numeric
    from cutlass.cutlass_dsl import CuTeDSL

    replacements: list[tuple[type, str, Any]] = [
        (CuTeDSL, "_enter_gpu_module", lambda self: ir.InsertionPoint(self.gpu_module.bodyRegion.blocks[0])),
        (cuda.KernelOp, "__str__", lambda self: self.operation.name),
        (Numeric, "from_mlir_type", staticmethod(_asked_once(Numeric.from_mlir_type))),
        (BaseDSL, "_BaseDSL__remove_empty_gpu_modules", staticmethod(_remove_empty_gpu_modules)),
        (MLIRBuilder, "_module_symbol_exists", lambda self, module, name: name in ir.SymbolTable(module.operation)),
    ]
    with ExitStack() as stack:
        for owner, name, value in replacements:
            if hasattr(owner, name):
                stack.enter_context(_replaced(owner, name, value))
        if not getattr(CuTeDSL._get_dsl().envar, "enable_pyir", False):
            stack.enter_context(_quick_operations())
        yield


@contextmanager
def _replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    """Within the context, an attribute of a class is another."""
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)  # it is inherited
        else:
            setattr(owner, name, own)


def _asked_once(name_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, which keeps what it returned or raised for each type."""
    known: dict[Any, Any] = {}

    def answer(type_: Any) -> Any:
        if type_ not in known:
            try:
                known[type_] = name_of(type_)
            except Exception as error:
                known[type_] = error
        if isinstance(known[type_], Exception):
            raise known[type_].with_traceback(None)
        return known[type_]

    return answer


def _remove_empty_gpu_modules(module: Any) -> None:
    for operation in list(module.body.operations):
        if operation.operation.name == "gpu.module" and not any(
            len(block.operations) for block in operation.operation.regions[0].blocks
        ):
            operation.operation.erase()


@contextmanager
def _quick_operations() -> Iterator[None]:
    """Within the context, functions of CuTe DSL that make operations have the code of `_quick_wrapper` around them."""
    wrapping, wrappers = _wrappers()
    quick = _quick_wrapper(None).__code__
    for function in wrappers:
        function.__code__ = quick
    try:
        yield
    finally:
        for function in wrappers:
            function.__code__ = wrapping


@cache
def _wrappers() -> tuple[CodeType, list[FunctionType]]:
    """The code that `dsl_user_op` puts around functions that make operations, and all that it has put it around."""
    from cutlass._mlir_helpers import op

    code = op.dsl_user_op(lambda: None).__code__
    # `isinstance` would ask strangers for their class, and some answer with a warning: torch's deprecated names do.
    wrappers = [item for item in gc.get_objects() if type(item) is FunctionType and item.__code__ is code]
    gc.freeze()  # What is imported stays: nobody needs to look for garbage in it while operations are made.
    return code, wrappers


def _quick_wrapper(opFunc: Any) -> FunctionType:
    """What `dsl_user_op` returns, without what is off or does nothing. Its own wrapper words what goes wrong."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _ENABLE_FRAME_FILTERING or _VERIFY_TRACE_ENABLED:
            return dsl_user_op(opFunc)(*args, **kwargs)
        loc = kwargs.pop("loc", None)
        try:
            return opFunc(*args, **kwargs, loc=loc)
        except Exception as error:
            raised = error

        def fail(*args: Any, **kwargs: Any) -> None:
            raise raised

        fail.__name__ = getattr(opFunc, "__name__", str(opFunc))
        return dsl_user_op(fail)(*args, **kwargs)

    return wrapper  # type: ignore[return-value]
