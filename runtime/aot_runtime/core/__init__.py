"""Loading a bundle and calling its kernels.

May import: ``description`` and the root. No framework is imported here: ``arrays`` and ``streams`` take those of any.
"""
