"""Kernels that tests declare: small, and between them using everything a declaration can say."""
