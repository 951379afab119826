"""Compile workers: one process per architecture, which runs the author's code and CuTe DSL.

``messages`` is what parent and worker say to each other, ``compile`` turns a variant into a launcher,
``__main__`` is the process, ``pool`` keeps several of them at work. CuTe DSL is not thread-safe, reads
the architecture once, and can take the process down with it: hence a process of its own.
"""
