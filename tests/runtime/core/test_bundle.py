"""Loading: digests, places, threads, missing drivers, failing CUDA calls, preloading, captures."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aot_runtime
import pytest
import tvm_ffi
from aot_runtime import (
    ArgumentError,
    BundleError,
    CaptureError,
    CudaError,
    DeviceError,
    DigestError,
    DriverError,
    ManifestError,
    NotFoundError,
    TensorInfo,
    UsageError,
)
from forging import forge
from observing import mapped_kernels, mapped_libraries, only_block, run_python
from standin import Standin, hide_driver, search_path

MakeBundle = Callable[..., aot_runtime.Bundle]
HOST = f"{platform.machine()}-linux-gnu"
ENTRY = f"lib/{HOST}/libbundle.so"
SUPPORT = f"lib/{HOST}/libbundle_cuda.so"
KERNEL = f"lib/{HOST}/sm_90a/fill.so"


@pytest.fixture
def copy(cuda: Standin, standin_bundle_path: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that no process has loaded."""
    return Path(shutil.copytree(standin_bundle_path, tmp_path / "copy"))


def alter(path: Path) -> None:
    """Change the last byte: part of a table of sections, which running code never reads."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    replace(path, bytes(content))


def replace(path: Path, content: bytes) -> None:
    """As an installer does: under a new name first, so that what is mapped stays what it was."""
    fresh = path.with_name("fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


def call(bundle: aot_runtime.Bundle, cuda: Standin, device: int = 0) -> None:
    bundle.fill(cuda.tensor((8,), "float32", device=device))


# Digests


def test_an_altered_entry_library_is_not_loaded(copy: Path) -> None:
    alter(copy / ENTRY)
    with pytest.raises(DigestError, match=r"libbundle\.so` has sha256 [0-9a-f]{64}, expected [0-9a-f]{64}") as caught:
        aot_runtime.load(copy)
    assert caught.value.hint is not None and "`python -m aot verify`" in caught.value.hint


def test_a_truncated_entry_library_is_not_loaded(copy: Path) -> None:
    content = (copy / ENTRY).read_bytes()
    replace(copy / ENTRY, content[:-1])
    with pytest.raises(DigestError, match=f"has {len(content) - 1} bytes, expected {len(content)}"):
        aot_runtime.load(copy)
    replace(copy / ENTRY, content + b"\0")
    with pytest.raises(DigestError, match=f"has more bytes, expected {len(content)}"):
        aot_runtime.load(copy)


def test_a_missing_entry_library_is_named(copy: Path) -> None:
    (copy / ENTRY).unlink()
    for verify in (True, False):
        with pytest.raises(BundleError, match=re.escape(ENTRY)):
            aot_runtime.load(copy, verify=verify)


@pytest.mark.parametrize("file", [KERNEL, SUPPORT])
def test_a_library_is_opened_only_if_its_digest_matches(file: str, copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    good = (copy / file).read_bytes()
    alter(copy / file)
    seen = hashlib.sha256((copy / file).read_bytes()).hexdigest()
    with pytest.raises(DigestError) as caught:
        call(bundle, cuda)
    assert caught.value.message == (
        f"`{copy / file}` is not the file this bundle was built with: sha256 {seen}, "
        f"expected {hashlib.sha256(good).hexdigest()}"
    )
    assert caught.value.hint is not None and "`python -m aot verify` tells" in caught.value.hint
    assert Path(file).name not in {Path(name).name for name in mapped_libraries(bundle)}
    replace(copy / file, good)
    call(bundle, cuda)
    assert only_block(cuda) == 128


@pytest.mark.parametrize("file", [KERNEL, SUPPORT])
def test_a_truncated_library_is_not_opened(file: str, copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    content = (copy / file).read_bytes()
    for wrong in (content[:-1], b"", content + b"\0"):
        replace(copy / file, wrong)
        with pytest.raises(DigestError, match=f"has {len(wrong)} bytes, expected {len(content)}"):
            call(bundle, cuda)


@pytest.mark.parametrize("file", [KERNEL, SUPPORT])
@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_library_is_named_and_found_once_it_is_there(
    file: str, verify: bool, copy: Path, cuda: Standin
) -> None:
    bundle = aot_runtime.load(copy, verify=verify)
    (copy / file).rename(copy / "elsewhere")
    with pytest.raises(BundleError, match=re.escape(str(copy / file))) as caught:
        call(bundle, cuda)
    assert not isinstance(caught.value, DigestError)
    if verify:
        assert caught.value.message == f"`{copy / file}` is missing"
        assert caught.value.hint == "reinstall or rebuild the bundle"
    (copy / "elsewhere").rename(copy / file)
    call(bundle, cuda)
    assert only_block(cuda) == 128


@pytest.mark.parametrize(
    ("note", "named"),
    [
        ("fill-sm-90a==1.0+cu12\n", "fill-sm-90a==1.0+cu12"),
        ("", None),
        ("--index-url=https://example.org", None),
        ("fill; echo", None),
        ("fill`", None),
        ("fill\x1b[2K", None),
        ("fill\u00e9", None),
    ],
)
def test_the_note_of_a_missing_part_is_shown_only_if_it_names_a_distribution(
    note: str, named: str | None, copy: Path, cuda: Standin
) -> None:
    bundle = aot_runtime.load(copy)
    (copy / KERNEL).unlink()
    (copy / KERNEL).parent.with_suffix(".part").write_text(note)
    with pytest.raises(BundleError, match="is missing") as caught:
        call(bundle, cuda)
    hint = caught.value.hint or ""
    assert hint == f"`pip install {named}`" if named else "pip" not in hint and "fill" not in hint


def test_a_library_that_was_exchanged_after_loading_is_not_opened(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    bundle.fill_stream_zero(cuda.tensor((8,), "float32"))
    replace(copy / KERNEL, (copy / f"lib/{HOST}/sm_80/fill.so").read_bytes())
    with pytest.raises(DigestError, match=r"not the file this bundle was built with|bytes, expected"):
        call(bundle, cuda)


def test_what_is_open_already_is_not_looked_at_again(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    call(bundle, cuda)
    shutil.rmtree(copy)
    call(bundle, cuda)
    assert len(cuda.launches) == 2


def test_other_kernels_do_not_suffer_from_one_that_is_damaged(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    alter(copy / KERNEL)
    with pytest.raises(DigestError):
        call(bundle, cuda)
    bundle.fill_stream_zero(cuda.tensor((8,), "float32"))
    assert only_block(cuda) == 32


def test_without_verification_altered_files_are_opened(copy: Path, cuda: Standin) -> None:
    for file in (ENTRY, KERNEL, SUPPORT):
        alter(copy / file)
    bundle = aot_runtime.load(copy, verify=False)
    call(bundle, cuda)
    assert only_block(cuda) == 128


def test_without_verification_the_manifest_is_still_checked(copy: Path) -> None:
    forge(copy, lambda data: data["hosts"][HOST]["entry"].update(path="../outside.so"))
    with pytest.raises(ManifestError, match="the path leaves the bundle"):
        aot_runtime.load(copy, verify=False)


def test_without_verification_what_is_no_library_is_still_an_error_of_the_bundle(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy, verify=False)
    replace(copy / KERNEL, b"not a library")
    with pytest.raises(BundleError, match=re.escape(f"cannot open `{copy / KERNEL}`")):
        call(bundle, cuda)
    replace(copy / KERNEL, (copy / SUPPORT).read_bytes())
    with pytest.raises(BundleError, match=r"`sm_90a/fill\.so` is not a kernel library"):
        call(bundle, cuda)


@pytest.mark.parametrize("content", [b"", b"not a library", SUPPORT])
def test_without_verification_what_is_no_entry_library_is_still_an_error_of_the_bundle(
    content: bytes | str, copy: Path
) -> None:
    replace(copy / ENTRY, content if isinstance(content, bytes) else (copy / content).read_bytes())
    with pytest.raises(BundleError, match=re.escape(f"cannot open `{copy / ENTRY}`")):
        aot_runtime.load(copy, verify=False)


@pytest.mark.parametrize("order", [(False, True), (True, False)])
def test_the_strictest_loader_of_a_process_wins(order: tuple[bool, bool], copy: Path, cuda: Standin) -> None:
    bundles = [aot_runtime.load(copy, verify=verify) for verify in order]
    alter(copy / KERNEL)
    for bundle in bundles:
        with pytest.raises(DigestError):
            call(bundle, cuda)


# What the manifest says


def test_a_bundle_of_another_host_says_what_it_has(copy: Path) -> None:
    forge(copy, lambda data: data.update(hosts={"riscv64-linux-gnu": data["hosts"][HOST]}))
    with pytest.raises(BundleError, match=f"holds no code for this host, {HOST}; it has: riscv64-linux-gnu") as caught:
        aot_runtime.load(copy)
    assert caught.value.hint == f"build it with `--host {platform.machine()}`"


@pytest.mark.parametrize("path", ["absent", "copy/lib"])
def test_what_is_not_a_bundle_is_refused(path: str, copy: Path) -> None:
    with pytest.raises(ManifestError, match="is not a bundle"):
        aot_runtime.load(copy.parent / path)


# Places


def test_a_bundle_of_symlinks_works(copy: Path, cuda: Standin, tmp_path: Path) -> None:
    """As hub caches install: every file a link into a store that knows no names."""
    linked, store = tmp_path / "linked", tmp_path / "store"
    store.mkdir()
    for file in [file for file in copy.rglob("*") if file.is_file()]:
        blob = store / hashlib.sha256(file.read_bytes()).hexdigest()
        link = linked / file.relative_to(copy)
        link.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(blob)
    shutil.rmtree(copy)
    bundle = aot_runtime.load(linked)
    call(bundle, cuda)
    bundle.fill_everywhere(cuda.tensor((8,), "float32"))
    assert len(cuda.launches) == 2


def test_a_symlink_to_a_bundle_works(copy: Path, cuda: Standin, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(copy)
    call(aot_runtime.load(tmp_path / "link"), cuda)
    assert only_block(cuda) == 128


def test_a_symlink_that_dangles_is_a_missing_file(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    (copy / KERNEL).unlink()
    (copy / KERNEL).symlink_to("nowhere")
    with pytest.raises(BundleError, match="is missing"):
        call(bundle, cuda)


def test_loading_and_calling_writes_nothing(copy: Path, cuda: Standin) -> None:
    entries = sorted(copy.rglob("*"))
    for entry in (*entries, copy):
        entry.chmod(0o555 if entry.is_dir() else 0o444)
    times = {entry: entry.stat().st_mtime_ns for entry in (*entries, copy)}
    try:
        bundle = aot_runtime.load(copy)
        call(bundle, cuda)
        bundle.preload()
        bundle.explain("fill", "8.0", TensorInfo("f32", (8,)))
        assert sorted(copy.rglob("*")) == entries
        assert {entry: entry.stat().st_mtime_ns for entry in (*entries, copy)} == times
    finally:
        for entry in (copy, *entries):
            entry.chmod(0o755)


@pytest.mark.parametrize("name", ["with spaces", "Größe-Ω-内核", "100%s %n", "quote'\"`", "new\nline", "a" * 200])
def test_a_path_may_hold_any_letters(name: str, copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy.rename(copy.with_name(name)))
    call(bundle, cuda)
    assert only_block(cuda) == 128
    (bundle.path / f"lib/{HOST}/sm_90a/fill_everywhere.so").unlink()
    with pytest.raises(BundleError) as caught:
        bundle.fill_everywhere(cuda.tensor((8,), "float32"))
    assert str(bundle.path) in caught.value.message


def test_a_path_may_be_bytes(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(os.fsencode(copy))  # type: ignore[arg-type]
    bundle.fill_stream_zero(cuda.tensor((8,), "float32"))


@pytest.mark.parametrize("verify", [None, "", "no"])
def test_verification_is_turned_off_by_false_alone(verify: Any, copy: Path) -> None:
    with pytest.raises(UsageError, match=f"verify={verify!r}"):
        aot_runtime.load(copy, verify=verify)


@pytest.mark.parametrize("kind", [str, Path])
def test_a_relative_path_survives_a_change_of_directory(
    kind: Callable[[str], Any], copy: Path, cuda: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    bundle = aot_runtime.load(kind(copy.name))
    monkeypatch.chdir("/")
    call(bundle, cuda)
    assert only_block(cuda) == 128
    assert bundle.path == copy


def test_a_bundle_that_moved_before_loading_works(copy: Path, cuda: Standin, tmp_path: Path) -> None:
    call(aot_runtime.load(copy), cuda)
    moved = Path(shutil.copytree(copy, tmp_path / "moved"))
    shutil.rmtree(copy)
    call(aot_runtime.load(moved), cuda)
    assert len(cuda.launches) == 2


# Once, twice, many times


def test_a_bundle_loaded_twice_loads_its_code_once(copy: Path, cuda: Standin) -> None:
    first, second = aot_runtime.load(copy), aot_runtime.load(copy)
    call(first, cuda)
    call(second, cuda)
    assert len(cuda.launches) == 2
    assert len(cuda.loads) == 1


def test_two_bundles_in_one_process_do_not_meet(copy: Path, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundles = [fresh_bundle((9, 0)), aot_runtime.load(copy)]
    for bundle in bundles:
        call(bundle, cuda)
        assert mapped_kernels(bundle) == {"sm_90a/fill.so"}
    assert len(cuda.loads) == len(cuda.launches) == 2


def test_code_stays_mapped_after_the_bundle_is_gone(copy: Path, cuda: Standin) -> None:
    bundle = aot_runtime.load(copy)
    call(bundle, cuda)
    path = SimpleNamespace(path=bundle.path)
    mapped = mapped_libraries(bundle)
    assert mapped == {"libbundle.so", "libbundle_cuda.so", "sm_90a/fill.so"}
    function = bundle.fill
    del bundle
    gc.collect()
    assert mapped_libraries(path) == mapped  # type: ignore[arg-type]
    function(cuda.tensor((8,), "float32"))
    del function
    gc.collect()
    assert mapped_libraries(path) == mapped  # type: ignore[arg-type]
    assert len(cuda.launches) == 2


def test_threads_may_load_and_call_for_the_first_time_at_once(copy: Path, cuda: Standin) -> None:
    cuda.reset([(9, 0), (8, 6)])
    count = 16
    start = threading.Barrier(count)

    def work(number: int) -> None:
        device = number % 2
        out = cuda.tensor((8,), "float32", device=device)
        start.wait()
        bundle = aot_runtime.load(copy)
        bundle.fill(out)
        bundle.fill_guarded(out, 1.0)
        bundle.fill_everywhere(out)
        if device == 0:
            bundle.fill_clusters(out)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
    assert len(cuda.launches) == 3 * count + count // 2
    assert len({launch.thread for launch in cuda.launches}) == count
    # Four kernels on the first device, three on the second, each loaded once.
    assert len(cuda.loads) == 7
    assert cuda.calls("cuOccupancyMaxActiveClusters") == 1


def test_threads_may_share_a_bundle(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    count, rounds = 16, 50
    start = threading.Barrier(count)

    def work(number: int) -> list[str]:
        good, bad = cuda.tensor((8,), "float32"), cuda.tensor((8,), "int32")
        messages = []
        start.wait()
        for _ in range(rounds):
            bundle.fill(good)
            with pytest.raises(ArgumentError) as caught:
                bundle.fill(bad)
            messages.append(caught.value.message)
            assert bundle.explain("fill", "8.0", good).chosen is not None
        return messages

    with ThreadPoolExecutor(count) as pool:
        messages = {message for result in pool.map(work, range(count)) for message in result}
    assert len(messages) == 1
    assert len(cuda.launches) == count * rounds
    assert len(cuda.loads) == 1


def test_a_thread_that_never_used_cuda_may_call(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    bundle.preload(0)
    out = cuda.tensor((8,), "float32")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(bundle.fill_clusters, out).result()
        pool.submit(bundle.fill_pointer, 0x7F00_0000_0000, 8, 0).result()
    assert len(cuda.launches) == 2


# Machines without a driver


def test_without_a_device_calls_fail_and_explanations_do_not(copy: Path, cuda: Standin) -> None:
    cuda.reset([])
    bundle = aot_runtime.load(copy)
    out = cuda.tensor((8,), "float32")
    chosen = bundle.explain("fill", "9.0", out).chosen
    assert chosen is not None and chosen.arch == "sm_90a"
    for function in (lambda: bundle.fill(out), lambda: bundle.preload(0), lambda: bundle.fill_pointer(1, 8, 0)):
        with pytest.raises(DriverError, match=r"cuInit failed: CUDA_ERROR_NO_DEVICE \(100\)") as caught:
            function()
        assert caught.value.hint is not None and "nvidia-smi" in caught.value.hint
    cuda.reset([(9, 0)])
    call(bundle, cuda)
    assert only_block(cuda) == 128


def test_without_libcuda_calls_fail_and_explanations_do_not(
    copy: Path, standin_directory: Path, tmp_path: Path
) -> None:
    output = run_python(
        """
        import ctypes, sys
        import aot_runtime
        from standin import Standin

        bundle = aot_runtime.load(sys.argv[1])
        # Tensors alone, of the stand-in: neither its driver nor its runtime.
        cuda = Standin(ctypes.CDLL(sys.argv[2] + "/libstandin.so"), None, None)
        out = cuda.tensor((8,), "float32")
        print(bundle.explain("fill", "9.0", out).chosen.variant)
        for call in (lambda: bundle.fill(out), lambda: bundle.preload(), lambda: bundle.fill_pointer(1, 8, 0)):
            try:
                call()
            except aot_runtime.DriverError as error:
                print(error)
        """,
        copy,
        standin_directory,
        variables=search_path(hide_driver(tmp_path / "hidden")),
    )
    chosen, *messages = output.splitlines()
    assert chosen == "fill__f32__aligned"
    assert len(messages) == 6
    assert all("there is no NVIDIA driver on this machine: " in message for message in messages[::2])
    assert all("libcuda.so.1: file too short" in message for message in messages[::2])
    assert set(messages[1::2]) == {"hint: install the driver, or in a container pass the GPU through (`--gpus all`)"}


# Failing calls

FAULTS = [
    ("cudaLibraryLoadData", 2, CudaError, "cudaErrorMemoryAllocation (2): out of memory"),
    ("cudaLibraryGetKernel", 500, CudaError, "cudaErrorSymbolNotFound (500): named symbol not found"),
    ("cudaKernelSetAttributeForDevice", 1, CudaError, "cudaErrorInvalidValue (1): invalid argument"),
    ("cudaSetDevice", 999, CudaError, "cudaErrorUnknown (999): unknown error"),
    ("cudaGetDevice", 3, CudaError, "cudaErrorInitializationError (3): initialization error"),
    ("cudaLaunchKernelExC", 701, CudaError, "cudaErrorLaunchOutOfResources (701): too many resources requested"),
    ("cuInit", 999, DriverError, "cuInit failed: CUDA_ERROR_UNKNOWN (999)"),
    ("cuDeviceGetCount", 3, DriverError, "cuDeviceGetCount failed: CUDA_ERROR_NOT_INITIALIZED (3)"),
    ("cuDeviceGet", 101, DriverError, "asking for the device's capability failed: CUDA_ERROR_INVALID_DEVICE (101)"),
    ("cuDeviceGetAttribute", 1, DriverError, "capability failed: CUDA_ERROR_INVALID_VALUE (1)"),
    ("cuOccupancyMaxActiveClusters", 2, DriverError, "MaxActiveClusters failed: CUDA_ERROR_OUT_OF_MEMORY (2)"),
    ("cuOccupancyMaxActiveClusters", 12345, DriverError, "MaxActiveClusters failed: unknown error (12345)"),
]


@pytest.mark.parametrize(("function", "code", "error", "message"), FAULTS)
def test_a_call_that_fails_at_first_use_is_reported_and_the_next_works(
    function: str, code: int, error: type[Exception], message: str, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((9, 0))
    out = cuda.tensor((8,), "float32")
    cuda.fail(function, code)
    with pytest.raises(error, match=re.escape(message)) as caught:
        bundle.fill_clusters(out)
    assert type(caught.value) is error
    assert cuda.launches == []
    for _ in range(2):
        bundle.fill_clusters(out)
    assert [launch.cluster for launch in cuda.launches] == 2 * [(2, 1, 1)]


@pytest.mark.parametrize(("function", "code", "error", "message"), [fault for fault in FAULTS if fault[0] != "cuInit"])
def test_a_call_that_fails_for_a_second_device_leaves_the_first_alone(
    function: str, code: int, error: type[Exception], message: str, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((9, 0), (10, 0))
    first, second = (cuda.tensor((8,), "float32", device=device) for device in (0, 1))
    bundle.fill_clusters(first)
    # Counted and library-wide functions know no device; the current one is still the first where that is asked.
    anywhere = function in ("cuDeviceGetCount", "cudaGetDevice")
    cuda.fail(function, code, device=None if anywhere else 1)
    with pytest.raises(error, match=re.escape(message)):
        bundle.fill_clusters(second)
    bundle.fill_clusters(first)
    bundle.fill_clusters(second)
    assert [launch.device for launch in cuda.launches] == [0, 0, 1]


@pytest.mark.parametrize(
    ("function", "code", "name"),
    [
        ("cudaLaunchKernelExC", 719, "cudaErrorLaunchFailure"),
        ("cudaGetDevice", 3, "cudaErrorInitializationError"),
        ("cudaSetDevice", 101, "cudaErrorInvalidDevice"),
    ],
)
@pytest.mark.parametrize("kernel", ["fill", "fill_everywhere"])
def test_a_call_that_fails_later_is_reported_and_the_next_works(
    function: str, code: int, name: str, kernel: str, cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((9, 0), (9, 0))
    out = cuda.tensor((8,), "float32", device=1)
    bundle[kernel](out)
    cuda.fail(function, code)
    with pytest.raises(CudaError, match=re.escape(f"{name} ({code})")):
        bundle[kernel](out)
    bundle[kernel](out)
    assert [launch.device for launch in cuda.launches] == [1, 1]


def test_a_call_that_keeps_failing_keeps_saying_so(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    cuda.fail("cudaLibraryLoadData", 2, times=None)
    for _ in range(3):
        with pytest.raises(CudaError, match=r"cannot load fill__f32__aligned on device 0: cudaErrorMemoryAllocation"):
            call(bundle, cuda)
    assert cuda.calls("cudaLibraryLoadData") == 3


def test_the_loading_of_one_variant_does_not_wait_for_the_others(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    cuda.fail("cudaLibraryLoadData", 2, after=1, times=None)
    call(bundle, cuda)
    with pytest.raises(CudaError):
        bundle.fill(cuda.tensor((8,), "float16"))
    call(bundle, cuda)
    assert len(cuda.launches) == 2


def test_an_incompatible_second_device_does_not_disturb_the_first(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (8, 7))
    for _ in range(2):
        call(bundle, cuda)
        with pytest.raises(DeviceError, match=r"no code for device 1, of compute capability 8\.7"):
            call(bundle, cuda, device=1)
    assert [launch.device for launch in cuda.launches] == [0, 0]


def test_a_second_device_of_the_same_kind_shares_the_library(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (9, 0))
    for device in (0, 1):
        call(bundle, cuda, device)
    assert len(cuda.loads) == 1
    assert [launch.device for launch in cuda.launches] == [0, 1]


# Preloading and captures


def variants(bundle: aot_runtime.Bundle, arch: str, kernel: str = "") -> int:
    details = json.loads((bundle.path / "details" / f"{arch}.json").read_text())
    return sum(item["kernel"] == (kernel or item["kernel"]) for item in details["variants"])


def test_preload_loads_everything_that_a_device_can_run(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    bundle.preload()
    assert len(cuda.loads) == variants(bundle, "sm_90a")
    assert {Path(name).parent.name for name in mapped_kernels(bundle)} == {"sm_90a"}
    cuda.clear()
    bundle.preload()
    call(bundle, cuda)
    bundle.fill_epilogue.relu(cuda.tensor((8,), "float32"))
    bundle.fill_clusters(cuda.tensor((8,), "float32"))
    assert cuda.loads == []
    assert len(cuda.launches) == 3


def test_preload_passes_over_kernels_that_the_device_cannot_run(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((8, 0))
    bundle.preload()
    assert len(cuda.loads) == variants(bundle, "sm_80")
    with pytest.raises(DeviceError, match="fill_clusters: bundle `bundle` holds no code for device 0"):
        bundle.preload(["fill_clusters"])


def test_preload_says_so_where_nothing_can_run(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((8, 7))
    with pytest.raises(DeviceError, match=r"holds no code for device 0, of compute capability 8\.7"):
        bundle.preload()


def test_preload_takes_builds_that_may_be_fallen_back_to(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((10, 3))
    bundle.preload(kernels=["fill_by_arch"])
    assert mapped_kernels(bundle) == {"sm_103a/fill_by_arch.so", "sm_100f/fill_by_arch.so"}
    assert len(cuda.loads) == 3


@pytest.mark.parametrize("kernels", [["fill"], ("fill",), "fill", iter(["fill"])])
def test_preload_by_name(kernels: Any, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    bundle.preload(kernels, 0)
    assert mapped_kernels(bundle) == {"sm_90a/fill.so"}
    assert len(cuda.loads) == variants(bundle, "sm_90a", "fill")


@pytest.mark.parametrize("device", [1, "cuda:1", SimpleNamespace(type="cuda", index=1)])
def test_a_device_may_come_first(device: Any, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    """As it had to before Python, C and C++ had one order."""
    bundle = fresh_bundle((9, 0), (9, 0))
    bundle.preload(device, ["fill"])
    assert mapped_kernels(bundle) == {"sm_90a/fill.so"}
    bundle.preload(device)
    assert len(mapped_kernels(bundle)) > 1 and {load.device for load in cuda.loads} == {1}


def test_preload_of_one_choice(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    bundle.preload(["fill_epilogue__relu"])
    assert len(cuda.loads) == 1
    bundle.fill_epilogue.relu(cuda.tensor((8,), "float32"))
    assert len(cuda.loads) == 1


@pytest.mark.parametrize("device", [1, "cuda:1", SimpleNamespace(type="cuda", index=1), tvm_ffi.device("cuda:1")])
def test_preload_on_a_second_device(device: Any, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (8, 6))
    bundle.preload(["fill_stream_zero"], device)
    assert mapped_kernels(bundle) == {"sm_86/fill_stream_zero.so", "sm_80/fill_stream_zero.so"}
    assert {load.device for load in cuda.loads} == {1}
    cuda.clear()
    bundle.fill_stream_zero(cuda.tensor((8,), "float32", device=1))
    assert cuda.loads == []


@pytest.mark.parametrize("device", ["cuda", SimpleNamespace(type="cuda", index=None)])
def test_a_device_without_an_index_is_the_first(device: Any, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0), (8, 6))
    bundle.preload(["fill_stream_zero"], device)
    assert {load.device for load in cuda.loads} == {0}


@pytest.mark.parametrize(
    "device", ["cpu", "cuda:x", "cuda:-1", "", 1.0, True, 10**30, SimpleNamespace(type="cpu", index=0)]
)
def test_preload_refuses_what_is_not_a_cuda_device(device: Any, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match="not a CUDA device"):
        bundle.preload(device)


@pytest.mark.parametrize("device", [-1, 64, 2**40])
def test_preload_refuses_devices_that_no_bundle_serves(device: int, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=f"preload: device {device} is not one of 0 to 63"):
        bundle.preload(device)


def test_a_name_of_another_type_is_no_kernel(bundle: aot_runtime.Bundle) -> None:
    for use in (bundle.__getitem__, lambda name: bundle.preload([name]), lambda name: bundle.explain(name, "9.0")):
        for name in (0, None):
            with pytest.raises(NotFoundError, match=f"has no kernel {name}"):
                use(name)
    with pytest.raises(ArgumentError, match="not a CUDA device"):
        bundle.preload(device=[0])


@pytest.mark.parametrize("dtype", ["q", "f16,", 3])
def test_explaining_names_a_dtype_that_there_is_not(dtype: Any, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(ArgumentError, match=f"there is no dtype {dtype!r}"):
        bundle.explain("fill", "9.0", TensorInfo(dtype, (8,)))


def test_preload_names_a_device_beyond_the_machine(cuda: Standin, bundle: aot_runtime.Bundle) -> None:
    with pytest.raises(DriverError, match="device 5 was asked for, but there are 1"):
        bundle.preload(5)


def test_preload_of_an_unknown_kernel_loads_nothing(cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    with pytest.raises(KeyError, match="has no kernel 'full'; it has fill, "):
        bundle.preload(["fill", "full"])
    assert cuda.loads == []


@pytest.mark.parametrize("kernel", ["fill", "fill_clusters"])
def test_first_use_inside_a_capture_asks_for_preload(kernel: str, cuda: Standin, fresh_bundle: MakeBundle) -> None:
    bundle = fresh_bundle((9, 0))
    out = cuda.tensor((8,), "float32")
    stream = cuda.stream()
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), stream):
        cuda.set_capturing(stream, True)
        with pytest.raises(CaptureError, match=f"{kernel}: .* was never used on device 0") as caught:
            bundle[kernel](out)
        assert caught.value.hint == "call bundle.preload(0) before the capture begins"
        assert cuda.loads == [] and cuda.launches == []
        cuda.set_capturing(stream, False)
        bundle.preload(0)
        cuda.set_capturing(stream, True)
        bundle[kernel](out)
    (launch,) = cuda.launches
    assert launch.captured and launch.stream == stream


def test_first_use_inside_a_capture_of_an_explicit_stream_asks_for_preload(
    cuda: Standin, fresh_bundle: MakeBundle
) -> None:
    bundle = fresh_bundle((9, 0))
    stream, other = cuda.stream(), cuda.stream()
    cuda.set_capturing(stream, True)
    with pytest.raises(CaptureError):
        bundle.fill_pointer(0x7F00_0000_0000, 8, stream)
    # Another stream is not being captured: loading for it disturbs nothing.
    bundle.fill_pointer(0x7F00_0000_0000, 8, other)
    bundle.fill_pointer(0x7F00_0000_0000, 8, stream)
    assert [(launch.stream, launch.captured) for launch in cuda.launches] == [(other, False), (stream, True)]


# Drivers


def test_code_that_needs_a_newer_driver_is_refused(cuda: Standin, copy: Path) -> None:
    cuda.reset(capabilities=[(10, 0), (9, 0)], driver_version=12040)
    bundle = aot_runtime.load(copy)
    with pytest.raises(DriverError) as caught:
        call(bundle, cuda)
    assert "the NVIDIA driver is too old for the code in bundle `bundle` for device 0" in caught.value.message
    assert "sm_100f: needs driver 570.26 or newer, of CUDA 12.8; the installed driver supports CUDA 12.4" in str(
        caught.value
    )
    assert caught.value.hint == "update the NVIDIA driver; `nvidia-smi` shows its version"
    with pytest.raises(DriverError, match="too old"):
        bundle.preload(0)
    assert cuda.launches == []
    call(bundle, cuda, device=1)  # sm_90a runs from driver 525 on
    assert len(cuda.launches) == 1


def test_code_of_a_lower_rank_runs_if_the_driver_is_too_old_for_the_best(cuda: Standin, copy: Path) -> None:
    """sm_103a needs the driver of CUDA 12.9; sm_100f runs on the same device from 12.8 on."""
    cuda.reset(capabilities=[(10, 3)], driver_version=12080)
    bundle = aot_runtime.load(copy)
    call(bundle, cuda)
    assert mapped_kernels(bundle) == {"sm_100f/fill.so"}


def test_explaining_asks_for_no_driver(cuda: Standin, copy: Path) -> None:
    cuda.reset(capabilities=[(10, 0)], driver_version=12040)
    chosen = aot_runtime.load(copy).explain("fill", "10.0", TensorInfo("f32", (8,))).chosen
    assert chosen is not None and chosen.arch == "sm_100f"
