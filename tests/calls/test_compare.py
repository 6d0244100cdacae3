"""``tzero bench PROGRAM`` says what a program and each of its kernels gain by tzero."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tzero.api.bench import Measured
from tzero.calls.compare import Row
from tzero.cli import programs

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


def bench(
    *words: str, modules: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess[str]:
    command = "from tzero.cli import main; main()"
    words = ("bench", "--runs", "1", *words)
    return warm.run([sys.executable, "-c", command, *words], modules=modules, **options)


def run(tmp_path: Path, text: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(text)
    if words[:1] == ("--json",):
        return bench("--json", str(file), *words[1:], **options)
    return bench(str(file), *words, **options)


def kernels(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The rows of kernels in the JSON of a run that ended well."""
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["kernels"]
    return found


def test_each_kernel_of_a_program_is_timed_without_tzero_and_with_it(tmp_path: Path) -> None:
    rows = {row["kernel"]: row for row in kernels(run(tmp_path, PROGRAM, "--json", "7"))}
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
    text = text.replace("numel(), 64)", "numel(), 32)")
    rows = kernels(run(tmp_path, text, "--json", "7"))
    calls = {row["kernel"]: row["calls"] for row in rows}
    assert calls == {"double": 7, "halve": 1, "double_kernel[grid]": None}
    assert len(rows) == 3


@pytest.mark.skipif(find_spec("helion") is None, reason="Helion is not installed")
def test_helions_kernels_are_timed_as_helion_calls_them_and_through_tzero(tmp_path: Path) -> None:
    (row,) = kernels(run(tmp_path, HELION, "--json", modules=["helion"]))
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
    scaled, wrong = kernels(run(tmp_path, LEFT, "--json", modules=["helion"]))
    assert scaled["kernel"] == "scaled"
    assert scaled["how"].startswith("left to Helion: an argument is of a class")
    assert scaled["before"] > 0 and scaled["calls"] == 5
    assert wrong["kernel"] == "wrong"
    assert wrong["how"] == "a call fails: AssertionError: one, please"
    assert wrong["before"] is wrong["times"] is None


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
    (row,) = kernels(run(tmp_path, UNCOPIED, "--json"))
    assert row["how"].startswith("not timed: a Mine cannot be")
    (row,) = kernels(run(tmp_path, UNCOPIED + "double(torch.ones(60))", "--json"))
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


def test_people_get_a_table_that_fits_a_terminal(tmp_path: Path) -> None:
    done = run(tmp_path, PROGRAM, "2")
    assert done.returncode == 0, done.stderr
    assert "The whole program: " in done.stdout and "One run of each" in done.stdout
    assert "double_kernel[grid]" in done.stdout and "replayed natively" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_rows_that_were_not_timed_and_one_run_are_in_the_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        Row("add", 12000, 20.0, 2.0, "replayed natively"),
        Row(
            "a_kernel_with_a_long_name_forward[grid]", 7, None, None, "a call fails: ValueError: x"
        ),
    ]
    programs.show_bench(Measured(rows, [0.5, 0.6, 0.7], [0.4, 0.3, 0.2]))
    shown = capsys.readouterr().out
    first = next(line for line in shown.splitlines() if "add" in line)
    assert first.split() == ["add", "12,000", "20.0", "2.0", "10.0", "40%", "replayed", "natively"]
    assert "ValueError" in shown and "600 ms without tzero, 300 ms with it, 2.00 times" in shown
    assert "Medians of 3 runs of each" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_the_trials_of_autotuners_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row("add", 10, 20.0, 2.0, "native")]
    found = Measured(rows, [2.0] * 3, [1.5] * 3, [1.0] * 3, [1.0] * 3)
    assert found.times_besides == 2.0
    programs.show_bench(found)
    shown = " ".join(capsys.readouterr().out.split())
    assert "autotuners spent 1.00 s and 1.00 s on trials of configs" in shown
    assert "the rest is 2.00 times as fast" in shown
    programs.show_bench(Measured(rows, [2.0], [1.5], [0.0], [0.0]))
    assert "autotuners" not in capsys.readouterr().out


# -- programs that know nothing of tzero -----------------------------------------------------------

