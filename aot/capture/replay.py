"""Recorded calls as kernels: what ``python -m aot build --source`` reads in a folder that a recording wrote."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from aot_runtime.description.records import read_bounded
from aot_runtime.serving.calls import VARIABLE, jit_function
from aot_runtime.serving.options import read_options
from aot_runtime.serving.values.digests import digest

from ..compile.objects import check_trust, rebuilt
from ..compile.recorded import ArgumentMaker
from ..declare.kernel import Kernel
from ..errors import DeclarationError
from ..targets import accepted_archs
from .kernels import CapturedCall, captured_kernel

__all__ = ["recorded_kernels"]

_DEFAULT = "default"  # what a parameter of the callable has anyway
_LONGEST = 64 << 20  # bytes of a file, which may be of somebody else


def recorded_kernels(package: str) -> dict[str, Kernel]:
    """The kernels of a folder of recorded calls, by name; ``package`` is the path of its ``__init__.py``.

    They can be built for every architecture: what does not compile for one is reported.
    """
    records = {path: _record(path) for path in sorted(Path(package).parent.glob("*.json"))}
    refused = [record for record in records.values() if "refused" in record]
    if refused:
        listed = "".join(f"\n  {r['callable']}, compiled by {r['called_from']}: {r['refused']}" for r in refused)
        raise DeclarationError(
            f"{Path(package).parent}: {len(refused)} calls could not be recorded:{listed}",
            hint="remove their files (refused-*.json) to build the others",
        )
    kernels = [_kernel(path, record) for path, record in records.items()]
    return {kernel.name: kernel for kernel in kernels}


_OPTIONS = frozenset({"enable-assertions", "generate-line-info", "opt-level", "ptxas-options"})


def _options(text: str) -> str:
    """The compile options of a call. Others could bring code in, or write files."""
    options = read_options(None, text)
    if other := sorted(options.flags.keys() - _OPTIONS):
        check_trust(f"has the compile option --{other[0]}")
    return options.text()


def _record(path: Path) -> dict[str, Any]:
    """What a file says. A key is that of the call beside it: kernels, and files, are named by it."""
    try:
        record = json.loads(read_bounded(str(path), _LONGEST, DeclarationError))
        if "refused" in record or record["key"] == digest(record["call"]):
            return dict(record)
    except (DeclarationError, ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DeclarationError(f"{path} is not a file that a recording wrote, or was altered", hint="record the call again")


def _kernel(path: Path, record: dict[str, Any]) -> Kernel:
    return captured_kernel(_call(path, record), accepted_archs(), f"{path}:1")


def _call(path: Path, record: dict[str, Any]) -> CapturedCall:
    try:
        maker, function = ArgumentMaker(), rebuilt(record["callable"])
        made = {name: maker.make(data) for name, data in record["arguments"].items() if _DEFAULT not in data}
        defaults = inspect.signature(jit_function(function)[1]).parameters
        made = {name: made[name] if name in made else defaults[name].default for name in record["arguments"]}
        in_order = any(name.startswith(VARIABLE) for name in made)  # what `*args` takes has no name
        return CapturedCall(
            key=record["key"],
            data=record["call"],
            options=_options(record["options"]),
            function=function,
            args=tuple(made.values()) if in_order else (),
            kwargs={} if in_order else made,
            called_from=record["called_from"],
        )
    except (ImportError, AttributeError) as error:
        raise DeclarationError(
            f"{path}: what {record['called_from']} compiled cannot be rebuilt: {error}",
            hint="install the library in the version that was recorded",
        ) from error
    except (KeyError, TypeError, ValueError) as error:
        raise DeclarationError(
            f"{path} cannot be read: {type(error).__name__}: {error}", hint="record the call again"
        ) from error
