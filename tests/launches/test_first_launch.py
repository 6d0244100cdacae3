"""The first launch of a process, from the disk cache: what it imports."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys

import torch
import triton
import triton.language as tl

import tzero


@tzero.jit
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


x = torch.zeros(1000)
add_one[(1,)](x, 1000, BLOCK=1024)
assert x.eq(1).all()
assert tzero.compile.service().stats().hits["disk"] == int(sys.argv[1]), "not from the disk"
print(*(name for name in sys.modules if name.startswith(("tzero.", "loky", "fsspec", "redis"))))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The modules that a process has after it launched a kernel that another one has compiled."""
    folder = tmp_path_factory.mktemp("first")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    variables = {
        **os.environ,
        "TZERO_CPU": "1",
        "TZERO_CACHE_DIR": str(folder / "kernels"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    for hits in ("0", "1"):
        done = subprocess.run(
            [sys.executable, str(program), hits],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_a_launch_from_the_disk_cache_imports_neither_plans_nor_the_tuner(
    imported: set[str],
) -> None:
    assert "tzero.launches.native" in imported or "tzero.launches.python" in imported
    unused = ("tzero.plans", "tzero.reading", "tzero.calls", "tzero.tune", "tzero.integrations")
    assert not {name for name in imported if name.startswith(unused)}


def test_a_launch_from_the_disk_cache_imports_no_worker_remote_or_other_language(
    imported: set[str],
) -> None:
    unused = ("loky", "fsspec", "redis", "tzero.cache.remote", "tzero.launches.ahead")
    assert not {name for name in imported if name.startswith((*unused, "tzero.backends.c_source"))}
