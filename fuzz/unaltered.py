"""What the readers make of sound input: the same as when the corpus was made.

Damage shows what a reader must refuse. That it reads everything it should, and nothing else, shows here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aot.binary.cubin import cubins_in_library, cubins_in_llvm_ir
from aot.binary.elf import read_shared_library
from aot.binary.objects import defined_symbols, members, rename_symbols
from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.bundle.tables.tuning import read_tuning
from aot.cache.store import Store, checked

from .corpus import Corpus
from .engine import ACCEPTED, Target, Undetected
from .entries import DECODERS

__all__ = ["make", "write_expected"]

_FILE = "expected.json"


def make(corpus: Corpus, folder: Path) -> list[Target]:
    def case(rng: random.Random) -> str:
        expected = json.loads(corpus.bundle.with_name(_FILE).read_text())
        seen = dict(_read(corpus))
        wrong = sorted(name for name in {*expected, *seen} if expected.get(name) != seen.get(name))
        if wrong:
            raise Undetected(f"is read as something else: {', '.join(wrong[:5])}")
        return ACCEPTED

    return [Target("unaltered", 0.00001, case)]


def write_expected(corpus: Corpus) -> None:
    corpus.bundle.with_name(_FILE).write_text(json.dumps(dict(_read(corpus)), indent=1))


def _read(corpus: Corpus) -> Iterator[tuple[str, str]]:
    bundles = [corpus.bundle, *(kind.path for kind in corpus.kinds)]
    for bundle in bundles:
        manifest = Manifest.read(bundle)
        yield (
            f"{bundle.name}: manifest",
            _digest([manifest.texts(), manifest.kernels, manifest.files, manifest.provenance]),
        )
        for path in sorted(bundle.glob("details/*.json")):
            yield f"{bundle.name}: {path.name}", _digest(list(read_details(path)))
        for path in sorted(bundle.glob("tuning/*.json")):
            yield f"{bundle.name}: {path.name}", _digest(read_tuning(path))
        for path in sorted(bundle.glob("lib/**/*.so")):
            library = dataclasses.replace(read_shared_library(path), path="")
            yield f"{bundle.name}: {path.name}", _digest([library, cubins_in_library(path)])
    for path in sorted(corpus.bundle.glob("lib/*/*.a")):
        yield path.name, _digest([_renamed(name, content) for name, content in members(path.read_bytes())])
    for path in sorted(corpus.kept.rglob("*.ll")):
        yield path.name, _digest(cubins_in_llvm_ir(path.read_text()))
    for entry in sorted(Store(corpus.cache).entries(), key=lambda entry: entry.path.name):
        key = entry.path.name.partition(".")[0]
        yield f"{entry.kind} {key}", _digest(DECODERS[entry.kind](checked(entry.kind, key, entry.path.read_bytes())))


def _renamed(name: str, content: bytes) -> list[Any]:
    symbols = sorted(defined_symbols(content))
    return [name, symbols, rename_symbols(content, {symbol: f"other_{symbol}" for symbol in symbols})]


def _digest(value: Any) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()


def _canonical(value: Any) -> str:
    """A text of a value that is the same in every process."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return f"{type(value).__name__}({_canonical(fields)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_canonical(value[key])}" for key in sorted(value, key=str)) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(_canonical, value))) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_canonical, value)) + "]"
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return repr(value)
