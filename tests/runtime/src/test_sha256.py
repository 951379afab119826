"""SHA-256 of the runtime, against ``hashlib``, in both versions; and where its SHA instructions are."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from observing import open_below

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[2] / "runtime" / "src"
INCLUDE = SOURCE.parent / "include"
FLAGS = ["-std=c99", "-O2", "-fPIC", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{SOURCE}", f"-I{INCLUDE}"]
ZIG = [sys.executable, "-m", "ziglang", "cc"]
NO_DIGEST = bytes(32)

# The modes of `shim_read`.
PLAIN, SHORT_AND_INTERRUPTED, THEN_RESIZE, FAILS = range(4)


def compile_c(command: list[str], folder: Path) -> None:
    cache = str(folder / "zig")
    env = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


@dataclass(frozen=True)
class FileResult:
    error: int
    digest: bytes
    seen_size: int
    reads: int


@dataclass(frozen=True)
class Shim:
    """The shim library with Python types at its edge."""

    library: ctypes.CDLL

    @property
    def has_cpu_instructions(self) -> bool:
        return bool(self.library.shim_has_cpu_instructions())

    @property
    def init_chooses_cpu(self) -> bool:
        return bool(self.library.shim_init_chooses_cpu())

    def hash(self, use_cpu: bool, chunks: list[bytes], offset: int = 0) -> bytes:
        """Digest of the chunks in turn, the first one `offset` bytes into a buffer."""
        data = bytes(offset) + b"".join(chunks)
        buffer = ctypes.create_string_buffer(data, len(data) + 1)
        sizes = (ctypes.c_size_t * len(chunks))(*map(len, chunks))
        digest = ctypes.create_string_buffer(32)
        self.library.shim_hash(int(use_cpu), ctypes.byref(buffer, offset), sizes, ctypes.c_size_t(len(chunks)), digest)
        return digest.raw

    def file(self, path: Path, expected_size: int, mode: int = PLAIN, size_after: int = 0) -> FileResult:
        digest = ctypes.create_string_buffer(b"\xff" * 32, 32)
        seen, reads = ctypes.c_uint64(), ctypes.c_int()
        error = self.library.shim_file(
            mode,
            ctypes.c_int64(size_after),
            os.fsencode(path),
            ctypes.c_uint64(expected_size),
            digest,
            ctypes.byref(seen),
            ctypes.byref(reads),
        )
        return FileResult(error, digest.raw, seen.value, reads.value)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Shim:
    folder = tmp_path_factory.mktemp("sha256")
    compiler = shutil.which("cc")
    library = folder / "shim.so"
    command = [compiler] if compiler is not None else ZIG
    compile_c([*command, *FLAGS, "-shared", str(HERE / "sha256_shim.c"), "-o", str(library)], folder)
    return Shim(ctypes.CDLL(str(library)))


@pytest.fixture(scope="module", params=[False, True], ids=["portable", "cpu"])
def use_cpu(request: pytest.FixtureRequest, shim: Shim) -> bool:
    wanted = bool(request.param)
    if wanted and not shim.has_cpu_instructions:
        pytest.skip("this processor has no SHA-256 instructions")
    return wanted


def test_the_instructions_are_those_that_the_kernel_names(shim: Shim) -> None:
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    known = next(set(words.split()) for name, _, words in lines if name.strip() in ("flags", "Features"))
    assert shim.has_cpu_instructions == ("sha2" in known or {"sha_ni", "ssse3", "sse4_1"} <= known)


def test_init_chooses_the_instructions_where_they_exist(shim: Shim) -> None:
    assert shim.init_chooses_cpu == shim.has_cpu_instructions


@pytest.mark.parametrize(
    ("message", "expected"),
    [  # FIPS 180-2, appendix B, and the empty message
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        (
            b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
        ),
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
    ],
    ids=["empty", "one block", "two blocks", "million"],
)
def test_published_vectors(shim: Shim, use_cpu: bool, message: bytes, expected: str) -> None:
    assert shim.hash(use_cpu, [message]).hex() == expected


def test_every_length_across_the_padding_boundaries(shim: Shim, use_cpu: bool) -> None:
    data = bytes(range(256))
    for size in range(len(data) + 1):
        assert shim.hash(use_cpu, [data[:size]]) == hashlib.sha256(data[:size]).digest(), size


@settings(max_examples=300, deadline=None)
@given(chunks=st.lists(st.binary(max_size=300), max_size=12), offset=st.integers(0, 17))
def test_any_chunking_and_alignment(shim: Shim, use_cpu: bool, chunks: list[bytes], offset: int) -> None:
    assert shim.hash(use_cpu, chunks, offset) == hashlib.sha256(b"".join(chunks)).digest()


@settings(max_examples=50, deadline=None)
@given(
    size=st.integers(0, 300_000),
    cuts=st.lists(st.integers(0, 300_000), max_size=6),
    seed=st.integers(0, 2**32),
)
def test_long_messages(shim: Shim, use_cpu: bool, size: int, cuts: list[int], seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    edges = sorted({0, size, *(cut % (size + 1) for cut in cuts)})
    chunks = [data[start:end] for start, end in pairwise(edges)]
    assert shim.hash(use_cpu, chunks) == hashlib.sha256(data).digest()


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 400_000])
@pytest.mark.parametrize("mode", [PLAIN, SHORT_AND_INTERRUPTED], ids=["plain", "short and interrupted"])
def test_file_digest(shim: Shim, tmp_path: Path, size: int, mode: int) -> None:
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    path = tmp_path / "library.so"
    path.write_bytes(data)
    result = shim.file(path, size, mode)
    assert (result.error, result.seen_size) == (0, size)
    assert result.digest == hashlib.sha256(data).digest()


def test_missing_file_is_enoent(shim: Shim, tmp_path: Path) -> None:
    assert shim.file(tmp_path / "none", 5) == FileResult(errno.ENOENT, NO_DIGEST, 0, 0)


def test_directory_is_refused(shim: Shim, tmp_path: Path) -> None:
    assert shim.file(tmp_path, tmp_path.stat().st_size) == FileResult(errno.EISDIR, NO_DIGEST, 0, 0)


def test_fifo_is_refused_without_waiting_for_a_writer(shim: Shim, tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    assert shim.file(path, 0) == FileResult(errno.EINVAL, NO_DIGEST, 0, 0)


def test_device_has_no_size_and_is_not_read(shim: Shim) -> None:
    assert shim.file(Path("/dev/zero"), 100) == FileResult(0, NO_DIGEST, 0, 0)


@pytest.mark.parametrize("expected_size", [0, 99, 101, 2**64 - 1])
def test_file_of_another_size_is_not_read(shim: Shim, tmp_path: Path, expected_size: int) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(100))
    assert shim.file(path, expected_size) == FileResult(0, NO_DIGEST, 100, 0)


@pytest.mark.parametrize("size_after", [70_000, 100_001, 10_000_000])
def test_file_resized_while_read_has_no_digest(shim: Shim, tmp_path: Path, size_after: int) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(100_000))
    result = shim.file(path, 100_000, THEN_RESIZE, size_after)
    assert (result.error, result.digest, result.seen_size) == (0, NO_DIGEST, size_after)
    assert result.reads <= 3, "reading is bounded by the expected size"


def test_read_error_is_returned(shim: Shim, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(100))
    result = shim.file(path, 100, FAILS)
    assert (result.error, result.digest) == (errno.EIO, NO_DIGEST)


def test_no_descriptor_is_left_open(shim: Shim, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(bytes(100))
    for mode, size in [(PLAIN, 100), (PLAIN, 99), (FAILS, 100)]:
        shim.file(path, size, mode)
    shim.file(tmp_path, 0)
    assert open_below(tmp_path) == []


# ---- the policy: instructions beyond the baseline only in the functions named for them ----

SHF_EXECINSTR = 0x4
SHT_SYMTAB, SHT_INIT_ARRAY = 2, 14
STT_FUNC, STT_GNU_IFUNC = 2, 10

# What capstone calls the extensions that every processor of the target has.
BASELINE = {"x86_64": {"sse1", "sse2", "cmov", "mode64"}, "aarch64": {"neon", "fparmv8"}}
NAMED = {"x86_64": "aot_sha256_blocks_x86_sha", "aarch64": "aot_sha256_blocks_arm_sha2"}
FIRST_EXTENSION_GROUP = 128  # capstone: lower numbers are jump, call, ret and the like


@dataclass(frozen=True)
class Section:
    type: int
    flags: int
    body: bytes
    link: int


@dataclass(frozen=True)
class Function:
    name: str
    kind: int
    section: int
    start: int
    end: int


def read_sections(elf: bytes) -> list[Section]:
    assert elf[:6] == b"\x7fELF\x02\x01", "ELF64, little-endian"
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = []
    for index in range(count):
        header = struct.unpack_from("<IIQQQQI", elf, table + index * entry_size)
        _, kind, flags, _, offset, size, link = header
        sections.append(Section(kind, flags, elf[offset : offset + size], link))
    return sections


def read_functions(sections: list[Section]) -> Iterator[Function]:
    (symbols,) = (section for section in sections if section.type == SHT_SYMTAB)
    names = sections[symbols.link].body
    for name, info, _, section, value, size in struct.iter_unpack("<IBBHQQ", symbols.body):
        if info & 15 in (STT_FUNC, STT_GNU_IFUNC):
            text = names[name : names.index(b"\0", name)].decode()
            yield Function(text, info & 15, section, value, value + size)


def disassembler(cpu: str) -> Any:
    import capstone

    if cpu == "x86_64":
        engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    else:
        engine = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    engine.detail = True
    return engine


@dataclass(frozen=True)
class Instruction:
    function: str
    mnemonic: str
    extensions: frozenset[str]


def read_instructions(cpu: str, sections: list[Section]) -> Iterator[Instruction]:
    """Every instruction of every function; a byte that is none fails the test."""
    engine = disassembler(cpu)
    for function in read_functions(sections):
        if function.section == 0:
            continue  # undefined: another library's
        at = function.start
        for found in engine.disasm(sections[function.section].body[function.start : function.end], at):
            groups = (found.group_name(group) for group in found.groups if group >= FIRST_EXTENSION_GROUP)
            yield Instruction(function.name, found.mnemonic, frozenset(groups))
            at += found.size
        assert at == function.end, f"{function.name}: not an instruction at {at:#x}"


def bytes_outside_functions(sections: list[Section]) -> bytes:
    left = {index: bytearray(s.body) for index, s in enumerate(sections) if s.flags & SHF_EXECINSTR}
    for function in sorted(read_functions(sections), key=lambda f: f.start, reverse=True):
        if function.section in left:
            del left[function.section][function.start : function.end]
    return b"".join(left.values())


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["-O0", "-O2", "-O3"])
def sections(request: pytest.FixtureRequest, target: str, tmp_path_factory: pytest.TempPathFactory) -> list[Section]:
    folder = tmp_path_factory.mktemp("policy")
    compiled = folder / "aot_sha256.o"
    triple = f"{target}-linux-gnu.2.17"
    source = str(SOURCE / "aot_sha256.c")
    compile_c([*ZIG, "-target", triple, *FLAGS, request.param, "-c", source, "-o", str(compiled)], folder)
    return read_sections(compiled.read_bytes())


def test_sha_instructions_only_in_the_named_function(target: str, sections: list[Section]) -> None:
    found = {i.function for i in read_instructions(target, sections) if i.mnemonic.startswith("sha")}
    assert found == {NAMED[target]}


def test_all_other_functions_keep_to_the_baseline(target: str, sections: list[Section]) -> None:
    beyond = [
        i
        for i in read_instructions(target, sections)
        if i.function != NAMED[target] and not i.extensions <= BASELINE[target]
    ]
    assert beyond == []


def test_all_code_belongs_to_a_function(target: str, sections: list[Section]) -> None:
    padding = {0x00, 0x0F, 0x1F, 0x2E, 0x40, 0x44, 0x66, 0x80, 0x84, 0x90, 0xCC}  # x86 nops of any length
    assert set(bytes_outside_functions(sections)) <= (padding if target == "x86_64" else set())


def test_nothing_runs_at_load_time(sections: list[Section]) -> None:
    assert not any(section.type == SHT_INIT_ARRAY for section in sections)
    assert not any(function.kind == STT_GNU_IFUNC for function in read_functions(sections))
