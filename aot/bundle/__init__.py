"""A bundle on disk: its layout, details, headers and contracts; publishing it whole, and verifying it.

May import: ``binary`` and the root, so that a bundle can be verified on machines that cannot build. Making the
contents of a bundle belongs to ``pipeline/``.
"""
