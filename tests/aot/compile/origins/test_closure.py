"""What a kernel's code came from, seen by a real worker: its own files move its key, others leave it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aot_runtime.arch import Arch

from aot.cache import keys
from aot.compile.messages import Closure, Declared, Options, VariantInfo, worker_variables
from aot.compile.origins import closure
from aot.compile.origins.closure import python_files, variables
from aot.compile.origins.modules import locate, places_of
from aot.compile.process import Worker
from aot.records import decode

ARCH = Arch.parse("sm_90a")
KERNEL = """
import json, os
from pathlib import Path
import platformdirs
import aot
from . import _shared
from helpers import tiles

TUNING = json.loads((Path(__file__).parent / "tuning.json").read_text())

def launch(out, stream):
    from helpers.late import unused

launch._dsl_object = None  # what CuTe DSL's decorator leaves, by which it is known

@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_90a",),
            axes={"tile": {"tile": int(os.environ.get("TILE", "1"))}})
def first(target, tile):
    return aot.Spec(launch, {"out": aot.Tensor("f32", ("n", tile)), "stream": aot.Stream()})
"""
OTHER = KERNEL.replace("from . import _shared\nfrom helpers import tiles\n", "").replace("def first", "def second")
OTHER = OTHER.replace("from helpers.late import unused", "pass")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "kernels/first.py": KERNEL, "kernels/second.py": OTHER, "kernels/_shared.py": "A = 1\n",
        "kernels/notes.py": "B = 1\n", "kernels/tuning.json": "{}", "helpers/__init__.py": "",
        "helpers/tiles.py": "from .deep import C\n", "helpers/deep.py": "C = 1\n", "helpers/late.py": "unused = 1\n",
        "helpers/elsewhere.py": "D = 1\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *map(os.path.abspath, sys.path)]))
    monkeypatch.delenv("TILE", raising=False)
    return tmp_path


# What a worker does, in a process that is forked for each question: importing CuTe DSL takes a second.
FORKING = """
import json, os, sys
from aot.compile.backend import select_backend
from aot.compile.messages import Options
from aot.compile.worker import RequestHandler, _import_cute_dsl
from aot.records import encode

