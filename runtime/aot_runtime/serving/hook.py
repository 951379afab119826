"""Seeing every ``cute.compile`` of a process, before CuTe DSL is imported or after. Never imports it.

``cute.compile`` is an object of the class ``CompileCallable``, whose method ``_compile`` all ways to compile end in.
The method is private; the versions of CuTe DSL that have it are tested.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

__all__ = ["Hook", "when_loaded"]

_MODULE = "cutlass.base_dsl.compiler"
Answer = Callable[..., Any]  # (the original method, the CompileCallable, function, args, kwargs) -> what is compiled


class Hook:
    """Lets ``answer`` see every compile, from :meth:`install` to :meth:`remove`.

    ``prepare`` is called once CuTe DSL is there, which is long before the first compile.
    """

    def __init__(self, answer: Answer, prepare: Callable[[], None] | None = None) -> None:
        self._answer, self._prepare = answer, prepare
        self._stop: Callable[[], None] | None = None
        self._class: Any = None
        self._original: Any = None
        self._replacement: Any = None

    def install(self) -> None:
        self._stop = when_loaded(self._patch)

    def remove(self) -> None:
        """Undo it. If somebody else has replaced the method since, theirs stays and ours passes calls on."""
        if self._stop is not None:
            self._stop()
        if self._class is not None and self._class._compile is self._replacement:
            self._class._compile = self._original
        self._answer, self._stop, self._class = _pass_on, None, None

    def _patch(self, module: ModuleType) -> None:
        kind = module.CompileCallable
        original = kind._compile

        def compile_or_answer(compiler: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
            return self._answer(original, compiler, func, args, kwargs)

        kind._compile = compile_or_answer
        self._class, self._original, self._replacement = kind, original, compile_or_answer
        if self._prepare is not None:
            self._prepare()


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
        self.loader.exec_module(module)
        self.then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # what tools ask of a loader: its source, its path
