"""A bundle's library for torch from end to end, without torch and without a GPU: torch is played by a few functions, CUDA
by the stand-in. What the real torch does with the library is in ``test_torch_library``."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import aot_runtime.native
import pytest
from aot_runtime.description.records import FILE_NAME
from aot_runtime.frameworks.schemas import functional_schema, out_schema
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from observing import run_python
from places import TESTS
from standin import Standin, compiler

from aot.bundle.description import file_record
from aot.bundle.layout import torch_library_path
from aot.bundle.manifest import Manifest
from aot.hosts import Host

CUDA, CPU, F32, F64 = 101, 100, 206, 207  # the numbers of played_libtorch.c
STREAM = 0x5000
HOST = Host.native().name
PLAYED_CUDA = f"""
#include <stdint.h>
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {{
  *stream = (void*)(uintptr_t)({STREAM} + device);
  return 0;
}}
"""


class Torch:
    """The played torch, with the operators of the bundle ``demo``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.played_tensor.restype = library.played_string.restype = ctypes.c_void_p
        library.played_tensor.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, *4 * [ctypes.c_int32]]
        for name in ("played_call", "played_key", "played_schema"):
            getattr(library, name).restype = ctypes.c_char_p

    @property
    def live(self) -> int:
        return ctypes.c_long.in_dll(self.library, "played_live").value

    def set(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"played_{name}").value = value

    def tensor(
        self, size: int, at: int, *, dtype: int = F32, kind: int = CUDA, device: int = 0, grad: bool = False
    ) -> int:
        sizes = (ctypes.c_int64 * 1)(size)
        return int(self.library.played_tensor(0x7F00_0000_0000 + at, 1, sizes, dtype, kind, device, grad))

    def number(self, value: float) -> int:
        return int.from_bytes(ctypes.c_double(value), "little")

    def string(self, text: str) -> int:
        return int(self.library.played_string(text.encode()))

    def call(self, name: str, *slots: int, outputs: int = 0) -> str | list[int]:
        """What the operator returned, or what it threw."""
        stack = (ctypes.c_uint64 * 8)(*slots)
        said = self.library.played_call(name.encode(), stack, ctypes.c_uint64(len(slots)), ctypes.c_uint64(outputs))
        return said.decode() if said is not None else list(stack[:outputs])

    def schemas(self) -> list[str]:
        return [text.decode() for text in iter(map(self.library.played_schema, range(16)).__next__, None)]


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the libraries of the played torch."""
    folder = tmp_path_factory.mktemp("torch")
    (folder / "cuda.c").write_text(PLAYED_CUDA)
    for name, source in (
        ("libtorch_cpu.so", TESTS / "runtime" / "frameworks" / "played_libtorch.c"),
        ("libtorch_cuda.so", folder / "cuda.c"),
    ):
        flags = ["-std=gnu99", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", f"-Wl,-soname,{name}"]
        subprocess.run([*compiler(), *flags, str(source), "-o", str(folder / name)], check=True)
    return folder


@pytest.fixture(scope="module")
def torch(standin_process: Standin, demo_bundle_path: Path, libraries: Path) -> Torch:
    import tvm_ffi  # noqa: F401  # opens libtvm_ffi.so, which a program in C++ would link

    torch = Torch(ctypes.CDLL(str(libraries / "libtorch_cpu.so"), ctypes.RTLD_LOCAL))
    ctypes.CDLL(str(libraries / "libtorch_cuda.so"), ctypes.RTLD_LOCAL)
    opened = ctypes.CDLL(str(demo_bundle_path / torch_library_path(HOST, "demo")))
    opened.aot_demo_torch_error.restype = ctypes.c_char_p
    assert opened.aot_demo_torch_error() is None
    return torch


@pytest.fixture(autouse=True)
def _nothing_stays(torch: Torch) -> Iterator[None]:
    before = torch.live
    yield
    torch.set("grad_mode", 0)
    torch.set("fails_to_allocate", 0)
    assert torch.live == before


def delete(torch: Torch, handles: str | list[int]) -> None:
    assert isinstance(handles, list), handles
    for handle in handles:
        torch.library.aoti_torch_delete_tensor_object(ctypes.c_void_p(handle))


def test_the_operators_of_kernels_json_are_registered_for_cuda(torch: Torch, demo_bundle_path: Path) -> None:
    kernels = Manifest.read(demo_bundle_path).kernels.values()
    assert torch.schemas() == [schema(kernel) for kernel in kernels for schema in (functional_schema, out_schema)]
    assert torch.library.played_key() == b"CUDA"


def test_a_call_launches_on_torchs_stream_and_device(torch: Torch, cuda: Standin) -> None:
    made = torch.call("axpy", torch.tensor(1000, 0), torch.tensor(1000, 4096), torch.number(2.0), outputs=1)
    (launch,) = cuda.launches
    assert (launch.stream, launch.device, launch.grid) == (STREAM, 0, (4, 1, 1))
    assert "axpy" in launch.kernel
    delete(torch, made)


def test_the_out_form_returns_nothing_and_keeps_nothing(torch: Torch, cuda: Standin) -> None:
    slots = (torch.tensor(300, 0), torch.string("clamp"), torch.tensor(300, 4096))
    assert torch.call("activate.out", *slots) == []
    assert [launch.stream for launch in cuda.launches] == [STREAM]


def test_a_refusal_lists_the_reasons_and_frees_everything(torch: Torch, cuda: Standin) -> None:
    said = torch.call("axpy", torch.tensor(8, 0, dtype=F64), torch.tensor(8, 4096), torch.number(1.0), outputs=1)
    assert "sm_90a axpy: x.dtype is float64, must be float32" in said
    said = torch.call("axpy", torch.tensor(8, 0), torch.tensor(8, 4096, kind=CPU), torch.number(1.0), outputs=1)
    assert "sm_90a axpy: y lies on a device of type 1, must lie on a CUDA device" in said
    said = torch.call("activate", torch.tensor(8, 0), torch.string("tanh"), outputs=1)
    assert said == "activate: kind = 'tanh' was not built; known: relu, clamp"
    torch.set("fails_to_allocate", 1)
    said = torch.call("activate", torch.tensor(8, 0), torch.string("relu"), outputs=1)
    assert said == "activate: torch cannot allocate `out`; its own message is in the log"
    assert not cuda.launches


def test_a_tensor_on_a_device_that_torch_made_up_is_refused(torch: Torch, cuda: Standin) -> None:
    said = torch.call("activate", torch.tensor(8, 0, kind=7), torch.string("relu"), outputs=1)
    assert said == "activate: `x` lies neither on a CUDA device nor on the CPU"


def test_a_gradient_is_refused_in_grad_mode_alone(torch: Torch, cuda: Standin) -> None:
    def call() -> str | list[int]:
        return torch.call("activate", torch.tensor(8, 0, grad=True), torch.string("relu"), outputs=1)

    delete(torch, call())
    torch.set("grad_mode", 1)
    assert str(call()).startswith("activate computes no gradient if it is called from C")
    assert len(cuda.launches) == 1


# What a signature covers. Each process below plays torch for `aot_runtime.torch.load_library`, and prints what the other
# code prints if it runs.

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNED = """
import ctypes, os, shutil, sys, types
from pathlib import Path
from standin import Standin
Standin.load(Path(sys.argv[1]))
import aot_runtime.core.bundle  # with TVM-FFI, which asks a torch that is there for more than is played here
played, bundle, other = map(Path, sys.argv[2:5])
library = ctypes.CDLL(str(played / "libtorch_cpu.so"), ctypes.RTLD_LOCAL)
library.played_tensor.restype, library.played_call.restype = ctypes.c_void_p, ctypes.c_char_p
library.played_tensor.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, *4 * [ctypes.c_int32]]
ctypes.CDLL(str(played / "libtorch_cuda.so"), ctypes.RTLD_LOCAL)
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.ops = types.SimpleNamespace(loaded_libraries=set())
from aot_runtime.frameworks.torch_native import load_library

