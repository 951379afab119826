"""What is used of torch that it does not document: all of it stands here.

Torch documents no way to ask whether a dispatch mode or a forward derivative is active around a call. A torch that renames
one of these fails when this module is imported.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["IS_NOT_FORWARD", "dispatch_modes", "is_forward"]

dispatch_modes = torch._C._len_torch_dispatch_stack
# In generated functions, whose `_forward` is torch.autograd.forward_ad.
IS_NOT_FORWARD = "_forward._current_level < 0"


def is_forward() -> bool:
    """Whether derivatives are computed forward."""
    return bool(forward_ad._current_level >= 0)


is_forward()  # fails now if torch has renamed the level
