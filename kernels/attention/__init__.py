"""Attention of whole sequences, attention of a few new tokens against a cache, and appending to a cache.

Build them with ``--family attention`` or ``--family all``.
"""
