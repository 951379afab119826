"""The readers of what describes a bundle: the manifest, the tables beside it, details of variants, measured tables."""

from __future__ import annotations

import hashlib
import json
import math
import random
from pathlib import Path
from typing import Any

from aot_runtime.arch import Arch
from aot_runtime.description.composed import Expression
from aot_runtime.description.records import FILE_NAME, INDEX_NAMES
from aot_runtime.errors import AotError

from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.bundle.tables.tuning import TunedDevice, TunedKernel, TunedSet, Tuning, read_tuning, tuning_text
from aot.errors import UsageError

from .corpus import Corpus
from .engine import ACCEPTED, REFUSED, Target, Undetected
from .mutate import changed_bytes, changed_json, write_anew

__all__ = ["make"]


def make(corpus: Corpus, folder: Path) -> list[Target]:
    described = _all_described(corpus)
    targets = [_manifest(described, folder / "described"), _details(corpus, folder / "details.json")]
    targets += [_tuning(folder / "tuning.json"), _expressions()]
    return [*targets, *(_table(name, described, folder / "described", 0.005) for name in INDEX_NAMES)]


_Described = dict[str, bytes]  # the manifest and the tables beside it, by name


def _all_described(corpus: Corpus) -> list[_Described]:
    """Of bundles of every kind. One more has a kernel with a gradient, which none of the tests' kernels has."""
    found = []
    for bundle in (corpus.bundle, *(kind.path for kind in corpus.kinds)):
        found.append({name: (bundle / name).read_bytes() for name in (FILE_NAME, *INDEX_NAMES)})
    first = dict(found[0])
    kernels = json.loads(first["kernels.json"])
    for kernel in kernels["kernels"].values():
        kernel["backward"] = {"kernel": "fill_epilogue", "saves": ["out"], "gradients": []}
    altered = json.dumps(kernels).encode()
    manifest = json.loads(first[FILE_NAME])
    _accept(manifest, hashlib.sha256(first["kernels.json"]).hexdigest(), altered)
    return [*found, {**first, "kernels.json": altered, FILE_NAME: json.dumps(manifest).encode()}]


def _altered(content: bytes, rng: random.Random) -> bytes:
    """As damage would alter it, or as somebody who writes JSON would."""
    return changed_json(content, rng) if rng.random() < 0.6 else changed_bytes(content, rng)


def _read(folder: Path, contents: dict[str, bytes]) -> str:
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        write_anew(folder / name, content)
    try:
        manifest = Manifest.read(folder)
        for part in ("kernels", "files", "provenance"):  # read when they are first asked for
            getattr(manifest, part)
    except AotError:
        return REFUSED
    _check(manifest)
    return ACCEPTED


def _check(manifest: Manifest) -> None:
    """What is accepted stays inside the bundle, and numbers are numbers."""
    records = dict(manifest.files)
    records.update({host.entry: host.file for host in manifest.hosts.values()})
    for name, record in records.items():
        parts = name.split("/")
        if not name.isprintable() or "\\" in name or {"", ".", ".."}.intersection(parts):
            raise Undetected(f"a file is called {name!a}")
        if type(record.size) is not int or not 0 <= record.size < 1 << 40 or len(bytes.fromhex(record.sha256)) != 32:
            raise Undetected(f"a file has the digest {record.sha256!a} and {record.size!r} bytes")


def _manifest(described: list[_Described], folder: Path) -> Target:
    def case(rng: random.Random) -> str:
        one = rng.choice(described)
        return _read(folder, {**one, FILE_NAME: _altered(one[FILE_NAME], rng)})

    return Target("manifest", 0.02, case)


def _table(name: str, described: list[_Described], folder: Path, share: float) -> Target:
    """The manifest has the digest of the altered table: what is read is what was altered."""

    def case(rng: random.Random) -> str:
        one = rng.choice(described)
        altered = _altered(one[name], rng)
        manifest = json.loads(one[FILE_NAME])
        _accept(manifest, hashlib.sha256(one[name]).hexdigest(), altered)
        return _read(folder, {**one, name: altered, FILE_NAME: json.dumps(manifest).encode()})

    return Target(name, share, case)


def _accept(data: Any, digest: str, content: bytes) -> None:
    """Write the digest of other content to wherever a manifest has this digest."""
    if isinstance(data, dict):
        if data.get("sha256") == digest:
            data.update(sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        data = list(data.values())
    for item in data if isinstance(data, list) else ():
        _accept(item, digest, content)


def _details(corpus: Corpus, path: Path) -> Target:
    content = min(corpus.bundle.glob("details/*.json")).read_bytes()

    def case(rng: random.Random) -> str:
        write_anew(path, _altered(content, rng))
        try:
            read_details(path)
            read_details(path, "fill_epilogue")
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("details", 0.02, case)


def _tuning(path: Path) -> Target:
    """What is accepted can be written as C: every cell names a variant, and there is a cell for all bins."""
    sets = tuple(
        TunedSet(
            "fill", {"dtype": dtype}, (f"fill__{dtype}__small", f"fill__{dtype}__large"), ((17, 65), (100,)), (0, 0, 0, 1, 1, 1)
        )
        for dtype in ("f32", "f16")
    )  # fmt: skip
    table = TunedKernel("fill", Arch(9, 0, "a"), ("m", "n"), sets)
    content = tuning_text(Tuning(TunedDevice("NVIDIA H200", 132, "9.0"), (table,))).encode()

    def case(rng: random.Random) -> str:
        write_anew(path, _altered(content, rng))
        try:
            tuning = read_tuning(path)
        except UsageError:
            return REFUSED
        for one in (one for kernel in tuning.kernels for one in kernel.sets):
            assert len(one.cells) == math.prod(len(bins) + 1 for bins in one.bins)
            assert all(0 <= cell < len(one.variants) <= 256 for cell in one.cells)
        return ACCEPTED

    return Target("tuning", 0.02, case)


def _expressions() -> Target:
    """Of gradients that are calls of other kernels."""
    texts = ("gemm(grad_out, b.mT)[0]", "-gemm(x.rows, scale=1.5, epilogue='relu')", "out", "-" * 900 + "x")

    def case(rng: random.Random) -> str:
        text = changed_bytes(rng.choice(texts).encode(), rng).decode("utf-8", "surrogateescape")
        try:
            expression = Expression(text * rng.choice((1, 1, 1, 60)))
            assert expression.kernels.isdisjoint({"__import__", "eval", "open"})
        except AotError:
            return REFUSED
        return ACCEPTED

    return Target("expressions", 0.02, case)
