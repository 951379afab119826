"""Finding declared kernels in a folder, a file, or an importable module.

This runs in a worker process, because it executes the author's files, which import CuTe DSL.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from ..errors import DeclarationError, UsageError
from ..versions import install_cute_dsl
from .backward import check_pairs
from .kernel import Kernel

__all__ = ["Family", "Found", "discover", "is_discovered", "is_sibling", "place"]

_PACKAGE = "aot_kernel_sources"  # a name that nothing else uses
_CONTRACTS = "contracts"
_ENCODING_HINT = "save the file as UTF-8, or name its encoding in its first line: `# -*- coding: latin-1 -*-`"
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d[\d.]*/")  # installed, or Python's own
_FAMILY = "FAMILY"  # in a file of kernels: the family that they belong to, if it is not that of their folder
_CORE = "CORE_FAMILIES"  # in the ``__init__.py`` of a folder of kernels: the families that a build takes by default


@dataclass(frozen=True)
class Family:
    """The folder of a kernel inside that of the source, or the name in its file, and whether it is built if none is named."""

    name: str = ""
    core: bool = True


@dataclass(frozen=True)
class Found:
    """The kernels that a source declares, and the files that could not be read."""

    kernels: tuple[Kernel, ...]
    failures: tuple[DeclarationError, ...]
    families: Mapping[str, Family] = field(default_factory=dict)  # by kernel
    notes: tuple[str, ...] = ()  # of an exercise: what it was told instead of a result


def discover(source: str, skip: Collection[str] = (), reading: Callable[[str], None] = lambda path: None) -> Found:
    """The kernels declared in ``source``, a path or an import string, in the order of their names.

    A file that fails is reported and the others are read; two kernels of one name are an error. Files of a folder
    may be skipped. ``reading`` is called with each file before it is executed, because that may end the process.
    """
    kernels: dict[str, Kernel] = {}
    failures: list[DeclarationError] = []
    for module in _modules(source, skip, reading, failures):
        for kernel in _declared(module):
            other = kernels.setdefault(kernel.name, kernel)
            if other is not kernel:
                raise DeclarationError(
                    f"two kernels are called {kernel.name}: {other.origin} and {kernel.origin}",
                    hint="rename one of them",
                )
    if not kernels and not failures and not skip:
        raise UsageError(
            f"no kernel is declared in `{source}`{_imported_from(source)}",
            hint="declare one with @aot.kernel, pass `--source PATH`, or begin with `python -m aot new my_kernels`",
        )
    check_pairs(kernels, complete=not failures and not skip)
    names = {name: _family_name(source, kernel) for name, kernel in kernels.items()}
    core = _core_families(source, {name.split("/")[0] for name in names.values() if name})
    families = {kernel: Family(name, _is_core(name, core)) for kernel, name in names.items()}
    return Found(tuple(kernels[name] for name in sorted(kernels)), tuple(failures), families)


def _imported_from(source: str) -> str:
    """Where a module was found: there may be one of the name of a folder that the author meant."""
    if Path(source).exists() or source not in sys.modules:
        return ""
    return f", a module at `{sys.modules[source].__file__}`; there is no folder or file of that name here"


def _family_name(source: str, kernel: Kernel) -> str:
    """The name in the file of a kernel, or its folder inside that of the source; "" if it lies in the latter."""
    folder, file = Path(source).resolve(), Path(kernel.origin.rpartition(":")[0]).resolve()
    if not Path(source).is_dir() or folder not in file.parents:
        return ""
    place = file.relative_to(folder).with_suffix("")
    module = sys.modules.get(".".join((_PACKAGE, *place.parts)))
    name = getattr(module, _FAMILY, None)
    if name is None:
        return "" if place.parent == Path() else place.parent.as_posix()
    if not isinstance(name, str) or not name:
        raise DeclarationError(f"{file}: {_FAMILY} is {name!r}", hint='name the family: FAMILY = "gemm"')
    return name


def _is_core(family: str, core: Collection[str] | None) -> bool:
    """A kernel of no family is always core."""
    return not family or core is None or family.split("/")[0] in core


def _core_families(source: str, declared: Collection[str]) -> Collection[str] | None:
    """``CORE_FAMILIES``, if there is such a list. Raises for one that names no family: a build would leave it out silently."""
    folder, core = Path(source), getattr(sys.modules.get(_PACKAGE), _CORE, None)
    if core is None or not folder.is_dir():
        return None
    where = f"{folder / '__init__.py'}: {_CORE}"
    if not isinstance(core, (tuple, list, set, frozenset)) or not all(isinstance(name, str) for name in core):
        raise DeclarationError(f"{where} is {core!r}", hint='list names of folders: ("rows", "gemm")')
    folders = (file.parent.name for file in folder.glob("*/__init__.py") if file.parent.name != _CONTRACTS)
    known = sorted({*folders, *declared})
    unknown = sorted(set(core) - set(known))
    if unknown:
        raise DeclarationError(
            f"{where} has {', '.join(unknown)}, and there is no such folder with an `__init__.py`",
            hint=f"there are: {', '.join(known) or 'none'}",
        )
    return core


def is_discovered(name: str) -> bool:
    """Whether :func:`discover` executed this module."""
    return name.startswith(_PACKAGE)


def is_sibling(path: Path) -> bool:
    """Whether a file is one that :func:`discover` reads because it lies in the folder, or in a family's folder."""
    folders = [Path(folder).resolve() for folder in getattr(sys.modules.get(_PACKAGE), "__path__", ())]
    return path.suffix == ".py" and any(folder in path.resolve().parents for folder in folders)


