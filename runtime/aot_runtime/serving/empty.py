"""The empty kernel by which CuTe DSL asks a device how many clusters it runs at once.

``HardwareInfo.get_max_active_clusters`` compiles a kernel that does nothing, loads its code and asks the driver about it.
quack's GEMM asks so in its first call, which then waits 0.1 s for a compile. The driver takes PTX as well as compiled
code, so that the same kernel as a text needs no compile.
"""

from __future__ import annotations

from typing import Any

__all__ = ["EmptyKernel", "is_empty_kernel"]

_NAME = "HardwareInfo._host_function"
_PTX = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry empty()
{
  ret;
}
\0"""


class EmptyKernel:
    """As a compiled function shows its code: ``artifacts.CUBIN`` is what ``cuLibraryLoadData`` takes."""

    CUBIN = _PTX

    @property
    def artifacts(self) -> EmptyKernel:
        return self


def is_empty_kernel(function: Any) -> bool:
    module = str(getattr(function, "__module__", ""))
    return module.startswith("cutlass.") and getattr(function, "__qualname__", "") == _NAME
