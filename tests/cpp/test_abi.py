"""Headers and libraries of different versions: a newer minor works, another major is refused by name."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cpp.conftest import INCLUDES, TVM_FFI, Project, run, with_entry

(MINOR,) = re.findall(r"define AOT_PROTOCOL_MINOR (\d+)", (INCLUDES[0] / "aot" / "abi.h").read_text())

PROGRAM = """
#include <aot/aot.h>
int main(int count, char** arguments) {
  aot_bundle bundle;
  aot_function function;
  aot_options options = {0, 0, arguments[2]};
  int code = aot_open(arguments[1], &options, &bundle);
  if (code != AOT_OK) {
    printf("%d %s\\n", code, aot_error_text());
    return 0;
  }
  code = aot_find(bundle, "fill_optional", &function);
  const aot_interface* library;
  aot_describe(bundle, &library);
  printf("%d %s %u of %u\\n", code, function.info->signature, (unsigned)library->function_count, (unsigned)library->function_size);
  return count == 0;
}
"""


def newer_header(folder: Path, major: int, minor: int) -> Path:
    """This project's headers as another version of it might have them."""
    include = folder / "include" / "aot"
    shutil.copytree(INCLUDES[0] / "aot", include)
    text = re.sub(r"(#define AOT_PROTOCOL_MAJOR) \d+", rf"\1 {major}", (include / "abi.h").read_text())
    (include / "abi.h").write_text(re.sub(r"(#define AOT_PROTOCOL_MINOR) \d+", rf"\1 {minor}", text))
    return include.parent


def outcome(project: Project, bundle: Path, include: Path, folder: Path) -> str:
    (folder / "program.c").write_text(PROGRAM)
    run("cc", "-std=c99", f"-I{include}", folder / "program.c", "-o", folder / "program", "-ldl", "-pthread")
    return run(folder / "program", bundle, TVM_FFI, environment={"LD_LIBRARY_PATH": str(project.standin)})


@pytest.mark.parametrize(("major", "minor", "expected"), [(1, 0, "0 fill_optional(out, bias)"), (1, 7, "0 fill_optional"),
                                                          (2, 3, "5 ")])  # fmt: skip
def test_header_with_this_library(project: Project, tmp_path: Path, major: int, minor: int, expected: str) -> None:
    said = outcome(project, project.bundle, newer_header(tmp_path, major, minor), tmp_path)
    assert said.startswith(expected)
    if major != 1:
        assert f"speaks version 1.{MINOR} of the protocol, this header speaks 2.3" in said


def test_newer_library_with_this_header(project: Project, tmp_path: Path) -> None:
    """A library of a newer minor version has longer entries in its table of functions."""

    def newer(source: str) -> str:
        longer = "typedef struct { aot_function_info old; const char* added; } newer_info;\n"
        head, infos, tail = re.split(
            r"(static const aot_function_info infos\[\] = \{.*?\n\};)", source, flags=re.DOTALL
        )
        infos = re.sub(r"^  (\{.*\})(,?)$", r'  {\1, "new"}\2', infos, flags=re.MULTILINE)
        infos = infos.replace("aot_function_info infos", "newer_info infos")
        tail = tail.replace(", infos,", ", &infos[0].old,").replace("sizeof(aot_function_info)", "sizeof(newer_info)")
        return head + longer + infos + tail.replace("AOT_PROTOCOL_MINOR", "(AOT_PROTOCOL_MINOR + 5)")

    bundle = with_entry(project.bundle, tmp_path / "newer", [], newer)
    said = outcome(project, bundle, INCLUDES[0], tmp_path)
    assert said.startswith("0 fill_optional(out, bias)")
    assert said.strip().endswith("of 56")


def test_library_of_another_major_is_refused(project: Project, tmp_path: Path) -> None:
    bundle = with_entry(
        project.bundle,
        tmp_path / "newer",
        [],
        lambda text: text.replace("AOT_PROTOCOL_MAJOR", "(AOT_PROTOCOL_MAJOR + 1)"),
    )
    said = outcome(project, bundle, INCLUDES[0], tmp_path)
    assert said.startswith("5 ")
    assert f"speaks version 2.{MINOR} of the protocol, this header speaks 1.{MINOR}" in said


