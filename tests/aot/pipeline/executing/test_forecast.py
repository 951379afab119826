"""The time that is left is told by what compiling took, here and in earlier builds: builds are played, no clock is read."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.pipeline.executing.compiling import _largest_first
from aot.pipeline.executing.executor import CompileJob
from aot.pipeline.executing.forecast import Code, Forecast

SM90 = Arch.parse("sm_90a")
KERNELS = {"fill": 0.4, "norm": 1.5, "gemm": 6.0, "attention": 14.0, "rope": 0.7}  # seconds of a typical code


def jobs_of(kernels: Mapping[str, int], copies: int = 1) -> list[CompileJob]:
    return [
        CompileJob(SM90, name, f"{name}__{code}_{copy}", Path("a"), Path("b"), "", str(code))
        for name, count in kernels.items()
        for code in range(count)
        for copy in range(copies)
    ]


def played(
    jobs: list[CompileJob], seconds: Mapping[Code, float], workers: int
) -> Iterator[tuple[float, CompileJob, float]]:
    """When each job ends, and how long it took: workers take codes in their order, and copies of a code take no time."""
    free, done = [0.0] * workers, dict[Code, float]()
    ends = []
    for job in jobs:
        took = 0.0 if job.code in done else seconds[job.code]
        if job.code not in done:
            done[job.code] = heapq.heappop(free) + took
            heapq.heappush(free, done[job.code])
        ends.append((done[job.code], job, took))
    yield from sorted(ends, key=lambda one: one[0])


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize("known", ["nothing", "half", "all", "all, on a machine that was twice as fast"])
def test_the_time_left_is_right_within_a_factor_of_two_after_ten_seconds(workers: int, copies: int, known: str) -> None:
    # One worker that knows nothing has not begun with the longest kernel after ten seconds.
    early = sum(KERNELS.values()) if (workers, known) == (1, "nothing") else 10.0
    for seed in range(3):
        draw = random.Random(seed)
        jobs = jobs_of({name: draw.randint(5, 40) for name in KERNELS}, copies)
        seconds = {job.code: KERNELS[job.kernel] * draw.uniform(0.6, 1.6) for job in jobs}
        share = {"nothing": 0.0, "half": 0.5}.get(known, 1.0)
        faster = 0.5 if "fast" in known else 1.0
        before = {code: seconds[code] * faster * draw.uniform(0.8, 1.25) for code in seconds if draw.random() < share}
        took = {
            job.label: before[job.code] if job.variant.endswith("_0") else 0.0 for job in jobs if job.code in before
        }
        forecast = Forecast({job.code for job in jobs}, workers, [(job.code, job.label) for job in jobs], took)
        ends = list(played(_largest_first(jobs, took), seconds, workers))
        last = ends[-1][0]
        begins = sorted(((end - took_now, job.code) for end, job, took_now in ends if took_now), reverse=True)
        for number, (now, job, took_now) in enumerate(ends):
            while begins and begins[-1][0] <= now:
                since, code = begins.pop()
                forecast.begin(code, since)
            forecast.add(job.code, took_now)
            left = last - now
            if now < early or number % 7 or left < 2 * max(seconds.values()):  # single jobs decide
                continue
            told = forecast.seconds_left(now)
            assert told is not None and left / 2 <= told <= left * 2, (seed, now, left, told)


@pytest.mark.parametrize("known", [False, True])
def test_a_time_is_told_from_the_first_code_on(known: bool) -> None:
    jobs = jobs_of(dict.fromkeys(KERNELS, 20))
    seconds = {job.code: KERNELS[job.kernel] for job in jobs}
    took = {job.label: seconds[job.code] for job in jobs} if known else {}
    forecast = Forecast({*seconds}, 2, [(job.code, job.label) for job in jobs], took)
    assert (forecast.seconds_left() is not None) == known
    told = []
    for now, job, took_now in played(_largest_first(jobs, took), seconds, 2):
        forecast.add(job.code, took_now)
        told.append(forecast.seconds_left(now))
    assert None not in told[:-1]
    assert told[-1] is None


def test_a_kernel_that_a_worker_is_long_at_takes_longer_than_that() -> None:
    fill, first, second = (SM90, "fill", "a"), (SM90, "attention", "a"), (SM90, "attention", "b")
    forecast = Forecast({fill, first, second}, 1)
    forecast.add(fill, 1.0)
    forecast.begin(first, 1.0)
    early, late = forecast.seconds_left(1.5), forecast.seconds_left(11.0)
    assert early is not None and late is not None
    assert early <= 2.0
    assert late >= 20.0
    forecast.add(first, 12.0)
    assert forecast.seconds_left(13.0) == pytest.approx(6.0)  # half of the last one, on average


def test_kernels_that_take_least_do_not_tell_how_long_the_others_take() -> None:
    forecast = Forecast({(SM90, "fill", "a"), (SM90, "attention", "a")}, 1)
    forecast.add((SM90, "fill", "a"), 0.2)
    assert forecast.whole(0.2) is None
    assert forecast.whole(5.0) is not None


def test_the_rest_of_a_build_has_linking_after_compiling() -> None:
    forecast = Forecast({(SM90, "gemm", "a"), (SM90, "gemm", "b")}, 1)
    assert forecast.whole(0.0) is None
    forecast.add((SM90, "gemm", "a"), 10.0)
    assert forecast.whole(1.0) is not None
    compiling, whole = forecast.seconds_left(10.0), forecast.whole(10.0)
    assert compiling is not None and whole is not None
    assert whole > compiling
    forecast.add((SM90, "gemm", "b"), 10.0)
    assert forecast.seconds_left(20.0) is None
    assert forecast.whole(20.0) == pytest.approx(whole - compiling, rel=0.5)


def test_copies_of_compiled_code_do_not_count() -> None:
    jobs = jobs_of({"gemm": 10}, copies=100)
    forecast = Forecast({job.code for job in jobs}, 1)
    assert forecast.expected == 10
    for code in range(10):
        own = [job for job in jobs if job.group == str(code)]
        assert [forecast.add(job.code, 10.0 if job is own[0] else 0.0) for job in own] == [True, *[False] * 99]
        left = forecast.seconds_left()
        assert left is None or left == pytest.approx(10.0 * (9 - code) - 5.0)
    assert forecast.seconds_left() is None


def test_on_a_cluster_the_speed_is_what_was_seen() -> None:
    jobs = jobs_of({"gemm": 100})
    forecast = Forecast({job.code for job in jobs}, None)
    for job in jobs[:50]:
        forecast.add(job.code, 10.0)
    assert forecast.seconds_left(elapsed=5.0) == pytest.approx(5.0)


def test_what_failed_is_not_left_and_tells_nothing() -> None:
    forecast = Forecast({(SM90, "gemm", "a"), (SM90, "gemm", "b")}, 1)
    assert forecast.add((SM90, "gemm", "a"), None)
    assert forecast.seconds_left() is None
