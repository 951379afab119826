"""Running the kernels of a bundle on a GPU with torch: checking them against references, and timing them.

May import: ``bundle``, ``declare`` and the root. Nothing here needs CuTe DSL.
"""
