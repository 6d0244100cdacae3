"""The public names, pinned: adding or removing one is a decision, and shows up here."""

from __future__ import annotations

import ast
import doctest
import importlib.metadata
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import tzero
import tzero.bind
import tzero.compile.backend
import tzero.compile.request
import tzero.config
import tzero.constants
import tzero.decorating
import tzero.device
import tzero.dispatch
import tzero.entries
import tzero.errors
import tzero.events
import tzero.host
import tzero.key
import tzero.measure
import tzero.pool
import tzero.reports
import tzero.settings
import tzero.specializing
import tzero.words

ERRORS = [
    "BackendMissing",
    "CacheRefused",
    "CompileFailed",
    "CompileTimeout",
    "CompilerFailed",
    "CompilerMissing",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidKernel",
    "InvalidSetting",
    "KernelAssertion",
    "LaunchFailed",
    "NativeMissing",
    "NotInKernel",
    "OutOfBounds",
    "PlanDrift",
    "ToolchainMissing",
    "TzeroError",
    "UnsupportedOperation",
    "UnsupportedType",
    "WorkerDied",
]
PUBLIC = {
    tzero: [
        *ERRORS,
        "BoundKernel",
        "Config",
        "ConstExpr",
        "Kernel",
        "__version__",
        "jit",
        "kernel",
        "specialize",
    ],
    tzero.bind: ["BoundKernel"],
    tzero.compile.backend: ["GROUP", "Backend", "find"],
    tzero.compile.request: ["SCHEMA", "Artifact", "Malformed", "Request"],
    tzero.constants: ["Same", "constant", "fields_of", "holds_itself", "kind_of", "symbol"],
    tzero.device: ["capability"],
    tzero.decorating: ["kernel"],
    tzero.dispatch: ["Explanation", "Kernel", "Stats"],
    tzero.entries: ["Entries", "Family"],
    tzero.extract: ["ConstExpr", "Extractor", "unwrapped"],
    tzero.host: ["Host", "read_host"],
    tzero.reports: ["Explanation", "Stats"],
    tzero.specializing: ["Extra", "NotInKernel", "specialize"],
    tzero.words: ["difference", "first_difference", "holds_tensor", "shown", "text"],
    tzero.config: ["Config"],
    tzero.errors: ERRORS,
    tzero.events: ["Event", "Kind", "Observer", "emit", "observe", "watched"],
    tzero.key: ["Key", "Options", "UnsupportedType", "constant", "difference", "part", "text"],
    tzero.measure: ["Record", "Span", "active", "nanoseconds", "recording"],
    tzero.pool: ["Ring", "Stats", "clear", "stats"],
    tzero.settings: ["Changes", "Settings", "current", "now", "override", "read"],
}
NAMES = [(module, name) for module, names in PUBLIC.items() for name in names]
SOURCE = Path(tzero.__file__).parent
ROOT = SOURCE.parent.parent


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


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_the_examples_do_what_they_say(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0


def test_the_version_has_one_source() -> None:
    assert importlib.metadata.version("tzero") == tzero.__version__


def test_triton_finds_the_backend_by_its_entry_point() -> None:
    (entry,) = importlib.metadata.entry_points(group="triton.backends", name="cpu")
    assert entry.value == "tzero.cpu"


def test_the_two_sets_of_pins_differ_in_triton_only() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / name).read_text().splitlines()
        return {line for line in lines if line and not line.startswith("#")}

    usual, newest = pins("constraints.txt"), pins("constraints-newest.txt")
    assert usual - newest == {"triton==3.6.0"}
    assert newest - usual == {"triton==3.9.0"}
    assert "torch==2.13.0" in usual
