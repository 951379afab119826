"""What a kernel's author writes: kernels, their arguments, expressions over them, and finding them in files.

May import: the modules at the root of ``aot`` and ``aot_runtime``; no compiler. What a call must satisfy is derived
in ``selection/``.
"""
