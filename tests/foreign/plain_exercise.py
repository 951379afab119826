"""Captures the kernels of plainlib: one that is compiled, and one whose host function is called."""

from plainlib import compile_scale, fill_rows

compile_scale()
print(f"{fill_rows(16, rows=1, stream=0).threads[0]} threads")
