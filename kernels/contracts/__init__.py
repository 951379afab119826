"""What each kernel must compute: a reference, inputs to check it with, and what one call costs.

One file per kernel, of the same name. They need torch, and no CuTe DSL: kernels are checked and measured
on machines that have only the bundle.
"""