def _declared(module: ModuleType) -> list[Kernel]:
    return [value for value in vars(module).values() if isinstance(value, Kernel)]


def _modules(
    source: str, skip: Collection[str], reading: Callable[[str], None], failures: list[DeclarationError]
) -> Iterator[ModuleType]:
    path = Path(source)
    if path.is_dir():
        yield from _folder(path, skip, reading, failures)
    elif path.is_file():
        reading(source)
        yield _execute(f"{_PACKAGE}_{path.stem}", path)
    elif path.suffix == ".py" or "/" in source:
        raise UsageError(f"`{source}` does not exist", hint="pass a folder, a Python file, or an importable module")
    else:
        reading(source)
        yield from _importable(source)


def _folder(
    path: Path, skip: Collection[str], reading: Callable[[str], None], failures: list[DeclarationError]
) -> Iterator[ModuleType]:
    """Each file of a folder as a module of one package, so that files can import each other.

    Folders in it that are packages are families of kernels. ``contracts`` is none: it holds references.
    """
    if not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"you may not read the folder `{path}`", hint="change its permissions")
    initial = path / "__init__.py"
    package = ModuleType(_PACKAGE)
    if initial.is_file():
        reading(str(initial))
        package = _execute(_PACKAGE, initial, package=path)
    else:
        package.__path__ = [str(path)]
        sys.modules[_PACKAGE] = package
    yield package
    for file in _files(path):
        if str(file) not in skip:
            reading(str(file))
            try:
                yield _execute(".".join((_PACKAGE, *file.relative_to(path).with_suffix("").parts)), file)
            except DeclarationError as error:
                failures.append(error)


def _files(folder: Path) -> Iterator[Path]:
    yield from (file for file in sorted(folder.glob("*.py")) if not file.name.startswith("_"))
    for family in sorted(file.parent for file in folder.glob("*/__init__.py")):
        if not family.name.startswith((".", "_")) and family.name != _CONTRACTS:
            yield from _files(family)


