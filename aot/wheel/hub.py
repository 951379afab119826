"""The layout that Hugging Face's ``kernels`` loads: a folder ``build`` with a package for each host and CUDA version.

``build/tvm-ffi01-cu130-x86_64-linux/`` holds the package of a wheel and a ``metadata.json``. The loader takes the folder
whose CUDA version has the major version of the machine's, and is not newer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aot_runtime.arch import Arch
from packaging.version import Version

from ..bundle.manifest import Manifest
from ..errors import BuildError, system_hint
from ..files import making, scratch_directory
from ..versions import LOWEST_TVM_FFI
from .archive import Content, Wheel, write_files
from .identity import Identity

__all__ = ["Hub", "write_hub"]

# Drivers for CUDA 13 run what was compiled with CUDA 12.
_VERSIONS = {"12": ("cu120", "cu130"), "13": ("cu130",)}


@dataclass(frozen=True)
class Hub:
    """What every folder states: the names of the package, the digest of its bundle, architectures, and the licence."""

    identity: Identity
    digest: str
    archs: tuple[Arch, ...]
    cuda: str
    license: str

    @classmethod
    def of(cls, manifest: Manifest, identity: Identity, license: str) -> Hub:
        return cls(identity, manifest.sha256, manifest.archs, manifest.toolchain["cuda"], license)

    def metadata(self) -> dict[str, object]:
        """``metadata.json``. Its ``id`` becomes the name of the module, so that two versions may be loaded."""
        return {
            "id": f"_{self.identity.package}_cuda_{self.digest[:10]}",
            "name": self.identity.distribution,
            "version": self.identity.version.major,
            "license": self.license,
            "python-depends": ["tvm-ffi"],
            "backend": {
                "type": "cuda",
                "archs": [f"{arch.major}.{arch.minor}{arch.suffix}" for arch in sorted(self.archs)],
            },
        }


def write_hub(wheels: Iterable[Wheel], hub: Hub, directory: Path) -> list[Path]:
    """Write the folders of wheels into ``build`` of a directory: all of them, or none. Such folders are replaced."""
    build = directory / "build"
    try:
        with making(build), scratch_directory(build, prefix=".cute-aot-hub-") as staged:
            folders = {name: files for wheel in wheels for name, files in _folders(wheel, hub)}
            for name, files in folders.items():
                write_files(files, staged / "new" / name)
            for name in folders:
                if (build / name).exists():
                    (staged / "old").mkdir(exist_ok=True)
                    os.replace(build / name, staged / "old" / name)
                os.replace(staged / "new" / name, build / name)
    except OSError as error:
        hint = system_hint(error) or "pass another `--out`"
        raise BuildError(f"cannot write to `{build}`: {error.strerror}", hint=hint) from error
    return [build / name for name in folders]


def _folders(wheel: Wheel, hub: Hub) -> Iterable[tuple[str, Mapping[str, Content]]]:
    package, licenses = f"{hub.identity.package}/", f"{wheel.dist_info}/licenses/"
    files: dict[str, Content] = {
        name.removeprefix(start): content
        for name, content in wheel.files.items()
        for start in (package, licenses)
        if name.startswith(start)
    }
    files["metadata.json"] = (json.dumps(hub.metadata(), indent=2) + "\n").encode()
    tvm_ffi = Version(LOWEST_TVM_FFI)
    cpu = next(cpu for cpu in ("x86_64", "aarch64") if wheel.tag.endswith(cpu))
    for version in _VERSIONS[hub.cuda.partition(".")[0]]:
        yield f"tvm-ffi{tvm_ffi.major}{tvm_ffi.minor}-{version}-{cpu}-linux", files
