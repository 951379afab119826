"""The page ``docs/reference/api.md``, from the sources: signatures and docstrings of what is public.

The sources are read and not imported, so that what needs torch or JAX is described on machines without them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
PAGE = PROJECT / "docs" / "reference" / "api.md"

# What is public, with the page that explains its use.
MODULES = {
    "aot_runtime": ("runtime/aot_runtime/__init__.py", "[Selection](../concepts/selection.md)"),
    "aot_runtime.torch": ("runtime/aot_runtime/torch.py", "[torch](../guides/torch.md)"),
    "aot_runtime.jax": ("runtime/aot_runtime/jax.py", "[JAX](../guides/jax.md)"),
    "aot": ("aot/__init__.py", "[Declaring a kernel](declaring.md)"),
}
# Classes whose objects are returned by functions of ours, and not made by callers.
RETURNED = ("Bundle", "Candidate", "Explanation", "Functions", "Operators", "Serving", "Target")
HEAD = """# Python

`python tools/reference.py` writes this page from the sources; a test compares the two. `aot_runtime` is the loader, and all
that users of kernels need. `aot` is for authors of kernels. [Errors](errors.md) are on a page of their own.
"""


@dataclass(frozen=True)
class Definition:
    """A function or class, and the classes that it derives from as the sources have them."""

    node: ast.FunctionDef | ast.ClassDef
    file: Path

    def is_error(self) -> bool:
        """Whether this is an exception or a warning, which are listed on the page of errors."""
        if not isinstance(self.node, ast.ClassDef):
            return False
        bases = [ast.unparse(base) for base in self.node.bases]
        return any(base.endswith(("Error", "Exception", "Warning")) for base in bases)


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def public(file: Path) -> list[str]:
    """``__all__`` of a module."""
    for node in tree(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise LookupError(f"{file} has no __all__")


def find(file: Path, name: str) -> Definition:
    """Where a name of a module is defined: there, or in what it imports the name from."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return Definition(node, file)
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return find(_module_file(file, node), name)
    raise LookupError(f"{file} does not define {name}")


def _module_file(file: Path, node: ast.ImportFrom) -> Path:
    if node.level == 0:  # of the other package
        folder = PROJECT / "runtime" if (node.module or "").startswith("aot_runtime") else PROJECT
    else:
        folder = file.parents[node.level - 1]
    path = folder.joinpath(*(node.module or "").split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# Signatures.


def signature(definition: Definition, name: str) -> str:
    node = definition.node
    if isinstance(node, ast.FunctionDef):
        return _wrapped(name, _parameters(node.args), node.returns)
    made = [part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    if made:
        return _wrapped(name, _parameters(made[0].args)[1:], None)
    return _wrapped(name, list(_fields(node)), None) if _is_dataclass(node) else name


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for part in node.body:
        if not isinstance(part, ast.AnnAssign) or "init=False" in ast.unparse(part):
            continue
        name, default = ast.unparse(part.target), "" if part.value is None else f" = {_default(part.value)}"
        if not name.startswith("_"):
            yield f"{name}: {ast.unparse(part.annotation)}{default}"


def _default(value: ast.expr) -> str:
    text = ast.unparse(value)
    factory = re.search(r"default_factory=(\w+)", text)
    plain = re.search(r"field\(default=(.*?)\)", text)
    return f"{factory[1]}()" if factory else plain[1] if plain else text


def _parameters(arguments: ast.arguments) -> list[str]:
    """Each parameter as it is written, with the marks ``/`` and ``*`` among them."""
    found = []
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    for index, (argument, default) in enumerate(zip(plain, [*defaults, *arguments.defaults], strict=True), 1):
        found.append(_parameter(argument, default))
        if index == len(arguments.posonlyargs):
            found.append("/")
    if arguments.vararg is not None:
        found.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        found.append("*")
    found += map(_parameter, arguments.kwonlyargs, arguments.kw_defaults)
    return found + ([f"**{ast.unparse(arguments.kwarg)}"] if arguments.kwarg else [])


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    shown = "" if default is None else f" = {ast.unparse(default)}".replace("_MISSING", "...")
    return ast.unparse(argument) + shown


def _wrapped(name: str, parameters: Sequence[str], returns: ast.expr | None) -> str:
    arrow = f" -> {ast.unparse(returns)}" if returns is not None else ""
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) <= 100:
        return line
    return f"{name}(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f"){arrow}"


# The page.


def documentation(node: ast.FunctionDef | ast.ClassDef | ast.Module) -> str:
    """A docstring as Markdown. What a docstring quotes stands in single backticks there."""
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return re.sub(r"(`[^`]*`)|<", lambda match: match[1] or "&lt;", text)


def entry(name: str, definition: Definition) -> str:
    short = name.rpartition(".")[2]
    parts = [f"### `{name}`\n"]
    parts += [f"```python\n{signature(definition, short)}\n```\n"] if short not in RETURNED else []
    parts += [f"{text}\n" for text in [documentation(definition.node)] if text]
    if isinstance(definition.node, ast.ClassDef):
        methods = [part for part in definition.node.body if isinstance(part, ast.FunctionDef)]
        members = map(_member, methods)
        listed = "".join(f"* {member}\n" for member in members if member)
        parts += [listed] if listed else []
    return "\n".join(parts)


def _member(node: ast.FunctionDef) -> str:
    """A method or property with a docstring; what has none is described with the class."""
    text = " ".join(documentation(node).split())
    if node.name.startswith("_") or not text:
        return ""
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return f"`{node.name}`: {text}"
    line = f"{node.name}({', '.join(_parameters(node.args)[1:])})"
    return f"`{line}`: {text}"


def module(name: str) -> str:
    file, guide = PROJECT / MODULES[name][0], MODULES[name][1]
    summary = documentation(tree(file)).partition("\n\n")[0]
    found = [(f"{name}.{public_name}", find(file, public_name)) for public_name in public(file)]
    entries = [entry(full, definition) for full, definition in found if not definition.is_error()]
    return f"## `{name}`\n\n{summary} See {guide}.\n\n" + "\n".join(entries)


def page() -> str:
    return HEAD + "\n" + "\n".join(module(name) for name in MODULES)
