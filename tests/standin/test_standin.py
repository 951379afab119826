"""What other tests may rely on when they use the stand-in."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

from . import CPU, CUDA, Launch, Standin, address_of, build, compiler, compiler_environment
from .fatbins import make_fatbin

HERE = Path(__file__).parent
ZIG = [sys.executable, "-m", "ziglang", "cc"]
DYNAMIC_SHARED_MEMORY = 8  # kernel attribute
NO_DEVICE, NO_IMAGE_FOR_DEVICE, SYMBOL_NOT_FOUND, CAPTURE_UNSUPPORTED = 100, 209, 500, 900


class Config(ctypes.Structure):
    """cudaLaunchConfig_t"""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_memory", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    ]


class Attribute(ctypes.Structure):
    """cudaLaunchAttribute, as far as clusters need it"""

    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("values", ctypes.c_uint * 16)]


def package_folder(name: str) -> Path:
    """Where a package lies, found without importing it. The extra for tests installs all that are asked for here."""
    spec = importlib.util.find_spec(name.split(".")[0]) and importlib.util.find_spec(name)
    assert spec and spec.submodule_search_locations, f"{name} is not installed"
    return Path(next(iter(spec.submodule_search_locations)))


def compile_in(folder: Path, command: list[str]) -> None:
    subprocess.run(command, check=True, cwd=folder, env=compiler_environment(folder))


@pytest.fixture(scope="session")
def built(standin_directory: Path) -> Path:
    return standin_directory


@pytest.fixture
def standin(built: Path) -> Standin:
    loaded = Standin.load(built)
    loaded.reset()
    return loaded


def load(standin: Standin, data: bytes) -> ctypes.c_void_p:
    library = ctypes.c_void_p()
    buffer = ctypes.create_string_buffer(data, len(data))
    assert standin.runtime.cudaLibraryLoadData(ctypes.byref(library), buffer, None, None, 0, None, None, 0) == 0
    keep_for_ever.append(buffer)
    return library


keep_for_ever: list[Any] = []  # the stand-in reads a library's data for as long as the process lives


def kernel_of(standin: Standin, arch: str = "sm_90a", **options: Any) -> ctypes.c_void_p:
    kernel = ctypes.c_void_p()
    library = load(standin, make_fatbin(arch, ["copy_kernel"], **options))
    assert standin.runtime.cudaLibraryGetKernel(ctypes.byref(kernel), library, b"copy_kernel") == 0
    return kernel


def launch(
    standin: Standin,
    kernel: ctypes.c_void_p,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared_memory: int = 0,
    stream: int = 0,
    cluster: tuple[int, int, int] | None = None,
) -> int:
    attribute = Attribute(4, 0, (ctypes.c_uint * 16)(*(cluster or ())))
    config = Config((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), shared_memory, stream)
    if cluster:
        config.attributes, config.attribute_count = ctypes.addressof(attribute), 1
    return int(standin.runtime.cudaLaunchKernelExC(ctypes.byref(config), kernel, None))


def in_new_process(code: str, *arguments: str) -> str:
    """Run ``code`` where the stand-in can be imported; its standard output."""
    package = __package__ or ""
    root = HERE.parents[package.count(".")]
    program = f"import sys; sys.path.insert(0, {str(root)!r})\nfrom {package} import *\n{textwrap.dedent(code)}"
    done = subprocess.run([sys.executable, "-c", program, *arguments], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- building and loading --


def test_build_keeps_what_is_up_to_date(built: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in built.glob("*.so*")}
    build(built)
    assert {path.name: path.stat().st_mtime_ns for path in built.glob("*.so*")} == before


def test_build_works_with_zig(tmp_path: Path) -> None:
    package_folder("ziglang")
    assert (build(tmp_path, ZIG) / "libcudart.so.13").exists()


def test_failed_build_shows_command_and_output(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)--no-such-option.* returned"):
        build(tmp_path, [*compiler(), "--no-such-option"])


def test_later_open_by_name_finds_the_standin(standin: Standin) -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    assert driver.cuInit(0) == 0
    assert standin.calls("cuInit") == 1


def test_loading_twice_gives_one_state(standin: Standin, built: Path) -> None:
    standin.runtime.cudaSetDevice(0)
    assert Standin.load(built, runtime=13).calls("cudaSetDevice") == 1


def test_a_process_with_real_cuda_is_refused_and_the_library_named(built: Path, tmp_path: Path) -> None:
    real = tmp_path / "libcuda.so.1.2.3"
    (tmp_path / "real.c").write_text("int cuInit(unsigned flags) { return (int)flags; }\n")
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    compile_in(tmp_path, [*compiler(), *flags, "real.c", "-o", str(real)])
    code = """
        import ctypes, pathlib, types
        ctypes.CDLL(sys.argv[2])
        sys.modules["jax"] = types.ModuleType("jax")
        try:
            Standin.load(pathlib.Path(sys.argv[1]))
        except RealCudaLoadedError as error:
            print(error)
    """
    said = in_new_process(code, str(built), str(real))
    assert f"has loaded the real CUDA: {real}; imported frameworks: jax." in said


def test_driver_wants_initialisation_first(built: Path) -> None:
    code = """
        import ctypes, pathlib
        driver = Standin.load(pathlib.Path(sys.argv[1])).driver
        count = ctypes.byref(ctypes.c_int())
        print(driver.cuDeviceGetCount(count), driver.cuInit(0), driver.cuDeviceGetCount(count))
    """
    assert in_new_process(code, str(built)).split() == ["3", "0", "0"]


def test_library_linked_to_the_real_runtime_runs_with_the_standin(standin: Standin, tmp_path: Path) -> None:
    real = package_folder("nvidia.cuda_runtime") / "lib" / "libcudart.so.12"
    source, library = tmp_path / "user.c", tmp_path / "libuser.so"
    source.write_text("int cudaSetDevice(int); int use(int device) { return cudaSetDevice(device); }\n")
    compile_in(tmp_path, [*compiler(), "-shared", "-fPIC", str(source), str(real), "-o", str(library)])
    user = ctypes.CDLL(str(library))
    assert [user.use(0), user.use(7)] == [0, 101]
    assert standin.calls("cudaSetDevice") == 2


def test_runtime_has_all_that_nvidias_launch_support_needs(built: Path, tmp_path: Path) -> None:
    archive = package_folder("nvidia_cutlass_dsl") / "cu12/lib/libcuda_dialect_runtime_static.a"
    whole = ["-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", "-Wl,-z,defs"]
    for runtime in ("libcudart.so.12", "libcudart.so.13"):
        inputs = [*whole, str(built / runtime), str(built / "libstandin.so")]
        compile_in(tmp_path, [*compiler(), "-shared", *inputs, "-o", "libsupport.so"])


# -- devices --


def attribute(standin: Standin, number: int, device: int) -> int:
    value = ctypes.c_int(-1)
    assert standin.runtime.cudaDeviceGetAttribute(ctypes.byref(value), number, device) == 0
    return value.value


def test_devices_answer_with_what_they_play(standin: Standin) -> None:
    standin.reset([(8, 6), (10, 0)], [84, 20])
    assert [attribute(standin, number, 0) for number in (75, 76, 16, 97)] == [8, 6, 84, 99 * 1024]
    assert [attribute(standin, number, 1) for number in (75, 76, 16, 97)] == [10, 0, 20, 227 * 1024]


def test_machine_without_driver(standin: Standin) -> None:
    standin.reset([])
    count = ctypes.c_int(-1)
    assert standin.driver.cuInit(0) == NO_DEVICE
    assert standin.driver.cuDeviceGetCount(ctypes.byref(count)) != 0
    assert standin.runtime.cudaGetDeviceCount(ctypes.byref(count)) == NO_DEVICE
    assert count.value == 0


def test_each_thread_has_its_own_device(standin: Standin) -> None:
    standin.reset([(9, 0), (9, 0)])
    kernel = kernel_of(standin)
    standin.set_device(1)
    other = threading.Thread(target=launch, args=(standin, kernel))
    other.start()
    native_id = other.native_id
    other.join()
    launch(standin, kernel)
    assert [(seen.device, seen.thread) for seen in standin.launches] == [
        (0, native_id),
        (1, threading.get_native_id()),
    ]


def test_context_exists_once_the_runtime_was_used(standin: Standin) -> None:
    standin.driver.cuInit(0)
    device = ctypes.c_int(-1)
    assert standin.driver.cuCtxGetDevice(ctypes.byref(device)) == 201
    standin.runtime.cudaSetDevice(0)
    assert standin.driver.cuCtxGetDevice(ctypes.byref(device)) == 0
    assert device.value == 0


# -- libraries and kernels --


@pytest.mark.parametrize("layout", ["old", "new"])
def test_library_of_other_major_is_refused(standin: Standin, layout: str) -> None:
    library = load(standin, make_fatbin("sm_80", ["copy_kernel"], layout=layout))
    result = standin.runtime.cudaLibraryGetKernel(ctypes.byref(ctypes.c_void_p()), library, b"copy_kernel")
    assert result == NO_IMAGE_FOR_DEVICE


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_103f", (10, 0), False),
    ],
)
def test_minor_and_suffix_decide_where_code_runs(
    standin: Standin, arch: str, capability: tuple[int, int], runs: bool
) -> None:
    standin.reset([capability])
    library = load(standin, make_fatbin(arch, ["copy_kernel"]))
    result = standin.runtime.cudaLibraryGetKernel(ctypes.byref(ctypes.c_void_p()), library, b"copy_kernel")
    assert result == (0 if runs else NO_IMAGE_FOR_DEVICE)


def test_wrong_kernel_name_is_refused(standin: Standin) -> None:
    library = load(standin, make_fatbin("sm_90a", ["copy_kernel"]))
    result = standin.runtime.cudaLibraryGetKernel(ctypes.byref(ctypes.c_void_p()), library, b"copy")
    assert result == SYMBOL_NOT_FOUND


def test_data_that_is_no_fatbin_is_refused_at_first_use(standin: Standin) -> None:
    library = load(standin, bytes(64))
    result = standin.runtime.cudaLibraryGetKernel(ctypes.byref(ctypes.c_void_p()), library, b"copy_kernel")
    assert result == 200


def test_foreign_second_device_does_not_stop_the_first(standin: Standin) -> None:
    standin.reset([(9, 0), (8, 0)])
    kernel = kernel_of(standin)
    prepare = standin.runtime.cudaKernelSetAttributeForDevice
    assert [prepare(kernel, DYNAMIC_SHARED_MEMORY, 1024, device) for device in (0, 1)] == [
        0,
        NO_IMAGE_FOR_DEVICE,
    ]
    assert [standin.kernels_ready(device) for device in (0, 1)] == [["copy_kernel"], []]
    standin.set_device(1)
    assert launch(standin, kernel) == NO_IMAGE_FOR_DEVICE


def test_loads_are_recorded(standin: Standin) -> None:
    standin.reset([(9, 0), (9, 0)])
    standin.set_device(1)
    data = make_fatbin("sm_90a", ["copy_kernel"])
    load(standin, data)
    assert [(seen.thread, seen.device, seen.size) for seen in standin.loads] == [
        (threading.get_native_id(), 1, len(data))
    ]


def test_kernel_survives_a_reset(standin: Standin) -> None:
    kernel = kernel_of(standin)
    standin.reset()
    assert launch(standin, kernel) == 0


# -- launches --


def test_launch_is_recorded(standin: Standin) -> None:
    kernel = kernel_of(standin)
    assert launch(standin, kernel, (4, 2, 1), (64, 2, 1), 512, 0xABC, (2, 1, 1)) == 0
    assert standin.launches == [
        Launch(
            kernel="copy_kernel",
            grid=(4, 2, 1),
            block=(64, 2, 1),
            shared_memory=512,
            stream=0xABC,
            device=0,
            cluster=(2, 1, 1),
            early=False,
            captured=False,
            thread=threading.get_native_id(),
        )
    ]


@pytest.mark.parametrize(
    ("code", "shape"),
    [
        (1, {"grid": (0, 1, 1)}),
        (1, {"grid": (1, 65536, 1)}),
        (1, {"block": (2048, 1, 1)}),
        (1, {"shared_memory": 60_000}),
        (912, {"grid": (3, 1, 1), "cluster": (2, 1, 1)}),
        (912, {"grid": (64, 1, 1), "cluster": (64, 1, 1)}),
    ],
)
def test_impossible_launch_is_refused(standin: Standin, code: int, shape: dict[str, Any]) -> None:
    assert launch(standin, kernel_of(standin), **shape) == code
    assert standin.runtime.cudaGetLastError() == code
    assert standin.launches == []


def test_more_shared_memory_must_be_asked_for(standin: Standin) -> None:
    kernel = kernel_of(standin, shared_memory=2048)  # of which CUDA keeps half for itself
    prepare = standin.runtime.cudaKernelSetAttributeForDevice
    assert prepare(kernel, DYNAMIC_SHARED_MEMORY, 227 * 1024, 0) == 1
    assert prepare(kernel, DYNAMIC_SHARED_MEMORY, 226 * 1024, 0) == 0
    assert launch(standin, kernel, shared_memory=226 * 1024) == 0


def test_recording_can_be_switched_off(standin: Standin) -> None:
    kernel = kernel_of(standin)
    standin.set_recording(False)
    assert launch(standin, kernel) == 0
    assert standin.launches == []
    assert standin.calls("cudaLaunchKernelExC") == 0


def test_clear_forgets_what_was_seen_and_keeps_the_devices(standin: Standin) -> None:
    standin.reset([(8, 0)])
    launch(standin, kernel_of(standin, "sm_80"))
    standin.clear()
    assert (standin.launches, standin.loads, standin.kernels_ready(0)) == ([], [], [])
    assert attribute(standin, 75, 0) == 8


# -- faults --


def test_failure_is_injected_once(standin: Standin) -> None:
    kernel = kernel_of(standin)
    standin.fail("cudaLaunchKernelExC", 719)
    assert [launch(standin, kernel) for _ in range(3)] == [719, 0, 0]
    assert standin.runtime.cudaGetLastError() == 719
    assert len(standin.launches) == 2


def test_failure_comes_after_so_many_calls_and_so_often(standin: Standin) -> None:
    standin.fail("cudaSetDevice", 46, after=1, times=2)
    assert [standin.runtime.cudaSetDevice(0) for _ in range(5)] == [0, 46, 46, 0, 0]


def test_failure_for_ever_ends_with_a_reset(standin: Standin) -> None:
    standin.fail("cuInit", 999, times=None)
    assert [standin.driver.cuInit(0) for _ in range(3)] == [999, 999, 999]
    standin.reset()
    assert standin.driver.cuInit(0) == 0


def test_failure_on_one_device_only(standin: Standin) -> None:
    standin.reset([(9, 0), (9, 0)])
    standin.fail("cudaSetDevice", 46, device=1)
    assert [standin.runtime.cudaSetDevice(device) for device in (0, 1)] == [0, 46]


def test_failure_works_without_recording(standin: Standin) -> None:
    standin.set_recording(False)
    standin.fail("cudaSetDevice", 46)
    assert [standin.runtime.cudaSetDevice(0) for _ in range(2)] == [46, 0]


@pytest.mark.parametrize("ask", [lambda s: s.fail("cudaNoSuch", 1), lambda s: s.calls("cudaNoSuch")])
def test_misspelt_function_is_refused(standin: Standin, ask: Callable[[Standin], object]) -> None:
    with pytest.raises(ValueError, match="cudaNoSuch"):
        ask(standin)


# -- streams --


def capture_status(standin: Standin, stream: int) -> int:
    status = ctypes.c_int(-1)
    assert standin.driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status)) == 0
    return status.value


def test_capturing_stream_says_so(standin: Standin) -> None:
    standin.driver.cuInit(0)
    kernel = kernel_of(standin)
    standin.set_capturing(0xABC, True)
    assert [capture_status(standin, stream) for stream in (0, 0xABC)] == [0, 1]
    launch(standin, kernel, stream=0xABC)
    standin.set_capturing(0xABC, False)
    assert capture_status(standin, 0xABC) == 0
    assert [seen.captured for seen in standin.launches] == [True]


def test_allocation_breaks_a_capture_unless_relaxed(standin: Standin) -> None:
    standin.driver.cuInit(0)
    standin.set_capturing(0xABC, True)
    memory = ctypes.c_void_p()
    mode = ctypes.c_int(2)
    standin.driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    assert standin.runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == 0
    assert capture_status(standin, 0xABC) == 1
    standin.driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    assert standin.runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(64)) == CAPTURE_UNSUPPORTED
    assert capture_status(standin, 0xABC) == 2


def test_stream_knows_its_device(standin: Standin) -> None:
    standin.reset([(9, 0), (9, 0)])
    standin.driver.cuInit(0)
    standin.set_device(0)
    device = ctypes.c_int(-1)
    assert standin.driver.cuStreamGetDevice(ctypes.c_void_p(standin.stream(1)), ctypes.byref(device)) == 0
    assert device.value == 1


# -- tensors --


def describe(x: tvm_ffi.Tensor) -> str:
    return f"{tuple(x.shape)} {tuple(x.strides)} {x.dtype} {x.device} {address_of(x):#x}"


def test_tensor_reaches_a_tvm_ffi_function(standin: Standin) -> None:
    standin.reset([(9, 0)] * 4)
    x = standin.tensor((4, 8), "bfloat16", device=3, strides=(16, 2), address=0x1000, byte_offset=6)
    assert tvm_ffi.convert(describe)(x) == "(4, 8) (16, 2) bfloat16 cuda:3 0x1006"


def test_tensor_on_the_host_has_memory(standin: Standin) -> None:
    x = standin.tensor((2, 3), "float32", device_type=CPU)
    assert ctypes.string_at(address_of(x), 24) == bytes(24)


def test_tensor_can_lack_strides(standin: Standin) -> None:
    def strides_address(x: tvm_ffi.Tensor) -> int | None:
        return ctypes.c_void_p.from_address(x.__chandle__() + 24 + 32).value

    assert strides_address(standin.tensor((4, 8))) is not None
    assert strides_address(standin.tensor((4, 8), null_strides=True)) is None


def test_tensor_is_freed(standin: Standin) -> None:
    before = standin.live_tensors
    tensors = [standin.tensor((4,), device_type=kind) for kind in (CPU, CUDA)]
    assert standin.live_tensors == before + 2
    tensors.clear()
    assert standin.live_tensors == before


def test_tensor_alive_at_exit_does_no_harm(built: Path) -> None:
    code = """
        import pathlib
        standin = Standin.load(pathlib.Path(sys.argv[1]))
        tensors = [standin.tensor((4, 8)) for _ in range(3)]
        tensors.append(tensors)
        print(standin.live_tensors)
    """
    assert in_new_process(code, str(built)).strip() == "3"


# -- the whole path --

SUPPORT = """
    #include <stdint.h>
    #include <stdio.h>
    typedef void (*set_error)(const char *kind, const char **parts, int32_t count);
    const char *cuda_dialect_get_error_name(int code);
    void CuteDSLRT_TVMFFISetRaisedCudaError(set_error raise, int32_t code) {
        const char *parts[] = {"launch failed: ", cuda_dialect_get_error_name(code)};
        raise("RuntimeError", parts, 2);
    }
