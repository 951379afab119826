"""``manifest.json``: what is written is what is read, and what is wrong is named with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aot_runtime import Arch, ManifestError
from aot_runtime.manifest import SCHEMA, Choice, FileRecord, HostRecord, KernelRecord, Manifest, Parameter, reads_alike
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ENTRY, SUPPORT = "lib/x86_64-linux-gnu/libdemo.so", "lib/x86_64-linux-gnu/libdemo_cuda.so"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
names = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True).map(lambda name: f"k{name}")
defaults = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
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
    return KernelRecord(name, draw(texts), draw(parameters), choices, functions, listed, draw(st.integers(0)))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    records = st.builds(FileRecord, st.from_regex(r"[0-9a-f]{64}", fullmatch=True), st.integers(0, 2**40))
    return Manifest(
        name=draw(names),
        complete=draw(st.booleans()),
        kernels={kernel.name: kernel for kernel in draw(st.lists(kernels(), max_size=3))},
        hosts={"x86_64-linux-gnu": HostRecord(ENTRY, SUPPORT, draw(versions), draw(texts))},
        files={ENTRY: draw(records), SUPPORT: draw(records), "details/sm_90a.json": draw(records)},
        failures=tuple(draw(st.lists(st.dictionaries(names, texts), max_size=2))),
        toolchain=draw(st.dictionaries(names, texts)),
        source=draw(st.dictionaries(names, texts)),
        requires=draw(st.dictionaries(names, texts)),
    )


def plain(manifest: Manifest) -> dict[str, Any]:
    """A manifest with its lazily checked tables looked at in full."""
    return {**vars(manifest), "kernels": dict(manifest.kernels), "files": dict(manifest.files)}


@given(written=manifests())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_manifest_reads_as_it_was_written(tmp_path: Path, written: Manifest) -> None:
    (tmp_path / "manifest.json").write_text(written.to_json(), encoding="utf-8")
    read = Manifest.read(tmp_path)
    assert plain(read) == plain(written)
    assert read.to_json() == written.to_json()


@given(written=manifests())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_reads_alike_by_lines_and_as_json(tmp_path: Path, written: Manifest) -> None:
    text = written.to_json()
    (tmp_path / "manifest.json").write_text(text, encoding="utf-8")
    assert reads_alike(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(json.loads(text), indent=1), encoding="utf-8")
    assert reads_alike(tmp_path)
    assert plain(Manifest.read(tmp_path)) == plain(written)


def test_one_record_is_parsed_without_the_others(tmp_path: Path, data: dict[str, Any]) -> None:
    text = read(tmp_path, data).to_json()
    (tmp_path / "manifest.json").write_text(text.replace(' "files": {\n', ' "files": {\n  "broken": ,\n'))
    manifest = Manifest.read(tmp_path)
    assert manifest.kernels["add"].functions == ("add",)
    assert manifest.files[ENTRY].size == 1
    with pytest.raises(ManifestError, match="a line of the manifest is not valid JSON"):
        dict(manifest.files)
    with pytest.raises(ManifestError, match="is not valid JSON"):
        reads_alike(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (' },\n "files"', ' },\n "hosts": {},\n "more": {\n },\n "files"'),
        ('\n "hosts"', '\n "kernels": {},\n "hosts"'),
        ('  "add": {', '  "add": {}, "add": {'),
    ],
)
def test_what_reads_otherwise_by_lines_is_told_apart(old: str, new: str, tmp_path: Path, data: dict[str, Any]) -> None:
    """JSON takes the last of two keys, lines the first: `verify` must not see another bundle than loaders do."""
    text = read(tmp_path, data).to_json()
    assert text.count(old) == 1
    (tmp_path / "manifest.json").write_text(text.replace(old, new))
    assert not reads_alike(tmp_path)


# Problems

Alter = Callable[[dict[str, Any]], object]


@pytest.fixture
def data() -> dict[str, Any]:
    """A good manifest as JSON, to spoil."""
    parameters = (Parameter("x"), Parameter("out", output=True, shape="x.shape", dtype="x.dtype"))
    kernel = KernelRecord("add", "", parameters, (), ("add",), (Arch(9, 0, "a"),), 1)
    file = FileRecord("0" * 64, 1)
    manifest = Manifest(
        "demo",
        True,
        {"add": kernel},
        {"x86_64-linux-gnu": HostRecord(ENTRY, SUPPORT, "2.28", "static")},
        {ENTRY: file, SUPPORT: file},
    )
    decoded: dict[str, Any] = json.loads(manifest.to_json())
    return decoded


def read(folder: Path, data: object) -> Manifest:
    """Read a manifest of that content, and look at every record."""
    (folder / "manifest.json").write_text(json.dumps(data))
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
    with pytest.raises(ManifestError, match="is not a bundle: it is not a directory"):
        Manifest.read(tmp_path / name)


def test_a_manifest_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(ManifestError, match=r"cannot read .*: Is a directory"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"schema": 1,}'])
def test_what_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ManifestError, match="is not valid JSON"):
        Manifest.read(tmp_path)


def test_a_manifest_of_absurd_size_is_refused(tmp_path: Path) -> None:
    with open(tmp_path / "manifest.json", "wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ManifestError, match="is larger than"):
        Manifest.read(tmp_path)


def test_a_newer_schema_asks_for_an_update(data: dict[str, Any], tmp_path: Path) -> None:
    data["schema"] = SCHEMA + 1
    with pytest.raises(ManifestError, match=f"has schema {SCHEMA + 1}, this reader knows up to {SCHEMA}") as caught:
        read(tmp_path, data)
    assert caught.value.hint == "update cute-aot: `pip install -U cute-aot`"


@pytest.mark.parametrize("content", [[], 1, None, "text"])
def test_a_manifest_is_an_object(content: object, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="expected an object, got"):
        read(tmp_path, content)


@pytest.mark.parametrize("key", ["schema", "name", "complete", "kernels", "hosts", "files"])
def test_a_missing_field_is_named(key: str, data: dict[str, Any], tmp_path: Path) -> None:
    del data[key]
    with pytest.raises(ManifestError, match=rf"manifest\.json`: `{key}` is missing"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", "1"), ("schema", True), ("name", 7), ("complete", 1), ("kernels", []), ("hosts", None), ("files", "")],
)
def test_a_field_of_the_wrong_type_is_named(key: str, value: object, data: dict[str, Any], tmp_path: Path) -> None:
    data[key] = value
    with pytest.raises(ManifestError, match=f"`{key}` is {re.escape(repr(value))}, of type {type(value).__name__}"):
        read(tmp_path, data)


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../outside.so", "lib/../../outside.so", "lib//x.so", "./x.so", "..", "", "a\\b", "a\0b", "\ud800"],
)
def test_a_path_that_leaves_the_bundle_is_refused(path: str, data: dict[str, Any], tmp_path: Path) -> None:
    data["files"][path] = {"sha256": "0" * 64, "size": 1}
    data["hosts"]["x86_64-linux-gnu"]["entry"] = path
    with pytest.raises(ManifestError, match="the path leaves the bundle"):
        read(tmp_path, data)


def test_an_entry_library_that_is_not_a_file_of_the_bundle_is_refused(data: dict[str, Any], tmp_path: Path) -> None:
    data["hosts"]["x86_64-linux-gnu"]["entry"] = "lib/other.so"
    with pytest.raises(ManifestError, match=r"'lib/other\.so' is not among the bundle's files"):
        read(tmp_path, data)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, 7, None])
def test_what_is_not_a_digest_is_refused(digest: object, data: dict[str, Any], tmp_path: Path) -> None:
    data["files"][ENTRY]["sha256"] = digest
    with pytest.raises(ManifestError, match=r"files\.lib/x86_64-linux-gnu/libdemo\.so: "):
        read(tmp_path, data)


@pytest.mark.parametrize("size", [-1, 10**30, 1.0, True, "1"])
def test_what_is_not_a_size_is_refused(size: object, data: dict[str, Any], tmp_path: Path) -> None:
    data["files"][ENTRY]["size"] = size
    with pytest.raises(ManifestError, match=r"files\.lib/x86_64-linux-gnu/libdemo\.so: `size` is"):
        read(tmp_path, data)


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
    "kernel not a name": (lambda data: data["kernels"].update({"a b": data["kernels"]["add"]}), "'a b' is not a name"),
    "kernel a keyword": (
        lambda data: data["kernels"].update({"class": data["kernels"]["add"]}),
        "'class' is not a name",
    ),
}


@pytest.mark.parametrize("problem", KERNEL_PROBLEMS)
def test_a_problem_of_a_kernel_is_named_with_its_place(problem: str, data: dict[str, Any], tmp_path: Path) -> None:
    alter, message = KERNEL_PROBLEMS[problem]
    alter(data)
    with pytest.raises(ManifestError, match=message) as caught:
        read(tmp_path, data)
    assert re.search(r"manifest\.json`: kernels\.(add|a b|class)", str(caught.value))


def test_fields_that_a_later_version_may_add_are_passed_over(data: dict[str, Any], tmp_path: Path) -> None:
    data["added"] = data["kernels"]["add"]["added"] = data["files"][ENTRY]["added"] = {"later": 1}
    assert read(tmp_path, data).name == "demo"
