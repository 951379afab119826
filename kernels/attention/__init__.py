"""Attention over caches of keys and values.

Build it with ``--family attention`` or ``--family all``. It has run on an H200, for its speed; its results have not been
compared with their references on a GPU yet.
"""
