"""Captures the kernel of slylib."""

from slylib.kernel import compile_sly

compile_sly()
