"""A copy of the project that may be altered, with bundles that were built before and are linked anew from altered C."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .sites import Mutation

__all__ = ["PROJECT", "Stillborn", "Tree", "environment"]

PROJECT = Path(__file__).resolve().parents[2]
_SITE = Path(__file__).with_name("site")
_LEFT_OUT = shutil.ignore_patterns(".*", "dist", "build", "__pycache__", "*.egg-info", "results")
# What a run of the tests compiles from the C sources: made again for a mutation of them.
_COMPILED = ("cpp_build", "selection")
# Bundles with a library for torch, which tests of it use: built again for a mutation of that.
_WITH_TORCH = ("demo",)
# Results of tests that ran in another process (`tests/with_frameworks.py`): of other code.
_RESULTS = "with_frameworks"
# C that entry libraries do not contain.
_TORCH = "runtime/src/torch/"
_ELSEWHERE = (
    _TORCH,
    "runtime/src/aot_support.c",
    "runtime/src/aot_launcher.h",
    "runtime/include/aot/aot.h",
)
_FLAGS = ("-std=gnu99", "-O1", "-fPIC", "-fvisibility=hidden", "-w")


class Stillborn(Exception):
    """A mutation that no compiler accepts, or that this machine's does not see: nothing to test."""


def environment(root: Path, **more: str) -> dict[str, str]:
    """For processes that use the code below another root."""
    paths = os.pathsep.join([str(_SITE), *(str(root / name) for name in (".", "runtime", "tests"))])
    return {**os.environ, "PYTHONPATH": paths, **more}


@dataclass(frozen=True)
class Tree:
    root: Path  # the copy of the project
    run: Path  # a copy of what a run of the tests has made

    @classmethod
    def make(cls, folder: Path, prepared: Path) -> Tree:
        root = folder / "project"
        shutil.copytree(PROJECT, root, ignore=_LEFT_OUT, symlinks=True)
        left_out = shutil.ignore_patterns("artifacts", _RESULTS, *_COMPILED)
        shutil.copytree(prepared / "shared", folder / "shared", ignore=left_out)
        (folder / "shared" / "artifacts").symlink_to(prepared / "shared" / "artifacts")
        for name in _COMPILED:
            if (prepared / "shared" / name).exists():
                shutil.copytree(prepared / "shared" / name, folder / "shared" / name, symlinks=True)
        return cls(root, folder / "shared")

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        """The tree with this mutation, and without it again."""
        path = self.root / mutation.path
        original = path.read_text()
        before = self._seen_by_the_compiler(path)
        path.write_text(mutation.applied(original))
        try:
            if path.suffix == ".c" and self._seen_by_the_compiler(path) == before:
                raise Stillborn("code for other machines")
            yield
        finally:
            path.write_text(original)

    def _seen_by_the_compiler(self, path: Path) -> str:
        """The C of a file that is left for this machine: its conditions of the preprocessor choose."""
        return _run(["cc", "-E", "-P", *_includes(self.root), str(path)]) if path.suffix == ".c" else ""

    @contextmanager
    def fresh_run(self, mutation: Mutation, sources: Path) -> Iterator[Path]:
        """A folder of a run in which nothing is of the unaltered C, and which nothing outlives."""
        known = {path.name for path in self.run.iterdir()}
        with_c = not mutation.path.endswith(".py")
        saved = self.run.with_name("saved")
        saved.mkdir()
        try:
            if with_c:
                again = (*_COMPILED, *(_WITH_TORCH if mutation.path.startswith(_TORCH) else ()))
                self._put_away(saved, [name for name in known if name.startswith(again)])
                self._relink_all(mutation, sources, saved)
            yield self.run
        finally:
            self._restore(known, saved)

    def _put_away(self, saved: Path, names: Sequence[str]) -> None:
        for name in names:
            (self.run / name).rename(saved / name)

    def _relink_all(self, mutation: Mutation, sources: Path, saved: Path) -> None:
        if mutation.path.startswith(_ELSEWHERE):
            return
        for bundle in sorted(path.parent for path in self.run.glob("*/bundle/manifest.json")):
            shutil.copytree(bundle, saved / bundle.parent.name / "bundle", copy_function=os.link)
            _relink(self.root, bundle, sources, self.run.with_name("objects"), mutation.path)

    def _restore(self, known: set[str], saved: Path) -> None:
        for path in [path for path in self.run.iterdir() if path.name not in known]:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for kept in saved.iterdir():
            if kept.is_dir() and (kept / "bundle").is_dir() and not kept.name.startswith((*_COMPILED, *_WITH_TORCH)):
                shutil.rmtree(self.run / kept.name / "bundle")
                (kept / "bundle").rename(self.run / kept.name / "bundle")
            else:
                if (self.run / kept.name).is_dir():
                    shutil.rmtree(self.run / kept.name)
                kept.rename(self.run / kept.name)
        shutil.rmtree(saved)


def _relink(
    root: Path, bundle: Path, sources: Path, objects: Path, altered: str | None, flags: Sequence[str] = ()
) -> None:
    """Link the entry library of a bundle from the C below a root, and let the manifest have its new digest.

    ``sources`` has the tables that the builder wrote. Objects of what is not ``altered`` are kept in ``objects``.
    """
    from aot.bundle.manifest import Manifest
    from aot.hosts import Host

    sys.path += [str(path) for path in (PROJECT / "tests",) if str(path) not in sys.path]
    from forging import accept

    host = Host.native().name
    manifest = Manifest.read(bundle)
    tables = sources / f"{manifest.identity(host)}.c"
    assert tables.exists(), f"`{bundle}` was built by a process that did not keep the tables of entry libraries"
    entry = bundle / manifest.hosts[host].entry
    made = [
        _object(root, path, objects, altered, flags)
        for path in sorted((root / "runtime/src").glob("aot_*.c"))
        if path.stem != "aot_support"
    ]
    made.append(_object(root, tables, objects, altered, flags))
    entry.unlink()  # the file may have other names
    _run(["cc", "-shared", "-s", "-Wl,-Bsymbolic", *flags, *map(str, made), "-o", str(entry), "-ldl", "-pthread"])
    for name in ("manifest.json", "files.json"):
        copy = (bundle / name).read_bytes()
        (bundle / name).unlink()
        (bundle / name).write_bytes(copy)
    accept(bundle, entry.relative_to(bundle).as_posix())


def _object(root: Path, source: Path, objects: Path, altered: str | None, flags: Sequence[str]) -> Path:
    """Compiled with the headers of the tree. What a mutation does not touch is compiled once."""
    is_altered = altered is not None and (altered.endswith((".h", ".hpp")) or source == root / altered)
    folder = objects / ("altered" if is_altered else "kept")
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{source.stem}.o"
    if made.exists() and not is_altered:
        return made
    if is_altered and made.exists() and made.stat().st_mtime_ns > (root / str(altered)).stat().st_mtime_ns:
        return made  # of this very mutation, for another bundle
    _run(["cc", *_FLAGS, *flags, *_includes(root), "-c", str(source), "-o", str(made)])
    return made


def _includes(root: Path) -> list[str]:
    import tvm_ffi.libinfo

    folders = [root / "runtime/src", root / "runtime/include", tvm_ffi.libinfo.find_include_path()]
    return [word for folder in folders for word in ("-isystem", str(folder))]


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Stillborn(done.stderr[-400:])
    return done.stdout
