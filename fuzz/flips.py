"""Every single bit of what describes a bundle, flipped in turn: ``python -m fuzz.flips --out FILE``.

Each flip is tried by a load and by ``verify``. A flip that ``verify`` does not name is a finding, and so is an exception
that is not ours. A load may accept a flip only in what it does not read: the list of files and the provenance, which
are then refused when somebody reads them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")  # torch takes seconds, and nothing here needs it

import aot_runtime
from aot_runtime.description.records import FILE_NAME, INDEX_NAMES
from aot_runtime.errors import AotError

from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify

from .command import run_with_corpus
from .engine import Outcome, Undetected, attempt

__all__ = ["FILES", "NEVER", "NOTICED", "WHEN_READ", "flip_all"]

FILES = (FILE_NAME, *INDEX_NAMES)
NOTICED = "refused by load, named by verify"
WHEN_READ = "refused when it is read, named by verify"
NEVER = "accepted by load, named by verify"


def flip_all(bundle: Path, folder: Path, name: str, every: int = 1) -> Outcome:
    """What became of the flips of one file: of all, or of every so many bits."""
    copy = Path(shutil.copytree(bundle, folder / f"flipped-{name}"))
    content = (bundle / name).read_bytes()
    outcome = Outcome()
    for number in range(0, 8 * len(content), every):
        altered = bytearray(content)
        altered[number // 8] ^= 1 << number % 8
        # A new file, as whoever replaces one would put it there: a load looks at its inode.
        (copy / f"{name}.new").write_bytes(altered)
        os.replace(copy / f"{name}.new", copy / name)
        outcome.note(attempt(lambda: _case(copy), number, outcome.seen))
    shutil.rmtree(copy)
    return outcome


def _case(bundle: Path) -> str:
    said = _loaded(bundle)
    try:
        problems = verify(bundle)
    except AotError as error:
        problems = [error.message]
    if not problems:
        raise Undetected(f"verify calls the bundle sound; load: {said}")
    return said


def _loaded(bundle: Path) -> str:
    try:
        aot_runtime.load(bundle)
    except AotError:
        return NOTICED
    try:
        for _ in _parts(Manifest.read(bundle)):
            pass
    except AotError:
        return WHEN_READ
    return NEVER


def _parts(manifest: Manifest) -> Iterator[object]:
    yield from (manifest.kernels, manifest.files, manifest.provenance)


def main() -> int:
    return run_with_corpus(
        "flips",
        __doc__,
        lambda corpus, folder: ((name, flip_all(corpus.bundle, folder, name).data()) for name in FILES),
    )


if __name__ == "__main__":
    sys.exit(main())
