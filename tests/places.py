"""Where things lie in this checkout."""

from pathlib import Path

__all__ = ["EXAMPLE", "PROJECT", "SAMPLES", "TESTS"]

TESTS = Path(__file__).resolve().parent
PROJECT = TESTS.parent
SAMPLES = TESTS / "samples"  # kernels that use every kind of declaration once
EXAMPLE = PROJECT / "examples" / "kernel_package"
