"""The stages of ``aot`` import each other only along the arrows in ``layers.json``, and unit tests mirror the source."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest
from places import PROJECT, TESTS

LAYERS = json.loads((TESTS / "layers.json").read_text())
AOT = PROJECT / "aot"


def package_of(path: Path) -> str:
    """The stage a file belongs to; ``""`` is the root of ``aot``."""
    parts = path.relative_to(AOT).parts
    return parts[0] if len(parts) > 1 else ""


def imported(path: Path) -> Iterator[str]:
    """Dotted names below ``aot`` that a file imports anywhere in it, or names for another process to run."""
    package = path.relative_to(AOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        yield from started(node)
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("aot.") for alias in node.names if alias.name.startswith("aot."))
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) - node.level + 1], *(node.module or "").split("."))
            yield from (".".join(part for part in (*base, alias.name) if part) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aot."):
            yield str(node.module).removeprefix("aot.")


def started(node: ast.AST) -> Iterator[str]:
    """``"aot.compile.worker"``, and the command line in ``["-m", "aot"]``: modules that a text stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("aot."):
        name = node.value.removeprefix("aot.")
        if (AOT / name.replace(".", "/")).with_suffix(".py").is_file():
            yield name
    elif isinstance(node, (ast.List, ast.Tuple)):
        words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
        if ("-m", "aot") in pairwise(words):
            yield "cli.main"


def stage(name: str) -> str:
    first = name.partition(".")[0]
    return first if (AOT / first).is_dir() else ""


def arrows(path: Path) -> set[str]:
    return {stage(name) for name in imported(path)} - {package_of(path)}


def files_of(package: str) -> list[Path]:
    if package:
        return sorted((AOT / package).rglob("*.py"))
    return [path for path in sorted(AOT.glob("*.py")) if path.stem not in LAYERS["entry_points"]]


def test_every_package_is_a_layer() -> None:
    packages = {path.parent.relative_to(AOT).parts[0] for path in AOT.glob("*/**/*.py")}
    assert packages == set(LAYERS["packages"]) - {""}


@pytest.mark.parametrize("package", LAYERS["packages"])
def test_a_package_imports_what_it_may_and_nothing_else(package: str) -> None:
    used = {path.relative_to(PROJECT).as_posix(): arrows(path) for path in files_of(package)}
    allowed = set(LAYERS["packages"][package])
    wrong = {name: sorted(found - allowed) for name, found in used.items() if found - allowed}
    assert not wrong
    assert not allowed - set().union(*used.values()), "allowed, but not used"


@pytest.mark.parametrize("module", LAYERS["entry_points"])
def test_an_entry_point_imports_what_it_may_and_nothing_else(module: str) -> None:
    assert arrows(AOT / f"{module}.py") - {""} == set(LAYERS["entry_points"][module])


def test_the_layers_have_no_circle() -> None:
    list(TopologicalSorter({name: set(below) for name, below in LAYERS["packages"].items()}).static_order())


def module_of(name: str, root: Path) -> str:
    """The module that a dotted name stands for: itself, or the one that has an attribute of the last name."""
    path = root / name.replace(".", "/")
    return name if path.with_suffix(".py").is_file() or path.is_dir() else name.rpartition(".")[0]


def test_the_modules_of_a_package_have_no_circle() -> None:
    """Types and processes count, too: each of two modules that need each other can be read only with the other."""
    modules = {
        ".".join(path.relative_to(AOT).with_suffix("").parts): {module_of(name, AOT) for name in imported(path)}
        for package in LAYERS["packages"]
        for path in files_of(package)
        if path.stem != "__init__"
    }
    assert "compile.worker" in modules["compile.process"] and "declare.kernel" in modules["declare.backward"]
    list(TopologicalSorter(modules).static_order())


# The kernels: families, and what they share. Modules at the root and packages of an architecture are for all of them.

KERNELS = PROJECT / "kernels"
FAMILIES = {"attention", "backward", "elementwise", "fp8", "products", "rows", "training"}
SHARED = {"contracts", "sm80", "sm90", "sm100"}


def imported_by_kernels(path: Path) -> set[str]:
    """Modules below ``kernels`` that one of them imports."""
    package, found = path.relative_to(KERNELS).parent.parts, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*package[: len(package) - node.level + 1], *filter(None, (node.module or "").split(".")))
            found |= {module_of(".".join((*base, alias.name)), KERNELS) for alias in node.names}
    return found


def kernel_modules() -> dict[str, set[str]]:
    return {
        ".".join(path.relative_to(KERNELS).with_suffix("").parts): imported_by_kernels(path)
        for path in sorted(KERNELS.rglob("*.py"))
        if path.stem != "__init__"
    }


def test_every_folder_of_kernels_is_a_family_or_shared() -> None:
    assert {path.parent.name for path in KERNELS.glob("*/__init__.py")} == FAMILIES | SHARED


def test_no_family_imports_a_private_module_of_another() -> None:
    wrong = {
        f"{name} imports {other}"
        for name, others in kernel_modules().items()
        for other in others
        if other.split(".")[0] in FAMILIES - {name.split(".")[0]} and other.rpartition(".")[2].startswith("_")
    }
    assert not wrong