def load():
    return aot_runtime.load(bundle, key=bytes.fromhex(sys.argv[5]))

def attempt(what, *arguments):
    try:
        what(*arguments)
        print("accepted", flush=True)
    except aot_runtime.AotError as error:
        print(type(error).__name__, flush=True)

def call():
    tensors = [library.played_tensor(0x7F0000000000 + 4096 * i, 1, (ctypes.c_int64 * 1)(8), 206, 101, 0, 0) for i in (0, 1)]
    stack = (ctypes.c_uint64 * 8)(*tensors, 0)
    print("called" if library.played_call(b"axpy", stack, 3, 1) is None else "refused", flush=True)

def put(files):
    for name in (file.relative_to(other) for file in sorted(other.rglob("*")) if file.is_file()):
        shutil.copy(files / name, bundle / f"{name}.new")
        os.replace(bundle / f"{name}.new", bundle / name)
"""


@pytest.fixture
def signed(demo_bundle_path: Path, tmp_path: Path) -> Path:
    copy = Path(shutil.copytree(demo_bundle_path, tmp_path / "signed"))
    (copy / "manifest.sig").write_bytes(PRIVATE.sign((copy / "manifest.json").read_bytes()))
    return copy


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The files by which somebody who can write to the bundle puts other code into it: every unsigned digest fits."""
    folder = tmp_path / "other"
    source, entry = tmp_path / "other.c", folder / "lib" / HOST / "libdemo.so"
    entry.parent.mkdir(parents=True)
    code = (TESTS / "runtime" / "frameworks" / "played_entry.c").read_text()
    source.write_text(
        code + '__attribute__((constructor)) static void run(void) { puts("other code"), fflush(stdout); }'
    )
    flags = ["-std=gnu99", "-fPIC", "-shared", f"-I{aot_runtime.native.include_directory()}"]
    subprocess.run([*compiler(), *flags, str(source), "-o", str(entry)], check=True)
    record = file_record(entry)
    hosts = {HOST: {"entry": {"path": f"lib/{HOST}/libdemo.so", **record.data()}}}
    (folder / FILE_NAME).write_text(json.dumps({"name": "demo", "hosts": hosts}))
    return folder


