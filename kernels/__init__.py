"""The kernels that ship with the project: one operation per file, each declared at its end."""
