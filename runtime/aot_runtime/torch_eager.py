"""Eager calls that bypass torch's dispatcher: C code of the bundle decides whether they may, and makes them.

The questions that decide are about the types of the tensors, modes, transforms, tracing and gradients. Asked from
Python they take half a microsecond. The entry library asks the same in a tenth of that time. It was built without
headers of Python and torch, so it gets the addresses of the functions that it calls.

Most of these are C++ functions of torch, which a later torch may change. :func:`eager_functions` compares what they say
with what torch says in Python, and returns None if anything is not as known. Then :mod:`aot_runtime.torch` asks from
Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.autograd import forward_ad

from .errors import CudaError

__all__ = ["MOST_ARGUMENTS", "EagerFunctions", "eager_functions"]

MOST_ARGUMENTS = 64  # of a function: each has a bit

_PYTHON = {"increase": "Py_IncRef", "decrease": "Py_DecRef", "call": "PyObject_Vectorcall"}
_C10 = {
    "is_included": "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "is_grad_enabled": "_ZN3c108GradMode10is_enabledEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
}
_TORCH_CPU = {
    "count_function_modes": "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "is_inference": "_ZN2at6native12is_inferenceERKNS_6TensorE",
    "bump_version": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
}
# For functions that are called from C: Python's interface, most of it stable.
_CALLING = {
    "size_of": "PyTuple_Size",
    "element_of": "PyTuple_GetItem",
    "item_of": "PyDict_GetItemWithError",
    "clear_error": "PyErr_Clear",
    "is_error": "PyErr_ExceptionMatches",
    "evaluator_of": "_PyInterpreterState_GetEvalFrameFunc",
    "evaluator": "_PyEval_EvalFrameDefault",
}
_LEVEL = sys.intern("_current_level")  # of forward_ad: at least 0 while derivatives are computed forward
# What a thread includes while a mode, a transform or torch.jit.trace is active.
_KEYS = ("Python", "FuncTorchDynamicLayerFrontMode", "Tracer")
_FAILURES = (CudaError, KeyboardInterrupt)  # unlike refusals, these may come after a launch
_METH_FASTCALL = 0x0080  # of Python's stable interface
_POINTER = ctypes.sizeof(ctypes.c_void_p)


class _Eager(ctypes.Structure):
    """``aot_eager`` of ``runtime/src/aot_eager.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_PYTHON, "none", "yes", "no", "tensor", "parameter")),
        *((name, ctypes.c_void_p) for name in ("is_included", "count_function_modes", "is_grad_enabled")),
        *((name, ctypes.c_void_p) for name in ("requires_grad", "is_inference", "bump_version")),
        ("offset", ctypes.c_uint64),
        ("keys", ctypes.c_uint64 * len(_KEYS)),
        *((name, ctypes.c_uint64) for name in ("count", "tensors", "optional", "outputs")),
        *((name, ctypes.c_void_p) for name in ("function", "target", "parameters", "call_function", "size_of")),
        *((name, ctypes.c_void_p) for name in ("element_of", "item_of", "clear_error", "is_error", "evaluator_of")),
        *((name, ctypes.c_void_p) for name in ("interpreter", "evaluator", "forward", "level", "outside", "failures")),
    ]


class _Parameter(ctypes.Structure):
    """``aot_eager_parameter`` of ``runtime/src/aot_eager.h``."""

    _fields_ = [("name", ctypes.c_void_p), ("fallback", ctypes.c_void_p), ("position", ctypes.c_uint64)]