@pytest.fixture
def play(standin_directory: Path, libraries: Path, signed: Path, other: Path) -> Callable[[str], list[str]]:
    key = PRIVATE.public_key().public_bytes_raw().hex()
    return lambda code: run_python(SIGNED + code, standin_directory, libraries, signed, other, key).splitlines()


def test_a_signature_covers_what_operators_call(play: Callable[[str], list[str]]) -> None:
    assert play("attempt(load_library, load()), call()") == ["accepted", "called"]


def test_code_that_comes_after_the_signature_was_checked_does_not_run(play: Callable[[str], list[str]]) -> None:
    code = "bundle_ = load(); put(other); attempt(load_library, bundle_); call()"
    assert play(code) == ["BundleError", "refused"]


def test_paths_and_digests_that_do_not_fit_are_refused(play: Callable[[str], list[str]]) -> None:
    code = """
load_library(load())
(path,) = torch.ops.loaded_libraries
open_at = ctypes.CDLL(path).aot_demo_torch_open
open_at.restype = ctypes.c_char_p
for size, digits in ((4096, 64), (4097, 64), (100, 65), (100, 1000), (4095, 64), (100, 64)):
    print(b"or the digest of its manifest, is too long" in open_at(b"/" * size, b"0" * digits))
"""
    assert play(code) == 4 * ["True"] + 2 * ["False"]


def test_the_library_for_torch_is_compared_with_its_digest(play: Callable[[str], list[str]], signed: Path) -> None:
    library = signed / torch_library_path(HOST, "demo")
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    assert play("attempt(load_library, load())") == ["DigestError"]


def test_a_library_for_torch_that_was_opened_unchecked_is_compared_when_its_operators_are_registered(
    play: Callable[[str], list[str]], signed: Path
) -> None:
    library = signed / torch_library_path(HOST, "demo")
    checked = "from aot_runtime.frameworks.torch_native import check_opened; attempt(check_opened, load())"
    opened = f"ctypes.CDLL({str(library)!r}); "
    assert play(checked) == play(opened + checked) == ["accepted"]
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.write_bytes(content)
    assert play(checked) == ["accepted"]
    assert play(opened + checked) == ["DigestError"]


def test_operators_that_called_unchecked_code_are_not_called_signed(
    play: Callable[[str], list[str]], signed: Path, tmp_path: Path
) -> None:
    shutil.copytree(signed, tmp_path / "before")
    opened = f"ctypes.CDLL(str(bundle / {torch_library_path(HOST, 'demo')!r}))"
    code = f"put(other); {opened}; call(); put(Path({str(tmp_path / 'before')!r})); attempt(load_library, load())"
    # Whoever opens the library by its path trusts the directory.
    assert play(code) == ["other code", "refused", "BundleError"]


def test_a_library_that_is_replaced_after_it_was_hashed_is_not_the_one_that_is_opened(
    play: Callable[[str], list[str]], other: Path
) -> None:
    code = f"""
from aot_runtime.core import opening
spelled, replaced = opening._spelled, []

def replacing(descriptor, facts):
    target = bundle / {torch_library_path(HOST, "demo")!r}
    shutil.copy(other / "lib" / {HOST!r} / "libdemo.so", f"{{target}}.new")
    os.replace(f"{{target}}.new", target)
    replaced.append(target)
    return spelled(descriptor, facts)

checked = load()
opening._spelled = replacing
attempt(load_library, checked)
print(len(replaced), flush=True)
call()
"""
    assert play(code) == ["accepted", "1", "called"]
