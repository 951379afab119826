"""Kernels that read a whole row before they write it: norms, softmax, reductions, quantization."""
