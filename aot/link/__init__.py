"""Linking the libraries of a bundle for any host: zig, NVIDIA's static libraries, shared and static results.

May import: ``compile`` (the launchers), ``selection`` (the tables), ``bundle`` (names), ``binary`` and the root.
"""
