"""`--json`: stdout is JSON from its first to its last character, whatever the program prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from tests.cache.conftest import start_redis
from tests.commands.test_every import EVERY
from tests.commands.test_run import COMMAND

NOISY = """
import atexit, os, subprocess, sys
import torch, triton, triton.language as tl
import tzero

print("a line")

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

def double(x):
    print("called")
    os.write(1, b"written past sys.stdout\\n")
    out = torch.empty_like(x)
    double_kernel[(2,)](x, out, 100, BLOCK=64)
    return out

atexit.register(print, "at the end")
subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
if __name__ == "__main__":
    for _ in range(3):
        double(torch.ones(100))
    sys.stdout.write("no end of a line")
"""

PROGRAM = "noisy.py"
RUNS_IT = {
    ("explain",): (f"{PROGRAM}:double", "--call", "torch.ones(100)"),
    ("run",): (PROGRAM,),
    ("bench",): ("--runs", "1", PROGRAM),
    ("trace",): (PROGRAM,),
    ("report",): (PROGRAM,),
    ("bundle", "build"): ("-o", "made.tzb", "--", sys.executable, PROGRAM),
}
RUNS_NOTHING = {
    ("doctor",): (),
    ("cache", "stats"): (),
    ("cache", "ls"): (),
    ("cache", "prune"): ("--days", "30"),
    ("cache", "clear"): (),
    ("cache", "verify"): (),
    ("bundle", "inspect"): ("app.tzb",),
    ("bundle", "verify"): ("app.tzb",),
}
WORKER = ("worker",)


def tzero(folder: Path, path: tuple[str, ...], *words: str) -> subprocess.CompletedProcess[str]:
    kept = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    places = {"TZERO_CACHE_DIR": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton")}
    (folder / PROGRAM).write_text(NOISY)
    return warm.run(
        [*COMMAND, *path, "--json", *words],
        cwd=folder,
        env={**kept, **places, "TZERO_CPU": "1"},
    )


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundled")
    made = tzero(folder, ("bundle", "build"), "-o", "app.tzb", "--", sys.executable, PROGRAM)
    assert made.returncode == 0, made.stderr
    return folder


def test_every_command_is_asked_for_json() -> None:
    assert set(EVERY) == {*RUNS_IT, *RUNS_NOTHING, WORKER}


@pytest.mark.parametrize("path", RUNS_IT, ids=" ".join)
def test_stdout_is_json_and_the_programs_output_goes_to_stderr(
    path: tuple[str, ...], tmp_path: Path
) -> None:
    done = tzero(tmp_path, path, *RUNS_IT[path])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout), done.stdout
    for words in ("a line", "called", "written past", "of a child"):
        assert words in done.stderr


@pytest.mark.parametrize("path", RUNS_NOTHING, ids=" ".join)
def test_stdout_is_json(path: tuple[str, ...], bundled: Path) -> None:
    done = tzero(bundled, path, *RUNS_NOTHING[path])
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[str]:
    server = start_redis(tmp_path)
    yield server.url
    server.stop()


def test_a_worker_that_ends_prints_json(queue: str, tmp_path: Path) -> None:
    done = tzero(tmp_path, WORKER, queue, "--compile", "--once")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"compiled": 0, "tuned": 0}
