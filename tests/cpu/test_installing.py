"""TZERO_INSTALL, and `tzero run`, have tzero launch the kernels of processes that others start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import can_launch

KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def one_kernel(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), 1.0)

def work(how):
    out = torch.zeros(4)
    for _ in range(5):
        one_kernel[(1,)](out, BLOCK=4)
    import tzero
    return how, out.tolist(), tzero.installed().launches
"""

PROGRAM = """
import multiprocessing, sys
from kernels import work

if __name__ == "__main__":
    for how in sys.argv[1:]:
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(*pool.apply(work, [how]), flush=True)
"""

PLAIN = "import triton\nprint(type(triton.JITFunction.run).__module__, type(triton).__name__)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    can_launch(2)
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def said(folder: Path, *words: str, **more: str) -> str:
    environment = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    environment |= {"TZERO_CPU": "1", "TZERO_CACHE_DIR": str(folder / "cache"), "TZERO_QUIET": "1"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environment, **more},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_processes_that_a_program_starts_are_installed_too(folder: Path) -> None:
    lines = said(folder, "-m", "tzero", "run", "program.py", "spawn", "forkserver").splitlines()
    assert lines == [f"{how} [1.0, 1.0, 1.0, 1.0] 5" for how in ("spawn", "forkserver")]


@pytest.mark.parametrize("first", ["", "import tzero.cpu.driver\n", "import torch, tzero\n"])
def test_a_process_is_installed_by_its_environment(folder: Path, first: str) -> None:
    assert said(folder, "-c", first + PLAIN, TZERO_INSTALL="1") == "tzero._native module\n"


def test_a_process_is_left_alone_without_it(folder: Path) -> None:
    assert said(folder, "-c", PLAIN) == "builtins module\n"
    assert said(folder, "-c", PLAIN, TZERO_INSTALL="0") == "builtins module\n"
