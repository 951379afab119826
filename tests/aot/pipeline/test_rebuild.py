"""A bundle is proven by building it again; what differs is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import SAMPLES

from aot.pipeline.rebuild import rebuild
from aot.pipeline.settings import WORKER_BYTES, Settings, fitting

FILL = SAMPLES / "fill.py"


def test_a_bundle_made_again_has_the_same_bytes_and_another_source_has_not(
    small_bundle_path: Path, cache: Path, tmp_path: Path
) -> None:
    assert rebuild(small_bundle_path, Settings(str(FILL), (), cache=cache, jobs=2), tmp_path) == []
    changed = tmp_path / "source" / "fill.py"
    changed.parent.mkdir()
    changed.write_text(FILL.read_text().replace("Float32(7.0)", "Float32(7.5)"))
    problems = rebuild(small_bundle_path, Settings(str(changed), (), cache=cache, jobs=2), tmp_path)
    assert any(
        problem.endswith("sm_80/fill_stream_zero.so is not reproducible: rebuilt bytes differ") for problem in problems
    )
    assert not any("fill_epilogue.so" in problem for problem in problems)
    assert list(tmp_path.iterdir()) == [changed.parent]


@pytest.mark.parametrize(("memory", "jobs", "workers"), [(None, 8, 8), (4 << 30, 8, 5), (1, 8, 1), (64 << 30, 2, 2)])
def test_there_are_never_more_workers_than_fit_into_the_memory_allowed(
    memory: int | None, jobs: int, workers: int
) -> None:
    assert fitting(jobs, memory, WORKER_BYTES) == workers
