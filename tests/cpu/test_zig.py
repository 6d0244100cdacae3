"""The ziglang wheel as the C compiler, for machines that have no other."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from tests.cpu.childprocess import run_program

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="the ziglang wheel is not installed (pip install 'tzero-runtime[zig]')",
)

PROGRAM = """
    import torch
    from bench import kernels
    from tzero.cpu import toolchain

    assert "ziglang" in toolchain.find().command, toolchain.find().command
    x, y = torch.randn(5000), torch.randn(5000)
    torch.testing.assert_close(kernels.add(x, y), x + y)
    print("compiled by zig")
"""

MORE = """
    x = torch.randn(7, 300)
    torch.testing.assert_close(kernels.softmax(x), x.softmax(1))
    a, b = torch.randn(70, 50, dtype=torch.float16), torch.randn(50, 40, dtype=torch.float16)
    expected = (a.float() @ b.float()).half()
    torch.testing.assert_close(kernels.matmul(a, b), expected, atol=1e-2, rtol=1e-2)
    print("and more")
"""


def test_zig_compiles_kernels_when_named(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "ziglang", "cc"])
    done = run_program(tmp_path, PROGRAM + MORE, TZERO_CC=command)
    assert done.stdout.splitlines() == ["compiled by zig", "and more"]


def test_zig_is_found_where_there_is_no_other_compiler(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = run_program(tmp_path, PROGRAM, PATH=str(empty), TZERO_CC="", CC="")
    assert "compiled by zig" in done.stdout
