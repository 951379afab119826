"""Cluster shapes read off the launches are those that newer versions write down themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aot.compile.dsl import installed, v4_7, v4_8

pytestmark = pytest.mark.compiler


def clusters_seen(note: Callable[..., Any], function: str) -> list[tuple[int, int, int]]:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_tensor

    from tests.aot.compile.dsl import launches

    seen: dict[str, tuple[int, int, int]] = {}
    with note(seen):
        cute.compile(
            getattr(launches, function),
            make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4),
            options="--enable-tvm-ffi --gpu-arch sm_90a",
        )
    assert all("kernel_cutlass_one" in name for name in seen)
    return list(seen.values())


CASES = [("in_clusters", [(4, 2, 1)]), ("without_clusters", []), ("both", [(2, 1, 1)])]


@pytest.mark.parametrize(("function", "clusters"), CASES)
def test_launches_tell_the_cluster_shape(function: str, clusters: list[tuple[int, int, int]]) -> None:
    assert clusters_seen(v4_7.note_clusters, function) == clusters


@pytest.mark.skipif(installed() is not v4_8, reason="launch facts came with CuTe DSL 4.8")
@pytest.mark.parametrize(("function", "clusters"), CASES)
def test_launch_facts_tell_the_same(function: str, clusters: list[tuple[int, int, int]]) -> None:
    assert clusters_seen(v4_8.note_clusters, function) == clusters
