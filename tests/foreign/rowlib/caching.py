"""A cache of compiled kernels in memory and, as far as they can be exported, on disk."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

__all__ = ["jit_cache"]


def jit_cache(compile_kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a function compiles, by its arguments; export it if ``ROWLIB_CACHE`` names a folder."""
    cache: dict[Any, Any] = {}

    @functools.wraps(compile_kernel)
    def wrapper(*args: Any) -> Any:
        if args not in cache:
            cache[args] = compile_kernel(*args)
            folder = os.environ.get("ROWLIB_CACHE")
            if folder:
                cache[args].export_to_c(os.path.join(folder, f"{len(cache)}.o"), function_name="func")
        return cache[args]

    return wrapper