PLAIN = """
import argparse, os, sys
import torch, triton, triton.language as tl

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.heuristics({"BLOCK": lambda given: 64})
@triton.jit
def halve_kernel(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 0.5 * tl.load(x + at, mask=at < n), mask=at < n)

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int)
    steps = parser.parse_args().steps
    x, out = torch.ones(100), torch.empty(100)
    for _ in range(steps):
        double_kernel[(2,)](x, out, 100, BLOCK=64)
        assert out.tolist() == [2.0] * 100
    halve_kernel[lambda given: (2,)](out, 100)
    assert out.tolist() == [1.0] * 100
    END

if __name__ == "__main__":
    main()
"""


TUNED = """
import torch, triton, triton.language as tl

def timed(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]

@triton.autotune([triton.Config({"BLOCK": each}) for each in (32, 64)], key=[], do_bench=timed)
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

for _ in range(3):
    double_kernel[(4,)](torch.ones(100), torch.empty(100), 100)
"""


def test_the_seconds_of_trials_are_measured_without_and_with_tzero(tmp_path: Path) -> None:
    facts = json.loads(run(tmp_path, TUNED, "--json").stdout)
    for how in ("without", "with"):
        (whole,), (trials,) = facts["program"][how], facts["autotuners"][how]
        assert 0 < trials < whole


def plain(end: str) -> str:
    return PLAIN.replace("END", end)


def test_kernels_and_the_whole_of_a_program_that_knows_nothing_of_tzero(tmp_path: Path) -> None:
    text = plain("print('with' if 'Run' in repr(triton.JITFunction.run) else 'without')")
    done = run(tmp_path, text, "--json", "--steps", "7")
    one, other = kernels(done)
    assert (one["kernel"], one["calls"]) == ("double_kernel[grid]", 7)
    assert (other["kernel"], other["calls"]) == ("halve_kernel[grid]", 1)
    for row in (one, other):
        assert row["how"] == "native" and row["times"] > 1 and row["share"] > 0
    whole = json.loads(done.stdout)["program"]
    assert len(whole["without"]) == len(whole["with"]) == 1
    assert whole["times"] == whole["without"][0] / whole["with"][0]
    assert done.stderr == "without\n"  # its output, once, of the run without tzero


def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "app.py").write_text(plain("assert __spec__.name == 'package.app'"))
    done = bench("--json", "-m", "package.app", "--steps", "3", cwd=tmp_path)
    assert [row["calls"] for row in kernels(done)] == [3, 1]


def test_runs_are_counted_as_often_as_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(plain(f"open({str(tmp_path / 'log')!r}, 'a').write('x')"))
    done = bench("--runs", "3", "--json", str(file), "--steps", "1")
    whole = json.loads(done.stdout)["program"]
    assert len(whole["without"]) == len(whole["with"]) == 3
    assert (tmp_path / "log").read_text() == "x" * 8


PIPED = """
import os
from tzero.cli import main
reading, writing = os.pipe()
if os.fork() == 0:
    for _ in range(3000):  # more than a pipe holds
        os.write(writing, b"3\\n" * 100)
    os._exit(0)
os.close(writing)
os.dup2(reading, 0)
main()
"""


def test_each_run_reads_the_same_input(tmp_path: Path) -> None:
    log = tmp_path / "log"
    text = plain(f"print(sum(map(int, sys.stdin)), file=open({str(log)!r}, 'a'))")
    assert len(kernels(run(tmp_path, text, "--json", "--steps", "1", input="1\n2\n3\n"))) == 2
    assert log.read_text() == "6\n" * 4
    log.unlink()
    words = ("bench", "--runs", "1", "--json", str(tmp_path / "program.py"), "--steps", "1")
    assert len(kernels(warm.run([sys.executable, "-c", PIPED, *words]))) == 2
    assert log.read_text() == "900000\n" * 4


def test_much_output_forks_and_a_status_of_zero_do_not_matter(tmp_path: Path) -> None:
    end = """
    if os.fork() == 0:
        sys.exit(3)  # reports nothing
    os.wait()
    print("x" * (4 << 20))
    sys.exit(0)
    """
    done = run(tmp_path, plain(end), "--json", "--steps", "2")
    assert [row["calls"] for row in kernels(done)] == [2, 1]
    assert len(done.stderr) == (4 << 20) + 1


ADDRESSES = """
import atexit, torch, triton, triton.language as tl

@triton.jit
def through_kernel(places, BLOCK: tl.constexpr):
    tl.store(tl.load(places).to(tl.pointer_type(tl.float32)), 1.0)

@triton.jit
def fine_kernel(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)

memory, x = torch.zeros(1 << 24), torch.zeros(8)  # large: freed at once
places = torch.tensor([memory.data_ptr()])
for _ in range(3):
    through_kernel[(1,)](places, BLOCK=8)
    fine_kernel[(1,)](x, BLOCK=8)
del memory
kept = torch.ones(100)
atexit.register(lambda: print(kept.sum().item(), flush=True))
"""


