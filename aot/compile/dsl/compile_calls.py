"""Calls of ``cute.compile`` that other libraries make: seeing them, and what the compiled entry will take.

Private parts of CuTe DSL, the same in 4.6, 4.7 and 4.8; a version that differs gets functions of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, get_args, get_origin

from aot_runtime.serving.calls import open_signature
from aot_runtime.serving.hook import bound_call

from ...errors import DeclarationError

__all__ = ["NEEDS", "entry_parameters", "intercept", "open_tuples"]

NEEDS: Mapping[str, tuple[str, ...]] = {
    "cutlass.base_dsl.compiler": ("CompileCallable._compile",),
    "cutlass.base_dsl.dsl": ("BaseDSL._func",),
    "cutlass.cute._tvm_ffi_args_spec_converter": ("_convert_single_arg", "_tvm_ffi_args_spec_converter"),
}


@contextmanager
def intercept(answer: Callable[..., Any]) -> Iterator[None]:
    """Within the context, ``answer(compiler, function, args, kwargs)`` takes the place of every compile.

    A ``@cute.jit`` function that is called compiles and runs: it is answered too, with None for the compiler.
    """
    from cutlass.base_dsl.compiler import CompileCallable
    from cutlass.base_dsl.dsl import BaseDSL

    original, called = CompileCallable._compile, BaseDSL._func

    def compile_or_answer(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return answer(self, func, args, kwargs)

    def call_or_answer(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return answer(None, *bound_call(func, args), kwargs)

    CompileCallable._compile, BaseDSL._func = compile_or_answer, call_or_answer
    try:
        yield
    finally:
        CompileCallable._compile, BaseDSL._func = original, called


@contextmanager
def open_tuples() -> Iterator[None]:
    """Within the context, a parameter that is annotated as a tuple of any length takes one: ``Tuple``, ``tuple[int, ...]``.

    CuTe DSL takes it without TVM-FFI; with TVM-FFI it expects as many elements as the annotation names.
    """
    from cutlass.cute import _tvm_ffi_args_spec_converter as converter

    convert = converter._convert_single_arg

    def convert_any_length(arg: Any, arg_name: str, arg_type: Any, ctx: Any, **options: Any) -> Any:
        if get_origin(arg_type) is tuple and (get_args(arg_type) or (...,))[-1] is ...:
            arg_type = tuple
        return convert(arg, arg_name, arg_type, ctx, **options)

    converter._convert_single_arg = convert_any_length
    try:
        yield
    finally:
        converter._convert_single_arg = convert


def entry_parameters(jit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """What the compiled entry takes, parameter by parameter, as CuTe DSL's own description of each.

    ``args`` begin with the object that a method is bound to. A library may have replaced the converter.
    """
    from cutlass.base_dsl.common import DSLBaseError
    from cutlass.cute import _tvm_ffi_args_spec_converter as converter

    signature, convert = open_signature(jit, args, kwargs), converter._tvm_ffi_args_spec_converter
    try:
        with open_tuples():
            parameters: list[Any] = convert(jit.__name__, signature, list(args), dict(kwargs))[0]
    except DSLBaseError as error:
        reason = str(error.message).strip().partition("\n")[0]
        raise DeclarationError(f"CuTe DSL cannot pass its arguments through TVM-FFI: {reason}") from None
    return parameters
