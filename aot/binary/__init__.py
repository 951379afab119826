"""Reading finished binaries: ELF libraries and objects, archives, cubins, machine code. Nothing here executes them.

May import: ``errors`` and ``aot_runtime``. What a bundle must contain is decided in ``bundle/``.
"""
