"""A bundle against a machine: what would run, what would not, and what to fix first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord
from aot_runtime.description.records import HostRecord

from aot.bundle.manifest import Manifest
from aot.gpu.diagnosis import bundle_problems, device_report, gpus_for
from aot.gpu.machine import Device, Driver, Machine

H200, V100 = Device(0, "H200", (9, 0)), Device(0, "V100", (7, 0))
HERE = Machine("Linux", "x86_64", (2, 39), "3.12.3", "0.1.15.post1", Driver(13000, "580.65.06", (H200,)))


def kernel(name: str, *archs: str) -> KernelRecord:
    return KernelRecord(name, "", (), (), (name,), tuple(map(Arch.parse, archs)), 1)


def manifest(**changes: object) -> Manifest:
    kernels = [kernel("add", "sm_80", "sm_90a"), kernel("gemm", "sm_80", "sm_90")]
    requires = {"driver": {"sm_80": "525.60.13", "sm_90": "525.60.13", "sm_90a": "570.26"}, "tvm_ffi": "0.1.0"}
    host = HostRecord("entry", "support", "2.28", "static")
    made = Manifest("b", True, {one.name: one for one in kernels}, {"x86_64-linux-gnu": host}, requires=requires)
    return made.replace(**changes)


def test_each_kernel_runs_as_its_best_architecture() -> None:
    report = device_report(manifest(), H200, 13000)
    assert report.kernels == {"add": "sm_90a", "gemm": "sm_90"}
    assert report.text == "2 of 2 kernels would run: 1 as sm_90a, 1 as sm_90"
    assert list(bundle_problems(manifest(), HERE)) == []


def test_code_that_the_driver_is_too_old_for_does_not_run() -> None:
    report = device_report(manifest(), H200, 12000)
    assert report.kernels == {"gemm": "sm_90"}
    assert report.missing == {"add": "sm_90a needs driver 570.26 or newer"}
    (problem,) = bundle_problems(manifest(), replace(HERE, driver=Driver(12000, "525.60.13", (H200,))))
    assert problem.what.startswith("add would not run on GPU 0 (H200, 9.0): sm_90a needs driver")
    assert "update NVIDIA's driver" in problem.hint


def test_the_gpus_that_run_all_of_it_are_known_by_name() -> None:
    names = gpus_for(manifest())
    assert {"A100", "L40S", "H100", "H200", "RTX 4090"} <= set(names)
    assert not {"V100", "B200", "RTX 5090", "Orin"} & set(names)


@pytest.mark.parametrize(
    ("machine", "what", "hint"),
    [
        (replace(HERE, cpu="aarch64"), "the bundle has no code for aarch64; it has x86_64-linux-gnu", "--host aarch64"),
        (replace(HERE, glibc=(2, 17)), "the bundle needs glibc 2.28, here is 2.17", "--glibc 2.17"),
        (replace(HERE, glibc=None), "this machine's C library is not glibc", "musl"),
        (replace(HERE, tvm_ffi=None), "apache-tvm-ffi is not installed", "pip install apache-tvm-ffi"),
        (replace(HERE, tvm_ffi="0.0.9"), "the bundle needs apache-tvm-ffi 0.1.0, here is 0.0.9", "'apache-tvm-ffi>=0.1.0'"),
        (replace(HERE, driver=Driver(problem="no driver")), "no driver", "--gpus all"),
        (replace(HERE, driver=Driver(13000, "", (), "the driver finds no GPU")), "the driver finds no GPU", "nvidia-smi"),
        (replace(HERE, driver=Driver(13000, "", (V100,))), "gemm would not run on GPU 0 (V100, 7.0)", "8.0 or newer"),
    ],
)  # fmt: skip
def test_what_is_in_the_way_is_said_with_the_next_step(machine: Machine, what: str, hint: str) -> None:
    found = list(bundle_problems(manifest(), machine))
    assert any(what in problem.what and hint in problem.hint for problem in found), found


def test_a_gpu_without_code_is_answered_with_what_to_build() -> None:
    blackwell = Device(0, "B200", (10, 0))
    found = bundle_problems(manifest(), replace(HERE, driver=Driver(13000, "", (blackwell,))))
    (problem,) = [problem for problem in found if "gemm" in problem.what]
    assert "it was built for sm_80, sm_90" in problem.what
    assert "`python -m aot build --add --arch 10.0 ...`" in problem.hint


def test_the_most_basic_problem_comes_first() -> None:
    machine = replace(HERE, cpu="riscv64", tvm_ffi=None, driver=Driver(problem="no driver"))
    assert [problem.what.split(";")[0] for problem in bundle_problems(manifest(), machine)] == [
        "the bundle has no code for riscv64",
        "apache-tvm-ffi is not installed",
        "no driver",
    ]
