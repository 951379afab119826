"""Options of a compile have one form, whichever way they are passed, and the architecture is no part of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aot_runtime.serving.options import read_options
from aot_runtime.serving.values.digests import UnstableError


class Option:
    def __init__(self, value: Any) -> None:
        self.value = value


class OptLevel(Option): ...


class EnableTVMFFI(Option): ...


class GPUArch(Option): ...


class FrontendNext(Option): ...


class Holder:
    def __init__(self, options: dict[type, Option]) -> None:
        self.options = options


class Compiler:
    """Holds options as CuTe DSL's own class does."""

    def __init__(self, *given: Option) -> None:
        options: dict[type, Option] = {
            OptLevel: OptLevel(3), EnableTVMFFI: EnableTVMFFI(False), GPUArch: GPUArch(""), FrontendNext: FrontendNext(False),
        }  # fmt: skip
        self._compile_options = Holder({**options, **{type(option): option for option in given}})


def test_a_library_that_is_linked_counts_by_its_content(tmp_path: Path) -> None:
    found = []
    for content in (b"1", b"2", b"1"):
        (tmp_path / "lib.bc").write_bytes(content)
        found.append(read_options(Compiler(), f"--link-libraries {tmp_path / 'lib.bc'}").linked())
    assert found[0] == found[2] != found[1]
    with pytest.raises(UnstableError, match="cannot be read"):
        read_options(Compiler(), "--link-libraries /no/such/file").linked()


def test_brackets_and_text_say_the_same() -> None:
    bracket = read_options(Compiler(OptLevel(2), EnableTVMFFI(True), GPUArch("sm_90a")), None)
    text = read_options(Compiler(), "--enable-tvm-ffi --opt-level=2 --gpu-arch sm_100a --keep-ptx --dump-dir=/tmp")
    assert bracket.flags == text.flags == {"opt-level": "2"}
    assert bracket.tvm_ffi and text.tvm_ffi


def test_a_flag_and_its_value_stay_together_whatever_the_order() -> None:
    one = read_options(Compiler(), "--ptxas-options '--maxrregcount 64' --opt-level 1")
    other = read_options(Compiler(), "--opt-level 1 --ptxas-options='--maxrregcount 64'")
    assert one.flags == other.flags == {"opt-level": "1", "ptxas-options": "--maxrregcount 64"}
    assert not one.tvm_ffi
    assert one.text() == "--opt-level 1 --ptxas-options '--maxrregcount 64'"


def test_options_without_a_spelling_are_refused() -> None:
    with pytest.raises(UnstableError, match="FrontendNext"):
        read_options(Compiler(FrontendNext(True)), None)
    with pytest.raises(UnstableError, match="warnings"):
        read_options(Compiler(), "warnings{nvvm}")


def test_a_variable_of_cute_dsl_is_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not read_options(None, "--opt-level 2").tvm_ffi
    monkeypatch.setenv("CUTE_DSL_ENABLE_TVM_FFI", "1")
    found = read_options(None, "--opt-level 2")
    assert found.tvm_ffi and found.flags == {"opt-level": "2"}


def test_brackets_that_change_the_code_count_beside_a_text() -> None:
    with pytest.raises(UnstableError, match="FrontendNext"):
        read_options(Compiler(FrontendNext(True)), "--enable-tvm-ffi")


def test_variables_of_cute_dsl_that_change_the_code_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_ENABLE_ASSERTIONS", "1")
    found = read_options(None, "--enable-tvm-ffi")
    assert found.tvm_ffi and found.flags == {"enable-assertions": "true"}
    monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "iket")
    with pytest.raises(UnstableError, match="CUTE_DSL_COMPILER_OPT"):
        read_options(None, None)
