"""Descriptions of bundles that earlier versions wrote, and one that a later version may write: all are read for ever.

The files beside this one are never written again. A new schema gets a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aot_runtime import Arch
from aot_runtime.description.kernel_records import Choice, Parameter
from aot_runtime.description.records import INDEX_NAMES, PROTOCOL, SCHEMA, FileRecord

from aot.bundle.description import bounded_failures
from aot.bundle.details import LaunchDetails, RequirementDetails, details_text, read_details
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.integrity import description_problems
from aot.errors import BuildError
from aot.gpu.check import record
from aot.pipeline.assembling.contributions import bundle_contribution

FORMATS = Path(__file__).parent
HOST = "x86_64-linux-gnu"
IDENTITIES = {
    "schema_2": "9058bc86a2b38d20117912d777dbc14d2f85a0bed5f98cf5703a6db9ca12d462",
    "later": "84458a6149a7f1de073140701da520a1a704fa784f5df966f8013a0350e40716",
}
EVERY = pytest.mark.parametrize("folder", sorted(IDENTITIES))


def test_every_schema_has_a_sample() -> None:
    """Bundles start with schema 2: nothing was released before it."""
    written = {path.name for path in FORMATS.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert written == {*(f"schema_{number}" for number in range(2, SCHEMA + 1)), "later"} == set(IDENTITIES)


@EVERY
def test_the_manifest_is_read(folder: str) -> None:
    manifest = Manifest.read(FORMATS / folder)
    assert (manifest.name, manifest.complete) == ("sample", False)
    assert manifest.archs == (Arch(8, 0), Arch(9, 0, "a"))
    host = manifest.hosts[HOST]
    assert (host.entry, host.support) == (f"lib/{HOST}/libsample.so", f"lib/{HOST}/libsample_cuda.so")
    assert (host.glibc, host.cudart) == ("2.28", "static")
    assert host.file == manifest.files[host.entry] != manifest.files[host.support]
    assert host.file is not None and host.file.size == 60000
    assert manifest.requires["driver"] == {"sm_80": "525.60.13", "sm_90a": "525.60.13"}
    assert (manifest.requires["tvm_ffi"], manifest.requires["tvm_ffi_abi"]) == ("0.1.0", 0)
    assert manifest.toolchain["nvidia-cutlass-dsl"] == "4.8.1"
    assert manifest.failures[0]["message"] == "a block of 2048 threads"
    assert manifest.distributions["sm_90a"] == "sample-sm-90a==1.0"


@EVERY
def test_the_kernels_are_read(folder: str) -> None:
    kernels = Manifest.read(FORMATS / folder).kernels
    assert list(kernels) == ["activation", "add"]
    add, activation = kernels["add"], kernels["activation"]
    assert add.doc == "Add two tensors.\n\nElementwise, in f32."
    assert (add.functions, add.variants, add.choices) == (("add",), 2, ())
    assert add.parameters[2] == Parameter(
        "out", "x + y", output=True, shape="x.shape", dtype="x.dtype", may_be=("x", "y")
    )
    assert activation.doc == "An activation: Größe, 内核."
    assert activation.parameters[2] == Parameter("scale", "factor", has_default=True, default=1.5)
    assert activation.parameters[3].has_default and activation.parameters[3].default is None
    assert activation.choices == (Choice("op", ("relu", "gelu"), "relu", "which function"),)
    assert activation.functions == ("activation__relu", "activation__gelu")


@EVERY
def test_the_provenance_is_read(folder: str) -> None:
    (build,) = Manifest.read(FORMATS / folder).provenance
    assert build["source"]["commit"] == "0123456789abcdef0123456789abcdef01234567"
    assert build["source"]["clean"] is True
    assert set(build["source"]["files"]) == {"add.py", "activation.py"}
    assert build["options"]["keep"] == ["ptx"]
    assert build["versions"] == {"python": "3.12.1", "build_host": "aarch64-linux"}


@EVERY
@pytest.mark.parametrize("kernel", [None, "add"])
def test_the_details_are_read(folder: str, kernel: str | None) -> None:
    variants = read_details(FORMATS / folder / "details" / "sm_90a.json", kernel)
    assert [variant.name for variant in variants][-1] == "add__f32"
    assert len(variants) == (3 if kernel is None else 1)
    assert variants[-1].launches == (LaunchDetails("kernel_add", 32, 1024, None, (128, 1, 1), None, 0),)
    assert variants[-1].requirements == (RequirementDetails("x.shape[0]", "extent", 1, 2**63 - 1, 0),)
    if kernel is None:
        assert variants[0].verified_on == ("NVIDIA H200 2026-11-15",)
        assert variants[0].launches[0].cluster == (2, 1, 1)
        assert variants[0].point == {"dtype": "f16"}


@EVERY
def test_the_identity_stays_what_libraries_carry(folder: str) -> None:
    assert Manifest.read(FORMATS / folder).identity(HOST) == IDENTITIES[folder]


def test_this_version_writes_the_very_bytes_of_its_schema() -> None:
    folder = FORMATS / f"schema_{SCHEMA}"
    manifest = Manifest.read(folder)
    # The protocol of entry libraries has a version of its own, and a bundle that is written now has the newest.
    protocol = f'"protocol": {manifest.protocol}'.encode(), f'"protocol": {PROTOCOL}'.encode()
    for name, text in manifest.replace().texts().items():
        assert text == (folder / name).read_bytes().replace(*protocol), name
    for arch in manifest.archs:
        path = folder / "details" / f"{arch}.json"
        assert details_text(arch, read_details(path)) == path.read_text()
        assert manifest.files[f"details/{arch}.json"] == FileRecord.of(path.read_bytes())


def test_a_bundle_of_a_later_version_is_not_verified_by_this_one() -> None:
    later = FORMATS / "later"
    (problem,) = description_problems(later, Manifest.read(later))
    assert problem.startswith("manifest.json has schema 3, this version knows 2; install a newer version")


@pytest.mark.parametrize("change", [bundle_contribution, lambda bundle: record(bundle, {})])
def test_a_bundle_of_a_later_version_is_not_changed_by_this_one(change: Callable[[Path], object]) -> None:
    with pytest.raises(BuildError, match="has schema 3, this version writes 2") as caught:
        change(FORMATS / "later")
    assert caught.value.hint == "install a newer version of cute-aot"


def test_digests_of_the_samples_fit() -> None:
    for folder in IDENTITIES:
        manifest = Manifest.read(FORMATS / folder)
        for name in INDEX_NAMES:
            manifest.index_content(name)


# Failures in a manifest, which stays small


def failure(kernel: str, variant: str, message: str = "failed") -> dict[str, Any]:
    return {"kernel": kernel, "arch": "sm_80", "variant": variant, "message": message}


def test_few_failures_are_listed_one_by_one() -> None:
    failures = [failure("add", f"add__{i}") for i in range(200)]
    assert list(bounded_failures(failures)) == failures


def test_many_failures_are_summed_up_by_kernel_and_architecture() -> None:
    failures = [failure(f"k{i % 3}", f"v{i}") for i in range(300)]
    assert [(f["kernel"], f["variant"], f["message"]) for f in bounded_failures(failures)] == [
        (f"k{i}", "", "100 failures, the first: failed") for i in range(3)
    ]


def test_a_long_message_is_cut() -> None:
    (short,) = bounded_failures([failure("add", "add", "x" * 10_000)])
    assert len(short["message"]) < 600
