"""Kernels over caches of keys and values: attention of a few new tokens, and appending to a cache.

Build them with ``--family attention`` or ``--family all``.
"""
