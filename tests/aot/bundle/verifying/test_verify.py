"""Verification names every way in which a bundle is not what its manifest says, and executes nothing of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import aot_runtime
import pytest
from aot_runtime.description.records import SCHEMA, FileRecord
from aot_runtime.errors import AotError, BundleError, DigestError, ManifestError
from forging import accept, forge
from hypothesis import given, settings
from hypothesis import strategies as st
from observing import run_python
from standin import compiler

from aot.bundle.details import read_details
from aot.bundle.manifest import Manifest
from aot.bundle.signature import Signer, is_signed, new_key
from aot.bundle.signing import sign
from aot.bundle.split import stamp_text
from aot.bundle.verifying.verify import missing_kernels, verify
from aot.bundle.writing import pretty_text
from aot.errors import BuildError
from aot.hosts import Host
from aot.pipeline.assembling.contributions import bundle_contribution
from aot.pipeline.combine import Tools, merge, prune

HOST = Host.native().name
LIB = f"lib/{HOST}"
Edit = Callable[[Callable[[dict[str, Any]], object]], None]


@pytest.fixture
def bundle(small_bundle_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))


@pytest.fixture
def edit(bundle: Path) -> Edit:
    """Change the manifest as parsed JSON, with the tables of kernels and files in their places."""
    return lambda how: forge(bundle, how)


def one(problems: list[str]) -> str:
    (problem,) = problems
    return problem


def test_a_bundle_that_shares_the_cuda_runtime_is_sound(standin_bundle_path: Path) -> None:
    host = Manifest.read(standin_bundle_path).hosts[Host.native().name]
    assert host.cudart.startswith("libcudart.so")
    assert verify(standin_bundle_path) == []


def test_a_bundle_as_built_is_sound(small_bundle_path: Path) -> None:
    assert verify(small_bundle_path) == []


def test_a_bundle_is_sound_wherever_it_is_moved(small_bundle_path: Path, tmp_path: Path) -> None:
    moved = tmp_path / "with spaces and ümlauts" / "b"
    shutil.copytree(small_bundle_path, moved)
    assert verify(moved) == []


def test_installed_symlinks_are_followed(small_bundle_path: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    for file in (path for path in small_bundle_path.rglob("*") if path.is_file()):
        target = linked / file.relative_to(small_bundle_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(file)
    assert verify(linked) == []
    (tmp_path / "whole").symlink_to(small_bundle_path)
    assert verify(tmp_path / "whole") == []


@pytest.mark.parametrize(
    "name", [f"{LIB}/libsmall.so", f"{LIB}/libsmall_cuda.so", f"{LIB}/sm_80/fill_epilogue.so", "details/sm_90a.json"]
)
class TestEveryFile:
    def test_that_is_missing_is_named(self, bundle: Path, name: str) -> None:
        (bundle / name).unlink()
        assert one(verify(bundle)) == f"{name} is missing"

    def test_that_is_truncated_is_named_with_both_sizes(self, bundle: Path, name: str) -> None:
        size = (bundle / name).stat().st_size
        os.truncate(bundle / name, size - 1)
        assert one(verify(bundle)) == f"{name} has {size - 1} bytes, the manifest says {size}"

    def test_that_is_altered_is_named_with_both_digests(self, bundle: Path, name: str) -> None:
        content = bytearray((bundle / name).read_bytes())
        before = hashlib.sha256(content).hexdigest()
        content[len(content) // 2] ^= 1
        (bundle / name).write_bytes(content)
        assert one(verify(bundle)) == (
            f"{name} has sha256 {hashlib.sha256(content).hexdigest()}, the manifest says {before}"
        )


@pytest.mark.parametrize(
    "name", ["extra", f"{LIB}/sm_80/extra.so", "details/sm_75.json", ".hidden", "manifest.json.bak"]
)
def test_a_file_too_many_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_text("")
    assert one(verify(bundle)) == f"{name} is not in the manifest"


def test_several_faults_are_all_named(bundle: Path) -> None:
    (bundle / LIB / "libsmall.so").unlink()
    (bundle / "extra").write_text("")
    assert sorted(verify(bundle)) == ["extra is not in the manifest", f"{LIB}/libsmall.so is missing"]


def test_a_library_of_another_architecture_swapped_in_is_named(bundle: Path) -> None:
    name = f"{LIB}/sm_90a/fill_epilogue.so"
    shutil.copyfile(bundle / LIB / "sm_80" / "fill_epilogue.so", bundle / name)
    accept(bundle, name)
    problems = verify(bundle)
    assert f"{name} holds code for sm_80, the manifest says sm_90a" in problems
    assert any("cubins that its details do not name" in problem for problem in problems)


def test_a_library_of_another_kernel_swapped_in_is_named(bundle: Path) -> None:
    name = f"{LIB}/sm_90a/fill_epilogue.so"
    shutil.copyfile(bundle / LIB / "sm_90a" / "fill_stream_zero.so", bundle / name)
    accept(bundle, name)
    assert any("__tvm_ffi_fill_epilogue__relu" in problem for problem in verify(bundle))


def test_an_altered_cubin_is_named_even_where_the_digest_of_the_file_was_adapted(bundle: Path) -> None:
    from aot.binary.cubin import cubins_in_library

    name = f"{LIB}/sm_90a/fill_stream_zero.so"
    content = bytearray((bundle / name).read_bytes())
    (cubin,) = cubins_in_library(bundle / name)
    at = bytes(content).index(cubin.elf)
    content[at + len(cubin.elf) // 2] ^= 1
    (bundle / name).write_bytes(content)
    accept(bundle, name)
    assert f"{name} holds 1 cubins that its details do not name, and lacks 1" in verify(bundle)


def test_a_function_that_the_entry_library_lacks_is_named(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["kernels"]["fill_epilogue"]["functions"].append("fill_epilogue__tanh"))
    assert any("__tvm_ffi_fill_epilogue__tanh" in problem for problem in verify(bundle))


def test_a_function_that_the_manifest_does_not_know_is_named(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["kernels"]["fill_epilogue"]["functions"].remove("fill_epilogue__relu"))
    assert any("__tvm_ffi_fill_epilogue__relu" in problem for problem in verify(bundle))


def test_a_kernel_without_architectures_is_named(bundle: Path, edit: Edit) -> None:
    edit(lambda manifest: manifest["kernels"]["fill_epilogue"].update(archs=[]))
    assert verify(bundle)


def test_a_function_given_twice_is_named(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["kernels"]["fill_epilogue"]["functions"].append("fill_stream_zero"))
    assert "function fill_stream_zero is there 2 times" in verify(bundle)


def edit_details(bundle: Path, arch: str, how: Callable[[dict[str, Any]], object]) -> None:
    name = f"details/{arch}.json"
    head, *rows, end = (bundle / name).read_text().splitlines()
    data = {"variants": [json.loads(row.rstrip(",")) for row in rows]}
    how(data)
    (bundle / name).write_text("\n".join([head, ",\n".join(map(json.dumps, data["variants"])), end, ""]))
    accept(bundle, name)


def test_a_symbol_that_a_kernel_library_lacks_is_named(bundle: Path) -> None:
    edit_details(bundle, "sm_80", lambda data: data["variants"][0].update(symbol="__tvm_ffi_other"))
    assert any("__tvm_ffi_other" in problem for problem in verify(bundle))


def test_a_variant_given_twice_is_named(bundle: Path) -> None:
    edit_details(bundle, "sm_80", lambda data: data["variants"].append(data["variants"][0]))
    assert any("variant fill_epilogue__identity is there 2 times" in problem for problem in verify(bundle))


def test_a_symbol_of_two_codes_is_named(bundle: Path) -> None:
    other = {"name": "other", "cubin_sha256": ["0" * 64]}
    edit_details(bundle, "sm_80", lambda data: data["variants"].append({**data["variants"][0], **other}))
    assert any("__tvm_ffi_fill_epilogue__identity is there 2 times" in problem for problem in verify(bundle))


def test_a_kernel_that_the_details_lack_is_named(bundle: Path) -> None:
    edit_details(bundle, "sm_80", lambda data: data["variants"].clear())
    assert any("describes [], the manifest says ['fill_epilogue', 'fill_stream_zero']" in p for p in verify(bundle))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"variants": 3}',
        b'{"variants": [3]}',
        b'{"variants": [{}]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_details_that_are_not_well_formed_are_named(bundle: Path, content: bytes) -> None:
    (bundle / "details/sm_80.json").write_bytes(content)
    accept(bundle, "details/sm_80.json")
    assert any(problem.startswith("details/sm_80.json: ") for problem in verify(bundle))


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", 3), ("launches", []), ("launches", {}), ("launches", [{}]), ("launches", [3]), ("cubin_sha256", None),
     ("cubin_bytes", "many"), ("verified_on", None), ("verified_on", [7])],
)  # fmt: skip
def test_details_of_a_variant_that_make_no_sense_are_named(bundle: Path, key: str, value: object) -> None:
    edit_details(bundle, "sm_80", lambda data: data["variants"][0].update({key: value}))
    with pytest.raises(BundleError, match="is not well-formed"):
        read_details(bundle / "details/sm_80.json")


def test_a_floor_of_glibc_that_no_policy_allows_is_named(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["hosts"][HOST].update(glibc="2.2"))
    assert one(verify(bundle)).startswith(f"host {HOST}: glibc 2.2 is below 2.17")


@pytest.mark.parametrize("glibc", ["", "2", "new", "2.28.1", "-2.28", "2.99999999", "٢.٢٨"])
def test_a_floor_of_glibc_that_is_no_version_is_refused(bundle: Path, edit: Edit, glibc: str) -> None:
    edit(lambda data: data["hosts"][HOST].update(glibc=glibc))
    with pytest.raises(ManifestError, match=r"`glibc` is '.*', not a version"):
        verify(bundle)


def test_an_unknown_host_is_named(bundle: Path, edit: Edit) -> None:
    def add(data: dict[str, Any]) -> None:
        data["hosts"] = dict(sorted({**data["hosts"], "riscv64-linux-gnu": data["hosts"][HOST]}.items()))

    edit(add)
    assert any(problem.startswith("host riscv64-linux-gnu: ") for problem in verify(bundle))


def test_a_directory_without_a_manifest_is_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"is not a bundle: it holds no manifest\.json"):
        verify(tmp_path)
    with pytest.raises(ManifestError, match="is not a bundle: it does not exist"):
        verify(tmp_path / "nowhere")


def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ManifestError, match=r"manifest\.json` is not a regular file"):
        verify(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/etc/passwd",
        "a/../../x",
        "a//b",
        "./a",
        "a/.",
        "..",
        ".",
        "",
        "a\\..\\b",
        "a/",
        "a\0b",
        "a\nb",
    ],
)
def test_a_manifest_that_points_outside_the_bundle_is_refused(bundle: Path, edit: Edit, name: str) -> None:
    edit(lambda data: data["files"].update({name: {"sha256": "0" * 64, "size": 1}}))
    assert "the path leaves the bundle" in one(verify(bundle))


def test_a_part_outside_the_bundle_is_refused(bundle: Path, edit: Edit) -> None:
    edit(lambda manifest: manifest.update(distributions={"../../x": "played"}))
    with pytest.raises(ManifestError, match="which is none of `archs`"):
        verify(bundle)


def test_an_entry_library_outside_the_bundle_is_refused(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data["hosts"][HOST]["entry"].update(path="../libsmall.so"))
    with pytest.raises(ManifestError, match="the path leaves the bundle"):
        verify(bundle)


@pytest.mark.parametrize(
    ("schema", "message"),
    [(1, "has schema 1, which no released version wrote"), (10**30, "a number of 31 digits"),
     (0, "invalid schema version: 0"), (-1, "invalid schema version: -1"),
     ("1", "`schema` is '1', of type str"), (True, "`schema` is True"), (None, "`schema` is None"), (1.0, "`schema` is 1.0")],
)  # fmt: skip
def test_a_schema_that_is_newer_or_none_at_all_is_refused(
    bundle: Path, edit: Edit, schema: object, message: str
) -> None:
    edit(lambda data: data.update(schema=schema))
    with pytest.raises(ManifestError, match=re.escape(message)):
        verify(bundle)


def test_a_newer_schema_says_what_to_update(bundle: Path, edit: Edit) -> None:
    edit(lambda data: data.update(schema=SCHEMA + 1))
    assert one(verify(bundle)) == (
        f"manifest.json has schema {SCHEMA + 1}, this version knows {SCHEMA}; "
        "install a newer version of cute-aot to verify it"
    )


@pytest.mark.parametrize(
    ("how", "field"),
    [
        (lambda data: data.update(added=1), "added"),
        (lambda data: data["hosts"][HOST].update(added=1), f"hosts.{HOST}.added"),
        (lambda data: data["kernels"]["fill_epilogue"].update(added=1), "kernels.fill_epilogue.added"),
    ],
)
def test_a_field_that_is_not_known_says_what_to_update(bundle: Path, edit: Edit, how: Any, field: str) -> None:
    edit(how)
    assert f"has fields that this version does not know: {field}; install a newer version" in one(verify(bundle))


@pytest.mark.parametrize("name", ["manifest.json", "kernels.json", "files.json", "provenance.json"])
def test_another_layout_of_the_same_content_is_named(bundle: Path, name: str) -> None:
    manifest = json.loads((bundle / "manifest.json").read_text())
    content = json.dumps(json.loads((bundle / name).read_text()), indent=3).encode()
    (bundle / name).write_bytes(content)
    if name != "manifest.json":
        manifest[name[:-5]] = FileRecord.of(content).data()
        (bundle / "manifest.json").write_bytes(pretty_text(manifest))
    assert one(verify(bundle)) == f"{name} is not as a build writes it: the same content would have other bytes"


def parameters(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a kernel, as ``kernels.json`` lists them."""
    found: list[dict[str, Any]] = data["kernels"]["fill_stream_zero"]["parameters"]
    return found


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "toolchain": lambda data: data["toolchain"].update(cuda="99"),
    "requirement": lambda data: data["requires"].update(tvm_ffi="0.0.9"),
    "driver": lambda data: data["requires"]["driver"].update(sm_80="1.0"),
    "completeness": lambda data: data.update(complete=False),
    "doc": lambda data: data["kernels"]["fill_epilogue"].update(doc="another"),
    "doc of a parameter": lambda data: parameters(data)[0].update(doc="another"),
    "parameter name": lambda data: parameters(data)[0].update(name="other"),
    "signature": lambda data: parameters(data).append({"name": "value", "doc": "", "output": False, "type": "float"}),
    "default": lambda data: parameters(data).append(
        {"name": "value", "doc": "", "output": False, "default": 1.8, "type": "float"}
    ),
    "default of a choice": lambda data: data["kernels"]["fill_epilogue"]["choices"][0].update(default="relu"),
    "output": lambda data: parameters(data).__setitem__(
        0, {"name": "out", "doc": "what is filled", "output": False, "type": "tensor"}
    ),
    "output shape": lambda data: parameters(data)[0].update(shape="out.shape[0]"),
    "output dtype": lambda data: parameters(data)[0].update(dtype="f16"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_manifest_that_the_entry_library_was_not_built_with_is_named(bundle: Path, edit: Edit, what: str) -> None:
    """Whatever a caller sees of a bundle is part of the digest that the entry library carries."""
    edit(FORGED[what])
    problems = verify(bundle)
    assert f"lib/{HOST}/libsmall.so was built with another manifest or other kernels.json" in problems
    with pytest.raises(DigestError, match=r"manifest\.json` is not the one that .*libsmall\.so` was built with"):
        aot_runtime.load(bundle)


def test_headers_that_do_not_follow_from_the_kernels_are_named(bundle: Path) -> None:
    (bundle / "include/small.h").write_text((bundle / "include/small.h").read_text() + "\n")
    accept(bundle, "include/small.h")
    assert one(verify(bundle)) == "include/small.h is not the header that follows from the kernels"


def test_details_of_fewer_variants_are_named(bundle: Path) -> None:
    edit_details(bundle, "sm_80", lambda data: data["variants"].pop(0))
    assert any("describe 3 variants of fill_epilogue, the manifest says 4" in problem for problem in verify(bundle))


def test_what_failed_to_build_is_listed(bundle: Path, edit: Edit) -> None:
    assert missing_kernels(bundle) == []
    failure = {"kernel": "gone", "arch": "sm_80", "variant": "gone__f16", "message": "too large"}
    edit(lambda data: data.update(complete=False, failures=[failure]))
    assert missing_kernels(bundle) == ["incomplete: gone__f16 failed to build for sm_80: too large"]


# Flipped bits


def test_no_flipped_bit_goes_unnoticed(bundle: Path) -> None:
    """Of whatever describes the bundle: what loading accepts, ``verify`` names; errors are our own."""
    random = Random(20)
    names = ["manifest.json", "kernels.json", "files.json", "provenance.json", "details/sm_80.json", "include/small.h"]
    contents = {name: (bundle / name).read_bytes() for name in names}
    for name in [*names, *40 * ["manifest.json"], *10 * ["kernels.json"], *6 * names]:
        content = bytearray(contents[name])
        at, bit = random.randrange(len(content)), random.randrange(8)
        content[at] ^= 1 << bit
        (bundle / name).write_bytes(content)
        assert is_noticed(bundle), f"bit {bit} of byte {at} of {name}"
        (bundle / name).write_bytes(contents[name])
    assert not is_noticed(bundle)


def is_noticed(bundle: Path) -> bool:
    try:
        aot_runtime.load(bundle)
        return bool(verify(bundle))
    except AotError:
        return True


def look_at_everything(manifest: Manifest) -> None:
    """Records are checked when they are looked at."""
    for table in (manifest.kernels, manifest.files, manifest.hosts):
        for name in table:
            table[name]


def read(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    look_at_everything(Manifest.read(folder))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"nonsense", b"[]", b"3", b"null", b'"text"', b"{}", b'{"schema": 1}', b"[" * 200_000,
     b'{"a":' * 100_000, b"1" * 10_000, b"\0" * 100, b'{"schema": 1, "schema": 2}', b'{"schema": 1e400}', b"NaN"],
)  # fmt: skip
def test_what_is_not_a_manifest_is_refused_as_such(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ManifestError):
        read(tmp_path, content)


