"""Kernels as functions of torch and JAX, gradients included.

May import: ``core``, ``description`` and the root. The builder reads here which kernels a framework can have, and
imports neither framework for it.
"""