select_backend(Options().cuda)
_import_cute_dsl()
for line in sys.stdin:
    source, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        ask = RequestHandler(lambda message: None).answer
        declared = ask({"do": "open", "source": source, "arch": "sm_90a", "options": encode(Options()), "skip": []})
        variants = [ask({"do": "expand", "kernel": one["name"], "arch": "sm_90a"})["variants"] for one in declared["kernels"]]
        print(json.dumps([declared, variants, ask({"do": "closure"})]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""

Seen = tuple[Declared, list[tuple[VariantInfo, ...]], Closure]


@pytest.fixture(scope="module")
def forking() -> Iterator[Callable[[Path], Seen]]:
    """What a worker sees of a folder, without starting one."""
    command = [sys.executable, "-c", FORKING]
    path = os.pathsep.join(map(os.path.abspath, sys.path))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert process.stdin is not None and process.stdout is not None

    def ask(folder: Path) -> Seen:
        process.stdin.write(json.dumps([str(folder / "kernels"), {**os.environ, **worker_variables(ARCH)}]) + "\n")
        process.stdin.flush()
        declared, variants, closure = json.loads(process.stdout.readline())
        expanded = [tuple(decode(VariantInfo, one) for one in kernel) for kernel in variants]
        return decode(Declared, declared), expanded, decode(Closure, closure)

    yield ask
    process.communicate()


def by_worker(folder: Path) -> Seen:
    worker = Worker(str(folder / "kernels"), ARCH, Options(), folder / "log")
    try:
        return worker.declared, [worker.expand(kernel.name) for kernel in worker.declared.kernels], worker.closure()
    finally:
        worker.close()


def variant_keys(folder: Path, see: Callable[[Path], Seen] = by_worker) -> dict[str, str]:
    """The key of each kernel's only variant, as a build would make it."""
    declared, variants, closure = see(folder)
    assert declared.failures == ()
    expanded = {kernel.name: (kernel, found) for kernel, found in zip(declared.kernels, variants, strict=True)}
    return {
        name: keys.variant_key(
            kernel,
            variant,
            ARCH,
            options=Options(),
            cuda=12,
            closure=closure.kernels[name],
            cutlass=keys.cutlass_distributions(),
            python=keys.python_version(),
            code=keys.generation(),
        )
        for name, (kernel, (variant,)) in expanded.items()
    }


def test_a_file_moves_the_keys_of_the_kernels_that_import_it_and_no_others(
    folder: Path, forking: Callable[[Path], Seen]
) -> None:
    before = variant_keys(folder, forking)
    assert before == variant_keys(folder), "what is forked does not see what a worker sees"
    moved = {}
    for name in (
        "kernels/first.py", "kernels/second.py", "kernels/_shared.py", "kernels/notes.py", "kernels/tuning.json",
        "helpers/__init__.py", "helpers/tiles.py", "helpers/deep.py", "helpers/late.py", "helpers/elsewhere.py",
    ):  # fmt: skip
        path = folder / name
        text = path.read_text()
        path.write_text(text + ("  " if name.endswith(".json") else "# a comment\n"))
        after = variant_keys(folder, forking)
        moved[name] = "".join(kernel[0] for kernel in sorted(before) if after[kernel] != before[kernel])
        path.write_text(text)
    assert moved == {
        "kernels/first.py": "f",
        "kernels/second.py": "s",
        "kernels/_shared.py": "f",
        "kernels/notes.py": "",
        "kernels/tuning.json": "fs",  # who read it is not known
        "helpers/__init__.py": "f",
        "helpers/tiles.py": "f",
        "helpers/deep.py": "f",
        "helpers/late.py": "f",  # imported when the kernel is traced
        "helpers/elsewhere.py": "",
    }


def test_a_variable_that_the_kernels_ask_for_moves_the_key_and_others_do_not(
    folder: Path, forking: Callable[[Path], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = variant_keys(folder, forking)
    monkeypatch.setenv("UNRELATED", "1")
    assert variant_keys(folder, forking) == before
    monkeypatch.setenv("TILE", "1")  # what the default was, but that is not for us to know
    after = variant_keys(folder, forking)
    assert after["first"] != before["first"]


def test_a_variable_that_the_compiler_asks_for_moves_the_key(
    folder: Path, forking: Callable[[Path], Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = variant_keys(folder, forking)
    monkeypatch.setenv("CUTE_DSL_KEEP_PTX", "0")
    after = variant_keys(folder, forking)
    assert all(after[name] != before[name] for name in before)


def test_a_module_that_imports_by_a_computed_name_may_have_imported_anything(
    folder: Path, forking: Callable[[Path], Seen]
) -> None:
    text = (folder / "kernels" / "second.py").read_text()
    (folder / "kernels" / "second.py").write_text(text + "\n__import__('helpers.' + 'else' + 'where')\n")
    before = variant_keys(folder, forking)
    (folder / "helpers" / "elsewhere.py").write_text("D = 2\n")
    after = variant_keys(folder, forking)
    assert [name for name in before if after[name] != before[name]] == ["second"]


def moved_by(folder: Path, see: Callable[[Path], Seen], *changes: Callable[[], object]) -> list[str]:
    """The first letters of the kernels whose keys each change moves."""
    before, moved = variant_keys(folder, see), []
    for change in changes:
        change()
        after = variant_keys(folder, see)
        moved.append("".join(name[0] for name in sorted(before) if after[name] != before[name]))
        before = after
    return moved


Install = Callable[..., None]


@pytest.fixture
def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package of that name and version, or another version of it."""
    library = folder / "other" / "site-packages"
    library.mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(library), os.environ["PYTHONPATH"]]))

    def put(name: str, version: str, code: str = "") -> None:
        for old in library.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)
        record = library / f"{name}-{version}.dist-info" / "RECORD"
        record.parent.mkdir()
        record.write_text(f"{name}/__init__.py,,\n")
        (library / name).mkdir(exist_ok=True)
        (library / name / "__init__.py").write_text(code)

    return put


def test_a_library_that_one_file_imports_counts_for_all(
    folder: Path, forking: Callable[[Path], Seen], install: Install
) -> None:
    """It may patch CuTe DSL for the whole process, so that kernels build only beside that import."""
    install("patcher", "1.0", "import dependency\n")
    install("dependency", "1.0")
    second = folder / "kernels" / "second.py"
    assert moved_by(
        folder,
        forking,
        lambda: second.write_text("import patcher\n" + second.read_text()),
        lambda: install("patcher", "1.1", "import dependency\n"),
        lambda: install("dependency", "1.1"),
    ) == ["fs", "fs", "fs"]


CHECKS = """
from typing import TYPE_CHECKING
from . import _by_library

if TYPE_CHECKING:
    import fastmath

def reference():
    return _by_library.fill()

def inputs(make, dtype):
    yield {}
"""
BY_LIBRARY = "def fill():\n    import fastmath\n"
OWN_CHECK = "def cost():\n    import fastmath\n"


def test_a_library_that_only_checks_of_kernels_import_moves_no_key(
    folder: Path, forking: Callable[[Path], Seen], install: Install
) -> None:
    """Who installs torch beside a kernel to check it does not compile it again."""
    first = folder / "kernels" / "first.py"
    (folder / "kernels" / "checks.py").write_text(CHECKS)
    (folder / "kernels" / "_by_library.py").write_text(BY_LIBRARY)
    text = first.read_text().replace("archs=", "reference=checks.reference, inputs=checks.inputs, cost=cost, archs=")
    first.write_text("from . import checks\n" + OWN_CHECK + text)
    traced = text.replace("from helpers.late import unused", "import fastmath")
    assert moved_by(
        folder,
        forking,
        lambda: install("fastmath", "1.0"),
        lambda: install("fastmath", "1.1"),
        lambda: first.write_text("from . import checks\n" + OWN_CHECK + traced),
        lambda: install("fastmath", "1.2"),
    ) == ["", "", "fs", "fs"]


def test_a_library_that_kernels_can_do_without_is_looked_for_again(
    folder: Path, forking: Callable[[Path], Seen], install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = folder / "kernels" / "second.py"
    second.write_text("try:\n    import fastmath\nexcept ImportError:\n    pass\n" + second.read_text())
    assert "fastmath" in forking(folder)[2].imports
    assert places_of(["fastmath"]) == {"fastmath": ()}
    install("fastmath", "1.0")
    monkeypatch.syspath_prepend(os.environ["PYTHONPATH"].partition(os.pathsep)[0])
    assert places_of(["fastmath"]) == {"fastmath": ("/site-packages/fastmath/__init__.py",)}, "in any environment"


def test_a_plan_is_told_what_its_files_import_and_which_folders_they_may_gain(
    folder: Path, forking: Callable[[Path], Seen]
) -> None:
    seen = forking(folder)[2]
    assert {"helpers", "platformdirs", "json"} <= set(seen.imports)
    assert (seen.current, seen.folders[str(folder / "kernels")]) == ("", python_files(str(folder / "kernels")))
    (folder / "kernels" / "family").mkdir()
    assert python_files(str(folder / "kernels")) == seen.folders[str(folder / "kernels")]
    (folder / "kernels" / "family" / "__init__.py").touch()
    assert python_files(str(folder / "kernels")) != seen.folders[str(folder / "kernels")]


def test_a_file_that_is_opened_by_its_place_in_the_current_folder_binds_the_plan_to_that(
    folder: Path, forking: Callable[[Path], Seen]
) -> None:
    second, table = folder / "kernels" / "second.py", folder / "table.json"
    table.write_text("{}")
    second.write_text(f"import os\nopen(os.path.relpath({str(table)!r})).close()\n" + second.read_text())
    assert forking(folder)[2].current == os.getcwd()


def test_kernels_are_read_without_an_import_of_torch(folder: Path, install: Install) -> None:
    """TVM-FFI imports torch if it is there, which takes seconds in every worker."""
    install("torch", "2.0", f"open({str(folder / 'imported')!r}, 'w').close()\n")
    before = variant_keys(folder)
    assert not (folder / "imported").exists()
    second = folder / "kernels" / "second.py"
    second.write_text("import torch\n" + second.read_text())
    assert variant_keys(folder) != before
    assert (folder / "imported").exists(), "an author's file gets the torch that it imports"


def test_the_shipped_kernels_depend_on_no_library_of_their_contracts(folder: Path, install: Install) -> None:
    install("torch", "2.0")
    source = Path(__file__).parents[4] / "kernels"
    worker = Worker(str(source), ARCH, Options(), folder / "log")
    try:
        assert "torch" not in worker.closure().distributions
    finally:
        worker.close()


def test_a_file_that_patches_others_counts_for_all_with_what_it_imports(
    folder: Path, forking: Callable[[Path], Seen]
) -> None:
    second, patch = folder / "kernels" / "second.py", folder / "helpers" / "patch.py"
    patch.write_text("VALUE = 1\n")
    second.write_text("import helpers.deep\nfrom helpers import patch\n" + second.read_text())
    assert moved_by(
        folder,
        forking,
        lambda: patch.write_text("VALUE = 2\n"),
        lambda: second.write_text(second.read_text() + "helpers.deep.C = patch.VALUE\n"),
        lambda: patch.write_text("VALUE = 3\n"),
    ) == ["s", "fs", "fs"]


def test_a_module_is_looked_for_once_whatever_the_number_of_kernels(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library on the search path may have hundreds of modules."""
    asked: Counter[str] = Counter()

    def count(name: str) -> Path | None:
        asked[name] += 1
        return locate(name)

    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(closure, "locate", count)
    modules = closure._Modules(())
    reached = [set(modules.reach([root])) for root in ("helpers.tiles", "helpers.late", "helpers.tiles")]
    assert reached == [{"helpers", "helpers.tiles", "helpers.deep"}, {"helpers", "helpers.late"}, reached[0]]
    assert asked and set(asked.values()) == {1}


def test_what_a_worker_is_started_with_is_not_what_the_kernels_ask_for(folder: Path) -> None:
    second = folder / "kernels" / "second.py"
    second.write_text("import os\nARCH = os.environ['CUTE_DSL_ARCH']\nos.environ['MINE'] = '1'\n" + second.read_text())
    worker = Worker(str(folder / "kernels"), ARCH, Options(), folder / "log")
    try:
        environment = worker.closure().environment
    finally:
        worker.close()
    assert "CUTE_DSL_ARCH" not in environment
    assert environment["MINE"] is None, "what the author's code sets is not what it was given"
    assert variables(environment, os.environ) == environment


def test_variables_that_begin_alike_count_together_and_show_no_values() -> None:
    held = variables(
        ["TILE_*", "PLAIN", "CUTE_DSL_ARCH"], {"TILE_M": "secret", "PLAIN": "1", "CUTE_DSL_ARCH": "sm_90a"}
    )
    assert held.keys() == {"TILE_*", "PLAIN"}
    assert held["PLAIN"] == "1"
    assert "secret" not in str(held["TILE_*"])
    for other in ({}, {"TILE_M": "2"}, {"TILE_M": "secret", "TILE_N": "1"}):
        assert variables(["TILE_*"], other)["TILE_*"] != held["TILE_*"]
    assert variables(["TILE_*"], {"TILE_M": "secret", "TIDE": "1"})["TILE_*"] == held["TILE_*"]
    settings = variables(["CUTE_DSL_*"], {"CUTE_DSL_ARCH": "sm_90a"})
    assert settings == variables(["CUTE_DSL_*"], {}) != variables(["CUTE_DSL_*"], {"CUTE_DSL_KEEP_PTX": "0"})


def test_installed_packages_count_by_their_version_and_not_by_their_files(folder: Path) -> None:
    worker = Worker(str(folder / "kernels"), ARCH, Options(), folder / "log")
    try:
        closure = worker.closure()
    finally:
        worker.close()
    assert "platformdirs" in closure.distributions
    assert all(Path(path).is_relative_to(folder) for path in closure.files)
    assert not any(
        name.partition(".")[0] in ("aot", "platformdirs", "json") for name in closure.kernels["first"].modules
    )


def test_a_worker_uses_large_pages_unless_the_user_tunes_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen, used in ((None, "glibc.malloc.hugetlb=1"), ("glibc.malloc.arena_max=1", "glibc.malloc.arena_max=1")):
        monkeypatch.setenv("GLIBC_TUNABLES", chosen or "")
        assert worker_variables(ARCH)["GLIBC_TUNABLES"] == used
