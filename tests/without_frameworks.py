"""Importing this first keeps torch, JAX and CuPy out of the process: importing one fails, as if it were missing.

``with_frameworks`` says why, and starts the process in which this module does nothing.
"""

import os
import sys

FRAMEWORKS = ("torch", "jax", "cupy")
RESULTS = "AOT_TESTS_WITH_FRAMEWORKS"  # set in the process that may import them: the file that takes its results
ALLOWED = RESULTS in os.environ

if not ALLOWED:
    for _name in FRAMEWORKS:
        sys.modules.setdefault(_name, None)  # type: ignore[arg-type]  # a framework that is there already stays
