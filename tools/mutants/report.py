"""Results as JSON, with the machine that they are of, and what is known of survivors."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

from .sites import Mutation
from .trees import PROJECT

__all__ = ["why_it_survives", "write"]


def write(out: Path | None, benchmark: str, results: dict[str, Any]) -> None:
    """Called after each result: a run that is ended leaves what it has done."""
    if out is not None:
        data = {"benchmark": benchmark, "machine": _machine(), "results": results}
        out.write_text(json.dumps(data, indent=1) + "\n")


def why_it_survives(mutation: Mutation) -> str:
    """The reason why nobody can notice it, if somebody has looked; ``survivors.json`` has it."""
    known = json.loads(Path(__file__).with_name("survivors.json").read_text())
    data, names = mutation.data(), ("file", "code", "old", "new")
    return next((one["reason"] for one in known if all(one[name] == data[name] for name in names)), "")


@functools.cache
def _machine() -> dict[str, Any]:
    sys.path.append(str(PROJECT / "benchmarks"))
    from _common import machine_facts

    return machine_facts()  # type: ignore[no-any-return]
