"""Two bundles: each difference is found, and named once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import KernelRecord, Parameter
from aot_runtime.description.records import HostRecord

from aot.bundle.comparing import difference
from aot.bundle.comparing.difference import KINDS, Change, differences
from aot.bundle.manifest import Manifest


@pytest.fixture
def altered(small_bundle_path: Path, tmp_path: Path) -> Callable[[str, Callable[[Any], None]], list[Change]]:
    """The differences of a copy in which one JSON file was changed."""

    def compare(name: str, alter: Callable[[Any], None]) -> list[Change]:
        copy = Path(shutil.copytree(small_bundle_path, tmp_path / "copy"))
        data = json.loads((copy / name).read_text())
        alter(data)
        (copy / name).write_text(json.dumps(data))
        return list(differences(small_bundle_path, copy))

    return compare


Compare = Callable[[str, Callable[[Any], None]], list[Change]]


def test_a_bundle_does_not_differ_from_itself(small_bundle_path: Path) -> None:
    assert list(differences(small_bundle_path, small_bundle_path)) == []


def test_resources_of_a_variant(altered: Compare) -> None:
    def alter(data: Any) -> None:
        launch = data["variants"][0]["launches"][0]
        launch.update(registers=99, local_memory=16, dynamic_shared_memory=None)

    found = {change.what: (change.before, change.after) for change in altered("details/sm_80.json", alter)}
    assert found["sm_80 fill_epilogue__identity: registers"][1] == "99"
    assert found["sm_80 fill_epilogue__identity: stack"] == ("0", "16")
    assert found["sm_80 fill_epilogue__identity: shared memory"][1] == "at run time"
    assert len(found) == 3


def test_a_variant_that_is_gone_and_code_that_changed(altered: Compare) -> None:
    def alter(data: Any) -> None:
        del data["variants"][0]
        data["variants"][0]["cubin_sha256"] = ["0" * 64]

    assert [(change.kind, change.what) for change in altered("details/sm_90a.json", alter)] == [
        ("variants", "sm_90a fill_epilogue__identity"),
        ("code", "sm_90a fill_epilogue__relu"),
    ]


def test_what_a_call_must_satisfy(altered: Compare) -> None:
    def alter(data: Any) -> None:
        data["variants"][0]["requirements"][0]["high"] += 1

    (change,) = altered("details/sm_80.json", alter)
    assert (change.kind, change.what) == ("selection", "sm_80 fill_epilogue__identity")
    assert change.before != change.after


def test_the_toolchain_and_the_driver(altered: Compare) -> None:
    def alter(data: Any) -> None:
        data["toolchain"]["ziglang"] = "0.99"
        data["requires"]["driver"]["sm_80"] = "999.1"

    found = [(change.kind, change.what, change.after) for change in altered("manifest.json", alter)]
    assert found == [("bundle", "lowest driver for sm_80", "999.1"), ("toolchain", "ziglang", "0.99")]


def test_kernels_signatures_and_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def manifest(host: str, glibc: str, *kernels: KernelRecord) -> Manifest:
        hosts = {host: HostRecord("entry", "support", glibc, "static")}
        return Manifest("b", True, {kernel.name: kernel for kernel in kernels}, hosts)

    def kernel(name: str, arch: str, *parameters: Parameter) -> KernelRecord:
        return KernelRecord(name, "", parameters, (), (name,), (Arch.parse(arch),), 1)

    output = Parameter("out", output=True, shape="x.shape", dtype="x.dtype", type="tensor")
    x, scale = Parameter("x", type="tensor"), Parameter("scale", has_default=True, default=2.0, type="float")
    made = {
        Path("a"): manifest("x86_64-linux-gnu", "2.28", kernel("add", "sm_80", x, output), kernel("old", "sm_80")),
        Path("b"): manifest("x86_64-linux-gnu", "2.17", kernel("add", "sm_90a", x, scale, output)),
    }
    monkeypatch.setattr(difference.Manifest, "read", lambda path: made[path])
    monkeypatch.setattr(difference, "read_details", lambda path: [])
    assert [
        (change.kind, change.what, change.before, change.after) for change in differences(Path("a"), Path("b"))
    ] == [
        ("hosts", "x86_64-linux-gnu", "glibc >= 2.28, CUDA runtime static", "glibc >= 2.17, CUDA runtime static"),
        ("kernels", "add", "sm_80", "sm_90a"),
        ("kernels", "old", "sm_80", None),
        (
            "signatures",
            "add",
            "(x: tensor, out: tensor -> x.dtype[x.shape])",
            "(x: tensor, scale: float = 2.0, out: tensor -> x.dtype[x.shape])",
        ),
    ]


def test_every_kind_is_known(altered: Compare) -> None:
    changes = altered("details/sm_80.json", lambda data: data["variants"].clear())
    assert {change.kind for change in changes} <= set(KINDS)
