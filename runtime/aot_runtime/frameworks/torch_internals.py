"""What is used of torch that it does not document: all of it stands here.

Torch documents no way to ask which modes and transforms are active around a call, to call an operator below autograd, or
to see what others have registered. A torch that renames one of these fails when this module is imported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

__all__ = [
    "IS_NOT_FORWARD",
    "QUESTIONS",
    "autocast_below",
    "below_autograd",
    "below_in_place",
    "has_kernel",
    "is_forward",
    "is_registered",
    "is_transformed",
    "parse_schema",
    "schema_of",
    "take_back",
]

# By the name that generated functions give them: what must not be active if a call bypasses the dispatcher.
QUESTIONS = {
    "_is_recorded": torch._C._is_tracing,  # what torch.jit.is_tracing asks, in a third of the time
    "_dispatch_modes": torch._C._len_torch_dispatch_stack,
    "_function_modes": torch._C._len_torch_function_stack,
}
is_transformed = torch._C._are_functorch_transforms_active
below_autograd = torch._C._AutoDispatchBelowAutograd
below_in_place = torch._C._AutoDispatchBelowADInplaceOrView
has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
is_registered = torch._C._dispatch_has_kernel
parse_schema = torch._C.parse_schema
# In generated functions, whose `_forward` is torch.autograd.forward_ad.
IS_NOT_FORWARD = "_forward._current_level < 0"


def is_forward() -> bool:
    """Whether derivatives are computed forward."""
    return bool(forward_ad._current_level >= 0)


def autocast_below(key: str) -> Any:
    """A function that makes contexts in which the dispatcher passes by the autocast of a kind of device."""
    own = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    return lambda: torch._C._ExcludeDispatchKeyGuard(own)


def schema_of(operator: Any) -> str:
    return str(operator._schema)


def take_back(library: Any) -> None:
    """Remove from torch what a library has registered."""
    library._destroy()