@settings(max_examples=200)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_manifest_or_a_manifest_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-bytes"
    folder.mkdir(exist_ok=True)
    with pytest.raises(ManifestError):
        read(folder, content)


_json = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(["sm_90a", "../x"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in items for found in _paths(value, (*path, key)))]


@settings(max_examples=300)
@given(data=st.data())
def test_any_change_to_a_manifest_is_harmless_or_a_manifest_error(
    data: st.DataObject, small_bundle_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Put anything anywhere into a real manifest, or take anything out of it."""
    manifest = json.loads((small_bundle_path / "manifest.json").read_text())
    *parents, last = data.draw(st.sampled_from(_paths(manifest)[1:]))
    target = manifest
    for key in parents:
        target = target[key]
    if data.draw(st.booleans()):
        target[last] = data.draw(_json)
    else:
        del target[last]
    folder = tmp_path_factory.getbasetemp() / "any-change"
    folder.mkdir(exist_ok=True)
    try:
        read(folder, json.dumps(manifest).encode())
    except ManifestError as error:
        assert str(folder) in error.message


def test_nothing_of_a_bundle_is_executed(bundle: Path, cache: Path, tmp_path: Path) -> None:
    """A library that would leave a file behind when it is loaded is verified like any other."""
    from aot.link.zig import Zig

    trace = tmp_path / "trace"
    source = tmp_path / "trap.c"
    source.write_text(
        f'#include <stdio.h>\n__attribute__((constructor)) static void run(void) {{ FILE* f = fopen("{trace}", "w"); (void)f; }}\n'
        '__attribute__((visibility("default"))) int something;\n'
    )
    name = f"{LIB}/libsmall.so"
    zig = Zig.find(cache / "zig")
    zig.compile_c(Host.native(), source, tmp_path / "trap.o", [])
    zig.link(Host.native(), [str(tmp_path / "trap.o")], bundle / name, exports=["something"])
    accept(bundle, name)
    assert verify(bundle)
    assert not trace.exists()


@pytest.mark.parametrize("name", [b"x\nsmall: sound", b"\x1b[1A\x1b[2K", b"\xff"], ids=ascii)
def test_names_that_nobody_vouches_for_are_printed_in_one_line_of_plain_letters(bundle: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(bundle) + b"/" + name)).touch()
    problem = one(verify(bundle))
    assert problem.isprintable() and problem.endswith("is not in the manifest")


@pytest.mark.parametrize("name", ["extra", f"{LIB}/extra", "details/extra"])
def test_a_link_to_a_directory_is_named(bundle: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "payload.so").write_bytes(b"code")
    (bundle / name).symlink_to(tmp_path / "elsewhere")
    assert one(verify(bundle)) == f"{name} is a link to a directory; a bundle has none"


@pytest.mark.usefixtures("ends")
def test_an_archive_that_leads_back_to_itself_ends_the_reading(bundle: Path) -> None:
    """A member of -60 bytes: verification used to read these 132 bytes for ever."""
    name = f"{LIB}/libsmall.a"
    header = (
        b"/".ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6) + b"644".ljust(8) + b"-60".ljust(10) + b"`\n"
    )
    (bundle / name).write_bytes(b"!<arch>\n" + header + bytes(64))
    assert (bundle / name).stat().st_size == 132
    accept(bundle, name)
    assert f"{name} cannot be read: an archive of 132 bytes with something at 8 that is no member" in verify(bundle)


def test_an_object_whose_headers_lie_far_outside_the_archive_is_named(bundle: Path) -> None:
    name = f"{LIB}/libsmall.a"
    content = bytearray((bundle / name).read_bytes())
    start = bytes(content).index(b"\x7fELF")
    content[start + 40 : start + 48] = (1 << 40).to_bytes(8, "little")  # e_shoff
    (bundle / name).write_bytes(content)
    accept(bundle, name)
    assert any(problem.startswith(f"{name} cannot be read: an object of") for problem in verify(bundle))


def test_a_library_that_brings_another_along_is_named(bundle: Path) -> None:
    name = f"{LIB}/sm_90a/fill_epilogue.so"
    content = (bundle / name).read_bytes()
    relacount = (0x6FFFFFF9).to_bytes(8, "little")
    assert content.count(relacount) == 1
    (bundle / name).write_bytes(content.replace(relacount, (0x7FFFFFFD).to_bytes(8, "little")))
    accept(bundle, name)
    expected = f"{name}: Its dynamic segment holds AUXILIARY, which no library of a bundle needs."
    assert expected in verify(bundle)


# What a loader will do: the digests and tables that were compiled into the entry library.


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [f"{LIB}/sm_80/fill_epilogue.so", f"{LIB}/sm_90a/fill_stream_zero.so"])
def test_a_library_that_the_entry_library_would_not_open_is_named(bundle: Path, name: str) -> None:
    content = (bundle / name).read_bytes()
    flip(bundle / name, content.rindex(b"GCC:") if b"GCC:" in content else len(content) - 1)
    accept(bundle, name)
    said = f"{name} is not the file that {LIB}/libsmall.so opens: the digest that was compiled in is another"
    assert said in verify(bundle)


def test_a_support_library_that_the_entry_library_would_not_open_is_named(bundle: Path) -> None:
    name = f"{LIB}/libsmall_cuda.so"
    (bundle / name).write_bytes((bundle / name).read_bytes() + b"\0")
    accept(bundle, name)
    assert any(problem.startswith(f"{name} is not the file that") for problem in verify(bundle))


def test_a_support_library_is_checked_like_the_others(bundle: Path, tmp_path: Path) -> None:
    name = f"{LIB}/libsmall_cuda.so"
    (tmp_path / "other.c").write_text("int nobody_asked(void) { return 0; }\n")
    (bundle / name).unlink()
    subprocess.run([*compiler(), "-shared", "-fPIC", str(tmp_path / "other.c"), "-o", str(bundle / name)], check=True)
    accept(bundle, name)
    assert any("nobody_asked" in problem for problem in verify(bundle))


def test_an_archive_with_other_gpu_code_than_the_libraries_is_named(bundle: Path) -> None:
    from aot.binary.cubin import cubins_in_library

    name = f"{LIB}/libsmall_sm_90a.a"
    (cubin,) = cubins_in_library(bundle / LIB / "sm_90a" / "fill_stream_zero.so")
    flip(bundle / name, (bundle / name).read_bytes().index(cubin.elf) + len(cubin.elf) // 2)
    accept(bundle, name)
    assert one(verify(bundle)) == f"{name} does not hold the GPU code of the libraries: 2 cubins differ"


def test_an_sbom_that_says_something_else_is_named(bundle: Path) -> None:
    text = (bundle / "sbom.cdx.json").read_text()
    (bundle / "sbom.cdx.json").write_text(text.replace("ziglang", "ziglong"))
    accept(bundle, "sbom.cdx.json")
    assert one(verify(bundle)) == "sbom.cdx.json is not the document that follows from the toolchain"


def test_tables_that_were_not_compiled_in_are_named(bundle: Path) -> None:
    kernel = {"kernel": "fill_epilogue", "arch": "sm_90a", "by": ["out.shape[0]"], "left_out": []}
    tuned = {"function": "fill_epilogue__relu", "point": {}, "variants": ["a", "b"], "bins": [[7]], "cells": "01"}
    device = {"name": "NVIDIA H200", "capability": "9.0", "multiprocessors": 132}
    (bundle / "tuning").mkdir()
    (bundle / "tuning" / "nvidia_h200_132.json").write_text(
        json.dumps({"schema": 2, "device": device, "kernels": [{**kernel, "sets": [tuned]}]})
    )
    accept(bundle)
    assert f"the tables in tuning/ are not those that were compiled into {LIB}/libsmall.so" in verify(bundle)


def test_a_kernel_library_that_runs_code_when_it_is_opened_is_named(bundle: Path) -> None:
    name = f"{LIB}/sm_90a/fill_epilogue.so"
    content = (bundle / name).read_bytes()
    relacount, init_array = (0x6FFFFFF9).to_bytes(8, "little"), (25).to_bytes(8, "little")
    (bundle / name).write_bytes(content.replace(relacount, init_array))
    accept(bundle, name)
    assert f"{name}: It has INIT_ARRAY: code that runs when it is opened." in verify(bundle)


@pytest.mark.parametrize("folder", ["contracts", "contracts/rows"])
@pytest.mark.parametrize("name", ["other.so", "fill.cpython-312.pyc", "deeper/fill_epilogue.cpython-312.pyc", "x.py"])
def test_what_pip_does_not_write_beside_contracts_is_named(bundle: Path, edit: Edit, folder: str, name: str) -> None:
    (bundle / folder).mkdir(parents=True)
    (bundle / folder / "fill_epilogue.py").write_text("")
    accept(bundle)
    compiled = bundle / folder / "__pycache__"
    path = compiled / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    (compiled / "fill_epilogue.cpython-312.opt-1.pyc").write_bytes(b"")
    assert one(verify(bundle)) == f"{folder}/__pycache__/{name} is not in the manifest"


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("place", [f"{LIB}/sm_80.part", "parts/sm_80.json"])
@pytest.mark.parametrize(
    "put",
    [
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_bytes(b"[" * 100_000),
        lambda path: path.write_bytes(b'{"a":' * 100_000),
        lambda path: path.mkdir(),
    ],
    ids=["fifo", "zero", "lists", "objects", "folder"],
)
def test_whatever_lies_in_the_place_of_a_note_is_named(bundle: Path, edit: Edit, place: str, put: Any) -> None:
    edit(lambda data: data.update(distributions={"sm_80": "small-sm-80==1.0"}))
    (bundle / "parts").mkdir()
    (bundle / LIB / "sm_80.part").write_text("small-sm-80==1.0\n")
    digest = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    (bundle / "parts" / "sm_80.json").write_text(json.dumps({"manifest_sha256": digest}))
    (bundle / place).unlink()
    put(bundle / place)
    assert any("sm_80" in problem for problem in verify(bundle))


@pytest.mark.parametrize("altered", [b" ", b'"arch": "sm_81"'], ids=["a space more", "another architecture"])
def test_a_stamp_is_compared_byte_by_byte(bundle: Path, edit: Edit, altered: bytes) -> None:
    """No digest of the manifest covers it."""
    edit(lambda data: data.update(distributions={"sm_80": "small-sm-80==1.0"}))
    note = bundle / LIB / "sm_80.part"
    note.write_text("small-sm-80==1.0\n")
    accept(bundle)
    (bundle / "parts").mkdir()
    digest = hashlib.sha256((bundle / "manifest.json").read_bytes()).hexdigest()
    stamp = bundle / "parts" / "sm_80.json"
    stamp.write_bytes(stamp_text("sm_80", digest))
    assert verify(bundle) == []
    whole = stamp.read_bytes()
    stamp.write_bytes(whole + altered if altered.isspace() else whole.replace(b'"arch": "sm_80"', altered))
    assert one(verify(bundle)).startswith("parts/sm_80.json is missing or malformed")


def test_verifying_takes_little_memory(bundle: Path) -> None:
    code = """
        import resource, sys
        from pathlib import Path
        from aot.bundle.verifying.verify import verify
        resource.setrlimit(resource.RLIMIT_AS, (1_000_000 << 10, 1_000_000 << 10))
        print(verify(Path(sys.argv[1])))
    """
    assert run_python(code, bundle) == "[]"


def test_what_is_not_sound_is_neither_signed_nor_pruned_nor_merged(bundle: Path, cache: Path, tmp_path: Path) -> None:
    name = f"{LIB}/sm_80/fill_epilogue.so"
    flip(bundle / name, (bundle / name).stat().st_size - 1)
    accept(bundle, name)
    before = (bundle / "manifest.json").read_bytes()
    new_key(tmp_path / "key")
    with pytest.raises(BuildError, match=r"fill_epilogue\.so is not the file that"):
        sign(bundle, Signer.read(tmp_path / "key"))
    with pytest.raises(BuildError, match=r"fill_epilogue\.so is not the file that"):
        prune(bundle, lambda kernel, arch: str(arch) == "sm_80", Tools(cache), print)
    with pytest.raises(BuildError, match=r"fill_epilogue\.so is not the file that"):
        merge([bundle], tmp_path / "out", Tools(cache), print)
    assert not is_signed(bundle) and not (tmp_path / "out").exists()
    assert (bundle / "manifest.json").read_bytes() == before


def test_details_that_were_altered_are_not_taken_over(bundle: Path) -> None:
    path = bundle / "details" / "sm_80.json"
    path.write_text(path.read_text().replace('"registers": ', '"registers": 1'))
    with pytest.raises(BuildError, match=r"sm_80\.json` is not what its manifest says"):
        bundle_contribution(bundle)
