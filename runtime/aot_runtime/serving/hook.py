"""Seeing every ``cute.compile`` of a process, before CuTe DSL is imported or after. Never imports it.

``cute.compile`` is an object of the class ``CompileCallable``, whose method ``_compile`` all ways to compile end in. A
``@cute.jit`` function that is called ends in ``BaseDSL._func``. Both are private; the versions of CuTe DSL that have them
are tested.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["Hook", "bound_call", "if_host_code", "is_compile", "is_complete", "when_loaded"]

_MODULE = "cutlass.base_dsl.compiler"
_CALLS = "cutlass.base_dsl.dsl"
_MLIR = "cutlass._mlir.ir"
_DSL = "cutlass.cutlass_dsl"
_GPU_CODE = "gpu.module"
# (the original, the CompileCallable, function, args, kwargs) -> what is compiled. Without a CompileCallable the function is
# called, and the answer is what it returns.
Answer = Callable[..., Any]


class Hook:
    """Lets ``answer`` see every compile and every call of a ``@cute.jit`` function, from :meth:`install` to :meth:`remove`.

    ``prepare`` is called once CuTe DSL is there, which is long before the first compile.
    """

    def __init__(self, answer: Answer, prepare: Callable[[], None] | None = None) -> None:
        self._answer, self._prepare = answer, prepare
        self._stops: list[Callable[[], None]] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # a class, its method, what it was, what it is now

    def install(self) -> None:
        self._stops = [when_loaded(self._patch), when_complete(self._patch_calls, _CALLS, "BaseDSL")]

    def remove(self) -> None:
        """Undo it. If somebody else has replaced a method since, theirs stays and ours passes calls on."""
        for stop in self._stops:
            stop()
        for kind, name, original, replacement in self._replaced:
            if getattr(kind, name) is replacement:
                setattr(kind, name, original)
        self._answer, self._stops, self._replaced = _pass_on, [], []

    def _replace(self, kind: Any, name: str, original: Any, replacement: Any) -> None:
        setattr(kind, name, replacement)
        self._replaced.append((kind, name, original, replacement))

    def _patch(self, module: ModuleType) -> None:
        kind = module.CompileCallable
        original = kind._compile

        def compile_or_answer(compiler: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            return self._answer(original, compiler, func, args, kwargs)

        compile_or_answer.answers = True  # type: ignore[attr-defined]
        self._replace(kind, "_compile", original, compile_or_answer)
        if self._prepare is not None:
            self._prepare()

    def _patch_calls(self, module: ModuleType) -> None:
        kind = module.BaseDSL
        original = kind._func

        def call_or_answer(dsl: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            if "compile_only" in kwargs or _is_tracing():
                return original(dsl, func, *args, **kwargs)

            def call(compiler: None, function: Any, *args: Any, **kwargs: Any) -> Any:
                return original(dsl, func, *given, **kwargs)

            given = args
            return self._answer(call, None, *bound_call(func, args), kwargs)

        self._replace(kind, "_func", original, call_or_answer)


def is_compile(original: Any) -> bool:
    """Whether what an answer may pass a call on to is CuTe DSL's own compile, and not the answer of another hook."""
    return not getattr(original, "answers", False)


def _is_tracing() -> bool:
    """Whether a function is called while another one is compiled, of which it becomes a part."""
    ir = sys.modules[_MLIR]
    return ir.Context.current is not None and ir.InsertionPoint.current is not None


def if_host_code(call: Callable[[], Any], error: Callable[[], Exception]) -> Any:
    """What a call of a ``@cute.jit`` function returns that launches no kernel; ``error`` is raised for one that does.

    Only tracing tells: nothing is compiled before.
    """
    found: list[Exception] = []

    def look(dsl: Any, module: Any, name: str) -> None:
        if any(operation.operation.name == _GPU_CODE for operation in module.body.operations):
            found.append(error())
            raise found[0]

    kind = getattr(sys.modules.get(_DSL), "CuTeDSL", None)
    if kind is None:
        raise error()
    with kind._get_dsl().trace_finalize_hooks(look):
        try:
            return call()
        except Exception as raised:
            raise (found[0] if found else error()) from (None if found else raised)


def bound_call(function: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A method and its arguments: CuTe DSL passes on the function of the class, and the object as an argument."""
    if args and getattr(type(args[0]), function.__name__, None) is not None and "." in function.__qualname__:
        owner = inspect.unwrap(getattr(type(args[0]), function.__name__))
        if getattr(owner, "__code__", None) is function.__code__:
            return types.MethodType(function, args[0]), args[1:]
    return function, args


def _pass_on(original: Any, compiler: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return original(compiler, function, *args, **kwargs)


def when_loaded(
    then: Callable[[ModuleType], None], name: str = _MODULE, attribute: str = "CompileCallable"
) -> Callable[[], None]:
    """Call ``then`` with a module, CuTe DSL's: now, or when somebody imports it. The result stops waiting.

    A module that does not have ``attribute`` yet is being imported.
    """
    module = sys.modules.get(name)
    if module is not None and hasattr(module, attribute):
        then(module)
        return lambda: None
    finder = _Finder(then, name)
    sys.meta_path.insert(0, finder)
    return lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None


def when_complete(then: Callable[[ModuleType], None], name: str, attribute: str) -> Callable[[], None]:
    """As :func:`when_loaded`, for a module that may be half imported now: then, at the next import after its own."""
    module = sys.modules.get(name)
    if module is None or hasattr(module, attribute):
        return when_loaded(then, name, attribute)
    watcher = _Watcher(module, attribute, then)
    sys.meta_path.insert(0, watcher)
    return lambda: sys.meta_path.remove(watcher) if watcher in sys.meta_path else None


def is_complete(module: ModuleType | None) -> bool:
    """Whether a module is there and not being imported."""
    return module is not None and not getattr(module.__spec__, "_initializing", False)


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds nothing, and looks at each import whether a module has become complete."""

    def __init__(self, module: ModuleType, attribute: str, then: Callable[[ModuleType], None]) -> None:
        self.module, self.attribute, self.then = module, attribute, then

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if hasattr(self.module, self.attribute) and self in sys.meta_path:
            sys.meta_path.remove(self)
            self.then(self.module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module as the other finders do, and calls ``then`` once it is executed."""

    def __init__(self, then: Callable[[ModuleType], None], name: str) -> None:
        self.then, self.name = then, name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        # Only those that follow: another finder of ours, for another bundle, would ask this one again.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self.then)
                return spec
        return None


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self.loader, self.then = loader, then

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader  # nobody who looks at the module later meets this one
        self.loader.exec_module(module)
        self.then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # what tools ask of a loader: its source, its path