def _execute(name: str, path: Path, package: Path | None = None) -> ModuleType:
    if name in sys.modules:  # a file before it in the alphabet has imported it
        return sys.modules[name]
    locations = [str(package)] if package else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=locations)
    if spec is None or spec.loader is None:
        raise UsageError(f"`{path}` is not a Python file", hint="pass a folder, a file that ends in `.py`, or a module")
    _check_readable(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    present = os.getcwd()
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # pytest's Skipped is no Exception
        del sys.modules[name]
        raise _import_failure(str(path), error) from error
    finally:
        os.chdir(present)  # paths of other files are relative to it
    return module


def _check_readable(path: Path) -> None:
    """Raise for a file whose path or text is not UTF-8: Python may import it, but nothing can name it or show its lines."""
    place = os.path.abspath(path)
    try:
        place.encode()
        content = path.read_bytes()
        if b"\0" not in content:  # the import names these; Python 3.14 takes them for a wrong encoding here
            importlib.util.decode_source(content)
    except UnicodeEncodeError:
        hint = "rename the file, or the folder that it is in"
        if sys.getfilesystemencoding() != "utf-8":  # paths of UTF-8 are not read as such then
            hint = "set LC_ALL to a locale of UTF-8, such as C.UTF-8"
        raise DeclarationError(f"the path {place!a} is not UTF-8", hint=hint) from None
    except OSError as error:
        raise DeclarationError(f"cannot read `{path}`: {error.strerror}", hint="change its permissions") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        said = f"{path}:{line}: this is not {error.encoding}: {error.object[error.start : error.end]!r}"
        raise DeclarationError(said, hint=_ENCODING_HINT) from None
    except SyntaxError as error:  # in the first two lines
        raise DeclarationError(f"{path}: {error.msg}", hint=_ENCODING_HINT) from None


def _importable(name: str) -> Iterator[ModuleType]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise UsageError(
                f"there is no module `{name}`", hint="pass a folder, a Python file, or an importable module"
            ) from None
        raise _import_failure(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error
    yield module


def _import_failure(source: str, error: BaseException) -> DeclarationError:
    where = place(error)
    if isinstance(error, DeclarationError):
        named = error.message.startswith(where)
        return error if named else DeclarationError(f"{where}: {error.message}", hint=error.hint)
    if isinstance(error, ImportError) and (error.name or "").split(".")[0] == "cutlass":
        return _cute_dsl_failure(source, where, error)
    if isinstance(error, SyntaxError):
        text = f"\n    {error.text.strip()}" if error.text else ""
        line = f"{error.filename}:{error.lineno}" if error.filename else source  # bytes that are no text have no line
        return DeclarationError(f"{line}: {type(error).__name__}: {error.msg}{text}")
    own = _own_line(error)
    deeper = f" (raised at {where})" if own not in ("", where) else ""
    line = f"{own or where}: " if _frames(error) else ""  # Python 3.10 names no line of a null byte
    message = f"`{source}` raises on import: {line}{type(error).__name__}: {error}{deeper}"
    return DeclarationError(message, hint=_relative_hint(source, error) or _missing_hint(error))


def _relative_hint(source: str, error: BaseException) -> str | None:
    """A file that is read alone belongs to no package, so it cannot import the files beside it."""
    if not isinstance(error, ImportError) or "no known parent package" not in str(error):
        return None
    folder = Path(source).parent
    return f"it imports files beside it: pass their folder, `--source {folder}`, and choose kernels with `--kernel`"


def _missing_hint(error: BaseException) -> str | None:
    """Where Python looks for a module, or which package of the same name it has found instead."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    package = error.name.partition(".")[0]
    found = next(iter(getattr(sys.modules.get(package), "__path__", ())), None)
    if found is None:
        return f"install what has `{package}`, or put the folder that it is in on PYTHONPATH"
    return (
        f"Python found `{package}` in {found}; if another is meant, put the folder that it is in on PYTHONPATH, "
        f"and build from a folder that has no `{package}` of its own"
    )


def _own_line(error: BaseException) -> str:
    """The innermost line that is in no library: a library's line is not the author's to fix."""
    frames = [frame for frame in _frames(error) if not _LIBRARY.search(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _cute_dsl_failure(source: str, where: str, error: ImportError) -> DeclarationError:
    """CuTe DSL is not installed, or it is installed in a version that lacks what a file imports."""
    if isinstance(error, ModuleNotFoundError) and error.name == "cutlass":
        return DeclarationError(f"`{source}` needs CuTe DSL, which is not installed", hint=install_cute_dsl())
    try:
        seen = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        seen = "of an unknown version"
    return DeclarationError(
        f"`{source}` imports what CuTe DSL {seen} does not have: {where}: {type(error).__name__}: {error}",
        hint="install a version of nvidia-cutlass-dsl that has it, or change the import",
    )


def place(error: BaseException) -> str:
    """The innermost line of the traceback that is neither in Python's import machinery nor in this package."""
    frames = _frames(error)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    ours = str(Path(__file__).parents[1])
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and not frame.filename.startswith((ours, "<"))
    ]
