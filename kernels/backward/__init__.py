"""Kernels that compute gradients of kernels in other families. They have not run on a GPU yet.

Build them with ``--family all``. Each is named by the kernel that it belongs to, in ``aot.kernel(backward=...)``.
"""
