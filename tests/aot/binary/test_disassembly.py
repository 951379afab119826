"""No instruction beyond the host's baseline goes unseen, and none within it is reported."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from aot.binary import disassembly
from aot.binary.disassembly import Guard, Violation, beyond_baseline
from aot.binary.elf import CodeSection, Function, SharedLibrary, read_shared_library

# Per host: an instruction and the extension it belongs to; None within the baseline.
X86_64 = {
    "vaddps %ymm0, %ymm1, %ymm2": "avx",
    "vpaddd %ymm0, %ymm1, %ymm2": "avx2",
    "vaddps %zmm0, %zmm1, %zmm2": "avx512",
    "vfmadd132ss %xmm0, %xmm1, %xmm2": "avx",
    "haddps %xmm0, %xmm1": "sse3",
    "pshufb %xmm0, %xmm1": "ssse3",
    "palignr $4, %xmm0, %xmm1": "ssse3",
    "pmulld %xmm0, %xmm1": "sse41",
    "pextrw $1, %xmm0, (%rdi)": "sse41",
    "crc32l %ecx, %eax": "sse42",
    "sha256rnds2 %xmm0, %xmm1, %xmm2": "sha",
    "aesenc %xmm0, %xmm1": "aes",
    "popcntq %rax, %rcx": "popcnt",
    "lzcntq %rax, %rcx": "lzcnt",
    "shlxq %rax, %rcx, %rdx": "bmi2",
    "andnq %rax, %rcx, %rdx": "bmi",
    "movbe (%rax), %ecx": "movbe",
    "cmpxchg16b (%rdi)": "cx16",
    "xgetbv": "xgetbv",
    "rdrand %rax": "rdrand",
    "fisttpl (%rax)": "fisttp",
    "bsfq %rax, %rcx": None,
    "rep bsfq %rax, %rcx": None,
    "lock cmpxchgq %rax, (%rcx)": None,
    "rep movsq": None,
    "endbr64": None,
    "pause": None,
    "fldt (%rax)": None,
    "cvttsd2si %xmm0, %rax": None,
    "cmpltsd %xmm0, %xmm1": None,
    "pextrw $1, %xmm0, %eax": None,
    "pmuludq %xmm0, %xmm1": None,
    "cmovbe %rax, %rcx": None,
    "mfence": None,
    "cpuid": None,
    "ud2": None,
}
AARCH64 = {
    "casal x0, x1, [x2]": "lse",
    "ldaddal w0, w1, [x2]": "lse",
    "stadd w0, [x2]": "lse",
    "swpb w0, w1, [x2]": "lse",
    "ldapr x0, [x1]": "rcpc",
    "sha256h q0, q1, v2.4s": "sha2",
    "sha512h q0, q1, v2.2d": "sha3",
    "aese v0.16b, v1.16b": "aes",
    "pmull v0.1q, v1.1d, v2.1d": "aes",
    "crc32x w0, w1, x2": "crc32",
    "sdot v0.4s, v1.16b, v2.16b": "dotprod",
    "sqrdmlah v0.4s, v1.4s, v2.4s": "rdm",
    "bfmmla v0.4s, v1.8h, v2.8h": "bf16",
    "fadd h0, h1, h2": "fp16",
    "fmla v0.8h, v1.8h, v2.h[3]": "fp16",
    "scvtf v0.4h, v1.4h": "fp16",
    "fmov h0, w1": "fp16",
    "add z0.s, z1.s, z2.s": "sve",
    "ptrue p0.b": "sve",
    "ld1w { z0.s }, p0/z, [x0]": "sve",
    "retaa": "pauth",
    "dc cvap, x0": "dc cvap",
    "mrs x0, rndr": "rng",
    "fcvt h0, s1": None,
    "fcvtl v0.4s, v1.4h": None,
    "ldr h0, [x0]": None,
    "add v0.8h, v1.8h, v2.8h": None,
    "pmull v0.8h, v1.8b, v2.8b": None,
    "fmadd d0, d1, d2, d3": None,
    "ldaxr x0, [x1]": None,
    "stlxp w0, x1, x2, [x3]": None,
    "paciasp": None,
    "bti c": None,
    "dc zva, x0": None,
    "mrs x0, cntvct_el0": None,
    "msr fpcr, x0": None,
    "b.hs .": None,
    "tbl v0.16b, { v1.16b, v2.16b }, v3.16b": None,
}
CASES = {"x86_64": X86_64, "aarch64": AARCH64}
EVERYTHING = "armv9-a+crc+sha2+sha3+aes+dotprod+bf16+fp16+sve2+rng+pauth+rcpc"


def zig_cc(folder: Path, file: str, *flags: str, host: str) -> SharedLibrary:
    caches = {k: os.environ.get(k, str(folder.parent / "zig")) for k in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{host}-linux-gnu.2.28",
        "-shared",
        "-O2",
        "-g0",
    ]
    command += ["-fPIC", "-o", "lib.so", *flags, file]
    subprocess.run(command, cwd=folder, env={**os.environ, **caches}, check=True, capture_output=True)
    return read_shared_library(folder / "lib.so")


@pytest.fixture(scope="module", params=sorted(CASES))
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SharedLibrary:
    folder = tmp_path_factory.mktemp("code")
    lines = [f".arch {EVERYTHING}"] if request.param == "aarch64" else []
    for number, instruction in enumerate(CASES[request.param]):
        name = f"case_{number}"
        lines += [
            f".globl {name}",
            f".type {name}, %function",
            f"{name}:",
            instruction,
            "ret",
            f".size {name}, .-{name}",
        ]
    (folder / "cases.s").write_text("\n".join(["\t.text", *lines, '.section .note.GNU-stack,"",%progbits', ""]))
    return zig_cc(folder, "cases.s", host=request.param)


def test_each_extension_is_seen_and_named_and_the_baseline_is_not(library: SharedLibrary) -> None:
    expected = {f"case_{n}": e for n, e in enumerate(CASES[library.machine].values()) if e}
    assert {v.function: v.extension for v in beyond_baseline(library)} == expected


def test_a_violation_says_where_what_and_why(library: SharedLibrary) -> None:
    first = beyond_baseline(library)[0]
    where = next(f for f in library.functions if f.name == "case_0")
    assert first.address == where.address
    assert first.mnemonic in ("vaddps", "casal")
    assert f"{first.mnemonic} {first.operands}" in str(first)
    assert "is beyond" in first.why


def test_stripped_code_is_checked_too(library: SharedLibrary) -> None:
    stripped = replace(library, functions=(), stripped=True)
    assert len(beyond_baseline(stripped)) >= sum(1 for extension in CASES[library.machine].values() if extension)
    assert {v.function for v in beyond_baseline(stripped)} == {""}


def test_a_guard_covers_its_function_and_its_extensions_alone() -> None:
    def seen(function: str, extension: str) -> bool:
        return guard.covers(Violation(function, 0, "casal", "", extension, ""))

    guard = Guard("__aarch64_cas[1248]_*", frozenset({"lse"}), "tests the CPU first")
    assert seen("__aarch64_cas8_acq_rel", "lse")
    assert not seen("__aarch64_cas8_acq_rel", "sve")
    assert not seen("__aarch64_cas16_acq_rel", "lse")
    assert not seen("", "lse")


def test_compiled_avx2_is_caught_and_the_same_source_for_the_baseline_is_not(tmp_path: Path) -> None:
    source = "void scale(float *a, const float *b, int n) { for (int i = 0; i < n; i++) a[i] = a[i] * b[i] + 1.0f; }"
    (tmp_path / "scale.c").write_text(source)
    assert beyond_baseline(zig_cc(tmp_path, "scale.c", host="x86_64")) == []
    found = beyond_baseline(zig_cc(tmp_path, "scale.c", "-mavx2", host="x86_64"))
    assert {violation.function for violation in found} == {"scale"}


def test_outline_atomics_are_found_under_their_plain_name(tmp_path: Path) -> None:
    (tmp_path / "atomic.c").write_text("long add(long *v, long x) { return __atomic_fetch_add(v, x, 4); }")
    found = beyond_baseline(zig_cc(tmp_path, "atomic.c", "-moutline-atomics", host="aarch64"))
    assert {(v.function, v.extension) for v in found} == {("__aarch64_ldadd8_acq_rel", "lse")}


LSE = bytes.fromhex("41fce0c8")  # casal x0, x1, [x2]
NOP, RETURN, UNKNOWN = bytes.fromhex("1f2003d5"), bytes.fromhex("c0035fd6"), bytes.fromhex("efbeadde")
LOAD_NEXT_BUT_ONE = bytes.fromhex("40000058")  # ldr x0, .+8


def aarch64(data: bytes, *functions: Function, ranges: tuple[tuple[int, int], ...] = ()) -> SharedLibrary:
    section = CodeSection(".text", 0x1000, data, ranges)
    return bare_library("aarch64", section, functions)


def bare_library(machine: str, section: CodeSection, functions: tuple[Function, ...]) -> SharedLibrary:
    return SharedLibrary(
        path="lib.so",
        machine=machine,
        soname=None,
        needed=(),
        rpath=(),
        runpath=(),
        executable_stack=False,
        text_relocations=False,
        dynamic=(),
        writable_code=False,
        unmarked_code=(),
        exported=(),
        undefined=(),
        versions_needed=(),
        functions=functions,
        code=(section,),
        local_objects=(),
        stripped=not functions,
    )


def test_a_literal_pool_is_not_code() -> None:
    pool = LOAD_NEXT_BUT_ONE + RETURN + LSE + UNKNOWN
    assert beyond_baseline(aarch64(pool, Function("f", 0x1000, len(pool)))) == []
    assert len(beyond_baseline(aarch64(NOP + RETURN + LSE + UNKNOWN, Function("f", 0x1000, 16)))) == 2


def test_marked_data_is_not_code() -> None:
    data = RETURN + LSE + UNKNOWN + LSE
    found = beyond_baseline(aarch64(data, Function("f", 0x1000, 16), ranges=((0x1004, 0x100C),)))
    assert [violation.address for violation in found] == [0x100C]


def test_unknown_words_between_functions_are_padding_and_inside_one_are_not() -> None:
    data = RETURN + UNKNOWN + RETURN
    assert beyond_baseline(aarch64(data, Function("f", 0x1000, 4), Function("g", 0x1008, 4))) == []
    (found,) = beyond_baseline(aarch64(data, Function("f", 0x1000, 12)))
    assert (found.function, found.address, found.extension) == ("f", 0x1004, "unknown")
    assert len(beyond_baseline(aarch64(data))) == 1


def test_x86_reading_falls_in_step_again_at_the_next_function() -> None:
    data = bytes.fromhex("c3 c4e27b50c1 c4 c5fc58c1 c3".replace(" ", ""))  # the last byte before vaddps swallows it
    functions = (Function("f", 0x1000, 1), Function("unknown", 0x1001, 5), Function("g", 0x1007, 5))
    found = beyond_baseline(bare_library("x86_64", CodeSection(".text", 0x1000, data), functions))
    assert [(v.function, v.mnemonic) for v in found] == [("unknown", ".byte"), ("g", "vaddps")]


def test_x86_padding_is_not_code() -> None:
    data = bytes.fromhex("c3" + "06" * 15 + "c3")
    functions = (Function("f", 0x1000, 1), Function("g", 0x1010, 1))
    assert beyond_baseline(bare_library("x86_64", CodeSection(".text", 0x1000, data), functions)) == []


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> int:
    """Long code is read in blocks of 1 MiB, which take seconds to read: here they have 8 KiB."""
    monkeypatch.setattr(disassembly, "_BLOCK", 1 << 13)
    return 1 << 13


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_blocks_do_not_hide_what_lies_across_them(machine: str, small_blocks: int) -> None:
    """An instruction on the boundary is seen once."""
    bad, filler = (bytes.fromhex("c5fc58c1"), b"\x90") if machine == "x86_64" else (LSE, NOP)
    lead = small_blocks - (2 if machine == "x86_64" else 4)
    data = filler * (lead // len(filler)) + bad + filler * 64 + bad
    found = beyond_baseline(bare_library(machine, CodeSection(".text", 0x1000, data), ()))
    assert [v.address - 0x1000 for v in found] == [lead, len(data) - len(bad)]
    assert len({v.mnemonic for v in found}) == 1  # it was not cut


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_noise_of_many_blocks_is_read_to_its_end(machine: str, small_blocks: int) -> None:
    data = os.urandom(16 * small_blocks)
    found = beyond_baseline(bare_library(machine, CodeSection(".text", 0x1000, data), ()))
    assert max(violation.address for violation in found) > 0x1000 + 15 * small_blocks
