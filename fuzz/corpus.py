"""What mutations start from: a small bundle that a build made, and the stand-in for CUDA that it runs against."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Corpus", "make_corpus", "make_samples"]

PROJECT = Path(__file__).resolve().parent.parent
sys.path += [path for path in map(str, (PROJECT, PROJECT / "tests", PROJECT / "runtime")) if path not in sys.path]


@dataclass(frozen=True)
class Corpus:
    bundle: Path  # with archives, and the CUDA runtime shared
    kept: Path  # the LLVM IR of its launchers, with the cubins inside
    standin: Path  # the folder of the stand-in's libraries
    cache: Path  # entries as the build left them

    def library(self) -> Path:
        """A kernel's library."""
        return min(self.bundle.glob("lib/*/sm_*/*.so"))


def make_corpus(folder: Path, tools: Path) -> Corpus:
    """Build it all; ``tools`` is where zig keeps its cache."""
    from standin import build as build_standin

    from aot.compile.messages import Options

    path = _build(
        ("fill_epilogue",), ("sm_90a",), tools, folder / "bundle",
        name="small", options=Options(keep=("ll",)), artifacts=folder / "cache",
    )  # fmt: skip
    (folder / "standin").mkdir()
    return Corpus(path, path / "kept", build_standin(folder / "standin"), folder / "cache")


def make_samples(folder: Path, tools: Path, kernels: tuple[str, ...]) -> Path:
    """A bundle of several kernels of the tests, for two architectures."""
    return _build(kernels, ("sm_80", "sm_90a"), tools, folder / "samples", name="bundle", archives=False)


def _build(kernels: tuple[str, ...], archs: tuple[str, ...], tools: Path, out: Path, **settings: Any) -> Path:
    from aot.pipeline.build import build
    from aot.pipeline.settings import Settings

    source = str(PROJECT / "tests" / "samples" / "fill.py")
    result = build(Settings(source, archs, select=kernels, out=out, shared_cudart=True, cache=tools, **settings))
    assert not result.failures, result.failures
    return result.path
