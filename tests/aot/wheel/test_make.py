"""A wheel made from a bundle: what is in it, what it does once installed, and what is refused."""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import json
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from email.parser import Parser
from pathlib import Path
from typing import TYPE_CHECKING

import aot_runtime
import pytest
from places import EXAMPLE

from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.cli.main import main
from aot.errors import BuildError, UsageError
from aot.files import sha256_of
from aot.hosts import Host
from aot.link.nvidia import distributions
from aot.pipeline.settings import BuildResult
from aot.versions import LOWEST_TVM_FFI
from aot.wheel.archive import parse_epoch, write_wheels
from aot.wheel.identity import Identity
from aot.wheel.make import Project, wheels

if TYPE_CHECKING:
    from packaged import Environment

OVERHEAD = 60 * 1024
CALL = """
import sample_kernels
x, out = cuda.tensor((1000,), "float16"), cuda.tensor((1000,), "float16")
"""


def read(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def dist_info(wheel: Path, name: str) -> str:
    files = read(wheel)
    return next(files[path].decode() for path in files if path.endswith(f".dist-info/{name}"))


# What is in it.


def test_wheel_is_named_by_python_platform_and_glibc_floor(sample_wheel: Path, native: Host) -> None:
    assert sample_wheel.name == f"sample_kernels-1.0-py3-none-manylinux_2_28_{native.cpu}.whl"
    assert f"Tag: py3-none-manylinux_2_28_{native.cpu}\n" in dist_info(sample_wheel, "WHEEL")


def test_wheel_needs_no_other_distribution_but_tvm_ffi(sample_wheel: Path) -> None:
    metadata = Parser().parsestr(dist_info(sample_wheel, "METADATA"))
    (requirement,) = metadata.get_all("Requires-Dist", [])
    assert requirement.startswith("apache-tvm-ffi>=")
    assert metadata["Name"] == "sample-kernels"
    assert metadata["Requires-Python"] == ">=3.10"


def test_record_lists_every_file_with_its_digest(sample_wheel: Path) -> None:
    files = read(sample_wheel)
    rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(dist_info(sample_wheel, "RECORD")))}
    assert rows.keys() == files.keys()
    for name, content in files.items():
        if not name.endswith("/RECORD"):
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert rows[name] == (f"sha256={digest}", str(len(content)))


def test_notice_and_sbom_name_what_is_linked(sample_bundle: Path, sample_wheel: Path) -> None:
    toolchain = Manifest.read(sample_bundle).toolchain
    launch = f"nvidia-cutlass-dsl-libs-cu{toolchain['cuda']}"
    notice = dist_info(sample_wheel, "licenses/NOTICE")
    sbom = json.loads(dist_info(sample_wheel, "sboms/sample_kernels.cdx.json"))
    assert f"{launch} {toolchain[launch]}" in notice
    assert "is not contained" in notice  # the CUDA runtime: this bundle uses the machine's
    components = {component["name"]: component for component in sbom["components"]}
    assert components.keys() == {"cute-aot", launch, "ziglang"}
    assert components[launch]["purl"] == f"pkg:pypi/{launch}@{toolchain[launch]}"
    assert sbom["bomFormat"] == "CycloneDX"
    own = json.loads((sample_bundle / "sbom.cdx.json").read_text())
    assert all(component in own["components"] for component in sbom["components"]), "it comes from the bundle"
    assert not any(name.endswith("/_bundle/sbom.cdx.json") for name in read(sample_wheel)), "once is enough"
    assert {entry["ref"] for entry in sbom["dependencies"]} == {
        "pkg:pypi/sample-kernels@1.0",
        *(component["bom-ref"] for component in sbom["components"]),
    }


def test_wheel_adds_little_to_the_bundle(sample_bundle: Path, sample_wheel: Path, tmp_path: Path) -> None:
    packed = tmp_path / "bundle.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sample_bundle.rglob("*"):
            archive.write(path, path.relative_to(sample_bundle))
    assert sample_wheel.stat().st_size - packed.stat().st_size <= OVERHEAD


def test_wheel_holds_one_host_and_nothing_to_link_or_to_read(sample_wheel: Path) -> None:
    names = {name.partition("/_bundle/")[2] for name in read(sample_wheel) if "/_bundle/lib/" in name}
    assert {name.split("/")[1] for name in names} == {Host.native().name}
    assert not any(name.endswith(".a") for name in names)


