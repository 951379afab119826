"""An exercise that runs a library's own tests without a GPU, so that every kernel which they compile is captured.

``served_tests.py --capture`` passes it to ``python -m aot capture``. The tests get tensors without memory. torch takes these
for tensors of the CPU, since a torch without CUDA can neither index fake tensors of a GPU nor compute their gradients; the
library and CuTe DSL take them for tensors of a GPU. Comparisons of results hold, whatever the results are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import cutlass.cute.runtime as cute_runtime
import pytest
import torch
from _selected_tests import TESTS
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm"})
_from_dlpack = cute_runtime.from_dlpack


class OnCpu(TorchFunctionMode):
    """Moves what is asked of a GPU to the CPU, and answers questions about values."""

    active = True

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in ANSWERS:
            return ANSWERS[name](args[0])
        args = tuple(CPU if is_gpu(item) else item for item in args)
        kwargs = {key: CPU if is_gpu(item) else item for key, item in kwargs.items()}
        if name in PRODUCTS and "out_dtype" in kwargs:  # fake tensors do not know it
            dtype = kwargs.pop("out_dtype")
            return function(*args, **kwargs).to(dtype)
        return function(*args, **kwargs)


def zeros(tensor: Any) -> Any:
    """A list as ``tolist`` gives it."""
    shape = list(tensor.shape)
    value: Any = 0
    for extent in reversed(shape):
        value = [value] * extent
    return value


ANSWERS = {
    "item": lambda tensor: 0.0 if tensor.dtype.is_floating_point else 0,
    "tolist": zeros,
    "__bool__": lambda tensor: True,
    "__float__": lambda tensor: 0.0,
    "__int__": lambda tensor: 0,
    "__index__": lambda tensor: 0,
    "equal": lambda tensor: True,
    "allclose": lambda tensor: True,
    "cuda": lambda tensor: tensor,
}


def is_gpu(value: Any) -> bool:
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and value.partition(":")[0] == "cuda"


def from_dlpack(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """CuTe DSL is given a fake tensor of a GPU with the same layout."""
    if isinstance(tensor, torch.Tensor):
        with as_torch_is():
            tensor = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    return _from_dlpack(tensor, *args, **kwargs)


@contextmanager
def as_torch_is() -> Iterator[None]:
    OnCpu.active = False
    try:
        yield
    finally:
        OnCpu.active = True


@pytest.hookimpl(hookwrapper=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Iterator[None]:
    # FlashAttention-4's tests end early if they know that tensors have no values.
    vars(pyfuncitem.module).update(
        {"is_fake_mode": lambda: False} if hasattr(pyfuncitem.module, "is_fake_mode") else {}
    )
    with torch.enable_grad(), OnCpu():
        yield


def play_gpu() -> None:
    """Answer what tests ask of a GPU beyond what a capture answers already."""
    cute_runtime.from_dlpack = from_dlpack
    torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]
    torch.testing.assert_close = lambda *args, **kwargs: None
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    torch.cuda.mem_get_info = lambda *args: (130 << 30, 140 << 30)
    for name in ("empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"):
        setattr(torch.cuda, name, lambda *args: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        setattr(torch.cuda, name, lambda *args: 0)


play_gpu()
OPTIONS = [
    "-q",
    "-s",
    "--assert=plain",
    "--tb=native",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore",
    "-p",
    "_selected_tests",
]
pytest.main([*OPTIONS, *json.loads(os.environ[TESTS])], plugins=[sys.modules[__name__]])
