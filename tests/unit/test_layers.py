"""Packages import downwards only, private names of libraries stay in adapters, files stay short."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tzero

SOURCE = Path(tzero.__file__).parent

# Bottom to top: a package or root module may import those in the lines above its own.
LAYERS = """
errors  locks  setting_kinds  shown
settings  events  measure  config  moved  versions  ownership  _native
counts  cures  fallbacks  logs  sealed
processes  scratch
cpu  cache
compile
adapters
arguments  symbolic
backends
launches
reading
tune
plans
calls
integrations
api
commands
cli
__main__
tzero
""".strip().splitlines()
HEIGHT = {name: height for height, line in enumerate(LAYERS) for name in line.split()}

# What is narrower than the layers: these import nothing else of tzero.
NARROW = {
    "cpu": {"errors", "locks", "ownership", "processes", "scratch", "settings", "versions"},
    "cache": {
        *("errors", "events", "locks", "ownership", "processes", "scratch", "settings", "versions")
    },
    "compile": {
        *("cache", "errors", "events", "locks", "measure", "processes", "scratch"),
        *("sealed", "settings"),
    },
}

MODULES = sorted(SOURCE.rglob("*.py"))
by_path = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))

MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = 60
MOST_METHODS = 25


def package_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "tzero" if first == "__init__" else first


@functools.cache
def tree_of(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


def imported(tree: ast.AST, inside: list[str]) -> Iterator[list[str]]:
    """Each imported name as dotted parts, relative imports resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield [*base, *module, alias.name]


def packages_imported(tree: ast.AST, inside: list[str]) -> set[str]:
    names = [parts for parts in imported(tree, inside) if parts[0] == "tzero"]
    return {parts[1] if len(parts) > 1 and parts[1] in HEIGHT else "tzero" for parts in names}


def reads_environment(tree: ast.AST) -> bool:
    names = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    from_os = {parts[1] for parts in imported(tree, []) if parts[0] == "os" and len(parts) > 1}
    return bool(names & (attributes | from_os))


def private_names(tree: ast.AST) -> set[str]:
    """Private names of torch, Triton and Helion that some code imports or looks up."""
    found = {".".join(parts) for parts in imported(tree, [])}
    found |= {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return {name for name in found if re.match(r"(torch|triton|helion)\b.*\._[a-zA-Z]", name)}


# -- the layers ------------------------------------------------------------------------------------


@by_path
def test_a_package_imports_only_packages_below_it(path: Path) -> None:
    package = package_of(path)
    assert package in HEIGHT, f"{package!r} has no place in LAYERS"
    inside = ["tzero", *path.relative_to(SOURCE).parts[:-1]]
    found = packages_imported(tree_of(path), inside) - {package}
    below = {name for name, height in HEIGHT.items() if height < HEIGHT[package]}
    above = found - NARROW.get(package, below)
    assert not above, f"{path.name} ({package}) imports {sorted(above)}, which it must not know"


@by_path
def test_only_settings_reads_the_environment(path: Path) -> None:
    assert reads_environment(tree_of(path)) == (path.name == "settings.py")


# The CPU backend is a plugin of Triton's, and reads its IR.
MAY_NAME_PRIVATE = ("adapters", "integrations", "cpu")


@by_path
def test_private_names_of_libraries_are_in_adapters_only(path: Path) -> None:
    if package_of(path) in MAY_NAME_PRIVATE:
        return
    found = private_names(tree_of(path))
    assert not found, f"{path.name} uses {sorted(found)}: give it a name in tzero.adapters"


# Private attributes of the standard library and of loky.
MAY_READ = {
    *("_name_", "_value_", "_field_defaults", "_getframe", "_handle", "_at_fork_reinit", "_cache"),
    *("_register_atexit", "_lru_cache_wrapper", "_children", "_args_from_interpreter_flags"),
    *("_executor_manager_thread", "_executor_manager_thread_wakeup", "_threads_wakeups"),
    *("_shutdown_lock", "_processes", "_is_owned", "_condition", "_shutdown"),
    *("_run_module_as_main", "_exit"),
}


def names_defined(tree: ast.AST) -> Iterator[str]:
    """Every name that some code gives to something of its own."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@functools.cache
def own_names() -> set[str]:
    """Every name that tzero gives to something of its own."""
    return {name for path in MODULES for name in names_defined(tree_of(path))}


@by_path
def test_private_attributes_of_libraries_are_in_adapters_only(path: Path) -> None:
    if package_of(path) in ("adapters", "cpu") or path.name == "compat.py":
        return
    private = re.compile(r"_[a-zA-Z]\w*")
    read = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
    foreign = {name for name in read if private.fullmatch(name)} - own_names() - MAY_READ
    assert not foreign, f"{path.name} reads {sorted(foreign)}: give it a name in tzero.adapters"


@by_path
def test_modules_named_in_strings_exist(path: Path) -> None:
    """A module that is renamed must not silently drop out of a table of names."""
    strings = (node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant))
    dotted = re.compile(r"tzero(\.[a-z][a-z0-9_]*)+")
    for text in strings:
        if not isinstance(text, str) or not dotted.fullmatch(text):
            continue
        if text.endswith((".so", ".cubin", ".hsaco")):  # files that a compiler writes
            continue
        if not hasattr(tzero, text.removeprefix("tzero.")):
            assert importlib.util.find_spec(text), f"{path.name} names {text}, which does not exist"


@pytest.mark.parametrize(
    ("source", "packages"),
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
def test_every_form_of_import_is_seen(source: str, packages: set[str]) -> None:
    assert packages_imported(ast.parse(source), ["tzero", "cpu"]) == packages


@pytest.mark.parametrize(
    "source",
    ["os.environ['A']", "os.getenv('A')", "from os import environ", "import os; os.putenv"],
)
def test_every_form_of_reading_the_environment_is_seen(source: str) -> None:
    assert reads_environment(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("torch._C._len()", {"torch._C", "torch._C._len"}),
        ("from torch._ops import OpOverload", {"torch._ops.OpOverload"}),
        ("from torch.utils._pytree import tree_map", {"torch.utils._pytree.tree_map"}),
        ("import triton._C.libtriton", {"triton._C.libtriton"}),
        ("torch.empty(2).__class__, self._torch, torch.__version__", set()),
    ],
)
def test_every_form_of_a_private_name_is_seen(source: str, found: set[str]) -> None:
    assert private_names(ast.parse(source)) == found


# -- sizes -----------------------------------------------------------------------------------------


@by_path
def test_files_functions_and_classes_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MOST_LINES, f"{path.name} has {lines} lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MOST_LINES_OF_A_FUNCTION, f"{node.name} has {length} lines"
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, ast.FunctionDef) for each in node.body)
            assert methods <= MOST_METHODS, f"{node.name} has {methods} methods"


# -- importing -------------------------------------------------------------------------------------


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_importing_tzero_imports_neither_torch_nor_triton() -> None:
    code = "import sys, tzero; print(*sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    assert run(code) == ""


def test_importing_tzero_starts_no_thread_and_opens_no_file() -> None:
    code = (
        "import os, sys, threading\n"
        "before = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "import tzero\n"
        "after = len(os.listdir('/proc/self/fd')) if os.path.isdir('/proc/self/fd') else 0\n"
        "print(threading.active_count(), after - before)\n"
    )
    assert run(code).split() == ["1", "0"]
