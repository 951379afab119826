"""Building a bundle: plan what to compile, compile it here or on a cluster, assemble the bundle, publish it.

The folders ``planning``, ``executing`` and ``assembling`` do the work. They share the modules ``settings``, ``spellings``,
``plan``, ``workspace`` and ``events``. Commands run ``build``, ``capture``, ``combine``, ``outlook``, ``rebuild`` and ``recording``.

May import: every stage below (``cache``, ``link``, ``compile``, ``bundle``, ``selection``, ``declare``) and the root. Worker
processes run modules of ``compile`` and ``capture``.
What happens is reported to ``events``; drawing it on a terminal is left to ``cli/``.
"""