def test_what_the_families_share_imports_no_kernel() -> None:
    below = {name: others for name, others in kernel_modules().items() if name.split(".")[0] not in FAMILIES}
    wrong = {name: others for name, others in below.items() if any(other.split(".")[0] in FAMILIES for other in others)}
    assert not wrong


def test_the_modules_of_the_kernels_have_no_circle() -> None:
    modules = kernel_modules()
    assert "_rows" in modules["backward._norms"] and "sm90.pipeline" in modules["sm90.product"]
    list(TopologicalSorter(modules).static_order())


def test_only_one_package_imports_the_compiler() -> None:
    importers = {package_of(path) for path in AOT.rglob("*.py") if imports_cutlass(path)}
    assert importers == {"compile"}


def imports_cutlass(path: Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if any(name.partition(".")[0] == "cutlass" for name in names):
            return True
    return False


def test_the_root_holds_at_most_ten_modules() -> None:
    assert len(list(AOT.glob("*.py"))) <= 10


def test_every_package_says_what_it_is_for_and_what_it_may_import() -> None:
    for package in set(LAYERS["packages"]) - {""}:
        text = ast.get_docstring(ast.parse((AOT / package / "__init__.py").read_text())) or ""
        assert "May import:" in text, package


def test_unit_tests_mirror_the_source() -> None:
    for test in sorted((TESTS / "aot").rglob("test_*.py")):
        folder = test.parent.relative_to(TESTS / "aot")
        assert (AOT / folder / f"{test.stem.removeprefix('test_')}.py").is_file(), test


def test_tests_of_kernels_mirror_their_folders() -> None:
    folders = {path.parent.name for path in (TESTS / "kernels").glob("*/test_*.py")}
    assert FAMILIES <= folders <= FAMILIES | SHARED


def test_unit_tests_of_what_kernels_share_mirror_its_modules() -> None:
    """Tests of a family are of its kernels, from outside. What all declarations and contracts have in common has no module."""
    tested = {"": "_{}.py", "sm80/": "sm80/{}.py", "sm90/": "sm90/{}.py", "sm100/": "sm100/{}.py"}
    for folder, module in tested.items():
        for test in (TESTS / "kernels" / folder).glob("test_*.py"):
            name = test.stem.removeprefix("test_")
            assert (KERNELS / module.format(name)).is_file() or name in ("contracts", "declarations"), test


# The C sources: a unit is a `.c` file, its header, or both. `aot/` headers are apart, since programs include them too.

SOURCES = PROJECT / "runtime" / "src"
C_FOLDERS = {
    "runtime_src": SOURCES,
    "runtime_src_torch": SOURCES / "torch",
    "public_headers": PROJECT / "runtime" / "include" / "aot",
    "public_headers_detail": PROJECT / "runtime" / "include" / "aot" / "detail",
}


def unit_of(name: str) -> str:
    """``dispatch`` for ``aot_dispatch.c`` and its header; headers of C++ keep their ending."""
    path = Path(name)
    return path.name if path.suffix == ".hpp" else path.stem.removeprefix("aot_")


def includes(folder: Path) -> dict[str, set[str]]:
    """Which units each unit includes."""
    units: dict[str, set[str]] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        found = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
        units.setdefault(unit_of(path.name), set()).update(map(unit_of, found))
    return {unit: found - {unit} for unit, found in units.items()}


@pytest.mark.parametrize("layer", C_FOLDERS)
def test_a_c_unit_includes_what_it_may_and_nothing_else(layer: str) -> None:
    assert includes(C_FOLDERS[layer]) == {unit: set(allowed) for unit, allowed in LAYERS[layer].items()}


@pytest.mark.parametrize("layer", C_FOLDERS)
def test_c_units_have_no_circle(layer: str) -> None:
    list(TopologicalSorter({unit: set(below) for unit, below in LAYERS[layer].items()}).static_order())


def test_the_header_of_c_declares_and_defines_nothing() -> None:
    text = re.sub(r"/\*.*?\*/", "", (C_FOLDERS["public_headers"] / "aot.h").read_text(), flags=re.DOTALL)
    assert re.search(r"\baot_open\([^;{]*\);", text)
    assert not re.search(r"\) \{", text), "a function has a body: it belongs to aot/detail"


def test_c_units_include_the_header_of_what_they_define() -> None:
    """Otherwise a declaration in somebody else's header would be an arrow that nobody sees."""
    for source in SOURCES.rglob("*.c"):
        if source.with_suffix(".h").exists() and source.name != "aot_files.c":
            assert f'#include "{source.stem}.h"' in source.read_text(), source.name


LOADER = PROJECT / "runtime" / "aot_runtime"


def imported_by_loader(path: Path) -> set[str]:
    """Modules of the loader that one of them imports anywhere: in functions, for types alone, and by a text, too."""
    package, found = path.relative_to(LOADER).parent.parts, set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", str(node.value)):
            found.add(str(node.value).removeprefix("aot_runtime."))
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("aot_runtime")):
            outer = package[: len(package) - node.level + 1] if node.level else ()
            base = (*outer, *filter(None, (node.module or "").removeprefix("aot_runtime").split(".")))
            found |= {module_of(".".join((*base, alias.name)), LOADER) for alias in node.names}
    return {name for name in found if (LOADER / name.replace(".", "/")).with_suffix(".py").is_file()}


