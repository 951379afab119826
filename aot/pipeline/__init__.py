"""Building a bundle: plan what to compile, compile it here or on a cluster, assemble the bundle, publish it.

May import: every stage below (``cache``, ``link``, ``compile``, ``bundle``, ``selection``, ``declare``) and the root. Worker
processes run modules of ``compile`` and ``capture``.
What happens is reported to ``events``; drawing it on a terminal is left to ``cli/``.
"""
