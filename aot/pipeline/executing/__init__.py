"""Compiling what is planned: out of the cache, in processes of this machine, or on a cluster.

May import: no other room.
"""
