"""Type checkers see the signature of a host function through `@tzero.kernel`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tzero

pytest.importorskip("mypy", reason="mypy is not installed")

EXAMPLE = Path(__file__).with_name("typed_calls.py")
SOURCE = Path(tzero.__file__).parents[1]
CONFIG = """
[mypy]
strict = true
show_error_codes = true
show_column_numbers = false

[mypy-tzero.*]
follow_imports = silent

[mypy-torch.*,triton.*,loky.*,cloudpickle.*,fsspec.*,helion.*,rich.*,numpy.*]
follow_imports = skip
ignore_missing_imports = true
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says of each line of the example."""
    here = tmp_path_factory.mktemp("typing")
    (here / "mypy.ini").write_text(CONFIG)
    command = [sys.executable, "-m", "mypy", "--config-file", str(here / "mypy.ini")]
    command += ["--cache-dir", str(here / "cache"), str(EXAMPLE)]
    environ = {"MYPYPATH": str(SOURCE), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, cwd=here)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[int, str] = {}
    for line in done.stdout.splitlines():
        match = re.match(r".*typed_calls\.py:(\d+): (\w+): (.*)", line)
        if match:
            found.setdefault(int(match[1]), f"{match[2]}: {match[3]}")
    return found


def lines(start: str) -> list[Any]:
    """The marked lines of one function of the example."""
    text = EXAMPLE.read_text().splitlines()
    inside, found = False, []
    for number, line in enumerate(text, 1):
        if line and not line.startswith(" "):
            inside = line.startswith(f"def {start}(")
        marked = re.search(r"  # ([\w-]+)$", line)
        if inside and line.startswith(" "):
            found.append(pytest.param(number, marked and marked[1], id=line.strip()))
    return found


@pytest.mark.parametrize(("number", "kind"), lines("right"))
def test_right_calls_are_accepted_with_their_results(
    number: int, kind: str | None, said: dict[int, str]
) -> None:
    if kind is None:
        assert number not in said
    else:
        assert re.search(rf'Revealed type is "(builtins\.)?{kind}"', said[number])


@pytest.mark.parametrize(("number", "kind"), lines("wrong"))
def test_wrong_calls_are_errors(number: int, kind: str, said: dict[int, str]) -> None:
    assert said[number].startswith("error: ") and said[number].endswith(f"[{kind}]"), said[number]


def test_nothing_else_is_said(said: dict[int, str]) -> None:
    expected = {each.values[0] for each in (*lines("right"), *lines("wrong"))}
    assert {number: text for number, text in said.items() if number not in expected} == {}


def test_the_old_annotation_can_still_be_evaluated() -> None:
    assert tzero.Kernel[int] == tzero.Kernel[..., int]
