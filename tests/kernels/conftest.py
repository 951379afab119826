"""The small bundle of a family: its kernels at a few points of their grids, launched on the stand-in as on an H200."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aot_runtime
import pytest
from standin import Standin

from aot.pipeline.settings import BuildResult


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest, build_bundle: Callable[..., BuildResult]) -> Path:
    """Built from ``small_<name>.py`` beside ``test_<name>.py``, for the ``ARCHS`` of the test, or for Hopper, with its
    ``TUNING``.
    """
    tests = Path(request.module.__file__)
    declared = tests.with_name(tests.name.replace("test_", "small_", 1))
    archs, tuning = getattr(request.module, "ARCHS", ("sm_90a",)), getattr(request.module, "TUNING", ())
    result = build_bundle(declared, archs, shared_cudart=True, tuning=tuning)
    assert not result.failures
    return result.path


@pytest.fixture
def bundle(path: Path, cuda: Standin) -> aot_runtime.Bundle:
    cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
    return aot_runtime.load(path)
