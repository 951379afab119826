"""Importing this first keeps torch out of the process: from then on ``import torch`` fails, as if it were missing.

``with_torch`` says why, and starts the process where this does nothing.
"""

import os
import sys

RESULTS = "AOT_TESTS_WITH_TORCH"  # set in the process that has torch: the file that takes its results
HAS_TORCH = RESULTS in os.environ

if not HAS_TORCH:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # a torch that is there already stays
