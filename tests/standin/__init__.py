"""A stand-in for the CUDA driver and runtime, for tests on machines without a GPU.

It plays devices of any compute capability, records what is launched on them, and fails any call on request. ``build``
compiles it; ``Standin.load`` puts it into this process under the names ``libcuda.so.1`` and ``libcudart.so.12``.

Where it imitates, it imitates what an H200 with driver 580 was seen to do: loading a library always succeeds, the first
question about its kernels finds bad data (200), a foreign architecture (209) or a wrong name (500). Nothing is computed.

Load it before any other CUDA library, and keep the compiler (``cutlass``) out of that process: it would find this driver.
"""

from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm_ffi

__all__ = [
    "CPU",
    "CUDA",
    "Launch",
    "Load",
    "RealCudaLoadedError",
    "Standin",
    "address_of",
    "build",
    "build_traps",
    "compiler",
    "compiler_environment",
    "hide_driver",
    "search_path",
]

CPU, CUDA = 1, 2  # DLPack's device types

_SOURCES = Path(__file__).parent
_FLAGS = [
    "-std=gnu99",
    "-O2",
    "-fPIC",
    "-shared",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-pthread",
    "-Wl,-Bsymbolic",
]
_MAX_DEVICES = 16
_FAKE_ADDRESS = 0x7F00_0000_0000  # from where on tensors pretend to be; nothing may read there
_PAGE = 4096
_LARGEST = 1 << 40  # of what a tensor pretends to occupy
_SM_COUNTS = {(8, 0): 108, (8, 6): 84, (8, 9): 128, (9, 0): 132, (10, 0): 148, (10, 3): 148, (12, 0): 188}
# A capsule keeps the address of its name, so the name must live as long as the process.
_CAPSULE_NAME = ctypes.create_string_buffer(b"dltensor_versioned")


# -- building ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Library:
    """One shared library of the stand-in. The soname is also its file name."""

    soname: str
    sources: tuple[str, ...]
    defines: tuple[str, ...] = ()
    version_node: bool = False  # the real libcudart marks its symbols with its own soname as their version


_STATE = _Library("libstandin.so", ("state.c", "errors.c", "streams.c", "library.c", "launch.c", "tensors.c"))
_DRIVER = _Library("libcuda.so.1", ("driver.c",))
_RUNTIMES = tuple(
    _Library(f"libcudart.so.{major}", ("runtime.c",), (f"-DSTANDIN_RUNTIME_VERSION={version}",), True)
    for major, version in ((12, 12090), (13, 13000))
)


def compiler() -> list[str]:
    """The C compiler to use: ``cc`` where there is one, else the one inside the ``ziglang`` package."""
    found = shutil.which("cc")
    return [found] if found else [sys.executable, "-m", "ziglang", "cc"]


def build(directory: Path, command: Sequence[str] | None = None) -> Path:
    """Compile the stand-in into ``directory``; what is newer than its sources is kept."""
    directory.mkdir(parents=True, exist_ok=True)
    for library in (_STATE, _DRIVER, *_RUNTIMES):
        if not _up_to_date(directory / library.soname, library):
            _compile(library, directory, list(command or compiler()))
    return directory


def build_traps(directory: Path) -> Path:
    """Libraries with the names of the driver and the runtime that end the process that opens them.

    In front of the search path they play a machine with a real driver: programs that belong to the stand-in must not
    notice them.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for library in (_DRIVER, *_RUNTIMES):
        name = [f"-Wl,-soname,{library.soname}", f'-DNAME="{library.soname}"', "-o", str(directory / library.soname)]
        _run([*compiler(), *_FLAGS, str(_SOURCES / "trap.c"), *name], directory)
    return directory


def hide_driver(directory: Path) -> Path:
    """A folder that takes the driver away from processes that have it in front of their search path.

    The loader stops at the first file of the wanted name, and an empty one is no library.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _DRIVER.soname).touch()
    return directory


def search_path(*folders: Path) -> dict[str, str]:
    """``LD_LIBRARY_PATH`` with these folders ahead of those that it names now."""
    now = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([*map(str, folders), *([now] if now else [])])}


def _up_to_date(output: Path, library: _Library) -> bool:
    inputs = [_SOURCES / name for name in (*library.sources, "state.h", "__init__.py")]
    return output.exists() and all(path.stat().st_mtime <= output.stat().st_mtime for path in inputs)


