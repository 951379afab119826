"""Names that the kernels need and that differ between versions of CuTe DSL."""

from __future__ import annotations

import inspect

from cutlass.pipeline import PipelineState

__all__ = ["SmemAllocator", "TmemAllocator", "skip_stages"]

try:
    from cutlass.memory import SmemAllocator
    from cutlass.memory.tmem import TmemAllocator
except ModuleNotFoundError:  # before 4.8
    from cutlass.utils import SmemAllocator, TmemAllocator

_ADVANCES_BY_MANY = "count" in inspect.signature(PipelineState.advance).parameters  # from 4.8 on


def skip_stages(state, count):
    """The state of a pipeline after ``count`` more stages."""
    if _ADVANCES_BY_MANY:
        state.advance(count)
        return state
    index = state.index + count
    phase = state.phase ^ ((index // state.stages) % 2)
    return PipelineState(state.stages, state.count + count, index % state.stages, phase)
