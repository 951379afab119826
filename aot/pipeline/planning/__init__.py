"""Deciding, before anything is compiled: what the source declares, what the cache knows, what the destination allows.

May import: ``executing``, whose workers read the author's source.
"""
