"""What mutations start from: small bundles of every kind that builds made, and the stand-in for CUDA that they run against."""

from __future__ import annotations

import json
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Corpus", "Kind", "make_corpus", "make_kinds", "make_samples", "read_corpus"]

PROJECT = Path(__file__).resolve().parent.parent
sys.path += [path for path in map(str, (PROJECT, PROJECT / "tests", PROJECT / "runtime")) if path not in sys.path]

_TUNED = {
    "schema": 1,
    "device": {"name": "Stand-in 9.0", "multiprocessors": 132, "capability": "9.0"},
    "kernels": [
        {
            "kernel": "fill_tuned", "arch": "sm_90a", "by": ["n"],
            "sets": [{"function": "fill_tuned", "point": {}, "variants": [f"fill_tuned__t{n}" for n in (32, 64, 128)],
                      "bins": [[50, 500]], "cells": [2, 0, 1]}],
        }
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """A bundle of another kind than the first; ``key`` is the public key of a signed one."""

    path: Path
    key: bytes | None = None


@dataclass(frozen=True)
class Corpus:
    bundle: Path  # with archives, and the CUDA runtime shared
    kept: Path  # the LLVM IR of its launchers, with the cubins inside
    standin: Path  # the folder of the stand-in's libraries
    cache: Path  # entries as the build left them
    kinds: tuple[Kind, ...] = ()

    def library(self) -> Path:
        """A kernel's library."""
        return min(self.bundle.glob("lib/*/sm_*/*.so"))


def make_corpus(folder: Path, tools: Path) -> Corpus:
    """Build the first bundle and the stand-in; ``tools`` is where zig keeps its cache."""
    from standin import build as build_standin

    from aot.compile.messages import Options

    _build(
        _FILL, ("sm_90a",), tools, folder / "bundle", select=("fill_epilogue",),
        name="small", options=Options(keep=("ll",)), artifacts=folder / "cache",
    )  # fmt: skip
    (folder / "standin").mkdir()
    build_standin(folder / "standin")
    return read_corpus(folder)


def read_corpus(folder: Path) -> Corpus:
    """What was made there before."""
    path = folder / "bundle"
    return Corpus(path, path / "kept", folder / "standin", folder / "cache", _kinds_of(folder / "kinds"))


def make_samples(folder: Path, tools: Path, kernels: tuple[str, ...]) -> Path:
    """A bundle of several kernels of the tests, for two architectures."""
    return _build(_FILL, ("sm_80", "sm_90a"), tools, folder / "samples", name="bundle", select=kernels, archives=False)


def make_kinds(folder: Path, tools: Path) -> None:
    """Bundles with a measured table and scratch memory, with captured calls, signed, and split by architecture."""
    from aot.bundle.signature import Signer, new_key
    from aot.bundle.signing import sign
    from aot.compile.messages import EXERCISE, Options

    folder.mkdir()
    table = folder / "stand-in.json"
    table.write_text(json.dumps(_TUNED))
    kernels = ("fill_tuned", "fill_parts")
    tuned = _build(
        _FILL, ("sm_90a",), tools, folder / "tuned", name="tuned", select=kernels, tuning=(table,), archives=False
    )
    exercise = PROJECT / "tests" / "foreign" / "exercise.py"
    _build(
        exercise, ("sm_90a",), tools, folder / "captured", name="rows", archives=False, options=Options(source=EXERCISE)
    )
    _split(tuned, folder)
    shutil.copytree(tuned, folder / "signed")
    new_key(folder / "private.pem")
    signer = Signer.read(folder / "private.pem")
    sign(folder / "signed", signer)
    (folder / "signed.key").write_bytes(signer.public)


def _kinds_of(folder: Path) -> tuple[Kind, ...]:
    found = []
    for manifest in sorted(folder.glob("*/manifest.json")):
        key = folder / f"{manifest.parent.name}.key"
        found.append(Kind(manifest.parent, key.read_bytes() if key.exists() else None))
    return tuple(found)


def _split(bundle: Path, folder: Path) -> None:
    """As pip leaves the base package and its parts."""
    from aot.wheel.archive import write_wheels
    from aot.wheel.identity import Identity
    from aot.wheel.make import Project, wheels

    made = wheels(bundle, Project(Identity.parse("played", "1.0")), split_arch=True)
    for wheel in write_wheels(made, folder / "wheels"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / "installed")
    shutil.move(folder / "installed" / "played" / "_bundle", folder / "split")


_FILL = PROJECT / "tests" / "samples" / "fill.py"


def _build(source: Path, archs: tuple[str, ...], tools: Path, out: Path, **settings: Any) -> Path:
    from aot.pipeline.build import build
    from aot.pipeline.settings import Settings

    result = build(Settings(str(source), archs, out=out, shared_cudart=True, cache=tools, **settings))
    assert not result.failures, result.failures
    return result.path
