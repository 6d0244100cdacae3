"""On a machine with a GPU, kernels run on the GPU unless the CPU is requested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import torch, triton, triton.language as tl

@triton.jit
def double(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)

device = triton.runtime.driver.active.get_active_torch_device()
x = torch.arange(1000.0, device=device)
double[(8,)](x, 1000, BLOCK=128)
assert torch.equal(x.cpu(), 2 * torch.arange(1000.0))
print(triton.runtime.driver.active.get_current_target().backend)
"""


def backend(tmp_path: Path, **environment: str) -> str:
    """The backend that a new process chooses; checks its result."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TZERO_")}
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_gpu_is_used_when_there_is_one(tmp_path: Path) -> None:
    assert backend(tmp_path) == "cuda"


def test_the_cpu_is_used_when_asked_for(tmp_path: Path) -> None:
    assert backend(tmp_path, TZERO_CPU="1") == "cpu"


def test_the_cpu_can_be_ruled_out(tmp_path: Path) -> None:
    assert backend(tmp_path, TZERO_CPU="0") == "cuda"
