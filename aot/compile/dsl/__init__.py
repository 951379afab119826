"""CuTe DSL by version: one interface, and one module for each minor version that is supported.

What depends on a version lies in that version's module (``v4_8``, ``v4_7``, ...) and nowhere else: private
imports, where its backends lie, how a launcher that it exports reads, where launch facts come from. The
modules import nothing of CuTe DSL before one of their functions is called, so that the parent process,
which must not import CuTe DSL, can read launchers too.

``python -m aot.compile.dsl`` prints the installed version, the module that serves it and what is missing.
"""

from .installed import SUPPORTED, check, choose, installed, missing, version, warning
from .interface import Clusters, CuteDsl, LauncherText

__all__ = [
    "SUPPORTED", "Clusters", "CuteDsl", "LauncherText", "check", "choose", "installed", "missing", "version", "warning",
]  # fmt: skip
