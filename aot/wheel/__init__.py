"""Wheels and source distributions: from a bundle, or from a project with a ``pyproject.toml``.

May import: ``pipeline``, ``bundle``, ``compile`` (options) and the root. It does not print.
"""
