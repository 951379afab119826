"""Random inputs for checking kernels: the ``make`` argument of a contract's ``inputs``. Needs torch."""

from __future__ import annotations

from typing import Any

from ..errors import UsageError
from ..kinds import DTYPES, dtype_of

__all__ = ["InputMaker", "dtype_name", "torch_dtype"]


def torch_dtype(dtype: str) -> Any:
    """torch's dtype for any of its names."""
    import torch

    found = dtype_of(dtype)
    if found is None:
        raise UsageError(f"unknown dtype: {dtype!r}", hint=f"known: {', '.join(DTYPES)}")
    return getattr(torch, found.torch)


def dtype_name(dtype: Any) -> str:
    """Our name for one of torch's dtypes."""
    found = dtype_of(str(dtype))
    return found.name if found is not None else str(dtype).removeprefix("torch.")


class InputMaker:
    """Makes tensors of normally distributed random numbers on a device."""

    def __init__(self, device: Any = "cuda", seed: int = 0) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def tensor(self, shape: tuple[int, ...], dtype: str, *, stride: int | None = None, offset: int = 0) -> Any:
        """A new tensor. ``stride`` is the distance of its rows, ``offset`` shifts its start; both in elements."""
        *rows, columns = shape
        width = columns if stride is None else stride
        count = width
        for extent in rows:
            count *= extent
        flat = self.torch.randn(count + offset, generator=self.generator, device=self.device, dtype=self.torch.float32)
        laid_out = flat.to(torch_dtype(dtype))[offset:].view(*rows, width)
        return laid_out[..., :columns]
