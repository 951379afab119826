"""The kernels that ship with the project: a folder per family, one operation per file, each declared at its end."""
