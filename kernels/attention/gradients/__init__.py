"""Gradients of attention: kernels by architecture and width of heads, and the sums of ``grad_q``."""
