"""``tzero bench SCRIPT`` runs a program and times its kernels with and without tzero."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import warm

PROGRAM = """
import sys
import torch, triton, triton.language as tl
import tzero

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@tzero.kernel
def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out

@tzero.kernel
def halve(x):  # in place
    return x.mul_(0.5)

fast = tzero.jit(double_kernel)
x = torch.ones(100)
for _ in range(int(sys.argv[1])):
    y = double(x)
halve(x)
assert x.tolist() == [0.5] * 100
fast[(2,)](x, y, 100, BLOCK=64)
assert sys.argv[0].endswith("program.py")
"""


def bench(*words: str, modules: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = "from tzero.cli import main; main()"
    return warm.run([sys.executable, "-c", command, "bench", *words], modules=modules)


def run(
    tmp_path: Path, text: str, *words: str, modules: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(text)
    if words[:1] == ("--json",):
        return bench("--json", str(file), *words[1:], modules=modules)
    return bench(str(file), *words, modules=modules)


def test_each_kernel_of_a_program_is_timed_without_tzero_and_with_it(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM, "--json", "7")
    assert done.returncode == 0, done.stderr
    rows: dict[str, Any] = {row["kernel"]: row for row in json.loads(done.stdout)}
    assert list(rows) == ["double", "halve", "double_kernel[grid]"]
    assert rows["double"]["calls"] == 7
    assert rows["double"]["how"] == "replayed natively"
    assert rows["double_kernel[grid]"]["calls"] is None
    assert all(row["before"] > 0 and row["after"] > 0 for row in rows.values())


HELION = """
import helion, helion.language as hl, torch
import tzero

@helion.kernel(config=helion.Config(block_sizes=[128]))
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out

tzero.helion.install()
x = torch.randn(1000)
for _ in range(5):
    torch.testing.assert_close(double(x), x * 2)
"""


def test_candidates_of_a_search_are_no_kernels_of_the_program(tmp_path: Path) -> None:
    text = PROGRAM.replace(
        "@tzero.kernel\ndef double(x):",
        "@tzero.kernel(configs=[tzero.Config(B=32), tzero.Config(B=64)])\ndef double(x, config):",
    ).replace("x.numel(), BLOCK=64)\n    return", "x.numel(), BLOCK=config.B)\n    return")
    done = run(tmp_path, text.replace("numel(), 64)", "numel(), 32)"), "--json", "7")
    rows = json.loads(done.stdout)
    assert [(row["kernel"], row["calls"]) for row in rows[:2]] == [("double", 7), ("halve", 1)]
    assert len(rows) == 3


@pytest.mark.skipif(find_spec("helion") is None, reason="Helion is not installed")
def test_helions_kernels_are_timed_as_helion_calls_them_and_through_tzero(tmp_path: Path) -> None:
    done = run(tmp_path, HELION, "--json", modules=["helion"])
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["kernel"] == "double"
    assert row["how"] == "replayed natively"


LEFT = """
from dataclasses import dataclass
import helion, helion.language as hl, torch
import tzero

@dataclass
class Scale:
    by: float

@helion.kernel(config=helion.Config(block_sizes=[128]))
def scaled(x: torch.Tensor, scale: Scale) -> torch.Tensor:
    out = torch.empty_like(x)
    by = scale.by
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * by
    return out

@helion.kernel(config=helion.Config(block_sizes=[128]))
def wrong(x: torch.Tensor) -> torch.Tensor:
    assert x.size(0) == 1, "one, please"
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]
    return out

tzero.helion.install()
x = torch.randn(1000)
for _ in range(5):
    torch.testing.assert_close(scaled(x, scale=Scale(2.0)), x * 2)
try:
    wrong(x)
except AssertionError:
    pass
"""


@pytest.mark.skipif(find_spec("helion") is None, reason="Helion is not installed")
def test_kernels_that_helion_calls_or_that_fail_are_in_the_table_with_the_reason(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, LEFT, "--json", modules=["helion"])
    assert done.returncode == 0, done.stderr
    scaled, wrong = json.loads(done.stdout)
    assert scaled["kernel"] == "scaled"
    assert scaled["how"].startswith("left to Helion: an argument is of a class")
    assert scaled["before"] > 0 and scaled["calls"] == 5
    assert wrong["kernel"] == "wrong"
    assert wrong["how"] == "a call fails: AssertionError: one, please"
    assert wrong["before"] is wrong["times"] is None
    table = run(tmp_path, LEFT, modules=["helion"])
    assert table.returncode == 0, table.stderr
    assert "one, please" in table.stdout


UNCOPIED = """
import torch, triton, triton.language as tl
import tzero

@triton.jit
def double_kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@tzero.kernel
def double(x):
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, x.numel(), BLOCK=64)
    return x

class Mine(torch.Tensor):
    pass

x = torch.ones(100)
assert double(x.as_subclass(Mine)).tolist() == [2.0] * 100
"""


def test_a_program_goes_on_with_arguments_that_cannot_be_copied(tmp_path: Path) -> None:
    done = run(tmp_path, UNCOPIED, "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["how"].startswith("not timed: a Mine cannot be")
    done = run(tmp_path, UNCOPIED + "double(torch.ones(60))", "--json")
    (row,) = json.loads(done.stdout)
    assert row["before"] > 0


def test_what_follows_the_script_is_its_own(tmp_path: Path) -> None:
    words = ("7", "--json", "--help", "-x", "--", "--steps", "3")
    done = run(tmp_path, "import sys; print(sys.argv[1:])", *words)
    assert str(list(words)) in done.stdout, done.stderr


def test_a_program_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "program.py").unlink(missing_ok=True)
    for word in ("nothing.py", str(tmp_path)):
        done = bench(word)
        assert done.returncode == 2
        assert done.stderr.startswith(f"tzero: there is no program {word!r}.")


def test_people_get_a_table(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM, "2")
    assert done.returncode == 0, done.stderr
    assert "with tzero" in done.stdout
    assert "double" in done.stdout


def test_a_program_without_kernels_is_told_what_to_do(tmp_path: Path) -> None:
    done = run(tmp_path, "print('hello')")
    assert done.returncode == 1
    assert "tzero.helion.install()" in done.stdout


def test_what_a_program_raises_is_shown(tmp_path: Path) -> None:
    done = run(tmp_path, "raise ValueError('mine')")
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
