"""Kernels are found in a folder, a file or a module; what cannot be read is named, and the rest is read."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.declare.discover import Family, discover
from aot.errors import DeclarationError, UsageError
from aot.versions import install_extras

DECLARATION = """
import aot

@aot.kernel(parameters=(aot.In("x"),), archs=("sm_90a",))
def {name}(target):
    return aot.Spec(print, {{"x": aot.Tensor("f32", ("n",)), "stream": aot.Stream()}})
"""


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    """As in a worker process, which reads one source and ends.

    Installed packages stay: the native modules of CuTe DSL abort a process that imports them twice.
    """
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "site-packages" not in str(
            getattr(sys.modules[name], "__file__", None) or getattr(sys.modules[name], "__path__", "")
        ):
            del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(source: Path | str) -> list[str]:
    return [kernel.name for kernel in discover(str(source)).kernels]


def test_a_folder_gives_the_kernels_of_its_files_by_name(tmp_path: Path) -> None:
    write(tmp_path / "zeta.py", DECLARATION.format(name="alpha"))
    write(tmp_path / "beta.py", DECLARATION.format(name="gamma") + DECLARATION.format(name="beta"))
    write(tmp_path / "_private.py", "raise RuntimeError('not executed')")
    write(tmp_path / "notes.txt", "")
    assert names(tmp_path) == ["alpha", "beta", "gamma"]


def test_files_of_a_folder_may_import_one_another(tmp_path: Path) -> None:
    write(tmp_path / "_common.py", "NAME = 'shared'")
    write(tmp_path / "a.py", DECLARATION.format(name="a") + "\nfrom ._common import NAME\n")
    write(tmp_path / "b.py", "from .a import a\nfrom .c import c\n" + DECLARATION.format(name="b"))
    write(tmp_path / "c.py", DECLARATION.format(name="c"))
    assert names(tmp_path) == ["a", "b", "c"]


def test_folders_that_are_packages_are_families_of_kernels(tmp_path: Path) -> None:
    write(tmp_path / "_common.py", "NAME = 'shared'")
    write(tmp_path / "a.py", DECLARATION.format(name="a") + "\nfrom .rows.c import c as other\n")
    write(tmp_path / "rows" / "__init__.py", "")
    write(tmp_path / "rows" / "c.py", DECLARATION.format(name="c") + "\nfrom .._common import NAME\n")
    write(tmp_path / "rows" / "_private.py", "raise RuntimeError('not executed')")
    for folder in ("contracts", "_hidden"):
        write(tmp_path / folder / "__init__.py", "raise RuntimeError('not executed')")
        write(tmp_path / folder / "c.py", "raise RuntimeError('not executed')")
    write(tmp_path / "data" / "d.py", "raise RuntimeError('no package, not executed')")
    assert names(tmp_path) == ["a", "c"]


def test_a_folder_may_name_its_core_families(tmp_path: Path) -> None:
    for family in ("rows", "late"):
        write(tmp_path / family / "__init__.py", "")
        write(tmp_path / family / "deep" / "__init__.py", "")
        write(tmp_path / family / "deep" / "k.py", DECLARATION.format(name=family))
    write(tmp_path / "loose.py", DECLARATION.format(name="loose"))
    write(tmp_path / "__init__.py", 'CORE_FAMILIES = ("rows",)')
    families = discover(str(tmp_path)).families
    assert families == {"loose": Family(), "rows": Family("rows/deep"), "late": Family("late/deep", core=False)}


def test_a_file_may_name_its_family(tmp_path: Path) -> None:
    """So that code can lie together that users build apart."""
    write(tmp_path / "products" / "__init__.py", "")
    write(tmp_path / "products" / "k.py", DECLARATION.format(name="k"))
    write(tmp_path / "products" / "late.py", 'FAMILY = "late"\n' + DECLARATION.format(name="late"))
    write(tmp_path / "products" / "early.py", 'FAMILY = "early"\n' + DECLARATION.format(name="early"))
    write(tmp_path / "__init__.py", 'CORE_FAMILIES = ("early",)')
    families = discover(str(tmp_path)).families
    assert families == {
        "k": Family("products", core=False),
        "late": Family("late", core=False),
        "early": Family("early"),
    }


def test_a_family_has_a_name(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "__init__.py", "")
    write(tmp_path / "rows" / "k.py", "FAMILY = 5\n" + DECLARATION.format(name="k"))
    with pytest.raises(DeclarationError, match="FAMILY is 5"):
        discover(str(tmp_path))


@pytest.mark.parametrize(
    ("core", "message"),
    [
        ('"rows"', "CORE_FAMILIES is 'rows'"),  # of which "row" is a part
        ("5", "CORE_FAMILIES is 5"),
        ("(5,)", r"CORE_FAMILIES is \(5,\)"),
        ('("rows", "gem")', "CORE_FAMILIES has gem, and there is no such folder"),
    ],
)
def test_core_families_are_folders(tmp_path: Path, core: str, message: str) -> None:
    write(tmp_path / "rows" / "__init__.py", "")
    write(tmp_path / "rows" / "k.py", DECLARATION.format(name="k"))
    write(tmp_path / "__init__.py", f"CORE_FAMILIES = {core}")
    with pytest.raises(DeclarationError, match=message) as caught:
        discover(str(tmp_path))
    assert caught.value.hint is not None
    assert "rows" in caught.value.hint


def test_without_a_list_every_family_is_core(tmp_path: Path) -> None:
    write(tmp_path / "rows" / "__init__.py", "")
    write(tmp_path / "rows" / "k.py", DECLARATION.format(name="k"))
    assert discover(str(tmp_path)).families == {"k": Family("rows")}


def test_two_families_may_not_declare_one_name(tmp_path: Path) -> None:
    for family in ("rows", "gemm"):
        write(tmp_path / family / "__init__.py", "")
        write(tmp_path / family / "same.py", DECLARATION.format(name="same"))
    with pytest.raises(DeclarationError, match="two kernels are called same"):
        discover(str(tmp_path))


def test_a_file_that_imports_a_broken_one_fails_with_it(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "from .broken import x\n")
    write(tmp_path / "broken.py", "1 / 0")
    write(tmp_path / "good.py", DECLARATION.format(name="good"))
    found = discover(str(tmp_path))
    assert [kernel.name for kernel in found.kernels] == ["good"]
    assert [re.sub(r".*/", "", failure.message) for failure in found.failures] == [
        "broken.py:1: ZeroDivisionError: division by zero"
    ] * 2


def test_a_package_may_declare_kernels_itself(tmp_path: Path) -> None:
    write(tmp_path / "__init__.py", DECLARATION.format(name="a") + "\nfrom .b import b\n")
    write(tmp_path / "b.py", DECLARATION.format(name="b"))
    assert names(tmp_path) == ["a", "b"]


def test_a_single_file_is_a_source(tmp_path: Path) -> None:
    assert names(write(tmp_path / "k.py", DECLARATION.format(name="k"))) == ["k"]


def test_an_importable_module_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "outer_package" / "__init__.py", "")
    write(tmp_path / "outer_package" / "inner.py", DECLARATION.format(name="k"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names("outer_package.inner") == ["k"]


@pytest.mark.parametrize("source", ["nowhere/kernels", "nowhere.py", "no_such_module", "os.no_such_module"])
def test_a_source_that_is_not_there_is_named(source: str) -> None:
    with pytest.raises(UsageError, match=re.escape(source)) as caught:
        discover(source)
    assert caught.value.hint == "pass a folder, a Python file, or an importable module"


def test_a_file_that_is_not_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a Python file"):
        discover(str(write(tmp_path / "kernel.cu", "__global__ void f() {}")))


def test_a_file_that_changes_the_folder_leaves_the_others_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "kernels" / "a.py", "import os\nos.chdir('/')")
    write(tmp_path / "kernels" / "b.py", "raise ValueError('read')")
    (failure,) = discover("kernels").failures
    assert "ValueError: read" in failure.message
    assert Path.cwd() == tmp_path


def test_a_source_without_kernels_is_refused_with_a_hint(tmp_path: Path) -> None:
    write(tmp_path / "a.py", "X = 1")
    with pytest.raises(UsageError, match="no kernel is declared in") as caught:
        discover(str(tmp_path))
    assert "@aot.kernel" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\nraise ValueError('broken')", r"bad\.py` raises on import: .*bad\.py:2: ValueError: broken"),
        ("def f(:\n", r"bad\.py:1: SyntaxError: .*\n    def f\(:"),
        ("x = 1\0", r"bad\.py(:1:|:|` raises on import:) (Syntax|Value)Error: source code .*null bytes"),
        (
            "class Skipped(BaseException): pass\nraise Skipped('x')",
            r"bad\.py` raises on import: .*bad\.py:2: Skipped: x",
        ),
        ("import sys\nsys.exit(3)", r"bad\.py` raises on import: .*bad\.py:2: SystemExit: 3"),
        ("import no_such_module_at_all", r"bad\.py:1: ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("import json\n\njson.loads('{')", r"bad\.py:3: JSONDecodeError: .* \(raised at .*decoder\.py:\d+\)"),
        ("import aot\naot.Tensor('f33', ('n',))", r"bad\.py:2: unknown dtype: 'f33'"),
        ("import aot\n\naot.In('x', default='text')", r"bad\.py:3: parameter x: the default 'text' is neither"),
        (
            "import aot\n@aot.kernel(parameters=(), archs=('sm9O',))\ndef f(t): ...",
            r"bad\.py:2: unknown architectures?: '?sm9O",
        ),
    ],
)
def test_a_file_that_fails_is_named_with_the_line_and_the_others_are_read(text: str, said: str, tmp_path: Path) -> None:
    write(tmp_path / "bad.py", text)
    write(tmp_path / "good.py", DECLARATION.format(name="good"))
    found = discover(str(tmp_path))
    assert [kernel.name for kernel in found.kernels] == ["good"]
    (failure,) = found.failures
    assert re.search(said, failure.message), failure.message
    with pytest.raises(DeclarationError, match=said):
        discover(str(tmp_path / "bad.py"))


def test_a_module_that_is_not_there_or_is_hidden_by_another_comes_with_a_next_step(tmp_path: Path) -> None:
    write(tmp_path / "absent.py", "import no_such_module_at_all.inner")
    write(tmp_path / "hidden.py", "import json.products")
    absent, hidden = discover(str(tmp_path)).failures
    assert "`no_such_module_at_all`" in str(absent.hint) and "PYTHONPATH" in str(absent.hint)
    assert os.path.dirname(json.__file__) in str(hidden.hint) and "PYTHONPATH" in str(hidden.hint)


def test_a_file_whose_text_is_in_another_encoding_is_named_with_the_line(tmp_path: Path) -> None:
    """Python imports it if that is in a comment alone, and CuTe DSL then finds no source to compile."""
    text = DECLARATION.format(name="k") + "# café\n"
    (tmp_path / "a.py").write_bytes(text.encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"# caf\xe9\n")
    first, second = discover(str(tmp_path)).failures
    assert re.search(r"a\.py:7: this is not utf-8: b'\\xe9'", first.message), first.message
    assert re.search(r"b\.py: invalid or missing encoding declaration", second.message), second.message
    assert first.hint == second.hint and "UTF-8" in str(first.hint)
    (tmp_path / "b.py").unlink()
    (tmp_path / "a.py").write_bytes(f"# -*- coding: latin-1 -*-\n{text}".encode("latin-1"))
    assert names(tmp_path) == ["k"]


def test_a_path_that_is_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle states where its kernels are declared."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write(folder / "k.py", DECLARATION.format(name="k"))
    (failure,) = discover(str(folder)).failures
    assert "is not UTF-8" in failure.message and "rename" in str(failure.hint)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    assert "LC_ALL" in str(discover(str(folder)).failures[0].hint)  # the path may be right, and the locale is not


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path / "k.py", "").chmod(0)
    (failure,) = discover(str(tmp_path)).failures
    assert re.search(r"cannot read `.*k\.py`: Permission denied", failure.message)
    tmp_path.chmod(0o600)
    with pytest.raises(UsageError, match="you may not read the folder"):
        discover(str(tmp_path))


def test_a_file_that_imports_its_neighbours_is_read_with_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "kernels" / "_shared.py", "X = 1")
    write(tmp_path / "kernels" / "one.py", "from ._shared import X\n" + DECLARATION.format(name="one"))
    assert [kernel.name for kernel in discover(str(tmp_path / "kernels")).kernels] == ["one"]
    with pytest.raises(DeclarationError, match="no known parent package") as caught:
        discover(str(tmp_path / "kernels" / "one.py"))
    assert f"`--source {tmp_path / 'kernels'}`" in (caught.value.hint or "")


def test_a_package_that_fails_is_named(tmp_path: Path) -> None:
    write(tmp_path / "__init__.py", "1 / 0")
    with pytest.raises(DeclarationError, match=r"__init__\.py:1: ZeroDivisionError"):
        discover(str(tmp_path))


def test_a_module_whose_own_import_fails_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "needs_something.py", "import something_else_entirely")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DeclarationError, match="No module named 'something_else_entirely'"):
        discover("needs_something")


def test_a_missing_compiler_is_said_plainly(tmp_path: Path) -> None:
    write(tmp_path / "k.py", "raise ModuleNotFoundError(\"No module named 'cutlass'\", name='cutlass')")
    (failure,) = discover(str(tmp_path)).failures
    assert "needs CuTe DSL, which is not installed" in failure.message
    assert failure.hint == install_extras("build")


@pytest.mark.compiler
@pytest.mark.parametrize(
    "line", ["import cutlass.not_there", "from cutlass.not_there import X", "from cutlass import not_there"]
)
def test_a_part_that_the_installed_compiler_lacks_is_not_called_a_missing_compiler(line: str, tmp_path: Path) -> None:
    write(tmp_path / "k.py", f"\n{line}\n")
    (failure,) = discover(str(tmp_path)).failures
    seen = importlib.metadata.version("nvidia-cutlass-dsl")
    assert f"k.py` imports what CuTe DSL {seen} does not have: {tmp_path}/k.py:2: " in failure.message
    assert "not_there" in failure.message
    assert "not installed" not in failure.message
    assert "install a version of nvidia-cutlass-dsl that has it" in str(failure.hint)


def test_two_kernels_of_one_name_are_an_error_that_names_both_places(tmp_path: Path) -> None:
    write(tmp_path / "one.py", DECLARATION.format(name="same"))
    write(tmp_path / "two.py", "\n\n" + DECLARATION.format(name="same"))
    with pytest.raises(DeclarationError, match=r"two kernels are called same: .*one\.py:4 and .*two\.py:6"):
        discover(str(tmp_path))


def test_two_kernels_of_one_name_in_one_file_are_an_error_that_names_both_lines(tmp_path: Path) -> None:
    write(tmp_path / "one.py", DECLARATION.format(name="same") + DECLARATION.format(name="same"))
    write(tmp_path / "two.py", DECLARATION.format(name="other"))
    found = discover(str(tmp_path))
    assert [kernel.name for kernel in found.kernels] == ["other"]
    (failure,) = found.failures
    assert re.search(r"two kernels are called same: \S*one\.py:4 and \S*one\.py:10", failure.message)
    assert failure.hint


def test_a_kernel_under_two_names_is_one_kernel(tmp_path: Path) -> None:
    write(tmp_path / "a.py", DECLARATION.format(name="a") + "\nalias = a\n")
    assert names(tmp_path) == ["a"]
