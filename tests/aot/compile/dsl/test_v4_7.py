"""Cluster shapes read off the launches are those that newer versions write down themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
from cutlass.cute.runtime import make_fake_tensor

from aot.compile.dsl import installed, v4_7, v4_8


@cute.kernel
def one(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = cutlass.Float32(1.0)


@cute.kernel
def other(out: cute.Tensor):
    out[cute.arch.thread_idx()[0]] = cutlass.Float32(2.0)


@cute.jit
def in_clusters(out: cute.Tensor):
    one(out).launch(grid=[4, 2, 1], block=[32, 1, 1], cluster=[4, 2, 1])


@cute.jit
def without_clusters(out: cute.Tensor):
    one(out).launch(grid=[4, 1, 1], block=[32, 1, 1])


@cute.jit
def both(out: cute.Tensor):
    one(out).launch(grid=[4, 1, 1], block=[32, 1, 1], cluster=[2, 1, 1])
    other(out).launch(grid=[4, 1, 1], block=[32, 1, 1])


def clusters_seen(note: Callable[..., Any], function: Any) -> list[tuple[int, int, int]]:
    seen: dict[str, tuple[int, int, int]] = {}
    with note(seen):
        cute.compile(
            function,
            make_fake_tensor(cutlass.Float32, (32,), (1,), assumed_align=4),
            options="--enable-tvm-ffi --gpu-arch sm_90a",
        )
    assert all("kernel_cutlass_one" in name for name in seen)
    return list(seen.values())


CASES = [(in_clusters, [(4, 2, 1)]), (without_clusters, []), (both, [(2, 1, 1)])]


@pytest.mark.parametrize(("function", "clusters"), CASES)
def test_launches_tell_the_cluster_shape(function: Any, clusters: list[tuple[int, int, int]]) -> None:
    assert clusters_seen(v4_7.note_clusters, function) == clusters


@pytest.mark.skipif(installed() is not v4_8, reason="launch facts came with CuTe DSL 4.8")
@pytest.mark.parametrize(("function", "clusters"), CASES)
def test_launch_facts_tell_the_same(function: Any, clusters: list[tuple[int, int, int]]) -> None:
    assert clusters_seen(v4_8.note_clusters, function) == clusters
