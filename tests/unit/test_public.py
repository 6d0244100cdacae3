"""The public names, pinned: adding or removing one is a decision, and shows up here."""

from __future__ import annotations

import ast
import doctest
import importlib.metadata
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
import triton

import tzero
import tzero.backends.cpp
import tzero.backends.cpp_pybinding
import tzero.backends.cuda
import tzero.backends.cutedsl
import tzero.backends.halide
import tzero.backends.hip
import tzero.backends.running
import tzero.backends.sources
import tzero.bind
import tzero.cache
import tzero.cache.digest
import tzero.cache.disk
import tzero.cache.entry
import tzero.cache.remote
import tzero.cache.store
import tzero.cli
import tzero.compile
import tzero.compile.accounting
import tzero.compile.backend
import tzero.compile.command
import tzero.compile.crew
import tzero.compile.lifetime
import tzero.compile.pending
import tzero.compile.pool
import tzero.compile.progress
import tzero.compile.recent
import tzero.compile.request
import tzero.compile.worker
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
import tzero.precompiling
import tzero.reports
import tzero.settings
import tzero.specializing
import tzero.versions
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
    "PretunedDamaged",
    "ToolchainMissing",
    "TuningFailed",
    "TzeroError",
    "UnsupportedOperation",
    "UnsupportedType",
    "UnsupportedVersion",
    "WorkerDied",
]
PUBLIC = {
    tzero: [
        *ERRORS,
        "BoundKernel",
        "Config",
        "ConstExpr",
        "Kernel",
        "Precompiled",
        "Space",
        "Spec",
        "__version__",
        "jit",
        "kernel",
        "multi_kernel",
        "precompile",
        "pretuned",
        "ship",
        "specialize",
    ],
    tzero.backends.cpp: ["Cpp", "CppKernel", "backend", "kernel"],
    tzero.backends.cpp_pybinding: ["CppFunction", "CppPybinding", "backend", "function"],
    tzero.backends.cuda: ["Cuda", "CudaKernel", "backend", "kernel"],
    tzero.backends.cutedsl: ["CuteDsl", "CuteFunction", "backend", "function"],
    tzero.backends.halide: ["Halide", "HalideFunction", "backend", "function"],
    tzero.backends.hip: ["Hip", "HipKernel", "backend", "kernel"],
    tzero.backends.running: ["Kernel", "Launching", "Loaded", "Parameter"],
    tzero.backends.sources: [
        "DTYPES",
        "Function",
        "Parameter",
        "Port",
        "Program",
        "beside",
        "build",
        "choose",
        "functions",
        "gist",
        "result_of",
        "run",
    ],
    tzero.bind: ["BoundKernel"],
    tzero.compile: [
        "Artifact",
        "AsyncCompile",
        "CompileStats",
        "Cost",
        "Request",
        "service",
        "top",
    ],
    # The package has a function of the same name, which hides this module.
    sys.modules["tzero.compile.service"]: ["AsyncCompile", "Stores", "service"],
    tzero.compile.accounting: ["Book", "CompileStats", "Cost", "Done", "Layer", "Where"],
    tzero.cache: ["Found", "Layers", "Store", "stores"],
    tzero.cache.digest: [
        "SCHEMA",
        "Unwritable",
        "canonical",
        "cpu_features",
        "file_digest",
        "parse",
        "toolchain",
    ],
    tzero.cache.disk: ["Disk", "Removed", "Usage", "Verdict"],
    tzero.cache.entry: ["SCHEMA", "Damage", "Damaged", "derived", "opened", "seal"],
    tzero.cache.remote: ["Remote", "shown"],
    tzero.cache.store: ["Found", "Layers", "Store", "location", "stores"],
    tzero.cli: ["app", "main"],
    tzero.compile.backend: ["GROUP", "Backend", "find", "names"],
    tzero.compile.command: ["deadline", "end_all", "forget", "run"],
    tzero.compile.crew: ["Crew"],
    tzero.compile.lifetime: ["Living", "register", "see_to_exit"],
    tzero.compile.pending: ["Job", "Pending"],
    tzero.compile.pool: ["START_LIMIT", "Slot", "cores", "how_it_ended"],
    tzero.compile.progress: ["watch"],
    tzero.compile.recent: ["Recent"],
    tzero.compile.request: ["SCHEMA", "Artifact", "Malformed", "Request"],
    tzero.compile.worker: [
        "Failure",
        "Reply",
        "begin",
        "end_with",
        "error_of",
        "failure_of",
        "inside",
        "is_pythons",
        "make",
        "run",
        "warm",
    ],
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
    tzero.events: ["Event", "Kind", "Observer", "emit", "hushed", "observe", "watched"],
    tzero.key: ["Key", "Options", "UnsupportedType", "constant", "difference", "part", "text"],
    tzero.measure: ["Record", "Span", "active", "nanoseconds", "recording"],
    tzero.precompiling: [
        "Precompiled",
        "Spec",
        "check_left",
        "precompile",
        "precompile_host",
        "precompile_launch",
        "run_without_memory",
    ],
    tzero.pool: ["Ring", "Stats", "clear", "stats"],
    tzero.settings: [
        "Changes",
        "Settings",
        "applied",
        "current",
        "now",
        "override",
        "read",
        "variables",
    ],
    tzero.versions: ["SUPPORTED", "Supported", "order", "require"],
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
