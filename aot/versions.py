"""What is installed beside us: versions, the files of Apache TVM-FFI, and the command that installs an extra of cute-aot.

cute-aot is on no package index. A command with its bare name installs what anybody uploads under that name, so the
command names the file or the folder that cute-aot was installed from.

The import of TVM-FFI imports torch if that is installed, which takes seconds. Finding a path takes no import at all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from .errors import ToolchainError

__all__ = [
    "LOWEST_TVM_FFI",
    "NEWEST_BUILDER",
    "TVM_FFI_ABI",
    "extra_requirements",
    "install_cute_dsl",
    "install_extras",
    "installed_version",
    "tvm_ffi_headers",
    "tvm_ffi_library",
    "without_torch",
]

LOWEST_TVM_FFI = "0.1.11"  # the oldest apache-tvm-ffi that runs a bundle
NEWEST_BUILDER = (3, 14)  # the newest Python that NVIDIA makes wheels of CuTe DSL for
TVM_FFI_ABI = 0  # the major version of apache-tvm-ffi, which it raises when its binary interface changes
_DISTRIBUTION = "cute-aot"
_WHEEL = "./wheels/cute_aot-{version}-py3-none-any.whl"  # where docs/guides/install.md puts it
_OWN = re.compile(rf"{_DISTRIBUTION}\[([\w,-]+)\]")
_EXTRA = re.compile(r"""(?:\s+and)?\s*\bextra\s*==\s*["']([\w-]+)["']\s*$""")


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        found = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    # A build asks two dozen times. `found.version` parses all headers and the description, which takes longer than the rest.
    headers = (found.read_text("METADATA") or "").partition("\n\n")[0]
    line = next((line for line in headers.splitlines() if line.startswith("Version:")), None)
    return found.version if line is None else line.partition(":")[2].strip()


def tvm_ffi_headers() -> Path:
    """The folder of its C headers."""
    return _part("include")


def tvm_ffi_library() -> Path:
    return _part("lib/libtvm_ffi.so")


def _part(name: str) -> Path:
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise ToolchainError("apache-tvm-ffi is not installed", hint="`pip install apache-tvm-ffi`")
    path = Path(spec.origin).parent / name
    if not path.exists():
        raise ToolchainError(
            f"apache-tvm-ffi has no `{path}`", hint="`pip install --force-reinstall --no-deps apache-tvm-ffi`"
        )
    return path


@contextmanager
def without_torch() -> Iterator[None]:
    """For an import of TVM-FFI: it then takes torch for missing. Only for processes that pass no tensors of torch to it."""
    if "torch" in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules["torch"] = None  # so that Python says that there is none
    try:
        yield
    finally:
        del modules["torch"]


def install_extras(*extras: str) -> str:
    """``pip install 'FILE[build]'``, in backticks. ``FILE`` is the wheel or the checkout that was installed."""
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # only on the path of Python, as in a kit
        return f"install cute-aot with the extras {', '.join(f'`{extra}`' for extra in extras)}"
    origin = _origin(distribution.read_text("direct_url.json") or "{}")
    *options, place = origin or (_WHEEL.format(version=distribution.version),)
    wanted = f"{place}[{','.join(extras)}]"
    return f"`{shlex.join(['pip', 'install', *options, wanted])}`"


def install_cute_dsl() -> str:
    """What to do where CuTe DSL is missing."""
    if sys.version_info[:2] <= NEWEST_BUILDER:
        return install_extras("build")
    newest, python = (".".join(map(str, version)) for version in (NEWEST_BUILDER, sys.version_info[:2]))
    missing = f"NVIDIA has no wheel of it for Python {python}"
    return f"{missing}: build with Python {newest} or older; bundles load with {python} too"


def extra_requirements(extra: str) -> list[str]:
    """What an extra requires, except cute-aot itself. Standard library alone: ``packaging`` may not be there yet."""
    found = []
    for text in importlib.metadata.requires(_DISTRIBUTION) or ():
        requirement, _, marker = text.partition(";")
        wanted = _EXTRA.search(marker)
        if wanted is None or wanted[1] != extra:
            continue
        own = _OWN.fullmatch(requirement.strip())
        rest = marker[: wanted.start()].strip()
        if own:
            found += [item for name in own[1].split(",") for item in extra_requirements(name)]
        else:
            found.append(f"{requirement.strip()}; {rest}" if rest else requirement.strip())
    return found


def _origin(direct_url: str) -> tuple[str, ...]:
    """The file or folder of PEP 610's record, as arguments of pip; nothing if it is no longer there, or was fetched."""
    record = json.loads(direct_url)
    url = urlsplit(record.get("url", ""))
    path = url2pathname(url.path)
    if url.scheme != "file" or not Path(path).exists():
        return ()
    return ("-e", path) if record.get("dir_info", {}).get("editable") else (path,)
