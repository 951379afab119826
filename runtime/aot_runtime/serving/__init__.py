"""Serving other libraries: ``cute.compile`` answers from a bundle that ``python -m aot capture`` built.

Only the standard library is needed to import this, and CuTe DSL is never imported here. Child processes import this at
their start, so that little is imported before CuTe DSL is.

May import: ``core``, ``description`` and the root.
"""
