"""A call of ``cute.compile`` as data: what it is given, in words that are the same in every process.

Capturing writes this into a bundle, and serving looks it up. Nothing here imports CuTe DSL: its objects are known by
what they offer.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from .options import Options, read_options
from .values.digests import UnstableError, digest
from .values.forms import Forms
from .values.function_forms import without_addresses
from .values.held import annotations_of, attributes_of
from .values.libraries import takes_part
from .values.named import base_names, qualified

__all__ = [
    "CONTROLS",
    "DATACLASS",
    "VARIABLE",
    "Call",
    "bind",
    "describe",
    "is_constexpr",
    "jit_function",
    "open_signature",
    "with_tensors_of_cute_dsl",
]


# Keywords of CuTe DSL itself, which no function sees. The first may change the code, and are not part of a key.
_CHANGE_CODE = ("gpu_module_attrs", "pipeline", "trace_finalize_hooks")
CONTROLS = frozenset({*_CHANGE_CODE, "compile_only", "is_experimental", "no_cache", "no_jit_engine", "options"})
_RUNTIME = "cutlass.cute.runtime"
_OWNER = "self"  # the first parameter of this name is known when compiling
VARIABLE = "vararg_"  # begins the names of what `*args` takes
_TAKE_MORE = frozenset({inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD})
_NUMBERS = frozenset({bool, int, float})  # CuTe DSL passes these; one of a class of its own may be read when compiling
_SHAPES = frozenset({"Coord", "IntTuple", "Shape", "Stride", "Tile"})  # unions of CuTe DSL, known by what is in them
_FAKE = "_FakeTensor"  # of CuTe DSL: its layout is in its attributes
DATACLASS = "dataclass"  # begins the form of an argument that callers pass as one


class Call:
    """A call: what tells it from others. What tracing reads beside it is compared apart: see ``reads``."""

    def __init__(self, data: dict[str, Any], options: Options) -> None:
        self.data, self.options = data, options
        self.key = digest(data)


def describe(compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Describe a call; :class:`UnstableError` if part of it has no form that lasts."""
    owner, jit = jit_function(function)
    if given := [name for name in _CHANGE_CODE if kwargs.get(name)]:
        raise UnstableError(f"the keyword {given[0]}")
    text = kwargs.get("options")
    options = read_options(compiler, text if isinstance(text, str) else None)
    forms = Forms()
    data: dict[str, Any] = {"callable": without_addresses(jit, qualified(jit)), "options": options.flags}
    if owner is None:
        data["function"] = forms.function(function, jit.__qualname__)
    else:
        data["class"] = forms.type_of(type(owner), type(owner).__name__)
        data["attributes"] = _attributes(owner, forms)
    arguments = bind(jit, owner, args, kwargs)
    described = _Arguments(forms)
    data["arguments"] = {name: described.of(value, name, hint) for name, value, hint in arguments}
    if owner is None and arguments and arguments[0][0] == _OWNER:  # a method that is called by its class
        data["arguments"][_OWNER] = ["constant", forms.of(arguments[0][1], _OWNER)]
    if linked := options.linked():
        data["linked"] = linked
    if forms.python is not None:
        data["python"] = forms.python
    return Call(data, options)


