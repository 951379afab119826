"""Kernels as Python: what the compiler would translate runs as it stands, with numbers of Python, and a warp has one lane.

``ONE_LANE`` is the beginning of a program for a process of its own. It imports no CuTe DSL, so it takes a fraction of a second.
"""

from __future__ import annotations

import subprocess
import sys

ONE_LANE = """
import importlib.machinery, random, sys, types
from unittest.mock import MagicMock

class Stub(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        return MagicMock(name=name)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cutlass", "cuda"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
import cutlass.cute
cutlass, cute = sys.modules["cutlass"], sys.modules["cutlass.cute"]
cutlass.cute = cute
cutlass.min, cutlass.max, cutlass.const_expr = min, max, lambda value: value
cutlass.Int32, cutlass.Boolean = int, bool
cutlass.range = lambda *numbers, **_: range(*numbers)
cutlass.range_constexpr = range
cute.jit = cute.kernel = lambda made: made
cutlass.Float32, cutlass.Uint32 = type("Float32", (float,), {"width": 32}), int
cute.size, cute.ceil_div = len, lambda a, b: -(-a // b)
cute.arch = types.SimpleNamespace(
    WARP_SIZE=32, lane_idx=lambda: 0, warp_redux_sync=lambda value, kind: value, vote_any_sync=bool, vote_ballot_sync=int,
    popc=int, rcp_approx=lambda value: 1 / value, make_warp_uniform=int, shuffle_sync=lambda value, lane: value,
    shuffle_sync_up=lambda value, *_, **__: 0, shuffle_sync_bfly=lambda value, **_: 0)  # nothing comes from other lanes
"""


def run_as_python(program: str) -> str:
    """What a program prints that begins with ``ONE_LANE``. It fails if an assertion of it does."""
    done = subprocess.run([sys.executable, "-c", ONE_LANE + program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