"""


@pytest.fixture(scope="session")
def compiled_kernel(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library made from a really compiled kernel, NVIDIA's launch support, and the runtime linked shared."""
    package_folder("ziglang")
    archive = package_folder("nvidia_cutlass_dsl") / "cu12/lib/libcuda_dialect_runtime_static.a"
    folder = tmp_path_factory.mktemp("compiled_kernel")
    (folder / "support.c").write_text(SUPPORT)
    subprocess.run([sys.executable, str(HERE / "doubling.py"), "sm_90a", str(folder / "double.ll")], check=True)
    for name in ("double.ll", "support.c"):
        compile_in(folder, [*ZIG, "-O2", "-fPIC", "-c", name, "-o", f"{name}.o"])
    inputs = ["double.ll.o", "support.c.o", str(archive), str(built / "libcudart.so.12")]
    compile_in(folder, [*compiler(), "-shared", *inputs, "-o", "libdouble.so"])
    return folder / "libdouble.so"


def test_compiled_kernel_runs_against_the_standin(standin: Standin, compiled_kernel: Path) -> None:
    standin.reset([(9, 0), (9, 0)])
    double = tvm_ffi.load_module(str(compiled_kernel))["double"]
    x, y = (standin.tensor((1000,), device=1) for _ in range(2))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 1), 0xABC0):
        double(x, y)
    (seen,) = standin.launches
    assert "double_elements" in seen.kernel
    assert (seen.grid, seen.block, seen.stream, seen.device) == ((4, 1, 1), (256, 1, 1), 0xABC0, 1)
    assert standin.kernels_ready(1) == [seen.kernel]
    assert standin.calls("cudaLibraryLoadData") == 1

    standin.fail("cudaLaunchKernelExC", 719)
    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        double(x, y)
    with pytest.raises(ValueError, match="device_type=cuda"):
        double(standin.tensor((1000,), device_type=CPU), y)
