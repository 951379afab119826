"""What the family of attention imports."""

from __future__ import annotations

import ast
from pathlib import Path

FAMILY = Path(__file__).parents[3] / "kernels" / "attention"
SHARED = {"sm80", "sm90", "contracts"}


def imported(path: Path) -> list[str]:
    """Modules outside of the family, from the folder of kernels on."""
    tree = ast.parse(path.read_text())
    return [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 2]


def test_attention_imports_no_private_module_of_another_family() -> None:
    found = {path.name: imported(path) for path in sorted(FAMILY.glob("*.py"))}
    assert any(found.values())
    foreign = {
        (name, module)
        for name, modules in found.items()
        for module in modules
        if "." in module.lstrip("_") and module.split(".")[0] not in SHARED
    }
    assert not foreign
