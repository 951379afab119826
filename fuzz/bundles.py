"""Damage to whole bundles of every kind: ``verify`` finds all of it, and a loader refuses what it would run on.

Half of the cases are those of somebody who keeps the books: the altered file's digest stands in the manifest, so that
what reads the file meets the damage.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
from pathlib import Path

from aot_runtime.description.records import FILE_NAME, INDEX_NAMES
from aot_runtime.errors import AotError

from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify

from .corpus import PROJECT, Corpus, Kind
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, changed_json, flipped

# isort: split
from forging import accept  # the corpus has made it importable

__all__ = ["make"]

LOADS = 200  # of one process: what was loaded stays in memory
ANSWER_SECONDS = 300.0  # until a loader counts as hanging; a load takes milliseconds

_CHILD = """
import sys
from pathlib import Path
from standin import Standin
Standin.load(Path(sys.argv[1])).reset(capabilities=[(9, 0)])
import aot_runtime
from aot_runtime.errors import AotError
print("ready", flush=True)
for line in sys.stdin:
    path, _, key = line.strip().partition(" ")
    try:
        aot_runtime.load(path, key=bytes.fromhex(key) if key else None).preload(0)
        said = "accepted"
    except AotError as error:
        said = "refused"
    except Exception as error:
        said = f"{type(error).__name__}: {error!a}"
    print(said, flush=True)
