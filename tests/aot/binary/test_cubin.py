"""Cubins are found wherever they are, and say what they are for."""

from __future__ import annotations

import functools
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.binary.cubin import Cubin, cubins_in_bytes, cubins_in_library, cubins_in_llvm_ir
from aot.binary.elf import ElfError

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100a", "sm_100f")

# Two kernels: one with a required block, 512 bytes of static shared memory and a stack, one with a largest block.
SCRIPT = """
import sys
import cutlass
import cutlass.cute as cute
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream


@cute.kernel
def first(x: cute.Tensor, y: cute.Tensor, n: cutlass.Int32):
    t = cute.arch.thread_idx()[0]
    i = cute.arch.block_idx()[0] * 256 + t
    s = cute.make_tensor(cute.arch.alloc_smem(cutlass.Float16, 256), cute.make_layout(256))
    r = cute.make_rmem_tensor(cute.make_layout(64), cutlass.Float16)
    for j in cutlass.range(64, unroll=1):
        r[j] = x[i * 64 + j]
    if i < n:
        s[t] = x[i]
        cute.arch.sync_threads()
        y[i] = s[255 - t] + r[cutlass.Int32(r[0])]


@cute.kernel
def second(y: cute.Tensor, n: cutlass.Int32):
    i = cute.arch.block_idx()[0] * 256 + cute.arch.thread_idx()[0]
    if i < n:
        y[i] = cutlass.Float16(3.0)


@cute.jit
def both(x: cute.Tensor, y: cute.Tensor, stream: CUstream):
    n = cute.size(x)
    first(x, y, n).launch(grid=[n, 1, 1], block=[128, 2, 1], stream=stream)
    second(y, n).launch(grid=[n, 1, 1], block=[n, 1, 1], max_number_threads=[512, 1, 1], stream=stream)


n = cute.sym_int()
x, y = (make_fake_compact_tensor(cutlass.Float16, (n,), assumed_align=16) for _ in range(2))
stream = make_fake_stream(use_tvm_ffi_env_stream=True)
compiled = cute.compile(both, x, y, stream, options=f"--enable-tvm-ffi --gpu-arch {sys.argv[1]}")
compiled.export_to_c(sys.argv[2], function_name="both", export_only_tvm_ffi_symbols=True)
"""


@pytest.fixture(scope="module")
def module_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("cubin")
    (folder / "compile.py").write_text(SCRIPT)

    @functools.cache
    def compile_for(arch: str) -> str:
        path = folder / f"{arch}.ll"
        command = [sys.executable, "compile.py", arch, str(path)]
        subprocess.run(command, cwd=folder, env={**os.environ, "CUTE_DSL_ARCH": arch}, check=True, capture_output=True)
        return path.read_text()

    return compile_for


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_exported_ir_holds_one_cubin_for_what_was_asked(arch: str, module_text: Callable[[str], str]) -> None:
    (cubin,) = cubins_in_llvm_ir(module_text(arch))
    assert cubin.architecture == arch
    assert cubin.elf.startswith(b"\x7fELF")
    assert len(cubin.sha256) == 64


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_say_what_they_use(arch: str, module_text: Callable[[str], str]) -> None:
    (cubin,) = cubins_in_llvm_ir(module_text(arch))
    first = next(kernel for kernel in cubin.kernels if "first" in kernel.name)
    second = next(kernel for kernel in cubin.kernels if "second" in kernel.name)
    assert len(cubin.kernels) == 2
    assert (first.required_threads, first.max_threads) == ((128, 2, 1), 256)
    assert (second.required_threads, second.max_threads) == (None, 512)
    assert (first.static_shared_memory, second.static_shared_memory) == (512, 0)
    assert first.registers is not None
    assert 0 < first.registers <= 255
    assert first.stack_bytes is not None
    assert first.stack_bytes >= 128
    assert second.stack_bytes == 0


def test_a_library_gives_up_its_cubins_stripped_and_unaligned(
    module_text: Callable[[str], str], tmp_path: Path
) -> None:
    wanted = [cubins_in_llvm_ir(module_text(arch))[0] for arch in ("sm_80", "sm_100f")]
    for number, cubin in enumerate(wanted):
        (tmp_path / f"{number}.fatbin").write_bytes(fatbin(cubin))
    assert [c.sha256 for c in cubins_in_library(_link(tmp_path))] == [c.sha256 for c in wanted]


def test_several_constants_and_entries_are_read_in_order(module_text: Callable[[str], str]) -> None:
    (old,), (new,) = (cubins_in_llvm_ir(module_text(arch)) for arch in ("sm_80", "sm_100a"))
    two = (
        llvm_constant("a", fatbin(old)) + llvm_constant('"b c"', b"unrelated \\ text") + llvm_constant("d", fatbin(new))
    )
    assert cubins_in_llvm_ir(two) == (old, new)
    assert cubins_in_bytes(b"\x50\xed\x55\xba" + bytes(40) + fatbin(old, new)) == (old, new)


