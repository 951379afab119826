"""Recorded calls as kernels: what ``python -m aot build --source`` reads in a folder that a recording wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..compile.objects import rebuilt
from ..compile.recorded import ArgumentMaker
from ..declare.kernel import Kernel
from ..errors import DeclarationError
from ..targets import accepted_archs
from .kernels import CapturedCall, captured_kernel

__all__ = ["recorded_kernels"]


def recorded_kernels(package: str) -> dict[str, Kernel]:
    """The kernels of a folder of recorded calls, by name; ``package`` is the path of its ``__init__.py``.

    They can be built for every architecture: what does not compile for one is reported.
    """
    records = {path: json.loads(path.read_text()) for path in sorted(Path(package).parent.glob("*.json"))}
    refused = [record for record in records.values() if "refused" in record]
    if refused:
        listed = "".join(f"\n  {r['callable']}, compiled by {r['called_from']}: {r['refused']}" for r in refused)
        raise DeclarationError(
            f"{Path(package).parent}: {len(refused)} calls could not be recorded:{listed}",
            hint="remove their files (refused-*.json) to build the others",
        )
    kernels = [_kernel(path, record) for path, record in records.items()]
    return {kernel.name: kernel for kernel in kernels}


def _kernel(path: Path, record: dict[str, Any]) -> Kernel:
    try:
        maker = ArgumentMaker()
        call = CapturedCall(
            key=record["key"],
            data=record["call"],
            options=record["options"],
            function=rebuilt(record["callable"]),
            args=(),
            kwargs={name: maker.make(data) for name, data in record["arguments"].items()},
            called_from=record["called_from"],
        )
        return captured_kernel(call, accepted_archs(), f"{path}:1")
    except (ImportError, AttributeError) as error:
        raise DeclarationError(
            f"{path}: what {record['called_from']} compiled cannot be rebuilt: {error}",
            hint="install the library in the version that was recorded",
        ) from error
