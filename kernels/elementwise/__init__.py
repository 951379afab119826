"""Kernels that map tensors of one shape, element by element."""
