"""Functions in a form that is the same in every process: by place or text, by what they enclose, and by their defaults."""

from __future__ import annotations

import functools
import hashlib
import io
import linecache
import re
import sys
import textwrap
import tokenize
import types
from contextlib import suppress
from typing import Any

from .digests import UnstableError, digest
from .held import given_to, hints_of, untold_by_text
from .libraries import MAIN, module_of, takes_part
from .named import foreign_name, has_globals_of_module, leads_to, name_leads_to, qualified
from .sources import function_text, original_code

__all__ = ["REGISTRY", "FunctionForms", "without_addresses"]

REGISTRY = "registry"  # of functions that choose by the class of their argument, as `functools.singledispatch` makes
_METHODS_OF_C = (types.MethodDescriptorType, types.ClassMethodDescriptorType, types.WrapperDescriptorType)
_OWN_NAMES = frozenset({"__name__", "__file__", "__doc__", "__package__"})  # of a module


class FunctionForms:
    """Forms of functions, which are a part of ``Forms``: that gives the forms of what functions hold."""

    python: str | None = None  # the version of Python, if bytecode had to stand in for a source

    def of(self, value: Any, where: str) -> Any:
        raise NotImplementedError

    def by_name(self, values: dict[str, Any], where: str) -> dict[str, Any]:
        raise NotImplementedError

    def of_callable(self, value: Any, where: str) -> Any:
        """The form of a function, a method or a partial; None for any other object that can be called."""
        if isinstance(value, functools.partial):
            parts = [value.func, list(value.args), dict(value.keywords), *filter(None, [vars(value)])]
            return ["partial", *(self.of(part, f"{where}: its parts") for part in parts)]
        if isinstance(value, types.MethodType):
            return ["method", self.of(value.__self__, f"the object of {where}"), self.of(value.__func__, where)]
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return ["builtin", qualified(value), *self._bound_to(value, where)]
        if _is_of_cuda(value):  # a function of Cython, whose class has another name in other versions
            return ["builtin", f"{value.__module__}:{value.__qualname__}"]
        if isinstance(value, _METHODS_OF_C):
            return ["builtin", f"{qualified(value.__objclass__)}.{value.__name__}"]
        if type(value).__module__ == "numpy" and (name := _name_in_numpy(value)) is not None:
            return ["builtin", name]
        if type(value).__module__ == "nanobind":  # a function of C++, in other modules in other versions of CuTe DSL
            return ["builtin", f"{value.__module__.partition('.')[0]}:{value.__qualname__}"]
        if isinstance(value, types.FunctionType):
            return self.function(value, where)
        return None

    def _bound_to(self, method: Any, where: str) -> list[Any]:
        """The object of a method that C implements, such as ``table.get``. Functions of C are bound to their modules."""
        owner = getattr(method, "__self__", None)
        return [] if owner is None or isinstance(owner, (types.ModuleType, type)) else [self.of(owner, where)]

    def function(self, value: Any, where: str) -> Any:
        """A function and all that wrap it, each by its source, what it encloses and its defaults.

        What a function reads is compared apart: see ``reads``.
        """
        layers: list[Any] = []
        while isinstance(value, types.FunctionType):
            inner = getattr(value, "__wrapped__", None)
            layers += filter(None, [self._layer(value, inner, where)])
            value = inner
        return ["function", *layers, *([self.of(value, where)] if value is not None else [])]

    def _layer(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        is_ours = takes_part(module_of(function))
        found = self._written(function, inner, where) if is_ours else self._foreign(function, inner)
        if not is_ours and isinstance(registry := getattr(function, REGISTRY, None), types.MappingProxyType):
            return [*found, self.of(dict(registry), where)]
        is_told = name_leads_to(function) or (inner is None and not is_ours)
        return [*found, *([] if is_told or not (own := given_to(function)) else [self.by_name(own, where)])]

    def _foreign(self, function: types.FunctionType, inner: Any) -> list[Any]:
        """A function of CuTe DSL, of Python or of torch. What wraps the function that is compiled is no part of a key."""
        return [foreign_name(function)] if inner is None else []

    def _written(self, function: types.FunctionType, inner: Any, where: str) -> list[Any]:
        """A function that somebody wrote. How it is annotated is told by its place, if it has one."""
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        enclosed = {
            name: self.of(content, f"{name} of {where}")
            for name, cell in cells
            if (content := self._enclosed(cell, f"{name} of {where}")) is not inner or inner is None
        }
        source = self._source(function, where)
        defaults = self.of([function.__defaults__, function.__kwdefaults__], f"the defaults of {where}")
        found = [source, enclosed, defaults]
        if not has_globals_of_module(function):
            found.append(self._globals(function, where))
        hints = hints_of(function) if " " in source else {}
        return [*found, *untold_by_text(function), *([hints] if hints else [])]

    def _enclosed(self, cell: Any, where: str) -> Any:
        try:
            return cell.cell_contents
        except ValueError:
            raise UnstableError(f"{where} is not assigned yet") from None

    def _globals(self, function: types.FunctionType, where: str) -> dict[str, Any]:
        """What a function reads by name that runs with globals of its own, which are no module's."""
        return {name: self.of(value, f"{name} of {where}") for name, value in _globals_named(function).items()}

    def _source(self, function: types.FunctionType, where: str) -> str:
        """The place of a function in a module whose source is compared; its text if no name leads to it, or in a script."""
        generated = _is_generated(function)
        if generated and function.__code__.co_filename not in linecache.cache:
            return f"{qualified(function)} {self._bytecode(function, where)}"
        if function.__module__ != MAIN and not generated and name_leads_to(function):
            return qualified(function)
        try:
            text = textwrap.dedent(function_text(original_code(function)))
        except (OSError, TypeError):
            raise UnstableError(f"{where} is a function whose source cannot be read") from None
        if function.__name__ == "<lambda>" and _lambdas(text) > 1:
            raise UnstableError(f"{where} is one of several lambdas on one line, which cannot be told apart")
        text = without_addresses(function, text)
        if generated and (name := _addressed(function, text)) is not None:
            raise UnstableError(f"the text of {where} has the address of `{name}`, another one in each process")
        return f"{without_addresses(function, qualified(function))} {hashlib.sha256(text.encode()).hexdigest()}"

    def _bytecode(self, function: types.FunctionType, where: str) -> str:
        """A digest of a function whose source was never written down, and of the functions that it names.

        Bytecode is the same in every process of one version of Python, and in no other version.
        """
        self.python = f"{sys.version_info.major}.{sys.version_info.minor}"
        named = {
            name: self.of(value, f"{name} of {where}")
            for name, value in _globals_named(function).items()
            if callable(value)
        }
        return digest([self._code(original_code(function), f"a constant of {where}"), named])

    def _code(self, code: types.CodeType, where: str) -> list[Any]:
        """Code with its names and constants, as JSON's types."""
        constants = [
            self._code(item, where) if isinstance(item, types.CodeType) else self.of(item, where)
            for item in code.co_consts
        ]
        return [code.co_code.hex(), constants, *map(list, (code.co_names, code.co_varnames, code.co_freevars))]


def _is_of_cuda(value: Any) -> bool:
    """Whether this is a function of cuda-bindings, or one that plays it."""
    is_function = isinstance(value, types.FunctionType) or type(value).__name__ == "cython_function_or_method"
    return is_function and str(value.__module__).partition(".")[0] == "cuda"


def _name_in_numpy(value: Any) -> str | None:
    """The name that leads to a function of numpy, which has several kinds of them; None of what it made."""
    module, name = getattr(value, "__module__", "numpy"), getattr(value, "__name__", None)
    return f"{module}.{name}" if name is not None and leads_to(module, name) is value else None


def _lambdas(text: str) -> int:
    """How many lambdas begin in the first line of a piece of source, which may begin or end in the midst of a statement."""
    found = 0
    with suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            found += token.type == tokenize.NAME and token.string == "lambda" and token.start[0] == 1
    return found


def without_addresses(function: Any, text: str) -> str:
    """The text or the name of a function that code made, without addresses in identifiers: ``launch_add_7f12a04c1260``.

    Each is of something that the function reads by name, and becomes this name: it tells two functions of a process apart,
    as what the name stands for does in every process.
    """
    if isinstance(function, types.FunctionType) and _is_generated(function):
        for name, addresses in _addresses(function).items():
            text = re.sub(rf"_({'|'.join(addresses)})(?![0-9A-Za-z])", f"_{name}", text)
    return text


def _addressed(function: types.FunctionType, text: str) -> str | None:
    """What a function reads by name whose address is a part of its text."""
    found = _addresses(function).items()
    return next((name for name, addresses in found if any(one in text for one in addresses)), None)


def _addresses(function: types.FunctionType) -> dict[str, tuple[str, str]]:
    return {name: (f"{id(value):x}", str(id(value))) for name, value in _globals_named(function).items()}


def _is_generated(function: types.FunctionType) -> bool:
    return function.__code__.co_filename.startswith("<")


def _globals_named(function: types.FunctionType) -> dict[str, Any]:
    """The globals of a function that its code names, in the order of their names."""
    known = function.__globals__
    return {name: known[name] for name in sorted(_names(function) & known.keys())}


@functools.lru_cache(maxsize=4096)  # CuTe DSL replaces the code of a function when it is first compiled
def _names(function: types.FunctionType) -> frozenset[str]:
    """The names that the code of a function may look up in its module."""
    names: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [item for item in code.co_consts if type(item) is types.CodeType]
    return frozenset(names - _OWN_NAMES)
