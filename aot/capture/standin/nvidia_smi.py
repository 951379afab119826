"""The program ``nvidia-smi`` for the device that stands in. It is run as a file, with the facts of the device in front.

Standard library only: the Python that runs it may find no other packages.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__: list[str] = []

_UNKNOWN = "[N/A]"
# Fields by the names that --help-query-gpu lists.
_SAME = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}


def answer(facts: dict[str, Any], arguments: list[str]) -> str:
    """What the program prints."""
    options = _options(arguments)
    if "query-gpu" in options:
        return _table(facts, options["query-gpu"].split(","), options.get("format", "csv"))
    if any(name.startswith("query-") for name in options):
        return ""  # there are no processes
    if "list-gpus" in options or "L" in options:
        return f"GPU 0: {facts['name']} (UUID: {facts['uuid']})\n"
    if "query" in options or "q" in options:
        return _details(facts)
    return _overview(facts)


def _options(arguments: list[str]) -> dict[str, str]:
    """The options by name; a value follows ``=``, or is the next argument."""
    found: dict[str, str] = {}
    waiting = ""
    for argument in arguments:
        if not argument.startswith("-"):
            found[waiting] = argument
            continue
        waiting, _, found[waiting] = argument.lstrip("-").partition("=")
    return found


def _table(facts: dict[str, Any], fields: list[str], form: str) -> str:
    names = [field.strip() for field in fields]
    units = {"memory.total": "MiB", "memory.free": "MiB", "memory.used": "MiB"}
    bare = "nounits" in form
    values = [str(facts.get(_SAME.get(name, name), _UNKNOWN)) for name in names]
    rows = [", ".join(f"{v} {units[n]}" if n in units and not bare else v for n, v in zip(names, values, strict=True))]
    if "noheader" not in form:
        rows.insert(0, ", ".join(f"{name} [{units[name]}]" if name in units else name for name in names))
    return "".join(f"{row}\n" for row in rows)


def _details(facts: dict[str, Any]) -> str:
    lines = {
        "Driver Version": facts["driver_version"],
        "CUDA Version": facts["cuda_version"],
        "Attached GPUs": 1,
        "Product Name": facts["name"],
        "GPU UUID": facts["uuid"],
    }
    return "".join(f"{name:<42}: {value}\n" for name, value in lines.items())


def _overview(facts: dict[str, Any]) -> str:
    line = "+" + "-" * 89 + "+"
    first = (
        f"NVIDIA-SMI {facts['driver_version']:<14} Driver Version: {facts['driver_version']:<14} "
        f"CUDA Version: {facts['cuda_version']}"
    )
    second = f"  0  {facts['name']:<34} {facts['memory.used']}MiB / {facts['memory.total']}MiB"
    return "\n".join([line, f"| {first:<88}|", line, f"| {second:<88}|", line, ""])


if __name__ == "__main__":
    sys.stdout.write(answer(json.loads(sys.argv[1]), sys.argv[2:]))
