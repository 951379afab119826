"""How long a spec takes on a device that may not be there: a model, its fit to measured times, and tables made from it.

May import: ``bundle``, ``declare`` and the root. Needs NumPy, which the extra ``build`` installs.
"""
