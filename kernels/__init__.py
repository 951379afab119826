"""The kernels that ship with the project: a folder per family, one operation per file, each declared at its end."""

# What `python -m aot build` builds by default. `--family` builds the others, `--family all` builds everything.
CORE_FAMILIES = ("elementwise", "rows", "gemm")
