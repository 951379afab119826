"""CMake's import with KEY: a bundle that is not signed by a trusted key stops the build, and programs open no other."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import aot_runtime.native
import pytest

from aot.bundle.signature import Signer, new_key
from aot.bundle.signing import sign
from tests.cpp.conftest import HERE, TVM_FFI, Project, cmake, run

CMAKE_DIR = aot_runtime.native.cmake_directory()


@pytest.fixture
def app(project: Project, tmp_path: Path) -> Path:
    """The program's source beside a signed copy of the bundle and the keys ``release`` and ``other``."""
    source = Path(shutil.copytree(HERE / "signed", tmp_path / "app"))
    shutil.copytree(project.bundle, tmp_path / "bundle")
    for name in ("release", "other"):
        new_key(source / name)
    sign(tmp_path / "bundle", Signer.read(source / "release"))
    return source


def configure(app: Path, lines: str | None = None) -> subprocess.CompletedProcess[str]:
    if lines is not None:
        text = (app / "CMakeLists.txt").read_text()
        (app / "CMakeLists.txt").write_text(re.sub(r"^cute_aot_import_bundle.*$", lines, text, flags=re.MULTILINE))
    command = [cmake(), "-S", app, "-B", app.parent / "build", f"-Dcute_aot_DIR={CMAKE_DIR}",
               f"-DBUNDLE={app.parent / 'bundle'}", f"-DCUTE_AOT_PYTHON={sys.executable}",
               f"-DCUTE_AOT_TVM_FFI_LIBRARY={TVM_FFI}"]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True)


def refused(app: Path, said: str, lines: str | None = None) -> None:
    done = configure(app, lines)
    assert done.returncode != 0
    assert said in re.sub(r"\s+", " ", done.stderr)


def test_a_program_opens_the_signed_bundle_it_was_built_for_and_no_other(app: Path, project: Project) -> None:
    done = configure(app)
    assert done.returncode == 0, done.stderr
    run(cmake(), "--build", app.parent / "build")
    program = app.parent / "build" / "app"

    def opened(bundle: Path) -> str:
        environment = {"LD_LIBRARY_PATH": str(TVM_FFI.parent)}
        return subprocess.run([program, bundle], capture_output=True, text=True, env=environment).stdout

    assert opened(app.parent / "bundle") == "opened\n"
    assert opened(project.bundle) == "opened\n", "the same manifest, without a signature"
    assert "is not the manifest that this program was built for" in opened(project.newer)


def test_a_bundle_that_is_signed_anew_is_checked_again_by_the_next_build(app: Path) -> None:
    assert configure(app).returncode == 0
    run(cmake(), "--build", app.parent / "build")
    sign(app.parent / "bundle", Signer.read(app / "other"))
    done = subprocess.run([cmake(), "--build", app.parent / "build"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "is not by a trusted key" in re.sub(r"\s+", " ", done.stderr + done.stdout)


def test_any_of_several_keys_will_do(app: Path) -> None:
    done = configure(app, 'cute_aot_import_bundle(kernels "${BUNDLE}" OPENED KEY other.pub release.pub)')
    assert done.returncode == 0, done.stderr


def unsigned(bundle: Path) -> None:
    (bundle / "manifest.sig").unlink()


def altered_manifest(bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes((bundle / "manifest.json").read_bytes() + b"\n")


def altered_library(bundle: Path) -> None:
    library = next(bundle.glob("lib/*/sm_90a/*.so"))
    library.write_bytes(library.read_bytes()[:-1] + b"\0\0")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unsigned, "is not signed"),
        (altered_manifest, "or its manifest was altered"),
        (altered_library, "bytes, the manifest says"),
    ],
)
def test_a_bundle_that_is_not_as_signed_stops_the_build(change: Callable[[Path], None], said: str, app: Path) -> None:
    change(app.parent / "bundle")
    refused(app, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("OPENED KEY other.pub", "is not by a trusted key"),
        ("OPENED KEY missing.pub", "cannot read"),
        ("OPENED KEY", "KEY is empty"),
        ('OPENED KEY "${NOTHING}"', "KEY is empty"),
        ('OPENED MANIFEST_SHA256 "${NOTHING}"', "MANIFEST_SHA256 is empty"),
        ("OPENED MANIFEST_SHA256 0000", "expected 0000"),
        ("OPENED STATIC KEY release.pub", "one of STATIC, SHARED and OPENED"),
    ],
)
def test_keys_and_digests_that_are_wrong_stop_the_build(arguments: str, said: str, app: Path) -> None:
    refused(app, said, f'cute_aot_import_bundle(kernels "${{BUNDLE}}" {arguments})')


