"""`tzero run`: a program as it is, with native launches, and what is said about them; and the cache
commands on what it has compiled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tzero.cache.bundle import MAGIC

PROGRAM = """
import sys
import torch, triton, triton.language as tl
import tzero

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

x = torch.ones(100)
out = torch.empty_like(x)
for _ in range(10):
    double_kernel[(2,)](x, out, 100, BLOCK=64)
tzero.jit(double_kernel)[(2,)](x, out, 100, BLOCK=64)
print(out.sum().item())
sys.exit(int(sys.argv[1]))
"""

COMMAND = [sys.executable, "-c", "from tzero.cli import main; main()"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def tzero(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    environment |= {"TZERO_CPU": "1", "TZERO_CACHE_DIR": str(folder / "cache"), **more}
    return warm.run([*COMMAND, *words], cwd=folder, env=environment)


def test_a_program_runs_with_native_launches_and_says_so(folder: Path) -> None:
    done = tzero(folder, "run", "program.py", "3")
    assert (done.returncode, done.stdout) == (3, "200.0\n"), done.stderr
    assert re.search(r"10 launches of 1 kernel, [89]0% native", done.stderr)
    assert "double_kernel" in done.stderr


def test_it_says_so_in_json(folder: Path) -> None:
    done = tzero(folder, "run", "--json", "program.py", "0")
    assert done.returncode == 0
    (kernel,) = json.loads(done.stdout)["kernels"]
    assert (kernel["kernel"], kernel["launches"]) == ("double_kernel", 10)
    assert kernel["native"] >= 8  # the first launches look for their binary


def test_it_is_silent_when_asked_for(folder: Path) -> None:
    assert tzero(folder, "run", "program.py", "0", TZERO_QUIET="1").stderr == ""


def test_what_a_program_raises_is_shown_without_tzeros_own_functions(folder: Path) -> None:
    (folder / "fails.py").write_text("def f():\n    raise ValueError(3)\nf()\n")
    done = tzero(folder, "run", "fails.py")
    assert done.returncode == 1
    assert done.stderr.count("File ") == 2 and "ValueError: 3" in done.stderr


def test_a_programs_own_hook_shows_what_it_raises(folder: Path) -> None:
    text = "import sys\nsys.excepthook = lambda *error: print('mine', error[1])\n1 / 0\n"
    (folder / "fails.py").write_text(text)
    done = tzero(folder, "run", "fails.py")
    assert (done.returncode, done.stdout) == (1, "mine division by zero\n")


@pytest.mark.parametrize(
    "words",
    [
        ("report", "-o", "no/page.html", "program.py", "0"),
        ("report", "--save", "no/run.json", "program.py", "0"),
        ("trace", "-o", "no/trace.json", "program.py", "0"),
        ("bundle", "build", "-o", "no/app.tzb", "--", sys.executable, "program.py", "0"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_place_that_cannot_be_written_is_told_before_the_program_runs(
    folder: Path, words: tuple[str, ...]
) -> None:
    done = tzero(folder, *words)
    assert (done.returncode, done.stdout) == (3, "")
    assert "there is no directory 'no'. Give another place with -" in done.stderr


def test_a_program_that_is_not_there_has_exit_code_2(folder: Path) -> None:
    assert tzero(folder, "run", "nothing.py").returncode == 2


def test_what_it_has_compiled_is_listed_verified_and_cleared(folder: Path) -> None:
    assert tzero(folder, "run", "program.py", "0").returncode == 0
    kernels = json.loads(tzero(folder, "cache", "ls", "--json").stdout)
    assert "double_kernel" in {each["kernel"] for each in kernels}
    verified = json.loads(tzero(folder, "cache", "verify", "--json").stdout)
    assert (verified["entries"], verified["damaged"]) == (len(kernels), [])
    cleared = json.loads(tzero(folder, "cache", "clear", "--json").stdout)
    assert cleared["entries"] == len(kernels)
    assert json.loads(tzero(folder, "cache", "stats", "--json").stdout)["entries"] == 0


def test_what_it_gains_is_measured(folder: Path) -> None:
    done = tzero(folder, "bench", "--json", "--runs", "1", "program.py", "0")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"double_kernel[grid]"} <= {each["kernel"] for each in found["kernels"]}
    assert found["program"]["times"] > 0 and "200.0" in done.stderr


def test_what_it_uses_is_bundled_and_used_from_the_bundle(folder: Path) -> None:
    command = ("-o", "app.tzb", "--json", "--", sys.executable, "program.py", "0")
    built = tzero(folder, "bundle", "build", *command)
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["kernels"] == 1
    listed = json.loads(tzero(folder, "bundle", "inspect", "--json", "app.tzb").stdout)
    assert "double_kernel" in {each["name"] for each in listed["entries"]}
    assert (
        json.loads(tzero(folder, "bundle", "verify", "--json", "app.tzb").stdout)["damaged"] == []
    )
    assert json.loads(tzero(folder, "cache", "clear", "--json").stdout)["entries"] > 0
    used = tzero(folder, "run", "program.py", "0", TZERO_BUNDLE="app.tzb")
    assert used.returncode == 0, used.stderr
    assert json.loads(tzero(folder, "cache", "stats", "--json").stdout)["entries"] == 0


@pytest.mark.parametrize(
    ("command", "target", "words"),
    [
        ("report", "app.tzb", "'app.tzb' is a bundle, which `tzero bundle inspect` lists, not a"),
        ("run", "app.tzb", "is a bundle"),
        ("run", "run.json", "is a file of JSON, not a program. Give the path of a Python file."),
        (
            "report",
            "none.json",
            "there is no record 'none.json'. Give the path of a Python file, or",
        ),
        ("trace", "none.json", "there is no record 'none.json'"),
        ("run", "none.py", "there is no program 'none.py'. Give the path of a Python file."),
    ],
)
def test_a_file_that_is_no_program_is_refused_with_what_it_is(
    folder: Path, command: str, target: str, words: str
) -> None:
    (folder / "app.tzb").write_bytes(MAGIC + bytes(100))
    (folder / "run.json").write_text("{}")
    (folder / "tzero-report.html").write_text("the page of before")
    done = tzero(folder, command, target)
    assert done.returncode == 2
    assert words in done.stderr
    assert (folder / "tzero-report.html").read_text() == "the page of before"
