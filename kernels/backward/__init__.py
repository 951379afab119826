"""Kernels that compute gradients of kernels in other families.

Build them with ``--family all``. Each is named by the kernel that it belongs to, in ``aot.kernel(backward=...)``.
"""
