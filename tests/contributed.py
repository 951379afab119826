"""Contributions to a bundle that nothing was compiled for, for tests of deciding what goes into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord, Parameter
from aot_runtime.description.records import FileRecord, HostRecord

from aot.bundle.details import VariantDetails
from aot.pipeline.assembling.contributions import BuiltKernel, Contribution, File, HostCode, HostSupport, LinkedObjects

__all__ = ["HOST", "OTHER_HOST", "contribution", "file", "kernel"]

HOST, OTHER_HOST = "x86_64-linux-gnu", "aarch64-linux-gnu"


def file(name: str = "file") -> File:
    """A file whose digest follows from its name."""
    return File(Path(name), FileRecord((name.encode().hex() + 64 * "0")[:64], len(name)))


def kernel(
    name: str,
    arch: str,
    *,
    hosts: tuple[str, ...] = (HOST,),
    parameters: tuple[str, ...] = ("x",),
    code: str = "code",
    point: str = "f32",
    verified_on: tuple[str, ...] = (),
    archives: bool = True,
) -> BuiltKernel:
    """One kernel of one variant; ``code`` stands for the bytes of its library."""
    variant = VariantDetails(
        name=name, kernel=name, function=name, point={"dtype": point}, symbol=f"__tvm_ffi_{name}", cubin_sha256=(),
        cubin_bytes=0, launches=(), requirements=(), uses_tensors=True, verified_on=verified_on,
    )  # fmt: skip
    public = tuple(Parameter(parameter) for parameter in parameters)
    objects = LinkedObjects((), frozenset()) if archives else None
    return BuiltKernel(
        signature=KernelRecord(name, "", public, (), (name,), (Arch.parse(arch),), 1),
        arch=Arch.parse(arch),
        variants=(variant,),
        code={host: HostCode(file(f"{code} for {host}"), objects) for host in hosts},
        kept={},
    )


def contribution(
    *kernels: BuiltKernel, hosts: tuple[str, ...] = (HOST,), glibc: str = "2.28", archives: bool = True, **fields: Any
) -> Contribution:
    supports = {
        host: HostSupport(
            HostRecord(f"lib/{host}/libb.so", f"lib/{host}/libb_cuda.so", glibc, "static"),
            file("support"),
            {f"lib/{host}/libb_cuda.a": file("archive")} if archives else {},
        )
        for host in hosts
    }
    given: dict[str, Any] = {
        "label": "this", "name": "b", "contracts": {}, "toolchain": {"cuda": "12", "cute-aot": "1"},
        "requires": {"driver": {}}, **fields,
    }  # fmt: skip
    return Contribution(kernels={(one.name, one.arch): one for one in kernels}, hosts=supports, **given)
