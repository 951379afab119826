"""What the kernels compute, for ``check``."""
