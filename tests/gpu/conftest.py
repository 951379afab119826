"""Options of the GPU tests. They run where only torch and a bundle are: ``--confcutdir tests/gpu`` leaves the rest out."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--bundle", default="dist/kernels", help="bundle that GPU tests run")
