"""What a loader may call of an entry library: the protocol that ``aot/abi.h`` describes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import aot_runtime.core.bundle
import aot_runtime.native
import pytest
import tvm_ffi
from aot_runtime import ArgumentError, BundleError
from aot_runtime.description.records import PROTOCOL
from observing import run_python
from standin import Standin

HEADER = aot_runtime.native.include_directory() / "aot" / "abi.h"


def stated(name: str) -> int:
    found = re.search(rf"^#define {name} (\d+)$", HEADER.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.fixture
def entry(cuda: Standin, standin_bundle_path: Path) -> Any:
    """The entry library of a bundle, as any loader opens it."""
    manifest = aot_runtime.load(standin_bundle_path).manifest
    (host,) = manifest.hosts.values()
    return tvm_ffi.load_module(str(standin_bundle_path / host.entry))


def call(entry: Any, name: str, *args: Any) -> Any:
    return entry.get_function(f"aot__{name}")(*args)


def test_the_loader_reads_the_protocol_of_the_header() -> None:
    assert stated("AOT_PROTOCOL_MAJOR") * 1000 + stated("AOT_PROTOCOL_MINOR") == PROTOCOL


def test_protocol_is_major_times_thousand_plus_minor(entry: Any) -> None:
    assert call(entry, "protocol") == stated("AOT_PROTOCOL_MAJOR") * 1000 + stated("AOT_PROTOCOL_MINOR")


def test_identity_is_a_digest(entry: Any) -> None:
    assert re.fullmatch("[0-9a-f]{64}", str(call(entry, "identity")))


def test_configure_returns_nothing(entry: Any) -> None:
    assert call(entry, "configure", 1, "") is None


def test_kernels_lie_where_the_loader_says(cuda: Standin, standin_bundle_path: Path, tmp_path: Path) -> None:
    """A loader may open the entry library by another name, from another folder."""
    root = aot_runtime.load(standin_bundle_path).path / "lib"
    (host,) = root.iterdir()
    alone = tmp_path / "libbundle.so"
    shutil.copy(host / "libbundle.so", alone)
    entry = tvm_ffi.load_module(str(alone))
    kernels = Path(shutil.copytree(host, tmp_path / "kernels"))
    call(entry, "configure", 1, str(kernels))
    call(entry, "configure", 1, "")  # a later loader that leaves it open changes nothing
    entry.get_function("fill")(cuda.tensor((8,), "float32"), 1.0)
    assert str(kernels / "sm_90a" / "fill.so") in Path("/proc/self/maps").read_text()


def test_the_support_library_can_be_opened_before_a_call_and_without_the_driver(
    standin_bundle_path: Path, standin_directory: Path
) -> None:
    code = """
    import without_frameworks  # a torch with CUDA opens libraries of such names, the driver's too
    import sys
    import aot_runtime
    bundle = aot_runtime.load(sys.argv[1])
    mapped = lambda name: any(line.rstrip().endswith(name) for line in open("/proc/self/maps"))
    before = mapped("_cuda.so")
    bundle._call("aot__open_support")
    print(before, mapped("_cuda.so"), mapped("libcuda.so.1"))
    """
    search = {"LD_LIBRARY_PATH": str(standin_directory)}
    assert run_python(code, standin_bundle_path, variables=search) == "False True False"


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("protocol", (1,), "aot__protocol takes 0 arguments, got 1"),
        ("identity", ("x",), "aot__identity takes 0 arguments, got 1"),
        ("configure", (), "aot__configure takes 2 arguments, got 0"),
        ("configure", (1,), "aot__configure takes 2 arguments, got 1"),
        ("configure", (1, "/x", 2), "aot__configure takes 2 arguments, got 3"),
        ("configure", ("yes", "/x"), "aot__configure: argument 0 must be an int"),
        ("configure", (1, 2), "aot__configure: argument 1 must be the path of a directory, a string"),
        ("configure", (1, "a/relative/path"), "configure: `a/relative/path` is not an absolute path"),
        ("configure", (1, "/" + 5000 * "x"), "must be the path of a directory, a string"),
        ("configure", (1, "/a\0b"), "must be the path of a directory, a string"),
        ("open_support", (1,), "aot__open_support takes 0 arguments, got 1"),
        ("preload", (), "aot__preload takes 2 arguments, got 0"),
        ("preload", ("fill",), "aot__preload takes 2 arguments, got 1"),
        ("preload", ("fill", "0"), "aot__preload: argument 1 must be an int"),
        ("preload", (0, 0), "the name of a function must be a string"),
        ("preload", (300 * "x", 0), "the name of a function must be a string"),
        ("explain", ("fill", 9), "aot__explain takes at least 3 arguments, got 2"),
        ("explain", ("fill", 9, "0"), "aot__explain: argument 2 must be an int"),
        ("explain", (None, 9, 0), "the name of a function must be a string"),
        ("explain", ("fill", 9, 0), "fill takes 2 arguments, got 0"),
        ("check", ("fill",), "aot__check takes at least 2 arguments, got 1"),
        ("check", ("fill", "0"), "aot__check: argument 1 must be an int"),
        ("check", (None, 0), "the name of a function must be a string"),
        ("check", ("fill", -1), "fill takes 2 arguments, got 0"),
        ("describe", (2, 32, 1), "aot__describe takes at least 5 arguments, got 3"),
        ("describe", (2, 32, 1, 16, "1"), "aot__describe: argument 4 must be an int"),
        ("describe", (2, 32, 1, 16, 1, 8), "aot__describe: shape and strides must agree"),
        ("describe", (2, 32, 1, 16, -(2**62)), "aot__describe: shape and strides must agree"),
    ],
)
def test_wrong_arguments_are_an_error_that_says_so(entry: Any, name: str, args: tuple[Any, ...], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        call(entry, name, *args)
    assert said in str(caught.value)


def test_a_folder_whose_files_have_no_path_that_fits_is_refused(
    cuda: Standin, standin_bundle_path: Path, tmp_path: Path
) -> None:
    (host,) = (standin_bundle_path / "lib").iterdir()
    alone = tmp_path / "libbundle.so"
    shutil.copy(host / "libbundle.so", alone)
    entry = tvm_ffi.load_module(str(alone))
    call(entry, "configure", 1, "/" + 4090 * "x")
    with pytest.raises(BundleError, match=r"the path of `.*` is too long"):
        entry.get_function("fill")(cuda.tensor((8,), "float32"), 1.0)


@pytest.mark.parametrize("device", [-1, 64, 65, 2**31, -(2**63)])
def test_a_device_that_cannot_be_is_one_that_is_not_known(entry: Any, cuda: Standin, device: int) -> None:
    """There is room for 64 devices."""
    assert call(entry, "check", "fill", device, cuda.tensor((8,), "float32"), 1.0) is None
    with pytest.raises(ArgumentError, match="fill"):
        call(entry, "check", "fill", device, cuda.tensor((8,), "int8"), 1.0)
