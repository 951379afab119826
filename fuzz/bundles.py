"""Bit flips of a whole bundle: ``verify`` finds every one, and a loader refuses those that it would run on."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
from pathlib import Path

from aot_runtime.errors import AotError

from aot.bundle.verify import verify

from .corpus import PROJECT, Corpus
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, flipped

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
    try:
        aot_runtime.load(line.strip()).preload(0)
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

    def load(self, bundle: Path) -> str:
        process = self._process()
        assert process.stdin is not None
        process.stdin.write(f"{bundle}\n".encode())
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
    files = sorted(path.relative_to(corpus.bundle) for path in corpus.bundle.rglob("*") if path.is_file())
    assert verify(corpus.bundle) == []
    assert loader.load(corpus.bundle) == ACCEPTED
    return [Target("bundles", 0.001, lambda rng: _case(corpus, folder, files, loader, rng), loader.close)]


def _case(corpus: Corpus, folder: Path, files: list[Path], loader: _Loader, rng: random.Random) -> str:
    # The manifest and what describes kernels get half of the cases; archives are large and many.
    small = [name for name in files if name.suffix == ".json" or name.suffix == ".so"]
    name = rng.choice(small if rng.random() < 0.7 else files)
    copy = folder / f"bundle-{rng.getrandbits(64):016x}"  # a name that the loader has not seen yet
    shutil.copytree(corpus.bundle, copy, copy_function=_copy)
    try:
        content = (corpus.bundle / name).read_bytes()
        altered = flipped(content, rng) if content and rng.random() < 0.7 else changed_bytes(content, rng)
        if altered == content:
            return ACCEPTED
        (copy / name).unlink()
        (copy / name).write_bytes(altered)
        _check_verify(copy, name)
        return _check_load(loader, copy, name, _means_another(name, content, altered))
    finally:
        shutil.rmtree(copy)


def _copy(source: str, target: str) -> None:
    """Libraries are copied: the dynamic linker takes two names of one file for the same library."""
    (shutil.copyfile if source.endswith(".so") else os.link)(source, target)


def _check_verify(bundle: Path, name: Path) -> None:
    try:
        problems = verify(bundle)
    except AotError:
        return
    if not problems:
        raise Undetected(f"verify calls a bundle sound whose `{name}` was altered")


def _means_another(name: Path, content: bytes, altered: bytes) -> bool:
    """Whether a loader must notice. A manifest with other spaces says the same; `verify` names it all the same."""
    if name.suffix != ".json":
        return True
    try:
        return json.dumps(json.loads(altered)) != json.dumps(json.loads(content))
    except (ValueError, RecursionError):
        return True


def _check_load(loader: _Loader, bundle: Path, name: Path, must_notice: bool) -> str:
    said = loader.load(bundle)
    if said not in (ACCEPTED, REFUSED):
        raise Undetected(f"load raised {said}")
    if said == ACCEPTED and must_notice and _is_loaded(name):
        raise Undetected(f"load accepted an altered `{name}`")
    return said


def _is_loaded(name: Path) -> bool:
    """Whether a loader reads the file before it runs anything: libraries, and what describes the kernels."""
    return name.suffix == ".so" or name.as_posix() in ("manifest.json", "kernels.json")
