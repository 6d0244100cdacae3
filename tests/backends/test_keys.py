"""Keys of compiled kernels: the variables that compilers read, and tzero's own version."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backends import triton_zoo as zoo
from tests.backends.test_triton_compiled import CPU, source_of
from tzero import settings
from tzero.backends import c_source, cpp, cpp_pybinding
from tzero.backends import triton as backend
from tzero.cache import digest
from tzero.compile import Request
from tzero.cpu import toolchain

ANSWER = "#include <tz_answer.h>\nint answer() { return TZ_ANSWER; }"


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Two folders with a header of the same name."""
    made = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "tz_answer.h").write_text(f"#define TZ_ANSWER {number}\n")
        made.append(str(folder))
    return made


@pytest.mark.parametrize("variable", ["CPATH", "CPLUS_INCLUDE_PATH"])
def test_another_include_path_is_another_kernel(
    variable: str, folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 1):
        monkeypatch.setenv(variable, folders[number - 1])
        assert cpp_pybinding.function(ANSWER)() == number


def test_a_request_is_compiled_with_the_variables_it_was_made_with(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPATH", folders[0])
    answer = cpp_pybinding.function(ANSWER)
    request = answer.request()
    binaries = []
    for folder in folders:
        monkeypatch.setenv("CPATH", folder)
        binaries.append(cpp_pybinding.backend.compile(request).files)
    monkeypatch.delenv("CPATH")
    binaries.append(cpp_pybinding.backend.compile(request).files)
    assert binaries[0] == binaries[1] == binaries[2]


def _cpp() -> Request:
    source = "void none(tzero::Program program) {}"
    return cpp.kernel(source).request()


def _cpu() -> Request:
    asked = backend.request(source_of(zoo.gives_itself_a_name, N=3), CPU)
    assert isinstance(asked, Request)
    return asked


REQUESTS: list[Callable[[], Request]] = [_cpp, _cpu]


@pytest.mark.parametrize("made", REQUESTS)
def test_every_variable_of_the_compiler_is_in_the_key(
    made: Callable[[], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made().digest
    digests = {before}
    # Values that leave the compiler working: the key is about the text.
    chosen = [name for name in settings.COMPILER_VARIABLES["c"] if name not in BREAKING]
    assert {"CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "SOURCE_DATE_EPOCH"} <= set(chosen)
    for name in chosen:
        for value in ("0", "1"):
            monkeypatch.setenv(name, value)
            digests.add(made().digest)
        monkeypatch.delenv(name)
    assert len(digests) == 1 + 2 * len(chosen)
    assert made().digest == before


# With these the compiler does not find its own parts, or does something else.
BREAKING = (
    *("GCC_EXEC_PREFIX", "COMPILER_PATH", "GCC_COMPARE_DEBUG", "CCC_OVERRIDE_OPTIONS"),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
)


@pytest.mark.parametrize(
    ("compiler", "names"),
    [
        ("nvcc", ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CPATH")),
        ("hipcc", ("HIPCC_COMPILE_FLAGS_APPEND", "ROCM_PATH", "HIP_CLANG_PATH", "CPATH")),
        ("halide", ("HL_LLVM_ARGS", "HL_TARGET", "LIBRARY_PATH")),
        ("c", ("GCC_EXEC_PREFIX", "COMPILER_PATH", "CCC_OVERRIDE_OPTIONS")),
    ],
)
def test_every_compiler_has_its_variables(
    compiler: str, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        before = c_source.toolchain_of("1.0", compiler)
        monkeypatch.setenv(name, "-O0")
        assert c_source.toolchain_of("1.0", compiler) != before


def test_variables_of_other_compilers_are_not_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = [made().digest for made in REQUESTS]
    for name in ("NVCC_APPEND_FLAGS", "ROCM_PATH", "TZ_UNKNOWN"):
        monkeypatch.setenv(name, "/somewhere")
    assert [made().digest for made in REQUESTS] == before


@pytest.mark.parametrize("made", REQUESTS)
def test_another_tzero_has_other_keys(
    made: Callable[[], Request], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made().digest
    monkeypatch.setattr(digest, "TZERO", "99.0")
    backend.write_request._toolchains.clear()
    try:
        assert made().digest != before
    finally:
        backend.write_request._toolchains.clear()


def test_a_worker_takes_over_the_variables(folders: list[str]) -> None:
    with settings.applied({"CPATH": folders[0]}):
        asked = _cpu()
        here = toolchain.find().fingerprint
    assert asked.environment["CPATH"] == folders[0]
    assert "CPATH" not in os.environ
    assert here in asked.toolchain and toolchain.find().fingerprint != here
