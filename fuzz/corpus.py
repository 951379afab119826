"""What mutations start from: a small bundle that a build made, and the stand-in for CUDA that it runs against."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Corpus", "make_corpus"]

PROJECT = Path(__file__).resolve().parent.parent
sys.path += [path for path in (str(PROJECT / "tests"), str(PROJECT / "runtime")) if path not in sys.path]


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
    from aot.pipeline.build import build
    from aot.pipeline.settings import Settings

    settings = Settings(
        kernels=str(PROJECT / "tests" / "samples" / "fill.py"),
        archs=("sm_90a",),
        select=("fill_epilogue",),
        out=folder / "bundle",
        name="small",
        options=Options(keep=("ll",)),
        shared_cudart=True,
        cache=tools,
        artifacts=folder / "cache",
    )
    result = build(settings)
    assert not result.failures, result.failures
    (folder / "standin").mkdir()
    return Corpus(result.path, result.path / "kept", build_standin(folder / "standin"), folder / "cache")
