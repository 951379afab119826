"""``manifest.json``: what is written is what is read, and what is wrong is named with its place."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aot_runtime import AotError, Arch, BundleError, DigestError, ManifestError
from aot_runtime.description.kernel_records import Backward, Choice, KernelRecord, Parameter
from aot_runtime.description.records import (
    INDEX_NAMES,
    PROTOCOL,
    SCHEMA,
    FileRecord,
    HostRecord,
    parse_json,
    read_bounded,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aot.bundle.manifest import Manifest

HOST = "x86_64-linux-gnu"
ENTRY, SUPPORT = "lib/x86_64-linux-gnu/libdemo.so", "lib/x86_64-linux-gnu/libdemo_cuda.so"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True).map(lambda name: f"k{name}")
defaults = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
aliases = st.lists(names, max_size=2).map(tuple)
outputs = st.builds(Parameter, names, texts, output=st.just(True), shape=texts, dtype=texts, may_be=aliases)
required = st.builds(Parameter, names, texts)
optional = st.builds(Parameter, names, texts, has_default=st.just(True), default=defaults)
parameters = st.tuples(
    st.lists(required | outputs, max_size=3, unique_by=lambda item: item.name),
    st.lists(optional, max_size=2, unique_by=lambda item: item.name),
).map(  # Of two parameters that are called the same, the first.
    lambda parts: (*parts[0], *(item for item in parts[1] if item.name not in {other.name for other in parts[0]}))
)
versions = st.from_regex(r"[1-9]\.[1-9][0-9]", fullmatch=True)
archs = st.sampled_from(["sm_80", "sm_90a", "sm_100f", "sm_121"]).map(Arch.parse)


@st.composite
def kernels(draw: st.DrawFn) -> KernelRecord:
    name = draw(names)
    values = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    choice = Choice("choice", values, draw(st.none() | st.sampled_from(values)), draw(texts))
    chosen = draw(st.booleans())
    functions = tuple(f"{name}__{value}" for value in values) if chosen else (name,)
    choices = (choice,) if chosen else ()
    listed = tuple(draw(st.lists(archs, unique=True)))
    taken = draw(parameters)
    variants = draw(st.integers(0, 2**31))
    return KernelRecord(name, draw(texts), taken, choices, functions, listed, variants, draw(backwards(taken)))


def backwards(parameters: tuple[Parameter, ...]) -> st.SearchStrategy[Backward | None]:
    saves = st.just(tuple(parameter.name for parameter in parameters))
    gradients = st.just(tuple(parameter.name for parameter in parameters if not parameter.output))
    return st.none() | st.builds(Backward, names, saves, gradients) | composed(gradients)


@st.composite
def composed(draw: st.DrawFn, gradients: st.SearchStrategy[tuple[str, ...]]) -> Backward:
    inputs, split = draw(gradients), draw(texts)
    whole = tuple(draw(st.lists(texts, max_size=2))) if split else ()
    adds = tuple(draw(st.lists(texts, max_size=2)))
    return Backward("", (), inputs, tuple(draw(texts) for _ in inputs), split, whole, adds)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    records = st.builds(FileRecord, st.from_regex(r"[0-9a-f]{64}", fullmatch=True), st.integers(0, 2**40))
    entry = draw(records)
    host = HostRecord(ENTRY, SUPPORT, draw(versions), draw(texts), entry)
    driver = draw(st.dictionaries(names, texts))
    source = {"commit": draw(texts), "clean": draw(st.booleans()), "files": {"add.py": draw(records).sha256}}
    listed = {kernel.name: kernel for kernel in draw(st.lists(kernels(), max_size=3))}
    built_for = sorted({str(arch) for kernel in listed.values() for arch in kernel.archs})
    return Manifest(
        name=draw(names),
        complete=draw(st.booleans()),
        kernels=listed,
        hosts={"x86_64-linux-gnu": host},
        files={ENTRY: entry, SUPPORT: draw(records), "details/sm_90a.json": draw(records)},
        failures=draw(st.lists(st.dictionaries(names, texts), max_size=2)),
        toolchain=draw(st.dictionaries(names, texts)),
        requires={"driver": driver, "tvm_ffi": draw(texts), "tvm_ffi_abi": draw(st.integers(0, 9))},
        distributions={arch: draw(texts) for arch in built_for if draw(st.booleans())},
        provenance=[{"source": source, "options": {"keep": ["ptx"]}, "versions": draw(st.dictionaries(names, texts))}],
    )


def write(folder: Path, manifest: Manifest) -> Path:
    for name, text in manifest.texts().items():
        (folder / name).write_bytes(text)
    return folder


def plain(manifest: Manifest) -> dict[str, Any]:
    """Everything that a manifest and its indexes say."""
    names = ("name", "complete", "archs", "failures", "toolchain", "requires", "distributions", "provenance")
    tables = {name: dict(getattr(manifest, name)) for name in ("kernels", "hosts", "files")}
    return {**{name: getattr(manifest, name) for name in names}, **tables}


@given(written=manifests())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_a_manifest_reads_as_it_was_written(tmp_path: Path, written: Manifest) -> None:
    read = Manifest.read(write(tmp_path, written))
    assert plain(read) == plain(written)
    assert read.texts() == written.texts()


@given(written=manifests())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_the_identity_is_the_same_before_and_after_writing(tmp_path: Path, written: Manifest) -> None:
    """The builder compiles it into a library whose digest the manifest then holds."""
    (host,) = written.hosts
    draft = written.replace(hosts={host: written.hosts[host].replace(file=None)}, files={})
    assert Manifest.read(write(tmp_path, written)).identity(host) == written.identity(host) == draft.identity(host)


@given(written=manifests())
@settings(max_examples=30)
def test_every_file_is_plain_json_with_its_schema(written: Manifest) -> None:
    for content in written.texts().values():
        assert json.loads(content)["schema"] == SCHEMA


def test_a_manifest_stays_small_however_many_kernels_there_are(data: dict[str, Any], tmp_path: Path) -> None:
    one = read(tmp_path, data)
    many = one.replace(
        kernels={f"add{i}": one.kernels["add"].replace(name=f"add{i}") for i in range(1000)},
        files={**one.files, **{f"lib/{i}.so": FileRecord("0" * 64, i) for i in range(1000)}},
    )
    assert len(many.texts()["manifest.json"]) < len(one.texts()["manifest.json"]) + 20


ALTERATIONS: dict[str, Callable[[Manifest], dict[str, Any]]] = {
    "name": lambda manifest: {"name": "other"},
    "complete": lambda manifest: {"complete": False},
    "toolchain": lambda manifest: {"toolchain": {"cuda": "99"}},
    "requires": lambda manifest: {"requires": {"tvm_ffi": "9"}},
    "failures": lambda manifest: {"failures": [{"kernel": "x"}]},
    "parameter name": lambda manifest: with_parameter(manifest, name="z"),
    "default": lambda manifest: with_parameter(manifest, has_default=True, default=1.8),
    "output shape": lambda manifest: with_parameter(manifest, shape="x.shape[1]"),
    "output dtype": lambda manifest: with_parameter(manifest, dtype="y.dtype"),
    "doc": lambda manifest: with_parameter(manifest, doc="another"),
    "glibc": lambda manifest: {"hosts": {HOST: manifest.hosts[HOST].replace(glibc="2.35")}},
    "cudart": lambda manifest: {"hosts": {HOST: manifest.hosts[HOST].replace(cudart="libcudart.so.12")}},
}


def with_parameter(manifest: Manifest, **changes: Any) -> dict[str, Any]:
    kernel = manifest.kernels["add"]
    return {
        "kernels": {
            "add": kernel.replace(parameters=(*kernel.parameters[:-1], kernel.parameters[-1].replace(**changes)))
        }
    }


@pytest.mark.parametrize("what", ALTERATIONS)
def test_the_identity_covers_what_a_caller_can_notice(what: str, data: dict[str, Any], tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path, read(tmp_path, data)))
    assert manifest.replace().identity(HOST) == manifest.identity(HOST)
    assert manifest.replace(**ALTERATIONS[what](manifest)).identity(HOST) != manifest.identity(HOST)


def test_the_identity_of_a_host_does_not_depend_on_what_wheels_leave_out(data: dict[str, Any], tmp_path: Path) -> None:
    manifest = Manifest.read(write(tmp_path, read(tmp_path, data)))
    more = manifest.replace(
        hosts={**manifest.hosts, "aarch64-linux-gnu": manifest.hosts[HOST]},
        files={},
        distributions={"sm_90a": "demo-sm-90a"},
        provenance=[{"source": {"commit": "0" * 40, "files": {}}}],
    )
    assert more.identity(HOST) == manifest.identity(HOST) != more.identity("aarch64-linux-gnu")


def test_fields_of_a_later_version_are_part_of_the_identity(data: dict[str, Any], tmp_path: Path) -> None:
    before = read(tmp_path, data).identity(HOST)
    data["manifest.json"]["added"] = {"later": 1}
    assert read(tmp_path, data).identity(HOST) != before


def test_an_index_that_was_altered_is_not_read(data: dict[str, Any], tmp_path: Path) -> None:
    manifest = read(tmp_path, data)
    for name in INDEX_NAMES:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content.replace(b"2", b"3", 1))
        with pytest.raises(DigestError, match=rf"{name}` is not the file that `manifest\.json` names"):
            manifest.index_content(name)
        (tmp_path / name).unlink()
        with pytest.raises(ManifestError, match=rf"{name}` is missing"):
            manifest.index_content(name)


# Problems

Alter = Callable[[dict[str, Any]], object]


@pytest.fixture
def data() -> dict[str, Any]:
    """A good manifest and its indexes as JSON, to spoil."""
    parameters = (Parameter("x"), Parameter("out", output=True, shape="x.shape", dtype="x.dtype"))
    kernel = KernelRecord("add", "", parameters, (), ("add",), (Arch(9, 0, "a"),), 1)
    file = FileRecord("0" * 64, 1)
    manifest = Manifest(
        "demo",
        True,
        {"add": kernel},
        {HOST: HostRecord(ENTRY, SUPPORT, "2.28", "static", file)},
        {ENTRY: file, SUPPORT: file},
        requires={"driver": {"sm_90a": "525.60.13"}, "tvm_ffi": "0.1.0", "tvm_ffi_abi": 0},
        provenance=[{"source": {"files": {}}, "options": {}, "versions": {}}],
    )
    return {name: json.loads(text) for name, text in manifest.texts().items()}


def read(folder: Path, data: dict[str, Any]) -> Manifest:
    """Read a manifest of that content, whose digests are made to fit, and look at every record."""
    for name in INDEX_NAMES:
        content = json.dumps(data[name]).encode()
        (folder / name).write_bytes(content)
        if isinstance(data["manifest.json"], dict) and isinstance(data["manifest.json"].get(name[:-5]), dict):
            data["manifest.json"][name[:-5]].update(FileRecord.of(content).data())
    (folder / "manifest.json").write_text(json.dumps(data["manifest.json"]))
    manifest = Manifest.read(folder)
    plain(manifest)
    return manifest


def test_the_manifest_that_the_next_tests_spoil_is_good(data: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, data).name == "demo"


def test_a_folder_without_a_manifest_is_not_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"is not a bundle: it holds no manifest\.json") as caught:
        Manifest.read(tmp_path)
    assert caught.value.hint == "give the directory that `python -m aot build` printed"


@pytest.mark.parametrize("name", ["absent", "file"])
def test_what_is_not_a_folder_is_not_a_bundle(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ManifestError, match=r"is not a bundle: it (is not a directory|does not exist)"):
        Manifest.read(tmp_path / name)


def test_a_folder_is_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ManifestError, match="is not a regular file"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"schema": 1,}'])
def test_what_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match="is not valid JSON"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("name", ["", "../x", "x; true", "-x", "x\n"])
def test_a_host_that_is_no_folder_is_refused(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    hosts = data["manifest.json"]["hosts"]
    hosts[name] = next(iter(hosts.values()))
    with pytest.raises(ManifestError, match="which is no host"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("split", "whole", "choices", "is_split"),
    [
        ("", (), {}, False),
        ("act(gemm(a))", (), {"epilogue": "relu"}, True),
        ("act(gemm(a))", ("epilogue=identity",), {"epilogue": "relu"}, True),
        ("act(gemm(a))", ("epilogue=identity",), {"epilogue": "identity"}, False),
        ("act(gemm(a))", ("epilogue=identity", "order=rows"), {"epilogue": "identity", "order": "columns"}, True),
    ],
)
def test_a_call_is_split_unless_its_choices_keep_it_whole(
    split: str, whole: tuple[str, ...], choices: dict[str, str], is_split: bool
) -> None:
    assert Backward("", (), (), (), split, whole).is_split(choices) is is_split


def test_a_manifest_of_absurd_size_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ManifestError, match="is larger than"):
        Manifest.read(tmp_path)


def test_a_file_that_grows_beyond_its_bound_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grown"
    path.write_bytes(b"x" * 11)
    facts = os.stat(path)
    shorter = os.stat_result([*facts[:6], 4, *facts[7:10]])  # as it was a moment ago
    monkeypatch.setattr(os, "fstat", lambda descriptor: shorter)
    with pytest.raises(ManifestError, match="larger than 10 bytes"):
        read_bounded(str(path), 10, ManifestError)
    assert read_bounded(str(path), 11, ManifestError) == b"x" * 11


@pytest.mark.usefixtures("ends")
@pytest.mark.parametrize("name", ["manifest.json", *INDEX_NAMES])
def test_a_pipe_is_refused_without_waiting_for_a_writer(name: str, data: dict[str, Any], tmp_path: Path) -> None:
    read(tmp_path, data)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ManifestError, match=rf"{name}` is not a regular file"):
        plain(Manifest.read(tmp_path))


def test_a_schema_from_before_the_first_release_asks_for_a_rebuild(data: dict[str, Any], tmp_path: Path) -> None:
    data["manifest.json"]["schema"] = 1
    with pytest.raises(ManifestError, match="has schema 1, which no released version wrote") as caught:
        read(tmp_path, data)
    assert caught.value.hint is not None and "`python -m aot build --replace`" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("schema", [0, -1])
def test_a_schema_that_cannot_be_is_refused(schema: int, data: dict[str, Any], tmp_path: Path) -> None:
    data["manifest.json"]["schema"] = schema
    with pytest.raises(ManifestError, match=f"invalid schema version: {schema}"):
        read(tmp_path, data)


@pytest.mark.parametrize("schema", [SCHEMA, SCHEMA + 1, SCHEMA + 100])
@pytest.mark.parametrize("minor", [0, 1, 999])
def test_a_later_schema_of_the_same_protocol_is_read(
    schema: int, minor: int, data: dict[str, Any], tmp_path: Path
) -> None:
    data["manifest.json"].update(schema=schema, protocol=PROTOCOL // 1000 * 1000 + minor)
    assert read(tmp_path, data).schema == schema


@pytest.mark.parametrize("major", [PROTOCOL // 1000 - 1, PROTOCOL // 1000 + 1])
def test_another_protocol_is_refused(major: int, data: dict[str, Any], tmp_path: Path) -> None:
    data["manifest.json"]["protocol"] = 1000 * major
    with pytest.raises(ManifestError, match=f"is for loaders of protocol {major}, this loader has"):
        read(tmp_path, data)


@pytest.mark.parametrize("content", [[], 1, None, "text"])
@pytest.mark.parametrize("name", ["manifest.json", *INDEX_NAMES])
def test_each_file_is_an_object(name: str, content: object, data: dict[str, Any], tmp_path: Path) -> None:
    data[name] = content
    with pytest.raises(ManifestError, match="expected an object, got"):
        read(tmp_path, data)


REQUIRED = ["schema", "name", "complete", "protocol", "hosts", *(name[:-5] for name in INDEX_NAMES)]


@pytest.mark.parametrize("key", REQUIRED)
def test_a_missing_field_is_named(key: str, data: dict[str, Any], tmp_path: Path) -> None:
    del data["manifest.json"][key]
    with pytest.raises(ManifestError, match=rf"manifest\.json`: `{key}` is missing"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", "1"), ("schema", True), ("name", 7), ("complete", 1), ("protocol", 1.0), ("kernels", []),
        ("hosts", None), ("files", ""), ("requires", 3), ("toolchain", []), ("failures", {}), ("archs", "sm_80"),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_type_is_named(key: str, value: object, data: dict[str, Any], tmp_path: Path) -> None:
    data["manifest.json"][key] = value
    with pytest.raises(ManifestError, match=f"`{key}` is {re.escape(repr(value))}, of type {type(value).__name__}"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../outside.so", "lib/../../outside.so", "lib//x.so", "./x.so", "..", "", "a\\b", "a\0b", "\ud800"],
)
@pytest.mark.parametrize("where", ["entry", "support", "files"])
def test_a_path_that_leaves_the_bundle_is_refused(where: str, path: str, data: dict[str, Any], tmp_path: Path) -> None:
    host = data["manifest.json"]["hosts"][HOST]
    if where == "files":
        data["files.json"]["files"][path] = {"sha256": "0" * 64, "size": 1}
    elif where == "entry":
        host["entry"]["path"] = path
    else:
        host["support"] = path
    with pytest.raises(ManifestError, match=r"the path leaves the bundle|which is not text"):
        read(tmp_path, data)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, 7, None])
def test_what_is_not_a_digest_is_refused(digest: object, data: dict[str, Any], tmp_path: Path) -> None:
    data["files.json"]["files"][ENTRY]["sha256"] = digest
    with pytest.raises(ManifestError, match=r"files\.'lib/x86_64-linux-gnu/libdemo\.so': "):
        read(tmp_path, data)


@pytest.mark.parametrize("size", [-1, 10**19, 1.0, True, "1"])
def test_what_is_not_a_size_is_refused(size: object, data: dict[str, Any], tmp_path: Path) -> None:
    data["files.json"]["files"][ENTRY]["size"] = size
    with pytest.raises(ManifestError, match=r"files\.'lib/x86_64-linux-gnu/libdemo\.so': `size` is"):
        read(tmp_path, data)


def test_a_number_of_many_digits_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(read(tmp_path, data).texts()["manifest.json"].decode()).replace(str(PROTOCOL), "1" * 4000)
    (tmp_path / "manifest.json").write_text(json.loads(text))
    with pytest.raises(ManifestError, match="is not valid JSON: a number of 4000 digits"):
        Manifest.read(tmp_path)


def alter_kernel(**fields: object) -> Alter:
    return lambda data: data["kernels"]["add"].update(fields)


def parameters_of(*items: dict[str, object]) -> Alter:
    return alter_kernel(parameters=list(items))


KERNEL_PROBLEMS: dict[str, tuple[Alter, str]] = {
    "unknown arch": (alter_kernel(archs=["sm90"]), "not a GPU architecture: 'sm90'"),
    "archs not texts": (alter_kernel(archs=[90]), "`archs` must be a list of strings"),
    "function not a name": (alter_kernel(functions=["a-b"]), "'a-b' is not a name"),
    "function a keyword": (alter_kernel(functions=["import"]), "'import' is not a name"),
    "parameter not a name": (parameters_of({"name": "a b"}), "'a b' cannot name a parameter"),
    "parameter a keyword": (parameters_of({"name": "in"}), "'in' cannot name a parameter"),
    "parameter private": (parameters_of({"name": "_target"}), "'_target' cannot name a parameter"),
    "parameter private in disguise": (parameters_of({"name": "\uff3ftarget"}), "cannot name a parameter"),
    "parameter is code": (parameters_of({"name": "x=print()"}), "cannot name a parameter"),
    "parameter without name": (parameters_of({}), "`name` is missing"),
    "parameter twice": (parameters_of({"name": "x"}, {"name": "x"}), "two parameters or choices are called 'x'"),
    "default before none": (
        parameters_of({"name": "x", "default": 1}, {"name": "y"}),
        "y has no default but follows one that has",
    ),
    "default not a number": (parameters_of({"name": "x", "default": "1"}), "is neither a number nor null"),
    "parameter not an object": (alter_kernel(parameters=["x"]), r"parameters\[0\]: expected an object, got str"),
    "choice not a name": (alter_kernel(choices=[{"name": "a b", "values": []}]), "cannot name a parameter"),
    "choice named as a parameter": (
        alter_kernel(choices=[{"name": "x", "values": ["a"]}]),
        "two parameters or choices are called 'x'",
    ),
    "backward not an object": (alter_kernel(backward="b"), "`backward` is 'b', of type str"),
    "backward without a kernel": (alter_kernel(backward={}), "backward: `kernel` is missing"),
    "backward saves what is not there": (
        alter_kernel(backward={"kernel": "b", "saves": ["y"], "gradients": ["x"]}),
        "backward: 'y' is not a parameter",
    ),
    "backward of an output": (
        alter_kernel(backward={"kernel": "b", "saves": ["x"], "gradients": ["out"]}),
        "backward: 'out' is not an input",
    ),
    "more gradients than calls": (
        alter_kernel(backward={"calls": [], "gradients": ["x"]}),
        "backward: 0 calls for 1 gradients",
    ),
    "kernel not a name": (lambda data: data["kernels"].update({"a b": data["kernels"]["add"]}), "'a b' is not a name"),
    "kernel a keyword": (
        lambda data: data["kernels"].update({"class": data["kernels"]["add"]}),
        "'class' is not a name",
    ),
}


@pytest.mark.parametrize("problem", KERNEL_PROBLEMS)
def test_a_problem_of_a_kernel_is_named_with_its_place(problem: str, data: dict[str, Any], tmp_path: Path) -> None:
    alter, message = KERNEL_PROBLEMS[problem]
    alter(data["kernels.json"])
    with pytest.raises(ManifestError, match=message) as caught:
        read(tmp_path, data)
    assert re.search(r"kernels\.json`: kernels\.'(add|a b|class)'", str(caught.value))


def test_fields_that_a_later_version_may_add_are_passed_over(data: dict[str, Any], tmp_path: Path) -> None:
    data["manifest.json"]["added"] = data["kernels.json"]["added"] = data["kernels.json"]["kernels"]["add"]["added"] = 1
    data["manifest.json"]["hosts"][HOST]["added"] = data["files.json"]["files"][ENTRY]["added"] = {"later": 1}
    assert read(tmp_path, data).name == "demo"


# Whatever the bytes are


def damaged(content: bytes, random: Random) -> bytes:
    """One of the ways in which a file goes wrong."""
    at, kind = random.randrange(len(content)), random.randrange(4)
    if kind == 0:
        return content[:at] + bytes([content[at] ^ 1 << random.randrange(8)]) + content[at + 1 :]
    if kind == 1:
        return content[:at]
    if kind == 2:
        return content[:at] + content[random.randrange(len(content)) :]
    tokens = (b"null", b"[]", b"{}", b'""', b"-1", b"1e999", b"NaN", b'"\\ud800"', b"true", b"9" * 30, b"[" * 2000)
    return content[:at] + random.choice(tokens) + content[at:]


def test_whatever_the_bytes_are_the_error_is_ours(data: dict[str, Any], tmp_path: Path) -> None:
    """Indexes get digests that fit, so that what is read is what was damaged."""
    good = read(tmp_path, data).texts()
    random = Random(1)
    refused = 0
    for _ in range(1000):
        name = random.choice(list(good))
        texts = {**good, name: damaged(good[name], random)}
        for index in INDEX_NAMES if name != "manifest.json" else ():
            old, new = FileRecord.of(good[index]), FileRecord.of(texts[index])
            fitting = texts["manifest.json"].replace(old.sha256.encode(), new.sha256.encode())
            texts["manifest.json"] = fitting.replace(b'"size": %d' % old.size, b'"size": %d' % new.size)
        for file, text in texts.items():
            (tmp_path / file).write_bytes(text)
        try:
            manifest = Manifest.read(tmp_path)
            plain(manifest)
            manifest.identity(next(iter(manifest.hosts), HOST)) if manifest.hosts else None
        except AotError:
            refused += 1
    assert refused > 500


@pytest.mark.parametrize("text", ["[" * 200 + "]" * 200, '{"a":' * 200 + "1" + "}" * 200, "[" * 100_000])
def test_json_that_is_nested_too_deep_is_refused(text: str) -> None:
    """What writes, compares and prints it would run out of stack."""
    with pytest.raises(ManifestError):
        parse_json(text.encode(), "here")


def test_json_that_only_looks_nested_is_read() -> None:
    text = json.dumps({"doc": "[" * 200, "list": [[[]]] * 200, "other": "]{" * 100})
    assert parse_json(text.encode(), "here") == json.loads(text)
    deep = "[" * 64 + "]" * 64
    assert parse_json(deep.encode(), "here") == json.loads(deep)


def test_a_file_that_may_not_be_read_has_a_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(BundleError, match=r"^cannot read `kernels.json`: Permission denied\n") as caught:
            read_bounded("kernels.json", 1, BundleError)
    assert caught.value.hint == "change its permissions"
