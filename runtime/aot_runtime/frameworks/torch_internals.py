"""What is used of torch that it does not document: all of it stands here.

Torch documents no way to ask whether a dispatch mode or a forward derivative is active around a call, and an eager call that
goes straight to a kernel must know. If a torch has renamed one of these, no call does: all go through torch's dispatcher.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["IS_KNOWN", "IS_QUIET", "dispatch_modes"]

dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", None)
IS_KNOWN = dispatch_modes is not None and hasattr(forward_ad, "_current_level")
# In generated functions, whose `_forward` is torch.autograd.forward_ad.
IS_QUIET = "_forward._current_level < 0 and not _dispatch_modes()"
