"""What each kernel must compute: a reference, inputs to check it with, and the cost of a call.

There is one file per kernel, of the same name, in the folder of its family. What contracts share is in files whose names start
with an underscore: here, or in the family's folder. Contracts need torch and no CuTe DSL, because kernels are checked and
measured on machines that have only the bundle.
"""
