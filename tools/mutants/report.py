"""Results as JSON, with the machine that they are of."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from .trees import PROJECT

__all__ = ["write"]


def write(out: Path | None, benchmark: str, results: dict[str, Any]) -> None:
    """Called after each result: a run that is ended leaves what it has done."""
    if out is not None:
        data = {"benchmark": benchmark, "machine": _machine(), "results": results}
        out.write_text(json.dumps(data, indent=1) + "\n")


@functools.cache
def _machine() -> dict[str, Any]:
    sys.path.append(str(PROJECT / "benchmarks"))
    from _common import machine_facts

    return machine_facts()  # type: ignore[no-any-return]
