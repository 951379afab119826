"""An exported launcher is read and rewritten: for another host, with CUDA behind slots, loading left to us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aot.compile.launcher import Launcher, for_host, parse_launcher, symbol_prefix
from aot.errors import BuildError
from aot.hosts import CPUS, Host
from aot.link.zig import Zig

CONFIG = "{ [3 x i32], [3 x i32], i64, ptr, ptr, i32 }"


def launch(block: tuple[str, str, str], shared_memory: str) -> str:
    """The stores into a launch configuration, numbered from where ``launcher`` leaves off."""
    fields = [("i32 0, i32 1, i32 0", "i32", block[0]), ("i32 0, i32 1, i32 1", "i32", block[1])]
    fields += [("i32 0, i32 1, i32 2", "i32", block[2]), ("i32 0, i32 2", "i64", shared_memory)]
    lines = []
    for field, kind, value in fields:
        lines.append(
            f"  %NUMBER = getelementptr {CONFIG}, ptr %5, {field}\n  store {kind} {value}, ptr %NUMBER, align 8\n"
        )
    return "".join(lines)


def launcher(*launches: str, parameters: int = 2, binaries: int = 1, kernel: str = "kernels_write") -> str:
    """A launcher with the parts of a real one that matter, which LLVM takes as it stands."""
    body = "".join(launches)
    for number in range(body.count("%NUMBER = ")):
        head, _, rest = body.partition("%NUMBER = ")
        body = head + f"%{number + 6} = " + rest.replace("%NUMBER,", f"%{number + 6},", 1)
    prefix = symbol_prefix("v")
    return f"""; ModuleID = 'LLVMDialectModule'
source_filename = "LLVMDialectModule"
target datalayout = "e-m:e-i64:64"
target triple = "elsewhere-unknown-linux-gnu"

@message = private constant [21 x i8] c"Expects {parameters} parameters\\00"
@{kernel} = internal global ptr undef
@llvm.global_dtors = appending global [1 x {{ i32, ptr, ptr }}] [{{ i32, ptr, ptr }} {{ i32 65535, ptr @{prefix}_dtor, ptr null }}]

declare i32 @_cudaLaunchKernelEx(ptr, ptr, ptr)

declare i32 @printf(ptr, ...)

declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)

declare ptr @cuda_dialect_get_error_name(i32)

declare void @CuteDSLRT_TVMFFISetRaisedCudaError(ptr, i32)

declare void @TVMFFIErrorSetRaisedFromCStrParts(ptr, ptr, i32)

declare i32 @cuda_dialect_init_library_once(ptr, ptr, ptr, ptr)

declare void @cuda_dialect_unload_library_once(ptr)

declare void @llvm.trap() #1

define internal i32 @{prefix}_cuda_num_binaries() {{
  ret i32 {binaries}
}}

define internal i32 @{prefix}_cuda_init(ptr %0) {{
  ret i32 0
}}

define internal i32 @{prefix}_cuda_load_to_device(ptr %0, i32 %1) {{
  ret i32 0
}}

define internal void @{prefix}_dtor() {{
  call void @cuda_dialect_unload_library_once(ptr null)
  ret void
}}

define i32 @__tvm_ffi_v(ptr %0, ptr %1, i32 %2, ptr %3) {{
  %5 = alloca {CONFIG}, align 8
{body}  %once = call i32 @cuda_dialect_init_library_once(ptr null, ptr @{prefix}_cuda_init, ptr @{prefix}_cuda_load_to_device, ptr null)
  %launched = call i32 @_cudaLaunchKernelEx(ptr %5, ptr @{kernel}, ptr null)
  %raised = icmp eq i32 %launched, -1
  %name = call ptr @cuda_dialect_get_error_name(i32 %launched)
  call void @TVMFFIErrorSetRaisedFromCStr(ptr @message, ptr %name)
  call void @CuteDSLRT_TVMFFISetRaisedCudaError(ptr %name, i32 1)
  ret i32 %launched
}}

