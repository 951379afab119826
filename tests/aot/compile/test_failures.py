"""What a launcher asserts is returned, and LLVM takes the text that comes out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from standin import compiler

from aot.compile.failures import returning_failures
from aot.hosts import Host
from aot.link.zig import Zig

ASSERT = "  call void @cuda_dialect_assert_success(i32 %{code})\n"
DECLARED = "declare void @cuda_dialect_assert_success(i32)\n"
TEXT = f"""; ModuleID = 'x'
source_filename = "x"

declare i32 @make(i32)

{DECLARED}
define internal i32 @twice({{ ptr addrspace(1), {{ i64, {{}} }} }} %0, i32 %1) #0 {{
  %3 = call i32 @make(i32 %1)
{ASSERT.format(code=3)}  %4 = icmp slt i32 %1, 8
  br i1 %4, label %5, label %8

5:                                                ; preds = %2
  %6 = call i32 @make(i32 1)
{ASSERT.format(code=6)}  %7 = call i32 @make(i32 2)
{ASSERT.format(code=7)}  br label %8

8:                                                ; preds = %5, %2
  %9 = phi i32 [ %7, %5 ], [ 0, %2 ]
  ret i32 %9
}}

define i32 @entry(i32 %0) {{
  %2 = call i32 @twice({{ ptr addrspace(1), {{ i64, {{}} }} }} zeroinitializer, i32 %0)
  ret i32 %2
}}
"""


MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
int entry(int);
static int fails, made;
int make(int n) { ++made; return n == fails ? 700 : 0; }
int main(int count, char** texts) {
  if (count != 3) return 2;
  fails = atoi(texts[2]);
  int code = entry(atoi(texts[1]));
  printf("%d after %d", code, made);
  return 0;
}
"""


@pytest.fixture
def program(tmp_path: Path, cache: Path, native: Host) -> Path:
    """Prints the code that comes out for an argument, and how often `make` was called, which fails for a number."""
    (tmp_path / "text.ll").write_text(returning_failures(TEXT))
    Zig.find(cache / "zig").compile_llvm_ir(native, tmp_path / "text.ll", tmp_path / "text.o")
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run([*compiler(), "main.c", "text.o", "-o", "program"], cwd=tmp_path, check=True)
    return tmp_path / "program"


def test_what_is_asserted_is_returned(program: Path) -> None:
    def printed(argument: int, fails: int) -> str:
        command = [str(program), str(argument), str(fails)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed(9, 0) == "0 after 1" and printed(3, 0) == "0 after 3"
    assert printed(3, 3) == printed(9, 9) == "700 after 1"
    assert printed(3, 1) == "700 after 2" and printed(3, 2) == "700 after 3"


def test_nothing_is_left_of_the_function_that_asserts() -> None:
    found = returning_failures(TEXT)
    assert "cuda_dialect_assert_success" not in found
    assert "[ %7, %aot_succeeded_" in found and "[ 0, %aot_succeeded_" in found
    assert returning_failures(found) == found


def test_lines_of_the_source_do_not_matter() -> None:
    found = returning_failures(
        TEXT.replace("(i32 %6)\n", "(i32 %6), !dbg !12\n").replace("declare void", "declare !dbg !3 void")
    )
    assert "cuda_dialect_assert_success" not in found


def test_a_function_that_returns_no_code_still_asserts() -> None:
    text = TEXT + f"\ndefine void @other(i32 %0) {{\n{ASSERT.format(code=0)}  ret void\n}}\n"
    found = returning_failures(text)
    assert found.count("call void @cuda_dialect_assert_success") == 1 and DECLARED in found