def test_wheels_are_the_same_bytes_when_made_twice(make_wheels: Callable[..., list[Path]], sample_wheel: Path) -> None:
    (again,) = make_wheels()
    assert again != sample_wheel
    assert again.read_bytes() == sample_wheel.read_bytes()


def test_source_date_epoch_is_the_time_of_every_file(sample_bundle: Path, tmp_path: Path) -> None:
    made = wheels(sample_bundle, Project(Identity.parse("sample_kernels", "1.0")))
    (wheel,) = write_wheels(made, tmp_path, parse_epoch("1700000000"))
    with zipfile.ZipFile(wheel) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH is 'today'"):
        parse_epoch("today")


def test_loader_imports_itself_relatively_so_that_any_name_will_do() -> None:
    for path in Path(aot_runtime.__file__).parent.rglob("*.py"):
        if path.stem == "sitecustomize":  # Python imports it under that name alone
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            assert not any(name.split(".")[0] == "aot_runtime" for name in names), f"{path}:{node.lineno}"  # type: ignore[attr-defined]


def test_auditwheel_agrees_with_the_tag(
    build_bundle: Callable[..., BuildResult], make_wheels: Callable[..., list[Path]], native: Host
) -> None:
    """With the CUDA runtime linked in, as wheels that are handed on have it."""
    result = build_bundle(TESTS_SAMPLE, ("sm_90a",), name="sample_kernels", select=("scale",))
    (wheel,) = make_wheels(result.path)
    runtime = distributions(int(result.manifest.toolchain["cuda"]))[1]
    assert f"pkg:pypi/{runtime}@{result.manifest.toolchain[runtime]}" in dist_info(
        wheel, "sboms/sample_kernels.cdx.json"
    )
    assert f"{runtime} {result.manifest.toolchain[runtime]}" in dist_info(wheel, "licenses/NOTICE")
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert said["external_libs"] == {}
    assert not said["unsupported_isa"]
    family, major, minor, _ = said["overall_tag"].split("_", 3)
    assert (family, major) == ("manylinux", "2")
    assert int(minor) <= native.glibc[1]


TESTS_SAMPLE = EXAMPLE / "kernels"


# What it does, installed.


def test_installed_package_launches_its_kernels(installed: Environment) -> None:
    launches = installed.output(
        CALL
        + """
sample_kernels.scale(x, out)
sample_kernels.scale(x, out, factor=3.0)
y, out = cuda.tensor((1000,), "float32"), cuda.tensor((1000,), "float32")
sample_kernels.clip(y, out, bound="one")
sample_kernels.clip.zero(y, out)
print([(launch.grid[0], launch.block[0]) for launch in cuda.launches])
""",
        standin=True,
    )
    assert launches == "[(8, 128), (8, 128), (4, 256), (4, 256)]"


def test_installed_functions_have_names_defaults_and_documentation(installed: Environment) -> None:
    shown = installed.output(
        """
import inspect, sample_kernels
print(sample_kernels.__version__, sample_kernels.__all__)
for name in ("scale", "clip", "preload"):
    function = getattr(sample_kernels, name)
    print(function.__module__, function.__name__, inspect.signature(function))
print(sample_kernels.scale.__doc__)
"""
    )
    assert shown.splitlines() == [
        "1.0 ['AotError', 'Device', 'TensorInfo', 'clip', 'explain', 'preload', 'scale', 'use_stream']",
        "sample_kernels scale (x, out, factor=2.0)",
        "sample_kernels clip (x, out, *, bound='zero')",
        "sample_kernels preload (kernels=None, device=0)",
        "``out = factor * x``, element by element.",
        "",
        "x (float16[:] or float32[:]): a vector",
        "out (float16[:] or float32[:]; written; shape x.shape; dtype x.dtype): as long as x",
        "factor (float; default 2.0)",
    ]


def test_importing_the_package_loads_nothing(installed: Environment) -> None:
    loaded = installed.output(
        """
import sys, sample_kernels
print([name for name in ("tvm_ffi", "ctypes", "sample_kernels._aot_runtime.core.bundle") if name in sys.modules])
print("scale" in dir(sample_kernels), sample_kernels._loaded)
"""
    )
    assert loaded.splitlines() == ["[]", "True None"]


