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

from .errors import AotError, BundleError
from .opening import through_descriptor

__all__ = ["is_defined", "load_library"]


def load_library(bundle: Any) -> Path:
    """Open the bundle's library for torch, which registers its operators without Python; returns its path.

    ``torch.ops.load_library`` of that path does the same. This also compares the digest first, opens the very file that
    it compared, and raises if the operators could not be registered.
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
    why = library[f"aot_{bundle.name}_torch_error"]
    why.restype = ctypes.c_char_p
    if (reason := why()) is not None:
        raise AotError(f"`{path}`: {reason.decode()}")
    # The library may be a link to a file elsewhere, beside which the bundle is not.
    if library[f"aot_{bundle.name}_torch_directory"](os.fsencode(bundle.path)) != 0:
        raise BundleError(f"the path of the bundle is too long: `{bundle.path}`")
    return path


def _open(name: str, path: Path) -> ctypes.CDLL:
    """As ``torch.ops.load_library`` would, which looks the path up anew."""
    try:
        return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BundleError(f"cannot open `{path}`: {str(error).replace(name, str(path))}") from None


def is_defined(namespace: str, overload: str, schema: str, bundle: Any) -> bool:
    """Whether the bundle's library for torch has defined an operator. An operator of somebody else is refused."""
    qualified = f"{namespace}::{overload}"
    if not torch._C._dispatch_has_kernel(qualified):
        return False
    name, _, form = overload.partition(".")
    seen = str(getattr(getattr(getattr(torch.ops, namespace), name), form or "default")._schema)
    expected = str(torch._C.parse_schema(f"{namespace}::{schema}"))
    if seen != expected:
        raise AotError(
            f"torch has an operator `{seen}` already, this bundle's is `{expected}`", hint=_other_name(namespace)
        )
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
