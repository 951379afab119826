"""Random inputs for checking kernels: the ``make`` argument of a contract's ``inputs``. Needs torch."""

from __future__ import annotations

from typing import Any

__all__ = ["InputMaker", "dtype_name", "torch_dtype"]

_TORCH_NAMES = {
    "bool": "bool", "i8": "int8", "u8": "uint8", "i16": "int16", "i32": "int32", "i64": "int64",
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip


def torch_dtype(dtype: str) -> Any:
    """torch's dtype for one of our names."""
    import torch

    return getattr(torch, _TORCH_NAMES[dtype])


def dtype_name(dtype: Any) -> str:
    """Our name for one of torch's dtypes."""
    name = str(dtype).removeprefix("torch.")
    return next((ours for ours, theirs in _TORCH_NAMES.items() if theirs == name), name)


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
