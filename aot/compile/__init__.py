"""Compiling one variant in a worker process: from a declaration to a launcher in LLVM IR with its cubin.

May import: ``declare``, ``selection``, ``binary`` and the root. It is the only package that imports ``cutlass``.
Linking launchers into libraries belongs to ``link/``; deciding what to compile, to ``pipeline/``.
"""
