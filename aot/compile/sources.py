"""What one of the author's files says about itself, read off its syntax tree: imports, variables, patches.

Nothing is executed for this. Imports inside functions count before they run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..files import sha256_of

__all__ = ["Source", "parents", "read_source"]

_IMPORTS_BY_NAME = frozenset({"import_module", "__import__", "spec_from_file_location", "run_path", "exec"})
_ASKS_BY_NAME = frozenset({"get", "setdefault", "pop", "__getitem__", "__contains__", "__setitem__"})
_PATCHERS = frozenset({"setattr", "delattr"})
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TEMPLATE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)[%{]")  # "TILE_%s" and "TILE_{}" begin with TILE_

Nodes = list[ast.AST]  # of the whole file


@dataclass(frozen=True)
class Source:
    """A file of the author's."""

    digest: str
    imports: tuple[str, ...]  # every module that it names in an import, wherever in the file
    immediate: frozenset[str]  # those of them that it imports when it is imported itself
    deferred: tuple[tuple[str, int], ...]  # those that a function imports, with the function's first line
    imports_by_name: bool  # it computes the names of modules, so that it may import anything
    patches: bool  # it assigns to what it imported, so that it may change the code of others
    reads_environment: bool
    reads_all_variables: bool  # not by name, but the environment as a whole
    strings: frozenset[str]  # those that could be the name of a variable
    prefixes: frozenset[str]  # the same, but only how a name begins: f"TILE_{dtype}"


# The kinds of nodes that the functions below look for. They are half of what a file has.
_LOOKED_AT = (
    ast.AnnAssign, ast.Assign, ast.AsyncFunctionDef, ast.Attribute, ast.AugAssign, ast.BinOp, ast.Call, ast.Compare,
    ast.Constant, ast.Delete, ast.FunctionDef, ast.If, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Name, ast.Subscript,
)  # fmt: skip


@cache
def read_source(module: str, path: Path) -> Source:
    """Read a file that is imported under a name, which relative imports are relative to."""
    nodes: list[ast.AST] = [node for node in ast.walk(_parse(path)) if isinstance(node, _LOOKED_AT)]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    called = {_last_name(node.func) for node in nodes if isinstance(node, ast.Call)}
    asked = sum(1 for node in nodes if _is_environment(node))
    strings, prefixes = _strings(nodes)
    immediate, deferred = _when_imported(nodes, package)
    return Source(
        digest=sha256_of(path),
        imports=tuple(_imports(nodes, package)),
        immediate=immediate,
        deferred=deferred,
        imports_by_name=not called.isdisjoint(_IMPORTS_BY_NAME),
        patches=_patches(nodes),
        reads_environment=asked > 0 or "getenv" in called,
        reads_all_variables=asked > sum(1 for node in nodes if _asks_by_name(node)),
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


def _last_name(node: ast.AST | None) -> str:
    """``environ`` for ``environ`` and for ``os.environ``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _is_environment(node: ast.AST) -> bool:
    return _last_name(node) in ("environ", "environb")


def _imports(nodes: Nodes, package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from (alias.name, *parents(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            yield from (name for name in (base, *(f"{base}.{alias.name}" for alias in node.names)) if name)


def _when_imported(nodes: Nodes, package: str) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    """What a file imports when it is imported, and what its functions import later. Imports for type checkers are neither."""
    lines: dict[int, int] = {}  # a node inside a function -> the function's first line
    for node in nodes:  # outer functions come before those inside them
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines.update({id(inner): lines.get(id(inner), first) for inner in ast.walk(node)})
    unused = {id(inner) for node in nodes for part in _for_type_checkers(node) for inner in ast.walk(part)}
    run = [node for node in nodes if id(node) not in unused]
    immediate = frozenset(_imports([node for node in run if id(node) not in lines], package))
    later = [node for node in run if id(node) in lines]
    return immediate, tuple((name, lines[id(node)]) for node in later for name in _imports([node], package))


def _for_type_checkers(node: ast.AST) -> list[ast.stmt]:
    return node.body if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING" else []


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
    appended_to = {id(part) for node in nodes for part in _beginnings(node)}
    names: set[str] = set()
    prefixes: set[str] = set()
    for node in nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
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
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    return any(_root(target) in imported for node in nodes for target in _changed(node))


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
