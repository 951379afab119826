"""What a bundle says of itself: ``manifest.json`` and ``kernels.json``, read and checked.

May import: the root. Neither TVM-FFI nor any code of the bundle is needed. The builder writes what is read here.
"""
