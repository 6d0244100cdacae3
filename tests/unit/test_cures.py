"""Each reason for a fallback that is in the source has a row that says what to change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import tzero
from tzero.cures import CURES, cure
from tzero.reading.path import interrupted_by

SOURCE = Path(tzero.__file__).parent

TOLD_BY = {
    *("Unreplayable", "refuse", "Refusal", "NotNative", "lasting", "passing", "hand_to_triton"),
    "_left",
}
"""What takes a reason."""


def text_of(node: ast.AST | None) -> str:
    """The text of an expression, with an X for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
        return "".join(map(str, parts))
    return ""


def given(tree: ast.AST) -> Iterator[str]:
    """The texts that are given as reasons, and those that functions named `obstacle` return."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            if name in TOLD_BY:
                yield from map(text_of, node.args)
        elif isinstance(node, ast.FunctionDef) and node.name == "obstacle":
            returns = (each for each in ast.walk(node) if isinstance(each, ast.Return))
            yield from (text_of(each.value) for each in returns)


def reasons() -> list[str]:
    """Those that say more than a value and what happens because of it."""
    trees = (ast.parse(path.read_text()) for path in SOURCE.rglob("*.py"))
    found = {text for tree in trees for text in given(tree)}
    prefixes = {f"{each}: X" for each in ("not replayed", "replayed in Python")}
    prefixes |= {f"{who} launches: X" for who in ("Triton", "Python")}
    return sorted(found - prefixes - {"", "X", "it uses X, X", "left to Helion: X"})


def test_the_source_is_searched() -> None:
    assert len(reasons()) > 100


@pytest.mark.parametrize("reason", reasons())
def test_every_reason_has_a_row(reason: str) -> None:
    assert cure(reason) is not None, f"give {reason!r} a row in tzero/cures.py"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("not replayed: argument 'w' is a tensor subclass", "an argument without a key"),
        ("Triton launches: argument 'w' has the type nvTmaDesc", "what native code does not read"),
        ("Triton launches: a launch hook is attached", "hooks and observers"),
        (f"not replayed: {interrupted_by('on_exit')}", "other code in the middle of a call"),
        ("it reads the value of a tensor (Tensor.item), at a.py:3", "a value of a tensor"),
        ("it prints", None),
    ],
)
def test_a_reason_finds_its_row(reason: str, kind: str | None) -> None:
    found = cure(reason)
    assert (None if found is None else found.kind) == kind


def test_rows_differ() -> None:
    assert len({each.kind for each in CURES}) == len(CURES)
