"""From compiled variants, and from bundles that exist, to one bundle: linked, put together, verified, published.

May import: ``executing``, for what came out of compiling.
"""
