"""The public names, pinned: adding or removing one is a decision, and shows up here."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.metadata
import pkgutil
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import triton

import tzero
import tzero.plans.outputs
from tests.unit.public import PUBLIC

NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]
SOURCE = Path(tzero.__file__).parent
ROOT = SOURCE.parent.parent
MODULES = sorted(each.name for each in pkgutil.walk_packages(tzero.__path__, "tzero."))


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_the_public_names_are_these(module: ModuleType) -> None:
    assert sorted(module.__all__) == sorted(PUBLIC[module])


@pytest.mark.parametrize(
    ("module", "name"), NAMES, ids=[f"{module.__name__}.{name}" for module, name in NAMES]
)
def test_every_public_name_has_a_docstring_with_an_example(module: ModuleType, name: str) -> None:
    value = getattr(module, name)
    if name == "__version__":
        assert isinstance(value, str)
        return
    if not isinstance(value, (type, FunctionType)):
        return  # an alias of a type, which cannot have one
    assert value.__doc__ and (">>>" in value.__doc__ or "::" in value.__doc__)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def module_named(name: str) -> ModuleType:
    importlib.import_module(name)
    return sys.modules[name]  # a package may have a function of the same name


@pytest.mark.parametrize("name", ["tzero", *MODULES])
def test_the_examples_of_every_module_do_what_they_say(name: str) -> None:
    assert doctest.testmod(module_named(name)).failed == 0


@pytest.mark.parametrize("name", ["tzero", *MODULES])
def test_every_name_that_a_module_offers_is_there(name: str) -> None:
    module = module_named(name)
    offered = getattr(module, "__all__", [])
    assert [each for each in offered if not hasattr(module, each)] == []
    assert len(set(offered)) == len(offered)


def test_the_version_has_one_source() -> None:
    assert importlib.metadata.version("tzero-runtime") == tzero.__version__


def test_triton_finds_the_backend_by_its_entry_point() -> None:
    declared = importlib.metadata.distribution("tzero-runtime").entry_points
    (entry,) = declared.select(group="triton.backends", name="cpu")
    assert entry.value == "tzero.cpu"
    assert triton.backends.backends["cpu"].driver.__module__ == "tzero.cpu.driver"


def test_the_two_sets_of_pins_differ_in_triton_only() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / name).read_text().splitlines()
        return {line for line in lines if line and not line.startswith("#")}

    usual, newest = pins("constraints.txt"), pins("constraints-newest.txt")
    assert usual - newest == {"triton==3.6.0"}
    assert newest - usual == {"triton==3.9.0"}
    assert "torch==2.13.0" in usual
