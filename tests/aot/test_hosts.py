"""Hosts are parsed once, print as the folder they name, and know what their compiler is told."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from aot.errors import UsageError
from aot.hosts import CPUS, Host, parse_hosts


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x86_64", "x86_64-linux-gnu"),
        ("amd64", "x86_64-linux-gnu"),
        ("x86_64-linux-gnu", "x86_64-linux-gnu"),
        ("aarch64", "aarch64-linux-gnu"),
        ("arm64", "aarch64-linux-gnu"),
    ],
)
def test_spellings_of_a_cpu_name_one_host(text: str, name: str) -> None:
    assert str(Host.parse(text)) == name
    assert Host.parse(name) == Host.parse(text)


def test_the_native_host_is_this_machines() -> None:
    assert Host.native().cpu == platform.machine()
    assert parse_hosts([], (2, 28)) == (Host.native(),)


@pytest.mark.parametrize("text", ["", "riscv64", "x86", "x86_64-linux-musl"])
def test_an_unknown_host_is_answered_with_the_known_ones(text: str) -> None:
    with pytest.raises(UsageError, match=f"unknown host: '{text}'") as caught:
        parse_hosts([text], (2, 28))
    assert str(caught.value.hint).endswith("known: x86_64, aarch64, all")


def test_lists_and_all_name_each_host_once() -> None:
    both = tuple(Host(cpu) for cpu in CPUS)
    assert parse_hosts(["all"], (2, 28)) == both
    assert parse_hosts(["aarch64,x86_64", "all"], (2, 28)) == both[::-1]


def test_a_glibc_older_than_any_supported_is_refused() -> None:
    assert Host.parse("x86_64", (2, 17)).zig_target == "x86_64-linux-gnu.2.17"
    with pytest.raises(UsageError, match=r"glibc 2\.5 is too old"):
        Host.parse("x86_64", (2, 5))


@pytest.mark.parametrize("cpu", CPUS)
def test_compilers_are_told_cpu_floor_and_layout(cpu: str) -> None:
    host = Host.parse(cpu)
    assert host.zig_target == f"{cpu}-linux-gnu.2.28"
    assert host.glibc_text == "2.28"
    assert host.llvm_triple == f"{cpu}-unknown-linux-gnu"
    assert host.llvm_data_layout.startswith("e-m:e-")


def test_a_host_in_the_policy_is_a_host_of_the_builder() -> None:
    from aot.binary.policy import load_policies

    assert sorted(load_policies()) == sorted(Host(cpu).name for cpu in CPUS)


def test_a_process_counts_the_cores_that_it_may_use() -> None:
    one = min(os.sched_getaffinity(0))
    script = (
        f"import os; os.sched_setaffinity(0, [{one}]); from aot.hosts import available_cores; print(available_cores())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
