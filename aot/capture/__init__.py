"""Other libraries' calls of ``cute.compile`` as declarations: a second source of specs beside ``aot/declare``.

An exercise is the author's script that uses a library. It runs in a worker process, once per architecture, under a
device that only answers questions; every compile is seen, described, and becomes a kernel of the ordinary pipeline.

May import: ``compile`` and ``declare``, and the root of ``aot``.
"""
