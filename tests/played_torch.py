"""A bundle whose kernels are loops over CPU tensors, with its library for torch: that needs neither a GPU nor a build.

The library is the one that every bundle has, but for torch's dispatch key: CPU instead of CUDA.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aot_runtime.native
import platformdirs
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter
from aot_runtime.description.records import FILE_NAME, FileRecord
from places import TESTS

from aot.bundle.description import file_record
from aot.bundle.layout import torch_library_path
from aot.bundle.operators import operators
from aot.hosts import Host
from aot.link.libraries import Linker
from aot.link.torch_library import torch_source
from aot.link.zig import Zig

__all__ = ["DEMO", "HOST", "KERNELS", "Played", "make_bundle"]

HOST = Host.native()


def tensor(name: str, **fields: Any) -> Parameter:
    return Parameter(name, type=fields.pop("type", "tensor"), **fields)


def output(name: str, shape: str = "x.shape", dtype: str = "x.dtype") -> Parameter:
    return Parameter(name, output=True, shape=shape, dtype=dtype, type="tensor")


def scalar(name: str, type: str, default: Any) -> Parameter:
    return Parameter(name, type=type, has_default=True, default=default)


def kernel(name: str, *parameters: Parameter, choices: tuple[Choice, ...] = ()) -> KernelRecord:
    functions = tuple(f"{name}__{value}" for value in choices[0].values) if choices else (name,)
    return KernelRecord(name, f"What {name} computes.", parameters, choices, functions, (), 1)


# What `played_entry.c` has functions for, and one kernel that torch cannot have.
KERNELS = {
    "blend": kernel(
        "blend", tensor("x"), output("out"), scalar("factor", "float", 2.0), scalar("count", "int", 3),
        scalar("flip", "bool", False), scalar("bias", "tensor?", None),
    ),
    "activation": kernel("activation", tensor("x"), output("out"), choices=(Choice("op", ("relu", "one"), "relu"),)),
    "sums": kernel(
        "sums", tensor("x"), output("total", "(x.shape[0],)", "f64"), output("half", "(*x.shape[:-1], x.shape[-1] // 2)")
    ),
    "twice": kernel(
        "twice", tensor("x"), output("out"),
        Parameter("scratch", type="tensor?", has_default=True, default=None, workspace="4 * x.shape[0]"),
    ),
    # The caller picks the dtype of `out`, and may leave `total` out.
    "peaks": kernel(
        "peaks", tensor("x"), output("out", dtype="out.dtype").replace(accepts=("float64[:, :]", "float32[:, :]")),
        output("total", "(x.shape[0],)", "f32").replace(type="tensor?", has_default=True),
    ),
    "pointers": kernel("pointers", tensor("x"), output("out"), Parameter("p", type="pointer")),
}  # fmt: skip

# As in `cpp_demo/kernels`.
DEMO = {
    "axpy": kernel("axpy", tensor("x"), tensor("y"), output("out"), scalar("alpha", "float", 1.0)),
    "activate": kernel("activate", tensor("x"), output("out"), choices=(Choice("kind", ("relu", "clamp"), "relu"),)),
}


class Played:
    """As much of a loaded bundle as ``register`` and ``load_library`` use. Its functions must not be called from Python."""

    def __init__(self, name: str, path: Path, kernels: Mapping[str, KernelRecord] = KERNELS) -> None:
        self.name, self.path, self.kernels, self._records = name, path, tuple(kernels), kernels
        files = {p.relative_to(path).as_posix(): FileRecord.of(p.read_bytes()) for p in path.glob("lib/*/*.so")}
        manifest = path / FILE_NAME
        digest = FileRecord.of(manifest.read_bytes()).sha256 if manifest.exists() else ""
        self.manifest = SimpleNamespace(files=files, sha256=digest)

    def _replace(self, functions: dict[str, Any]) -> None:
        self.__dict__.update(functions)

    def _record(self, name: str) -> KernelRecord:
        return self._records[name]

    def _call(self, name: str) -> int:
        return 1005  # the protocol of a bundle that cannot be asked about calls without memory

    def _symbol(self, name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            raise AssertionError(f"{name} was called from Python")

        return call


def make_bundle(folder: Path, name: str, kernels: Mapping[str, KernelRecord] = KERNELS) -> Path:
    """What C reads of a bundle; returns its library for torch."""
    library = folder / torch_library_path(HOST.name, name)
    library.parent.mkdir(parents=True)
    work = folder / "work"
    work.mkdir()
    with ThreadPoolExecutor(2) as pool:
        zig = Zig.find(Path(platformdirs.user_cache_dir("cute-aot")) / "zig")
        linker = Linker(zig, HOST, work, aot_runtime.native.include_directory(), pool)
        linker.torch(name, torch_source(name, operators(kernels), key="CPU"), library)
        played = (TESTS / "runtime" / "frameworks" / "played_entry.c").read_text().replace('"played"', f'"{name}"')
        entry = library.with_name(f"lib{name}.so")
        zig.link(HOST, [linker.compile_c("entry.c", played)], entry, exports=["aot_abi_version", "aot_abi_interface"])
    record = file_record(entry)
    hosts = {HOST.name: {"entry": {"path": entry.relative_to(folder).as_posix(), **record.data()}}}
    (folder / FILE_NAME).write_text(json.dumps({"name": name, "hosts": hosts}))
    return library
