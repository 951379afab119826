"""What these products compute, for ``check``."""
