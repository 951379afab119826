"""Captures the kernel of plainlib."""

from plainlib import compile_scale

compile_scale()
