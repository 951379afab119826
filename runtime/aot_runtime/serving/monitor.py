"""vLLM's monitor of compiles during inference: it replaces ``cute.compile``, and so would count look-ups as compiles.

While a bundle is served, the monitor does not replace it. The server tells the monitor of what is really compiled.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .hook import when_loaded

__all__ = ["keep_from_look_ups", "tell_of_compile"]

_MODULES = ("vllm.utils.jit_monitor", "vllm.triton_utils.jit_monitor")  # where versions of vLLM have it
_INSTALLED, _TELL = "_cutedsl_hook_installed", "_log_cutedsl_jit_compile"
_kept: Counter[str] = Counter()  # how many bundles are served, by monitor


def keep_from_look_ups() -> Callable[[], None]:
    """Let the monitor leave ``cute.compile`` alone, now or once it is imported. The result undoes it."""
    kept: list[ModuleType] = []

    def keep(module: ModuleType) -> None:
        if hasattr(module, _TELL) and (_kept[module.__name__] or getattr(module, _INSTALLED, None) is False):
            setattr(module, _INSTALLED, True)  # as if it had replaced it
            _kept[module.__name__] += 1
            kept.append(module)

    stops = [when_loaded(keep, name, _TELL) for name in _MODULES]

    def undo() -> None:
        for stop in stops:
            stop()
        while kept:
            module = kept.pop()
            _kept[module.__name__] -= 1
            setattr(module, _INSTALLED, _kept[module.__name__] > 0)

    return undo


def tell_of_compile(function: Any) -> None:
    """Tell the monitor, if it is active, that a function is compiled. In its mode ``error`` this raises."""
    for name in _MODULES:
        module = sys.modules.get(name)
        if module is not None and getattr(module, "_active", False) and getattr(module, _INSTALLED, False):
            getattr(module, _TELL)(getattr(function, "__name__", type(function).__name__))
