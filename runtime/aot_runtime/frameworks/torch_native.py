"""Operators that a bundle's ``lib<name>_torch.so`` registers from C, as Python sees them.

That library registers schemas and CUDA kernels. :func:`aot_runtime.torch.register` adds what C cannot: fakes for
tracing, and gradients.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch

from ..core.opening import through_descriptor
from ..errors import AotError, BundleError

__all__ = ["check_opened", "is_defined", "load_library"]


def load_library(bundle: Any) -> Path:
    """Open the bundle's library for torch, which registers its operators without Python; returns its path.

    This compares the digest first, and opens the very file that it compared. The library then opens the bundle by the
    manifest that ``load`` has read: if ``load`` was given a key, the operators call nothing but what was signed.
    ``torch.ops.load_library`` of the path trusts the directory instead.
    """
    path = _library(bundle)
    expected = bundle.manifest.files.get(path.relative_to(bundle.path).as_posix())
    if expected is None:
        raise BundleError(
            f"`{bundle.path}` has no library for torch",
            hint="rebuild it; a bundle without a kernel that torch can call has no such library",
        )
    library = through_descriptor(str(path), expected, lambda name: _open(name, path))
    torch.ops.loaded_libraries.add(str(path))
    if (reason := _said(library, f"aot_{bundle.name}_torch_error")) is not None:
        raise AotError(f"`{path}`: {reason}")
    opened = _said(library, f"aot_{bundle.name}_torch_open", os.fsencode(bundle.path), bundle.manifest.sha256.encode())
    if opened is not None:
        raise BundleError(opened)
    return path


def check_opened(bundle: Any) -> None:
    """If the bundle's library for torch is open, it must be the file that the manifest names, and call what it names.

    Opening it by its path, as ``torch.ops.load_library`` does, checks nothing.
    """
    path = _library(bundle)
    if any(_is_same(owner, path) for owner in _opened(path.name)):
        load_library(bundle)


def _said(library: ctypes.CDLL, function: str, *texts: bytes) -> str | None:
    """What a function of the library for torch finds wrong."""
    try:
        call = library[function]
    except AttributeError:
        raise BundleError(f"the library for torch has no function `{function}`", hint="rebuild the bundle") from None
    call.restype = ctypes.c_char_p
    said: bytes | None = call(*texts)
    return None if said is None else os.fsdecode(said)


def _open(name: str, path: Path) -> ctypes.CDLL:
    """As ``torch.ops.load_library`` would, which looks the path up again."""
    try:
        return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BundleError(f"cannot open `{path}`: {str(error).replace(name, str(path))}") from None


def is_defined(namespace: str, overload: str, bundle: Any) -> bool:
    """Whether the bundle's library for torch has defined an operator. An operator of somebody else is refused."""
    name, _, form = overload.partition(".")
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if not hasattr(packet, form or "default"):
        return False
    qualified = f"{namespace}::{overload}"
    owners = _opened(f"lib{namespace}_torch.so")
    if not any(_is_same(owner, _library(bundle)) for owner in owners):
        owner = f"`{owners[0]}` registered, not" if owners else "was not registered by"
        raise AotError(
            f"torch has an operator {qualified} already, which {owner} `{bundle.path}`", hint=_other_name(namespace)
        )
    return True


def _library(bundle: Any) -> Path:
    return Path(bundle.path) / f"lib/{os.uname().machine}-linux-gnu/lib{bundle.name}_torch.so"


def _is_same(left: Path, right: Path) -> bool:
    return left.exists() and right.exists() and left.samefile(right)


def _other_name(namespace: str) -> str:
    return f'pass another name: register(bundle, name="{namespace}_2")'


def _opened(name: str) -> list[Path]:
    """The libraries of that file name that the process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.endswith(f"/{name}\n")}
    return [Path(path) for path in sorted(paths)]
