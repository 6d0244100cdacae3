"""A kernel without native code whose launches have native code, in a process that has no other."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
import triton.language as tl

import tzero
from tzero import settings


@tzero.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2.0, mask=at < n)


def doubled(x):
    out = torch.empty_like(x)
    double_kernel[(1,)](x, out, x.numel(), BLOCK=64)
    return out


x = torch.randn(40)
for _ in range(3):
    doubled(x)
with settings.override(tier=1):
    kernel = tzero.kernel(doubled)
for _ in range(3):
    assert torch.equal(kernel(x), 2 * x)
print(kernel.explain(x))
assert kernel.stats().recordings == 1 and kernel.stats().python_replays == 2
"""


def test_native_launches_are_shown_to_a_recorder_of_python(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "TZERO_CPU": "1", "TZERO_VERIFY": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "launch double_kernel[(1, 1, 1)]" in done.stdout