class _Method(ctypes.Structure):
    """``PyMethodDef`` of Python."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    ]


class EagerFunctions:
    """Makes functions of Python from those of an entry library."""

    def __init__(self, function: Callable[[int, int, int], int], facts: dict[str, Any]) -> None:
        self._function, self._facts = function, facts
        self.shortens = False  # whether functions of Python can be called from C

    def ask(self, tensors: Sequence[str], optional: Collection[str] = ()) -> Any:
        """A function of these tensors: whether a call with them may bypass the dispatcher."""
        return self._made(0, tensors, tensors=tensors, optional=optional)

    def write(
        self,
        arguments: Sequence[str],
        tensors: Collection[str],
        outputs: Collection[str],
        optional: Collection[str] = (),
    ) -> Any:
        """A function of a kernel's function and these arguments: makes the call if it may, and returns whether it did."""
        return self._made(1, arguments, tensors=tensors, outputs=outputs, optional=optional)

    def shorten(
        self,
        function: Any,
        target: Any,
        arguments: Sequence[str],
        tensors: Collection[str],
        outputs: Collection[str],
        optional: Collection[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """Let calls of a function of Python reach the kernel's function from C, if they may; it gets all other calls.

        It takes arguments by the kernel's names. Those that it does not take have a default.
        """
        code, defaults = function.__code__, defaults or {}
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        parameters = (_Parameter * len(arguments))(
            *(_parameter(name, taken, code.co_argcount, defaults) for name in arguments)
        )
        eager = self._eager(arguments, tensors=tensors, outputs=outputs, optional=optional)
        for name, value in {**(_calling_facts() or {}), "function": id(function), "target": id(target)}.items():
            setattr(eager, name, value)
        eager.parameters = ctypes.addressof(parameters)
        address = self._function(2, ctypes.sizeof(_Eager), ctypes.addressof(eager))
        _kept.append((eager, parameters, function, target, defaults))
        if address:
            ctypes.pythonapi.PyFunction_SetVectorcall(ctypes.py_object(function), ctypes.c_void_p(address))

    def _eager(self, arguments: Sequence[str], **kinds: Collection[str]) -> _Eager:
        assert len(arguments) <= MOST_ARGUMENTS
        bits = {
            kind: sum(1 << i for i, argument in enumerate(arguments) if argument in names)
            for kind, names in kinds.items()
        }
        return _Eager(**self._facts, count=len(arguments), **bits)

    def _made(self, which: int, arguments: Sequence[str], **kinds: Collection[str]) -> Any:
        eager = self._eager(arguments, **kinds)
        method = _Method(b"eager", _address_in(self._function, which), _METH_FASTCALL, None)
        _kept.append((eager, method))  # operators live as long as the process
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.argtypes, new.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
        return new(ctypes.addressof(method), ctypes.addressof(eager), None)


_kept: list[Any] = []


def _parameter(name: str, taken: Sequence[str], positional: int, defaults: Mapping[str, Any]) -> _Parameter:
    """How an argument of a kernel comes from a call. The names in ``taken`` are those that callers pass, interned."""
    fallback = id(defaults[name]) if name in defaults else None
    if name not in taken:
        return _Parameter(None, fallback, -1)
    index = taken.index(name)
    return _Parameter(id(taken[index]), fallback, index if index < positional else -1)


@cache
def _calling_facts() -> dict[str, int] | None:
    """What C has to know of Python to be called instead of a function; None for versions that were not tried."""
    python = ctypes.pythonapi
    if not (3, 12) <= sys.version_info < (3, 14):  # PyFunction_SetVectorcall is new in 3.12
        return None
    try:
        found = {name: _address(python, symbol) for name, symbol in _CALLING.items()}
    except AttributeError:
        return None
    python.PyInterpreterState_Get.restype = python.PyVectorcall_Function.restype = ctypes.c_void_p
    found["call_function"] = python.PyVectorcall_Function(ctypes.py_object(_address))  # as of every function
    objects = {"forward": id(forward_ad.__dict__), "level": id(_LEVEL), "outside": id(-1), "failures": id(_FAILURES)}
    return {**found, **objects, "interpreter": python.PyInterpreterState_Get()}


def eager_functions(bundle: Any) -> EagerFunctions | None:
    """The functions of a bundle; None if they cannot be used with this bundle, Python or torch."""
    facts = _facts()
    if facts is None:
        return None
    try:
        function = bundle._symbol("aot__eager")
    except AttributeError:  # a bundle of an earlier protocol
        return None
    functions = EagerFunctions(function, facts)
    if not (_address_in(function, 0) and _agrees(functions)):
        return None
    functions.shortens = _calling_facts() is not None and _shortens(functions)
    return functions


def _address_in(function: Callable[[int, int, int], int], which: int) -> int:
    return function(which, ctypes.sizeof(_Eager), _address(ctypes.pythonapi, "PyLong_AsVoidPtr"))


def _address(library: Any, name: str) -> int:
    address = ctypes.cast(library[name], ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def _facts() -> dict[str, Any] | None:
    """What C has to know of this process; None if Python or torch is not as known."""
    offset = _offset()
    if offset is None:
        return None
    try:
        c10, cpu = (ctypes.CDLL(name, os.RTLD_NOLOAD) for name in ("libc10.so", "libtorch_cpu.so"))
        keys = [int(torch._C._dispatch_key_parse(key)) for key in _KEYS]
        places = ((ctypes.pythonapi, _PYTHON), (c10, _C10), (cpu, _TORCH_CPU))
        found = {name: _address(library, symbol) for library, names in places for name, symbol in names.items()}
    except (AttributeError, OSError, RuntimeError):
        return None
    constants = {"none": None, "yes": True, "no": False, "tensor": torch.Tensor, "parameter": torch.nn.Parameter}
    objects = {name: id(constant) for name, constant in constants.items()}
    return {**found, **objects, "offset": offset, "keys": (ctypes.c_uint64 * len(_KEYS))(*keys)}


def _offset() -> int | None:
    """Where an object of Python holds its tensor of C++; None if objects do not begin as C expects them to."""
    with torch._C.DisableTorchFunction():
        tensors = [torch.empty(0), torch.nn.Parameter(torch.empty(0))]
    if any(_word(tensor, _POINTER) != id(type(tensor)) for tensor in tensors):
        return None  # Python without a global lock has something else there
    places = range(2 * _POINTER, torch.Tensor.__basicsize__, _POINTER)
    return next((at for at in places if all(_word(tensor, at) == tensor._cdata for tensor in tensors)), None)


def _word(thing: Any, offset: int) -> int | None:
    return ctypes.c_void_p.from_address(id(thing) + offset).value


def _agrees(functions: EagerFunctions) -> bool:
    """Whether C sees each state that forbids to bypass the dispatcher, sees nothing without one, and counts versions."""
    ask, write = functions.ask(["tensor"]), functions.write(["tensor"], ["tensor"], ["tensor"])
    include, is_included = (getattr(torch._C, f"_dispatch_tls_{name}_dispatch_key_included") for name in ("set", "is"))
    keys = [torch._C._dispatch_key_parse(name) for name in _KEYS]
    if any(map(is_included, keys)) or torch._C._len_torch_function_stack():
        return False  # operators are registered inside of a mode
    plain, wanted = torch.empty(0), torch.empty(0, requires_grad=True)
    with torch.inference_mode():
        inference = torch.empty(0)
    seen = []
    for key in keys:
        include(key, True)
        seen.append(ask(plain))
        include(key, False)
    with torch.overrides.BaseTorchFunctionMode():
        seen.append(ask(plain))
    with torch.enable_grad():
        seen.append(ask(wanted))
    with torch.no_grad():
        allowed = [ask(plain), ask(wanted), *(write(id, tensor) for tensor in (plain, wanted, inference))]
    return not any(seen) and all(allowed) and (plain._version, wanted._version) == (1, 1)


def _shortens(functions: EagerFunctions) -> bool:
    """Whether calls reach C if they may, with arguments in their places, and Python otherwise."""
    reached: list[Any] = []

    def form(tensor: Any, number: int = 3, *, out: Any) -> None:
        reached.append("Python")

    functions.shorten(
        form, lambda *given: reached.append(given), ("tensor", "out", "number"), ("tensor", "out"), ("out",),
        defaults={"number": 3},
    )  # fmt: skip
    tensor, out = torch.empty(0), torch.empty(0)
    with torch.no_grad():
        form(tensor, out=out)
        form(out=out, tensor=tensor, number=4)
        with forward_ad.dual_level():
            form(tensor, out=out)
    first, second, last = reached
    same = all(given[0] is tensor and given[1] is out for given in (first, second) if given != "Python")
    return same and (first[2:], second[2:], last, out._version) == ((3,), (4,), "Python", 2)