def test_a_kernel_whose_memory_is_freed_is_timed_apart_from_the_program(tmp_path: Path) -> None:
    one, other = kernels(run(tmp_path, ADDRESSES, "--json"))
    assert one["kernel"] == "through_kernel[grid]" and one["before"] is None
    assert one["how"].startswith("could not be timed alone: a call ends with status 1")
    assert other["how"] == "native" and other["before"] > 0


OTHERWISE = """
import torch, triton, triton.language as tl

@triton.jit
def one_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)

@triton.jit
def other_kernel(x, n, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), n)

x = torch.zeros(8)
compiled = one_kernel.warmup(x, 2.5, BLOCK=8, grid=(1,))
for _ in range(100):
    compiled[(1, 1, 1)](x, 2.5, 8)
    other_kernel.run(x, 2.5, BLOCK=8, grid=(1,), warmup=False)
"""


def test_launches_that_are_written_otherwise_are_in_the_table(tmp_path: Path) -> None:
    done = run(tmp_path, OTHERWISE, "--json")
    rows = {row["kernel"]: row for row in kernels(done)}
    # The first launch of a compiled kernel is Triton's, which loads it, and is not counted.
    assert rows["one_kernel"]["calls"] == 99 and rows["other_kernel"]["calls"] == 100
    for row in rows.values():
        assert row["how"].startswith("native; launched without [grid]")
        assert row["after"] > 0 and row["before"] is None
    assert json.loads(done.stdout)["program"]["times"] > 0


# -- programs that end otherwise -------------------------------------------------------------------


def test_a_program_without_kernels_is_said_to_have_none(tmp_path: Path) -> None:
    done = run(tmp_path, "print('hello')")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "hello"
    assert "launched no Triton kernel" in done.stdout
    assert "The whole program: " in done.stdout


def test_what_a_program_raises_is_shown_as_python_shows_it(tmp_path: Path) -> None:
    done = run(tmp_path, "raise ValueError('mine')")
    assert done.returncode == 1
    program = tmp_path / "program.py"
    assert done.stderr.splitlines()[:2] == [
        "Traceback (most recent call last):",
        f'  File "{program}", line 1, in <module>',
    ]
    assert "ValueError: mine" in done.stderr
    assert "tzero: the program ended with status 1, in run 1, without tzero." in done.stderr


def test_a_program_that_fails_with_tzero_only_is_told_apart(tmp_path: Path) -> None:
    text = plain("assert 'Run' not in repr(triton.JITFunction.run), 'changed'")
    done = run(tmp_path, text, "--steps", "1")
    assert done.returncode == 1 and "AssertionError: changed" in done.stderr
    assert "status 1, in run 2, with tzero. The runs before it ended well." in done.stderr


@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("sys.exit(7)", 7, "ended with status 7"),
        ("sys.exit('no')", 1, "no\n"),
        ("os._exit(0)", 1, "ended its own process, as os._exit does"),
        ("os.kill(os.getpid(), 9)", 137, "ended with status 137"),
        ("raise KeyboardInterrupt", 130, "ended with status 130"),
    ],
)
def test_the_status_of_a_program_is_that_of_bench(
    tmp_path: Path, end: str, status: int, told: str
) -> None:
    done = run(tmp_path, f"import os, sys\n{end}")
    assert done.returncode == status and told in done.stderr


def test_an_interrupt_ends_the_program_and_bench(tmp_path: Path) -> None:
    text = """
    import os, signal, sys, time
    if os.fork() == 0:
        time.sleep(0.5)
        os.kill(int(sys.argv[1]), signal.SIGINT)  # as a terminal sends it to both
        os.kill(os.getppid(), signal.SIGINT)
        os._exit(0)
    time.sleep(60)
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text))
    command = (
        "import os, sys; from tzero.cli import main; "
        f"sys.argv = ['tzero', 'bench', {str(file)!r}, str(os.getpid())]; main()"
    )
    started = time.monotonic()
    done = warm.run([sys.executable, "-c", command])
    assert done.returncode == 130 and time.monotonic() - started < 30
    assert "tzero: interrupted" in done.stderr and "KeyboardInterrupt" in done.stderr
