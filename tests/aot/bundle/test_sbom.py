"""The SBOM of a bundle: what is linked for each host, in bytes that depend on nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aot_runtime.description.records import HostRecord

from aot.bundle.manifest import Manifest
from aot.bundle.sbom import linked_files, sbom_of_host, sbom_text

TOOLCHAIN = {
    "apache-tvm-ffi": "0.1.15",
    "cuda": "12",
    "cute-aot": "0.1.0",
    "nvidia-cuda-runtime-cu12": "12.9.79",
    "nvidia-cutlass-dsl": "4.8.1",
    "nvidia-cutlass-dsl-libs-cu12": "4.8.1",
    "ziglang": "0.17.0",
}
STATIC = HostRecord(entry="lib/x/libb.so", support="lib/x/libb_cuda.so", glibc="2.28", cudart="static")
SHARED = HostRecord(entry="lib/a/libb.so", support="lib/a/libb_cuda.so", glibc="2.28", cudart="libcudart.so.12")
HOSTS = {"x86_64-linux-gnu": STATIC, "aarch64-linux-gnu": SHARED}
CUDART = "pkg:pypi/nvidia-cuda-runtime-cu12@12.9.79"


def test_a_bundle_as_built_carries_it(small_bundle_path: Path) -> None:
    manifest = Manifest.read(small_bundle_path)
    text = (small_bundle_path / "sbom.cdx.json").read_text()
    assert "sbom.cdx.json" in manifest.files
    assert text == sbom_text("small", manifest.toolchain, manifest.hosts, linked_files(manifest.provenance))
    (host,) = (item for item in json.loads(text)["components"] if item["bom-ref"].startswith("small/"))
    files = {item["name"]: item["hashes"][0]["content"] for item in host["components"]}
    linked = manifest.provenance[0]["source"]["linked"]
    assert files == {name.partition("/")[2]: digest for name, digest in linked.items()}
    assert "libcudart_static.a" in files
    assert CUDART.partition("@")[0] in text, "the CUDA runtime is linked into this bundle"


def read() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(sbom_text("b", TOOLCHAIN, HOSTS))
    return data


def dependencies(data: dict[str, Any]) -> dict[str, list[str]]:
    return {entry["ref"]: entry.get("dependsOn", []) for entry in data["dependencies"]}


def test_every_host_depends_on_what_is_linked_for_it() -> None:
    depends = dependencies(read())
    assert depends["b"] == ["b/aarch64-linux-gnu", "b/x86_64-linux-gnu"]
    assert CUDART in depends["b/x86_64-linux-gnu"]
    assert CUDART not in depends["b/aarch64-linux-gnu"], "that host uses the CUDA runtime of the machine"
    assert {"pkg:pypi/ziglang@0.17.0", "pkg:pypi/cute-aot@0.1.0"} < set(depends["b/aarch64-linux-gnu"])


def test_every_reference_is_defined_once() -> None:
    data = read()
    defined = [data["metadata"]["component"]["bom-ref"], *(item["bom-ref"] for item in data["components"])]
    assert len(defined) == len(set(defined))
    depends = dependencies(data)
    assert depends.keys() == set(defined)
    assert {ref for refs in depends.values() for ref in refs} < set(defined)


def test_tools_are_named_with_their_versions() -> None:
    tools = {tool["name"]: tool["version"] for tool in read()["metadata"]["tools"]["components"]}
    assert tools == TOOLCHAIN


def test_the_same_content_is_the_same_bytes_and_another_has_another_number() -> None:
    again = sbom_text("b", dict(reversed(TOOLCHAIN.items())), dict(reversed(HOSTS.items())))
    assert again == sbom_text("b", TOOLCHAIN, HOSTS)
    other = json.loads(sbom_text("b", {**TOOLCHAIN, "ziglang": "0.17.1"}, HOSTS))
    assert other["serialNumber"] != read()["serialNumber"]


def test_the_part_of_one_host_can_be_taken_out() -> None:
    own = {"type": "library", "bom-ref": "pkg:pypi/demo@1.0", "name": "demo", "version": "1.0"}
    data = json.loads(sbom_of_host(sbom_text("b", TOOLCHAIN, HOSTS), "aarch64-linux-gnu", own))
    assert data["metadata"]["component"] == own
    assert data["metadata"]["tools"] == read()["metadata"]["tools"]
    names = {item["name"] for item in data["components"]}
    assert names == {"cute-aot", "nvidia-cutlass-dsl-libs-cu12", "ziglang"}
    assert dependencies(data).keys() == {"pkg:pypi/demo@1.0", *(item["bom-ref"] for item in data["components"])}


def test_files_go_with_the_host_that_they_were_linked_for() -> None:
    builds = [
        {"source": {"linked": {"x86_64-linux-gnu/libcudart_static.a": digest, "aarch64-linux-gnu/lib.a": "cc"}}}
        for digest in ("bb", "aa")
    ]
    text = sbom_text("b", TOOLCHAIN, HOSTS, linked_files([*builds, {"source": {}}]))
    own = {"type": "library", "bom-ref": "pkg:pypi/demo@1.0", "name": "demo"}
    component = json.loads(sbom_of_host(text, "x86_64-linux-gnu", own))["metadata"]["component"]
    assert [(item["name"], item["hashes"][0]["content"]) for item in component["components"]] == [
        ("libcudart_static.a", "aa"), ("libcudart_static.a", "bb")
    ]  # fmt: skip
