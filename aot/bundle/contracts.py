"""Contracts: what a kernel must compute, inputs to check it with, what a call costs.

A contract is a file beside the kernels that needs torch and no CuTe DSL. The builder copies it into the
bundle, so that a bundle can be checked and measured where nothing else is; loaders never look at it.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from aot_runtime.errors import BundleError, DigestError
from aot_runtime.manifest import Manifest

from ..errors import BuildError
from .layout import CONTRACTS

__all__ = ["Contract", "contract_sources", "load_contracts"]

_PACKAGE = "aot_bundle_contracts"


@dataclass(frozen=True)
class Contract:
    """The functions of a contract. Those of a call take its inputs and choices by name."""

    reference: Callable[..., Any]  # the outputs, exact: one tensor, or a tuple in the order of the parameters
    inputs: Callable[..., Any]  # (make, dtype): yields the inputs of calls to check
    ulps: Callable[..., Any] | None = (
        None  # how far each element may be from exact, in units in the last place; or None
    )
    cost: Callable[..., Any] | None = None  # an aot.Cost
    bench_inputs: Callable[..., Any] | None = None  # (make, dtype): yields the inputs of calls to measure
    tune_inputs: Callable[..., Any] | None = None  # (make, dtype): yields the calls to tune over; else bench_inputs
    torch_equivalent: Callable[..., Any] | None = None  # the same, as a user of torch would write it


def contract_sources(contracts: Mapping[str, str]) -> dict[str, Path]:
    """The files of a bundle's ``contracts/``, by name there: one per kernel, and what those share.

    Shared are files beside a contract whose names start with an underscore.
    """
    sources: dict[str, Path] = {}
    for kernel, source in contracts.items():
        shared = {path.name: path for path in sorted(Path(source).parent.glob("_*.py"))}
        for name, path in {**shared, f"{kernel}.py": Path(source)}.items():
            other = sources.setdefault(name, path)
            if other.read_bytes() != path.read_bytes():
                raise BuildError(
                    f"two different files would be {CONTRACTS}/{name} of the bundle: `{other}` and `{path}`",
                    hint="rename one of them",
                )
    return sources


def load_contracts(bundle: Path, manifest: Manifest, kernels: Iterable[str]) -> dict[str, Contract]:
    """Execute the contracts of these kernels, each file after its digest matched; kernels without one are left out."""
    finder = _Sources({name: _read(bundle, manifest, name) for name in _names(manifest)})
    present = [kernel for kernel in kernels if f"{_PACKAGE}.{kernel}" in finder.sources]
    # Those of another bundle have the same names. These stay: torch.compile looks modules up by their names.
    for name in [name for name in sys.modules if name.split(".")[0] == _PACKAGE]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        return {kernel: _contract(kernel, _module(kernel)) for kernel in present}
    finally:
        sys.meta_path.remove(finder)


def _names(manifest: Manifest) -> list[str]:
    paths = [PurePosixPath(name) for name in manifest.files]
    return [str(path) for path in paths if path.parent == PurePosixPath(CONTRACTS) and path.suffix == ".py"]


def _read(bundle: Path, manifest: Manifest, name: str) -> bytes:
    try:
        content = (bundle / name).read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read `{bundle / name}`: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise DigestError(
            f"`{bundle / name}` is not the file that the bundle was built with",
            hint="`python -m aot verify` lists what differs",
        )
    return content


def _module(kernel: str) -> ModuleType:
    try:
        return import_module(f"{_PACKAGE}.{kernel}")
    except ImportError as error:
        raise BundleError(
            f"the contract of {kernel} cannot be imported: {error}",
            hint="a bundle carries contracts and the files beside them whose names start with an underscore, nothing else",
        ) from None


def _contract(kernel: str, module: ModuleType) -> Contract:
    found = {name: getattr(module, name, None) for name in Contract.__dataclass_fields__}
    for name in ("reference", "inputs"):
        if not callable(found[name]):
            raise BundleError(f"the contract of {kernel} has no function `{name}`")
    return Contract(**found)  # type: ignore[arg-type]


class _Sources(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from texts at hand: what was hashed is what runs, and no cache is left in the bundle."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.sources: dict[str, tuple[str, bytes]] = {_PACKAGE: (CONTRACTS, b"")}
        for name, content in files.items():
            stem = PurePosixPath(name).stem
            self.sources[_PACKAGE if stem == "__init__" else f"{_PACKAGE}.{stem}"] = (name, content)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = fullname in self.sources
        return importlib.util.spec_from_loader(fullname, self, is_package=self.is_package(fullname)) if known else None

    def is_package(self, fullname: str) -> bool:
        return fullname == _PACKAGE

    def get_source(self, fullname: str) -> str:
        return self.sources[fullname][1].decode()

    def get_code(self, fullname: str) -> CodeType:
        name, content = self.sources[fullname]
        return compile(content, name, "exec", dont_inherit=True)
