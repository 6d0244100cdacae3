"""Rooms import downwards only, and importing tzero does no work."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tzero

SOURCE = Path(tzero.__file__).parent

# Bottom to top: a room may import the rooms listed for it, and itself. `tzero` is __init__.py.
# A new room gets a row here, and a line in the map in CONTRIBUTING.md.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "versions": frozenset({"errors"}),
    "settings": frozenset({"errors"}),
    "events": frozenset(),
    "measure": frozenset(),
    "modes": frozenset(),
    "config": frozenset({"errors"}),
    "_native": frozenset(),
    "cpu": frozenset({"errors", "settings", "versions"}),
    "cache": frozenset({"errors", "events", "settings"}),
    "compile": frozenset({"cache", "errors", "events", "measure", "settings"}),
    "triton_side": frozenset(),
    "intercept": frozenset({"triton_side"}),
    "backends": frozenset(
        {"cache", "compile", "cpu", "errors", "events", "intercept", "settings", "triton_side"}
    ),
    "precompiling": frozenset(
        {"backends", "compile", "errors", "intercept", "modes", "triton_side"}
    ),
    "facts": frozenset({"triton_side"}),
    "launch": frozenset(
        {
            "backends",
            "cpu",
            "events",
            "facts",
            "intercept",
            "modes",
            "precompiling",
            "settings",
            "triton_side",
        }
    ),
    "native_launch": frozenset(
        {
            "_native",
            "backends",
            "cpu",
            "errors",
            "events",
            "launch",
            "modes",
            "settings",
            "triton_side",
        }
    ),
    "jitting": frozenset(
        {"errors", "events", "launch", "native_launch", "settings", "triton_side"}
    ),
    "inside": frozenset(),
    "libraries": frozenset(),
    "constants": frozenset({"errors"}),
    "words": frozenset({"constants"}),
    "key": frozenset({"constants", "errors", "words"}),
    "device": frozenset(),
    "extract": frozenset({"device", "errors", "key"}),
    "host": frozenset({"config", "errors", "extract"}),
    "tune": frozenset(
        {
            *("_native", "backends", "cache", "compile", "config", "errors", "events", "host"),
            *("inside", "intercept", "jitting", "launch", "libraries", "settings", "triton_side"),
        }
    ),
    "plan": frozenset(),
    "pool": frozenset(),
    "operators": frozenset(),
    "replay": frozenset({"launch", "operators", "plan", "pool"}),
    "leaves": frozenset({"constants", "errors"}),
    "sites": frozenset(),
    "passing": frozenset({"sites"}),
    "classes": frozenset(),
    "world": frozenset(
        {
            "backends",
            "classes",
            "config",
            "constants",
            "errors",
            "host",
            "libraries",
            "plan",
            "sites",
            "triton_side",
        }
    ),
    "capture": frozenset(
        {
            "intercept",
            "leaves",
            "libraries",
            "modes",
            "operators",
            "passing",
            "plan",
            "sites",
            "triton_side",
            "world",
        }
    ),
    "sizes": frozenset({"config", "leaves", "precompiling", "tune"}),
    "bind": frozenset(
        {"config", "errors", "host", "key", "modes", "plan", "settings", "sizes", "tune"}
    ),
    "tuning": frozenset(
        {
            *("bind", "config", "errors", "events", "host", "inside", "intercept", "key", "leaves"),
            *("modes", "precompiling", "settings", "sizes", "triton_side", "tune", "words"),
        }
    ),
    "planner": frozenset(
        {
            "bind",
            "capture",
            "errors",
            "events",
            "host",
            "intercept",
            "leaves",
            "modes",
            "passing",
            "plan",
            "replay",
            "settings",
            "triton_side",
            "world",
        }
    ),
    "specializing": frozenset({"bind", "constants", "errors", "inside", "key", "sites", "words"}),
    "entries": frozenset({"bind", "errors", "extract", "key", "specializing"}),
    "reports": frozenset({"config", "key", "plan"}),
    "dispatch": frozenset(
        {
            "bind",
            "config",
            "entries",
            "errors",
            "events",
            "extract",
            "host",
            "inside",
            "intercept",
            "key",
            "measure",
            "modes",
            "plan",
            "planner",
            "precompiling",
            "replay",
            "reports",
            "settings",
            "sizes",
            "specializing",
            "tune",
            "tuning",
            "words",
        }
    ),
    "native_plan": frozenset(
        {
            "_native",
            "dispatch",
            "events",
            "intercept",
            "measure",
            "modes",
            "native_launch",
            "plan",
            "pool",
            "replay",
            "settings",
            "triton_side",
        }
    ),
    "integrations": frozenset(
        {
            "_native",
            "bind",
            "capture",
            "dispatch",
            "errors",
            "events",
            "extract",
            "host",
            "intercept",
            "jitting",
            "key",
            "measure",
            "modes",
            "native_plan",
            "passing",
            "plan",
            "planner",
            "reports",
            "settings",
            "versions",
            "world",
        }
    ),
    "options": frozenset({"config", "errors", "tune"}),
    "decorating": frozenset(
        {
            *("config", "dispatch", "errors", "host", "integrations", "jitting", "key"),
            *("native_plan", "options", "settings", "triton_side", "tune"),
        }
    ),
    "comparing": frozenset({"dispatch", "errors", "events", "inside", "launch", "tune"}),
    "cli": frozenset({"cache", "comparing", "errors", "settings"}),
    "variants": frozenset({"config", "decorating", "dispatch", "errors", "host"}),
    "tzero": frozenset(
        {
            "errors",
            "config",
            "bind",
            "decorating",
            "dispatch",
            "extract",
            "jitting",
            "precompiling",
            "specializing",
            "tune",
            "tuning",
            "variants",
            "versions",
        }
    ),
}

MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "tzero" if first == "__init__" else first


def package_of(path: Path) -> list[str]:
    """The dotted name, as parts, that a relative import in this file starts from."""
    return ["tzero", *path.relative_to(SOURCE).parts[:-1]]


def imported(tree: ast.AST, package: list[str]) -> Iterator[list[str]]:
    """Each imported name as dotted parts, relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*base, *module, alias.name]


