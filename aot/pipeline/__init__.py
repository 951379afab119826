"""Building a bundle: plan what to compile, compile it here or on a cluster, assemble the bundle, publish it.

Three rooms do the work: ``planning``, ``executing`` and ``assembling``. The modules beside them are what they share
(``settings``, ``spellings``, ``plan``, ``workspace``, ``events``), and what commands run: ``build``, ``capture``, ``combine``,
``outlook``, ``rebuild``, ``recording``.

May import: every stage below (``cache``, ``link``, ``compile``, ``bundle``, ``selection``, ``declare``) and the root. Worker
processes run modules of ``compile`` and ``capture``.
What happens is reported to ``events``; drawing it on a terminal is left to ``cli/``.
"""
