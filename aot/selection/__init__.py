"""What a call must satisfy to run a variant, and the decision tree over it, written as C tables.

May import: ``declare`` and the root. The C code that walks the tables is ``runtime/src``; linking them is ``link/``.
"""