"""


class _Loader:
    """A process that loads bundles against the stand-in for CUDA, and is replaced now and then."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus, self.loads = corpus, 0
        self.process: subprocess.Popen[bytes] | None = None

    def load(self, bundle: Path, key: bytes | None = None) -> str:
        process = self._process()
        assert process.stdin is not None
        process.stdin.write(f"{bundle} {key.hex() if key else ''}\n".encode())
        process.stdin.flush()
        answer = self._answer(process)
        self.loads += 1
        if not answer:
            self.close()
            raise Undetected(f"the loader's process ended with exit code {process.wait()}")
        return answer

    def _answer(self, process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_SECONDS)
        if not ready:
            process.kill()
            raise Undetected(f"the loader has not answered for {ANSWER_SECONDS:g} s")
        return process.stdout.readline().decode().strip()

    def _process(self) -> subprocess.Popen[bytes]:
        if self.process is not None and self.loads >= LOADS:
            self.close()
        if self.process is None:
            paths = os.pathsep.join(str(PROJECT / name) for name in ("tests", "runtime", "."))
            environment = {**os.environ, "PYTHONPATH": paths, "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
            command = [sys.executable, "-c", _CHILD, str(self.corpus.standin)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
            self.loads = 0
            if self._answer(self.process) != "ready":
                raise RuntimeError("the loader's process does not start")
        return self.process

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def make(corpus: Corpus, folder: Path) -> list[Target]:
    loader = _Loader(corpus)
    kinds = (Kind(corpus.bundle), *corpus.kinds)
    for kind in kinds:
        problems = verify(kind.path, [kind.key] if kind.key else [])
        assert problems == [], problems
        said = loader.load(kind.path, kind.key)
        assert said == ACCEPTED, said
    return [
        Target("bundles", 0.001, lambda rng: _case(rng.choice(kinds), folder, loader, rng), loader.close),
        Target("kept books", 0.001, lambda rng: _forged_case(rng.choice(kinds), folder, loader, rng), loader.close),
    ]


def _files(bundle: Path) -> list[Path]:
    return sorted(path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())


def _case(kind: Kind, folder: Path, loader: _Loader, rng: random.Random) -> str:
    # The manifest and what describes kernels get half of the cases; archives are large and many.
    files = _files(kind.path)
    small = [name for name in files if name.suffix == ".json" or name.suffix == ".so"]
    name = rng.choice(small if rng.random() < 0.7 else files)
    copy = folder / f"bundle-{rng.getrandbits(64):016x}"  # a name that the loader has not seen yet
    shutil.copytree(kind.path, copy, copy_function=_copy)
    try:
        content = (kind.path / name).read_bytes()
        altered = flipped(content, rng) if content and rng.random() < 0.7 else changed_bytes(content, rng)
        if altered == content:
            return ACCEPTED
        (copy / name).unlink()
        (copy / name).write_bytes(altered)
        _check_verify(copy, name, kind.key)
        return _check_load(loader, copy, name, kind.key, _means_another(name, content, altered))
    finally:
        shutil.rmtree(copy)


def _forged_case(kind: Kind, folder: Path, loader: _Loader, rng: random.Random) -> str:
    """Neither `verify` nor `load` raises what is not ours, or does not end. With a key both refuse."""
    names = [name for name in _files(kind.path) if name.as_posix() not in (FILE_NAME, *INDEX_NAMES)]
    # What is read as text gets most of the cases: digests inside the entry library cover the rest.
    texts = [name for name in names if name.suffix not in (".so", ".a", ".ll")]
    name = rng.choice(texts if rng.random() < 0.8 else names)
    copy = folder / f"forged-{rng.getrandbits(64):016x}"
    shutil.copytree(kind.path, copy, copy_function=_copy)
    try:
        content = (kind.path / name).read_bytes()
        change = changed_json if name.suffix == ".json" and rng.random() < 0.7 else changed_bytes
        (copy / name).unlink()
        (copy / name).write_bytes(change(content, rng))
        if name.as_posix() in Manifest.read(copy).files:
            _keep_books(copy, name)
        problems = verify(copy, [kind.key] if kind.key else [])
        said = loader.load(copy, kind.key)
        if said not in (ACCEPTED, REFUSED):
            raise Undetected(f"load raised {said} for `{name}`")
        if kind.key and name.name != "signature" and (copy / name).read_bytes() != content and not problems:
            raise Undetected(f"a key does not cover `{name}`")
        return REFUSED if problems else ACCEPTED
    finally:
        shutil.rmtree(copy)


def _keep_books(bundle: Path, name: Path) -> None:
    for book in (FILE_NAME, *INDEX_NAMES):
        content = (bundle / book).read_bytes()
        (bundle / book).unlink()  # the file has other names
        (bundle / book).write_bytes(content)
    accept(bundle, name.as_posix())


def _copy(source: str, target: str) -> None:
    """Libraries are copied: the dynamic linker takes two names of one file for the same library."""
    (shutil.copyfile if source.endswith(".so") else os.link)(source, target)


def _check_verify(bundle: Path, name: Path, key: bytes | None) -> None:
    try:
        problems = verify(bundle, [key] if key else [])
    except AotError:
        return
    if not problems:
        raise Undetected(f"verify calls a bundle sound whose `{name}` was altered")


def _means_another(name: Path, content: bytes, altered: bytes) -> bool:
    """Whether a loader must notice. A manifest with other spaces says the same; `verify` names it all the same."""
    if name.suffix != ".json":
        return True
    try:
        return _said(altered) != _said(content)
    except (ValueError, RecursionError):
        return True


def _said(document: bytes) -> str:
    """What a document says, without what a manifest says of files that are read only when somebody asks for them."""
    data = json.loads(document)
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ("files", "provenance", "distributions")}
    return json.dumps(data)


def _check_load(loader: _Loader, bundle: Path, name: Path, key: bytes | None, must_notice: bool) -> str:
    said = loader.load(bundle, key)
    if said not in (ACCEPTED, REFUSED):
        raise Undetected(f"load raised {said}")
    if said == ACCEPTED and must_notice and _is_loaded(name):
        raise Undetected(f"load accepted an altered `{name}`")
    return said


def _is_loaded(name: Path) -> bool:
    """Whether a loader reads the file before it runs anything: libraries, and what describes the kernels."""
    return name.suffix == ".so" or name.as_posix() in ("manifest.json", "kernels.json")
