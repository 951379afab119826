"""Compiled and linked code from earlier builds, found by a digest of everything that shaped it.

May import: ``compile`` (messages), ``link`` and the root. ``docs/concepts/cache.md`` describes it from the outside.
"""
