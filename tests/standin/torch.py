"""As much of torch as the examples use, made of the stand-in's tensors: they run without torch and without a GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from . import Standin

__all__ = ["install"]


def install(cuda: Standin, devices: int = 1) -> None:
    """Make ``import torch`` find this, for the rest of the process. TVM-FFI must not see it: import that first."""
    import tvm_ffi  # noqa: F401

    sys.modules["torch"] = module(cuda, devices)


def module(cuda: Standin, devices: int) -> ModuleType:
    """A module whose tensors lie on the devices that ``cuda`` plays. Nothing is computed."""

    def randn(*shape: int, device: str) -> Any:
        kind, _, index = device.partition(":")
        assert kind == "cuda"
        return cuda.tensor(shape, "float32", device=int(index or 0))

    def empty_like(tensor: Any) -> Any:
        return cuda.tensor(tuple(tensor.shape), str(tensor.dtype), device=tensor.device.index)

    made: Any = ModuleType("torch")
    made.randn, made.empty_like = randn, empty_like
    made.add = lambda x, y: None
    made.cuda = ModuleType("torch.cuda")
    made.cuda.device_count = lambda: devices
    made.testing = ModuleType("torch.testing")
    made.testing.assert_close = lambda actual, expected: None
    return made  # type: ignore[no-any-return]
