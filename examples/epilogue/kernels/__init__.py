"""A product with an epilogue of its own. Build it from the folder of the repository: the Hopper core is in ``kernels``."""
