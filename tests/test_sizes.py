"""Functions and classes stay short enough to be read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from places import PROJECT

# The most lines of a function and of a class, by folder: see CONTRIBUTING.md. Code for the GPU is longer.
LIMITS = {"aot": (60, 200), "runtime/aot_runtime": (60, 200), "kernels": (80, 300)}


def definitions(file: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    return (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef | ast.ClassDef))


def lines(node: ast.FunctionDef | ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("folder", LIMITS)
def test_no_function_and_no_class_is_longer_than_its_folder_allows(folder: str) -> None:
    function, klass = LIMITS[folder]
    longer = [
        f"{file.relative_to(PROJECT)}: {node.name} has {lines(node)} lines"
        for file in sorted((PROJECT / folder).rglob("*.py"))
        for node in definitions(file)
        if lines(node) > (klass if isinstance(node, ast.ClassDef) else function)
    ]
    assert longer == []
