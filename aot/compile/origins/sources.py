"""What one of the author's files says about itself, read off its syntax tree: imports, variables, patches.

Nothing is executed for this. Imports inside functions count before they run.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Source", "parents", "read_source"]

_IMPORTS_BY_NAME = frozenset({"import_module", "__import__", "spec_from_file_location", "run_path", "exec"})
_ASKS_BY_NAME = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__", "__setitem__"})
_PATCHERS = frozenset({"setattr", "delattr"})
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEMPLATE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[%{]")  # "TILE_%s" and "TILE_{}" begin with TILE_

Nodes = Mapping[type[ast.AST], list[Any]]  # of the whole file, by their kinds


class Place(NamedTuple):
    """Where in a file a statement stands."""

    function: int = 0  # the first line of the outermost function around it; 0: outside of functions
    for_type_checkers: bool = False


@dataclass(frozen=True)
class Source:
    """A file of the author's."""

    imports: tuple[str, ...]  # every module that it names in an import, wherever in the file
    immediate: frozenset[str]  # those of them that it imports when it is imported itself
    deferred: tuple[tuple[str, int], ...]  # those that a function imports, with the function's first line
    imports_by_name: bool  # it computes the names of modules, so that it may import anything
    patches: bool  # it assigns to what it imported, so that it may change the code of others
    reads_environment: bool
    reads_all_variables: bool  # not by name, but the environment as a whole
    strings: frozenset[str]  # those that could be the name of a variable
    prefixes: frozenset[str]  # the same, but only how a name begins: f"TILE_{dtype}"


_FUNCTIONS = frozenset({ast.FunctionDef, ast.AsyncFunctionDef})
_LEAVES = frozenset({ast.Load, ast.Store, ast.Del})  # a third of a file's nodes, and nobody asks for them


@cache
def read_source(module: str, path: Path) -> Source:
    """Read a file that is imported under a name, which relative imports are relative to."""
    nodes, imports = _walk(_parse(path))
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    called = {_last_name(node.func) for node in nodes[ast.Call]}
    asked = sum(_is_environment(node) for node in _of(nodes, ast.Name, ast.Attribute))
    asked_by_name = sum(_asks_by_name(node) for node in _of(nodes, ast.Attribute, ast.Subscript, ast.Compare))
    strings, prefixes = _strings(nodes)
    immediate, deferred = _when_imported(imports, package)
    return Source(
        imports=tuple(_imports((node for node, _ in imports), package)),
        immediate=immediate,
        deferred=deferred,
        imports_by_name=not called.isdisjoint(_IMPORTS_BY_NAME),
        patches=_patches(nodes),
        reads_environment=asked > 0 or "getenv" in called,
        reads_all_variables=asked > asked_by_name,
        strings=strings,
        prefixes=prefixes,
    )


def parents(name: str) -> Iterator[str]:
    """The packages that a module lies in."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _parse(path: Path) -> ast.AST:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file that cannot run imports nothing
        return ast.Module([], [])


def _walk(tree: ast.AST) -> tuple[Nodes, list[tuple[ast.AST, Place]]]:
    """The nodes of a file by their kinds, and each import with its place. A library may have hundreds of files."""
    nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
    imports: list[tuple[ast.AST, Place]] = []
    waiting = [(tree, Place())]
    while waiting:
        node, place = waiting.pop()
        kind = type(node)
        nodes[kind].append(node)
        if kind is ast.Import or kind is ast.ImportFrom:
            imports.append((node, place))
        elif kind in _FUNCTIONS and not place.function:
            place = place._replace(function=_first_line(node))
        elif kind is ast.If:
            waiting += [(child, place._replace(for_type_checkers=True)) for child in _for_type_checkers(node)]
            waiting += [(child, place) for child in _children(node) if child not in _for_type_checkers(node)]
            continue
        waiting += [(child, place) for child in _children(node)]
    return nodes, imports


def _children(node: ast.AST) -> Iterator[ast.AST]:
    for value in vars(node).values():
        if isinstance(value, list):
            yield from (item for item in value if isinstance(item, ast.AST))
        elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
            yield value


def _first_line(function: Any) -> int:
    """Where the code of a function begins, as Python counts: with its decorators."""
    return int(min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]))


def _for_type_checkers(node: Any) -> list[ast.AST]:
    return list(node.body) if _last_name(node.test) == "TYPE_CHECKING" else []


def _of(nodes: Nodes, *kinds: type[ast.AST]) -> Iterator[Any]:
    return chain.from_iterable(nodes[kind] for kind in kinds)


def _last_name(node: ast.AST | None) -> str:
    """``environ`` for ``environ`` and for ``os.environ``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_environment(node: ast.AST) -> bool:
    return _last_name(node) in ("environ", "environb")


