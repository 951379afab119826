"""From a call of ``cute.compile`` to a kernel of the ordinary pipeline."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Parameter
from aot_runtime.serving.calls import CONTROLS, bind, describe, is_constexpr, jit_function
from aot_runtime.serving.reading.places import PLACE
from aot_runtime.serving.reading.reads import text_of
from aot_runtime.serving.values.digests import UnstableError, digest
from aot_runtime.serving.values.function_forms import without_addresses
from aot_runtime.serving.values.libraries import MAIN, takes_part
from aot_runtime.serving.values.sources import original_code

from ..compile import dsl
from ..compile.reading.names import Reached, codes_in, reach
from ..declare.arguments import Argument, Stream
from ..declare.declaration import In
from ..declare.kernel import Kernel
from ..declare.specs import CapturedSpec, Spec
from .closure import digests_of, reached_by
from .translate import translate

__all__ = ["CapturedCall", "captured_kernel", "launches_kernels", "name_of", "note_values"]

_KEY_LETTERS = 10
_NO_OPTIONS = " "


@dataclass(frozen=True)
class CapturedCall:
    """A call: what tells it from others, what is compiled with what, and who asked for it."""

    key: str
    data: Mapping[str, Any]
    options: str
    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    called_from: str

    @property
    def passed(self) -> dict[str, Any]:
        return {name: value for name, value in self.kwargs.items() if name not in CONTROLS}

    def state(self) -> str:
        """A digest of what is called with what, as it is now."""
        return describe(None, self.function, self.args, {**self.passed, "options": _NO_OPTIONS}).key

    def reached(self) -> Reached:
        return reached_by(self.function, (*self.args, *self.passed.values()))


def captured_kernel(call: CapturedCall, archs: tuple[Arch, ...], origin: str) -> Kernel:
    """The kernel that a call becomes; :class:`DeclarationError` if one of its arguments cannot be declared."""
    owner, jit = jit_function(call.function)
    bound = bind(jit, owner, call.args, call.passed)
    values = {name: value for name, value, hint in bound if not is_constexpr(hint)}
    entry = dsl.installed().entry_parameters(jit, call.args if owner is None else (owner, *call.args), call.passed)
    arguments = translate(entry, values)
    return Kernel(
        name=f"{_identifier(name_of(call.function))}_{call.key[:_KEY_LETTERS]}",
        doc=f"`{call.data['callable']}` as {call.called_from} compiles it.",
        parameters=tuple(_parameters(jit, arguments, call.data["arguments"])),
        archs=archs,
        axes={},
        choices={},
        choice_defaults={},
        make=_making(_spec(call, owner, arguments)),
        origin=origin,
        options=call.options,
        captured={"key": call.key, "called_from": call.called_from, "call": dict(call.data)},
    )


def _spec(call: CapturedCall, owner: Any, arguments: dict[str, Argument]) -> CapturedSpec:
    seen: dict[tuple[str, str], set[str]] = {}
    note_values(seen, call)

    def identity() -> str:
        values = {f"{module}.{path}": sorted(texts) for (module, path), texts in seen.items()}
        return f"{call.key} {digest([digests_of(call.reached().modules), values])}"

    return CapturedSpec(
        call.function,
        arguments,
        default_stream=not any(isinstance(item, Stream) for item in arguments.values()),
        args=call.args,
        kwargs=call.passed,
        owner=owner,
        attributes=dict(getattr(owner, "__dict__", {})),
        state=call.state,
        made=call.state(),
        seen=seen,
        identity=identity,
        modules=lambda: call.reached().modules,
        main=sys.modules[MAIN],
    )


def launches_kernels(call: CapturedCall) -> bool:
    """Whether a function that a call leads to launches a kernel. Host code that CuTe DSL compiles launches none."""
    owner, jit = jit_function(call.function)
    functions = reach([jit, *_held([owner, *call.args, *call.passed.values()])]).functions
    codes = (inner for function in functions for inner in codes_in(original_code(function)))
    return any("launch" in code.co_names for code in codes)


def _held(values: list[Any]) -> Iterator[Any]:
    """What values hold at any depth that may lead to functions: these, classes, and the classes of objects of libraries."""
    waiting, seen = list(values), set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple, set, frozenset)):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, type) or not takes_part(type(value).__module__):
            yield value
        else:
            yield type(value)
            waiting += getattr(value, "__dict__", {}).values()


def note_values(seen: dict[tuple[str, str], set[str]], call: CapturedCall) -> None:
    """Note the values that a call finds under the names that it may read, and where the functions are defined."""
    reached = call.reached()
    for read, text in reached.values.items():
        seen.setdefault(read, set()).add(text)
    for function in reached.functions:
        module, (holder, _, name) = function.__module__, function.__qualname__.rpartition(".")
        path = f"{holder}{PLACE}{name}"
        if takes_part(module) and "<" not in path and module in sys.modules and module != MAIN:
            seen.setdefault((module, path), set()).add(text_of(module, path))


def _making(spec: Spec) -> Callable[..., Spec]:
    def make(target: Any) -> Spec:
        return spec

    return make


def _parameters(jit: Any, arguments: dict[str, Argument], described: Mapping[str, Any]) -> Iterator[Parameter]:
    """The callable's own parameters. A default that is a number or None stays if all that follow have one too."""
    public = [name for name, item in arguments.items() if item != Stream(explicit=False)]
    declared = inspect.signature(jit).parameters  # which have no name for what `*args` takes
    first = len(public)
    while first and _has_plain_default(declared.get(public[first - 1])):
        first -= 1
    for number, name in enumerate(public):
        words = described.get(name, "")
        doc = words if isinstance(words, str) else json.dumps(words)
        yield In(name, doc, default=declared[name].default) if number >= first else In(name, doc)


def _has_plain_default(parameter: Any) -> bool:
    return parameter is not None and (parameter.default is None or isinstance(parameter.default, (bool, int, float)))


def name_of(function: Any) -> str:
    """The class of a callable object, or the name of a function."""
    try:
        owner, jit = jit_function(function)
    except UnstableError:  # CuTe DSL compiles it no more than a capture does
        return str(getattr(function, "__name__", type(function).__name__))
    return type(owner).__name__ if owner is not None else without_addresses(jit, str(getattr(jit, "__name__", jit)))


def _identifier(name: str) -> str:
    """``FlashAttentionForwardSm90`` -> ``flash_attention_forward_sm90``."""
    words = re.sub(r"([a-z0-9])([A-Z])|([A-Z]+)([A-Z][a-z])", r"\1\3_\2\4", name)
    text = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return text if text[:1].isalpha() else f"kernel_{text}".strip("_")
