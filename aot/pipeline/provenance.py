"""What a bundle was built from and by which versions."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from ..link.nvidia import distributions
from ..versions import installed_version

__all__ = ["source_record", "toolchain"]


def source_record(kernels: str) -> dict[str, str]:
    """The commit that the kernels came from, if they are under version control."""
    path = Path(kernels)
    if not path.exists():
        return {}  # an importable module: what is checked out here says nothing of it
    folder = path if path.is_dir() else path.parent
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True)
    except OSError:
        return {}
    return {"commit": result.stdout.strip()} if result.returncode == 0 else {}


def toolchain(cuda: int) -> dict[str, str]:
    """The versions that shape the code of a bundle."""
    names = [
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        if (distribution.metadata["Name"] or "").startswith("nvidia-cutlass-dsl")
    ]
    wanted = sorted({*names, *distributions(cuda), "cute-aot", "apache-tvm-ffi", "ziglang"})
    versions = {name: version for name in wanted if (version := installed_version(name)) is not None}
    return {**versions, "cuda": str(cuda), "python": f"{sys.version_info.major}.{sys.version_info.minor}"}
