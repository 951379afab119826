"""Reading finished binaries: what a library needs, exports and executes, and the GPU code inside it.

Nothing here runs or loads what it reads.
"""