def test_cuda_13_marks_an_accelerated_cubin_in_its_compat_section(module_text: Callable[[str], str]) -> None:
    """CUDA 13 leaves the flag out of e_flags and writes attribute 9 instead."""
    (cubin,) = cubins_in_llvm_ir(module_text("sm_100a"))
    plain = bytearray(cubin.elf)
    plain[48] &= 0xF7
    (seen,) = cubins_in_bytes(raw_fatbin(bytes(plain), 100, 0))
    assert seen.architecture == "sm_100"
    marked = bytes(plain).replace(b"\x02\x06\x01\x00", b"\x02\x09\x01\x00")
    assert marked != plain, "the compiler no longer writes the record that this test rewrites"
    (seen,) = cubins_in_bytes(raw_fatbin(marked, 100, 1 << 20))
    assert seen.architecture == "sm_100a"
    with pytest.raises(ElfError, match="a cubin for sm_100a in a fatbin entry for sm_100f"):
        cubins_in_bytes(raw_fatbin(marked, 100, 1 << 21))


def test_a_cubin_for_another_architecture_than_its_entry_says_is_refused(
    module_text: Callable[[str], str],
) -> None:
    (cubin,) = cubins_in_llvm_ir(module_text("sm_80"))
    with pytest.raises(ElfError, match="a cubin for sm_80 in a fatbin entry for sm_90"):
        cubins_in_bytes(raw_fatbin(cubin.elf, 90, 0))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
def test_damaged_fatbins_raise_elf_error_and_nothing_else(arch: str, module_text: Callable[[str], str]) -> None:
    whole = fatbin(*cubins_in_llvm_ir(module_text(arch)))
    generator = random.Random(2)
    for part in range(64):
        _read_or_elf_error(whole[: len(whole) * part // 64])
    for position in [*range(160), *generator.sample(range(len(whole)), 600)]:
        _read_or_elf_error(whole[:position] + generator.randbytes(1) + whole[position + 1 :])


def test_a_constant_shorter_than_declared_is_refused(module_text: Callable[[str], str]) -> None:
    text = llvm_constant("a", fatbin(*cubins_in_llvm_ir(module_text("sm_80"))))
    with pytest.raises(ElfError, match="declared with"):
        cubins_in_llvm_ir(text.replace(r"\EDU\BA", r"\EDU\BA\00", 1))


def test_a_constant_with_an_escape_that_llvm_does_not_write_is_refused() -> None:
    with pytest.raises(ElfError, match="a constant that LLVM does not write"):
        cubins_in_llvm_ir('@a = constant [3 x i8] c"a\\zb"\n')


def test_bytes_without_a_fatbin_hold_no_cubin() -> None:
    assert cubins_in_bytes(b"") == ()
    assert cubins_in_bytes(b"\x50\xed\x55\xba" * 100) == ()
    assert cubins_in_llvm_ir('@a = constant [3 x i8] c"a\\5Cb"\ndefine void @f() {}\n') == ()


def test_a_compressed_entry_is_refused() -> None:
    with pytest.raises(ElfError, match="compressed"):
        cubins_in_bytes(raw_fatbin(b"\x04\x22\x4d\x18" + bytes(60), 90, 0))


def test_an_entry_that_leaves_its_fatbin_is_refused() -> None:
    broken = bytearray(raw_fatbin(bytes(64), 90, 0))
    struct.pack_into("<Q", broken, 24, 1 << 60)
    with pytest.raises(ElfError, match="are left"):
        cubins_in_bytes(bytes(broken))


def test_entries_of_other_kinds_are_passed_over() -> None:
    ptx = bytearray(raw_fatbin(b".version 8.0".ljust(64, b"\0"), 90, 0))
    struct.pack_into("<H", ptx, 16, 1)
    assert cubins_in_bytes(bytes(ptx)) == ()


def fatbin(*cubins: Cubin) -> bytes:
    flags = {"a": 1 << 20, "f": 1 << 21, "": 0}
    return raw_fatbin_of([(c.elf, c.major * 10 + c.minor, flags[c.suffix]) for c in cubins])


def raw_fatbin(elf: bytes, number: int, flags: int) -> bytes:
    return raw_fatbin_of([(elf, number, flags)])


def raw_fatbin_of(entries: list[tuple[bytes, int, int]]) -> bytes:
    body = b""
    for elf, number, flags in entries:
        body += struct.pack("<HHIQIIHHIIIQQQ", 2, 0x101, 64, len(elf), 0, 0, 7, 1, number, 0, 0, flags, 0, 0) + elf
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def llvm_constant(name: str, data: bytes) -> str:
    text = "".join("\\\\" if b == 0x5C else chr(b) if 32 <= b < 127 and b != 0x22 else f"\\{b:02X}" for b in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{text}", align 8\n'


def _read_or_elf_error(data: bytes) -> None:
    try:
        cubins_in_bytes(data)
    except ElfError as error:
        assert error.what


def _link(folder: Path) -> Path:
    lines = (f'".byte 1\\n.incbin \\"{number}.fatbin\\"\\n"' for number in (0, 1))
    section = '".section .rodata.gpu,\\"aR\\",@progbits\\n"'  # R: kept though nothing refers to it
    (folder / "gpu.c").write_text(
        f'__asm__({section} {" ".join(lines)} ".text\\n");\nint entry(void) {{ return 1; }}\n'
    )
    caches = {k: os.environ.get(k, str(folder / "zig")) for k in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "x86_64-linux-gnu.2.28",
        "-shared",
        "-s",
        "-g0",
    ]
    command += ["-o", "gpu.so", "gpu.c"]
    subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=True, capture_output=True)
    return folder / "gpu.so"