def _compile(library: _Library, directory: Path, command: list[str]) -> None:
    """Compile under a private name and rename, because test processes may build side by side."""
    unfinished = directory / f"{library.soname}.{os.getpid()}"
    arguments = [*command, *_FLAGS, *library.defines, f"-Wl,-soname,{library.soname}", "-o", str(unfinished)]
    arguments += [str(_SOURCES / name) for name in library.sources]
    if library is not _STATE:
        arguments += [str(directory / _STATE.soname), "-Wl,-rpath,$ORIGIN"]
    if library.version_node:
        arguments.append(f"-Wl,--version-script={_version_script(library, directory)}")
    _run([*arguments, "-ldl"], directory)
    unfinished.replace(directory / library.soname)


def _version_script(library: _Library, directory: Path) -> Path:
    script = directory / f"{library.soname}.map"
    script.write_text(f"{library.soname} {{ global: cuda*; local: *; }};\n")
    return script


def _run(arguments: list[str], directory: Path) -> None:
    done = subprocess.run(arguments, check=False, capture_output=True, text=True, env=compiler_environment(directory))
    if done.returncode:
        raise RuntimeError(f"`{' '.join(arguments)}` returned {done.returncode}:\n{done.stderr}{done.stdout}")


def compiler_environment(directory: Path) -> Mapping[str, str]:
    """This process's environment, and a place for zig's caches, which without HOME it does not find."""
    cache = str(directory / "zig-cache")
    return {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}


# -- what was seen -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """One launch that was accepted."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_memory: int
    stream: int
    device: int
    cluster: tuple[int, int, int]
    early: bool  # programmatic: before the kernel ahead in the stream has ended
    captured: bool  # its stream was being captured at that time
    thread: int  # as threading.get_native_id() says


@dataclass(frozen=True)
class Load:
    """One library load. ``size`` is 0 where the data was no fatbin."""

    thread: int
    device: int
    size: int


class _Device(ctypes.Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("sm_count", ctypes.c_int)]