def test_preload_and_explain_work_without_touching_the_loader(installed: Environment) -> None:
    output = installed.output(
        """
import sample_kernels
sample_kernels.preload(["scale"], "cuda:0")
print(cuda.kernels_ready(0) != [])
vector = sample_kernels.TensorInfo("f16", (8,))
for device in ("9.0", sample_kernels.Device("9.0", "NVIDIA H200", 132)):
    print(sample_kernels.explain("scale", device, vector, vector).chosen.arch)
""",
        standin=True,
    )
    assert output.splitlines() == ["True", "sm_90a", "sm_90a"]


def test_a_package_can_name_the_stream_of_its_kernels(installed: Environment) -> None:
    streams = installed.output(
        CALL
        + """
with sample_kernels.use_stream(0x70):
    sample_kernels.scale(x, out)
sample_kernels.scale(x, out)
print([launch.stream for launch in cuda.launches])
""",
        standin=True,
    )
    assert streams == str([0x70, 0])


def test_two_packages_in_one_process_raise_what_either_catches(
    new_environment: Callable[..., Environment], sample_wheel: Path, sample_bundle: Path, tmp_path: Path
) -> None:
    other = wheels(sample_bundle, Project(Identity.parse("other_kernels", "2.0")))
    environment = new_environment(sample_wheel, *write_wheels(other, tmp_path))
    output = environment.output(
        """
import sample_kernels, other_kernels
packages = (sample_kernels, other_kernels)
functions = [package.scale for package in packages]
for function in functions:
    for package in packages:
        try:
            function(1, 2)
        except package.AotError as error:
            print(type(error).__name__, isinstance(error, TypeError), error.hint)
""",
        standin=True,
    )
    assert output.splitlines() == ["ArgumentError True pass tensors that lie on a GPU"] * 4


def test_installed_bundle_verifies(installed: Environment) -> None:
    assert verify(installed.site_packages / "sample_kernels" / "_bundle") == []


def test_stub_agrees_with_the_package(installed: Environment) -> None:
    program = installed.path / "program.py"
    program.write_text(
        "import sample_kernels\n"
        "class T:\n"
        "    def __dlpack__(self, *, stream: int = -1) -> object: ...\n"
        "class N:\n"
        "    @property\n"
        "    def __cuda_array_interface__(self) -> object: ...\n"
        "t, n = T(), N()\n"
        "sample_kernels.scale(t, n, factor=3)\n"
        "sample_kernels.explain('scale', sample_kernels.Device('9.0', 'NVIDIA H200', 132), t, t)\n"
        "sample_kernels.clip(t, t, bound='one')\n"
        "sample_kernels.clip.one(t, t)\n"
        "sample_kernels.clip(t, t, bound='two')\n"
        "sample_kernels.scale(t)\n"
        "sample_kernels.no_such_kernel\n"
        "sample_kernels.scale(t, 2)\n"
        "sample_kernels.scale(t, t, factor='3')\n"
    )
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed.python), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=installed.path)
    complaints = [line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line]
    assert complaints == ["12", "13", "14", "15", "16"], done.stdout


@pytest.mark.parametrize(
    ("platform", "python", "message"),
    [
        ("manylinux_2_28_{native}", "3.12", None),
        ("manylinux_2_28_{other}", "3.12", "is not a supported wheel on this platform"),
        ("manylinux_2_17_{native}", "3.12", "is not a supported wheel on this platform"),
        ("musllinux_1_2_{native}", "3.12", "is not a supported wheel on this platform"),
        ("manylinux_2_28_{native}", "3.9", "requires a different Python: 3.9.0 not in '>=3.10'"),
    ],
)
def test_pip_refuses_the_wheel_on_the_wrong_platform_or_python(
    sample_wheel: Path, tmp_path: Path, native: Host, platform: str, python: str, message: str | None
) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[native.cpu]
    command = [sys.executable, "-m", "pip", "download", "--no-index", "--no-deps", "--only-binary=:all:",
               f"--platform={platform.format(native=native.cpu, other=other)}", f"--python-version={python}", "--dest",
               str(tmp_path), str(sample_wheel)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode == 0) is (message is None), done.stderr
    assert (message or "") in done.stderr
    assert any(tmp_path.iterdir()) is (message is None)


