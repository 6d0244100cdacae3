"""Backends beside the main road are imported by nobody else in tzero."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tzero

SOURCE = Path(tzero.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    """The dotted names that some code imports; tzero has no relative imports of these."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


@pytest.mark.parametrize("name", ["hip", "cutedsl", "halide", "cpp_pybinding"])
def test_a_backend_beside_the_main_road_is_imported_by_no_module(name: str) -> None:
    own = SOURCE / "backends" / f"{name}.py"
    assert own in MODULES
    importing = [
        str(path.relative_to(SOURCE))
        for path in MODULES
        if path != own and f"tzero.backends.{name}" in imported(ast.parse(path.read_text()))
    ]
    assert importing == []
