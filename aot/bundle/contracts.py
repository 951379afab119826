"""Contracts: what a kernel must compute, inputs to check it with, what a call costs.

A contract is a file beside the kernels that needs torch and no CuTe DSL. The builder copies it into the
bundle, so that a bundle can be checked and measured where nothing else is; loaders never look at it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path, PurePosixPath
from types import CodeType, ModuleType
from typing import Any

from aot_runtime.description.records import read_bounded
from aot_runtime.errors import BundleError, DigestError

from ..errors import BuildError
from .layout import CONTRACTS
from .manifest import Manifest

__all__ = ["Contract", "contract_paths", "contract_sources", "load_contracts", "shared_paths"]

_PACKAGE = "aot_bundle_contracts"
_LONGEST = 1 << 20  # bytes of an altered contract that are read to say so


@dataclass(frozen=True)
class Contract:
    """The functions of a contract. Those of a call take its inputs and choices by name."""

    reference: Callable[..., Any]  # the outputs, exact: one tensor, or a tuple in the order of the parameters
    inputs: Callable[..., Any]  # (make, dtype): yields the inputs of calls to check
    ulps: Callable[..., Any] | None = (
        None  # how far each element may be from exact, in units in the last place; or None
    )
    bounds: Callable[..., Any] | None = None  # the largest error of each element, instead of the dtype's tolerance
    cost: Callable[..., Any] | None = None  # an aot.Cost
    bench_inputs: Callable[..., Any] | None = None  # (make, dtype): yields the inputs of calls to measure
    tune_inputs: Callable[..., Any] | None = None  # (make, dtype): yields the calls to tune over; else bench_inputs
    torch_equivalent: Callable[..., Any] | None = None  # the same, as a user of torch would write it


def contract_sources(contracts: Mapping[str, str]) -> dict[str, Path]:
    """The files of a bundle's ``contracts/``, by path there: one per kernel, and what those share.

    Shared are files whose names start with an underscore, in the folder of a contract and in those above it.
    """
    sources: dict[str, Path] = {}
    for kernel, source in contracts.items():
        own = Path(source)
        root = _root_of(own)
        folders = [folder for folder in own.parents if folder.is_relative_to(root)]
        found = {path: path for folder in folders for path in sorted(folder.glob("_*.py"))}
        for path in (own, *found):
            _check_imports(path)
        for target, path in {**found, own.with_name(f"{kernel}.py"): own}.items():
            name = target.relative_to(root).as_posix()
            other = sources.setdefault(name, path)
            if other.read_bytes() != path.read_bytes():
                raise BuildError(
                    f"two different files would be {CONTRACTS}/{name} of the bundle: `{other}` and `{path}`",
                    hint="rename one of them",
                )
    return sources


def _root_of(source: Path) -> Path:
    """The folder ``contracts`` above a contract, if only packages lie between them; else the contract's own folder."""
    for folder in source.parents:
        if folder.name == CONTRACTS:
            return folder
        if not (folder / "__init__.py").is_file():
            break
    return source.parent


def _check_imports(source: Path) -> None:
    """Refuse an import of a file that bundles get with the contract of another kernel, or never."""
    for imported in _neighbours(source):
        if not imported.stem.startswith("_"):
            raise BuildError(
                f"`{source}` imports `{imported.name}`, which a bundle may lack",
                hint="move what contracts share to a file whose name starts with an underscore",
            )


def _neighbours(source: Path) -> Iterator[Path]:
    """The files that the relative imports of a file lead to."""
    try:
        tree = ast.parse(source.read_bytes())
    except (SyntaxError, ValueError):
        return  # which the first check that runs the contract reports
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(source.parents):
            modules = [node.module] if node.module else [alias.name for alias in node.names]
            files = (source.parents[node.level - 1] / f"{name.replace('.', '/')}.py" for name in modules)
            yield from (file for file in files if file.is_file())


def contract_paths(files: Iterable[str]) -> dict[str, str]:
    """The contracts among the files of a bundle: kernel -> path. The folder below ``contracts/`` says nothing."""
    return {path.stem: str(path) for path in _modules(files) if not path.stem.startswith("_")}


def shared_paths(files: Iterable[str], contracts: Iterable[str]) -> list[str]:
    """The files of a bundle that these contracts may import."""
    folders = {folder for contract in contracts for folder in PurePosixPath(contract).parents}
    return [str(path) for path in _modules(files) if path.stem.startswith("_") and path.parent in folders]


def _modules(files: Iterable[str]) -> list[PurePosixPath]:
    paths = [path for path in map(PurePosixPath, files) if path.parts[0] == CONTRACTS and path.suffix == ".py"]
    return [path for path in paths if all(part.isidentifier() for part in path.with_suffix("").parts)]


def load_contracts(bundle: Path, manifest: Manifest, kernels: Iterable[str]) -> dict[str, Contract]:
    """Execute the contracts of these kernels, each file after its digest matched; kernels without one are left out."""
    finder = _Sources({name: _read(bundle, manifest, name) for name in map(str, _modules(manifest.files))})
    present = {kernel: _module_name(path) for kernel, path in contract_paths(manifest.files).items()}
    # Those of another bundle have the same names. These stay: torch.compile looks modules up by their names.
    for name in [name for name in sys.modules if name.split(".")[0] == _PACKAGE]:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        return {kernel: _contract(kernel, _module(kernel, present[kernel])) for kernel in kernels if kernel in present}
    finally:
        sys.meta_path.remove(finder)


def _module_name(path: str) -> str:
    """``contracts/rows/softmax.py`` is the module ``softmax`` in the package ``rows`` of ours."""
    _, *parts = PurePosixPath(path).with_suffix("").parts
    return ".".join((_PACKAGE, *(part for part in parts if part != "__init__")))


def _read(bundle: Path, manifest: Manifest, name: str) -> bytes:
    expected = manifest.files[name]
    content = read_bounded(str(bundle / name), max(expected.size, _LONGEST), BundleError)
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise DigestError(
            f"`{bundle / name}` is not the file that the bundle was built with",
            hint="`python -m aot verify` lists what differs",
        )
    return content


def _module(kernel: str, name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise BundleError(
            f"the contract of {kernel} cannot be imported: {error}",
            hint="a bundle carries contracts and, of the files beside and above them in `contracts/`, "
            "those whose names start with an underscore",
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
        folders = {str(folder) for name in files for folder in PurePosixPath(name).parents} - {"."}
        self.packages = {_module_name(folder) for folder in {CONTRACTS, *folders}}
        self.sources: dict[str, tuple[str, bytes]] = {name: (name, b"") for name in self.packages}
        self.sources |= {_module_name(name): (name, content) for name, content in files.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        known = fullname in self.sources
        return importlib.util.spec_from_loader(fullname, self, is_package=self.is_package(fullname)) if known else None

    def is_package(self, fullname: str) -> bool:
        return fullname in self.packages

    def get_source(self, fullname: str) -> str:
        return self.sources[fullname][1].decode()

    def get_code(self, fullname: str) -> CodeType:
        name, content = self.sources[fullname]
        return compile(content, name, "exec", dont_inherit=True)
