"""Where variants are compiled: in processes of this machine, or on a cluster.

``jobs`` is the interface and what is said through it, ``local`` the processes here, ``remote`` what any
cluster needs: an order that another machine can carry out, and an artifact whose digest is checked on its
way back. ``dask`` is the one cluster so far; another engine needs a module like it and a line in ``choose``.
"""
