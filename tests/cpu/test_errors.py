"""Errors at compile time: each names the kernel, the location and what to do.

After each of them the process still compiles and launches kernels.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from bench import kernels
from tests.cpu.childprocess import line_of
from tzero import settings
from tzero.errors import CompilerFailed, CompilerMissing, TzeroError, UnsupportedOperation

BLOCK = 16


def still_works(n: int) -> None:
    """Compile and launch a kernel; a block size that nothing else uses makes it a new one."""
    x = torch.randn(3 * n)
    torch.testing.assert_close(kernels.add(x, x, block=n), x + x)


@triton.jit
def ptx_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=f,f", [x], tl.float32, True, 1)  # ptx
    tl.store(out_ptr + at, y)


@pytest.mark.unsupported("inline_asm_elementwise", "PTX is the assembly language of NVIDIA's GPUs.")
def test_ptx_assembly_is_rejected_with_its_location() -> None:
    with pytest.raises(UnsupportedOperation) as caught:
        ptx_kernel[(1,)](torch.zeros(BLOCK), torch.zeros(BLOCK), BLOCK=BLOCK)
    error = caught.value
    assert isinstance(error, TzeroError)
    assert "inline_asm" in error.operation
    assert error.kernel == "ptx_kernel"
    assert error.file is not None
    assert error.file.endswith("test_errors.py")
    assert error.line == line_of(__file__, "ptx")
    assert error.advice
    for part in ("ptx_kernel", "inline_asm", f"test_errors.py:{error.line}", error.advice):
        assert part in str(error)
    still_works(32)


@triton.jit
def deep_ptx(x):
    if tl.max(x, axis=0) > 0:
        x = tl.inline_asm_elementwise("neg.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)  # deep
    return x


@triton.jit
def deep_ptx_kernel(x_ptr, out_ptr, rounds, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(rounds):
        x = deep_ptx(x)
    tl.store(out_ptr + at, x)


def test_the_location_of_an_error_is_where_the_operation_is_written() -> None:
    with pytest.raises(UnsupportedOperation) as caught:
        deep_ptx_kernel[(1,)](torch.zeros(BLOCK), torch.zeros(BLOCK), 3, BLOCK=BLOCK)
    assert caught.value.line == line_of(__file__, "deep")
    assert caught.value.kernel == "deep_ptx_kernel"


@triton.jit
def wrong_types_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) << 1.5)


def test_error_of_the_language_is_tritons_own() -> None:
    with pytest.raises(triton.CompilationError):
        wrong_types_kernel[(1,)](torch.zeros(BLOCK), BLOCK=BLOCK)
    still_works(64)


@triton.jit
def refused_by_compiler_kernel(x_ptr, SALT: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr) + SALT)


@triton.jit
def no_compiler_kernel(x_ptr, SALT: tl.constexpr):
    tl.store(x_ptr, tl.load(x_ptr) * SALT)


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache on disk, so that kernels are compiled again."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton_cache"))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_failing_compiler_is_quoted(tmp_path: Path, fresh_cache: None) -> None:
    words = "internal compiler error: out of cheese"
    # It works when probed, and fails at the first kernel.
    answer = f'case "$*" in *-E*) exec cc "$@";; esac; echo "{words}" >&2; exit 3'
    compiler = script(tmp_path / "failing-cc", answer)
    x = torch.ones(1)
    with settings.override(cc=(compiler,)), pytest.raises(CompilerFailed) as caught:
        refused_by_compiler_kernel[(1,)](x, SALT=5)
    assert caught.value.kernel == "refused_by_compiler_kernel"
    assert caught.value.command[0] == compiler
    assert words in caught.value.output
    for part in ("refused_by_compiler_kernel", words, "failing-cc"):
        assert part in str(caught.value)
    refused_by_compiler_kernel[(1,)](x, SALT=5)
    assert x.item() == 6


def test_named_compiler_that_does_not_exist(fresh_cache: None) -> None:
    with (
        settings.override(cc=("no-such-compiler-anywhere",)),
        pytest.raises(CompilerMissing, match="no-such-compiler-anywhere"),
    ):
        no_compiler_kernel[(1,)](torch.ones(1), SALT=2)


def test_no_compiler_says_what_to_install(
    tmp_path: Path, fresh_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(1)
    with monkeypatch.context() as patch, settings.override(cc=None):
        patch.setenv("PATH", str(tmp_path))
        patch.setitem(sys.modules, "ziglang", None)
        with pytest.raises(CompilerMissing) as caught:
            no_compiler_kernel[(1,)](x, SALT=3)
    for part in ("gcc", "clang", "tzero-runtime[zig]", "TZERO_CC"):
        assert part in str(caught.value)
    no_compiler_kernel[(1,)](x, SALT=3)
    assert x.item() == 3