def test_code_for_another_host_is_named_when_used(installed: Environment, tmp_path: Path) -> None:
    copy = tmp_path / "sample_kernels"
    shutil.copytree(installed.site_packages / "sample_kernels", copy)
    manifest = copy / "_bundle" / "manifest.json"
    data = json.loads(manifest.read_text())
    data["hosts"] = {"riscv64-linux-gnu": next(iter(data["hosts"].values()))}
    before = sha256_of(manifest)
    manifest.write_text(json.dumps(data))
    module = copy / "__init__.py"
    module.write_text(module.read_text().replace(before, sha256_of(manifest)))  # the package pins its manifest
    done = installed.run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sample_kernels; sample_kernels.scale"
    )
    assert "holds no code for this host" in done.stderr
    assert "it has: riscv64-linux-gnu" in done.stderr


def test_older_python_is_refused_with_a_sentence(installed: Environment) -> None:
    done = installed.run("import sys; sys.version_info = (3, 9, 1); import sample_kernels")
    assert "ImportError: sample_kernels 1.0 needs Python 3.10 or newer" in done.stderr


def test_older_tvm_ffi_is_refused_with_a_sentence(installed: Environment) -> None:
    done = installed.run("import tvm_ffi; tvm_ffi.__version__ = '0.0.9'; import sample_kernels; sample_kernels.scale")
    assert f"needs apache-tvm-ffi {LOWEST_TVM_FFI} or newer, installed is 0.0.9" in done.stderr


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--version", "one"], "not a version: 'one'"),
        (["--package", "two-words"], "'two-words' cannot name a package"),
        (["--package", "class"], "'class' cannot name a package"),
        (["--package", "a.b"], "'a.b' cannot name a package"),
        (["--package", "json"], "a package called json would hide Python's own module"),
        (["--package", "tvm_ffi"], "a package called tvm_ffi would hide another project's"),
        (["--package", "kernels"], "a package called kernels would hide another project's"),
        (["--host", "sparc"], "unknown host: 'sparc'"),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(
    sample_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["wheel", str(sample_bundle), "--out", str(tmp_path / "out"), *arguments]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_bundle_without_the_host_is_answered_with_the_hosts_it_has(
    sample_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], native: Host
) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[native.cpu]
    assert main(["wheel", str(sample_bundle), "--out", str(tmp_path / "out"), "--host", other]) == 2
    said = capsys.readouterr().err
    assert f"has no code for {other}-linux-gnu; it has: {native.name}" in said
    assert f"hint: build it with `--host {other}`" in said
    assert not (tmp_path / "out").exists()


def test_damaged_bundle_makes_no_wheel(sample_bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "bundle"
    shutil.copytree(sample_bundle, copy)
    (copy / "details" / "sm_80.json").write_text("{}")
    with pytest.raises(BuildError, match=r"is not sound.*\n  details/sm_80\.json has 2 bytes"):
        wheels(copy, Project(Identity.parse("sample_kernels", "1.0")))


def test_incomplete_bundle_makes_a_wheel_only_when_asked(
    build_bundle: Callable[..., BuildResult], tmp_path: Path
) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    shutil.copy(EXAMPLE / "kernels" / "clip.py", kernels)
    (kernels / "broken.py").write_text("raise OSError('no tuning table')\n")
    bundle = build_bundle(kernels, name="sample_kernels").path
    project = Project(Identity.parse("sample_kernels", "1.0"))
    with pytest.raises(BuildError, match="is incomplete"):
        wheels(bundle, project)
    assert len(wheels(bundle, project, allow_incomplete=True)) == 1


def test_kernel_that_hides_what_every_package_offers_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a kernel called TensorInfo would hide `demo\.TensorInfo`"):
        Identity.parse("demo", "1.0").check_kernels(["TensorInfo"])


def test_wheel_that_cannot_be_written_leaves_nothing(sample_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = wheels(sample_bundle, Project(Identity.parse("sample_kernels", "1.0")))
    with pytest.raises(BuildError, match="cannot write to"):
        write_wheels(made, tmp_path / "file")


def test_command_prints_the_paths_alone(
    sample_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["wheel", str(sample_bundle), "--out", str(tmp_path), "--package", "renamed", "--version", "2.0rc1"]
    assert main(arguments) == 0
    (path,) = capsys.readouterr().out.splitlines()
    assert Path(path).name.startswith("renamed-2.0rc1-py3-none-")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"wheels": [path]}