attributes #1 = {{ noreturn }}
"""


ONE = launcher(launch(("128", "2", "1"), "49152"))


def test_a_launcher_tells_imports_binaries_arguments_and_launch_shape() -> None:
    assert parse_launcher(ONE, "v") == Launcher(
        imports=("CuteDSLRT_TVMFFISetRaisedCudaError", "_cudaLaunchKernelEx", "cuda_dialect_get_error_name"),
        binaries=1,
        argument_count=2,
        block=(128, 2, 1),
        dynamic_shared_memory=49152,
        largest_block=256,
        largest_dynamic_shared_memory=49152,
    )


def test_what_is_computed_at_run_time_is_not_known() -> None:
    facts = parse_launcher(launcher(launch(("%2", "1", "1"), "%2")), "v")
    assert (facts.block, facts.dynamic_shared_memory) == (None, None)
    assert (facts.largest_block, facts.largest_dynamic_shared_memory) == (0, 0)


def test_launches_that_differ_are_known_by_the_largest() -> None:
    facts = parse_launcher(launcher(launch(("32", "1", "1"), "0"), launch(("64", "32", "1"), "300000")), "v")
    assert (facts.block, facts.dynamic_shared_memory) == (None, None)
    assert (facts.largest_block, facts.largest_dynamic_shared_memory) == (2048, 300000)


def test_launches_that_agree_are_known_exactly() -> None:
    facts = parse_launcher(launcher(launch(("32", "1", "1"), "8"), launch(("32", "1", "1"), "8")), "v")
    assert (facts.block, facts.dynamic_shared_memory) == ((32, 1, 1), 8)


@pytest.mark.parametrize(
    ("broken", "missing"),
    [(ONE.replace("Expects", "Wants"), "Expects"), (ONE.replace("_cuda_num_binaries", "_cuda_count"), "num_binaries")],
)
def test_a_launcher_of_another_compiler_version_is_refused(broken: str, missing: str) -> None:
    with pytest.raises(
        BuildError, match=f"v: the launcher .* does not read as expected: nothing matches .*{missing}"
    ) as caught:
        parse_launcher(broken, "v")
    assert "nvidia-cutlass-dsl" in (caught.value.hint or "")


@pytest.mark.parametrize("name", ["cuda_dialect_assert_success", "abort"])
def test_a_launcher_that_would_end_the_process_is_refused(name: str) -> None:
    declared = ONE.replace("declare i32 @printf", f"declare void @{name}(i32)\n\ndeclare i32 @printf")
    assert parse_launcher(declared, "v"), "what nobody calls does no harm"
    calls = declared + f"\ndefine void @helper() {{\n  call void @{name}(i32 0)\n  ret void\n}}\n"
    with pytest.raises(BuildError, match=f"v: its launcher calls `{name}`, which ends the process"):
        parse_launcher(calls, "v")


def test_a_launcher_without_the_functions_that_load_is_refused() -> None:
    with pytest.raises(BuildError, match="has no function __cute_internal_v_cuda_init"):
        for_host(ONE.replace("_v_cuda_init(", "_v_start("), "v", Host("x86_64"))


def test_a_launcher_that_launches_nothing_is_refused() -> None:
    with pytest.raises(BuildError, match="v: the launcher that CuTe DSL exported launches no kernel"):
        for_host(launcher(kernel="other"), "v", Host("x86_64"))


@pytest.mark.parametrize("cpu", CPUS)
def test_the_head_names_the_host_asked_for_and_no_other(cpu: str) -> None:
    text = for_host(ONE, "v", Host(cpu))
    assert text.count("target triple") == text.count("target datalayout") == 1
    assert f'target triple = "{cpu}-unknown-linux-gnu"' in text
    assert "elsewhere" not in text


def test_cuda_is_called_through_slots_and_the_rest_is_left_alone() -> None:
    text = for_host(ONE, "v", Host("x86_64"))
    for name in parse_launcher(ONE, "v").imports:
        assert f"@aot_import_{name} = external hidden global ptr" in text
        assert f"declare i32 @{name}" not in text
    for kept in (
        "declare i32 @printf(ptr, ...)",
        "declare void @TVMFFIErrorSetRaisedFromCStr(ptr, ptr)",
        "declare void @llvm.trap() #1",
    ):
        assert kept in text


def test_lines_of_the_source_do_not_keep_cuda_from_its_slots() -> None:
    """Some launchers describe the functions that they declare, which those that are defined may not share."""
    found = for_host(ONE.replace("declare i32 @_cudaLaunch", "declare !dbg !3 i32 @_cudaLaunch"), "v", Host("x86_64"))
    assert found == for_host(ONE, "v", Host("x86_64"))


def test_a_failed_launch_raises_with_its_configuration_if_the_launcher_takes_that() -> None:
    assert "call void @aot_launch_failed(ptr %0)\n  ret i32 -1\n" in for_host(ONE, "v", Host("x86_64"))
    without = ONE.replace("  %raised = icmp eq i32 %launched, -1\n", "")
    assert "aot_launch_failed" not in for_host(without, "v", Host("x86_64"))


def test_nothing_is_loaded_by_a_call_or_unloaded_at_exit() -> None:
    text = for_host(ONE, "v", Host("x86_64"))
    assert "global_dtors" not in text
    assert "aot_import_cuda_dialect_init_library_once" not in text
    assert "aot_import_cuda_dialect_unload_library_once" not in text


def test_the_functions_that_load_are_visible_to_the_tables() -> None:
    text = for_host(ONE, "v", Host("x86_64"))
    for function in ("cuda_init", "cuda_load_to_device"):
        assert f"define hidden i32 @__cute_internal_v_{function}(" in text
    assert "@__cute_internal_v_first_kernel = hidden alias ptr, ptr @kernels_write" in text


@pytest.mark.parametrize("cpu", CPUS)
def test_what_is_rewritten_compiles_for_the_host(cpu: str, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "v.ll"
    source.write_text(for_host(launcher(launch(("32", "1", "1"), "8"), kernel='"kernels_a$b c"'), "v", Host(cpu)))
    Zig.find(cache / "zig").compile_llvm_ir(Host(cpu), source, tmp_path / "v.o")
    assert (tmp_path / "v.o").read_bytes().startswith(b"\x7fELF")


def test_zigs_own_complaint_is_passed_on(cache: Path, tmp_path: Path) -> None:
    from aot.errors import ToolchainError

    source = tmp_path / "v.ll"
    source.write_text("define nonsense")
    with pytest.raises(ToolchainError, match=r"zig failed with exit code 1: .*clang -target (.|\n)*expected type"):
        Zig.find(cache / "zig").compile_llvm_ir(Host("x86_64"), source, tmp_path / "v.o")


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from aot.errors import ToolchainError
    from aot.link import zig as toolchain

    find_nothing: Callable[[str], None] = lambda name: None  # noqa: E731
    monkeypatch.setattr(toolchain, "find_spec", find_nothing)
    with pytest.raises(ToolchainError, match="ziglang, the compiler for all hosts, is not installed"):
        Zig.find(tmp_path)