def with_tensors_of_cute_dsl(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call with tensors of frameworks as CuTe DSL converts them: all but the innermost stride dynamic."""
    if not any(_is_foreign_tensor(value) for value in (*args, *kwargs.values())):
        return args, kwargs
    return tuple(map(_converted, args)), {name: _converted(value) for name, value in kwargs.items()}


def _is_foreign_tensor(value: Any) -> bool:
    return hasattr(type(value), "__dlpack__") and not hasattr(type(value), "dynamic_shapes_mask")


def _converted(value: Any) -> Any:
    if not _is_foreign_tensor(value):
        return value
    return sys.modules[_RUNTIME].from_dlpack(value).mark_layout_dynamic()


def jit_function(function: Any) -> tuple[Any, Any]:
    """The object that a call of it is bound to, or None, and the function that ``@cute.jit`` decorates."""
    owner = None
    if inspect.ismethod(function):
        owner, function = function.__self__, function.__func__
    elif not inspect.isfunction(function):
        call = _call_of(type(function))
        if call is None:
            raise UnstableError(f"{function!r} is not a function, a method or an object that can be called")
        owner, function = function, call
    return owner, inspect.unwrap(function)


def _call_of(kind: type) -> types.FunctionType | None:
    """The function that a call of a class's objects ends in. A class may answer ``getattr`` in its own way."""
    found = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
    return found if isinstance(found, types.FunctionType) else None


def bind(jit: Any, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The name, value and annotation of each argument, in the order of the signature."""
    given = {name: value for name, value in kwargs.items() if name not in CONTROLS}
    passed = args if owner is None else (owner, *args)
    parameters, needed = _in_order(jit)
    if not given and needed <= len(passed) <= len(parameters):
        # All in order, as most libraries pass them. What `inspect` does for any call takes ten times as long.
        values = (*passed, *(item.default for item in parameters[len(passed) :]))
        found = [(item.name, value, item.annotation) for item, value in zip(parameters, values, strict=True)]
    else:
        found = _bound(open_signature(jit, passed, given), passed, given)
    return found if owner is None else found[1:]


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UnstableError(f"the arguments do not fit: {error}") from None
    bound.apply_defaults()
    return [(name, value, signature.parameters[name].annotation) for name, value in bound.arguments.items()]


def open_signature(jit: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.Signature:
    """The signature of a function for a call: what ``*args`` and ``**kwargs`` take has names, too."""
    signature = _signature(jit)
    kinds = {item.kind for item in signature.parameters.values()}
    if kinds.isdisjoint(_TAKE_MORE):
        return signature
    parameters: list[inspect.Parameter] = []
    for number, item in enumerate(signature.parameters.values()):
        if item.kind is inspect.Parameter.VAR_POSITIONAL:
            names = [f"{VARIABLE}{at}" for at in range(number, len(args))]
            parameters += [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        elif item.kind is inspect.Parameter.VAR_KEYWORD:
            names = [name for name in kwargs if name not in signature.parameters]
            parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names]
        else:
            parameters.append(item)
    try:
        return signature.replace(parameters=parameters)
    except ValueError as error:  # a default before what `*args` takes
        raise UnstableError(f"its variable arguments: {error}") from None


@functools.lru_cache(maxsize=1024)
def _in_order(jit: Any) -> tuple[list[inspect.Parameter], int]:
    """The parameters of a function if all may be passed in order, else none; and how many have no default."""
    parameters = list(_signature(jit).parameters.values())
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = sum(item.default is inspect.Parameter.empty for item in parameters)
    return (parameters if all(item.kind in in_order for item in parameters) else []), needed


@functools.lru_cache(maxsize=1024)
def _signature(jit: Any) -> inspect.Signature:
    return inspect.signature(jit, eval_str=True)


def is_constexpr(hint: Any) -> bool:
    """Whether an annotation says that a value is known when compiling."""
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and "Constexpr" in base_names(kind)


def _attributes(owner: Any, forms: Forms) -> dict[str, Any]:
    _, content, *rest = forms.of(owner, type(owner).__name__)
    return dict(content) if isinstance(content, dict) else {"": [content, *rest]}


class _Arguments:
    """Arguments in words: what the compiler is told of each, not the value that a later call passes."""

    def __init__(self, forms: Forms) -> None:
        self.forms = forms
        self._fixed = False  # whether numbers become constants of the code

    def of(self, value: Any, where: str, hint: Any = None) -> Any:
        if is_constexpr(hint):
            return ["constant", self.forms.of(value, where)]
        if value is None:
            return "None"
        outside = self._fixed
        self._fixed = outside or _fixes_numbers(type(value), hint)
        try:
            return self._of(value, where, hint)
        finally:
            self._fixed = outside

    def _of(self, value: Any, where: str, hint: Any) -> Any:
        kind: Any = type(value)
        if kind in _NUMBERS:
            return ["constant", self.forms.of(value, where)] if self._fixed else f"{kind.__name__}{_converted_to(hint)}"
        if hasattr(kind, "dynamic_shapes_mask"):
            return self._tensor(value)
        names = base_names(kind)
        if "SymInt" in names:
            return f"integer {self.forms.symbol(value)}"
        if "Pointer" in names:
            return f"pointer {value.dtype.__name__} {_space(value)} align {value._assumed_align}"
        if "Numeric" in names:
            return f"scalar {type(value).__name__}"
        if names & {"_FakeStream", "CUstream"}:
            return "current stream" if getattr(value, "use_tvm_ffi_env_stream", False) else "stream"
        if isinstance(value, (tuple, list)) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return self._several(value, where)
        return ["constant", self.forms.of(value, where)]

    def _several(self, value: Any, where: str) -> Any:
        kind: Any = type(value)
        if isinstance(value, (tuple, list)) and not hasattr(kind, "_fields"):
            items = [self.of(item, f"{where}[{number}]") for number, item in enumerate(value)]
            return items if kind is tuple else [qualified(kind), items, *self._beside((), value, where)]
        named_tuple, hints = hasattr(kind, "_fields"), _hints(kind)
        names = kind._fields if named_tuple else [field.name for field in dataclasses.fields(value)]
        fields = {name: self.of(getattr(value, name), f"{where}.{name}", hints.get(name)) for name in names}
        word = qualified(kind) if named_tuple else f"{DATACLASS} {qualified(kind)}"
        return [word, fields, *self._beside(names, value, where)]

    def _beside(self, names: Iterable[str], value: Any, where: str) -> list[Any]:
        """What an object holds beside its items or fields, in a list that is empty for most."""
        others = sorted(attributes_of(value).keys() - names)
        return [{name: self.forms.of(getattr(value, name), f"{where}.{name}") for name in others}] if others else []

    def _tensor(self, value: Any) -> str:
        align = getattr(value, "_assumed_align", None) or value.element_type.width // 8
        layout = value.__cache_key__[-1] if type(value).__name__ != _FAKE else None
        if isinstance(layout, str):  # a tensor of a framework: CuTe DSL words its layout, with what is dynamic in it
            return f"tensor {value.element_type.__name__} {layout} align {align}"
        shape, strides = self._modes(value.shape), self._modes(value.stride)
        narrow = " 32-bit strides" if getattr(value, "_use_32bit_stride", False) else ""
        words = f"tensor {value.element_type.__name__} ({shape}) strides ({strides}){narrow}"
        return f"{words} {_space(value)} align {align}"

    def _modes(self, modes: Any) -> str:
        return ", ".join(str(mode) if isinstance(mode, int) else self.forms.symbol(mode) for mode in modes)


def _fixes_numbers(kind: type, hint: Any) -> bool:
    """Whether plain numbers in an argument become constants: in shapes, and in objects that take themselves apart.

    What such an object passes on when the code runs, and what it keeps, is up to its class.
    """
    if hasattr(kind, "__new_from_mlir_values__") and takes_part(kind.__module__):
        return True
    if get_origin(hint) is not Union:
        return False
    firsts = (get_args(one)[0] for one in get_args(hint) if get_origin(one) is tuple and get_args(one))
    return any(getattr(first, "__forward_arg__", first) in _SHAPES for first in firsts)


def _converted_to(hint: Any) -> str:
    """The type that an annotation makes of a plain number."""
    return f" as {hint.__name__}" if isinstance(hint, type) and "Numeric" in base_names(hint) else ""


def _space(value: Any) -> str:
    return str(getattr(value.memspace, "name", value.memspace))


@functools.lru_cache(maxsize=1024)
def _hints(kind: Any) -> dict[str, Any]:
    """The annotations of a class and its bases. Only those that are texts have to be evaluated, which takes longer."""
    found = {name: hint for base in reversed(kind.__mro__) for name, hint in annotations_of(base).items()}
    return get_type_hints(kind) if any(isinstance(hint, str) for hint in found.values()) else found