def test_library_without_this_interface_is_refused(project: Project, tmp_path: Path) -> None:
    bundle = with_entry(
        project.bundle, tmp_path / "older", [], lambda text: text.replace("aot_abi_version", "aot_unknown_version")
    )
    assert "without a C interface" in outcome(project, bundle, INCLUDES[0], tmp_path)


CALLS = """
#include <aot/aot.h>
int main(int count, char** arguments) {
  aot_bundle bundle;
  aot_function fill;
  aot_tensor out;
  int64_t shape[1] = {8}, strides[1] = {1};
  aot_options options = {0, 0, arguments[2]};
  int code = aot_open(arguments[1], &options, &bundle);
  if (code == AOT_OK) code = aot_find(bundle, "fill", &fill);
  if (code == AOT_OK) code = aot_make_tensor(&out, (void*)4096, 0, aot_make_dtype(AOT_DTYPE_FLOAT, 32), 1, shape, strides, NULL);
  if (code == AOT_OK) {
    aot_value args[2];
    args[0] = aot_from_tensor(&out);
    args[1] = aot_from_float(1.0);
    code = aot_call(fill, args, 2);
  }
  printf("%d %s\\n", code, aot_error_text());
  return count == 0;
}
"""


TENSORS = """
#include <aot/aot.h>
static void show(const aot_tensor* tensor) {
  printf("%p %d %d %d:", tensor->data, tensor->device_type, tensor->dtype.code, tensor->dtype.bits);
  for (int32_t i = 0; i < tensor->ndim; ++i) printf(" %d/%d", (int)tensor->shape[i], (int)tensor->strides[i]);
  printf("\\n");
}
int main(void) {
  const int64_t m = 3;
  const aot_tensor* x = aot_tensor_of((void*)256, AOT_BFLOAT16, m, 4, 5);
  const aot_tensor* y = aot_tensor_of((void*)512, AOT_INT8, 7);
  show(x);
  show(y);
  show(aot_tensor_of((void*)256, AOT_FLOAT32, INT64_MAX, 4));
  show(aot_tensor_of((void*)256, AOT_FLOAT32, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  show(x);
  return 0;
}
"""


def test_a_tensor_in_three_arguments(tmp_path: Path) -> None:
    """What does not fit has no address, and a call refuses that."""
    (tmp_path / "program.c").write_text(TENSORS)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{INCLUDES[0]}"]
    run("cc", *flags, tmp_path / "program.c", "-o", tmp_path / "program", "-ldl", "-pthread")
    first = "0x100 2 4 16: 3/20 4/5 5/1"
    assert run(tmp_path / "program").splitlines() == [
        first,
        "0x200 2 0 8: 7/1",
        "(nil) 2 2 32:",
        "(nil) 2 2 32:",
        first,
    ]


def test_missing_cuda_runtime_is_named_at_the_first_call(project: Project, tmp_path: Path) -> None:
    """The bundle was built to use the process's CUDA runtime: here is a driver, and no runtime."""
    driver = tmp_path / "driver"
    driver.mkdir()
    for name in ("libcuda.so.1", "libstandin.so"):
        shutil.copy(project.standin / name, driver)
    (driver / "libcudart.so.12").touch()  # no library, and found before one that the machine may have
    (tmp_path / "program.c").write_text(CALLS)
    run("cc", "-std=c99", f"-I{INCLUDES[0]}", tmp_path / "program.c", "-o", tmp_path / "program", "-ldl", "-pthread")
    said = run(tmp_path / "program", project.bundle, TVM_FFI, environment={"LD_LIBRARY_PATH": str(driver)})
    assert said.startswith("3 cannot open `")
    assert "libcudart.so.12" in said


def test_missing_dependency_of_a_library_is_named(project: Project, tmp_path: Path) -> None:
    (tmp_path / "gone.c").write_text("int gone(void) { return 1; }\n")
    gone = tmp_path / "libgone.so"
    run("cc", "-shared", "-fPIC", "-Wl,-soname,libgone.so", tmp_path / "gone.c", "-o", gone)
    bundle = with_entry(project.bundle, tmp_path / "bundle", ["-Wl,--no-as-needed", str(gone)])
    gone.unlink()
    said = outcome(project, bundle, INCLUDES[0], tmp_path)
    assert said.startswith("3 ")
    assert "libgone.so" in said
