"""Serving other libraries: ``cute.compile`` answers from a bundle that ``python -m aot capture`` built.

Only the standard library is needed to import this, and CuTe DSL is never imported here. Child processes import this at
their start, so that little is imported before CuTe DSL is.

A call of ``cute.compile`` meets ``hook``, which asks ``server``. ``calls`` describes the call, by the forms of what it is
given. ``captured`` finds the kernel with that description, and ``reading`` compares what tracing read beside it. Both
take forms from ``values``: ``named`` and ``held`` tell functions and classes apart there, ``libraries`` says whose they
are, and ``sources`` has their text.

May import: ``core``, ``description`` and the root.
"""
