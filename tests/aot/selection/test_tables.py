"""The tables of a kernel library are C that every host's compiler takes, whatever was declared."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aot_runtime.native
import pytest
from aot_runtime.arch import Arch

import aot
from aot.errors import BuildError
from aot.hosts import CPUS, Host
from aot.link.zig import Zig
from aot.selection.decision import decide, decide_plainly
from aot.selection.requirements import SOURCE_CONSTANT, variant_table
from aot.selection.subjects import FixedArgument, VariantTable
from aot.selection.tables import CompiledVariant, Group, c_string, kernel_library_source

SM90 = Arch.parse("sm_90a")
OUT = aot.Tensor("f32", ("n",))


def jit(*arguments: object) -> None:
    """Stands for a jit function; nothing is compiled here."""


def tables(*specs: dict[str, Any], parameters: tuple[str, ...]) -> list[VariantTable]:
    @aot.kernel(parameters=[aot.In(name) for name in parameters], archs=("sm_90a",))
    def kernel(target: aot.Target) -> list[aot.Spec]:
        return [
            aot.Spec(jit, default_stream=True, label=f"v{i}", **{"guards": (), **spec}) for i, spec in enumerate(specs)
        ]

    return [variant_table(variant) for variant in kernel.variants(SM90)]


def group(function: str, arguments: int, variants: list[VariantTable]) -> Group:
    compiled = tuple(
        CompiledVariant(table, table.name, f"__cute_internal_{table.name}", 1, (128, 1, 1), (2, 1, 1), 1024)
        for table in variants
    )
    return Group(function, arguments, compiled, decide(variants), decide_plainly(variants))


def everything() -> list[Group]:
    pair = aot.Tuple((OUT, aot.Tuple((aot.Scalar("i64"), None))))
    rich = tables(
        {"arguments": {"out": OUT, "k": aot.Scalar("i32")}, "guards": ("n <= 100", "k * n % 7 == 3 or not k < n")},
        {"arguments": {"out": OUT, "k": aot.Scalar("f32")}, "guards": ("k == -0.25", "n * 8 >= 9223372036854775807")},
        {"arguments": {"out": OUT, "sms": aot.Multiprocessors(), "k": aot.Scalar("i64"), "c": aot.ActiveClusters()}},
        {"arguments": {"k": pair, "out": aot.Tensor("bf16", ("n", aot.Dim("m", 8)), align=16)}},
        parameters=("out", "k"),
    )
    plain = [
        replace(table, name=f"plain_{table.name}") for table in tables({"arguments": {"out": OUT}}, parameters=("out",))
    ]
    bare = [replace(table, name=f"bare_{table.name}") for table in tables({"arguments": {}}, parameters=())]
    return [group("kernel__rich", 2, rich), group("kernel__plain", 1, plain), group("kernel__bare", 0, bare)]


@pytest.fixture(scope="session")
def compile_c(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Host], Path]:
    """Compile C as the builder does, with its warnings as errors."""
    import tvm_ffi.libinfo

    includes = [aot_runtime.native.source_directory(), Path(tvm_ffi.libinfo.find_include_path())]

    def run(source: str, host: Host) -> Path:
        path = tmp_path_factory.mktemp("tables") / "tables.c"
        path.write_text(source)
        Zig.find(cache / "zig").compile_c(host, path, path.with_suffix(".o"), includes)
        return path.with_suffix(".o")

    return run


@pytest.mark.parametrize("cpu", CPUS)
def test_tables_compile_for_every_host_without_a_warning(cpu: str, compile_c: Callable[[str, Host], Path]) -> None:
    source = kernel_library_source("kernel", SM90, everything(), {"_cudaLaunchKernelEx", "cuda_dialect_get_error_name"})
    assert compile_c(source, Host.parse(cpu)).stat().st_size > 0


def test_the_tables_of_a_kernel_that_takes_nothing_compile(compile_c: Callable[[str, Host], Path]) -> None:
    bare = group("kernel", 0, tables({"arguments": {}}, parameters=()))
    compile_c(kernel_library_source("kernel", SM90, [bare], ()), Host.native())


def test_256_variants_compile(compile_c: Callable[[str, Host], Path]) -> None:
    specs = [{"arguments": {"out": OUT}, "guards": f"n == {i}"} for i in range(256)]
    compile_c(
        kernel_library_source("kernel", SM90, [group("kernel", 1, tables(*specs, parameters=("out",)))], ()),
        Host.native(),
    )


def test_the_same_groups_give_the_same_text_under_any_hash_seed() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_tables as t;"
        "print(t.kernel_library_source('k', t.SM90, t.everything(), {'b', 'a', 'c'}))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    path = {"PYTHONPATH": ":".join(sys.path)}
    outputs = {
        subprocess.run(command, env={**path, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("0", "1", "2")
    }
    assert len(outputs) == 1


def test_imports_become_slots_in_order() -> None:
    source = kernel_library_source("kernel", SM90, everything(), {"b", "a"})
    assert re.findall(r"^void\* aot_import_(\w+);", source, re.MULTILINE) == ["a", "b"]


def test_a_shared_subtree_is_written_once() -> None:
    specs = [
        {"arguments": {"out": OUT}, "guards": guards} for guards in (("n % 2 == 1", "n % 3 == 0"), "n % 5 == 0", ())
    ]
    made = group("kernel", 1, tables(*specs, parameters=("out",)))
    source = kernel_library_source("kernel", SM90, [made], ())
    nodes = re.search(r"aot_node_t nodes\[\] = \{\n(.*?)\n\};", source, re.DOTALL)
    assert nodes is not None
    assert len(nodes[1].splitlines()) == 3


@pytest.mark.parametrize(
    "text", ["plain", 'quo"te', "back\\slash", "é", "漢字", "\U0001d431", "\x7f", "tab\t", "\x01" + "2", "??/"]
)
def test_any_text_is_a_c_string(text: str, compile_c: Callable[[str, Host], Path]) -> None:
    """The compiler itself compares: each byte of the literal with the byte meant."""
    bytes_meant = ", ".join(str(byte) for byte in text.encode())
    source = f"""
        static const char text[] = {c_string(text)};
        static const unsigned char meant[] = {{{bytes_meant}, 0}};
        _Static_assert(sizeof text == sizeof meant, "length");
        const char* both[] = {{text, (const char*)meant}};
    """
    assert text.encode() + b"\0" in compile_c(source, Host.native()).read_bytes()


def test_variants_of_one_launcher_share_its_functions_and_what_changes() -> None:
    (first, *_), name = everything()[0].variants, "other"
    other = replace(first, table=replace(first.table, name=name))
    source = kernel_library_source("kernel", SM90, [Group("kernel", 2, (first, other), 0, 0)], [])
    assert source.count(f"state_{first.launcher} = ") == source.count(f"libraries_{first.launcher}[1];") == 1
    assert source.count(f"&state_{first.launcher},") == 2
    assert f"__tvm_ffi_{name}" not in source and f"requirements_{name}," in source


@pytest.mark.parametrize(
    ("value", "kind", "bits"), [(None, "None", 0), (-7, "Int", -7), (True, "Bool", 1), (-2.0, "Float", -(1 << 62))]
)
def test_a_fixed_argument_is_as_tvm_ffi_passes_it(value: Any, kind: str, bits: int) -> None:
    import tvm_ffi.libinfo

    header = Path(tvm_ffi.libinfo.find_include_path(), "tvm", "ffi", "c_api.h").read_text()
    index = int(re.findall(rf"kTVMFFI{kind} = (\d+),", header)[0])
    assert FixedArgument.of(value) == FixedArgument(index, bits)


def fixing(count: int) -> Group:
    """A variant for each of so many numbers that it fixes an argument to."""
    (first, *_) = everything()[1].variants
    tables = [
        replace(
            first.table, name=f"fixed_{number}", sources=(0, SOURCE_CONSTANT), constants=(FixedArgument.of(number),)
        )
        for number in range(count)
    ]
    return Group("kernel", 2, tuple(replace(first, table=table) for table in tables), 0, 0)


def test_a_library_fixes_as_many_arguments_as_its_error_says() -> None:
    with pytest.raises(BuildError) as caught:
        kernel_library_source("kernel", SM90, [fixing(1000)], [])
    most = int(re.findall(r"more than (\d+) different", caught.value.message)[0])
    source = kernel_library_source("kernel", SM90, [fixing(most)], [])
    assert f"sources_fixed_{most - 1}[] = {{0, {SOURCE_CONSTANT + most - 1}}}" in source
    with pytest.raises(BuildError):
        kernel_library_source("kernel", SM90, [fixing(most + 1)], [])
