"""The file that was hashed is the file that is mapped, whatever happens to its name in the meantime."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aot_runtime
import pytest
from aot_runtime import BundleError, DigestError, IncompleteBundleWarning
from aot_runtime.core import opening
from aot_runtime.description.manifest import Manifest
from forging import accept, forge
from observing import open_below, run_python

from aot.hosts import Host

HOST = Host.native().name
ENTRY = f"lib/{HOST}/libsmall.so"
STEPS = ("_open", "_check_digest", "_hashed", "_spelled", "_load")


@pytest.fixture
def bundle(small_bundle_path: Path, tmp_path: Path) -> Path:
    """A copy that no process has loaded."""
    return Path(shutil.copytree(small_bundle_path, tmp_path / "bundle"))


@pytest.fixture
def foreign(bundle: Path, tmp_path: Path) -> Path:
    """A library of the same size that says it is of another bundle."""
    content = (bundle / ENTRY).read_bytes()
    identity = Manifest.read(bundle).identity(HOST).encode()
    assert content.count(identity) == 1
    path = tmp_path / "foreign.so"
    path.write_bytes(content.replace(identity, 64 * b"f"))
    return path


def carried(bundle: aot_runtime.Bundle) -> str:
    return str(bundle._module.get_function("aot__identity")())


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_library_that_is_replaced_meanwhile_is_never_the_one_that_runs(
    step: str, moment: str, bundle: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original: Callable[..., Any] = getattr(opening, step)

    def replacing(*arguments: Any) -> Any:
        if moment == "before":
            os.replace(foreign, bundle / ENTRY)
        result = original(*arguments)
        if moment == "after":
            os.replace(foreign, bundle / ENTRY)
        return result

    expected = Manifest.read(bundle).identity(HOST)
    monkeypatch.setattr(opening, step, replacing)
    if (step, moment) == ("_open", "before"):
        with pytest.raises(DigestError, match=r"libsmall\.so` has sha256"):
            aot_runtime.load(bundle)
    else:
        assert carried(aot_runtime.load(bundle)) == expected
    assert not foreign.exists()


def test_a_bundle_that_a_build_replaces_meanwhile_is_read_again(
    bundle: Path, small_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is the old bundle or the new one, whole: a loader never mixes the two up."""
    other = Path(shutil.copytree(small_bundle_path, tmp_path / "other"))
    before = Manifest.read(other).identity(HOST)
    forge(other, lambda data: data["toolchain"].update(cuda="99"))
    content = (other / ENTRY).read_bytes()
    (other / ENTRY).write_bytes(content.replace(before.encode(), Manifest.read(other).identity(HOST).encode()))
    accept(other, ENTRY)
    read = Manifest.read
    reads: list[Path] = []

    def exchanging(path: Path, *asked: Any) -> Manifest:
        manifest = read(path, *asked)
        reads.append(path)
        if len(reads) == 1:
            os.rename(bundle, tmp_path / "old")
            os.rename(other, bundle)
        return manifest

    monkeypatch.setattr(Manifest, "read", exchanging)
    loaded = aot_runtime.load(bundle)
    assert loaded.manifest.toolchain["cuda"] == "99"
    assert len(reads) == 2
    assert carried(loaded) == loaded.manifest.identity(HOST)


