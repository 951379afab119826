"""Writing what a bundle says of itself, byte for byte as every version of this schema does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aot_runtime.description.kernel_records import Backward, Choice, KernelRecord, Parameter
from aot_runtime.description.records import (
    FILE_NAME,
    FILES_NAME,
    KERNELS_NAME,
    PROTOCOL,
    PROVENANCE_NAME,
    SCHEMA,
    FileRecord,
    HostRecord,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from aot_runtime.arch import Arch

    class Described(Protocol):
        """As much of a manifest as is written."""

        @property
        def name(self) -> str: ...
        @property
        def complete(self) -> bool: ...
        @property
        def archs(self) -> Sequence[Arch]: ...
        @property
        def kernels(self) -> Mapping[str, KernelRecord]: ...
        @property
        def hosts(self) -> Mapping[str, HostRecord]: ...
        @property
        def files(self) -> Mapping[str, FileRecord]: ...
        @property
        def failures(self) -> Sequence[Mapping[str, str]]: ...
        @property
        def toolchain(self) -> Mapping[str, str]: ...
        @property
        def requires(self) -> Mapping[str, Any]: ...
        @property
        def distributions(self) -> Mapping[str, str]: ...
        @property
        def provenance(self) -> Sequence[Mapping[str, Any]]: ...


__all__ = ["description", "kernels_text", "manifest_data", "pretty_text", "table_text"]


def description(manifest: Described) -> dict[str, bytes]:
    """The contents of ``manifest.json`` and its indexes, by name."""
    texts = {
        KERNELS_NAME: kernels_text(manifest),
        FILES_NAME: table_text("files", {name: record.data() for name, record in sorted(manifest.files.items())}),
        PROVENANCE_NAME: pretty_text({"schema": SCHEMA, "builds": list(manifest.provenance)}),
    }
    records = {name: FileRecord.of(text) for name, text in texts.items()}
    return {FILE_NAME: pretty_text(manifest_data(manifest, records)), **texts}


def kernels_text(manifest: Described) -> bytes:
    read: dict[str, Any] = {}
    kernels = {name: _kernel_data(kernel, read) for name, kernel in sorted(manifest.kernels.items())}
    return table_text("kernels", kernels, **({"read": dict(sorted(read.items()))} if read else {}))


def manifest_data(manifest: Described, records: Mapping[str, FileRecord]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": manifest.name,
        "complete": manifest.complete,
        "protocol": PROTOCOL,
        "archs": [str(arch) for arch in manifest.archs],
        "hosts": {name: _host_data(host) for name, host in sorted(manifest.hosts.items())},
        "requires": dict(manifest.requires),
        "toolchain": dict(manifest.toolchain),
        "failures": [dict(failure) for failure in manifest.failures],
        "distributions": dict(manifest.distributions),
        **{name.removesuffix(".json"): record.data() for name, record in records.items()},
    }


def _host_data(host: HostRecord) -> dict[str, Any]:
    entry = {"path": host.entry, **(host.file.data() if host.file else {})}
    return {"entry": entry, "support": host.support, "glibc": host.glibc, "cudart": host.cudart}


def _kernel_data(kernel: KernelRecord, read: dict[str, Any]) -> dict[str, Any]:
    data = {
        "doc": kernel.doc,
        "parameters": [_parameter_data(parameter) for parameter in kernel.parameters],
        "choices": [_choice_data(choice) for choice in kernel.choices],
        "functions": list(kernel.functions),
        "archs": [str(arch) for arch in kernel.archs],
        "variants": kernel.variants,
        **({"captured": _captured_data(kernel.captured, read)} if kernel.captured else {}),
    }
    if kernel.backward is not None:
        data["backward"] = _backward_data(kernel.backward)
    return data


def _backward_data(backward: Backward) -> dict[str, Any]:
    gradients = list(backward.gradients)
    if backward.kernel:
        return {"kernel": backward.kernel, "saves": list(backward.saves), "gradients": gradients}
    replaced = {"split": backward.split, "whole": list(backward.whole)} if backward.split else {}
    added = {"adds": list(backward.adds)} if backward.adds else {}
    return {"gradients": gradients, "calls": list(backward.calls), **replaced, **added}


def _captured_data(captured: Mapping[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    """A captured call. What functions of a module read is the same for many calls, and written once, by its digest."""
    reads: dict[str, Any] = {}
    for arch, one in captured["reads"].items():
        names = {_shared_name(module, values): (module, values) for module, values in one["modules"].items()}
        read.update({name: {"module": module, **values} for name, (module, values) in names.items()})
        reads[arch] = {**one, "modules": list(names)}
    return {**captured, "reads": reads}


def _shared_name(module: str, values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([module, values], sort_keys=True).encode()).hexdigest()[:12]


def _choice_data(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, "values": list(choice.values), "default": choice.default, "doc": choice.doc}


def _parameter_data(parameter: Parameter) -> dict[str, Any]:
    data: dict[str, Any] = {"name": parameter.name, "doc": parameter.doc, "output": parameter.output}
    if parameter.has_default:
        data["default"] = parameter.default
    if parameter.output:
        data.update(shape=parameter.shape, dtype=parameter.dtype)
    if parameter.may_be:
        data["may_be"] = list(parameter.may_be)
    if parameter.workspace is not None:
        data.update(workspace=parameter.workspace, zeroed=parameter.zeroed)
    if parameter.type:
        data["type"] = parameter.type
    if parameter.accepts:
        data["accepts"] = list(parameter.accepts)
    return data


def pretty_text(data: Any) -> bytes:
    """JSON as ``manifest.json`` is laid out."""
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def table_text(name: str, records: Mapping[str, Any], **others: Mapping[str, Any]) -> bytes:
    """JSON with a line for each record, so that two versions of a file can be compared; ``others`` are more tables."""
    encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False).encode
    parts = [f'"schema": {SCHEMA}']
    for title, table in {name: records, **others}.items():
        lines = ",\n".join(f"  {encode(key)}: {encode(record)}" for key, record in table.items())
        parts.append(f"{encode(title)}: {{\n{lines}\n }}")
    return ("{\n " + ",\n ".join(parts) + "\n}\n").encode()
