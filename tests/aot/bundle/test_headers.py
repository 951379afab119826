"""Generated headers compile whatever an author calls things, and say what the declaration says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import aot_runtime.native
import pytest
from aot_runtime.arch import Arch
from aot_runtime.description.kernel_records import Choice, KernelRecord, Parameter

from aot.bundle.headers import Kinds, c_header, cpp_header

TENSOR, NONE, FLOAT, INT, POINTER, TUPLE = (6, 6), (4, 4), (1, 3), (2, 3), (3, 5), (7, 7)


def record(
    name: str, parameters: tuple[Parameter, ...], functions: tuple[str, ...] = (), **rest: object
) -> KernelRecord:
    fields: dict[str, object] = {"doc": f"Computes {name}.", "choices": (), "archs": (Arch(9, 0, "a"),), **rest}
    return KernelRecord(name=name, parameters=parameters, functions=functions or (name,), variants=1, **fields)  # type: ignore[arg-type]


def kinds(**labels: object) -> Kinds:
    return {label: frozenset(value if isinstance(value, set) else {value}) for label, value in labels.items()}  # type: ignore[arg-type, misc]


KERNELS = {
    kernel.name: kernel
    for kernel in (
        record("double", (Parameter("class"), Parameter("template", has_default=True, default=2))),
        record(
            "new",
            (Parameter("stream"), Parameter("result", has_default=True, default=None)),
            doc='Ends a comment */ and begins one /* here,\nwith a "quote", a \\ and the letter \u00e9 \\',
        ),
        record("nothing", ()),
        record("fill", (Parameter("x"),)),
        record("fill_on", (Parameter("x"),)),
        record(
            "pick",
            (Parameter("x"), Parameter("flag", has_default=True, default=True)),
            ("pick__2d", "pick__default"),
            choices=(Choice("kind", ("2d", "default")),),
        ),
        record("nested", (Parameter("deep"), Parameter("mixed"))),
        record(
            "alike", (Parameter("pair"), Parameter("pair_0"), Parameter("args_"), Parameter("int"), Parameter("int_"))
        ),
        record(
            "scratch", (Parameter("bytes"), Parameter("errno"), Parameter("parts", has_default=True, workspace="8"))
        ),
    )
}
KINDS: dict[str, Kinds] = {
    "double": kinds(**{"class": TENSOR, "template": INT}),
    "new": kinds(stream=POINTER, result={TENSOR, NONE}),
    "fill": kinds(x=TENSOR),
    "fill_on": kinds(x=TENSOR),
    "pick__2d": kinds(x=TENSOR, flag=INT),
    "pick__default": kinds(x=TENSOR, flag=INT),
    "nested": kinds(**{"deep": TUPLE, "len(deep)": (2, 2), "deep[0]": TENSOR, "deep[1]": TUPLE, "len(deep[1])": (1, 1),
                       "deep[1][0]": FLOAT, "mixed": {INT, FLOAT}}),
    "alike": kinds(**{"pair": TUPLE, "len(pair)": (1, 1), "pair[0]": TENSOR, "pair_0": INT, "args_": INT, "int": INT,
                      "int_": INT}),
    "scratch": kinds(bytes=INT, errno=INT),
}  # fmt: skip


@pytest.mark.parametrize("language", ["c99", "c++17", "c++20"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("bundle", ["kernels", "aot", "union"])
def test_headers_compile(tmp_path: Path, bundle: str, compiler: str, language: str) -> None:
    plus = language.startswith("c++")
    command = {"gcc": "g++", "clang": "clang++"}[compiler] if plus else compiler
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed")
    (tmp_path / f"{bundle}.h").write_text(c_header(bundle, KERNELS, KINDS))
    (tmp_path / f"{bundle}.hpp").write_text(cpp_header(bundle, KERNELS, KINDS))
    source = tmp_path / ("unit.cpp" if plus else "unit.c")
    source.write_text(f"#include <{bundle}.{'hpp' if plus else 'h'}>\n")
    flags = [f"-std={language}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    includes = [f"-I{tmp_path}", f"-I{aot_runtime.native.include_directory()}"]
    done = subprocess.run([command, *flags, *includes, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", ["a *\\\n/ planted; /\\\n*", "a *??/\n/ planted; /??/\n*", "a */ planted; /*"])
def test_documentation_stays_inside_its_comment(words: str) -> None:
    """A backslash, or the trigraph for one, joins two lines before comments end."""
    kernel = record("fill", (Parameter("x", doc=words),), doc=words)
    header = c_header("kernels", {"fill": kernel}, {"fill": kinds(x=TENSOR)})
    command = ["cc", "-E", "-P", "-w", "-std=c99", f"-I{aot_runtime.native.include_directory()}", "-x", "c", "-"]
    done = subprocess.run(command, input=header, capture_output=True, text=True, check=True)
    assert "fill" in done.stdout and "planted" not in done.stdout


def test_parameters_have_types_names_and_defaults() -> None:
    header = cpp_header("kernels", KERNELS, KINDS)
    assert (
        "inline void double_(const ::aot::TensorView& class_, std::int64_t template_ = 2, ::aot::Stream stream = {})"
        in header
    )
    assert "inline void nothing()" in header
    assert "inline void nested(const ::aot::TensorView& deep_0, double deep_1_0, aot_value mixed, " in header
    assert "enum class pick_kind { _2d, default_ };" in header
    assert "Computes nested." in header


def test_a_function_on_a_stream_never_takes_another_functions_name() -> None:
    header = c_header("kernels", KERNELS, KINDS)
    assert header.count("int kernels_fill_on(") == 1
    assert "int kernels_fill_on(const aot_tensor* x)" in header
    assert "int kernels_fill_on_on(void* stream, const aot_tensor* x)" in header


def test_whoever_asks_for_the_size_of_scratch_memory_passes_everything_but_that_memory() -> None:
    for header, size in (
        (c_header("kernels", KERNELS, KINDS), "size_t* bytes"),
        (cpp_header("kernels", KERNELS, KINDS), ""),
    ):
        (asked,) = re.findall(r"\bscratch_workspace_size\(([^)]*)\)", header.replace("kernels_", ""))[:1]
        assert [words.split()[-1] for words in asked.replace(size, "").split(",") if words.strip()] == [
            "bytes_",
            "errno_",
        ]
