"""`tzero bundle build` of programs that know nothing of tzero, and their start from the bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A program whose first launch is Triton's own, and one that never imports tzero.
PLAIN = """
import torch, triton, triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

def double(x):
    out = torch.empty_like(x)
    double_kernel[(2,)](x, out, 100, BLOCK=64)
    return out

print(double(torch.ones(100)).sum().item())
"""
MIXED = f"""
import tzero
{PLAIN}
fast = tzero.kernel(double)
for _ in range(3):
    fast(torch.ones(100))
"""
NO_KERNEL = "import torch, triton\n"


def python(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command with empty caches. The imports are part of what is tested."""
    kept = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    cold = len(list(folder.iterdir()))
    places = {name: str(folder / f"{name} {cold}") for name in ("TZERO_CACHE_DIR",)}
    places["TRITON_CACHE_DIR"] = str(folder / f"triton {cold}")
    environment = {**kept, **places, "TZERO_CPU": "1", **more}
    (folder / str(cold)).touch()
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def build(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(text)
    command = ("bundle", "build", "-o", "app.tzb", "--json", "--", sys.executable, "app.py")
    return python(folder, "-m", "tzero", *command)


@pytest.mark.parametrize("text", [PLAIN, MIXED], ids=["Triton alone", "Triton, then tzero"])
def test_the_first_launch_of_a_plain_program_is_bundled_and_needs_no_compiler(
    tmp_path: Path, text: str
) -> None:
    made = build(tmp_path, text)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["kernels"] == 1
    used = python(tmp_path, "app.py", TZERO_BUNDLE="app.tzb", TZERO_CC="/nonexistent")
    assert (used.returncode, used.stdout) == (0, "200.0\n"), used.stderr
    without = python(tmp_path, "app.py", TZERO_CC="/nonexistent")
    assert "CompilerMissing" in without.stderr


def test_a_bundle_that_is_not_there_is_told_in_a_program_that_never_imports_tzero(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(PLAIN)
    done = python(tmp_path, "app.py", TZERO_BUNDLE="nope.tzb")
    assert (done.returncode, done.stdout) == (0, "200.0\n")
    assert "nope.tzb is not used: it cannot be read" in done.stderr


def test_a_build_that_finds_nothing_says_why_and_what_to_do(tmp_path: Path) -> None:
    done = build(tmp_path, NO_KERNEL)
    assert done.returncode == 1
    assert json.loads(done.stdout)["kernels"] == 0
    assert "launched no Triton kernel" in done.stderr and "python -m tzero run" in done.stderr