def loader_modules() -> dict[str, set[str]]:
    """What each module of the loader imports of the loader, by dotted names."""
    return {
        ".".join(path.relative_to(LOADER).with_suffix("").parts): imported_by_loader(path)
        for path in sorted(LOADER.rglob("*.py"))
    }


def room_of(name: str) -> str:
    """The folder of a module of the loader; ``""`` is the root."""
    return name.partition(".")[0] if "." in name else ""


def loader_rooms() -> dict[str, set[str]]:
    """Which rooms each room imports; the entry points at the root are left to a test of their own."""
    rooms: dict[str, set[str]] = {}
    for name, imports in loader_modules().items():
        if name not in LAYERS["loader_entry_points"]:
            rooms.setdefault(room_of(name), set()).update(map(room_of, imports))
    return {room: below - {room} for room, below in rooms.items()}


def test_a_room_of_the_loader_imports_what_it_may_and_nothing_else() -> None:
    assert loader_rooms() == {room: set(allowed) for room, allowed in LAYERS["loader"].items()}
    list(TopologicalSorter(loader_rooms()).static_order())


def test_an_entry_point_of_the_loader_imports_what_it_may_and_nothing_else() -> None:
    modules = loader_modules()
    used = {name: set(map(room_of, modules[name])) - {""} for name in LAYERS["loader_entry_points"]}
    assert used == {name: set(allowed) for name, allowed in LAYERS["loader_entry_points"].items()}


def test_the_modules_of_the_loader_have_no_circle() -> None:
    modules = loader_modules()
    assert "description.records" in modules["description.manifest"] and "core.bundle" in modules["serving.server"]
    list(TopologicalSorter(modules).static_order())


def test_the_root_of_the_loader_holds_at_most_ten_modules() -> None:
    assert len(list(LOADER.glob("*.py"))) <= 10


def test_every_room_of_the_loader_says_what_it_is_for_and_what_it_may_import() -> None:
    for room in set(LAYERS["loader"]) - {""}:
        text = ast.get_docstring(ast.parse((LOADER / room / "__init__.py").read_text())) or ""
        assert "May import:" in text, room


def test_tests_of_the_loader_mirror_its_rooms() -> None:
    """A test is named after a module of its room; those of C sources have a folder of their own."""
    for test in sorted((TESTS / "runtime").rglob("test_*.py")):
        folder, name = test.parent.relative_to(TESTS / "runtime"), test.stem.removeprefix("test_")
        modules = {path.stem for path in (LOADER / folder).glob("*.py")} | (
            {"isolation"} if folder == Path() else set()
        )
        assert folder == Path("src") or any(f"{name}_".startswith(f"{module}_") for module in modules), test


def test_public_modules_of_the_loader_hand_on_all_that_their_rooms_offer() -> None:
    for name in ("torch", "jax"):
        assert public_names(LOADER / f"{name}.py") == public_names(LOADER / "frameworks" / f"{name}.py")


def public_names(path: Path) -> list[str]:
    (names,) = (
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(ast.literal_eval(names))


# Rooms: the folders of a package or a family. Modules beside them are shared by the rooms, or put these together.

ROOMS = [(folder, room) for folder, rooms in LAYERS["rooms"].items() for room in rooms]
TREES = {"aot": imported, "kernels": imported_by_kernels, "runtime/aot_runtime": imported_by_loader}


def rooms_imported(folder: str, room: str) -> set[str]:
    """The other rooms of ``folder`` that modules of one import."""
    tree = next(tree for tree in TREES if folder.startswith(f"{tree}/"))
    inside = folder.removeprefix(f"{tree}/").replace("/", ".") + "."
    found = {name for path in (PROJECT / folder / room).glob("*.py") for name in TREES[tree](path)}
    used = {name.removeprefix(inside).partition(".")[0] for name in found if name.startswith(inside)}
    return used & LAYERS["rooms"][folder].keys() - {room}


@pytest.mark.parametrize(("folder", "room"), ROOMS, ids=map("/".join, ROOMS))
def test_a_room_imports_the_rooms_it_may_and_no_other(folder: str, room: str) -> None:
    assert rooms_imported(folder, room) == set(LAYERS["rooms"][folder][room])


@pytest.mark.parametrize("folder", LAYERS["rooms"])
def test_every_folder_is_a_room_and_the_rooms_have_no_circle(folder: str) -> None:
    rooms = LAYERS["rooms"][folder]
    assert {path.parent.name for path in (PROJECT / folder).glob("*/__init__.py")} == rooms.keys()
    list(TopologicalSorter({room: set(below) for room, below in rooms.items()}).static_order())
