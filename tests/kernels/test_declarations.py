"""What the declarations of all shipped kernels have in common."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from places import PROJECT

KERNELS = PROJECT / "kernels"
FILES = sorted(KERNELS.rglob("*.py"))


def names_architectures(node: ast.AST) -> bool:
    """Whether a part of an expression is a text such as ``sm_90a``, or the letter of an architecture."""
    return any(
        (isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.startswith("sm_"))
        or (isinstance(part, ast.Attribute) and part.attr == "suffix")
        for part in ast.walk(node)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(KERNELS).as_posix())
def test_no_code_is_chosen_by_comparing_architectures(path: Path) -> None:
    """Data says which code serves which architecture: ``archs`` of a declaration, and tables by ``written_for``."""
    tests = [
        node.test if isinstance(node, (ast.If, ast.IfExp, ast.While)) else node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.If, ast.IfExp, ast.While, ast.Compare, ast.BoolOp))
    ]
    assert not [f"{path}:{test.lineno}" for test in tests if names_architectures(test)]