class _LaunchRecord(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("stream", ctypes.c_uint64),
        ("shared_memory", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("device", ctypes.c_int32),
        ("early", ctypes.c_int32),
        ("captured", ctypes.c_int32),
        ("thread", ctypes.c_int64),
    ]

    def freeze(self) -> Launch:
        x, y, z = self.grid
        return Launch(
            kernel=self.kernel.decode(),
            grid=(x, y, z),
            block=(self.block[0], self.block[1], self.block[2]),
            shared_memory=self.shared_memory,
            stream=self.stream,
            device=self.device,
            cluster=(self.cluster[0], self.cluster[1], self.cluster[2]),
            early=bool(self.early),
            captured=bool(self.captured),
            thread=self.thread,
        )


class _LoadRecord(ctypes.Structure):
    _fields_ = [("thread", ctypes.c_int64), ("device", ctypes.c_int32), ("size", ctypes.c_uint64)]


def _declare(state: ctypes.CDLL) -> None:
    """Where ctypes' guess (``int`` for everything) would cut an address or a count."""
    text, size, number, address = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint64
    extents = ctypes.POINTER(ctypes.c_int64)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "standin_calls": (ctypes.c_long, [text]),
        "standin_fail": (number, [text, number, number, ctypes.c_long, ctypes.c_long]),
        "standin_launch_count": (size, []),
        "standin_launch_at": (number, [size, ctypes.POINTER(_LaunchRecord)]),
        "standin_load_count": (size, []),
        "standin_load_at": (number, [size, ctypes.POINTER(_LoadRecord)]),
        "standin_ready_kernel": (text, [number, size]),
        "standin_begin_capture": (number, [address, number]),
        "standin_end_capture": (number, [address]),
        "standin_add_stream": (None, [address, number]),
        "standin_new_handle": (address, []),
        "standin_live_tensors": (ctypes.c_long, []),
        "standin_take_strides": (None, [ctypes.c_void_p]),
        "standin_new_tensor": (
            ctypes.c_void_p,
            [address, address, address, number, number, number, extents, extents, number, number, number],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(state, name)
        function.restype, function.argtypes = result, arguments


class RealCudaLoadedError(RuntimeError):
    """The stand-in came too late. If torch is installed, ``import tvm_ffi`` imports it, and with it real CUDA."""


def _what_is_loaded(sonames: Sequence[str]) -> str:
    """Where the real libraries lie, and the frameworks that may have loaded them."""
    from without_frameworks import FRAMEWORKS

    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = sorted(path for path in paths if any(Path(path).name.startswith(name) for name in sonames))
    imported = [name for name in FRAMEWORKS if sys.modules.get(name) is not None]
    return (
        f"this process has loaded the real CUDA: {', '.join(found) or ', '.join(sonames)}; "
        f"imported frameworks: {', '.join(imported) or 'none'}. The stand-in needs a process without them"
    )


def _loaded(soname: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL | os.RTLD_NOLOAD)
    except OSError:
        return None


def _open(path: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


# -- the stand-in in this process ------------------------------------------------------------------------------------


class Standin:
    """The stand-in that was loaded into this process. There is one state per process, however many of these exist."""

    def __init__(self, state: ctypes.CDLL, driver: ctypes.CDLL, runtime: ctypes.CDLL) -> None:
        self._state = state
        self.driver = driver  # for tests that call driver and runtime functions themselves
        self.runtime = runtime
        self._next_address = _FAKE_ADDRESS
        _declare(state)

    @classmethod
    def load(cls, directory: Path, *, runtime: int = 12) -> Standin:
        """Load what ``build`` made. From then on ``libcuda.so.1`` and ``libcudart.so.12`` of this process are these.

        The loader compares a wanted name with the sonames of what is already there, so a later
        ``dlopen("libcuda.so.1")`` and a library that needs ``libcudart.so.12`` find these without any search
        path. There is no way back, other than a new process; loading again, from wherever, finds the same.
        """
        import without_frameworks  # noqa: F401  # TVM-FFI imports torch, and that the real CUDA libraries, if it can

        names = (_STATE.soname, _DRIVER.soname, f"libcudart.so.{runtime}")
        real = [name for name in names if _loaded(name) is not None]
        if real and _STATE.soname not in real:
            raise RealCudaLoadedError(_what_is_loaded(real))
        return cls(*(_loaded(name) or _open(directory / name) for name in names))

    def reset(
        self,
        capabilities: Sequence[tuple[int, int]] = ((9, 0),),
        sm_counts: Sequence[int] | None = None,
        *,
        driver_version: int = 13000,
    ) -> None:
        """Forget records, faults, streams and every thread's current device; play these devices from now on.

        No capabilities at all plays a machine without a usable driver: ``cuInit`` fails with 100. Libraries that were
        loaded, and attributes set on their kernels, stay: compiled launchers hold those handles until the process ends.
        """
        if len(capabilities) > _MAX_DEVICES:
            raise ValueError(f"{len(capabilities)} devices wanted, at most {_MAX_DEVICES} can be played")
        counts = sm_counts or [_SM_COUNTS.get(capability, 100) for capability in capabilities]
        played = [_Device(*pair, count) for pair, count in zip(capabilities, counts, strict=True)]
        self._state.standin_reset(len(played), (_Device * len(played))(*played), driver_version)

    def clear(self) -> None:
        """Forget the launches, loads and call counts so far, nothing else."""
        self._state.standin_clear()

    # What happened

    @property
    def launches(self) -> list[Launch]:
        record = _LaunchRecord()
        found: list[Launch] = []
        while self._state.standin_launch_at(len(found), ctypes.byref(record)):
            found.append(record.freeze())
        return found

    @property
    def loads(self) -> list[Load]:
        record = _LoadRecord()
        found: list[Load] = []
        while self._state.standin_load_at(len(found), ctypes.byref(record)):
            found.append(Load(record.thread, record.device, record.size))
        return found

    def calls(self, name: str) -> int:
        """How often the driver or runtime function ``name`` was called while recording was on."""
        self._check_function(name)
        return int(self._state.standin_calls(name.encode()))

    def kernels_ready(self, device: int) -> list[str]:
        """Kernels prepared for the device (an attribute set, or launched) since the last reset or clear."""
        return sorted(self._ready(device))

    def _ready(self, device: int) -> Iterator[str]:
        index = 0
        while (name := self._state.standin_ready_kernel(device, index)) is not None:
            yield name.decode()
            index += 1

    # What shall happen

    def fail(self, name: str, code: int, *, device: int | None = None, after: int = 0, times: int | None = 1) -> None:
        """Make ``name`` return ``code``: after so many good calls, so many times (``None``: for ever).

        ``device`` narrows it to calls for that device: the one in the arguments where there is one, else the current.
        """
        self._check_function(name)
        wanted = (-1 if device is None else device, after, -1 if times is None else times)
        if not self._state.standin_fail(name.encode(), code, *wanted):
            raise RuntimeError(f"no room for another fault, `{name}` was the one too many; reset first")

    def _check_function(self, name: str) -> None:
        if not any(hasattr(library, name) for library in (self.driver, self.runtime)):
            raise ValueError(f"neither the driver nor the runtime stand-in has a function {name!r}")

    def set_recording(self, on: bool) -> None:
        """Off, calls leave no trace, and launches are not even checked: they cost a few nanoseconds. Faults work."""
        self._state.standin_set_recording(int(on))

    def set_capturing(self, stream: int, on: bool) -> None:
        """Pretend that the stream is being captured into a graph, in the default (global) mode."""
        if on:
            self._state.standin_begin_capture(stream, 0)
        else:
            self._state.standin_end_capture(stream)

    def set_device(self, device: int | None) -> None:
        """Make a device current for the calling thread; ``None``: no context, as in a thread that used CUDA never."""
        self._state.standin_set_current_device(-1 if device is None else device)

    def stream(self, device: int = 0) -> int:
        """A new stream of that device. Any other number serves as a stream too, of whatever device is current."""
        handle = int(self._state.standin_new_handle())
        self._state.standin_add_stream(handle, device)
        return handle

    # Tensors

    def tensor(
        self,
        shape: Sequence[int],
        dtype: str = "float16",
        *,
        device: int = 0,
        strides: Sequence[int] | None = None,
        address: int | None = None,
        byte_offset: int = 0,
        device_type: int = CUDA,
        null_strides: bool = False,
    ) -> tvm_ffi.Tensor:
        """A tensor that says it is on a device. Without ``address`` a CPU tensor has zeroed memory, any other a fake
        address that is aligned to 4 KB. ``null_strides``: the callee finds no strides, as a C caller may leave them.
        """
        import tvm_ffi  # imports torch where there is one, which takes seconds

        kind = tvm_ffi.dtype(dtype)
        owns_memory = device_type == CPU and address is None
        host_bytes = _span(shape, strides, kind) + byte_offset if owns_memory else 0
        where = (self._fake_address(shape, strides, kind) if address is None else address, host_bytes, byte_offset)
        extents = (len(shape), _extents(shape), None if strides is None else _extents(strides))
        managed = self._state.standin_new_tensor(
            *where, device_type, device, *extents, kind.type_code, kind.bits, kind.lanes
        )
        made: tvm_ffi.Tensor = tvm_ffi.from_dlpack(_capsule(managed))
        if null_strides:
            self._state.standin_take_strides(made.__chandle__())
        return made

    def _fake_address(self, shape: Sequence[int], strides: Sequence[int] | None, dtype: tvm_ffi.dtype) -> int:
        """Past every tensor made before, as memory would be: dispatch refuses outputs that overlap."""
        address = self._next_address
        reach = min(_span(shape, strides, dtype), _LARGEST)
        self._next_address += (reach + _PAGE - 1) // _PAGE * _PAGE + _PAGE
        return address

    @property
    def live_tensors(self) -> int:
        """How many tensors were made and not yet freed; what only garbage keeps, such as an old traceback, is freed first."""
        gc.collect()
        return int(self._state.standin_live_tensors())


def address_of(tensor: tvm_ffi.Tensor) -> int:
    """Where the data of a tensor begin. The oldest apache-tvm-ffi that runs a bundle has no ``data_ptr``."""
    begin = tensor.__chandle__() + 24  # behind the header of tvm_ffi's object
    words = (ctypes.c_uint64 * 6).from_address(begin)  # of a DLTensor: its address first, the offset last
    return int(words[0] + words[5])


def _extents(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _span(shape: Sequence[int], strides: Sequence[int] | None, dtype: tvm_ffi.dtype) -> int:
    """Bytes from the first element to the end of the last; at least 1, so that there is an address."""
    if strides is None:
        elements = prod(shape)
    else:
        elements = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return max(1, (elements * dtype.bits * dtype.lanes + 7) // 8)


def _capsule(managed: int) -> object:
    """A DLPack capsule without destructor: the caller hands it over at once, and the taker frees the tensor."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return make(managed, ctypes.addressof(_CAPSULE_NAME), None)