def _imports(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (alias.name, *parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield from (name for name in (base, *(f"{base}.{alias.name}" for alias in node.names)) if name)


def _when_imported(
    imports: list[tuple[ast.AST, Place]], package: str
) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    """What a file imports when it is imported, and what its functions import later. Imports for type checkers are neither."""
    run = [(node, place.function) for node, place in imports if not place.for_type_checkers]
    immediate = frozenset(_imports([node for node, function in run if not function], package))
    return immediate, tuple((name, line) for node, line in run if line for name in _imports([node], package))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
    return f"{base}.{node.module}" if node.module else base


def _asks_by_name(node: ast.AST) -> bool:
    """Whether a node asks the environment for one variable: ``environ["X"]``, ``environ.get(...)``, ``in environ``."""
    if isinstance(node, ast.Attribute):
        return node.attr in _ASKS_BY_NAME and _is_environment(node.value)
    if isinstance(node, ast.Subscript):
        return _is_environment(node.value)
    return isinstance(node, ast.Compare) and any(_is_environment(item) for item in node.comparators)


def _strings(nodes: Nodes) -> tuple[frozenset[str], frozenset[str]]:
    """Strings that could name a variable, and those that a name could begin with."""
    appended_to = {id(part) for node in _of(nodes, ast.JoinedStr, ast.BinOp) for part in _beginnings(node)}
    names: set[str] = set()
    prefixes: set[str] = set()
    for node in nodes[ast.Constant]:
        if not isinstance(node.value, str):
            continue
        template = _TEMPLATE.match(node.value)
        if template is not None:
            prefixes.add(template[1])
        elif _IDENTIFIER.fullmatch(node.value):
            (prefixes if id(node) in appended_to else names).add(node.value)
    return frozenset(names), frozenset(prefixes)


def _beginnings(node: ast.AST) -> list[ast.expr]:
    """Texts that something is appended to: the start of an f-string, the left side of a sum."""
    if isinstance(node, ast.JoinedStr):
        return node.values[:1]
    return [node.left] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else []


def _patches(nodes: Nodes) -> bool:
    """Whether a file assigns to an attribute or item of something that it imported."""
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in _of(nodes, ast.Import, ast.ImportFrom)
        for alias in node.names
    }
    changing = _of(nodes, ast.Call, ast.Assign, ast.Delete, ast.AugAssign, ast.AnnAssign)
    return any(_root(target) in imported for node in changing for target in _changed(node))


def _changed(node: ast.AST) -> list[ast.expr]:
    """The attributes and items that a statement or call changes."""
    if isinstance(node, ast.Call) and _last_name(node.func) in _PATCHERS:
        return node.args[:1]
    targets: list[ast.expr] = []
    if isinstance(node, (ast.Assign, ast.Delete)):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        targets = [node.target]
    flat = [item for target in targets for item in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [target for target in flat if isinstance(target, (ast.Attribute, ast.Subscript))]


def _root(node: ast.AST) -> str:
    """The name that an expression begins with: ``cutlass`` for ``vars(cutlass.cute)["x"]``."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call) and node.args:
            node = node.args[0]
        else:
            return str(getattr(node, "id", ""))
