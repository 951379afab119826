"""Settings in the manner of cuLA: a switch that an environment variable sets when the module is imported."""

import os
from enum import Enum

USE_FAST_MATH = os.environ.get("DEEPLIB_FAST_MATH", "1") == "1"
OFFSET = 1
WEIGHTS = (1, 2)
UNREAD = 0  # nothing that runs while the kernel is traced reads it


class Mode(Enum):
    PLAIN = 1
    SCALED = 2


class Limits:
    most = 64


class Base:
    bias = 1


MODE = Mode.PLAIN