def test_a_descriptor_that_is_used_again_stands_for_the_new_file(
    bundle: Path, small_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """glibc takes a name that it has seen before for the same library."""
    seen: list[int] = []
    spelled = opening._spelled

    def noting(descriptor: int, facts: os.stat_result) -> str:
        seen.append(descriptor)
        return spelled(descriptor, facts)

    monkeypatch.setattr(opening, "_spelled", noting)
    bundles = [aot_runtime.load(bundle)]
    for number in range(3):
        copy = Path(shutil.copytree(small_bundle_path, tmp_path / f"copy{number}"))
        # Another identity, in the library and in the manifest: every copy is a bundle of its own.
        before = Manifest.read(copy).identity(HOST)
        forge(copy, lambda data: data["toolchain"].update(cuda=str(number)))  # noqa: B023
        content = (copy / ENTRY).read_bytes()
        (copy / ENTRY).write_bytes(content.replace(before.encode(), Manifest.read(copy).identity(HOST).encode()))
        accept(copy, ENTRY)
        bundles.append(aot_runtime.load(copy))
    assert len(set(seen)) < len(seen), "no descriptor was used again: this test tests nothing"
    assert [carried(item) for item in bundles] == [item.manifest.identity(HOST) for item in bundles]
    assert len({carried(item) for item in bundles}) == len(bundles)


@pytest.mark.usefixtures("ends")
def test_a_pipe_in_the_place_of_the_entry_library_is_refused_without_waiting(bundle: Path) -> None:
    (bundle / ENTRY).unlink()
    os.mkfifo(bundle / ENTRY)
    for verify in (True, False):
        with pytest.raises(BundleError, match=r"libsmall\.so` is not a regular file"):
            aot_runtime.load(bundle, verify=verify)


def test_a_backtrace_reads_no_file_that_has_taken_the_descriptor_over(bundle: Path, tmp_path: Path) -> None:
    """TVM-FFI prints backtraces, for which it opens every library by the name that the dynamic linker has for it."""
    code = """
    import os, sys, aot_runtime, tvm_ffi
    bundle = aot_runtime.load(sys.argv[1])
    empty = [os.open(sys.argv[2], os.O_RDONLY | os.O_CREAT) for _ in range(20)]
    for _ in range(3):
        try:
            tvm_ffi.load_module(sys.argv[2])
        except RuntimeError as error:
            print("refused")
    """
    assert run_python(code, bundle, tmp_path / "empty.so") == "refused\nrefused\nrefused"


def test_the_dynamic_linker_names_the_library_by_its_path(bundle: Path) -> None:
    code = """
    import ctypes, sys, aot_runtime
    class Info(ctypes.Structure):
        _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
    found = []
    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    def note(info, size, data):
        found.append(info.contents.name.decode())
        return 0
    aot_runtime.load(sys.argv[1])
    ctypes.CDLL(None).dl_iterate_phdr(note, None)
    print(*(name for name in found if "/proc/" in name or name.startswith(sys.argv[1])))
    """
    assert run_python(code, bundle) == str(bundle / ENTRY)


def test_loading_leaves_no_descriptor_open(bundle: Path) -> None:
    for _ in range(20):
        aot_runtime.load(bundle)
    assert open_below(bundle) == []


# What the manifest asks of the process


def test_another_binary_interface_of_tvm_ffi_is_refused(bundle: Path) -> None:
    forge(bundle, lambda data: data["requires"].update(tvm_ffi_abi=7))
    with pytest.raises(BundleError, match="was built for version 7 of TVM-FFI's binary interface") as caught:
        aot_runtime.load(bundle)
    assert caught.value.hint is not None and "apache-tvm-ffi>=" in caught.value.hint


def test_an_older_tvm_ffi_than_needed_is_refused(bundle: Path) -> None:
    forge(bundle, lambda data: data["requires"].update(tvm_ffi="99.1"))
    with pytest.raises(BundleError, match=r"needs apache-tvm-ffi 99\.1 or newer, installed is"):
        aot_runtime.load(bundle)


def test_kernels_that_were_altered_are_refused(bundle: Path) -> None:
    path = bundle / "kernels.json"
    path.write_bytes(path.read_bytes().replace(b"what is filled", b"what is killed"))
    with pytest.raises(DigestError, match=r"kernels\.json` is not the file that `manifest\.json` names"):
        aot_runtime.load(bundle)


# Incomplete bundles


FAILURE = {"kernel": "gone", "arch": "sm_80", "variant": "gone__f16", "message": "too much shared memory"}


def incomplete(bundle: Path) -> Path:
    """The same bundle as if one of its kernels had failed to build."""
    before = Manifest.read(bundle).identity(HOST)
    forge(bundle, lambda data: data.update(complete=False, failures=[FAILURE]))
    content = (bundle / ENTRY).read_bytes()
    (bundle / ENTRY).write_bytes(content.replace(before.encode(), Manifest.read(bundle).identity(HOST).encode()))
    accept(bundle, ENTRY)
    return bundle


def test_an_incomplete_bundle_warns_and_names_what_is_missing_when_asked_for_it(bundle: Path) -> None:
    with pytest.warns(IncompleteBundleWarning, match="is incomplete, 1 builds failed: gone;") as caught:
        loaded = aot_runtime.load(incomplete(bundle))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.raises(KeyError, match="gone__f16 failed to build for sm_80: too much shared memory"):
        loaded["gone"]
    with pytest.raises(AttributeError, match="gone__f16 failed to build for sm_80"):
        loaded.gone  # noqa: B018
    assert loaded.fill_stream_zero.__doc__


def test_an_incomplete_bundle_warns_once(bundle: Path) -> None:
    code = """
    import sys, warnings, aot_runtime
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            aot_runtime.load(sys.argv[1])
    print(len(caught))
    """
    assert run_python(code, incomplete(bundle)) == "1"


def test_a_path_that_is_not_utf_8_is_refused_in_a_sentence(bundle: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"b\xff")
    bundle.rename(odd)
    for verify in (True, False):
        with pytest.raises(BundleError, match="is not UTF-8"):
            aot_runtime.load(odd, verify=verify)


def test_a_close_that_fails_changes_nothing(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def failing(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "close", failing)
    loaded = aot_runtime.load(bundle)
    monkeypatch.undo()
    assert carried(loaded) == loaded.manifest.identity(HOST)


def test_a_name_of_an_open_file_tells_devices_apart() -> None:
    """Two files may have one inode number, on two devices."""
    facts = [os.stat_result((0o100644, 7, device, 1, 0, 0, 0, 0, 0, 0)) for device in (1, 2, 3)]
    assert len({opening._spelled(5, one) for one in facts}) == 3
    other = os.stat_result((0o100644, 8, 1, 1, 0, 0, 0, 0, 0, 0))
    assert opening._spelled(5, facts[0]) != opening._spelled(5, other)


FORKS_BESIDE_AN_OPENING = """
    import os, threading, time, types
    from aot_runtime import BundleError
    from aot_runtime.core import opening

    half_written, opened, forking = [], threading.Event(), threading.Event()

    def load(name, kind):
        half_written.append(name)
        opened.set()
        forking.wait()
        for _ in range(2000):
            time.sleep(0)  # the other thread forks meanwhile, unless it waits
        half_written.clear()
        raise RuntimeError("opened")

    def attempt():
        try:
            opening.open_library("/proc/self/exe", None)
        except BundleError:
            pass

    opening.tvm_ffi = types.SimpleNamespace(get_global_func=lambda name: load)
    thread = threading.Thread(target=attempt)
    thread.start()
    opened.wait()
    forking.set()
    child = os.fork()
    if child == 0:
        os._exit(len(half_written))
    print("half written:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    thread.join()
"""


def test_a_fork_waits_for_a_thread_that_opens_a_library() -> None:
    """The lists of the dynamic linker are half written meanwhile, and the child would keep them so."""
    assert run_python(FORKS_BESIDE_AN_OPENING).splitlines()[-1] == "half written: 0"
