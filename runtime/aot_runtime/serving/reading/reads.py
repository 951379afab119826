"""What tracing read beside the arguments of a call, compared with the live process before code is served.

A kernel is traced by running Python functions. These read globals, attributes of modules and classes, closures,
defaults, environment variables, and numbers of the device. None of that is an argument, and all of it becomes part of
the code. The builder records what was read (``aot/compile/reading/reads.py``); a look-up evaluates the same here. A record:

``modules``      the modules whose functions ran: the digest of their source, every value that they read by name, where each
                 function that ran is defined (``Norm@body,run``), and names that must not exist (``?len,range``)
``environment``  variables that were read, by digest; None for one that was not set
``stored``       what tracing gave to the object that is called, if anything: see ``values/stored.py``
``device``       questions to CuTe DSL's ``HardwareInfo``, those for CUDA's attributes of a device and its name; the answers
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ...arch import Arch
from ..values.digests import short_digest
from ..values.sources import source_digest
from .guards import Remembered, guard_of
from .places import PLACE, places_in
from .read_forms import ReadForms
from .resolving import resolve

__all__ = [
    "ABSENT", "ATTRIBUTE", "OF_CLASS", "changes", "changes_for_device", "environment_text", "stored_for_device", "text_of",
]  # fmt: skip

_HARDWARE, _RUNTIME = "cutlass.utils", "cutlass.base_dsl.runtime.cuda"
_DRIVER = "cuda.bindings.driver"
ATTRIBUTE, _NAME = "get_attribute", "get_name"  # questions to the driver
_CONSTANTS = frozenset({"Ellipsis", "False", "NotImplemented", "True", "__debug__", "__doc__", "__name__"})
ABSENT = "?"  # begins a list of names that a module must not have: they stand for Python's own
OF_CLASS = " of "  # before the class of such a list: `?_fast of Norm`


def changes_for_device(reads: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it was when code for the current device was traced; ``reads`` are records by architecture.

    The device is asked only if some architectures can be served and some cannot.
    """
    if not reads:
        return ["what tracing read is not known"]
    first, *others = reads.values()
    same = list(changes(first))
    differing = {id(record): list(changes(record)) for record in others if record != first}
    changed = {arch: differing.get(id(record), same) for arch, record in reads.items()}
    if not any(changed.values()) or all(changed.values()):
        return same
    capability = _capability()
    if capability is None:
        return next(lines for lines in changed.values() if lines)
    return [line for arch, lines in changed.items() if Arch.parse(arch).runs_on(capability) for line in lines]


def stored_for_device(reads: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What tracing stored when code for the current device was made."""
    found: list[tuple[str, dict[str, Any]]] = [(arch, record.get("stored", {})) for arch, record in reads.items()]
    if all(stored == found[0][1] for _, stored in found):
        return found[0][1]
    capability = _capability()
    return next((one for arch, one in found if capability is not None and Arch.parse(arch).runs_on(capability)), {})


def _capability() -> tuple[int, int] | None:
    """The compute capability of the current device; None if CuTe DSL cannot tell."""
    try:
        major, minor = sys.modules[_RUNTIME].get_compute_capability_major_minor()
    except Exception:  # there may be no driver, no device, or another CuTe DSL
        return None
    return int(major), int(minor)


def changes(record: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was when a kernel was traced, a sentence each. Asks only what tracing asked."""
    for module, read in record.get("modules", {}).items():
        if read["source"] is not None and source_digest(module) != read["source"]:
            yield f"the source of {module} changed"
            continue
        for path, text in read["values"].items():
            found = text_of(module, path)
            if found != text:
                yield f"{module}.{path}: captured {text}, now {found}"
    for name, text in record.get("environment", {}).items():
        if environment_text(os.environ.get(name)) != text:
            yield f"the environment variable {name} is not what it was when captured"
    for question, arguments, answer in record.get("device", []):
        found = _ask(question, arguments)
        if found != answer:
            yield f"{question}({', '.join(map(str, arguments))}) of this device: captured {answer}, now {found}"


def environment_text(value: str | None) -> str | None:
    """A digest: variables may hold secrets."""
    return None if value is None else short_digest(value)


def _ask(question: str, arguments: list[Any]) -> Any:
    """What CuTe DSL says of the current device, as it would have said to who traces."""
    try:
        info = sys.modules[_HARDWARE].HardwareInfo()
        if question in (ATTRIBUTE, _NAME):
            return _ask_driver(info.device_id, *arguments)
        return getattr(info, question)(*arguments)
    except Exception as error:  # of the driver, or of a CuTe DSL that has no such question
        return f"{type(error).__name__}: {error}"


def _ask_driver(number: int, attribute: str | None = None) -> Any:
    """An attribute of a device, or its name."""
    driver: Any = importlib.import_module(_DRIVER)
    device = driver.cuDeviceGet(number)[1]
    if attribute is not None:
        return driver.cuDeviceGetAttribute(
            getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}"), device
        )[1]
    return driver.cuDeviceGetName(256, device)[1].partition(b"\0")[0].decode()


def text_of(module: str, path: str) -> str:
    """A value by its form: itself if it is short, else a digest. ``?`` and the reason if it has no form that lasts."""
    if PLACE in path:
        return places_in(module, *path.split(PLACE))
    if path[:1] == ABSENT:
        names, _, kind = path[1:].partition(OF_CLASS)
        return _present_in(resolve(module, kind), names.split(",")) if kind else _present(module, names.split(","))
    try:
        value = resolve(module, path)
        guard = guard_of(value)
    except Exception as error:  # objects may answer as they like when they are looked at
        return f"? {type(error).__name__}: {error}"
    if guard is not None and (known := _texts.find(value, guard)) is not None:
        return known
    try:
        text = ReadForms().text(value, module, path)
    except Exception as error:
        return f"? {error}"
    if guard is not None:
        _texts.keep(value, guard, text)
    return text


_texts = Remembered()


def _present(module: str, names: list[str]) -> str:
    """Which of some names a module has, or Python has under them something that is not its own."""
    known = vars(sys.modules[module]) if module in sys.modules else {}
    return json.dumps([name for name in names if name in known or not _is_of_builtins(name)])


def _present_in(kind: Any, names: list[str]) -> str:
    """Which of some names a class or its bases have."""
    bases = getattr(kind, "__mro__", ())
    return json.dumps([name for name in names if any(name in vars(base) for base in bases)])


def _is_of_builtins(name: str) -> bool:
    value = vars(builtins).get(name)
    if not callable(value):  # a constant of Python's, or nothing
        return value is None or name in _CONSTANTS
    return getattr(value, "__module__", "builtins") == "builtins" and getattr(value, "__name__", name) == name