@pytest.mark.parametrize("kind", ["OPENED", "SHARED", "STATIC"])
def test_a_digest_is_enough_to_pin_a_bundle(kind: str, app: Path) -> None:
    digest = hashlib.sha256((app.parent / "bundle" / "manifest.json").read_bytes()).hexdigest()
    done = configure(app, f'cute_aot_import_bundle(kernels "${{BUNDLE}}" {kind} MANIFEST_SHA256 {digest})')
    assert done.returncode == 0, done.stderr
    flags = [path.read_text() for path in (app.parent / "build").rglob("flags.make")]
    flags += [path.read_text() for path in (app.parent / "build").glob("build.ninja")]
    assert any(digest in text for text in flags)


# A program that trusts a key: `aot_options.key`.

OPENS = """
#include <aot/aot.h>
int main(int count, char** arguments) {
  aot_bundle bundle;
  aot_options options;
  memset(&options, 0, sizeof options);
  options.tvm_ffi = arguments[1];
  options.key = arguments[3];
  if (count > 4) options.name = arguments[4];
  const int code = aot_open(arguments[2], &options, &bundle);
  printf("%d %s", code, code == AOT_OK ? bundle.library->name : aot_error_text());
  return 0;
}
"""
OK, USAGE, DIGEST, SIGNATURE = 0, 1, 6, 14


@pytest.fixture(scope="module")
def opens(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., int]:
    """The code that a C program gets which opens a bundle with keys, and perhaps a name."""
    folder = tmp_path_factory.mktemp("opens")
    (folder / "opens.c").write_text(OPENS)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{aot_runtime.native.include_directory()}"]
    run("cc", *flags, folder / "opens.c", "-o", folder / "opens", "-ldl", "-pthread")

    def ask(bundle: Path, *trusted: str) -> int:
        return int(run(folder / "opens", TVM_FFI, bundle, *trusted).split()[0])

    return ask


@pytest.fixture
def signed(project: Project, tmp_path: Path) -> tuple[Path, str]:
    """A signed copy of the bundle, and its signer's key."""
    bundle = Path(shutil.copytree(project.bundle, tmp_path / "signed"))
    new_key(tmp_path / "release")
    signer = Signer.read(tmp_path / "release")
    sign(bundle, signer)
    return bundle, signer.public.hex()


def test_a_c_program_opens_what_a_trusted_key_has_signed(opens: Callable[..., int], signed: tuple[Path, str]) -> None:
    bundle, key = signed
    assert opens(bundle, key) == opens(bundle, f"{64 * '0'} {key}") == opens(bundle, f" {key}  {64 * '1'}") == OK
    assert opens(bundle, 64 * "0") == SIGNATURE
    (bundle / "manifest.sig").write_bytes((bundle / "manifest.sig").read_bytes() + b"\0")
    assert opens(bundle, key) == SIGNATURE
    (bundle / "manifest.sig").unlink()
    assert opens(bundle, key) == SIGNATURE


def test_a_c_program_refuses_another_bundle_of_the_same_signer(
    opens: Callable[..., int], signed: tuple[Path, str]
) -> None:
    bundle, key = signed
    assert opens(bundle, key, "bundle") == OK
    for name in ("bundl", "bundle2", "other", ""):
        assert opens(bundle, key, name) == SIGNATURE


@pytest.mark.parametrize("keys", ["", " ", "00", 63 * "0", 64 * "A", 65 * "0", f"{64 * '0'},{64 * '0'}"])
def test_keys_that_cannot_be_right_are_refused(keys: str, opens: Callable[..., int], signed: tuple[Path, str]) -> None:
    assert opens(signed[0], keys) == USAGE


def test_a_c_program_refuses_altered_files_of_a_signed_bundle(
    opens: Callable[..., int], signed: tuple[Path, str]
) -> None:
    bundle, key = signed
    manifest = (bundle / "manifest.json").read_bytes()
    (bundle / "manifest.json").write_bytes(manifest.replace(b'"complete": true', b'"complete":  true'))
    assert opens(bundle, key) == SIGNATURE
    (bundle / "manifest.json").write_bytes(manifest)
    entry = bundle / "lib" / f"{platform.machine()}-linux-gnu" / "libbundle.so"
    content = bytearray(entry.read_bytes())
    content[-1] ^= 1
    entry.write_bytes(content)
    assert opens(bundle, key) == DIGEST
