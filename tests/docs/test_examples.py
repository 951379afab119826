"""The examples do what the documentation says of them, against the stand-in: it has no GPU and computes nothing."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import aot_runtime
import aot_runtime.native
import pytest
import tvm_ffi.libinfo
from aot_runtime import ArgumentError
from places import PROJECT, TESTS
from standin import Standin

from aot.binary.elf import read_shared_library
from aot.cli.main import main
from aot.pipeline.build import BuildResult

if TYPE_CHECKING:
    from packaged import Environment

EXAMPLES = PROJECT / "examples"
AS_TORCH = "from standin.torch import install\ninstall(cuda)\n"


@pytest.fixture(scope="module")
def declarations(build_bundle: Callable[..., BuildResult], standin_process: Standin) -> aot_runtime.Bundle:
    result = build_bundle(EXAMPLES / "declarations", ("sm_90a",), name="declarations", shared_cudart=True)
    assert not result.failures
    return aot_runtime.load(result.path)


def test_an_epilogue_of_its_own_is_launched_with_its_argument(
    build_bundle: Callable[..., BuildResult], cuda: Standin
) -> None:
    result = build_bundle(EXAMPLES / "epilogue" / "kernels", ("sm_90a",), name="residual", shared_cudart=True)
    assert not result.failures
    bundle = aot_runtime.load(result.path)
    a, b, residual, out = (cuda.tensor(shape, "float16") for shape in ((300, 64), (520, 64), (300, 520), (300, 520)))
    bundle.gemm_residual(a, b, residual, out)
    (launch,) = cuda.launches
    assert (launch.grid, launch.cluster) == ((20, 1, 1), (2, 1, 1))  # two clusters of two tiles high, five wide
    with pytest.raises(ArgumentError, match=r"residual\.shape"):
        bundle.gemm_residual(a, b, cuda.tensor((300, 512), "float16"), out)


def blocks(cuda: Standin) -> list[int]:
    """The threads per block of each launch since the last time: they tell which variants ran."""
    seen = [launch.block[0] for launch in cuda.launches]
    cuda.clear()
    return seen


def test_the_transpose_has_a_block_for_each_tile_and_refuses_what_does_not_fit(
    build_bundle: Callable[..., BuildResult], standin_process: Standin, cuda: Standin
) -> None:
    result = build_bundle(EXAMPLES / "shared_memory" / "kernels", ("sm_90a",), name="transposing", shared_cudart=True)
    transpose = aot_runtime.load(result.path).transpose
    x, out = cuda.tensor((100, 1000), "float32"), cuda.tensor((1000, 100), "float32")
    transpose(x, out)
    (launch,) = cuda.launches
    assert (launch.grid, launch.block) == ((32, 4, 1), (32, 8, 1))
    transpose(cuda.tensor((0, 5), "float32"), cuda.tensor((5, 0), "float32"))
    assert len(cuda.launches) == 1  # nothing to copy, nothing launched
    with pytest.raises(ArgumentError, match=r"must equal"):
        transpose(x, cuda.tensor((100, 1000), "float32"))
    square = cuda.tensor((64, 64), "float32")
    with pytest.raises(ArgumentError, match=r"overlap|share"):
        transpose(square, square)


def test_the_product_has_a_block_for_each_tile_and_refuses_operands_that_do_not_agree(
    build_bundle: Callable[..., BuildResult], standin_process: Standin, cuda: Standin
) -> None:
    result = build_bundle(EXAMPLES / "tensor_cores" / "kernels", ("sm_90a",), name="multiplying", shared_cudart=True)
    matmul = aot_runtime.load(result.path).matmul
    a, b, out = (cuda.tensor(shape, "float16") for shape in ((65, 32), (300, 32), (65, 300)))
    matmul(a, b, out)
    (launch,) = cuda.launches
    assert (launch.grid, launch.block) == ((5, 2, 1), (128, 1, 1))
    with pytest.raises(ArgumentError, match=r"must equal"):
        matmul(a, cuda.tensor((300, 33), "float16"), out)


def test_arguments_are_passed_in_the_order_of_the_jit_function(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    x, out = cuda.tensor((64,), "float32"), cuda.tensor((64,), "float32")
    declarations.scale(x, out, factor=3.0)
    unaligned = cuda.tensor((63,), "float32", byte_offset=4)
    declarations.scale(unaligned, cuda.tensor((63,), "float32"))
    assert blocks(cuda) == [128, 64]
    # The entry takes `out` first, so `x` is the one that disagrees. The call is shown as callers write it.
    with pytest.raises(ArgumentError, match=r"(?s)scale\(x, out, factor\).*x\.shape\[0\] is 64, must equal out"):
        declarations.scale(x, cuda.tensor((65,), "float32"))


def test_portable_code_is_named_as_such(
    build_bundle: Callable[..., BuildResult], capsys: pytest.CaptureFixture[str]
) -> None:
    path = build_bundle(EXAMPLES / "declarations", ("sm_86", "sm_90a"), select=("scale_portable",)).path
    capsys.readouterr()
    for capability, portable in {"8.6": True, "9.0": False}.items():
        assert main(["explain", str(path), "scale_portable", "x=f32[8]", "factor=2.0", "--device", capability]) == 0
        assert ("portable code, written for sm_80" in capsys.readouterr().out) == portable
    assert main(["inspect", str(path), "--json"]) == 0
    variants = json.loads(capsys.readouterr().out)["variants"]
    assert {one["arch"]: one["written_for"] for one in variants} == {"sm_86": "sm_80", "sm_90a": "sm_90a"}
    assert main(["list", "--source", str(EXAMPLES / "declarations"), "--kernel", "scale_portable"]) == 0
    assert "sm_80, sm_86 (portable code), sm_90a" in capsys.readouterr().out


def test_labels_name_the_specs_of_one_point(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    for n in (4096, 4097):
        x, out = cuda.tensor((n,), "float32"), cuda.tensor((n,), "float32")
        chosen = declarations.explain("scale_by_size", "9.0", x, out, 2.0).chosen
        assert chosen is not None
        assert chosen.variant == ("scale_by_size__f32__small" if n == 4096 else "scale_by_size__f32__large")
        declarations.scale_by_size(x, out, 2.0)
    assert blocks(cuda) == [64, 256]


def test_the_caller_picks_the_dtype_of_the_output(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    x = cuda.tensor((8,), "float16")
    for dtype in ("float16", "float32"):
        out = cuda.tensor((8,), dtype)
        chosen = declarations.explain("convert", "9.0", x, out).chosen
        assert chosen is not None and chosen.variant == f"convert__f16__f{dtype[-2:]}"
        declarations.convert(x, out)
    with pytest.raises(ArgumentError, match=r"out\.dtype is bfloat16"):
        declarations.convert(x, cuda.tensor((8,), "bfloat16"))


def test_extents_of_64_bits_count_further_than_those_of_32(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    def chosen(n: int) -> str:
        x, out = cuda.tensor((n,), "float32"), cuda.tensor((n,), "float32")
        found = declarations.explain("scale_long", "9.0", x, out, 2.0).chosen
        assert found is not None
        return found.variant

    assert chosen(2**31 - 8) == "scale_long__eights"
    assert chosen(2**31 - 7) == "scale_long__long"
    assert chosen(2**31) == "scale_long__long"  # a multiple of 8, but too long for 32 bits


def test_tuples_optional_arguments_and_what_the_device_fills_in(
    declarations: aot_runtime.Bundle, cuda: Standin
) -> None:
    x, y, out = (cuda.tensor((16,), "float32") for _ in range(3))
    declarations.scale_pair((x, y), out, (2.0, 3.0))
    assert blocks(cuda) == [32, 64]
    declarations.scale_optional(x, out)
    declarations.scale_optional(x, out, y)
    assert blocks(cuda) == [32, 64]
    declarations.scale_either(x, out)
    declarations.scale_either(x, out, y)
    assert blocks(cuda) == [32, 64]
    with pytest.raises(
        aot_runtime.ArgumentError, match=r"bias\.shape\[0\] is 0, must equal x\.shape\[0\], which is 16"
    ):
        declarations.scale_either(x, out, cuda.tensor((0,), "float32"))
    cuda.reset(capabilities=[(9, 0)], sm_counts=[132])
    declarations.scale_everywhere(x, out)
    assert [launch.grid[0] for launch in cuda.launches] == [132]


def test_a_single_tensor_is_passed_as_a_batch_of_one(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    rows, row, column = cuda.tensor((3, 16), "float32"), cuda.tensor((16,), "float32"), cuda.tensor((4,), "float32")
    declarations.scale_batch(rows, cuda.tensor((3, 16), "float32"))
    declarations.scale_batch(row, cuda.tensor((16,), "float32"))
    batch, single = cuda.launches
    assert (batch.kernel, batch.grid[0], single.grid[0]) == (single.kernel, 3, 1)
    with pytest.raises(aot_runtime.ArgumentError, match=r"out\.shape\[0\] is 4, must equal x\.shape\[0\], which is 16"):
        declarations.scale_batch(row, column)
    cuda.clear()


def test_dispatch_passes_what_a_declaration_fixes(declarations: aot_runtime.Bundle, cuda: Standin) -> None:
    x, out = (cuda.tensor((16,), "float32") for _ in range(2))
    declarations.scale_fixed(x, out)
    (launch,) = cuda.launches
    cuda.clear()
    assert (launch.grid[0], launch.block[0]) == (7, 32)
    with pytest.raises(TypeError):
        declarations.scale_fixed(x, None, out, 7, 0.5)


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run_with(bundle: Path, name: str, program: Path, standin: Path, folder: Path, devices: int = 1) -> str:
    """Run a program where ``dist/NAME`` is the bundle; the last line lists the devices of its launches."""
    (folder / "dist").mkdir()
    (folder / "dist" / name).symlink_to(bundle)
    prelude = "from pathlib import Path\nfrom standin import Standin\n"
    prelude += f"cuda = Standin.load(Path({str(standin)!r}))\ncuda.reset(capabilities={[(9, 0)] * devices})\n"
    prelude += f"from standin.torch import install\ninstall(cuda, {devices})\n"
    text = prelude + program.read_text() + "print([launch.device for launch in cuda.launches])\n"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{PROJECT / 'runtime'}"}
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def small(build_bundle: Callable[..., BuildResult]) -> Path:
    """A bundle named ``kernels`` with an ``add`` in one dtype."""
    source = Path(__file__).with_name("small_add.py")
    return build_bundle(source, ("sm_90a",), name="kernels", shared_cudart=True).path


def test_first_call_runs(small: Path, standin_directory: Path, tmp_path: Path) -> None:
    shown = run_with(small, "kernels", EXAMPLES / "first_call.py", standin_directory, tmp_path)
    assert "sm_90a add__rank1__f32" in shown
    assert shown.splitlines()[-1] == "[0]"


def test_every_gpu_is_called(small: Path, standin_directory: Path, tmp_path: Path) -> None:
    example = EXAMPLES / "several_gpus.py"
    assert run_with(small, "kernels", example, standin_directory, tmp_path, devices=3) == "[0, 1, 2]\n"


@pytest.mark.parametrize("example", ["several_gpus", "llama_block/run", "decode_loop/run", "train_decoder/train"])
def test_without_a_gpu_a_program_says_in_one_line_that_it_needs_one(example: str, tmp_path: Path) -> None:
    if PathFinder.find_spec("torch") is None:  # this process may not import it: see `without_frameworks`
        pytest.skip("needs torch")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    program = [sys.executable, str(EXAMPLES / f"{example}.py")]
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "this example needs a GPU that torch can use\n")
    assert list(tmp_path.iterdir()) == []


def test_the_call_of_the_guide_runs(sample_bundle: Path, standin_directory: Path, tmp_path: Path) -> None:
    program = Path(__file__).with_name("call_sample.py")
    assert run_with(sample_bundle, "sample_kernels", program, standin_directory, tmp_path) == "[0]\n"


def test_the_kernels_of_the_guides_take_empty_vectors_and_launch_nothing(
    sample_bundle: Path, build_bundle: Callable[..., BuildResult], cuda: Standin
) -> None:
    tuning = build_bundle(EXAMPLES / "tuning" / "kernels", ("sm_90a",), name="tuned_scale", shared_cudart=True)
    assert not tuning.failures
    for path in (sample_bundle, tuning.path):
        scale = aot_runtime.load(path).scale
        scale(cuda.tensor((0,), "float32"), cuda.tensor((0,), "float32"), 2.0)
        assert not cuda.launches
        scale(cuda.tensor((8,), "float32"), cuda.tensor((8,), "float32"), 2.0)
        assert blocks(cuda) == [128]


def test_signed_bundle_is_loaded_with_its_keys(
    small_bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = shutil.copytree(small_bundle_path, tmp_path / "dist" / "kernels")
    monkeypatch.chdir(tmp_path)
    assert main(["sign", str(bundle), "--key", "release", "--new-key"]) == 0
    assert main(["sign", str(bundle), "--key", "other", "--new-key"]) == 0
    assert main(["sign", str(bundle), "--key", "release"]) == 0
    shutil.copy("release.pub", "release-2026.pub")
    shutil.copy("other.pub", "release-2027.pub")
    loaded = runpy.run_path(str(EXAMPLES / "load_signed.py"))
    assert loaded["kernels"].kernels == ("fill_epilogue", "fill_stream_zero")
    shutil.copy("other.pub", "release.pub")
    with pytest.raises(aot_runtime.SignatureError):
        runpy.run_path(str(EXAMPLES / "load_signed.py"))


def test_installed_package_is_used_as_shown(installed: Environment) -> None:
    program = AS_TORCH + (EXAMPLES / "use_package.py").read_text()
    shown = installed.output(program + "print([launch.block[0] for launch in cuda.launches])", standin=True)
    assert shown == "[128, 128, 256, 256, 256]"


@pytest.fixture(scope="module")
def cpp_app(sample_bundle: Path, standin_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C++ example, built as its head says and installed; the folder has ``build`` and ``installed``."""
    folder = tmp_path_factory.mktemp("cpp_app")
    source, build = folder / "source", folder / "build"
    shutil.copytree(EXAMPLES / "cpp_app", source)
    lists = source / "CMakeLists.txt"
    # The bundle of the example has the CUDA runtime inside; the one of the tests leaves it to the stand-in.
    lists.write_text(lists.read_text().replace(" STATIC ARCHS ", " STATIC NO_CUDART ARCHS "))
    played = f"-Wl,--no-as-needed,{standin_directory / 'libcudart.so.12'},--as-needed"
    settings = {
        "cute_aot_DIR": aot_runtime.native.cmake_directory(),
        "BUNDLE": sample_bundle,
        "CUTE_AOT_TVM_FFI_LIBRARY": tvm_ffi.libinfo.find_libtvm_ffi(),
        "CMAKE_SHARED_LINKER_FLAGS": played,
        "CMAKE_EXE_LINKER_FLAGS": played,
    }
    run("cmake", "-S", source, "-B", build, *(f"-D{name}={value}" for name, value in settings.items()))
    run("cmake", "--build", build)
    run("cmake", "--install", build, "--prefix", folder / "installed")
    return folder


def test_engine_in_cpp_links_the_bundle_and_launches(cpp_app: Path, cuda: Standin) -> None:
    engine = ctypes.CDLL(str(cpp_app / "build" / "libengine.so"))
    engine.engine_scale.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p]
    stream = cuda.stream()
    assert engine.engine_scale(0x10000, 0x20000, 1000, 3.0, stream) == 0
    (launch,) = cuda.launches
    assert (launch.grid[0], launch.block[0], launch.stream) == (8, 128, stream)
    assert engine.engine_scale(0x10000, 0x10100, 1000, 3.0, stream) == 1  # the output overlaps the input


@pytest.mark.parametrize("program", ["first_program", "first_program_c"])
def test_an_installed_program_needs_nothing_of_the_machine_that_built_it(
    program: str, cpp_app: Path, standin_directory: Path
) -> None:
    path = cpp_app / "installed" / "bin" / program
    program_file = read_shared_library(path)
    assert program_file.runpath == ("$ORIGIN/../lib",) and "libtvm_ffi.so" in program_file.needed
    environment = {"LD_LIBRARY_PATH": str(standin_directory), "PATH": os.defpath}
    done = subprocess.run([str(path)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4  # the stand-in computes nothing, so the numbers are any
