"""Captures the kernel of deeplib."""

from deeplib.helpers import cached_level
from deeplib.kernel import deep

cached_level()  # as host code does that asks first
deep(None, None)
