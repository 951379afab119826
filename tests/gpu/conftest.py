"""What the GPU tests share. They run where only torch and a bundle are: ``--confcutdir tests/gpu`` leaves the rest out."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bundle", default="dist/kernels", help="bundle that GPU tests run")


@pytest.fixture(scope="session")
def torch() -> Any:
    """Torch on a machine with a GPU. Test files do not import it themselves: others that collect them have none."""
    torch = pytest.importorskip("torch", reason="GPU tests need torch")
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU here")
    return torch
