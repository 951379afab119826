"""No call of the benchmarks of decoding finds in the L2 cache what an earlier call has read."""

from __future__ import annotations

import importlib
import sys

import pytest
from places import PROJECT

CACHE = 50e6  # bytes, of the L2 cache of an H200


@pytest.mark.parametrize("name", ["attention_decode", "mla_decode"])
def test_what_all_calls_read_exceeds_the_cache_many_times_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT / "benchmarks"))
    for module in ("_common", "attention_decode", "mla_decode"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    module = importlib.import_module(name)
    for problem in module.PROBLEMS:
        assert module.calls_of(problem.bytes) * problem.bytes > 30 * CACHE, problem.name
