"""A captured call, compiled as it was called, with what tracing read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from aot_runtime.serving.reading.places import PLACE
from aot_runtime.serving.reading.reads import text_of
from aot_runtime.serving.values.libraries import MAIN
from aot_runtime.serving.values.stored import encoded

from ..declare.specs import CapturedSpec
from ..errors import BuildError
from .reading.reads import Reads

__all__ = ["check_seen", "traced"]


def traced(spec: CapturedSpec, compile_: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Compile a captured call, and record what tracing read. Both must be what they were when the call was made."""
    reads = Reads()
    with _main_of(spec):
        with _as_called(spec):
            if spec.state() != spec.made:
                raise BuildError(
                    "what it is called with has changed since the call",
                    hint="make new objects for each call in the exercise, rather than change those of an earlier one",
                )
            with reads.noted():
                function = compile_()
            stored = _stored(spec)
        record = reads.record([spec.function, *spec.args, *spec.kwargs.values()])
        check_seen(spec, record)
    return function, {**record, **({"stored": stored} if stored else {})}


def _stored(spec: CapturedSpec) -> dict[str, Any]:
    """The plain values that tracing stored under new names in the object that is called."""
    found: dict[str, Any] = {}
    for name, value in sorted(getattr(spec.owner, "__dict__", {}).items()):
        if name not in spec.attributes:
            with suppress(ValueError):
                found[name] = encoded(value)
    return found


@contextmanager
def _main_of(spec: CapturedSpec) -> Iterator[None]:
    """Within the context, ``__main__`` is that of the call: its globals are what a script's functions read."""
    now = sys.modules[MAIN]
    sys.modules[MAIN] = spec.main or now
    try:
        yield
    finally:
        sys.modules[MAIN] = now


@contextmanager
def _as_called(spec: CapturedSpec) -> Iterator[None]:
    """Within the context, the object that is called has the attributes of the call. Tracing may change them, too."""
    own = getattr(spec.owner, "__dict__", None)
    if not isinstance(own, dict):
        yield
        return
    now = dict(own)
    _replace(own, spec.attributes)
    try:
        yield
    finally:
        _replace(own, now)


def _replace(own: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    own.clear()
    own.update(attributes)


def check_seen(spec: CapturedSpec, record: Mapping[str, Any]) -> None:
    """Every call that this code answers must have found the values that were read now, and the functions that ran."""
    for (module, path), found in spec.seen.items():
        if PLACE in path and found != {text_of(module, path)}:
            raise BuildError(
                f"{module}.{path.replace(PLACE, '.').strip('.')} is another function than when it was called",
                hint="capture what is called before a function is replaced by an exercise of its own",
            )
    for module, read in record["modules"].items():
        for path, text in read["values"].items():
            found = spec.seen.get((module, path), {text})
            if found != {text}:
                values = ", ".join(sorted({*found, text}))
                raise BuildError(
                    f"{module}.{path} has several values in the exercise: {values}",
                    hint="capture each setting by an exercise of its own, into a bundle of its own",
                )
