"""What is used of torch that it does not document: all of it stands here.

Torch documents no way to ask whether a dispatch mode, a transform or a forward derivative is active around a call, to call an
operator below autograd, to see which devices an operator has kernels for, or to take back what was registered. A torch
that renames one of these fails when this module is imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = [
    "IS_NOT_FORWARD",
    "below_autograd",
    "below_in_place",
    "dispatch_modes",
    "has_kernel",
    "is_forward",
    "is_transformed",
    "take_back",
]

dispatch_modes = torch._C._len_torch_dispatch_stack
is_transformed = torch._C._are_functorch_transforms_active
below_autograd = torch._C._AutoDispatchBelowAutograd
below_in_place = torch._C._AutoDispatchBelowADInplaceOrView
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# In generated functions, whose `_forward` is torch.autograd.forward_ad.
IS_NOT_FORWARD = "_forward._current_level < 0"


def is_forward() -> bool:
    """Whether derivatives are computed forward."""
    return bool(forward_ad._current_level >= 0)


def take_back(library: Any) -> None:
    """Remove from torch what a library has registered."""
    library._destroy()
