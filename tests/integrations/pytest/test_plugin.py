"""Tests of Triton kernels in a project run on the CPU, checked if asked; some need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import pytest
import torch
import triton
import triton.language as tl


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def test_double(triton_device):
    x = torch.ones(100, device=triton_device)
    out = torch.empty_like(x)
    double[(1,)](x, out, 100, BLOCK=128)
    assert out.eq(2).all()


def test_outside(triton_device):
    memory = torch.ones(256, device=triton_device)
    x, out = memory[:100].clone(), torch.empty(128, device=triton_device)
    double[(1,)](x, out, 128, BLOCK=128)  # reads 28 elements too many


@pytest.mark.triton_gpu
def test_on_a_gpu(triton_device):
    assert triton_device.type == "cuda"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_kernels.py").write_text(TESTS)
    return tmp_path


def run(project: Path, *options: str) -> str:
    """pytest in a process of its own: its options must come before Triton is imported."""
    plugin = () if _is_installed() else ("-p", "tzero.integrations.pytest_plugin")
    command = [sys.executable, "-m", "pytest", "-rs", "--strict-markers", *plugin, *options]
    variables = {name: text for name, text in os.environ.items() if not name.startswith("TZERO_")}
    done = subprocess.run(
        command, cwd=project, env=variables, capture_output=True, text=True, timeout=300
    )
    return done.stdout + done.stderr


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(each.name == "tzero" for each in entry_points(group="pytest11"))


def test_kernels_run_on_the_cpu_and_tests_for_a_gpu_are_skipped(project: Path) -> None:
    said = run(project, "--triton-cpu")
    assert "2 passed, 1 skipped" in said, said
    assert "needs a GPU; Triton kernels run on the CPU here" in said


def test_checked_kernels_fail_at_an_access_outside_of_a_tensor(project: Path) -> None:
    said = run(project, "--triton-check")
    assert "1 failed, 1 passed, 1 skipped" in said, said
    assert "OutOfBounds" in said and "'x'" in said


def test_the_head_of_a_run_says_where_kernels_run(project: Path) -> None:
    assert "triton: kernels run on the CPU\n" in run(project, "-v", "--triton-cpu", "--co")
    head = run(project, "-v", "--triton-check", "--co")
    assert "triton: kernels run on the CPU, and every access is checked" in head
    assert "triton: kernels" not in run(project, "-v", "--co")


def test_a_project_without_kernels_imports_neither_torch_nor_triton(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test(): assert not {'torch', 'triton'} & set(sys.modules)\n"
    )
    said = run(tmp_path)
    assert "1 passed" in said, said