def rooms_imported(source: str, package: list[str]) -> set[str]:
    names = [parts for parts in imported(ast.parse(source), package) if parts[0] == "tzero"]
    return {parts[1] if len(parts) > 1 and is_room(parts[1]) else "tzero" for parts in names}


def is_room(name: str) -> bool:
    return (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists() or name == "_native"


def reads_environment(tree: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    from_os = {parts[1] for parts in imported(tree, []) if parts[0] == "os" and len(parts) > 1}
    return bool(names & (attributes | from_os))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_only_rooms_below_it(path: Path) -> None:
    room = room_of(path)
    assert room in MAY_IMPORT, f"the room {room!r} has no row in MAY_IMPORT"
    found = rooms_imported(path.read_text(), package_of(path)) - {room}
    above = found - MAY_IMPORT[room]
    assert not above, f"{path.name} ({room}) imports {sorted(above)}, which it must not know"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_settings_reads_the_environment(path: Path) -> None:
    assert reads_environment(ast.parse(path.read_text())) == (path.name == "settings.py")


def test_the_table_has_no_circle() -> None:
    order = list(MAY_IMPORT)
    for at, room in enumerate(order):
        assert MAY_IMPORT[room] <= set(order[:at]), f"{room} may import a room that is not below it"


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import tzero.cpu.driver", {"cpu"}),
        ("from tzero import settings, TzeroError", {"settings", "tzero"}),
        ("from tzero.errors import TzeroError", {"errors"}),
        ("from ..settings import current", {"settings"}),
        ("from .. import errors", {"errors"}),
        ("from . import driver", {"cpu"}),
        ("def f():\n    from tzero.cpu import ir", {"cpu"}),
        ("import torch, os.path", set()),
    ],
)
def test_the_reader_of_imports_sees_every_form(source: str, rooms: set[str]) -> None:
    assert rooms_imported(source, ["tzero", "cpu"]) == rooms


@pytest.mark.parametrize(
    "source",
    ["os.environ['A']", "os.getenv('A')", "from os import environ", "import os; os.putenv"],
)
def test_the_reader_of_environment_reads_sees_every_form(source: str) -> None:
    assert reads_environment(ast.parse(source))


def test_importing_tzero_imports_neither_torch_nor_triton() -> None:
    code = "import sys, tzero; print(*sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == ""


def test_importing_tzero_starts_no_thread_and_opens_no_file() -> None:
    code = (
        "import os, sys, threading\n"
        "before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "import tzero\n"
        "after = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "print(threading.active_count(), after - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["1", "0"]
