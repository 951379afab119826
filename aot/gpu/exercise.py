"""Checking a captured bundle with the file that it was captured from: ``kernel_fn`` against ``reference_fn``.

A file that has ``kernel_fn``, ``reference_fn`` and ``get_inputs`` brings its own reference. ``kernel_fn`` runs as it is, on
the GPU, while the bundle answers ``cute.compile``: a call that was not captured fails the check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from aot_runtime.errors import AotError

from ..errors import UsageError
from .check import Outcome, Report, compare, finite
from .inputs import dtype_name
from .running import Gpu, arguments_text

__all__ = ["check_exercise"]

_NAMES = ("kernel_fn", "reference_fn", "get_inputs")


def check_exercise(path: Path, bundle: Path, kernels: Sequence[str], gpu: Gpu, serve: Callable[..., Any]) -> Report:
    """Call what a file defines, served from a bundle. ``serve`` is :func:`aot_runtime.serve`."""
    if not path.is_file():
        raise UsageError(f"`{path}` does not exist", hint="pass the file that the bundle was captured from")
    with serve(bundle) as serving, _as_program(path.resolve()) as names:
        missing = [name for name in _NAMES if not callable(names.get(name))]
        if missing:
            raise UsageError(
                f"`{path}` defines no {' and no '.join(missing)}", hint=f"define {', '.join(_NAMES)} in it"
            )
        outcome = _call(path.stem, names, gpu)
        served = serving.kernels
    if not outcome.problem and not served:
        outcome = _with_problem(outcome, "it ran without a kernel of the bundle")
    return Report(gpu, (outcome,), (), tuple(name for name in kernels if name not in served))


@contextmanager
def _as_program(path: Path) -> Iterator[Mapping[str, Any]]:
    """What a file defines. It runs as the program, as it did when it was captured: keys name what ``__main__`` defines."""
    module, before = ModuleType("__main__"), sys.modules["__main__"]
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    sys.path.insert(0, str(path.parent))
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
        yield module.__dict__
    finally:
        sys.modules["__main__"] = before
        sys.path.remove(str(path.parent))


def _call(name: str, names: Mapping[str, Any], gpu: Gpu) -> Outcome:
    given = names["get_inputs"]()
    arguments = dict(given) if isinstance(given, Mapping) else {str(i): item for i, item in enumerate(given)}
    outcome = Outcome(name, "", {}, arguments_text(arguments), "", "", "")
    try:
        returned = _apply(names["kernel_fn"], given)
        gpu.synchronize()
    except (AotError, RuntimeError) as error:
        return _with_problem(outcome, f"{type(error).__name__}: {error}")
    results, expected = _several(returned), _several(_apply(names["reference_fn"], given))
    if len(results) != len(expected):
        return _with_problem(outcome, f"kernel_fn gives {len(results)} tensors, reference_fn {len(expected)}")
    found = [compare(result, exact) for result, exact in zip(results, expected, strict=True)]
    dtypes = ", ".join(dict.fromkeys(dtype_name(result.dtype) for result in results))
    problem = "; ".join(f"result {i}: {problem}" for i, (problem, _, _) in enumerate(found) if problem)
    worst = max((worst for _, _, worst in found), default=0.0)
    norm = max((norm for _, norm, _ in found), default=0.0)
    return Outcome(name, dtypes, {}, outcome.arguments, "", "", problem, finite(norm), finite(worst))


def _apply(function: Callable[..., Any], given: Any) -> Any:
    return function(**given) if isinstance(given, Mapping) else function(*given)


def _several(result: Any) -> tuple[Any, ...]:
    """The tensors that a function returns; none if it only writes into its arguments."""
    if result is None:
        raise UsageError(
            "kernel_fn and reference_fn must return their results", hint="return the tensors that they write"
        )
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _with_problem(outcome: Outcome, problem: str) -> Outcome:
    return Outcome(outcome.kernel, outcome.dtype, {}, outcome.arguments, "", "", problem)
