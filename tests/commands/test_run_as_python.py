"""A program under `tzero run` finds what it finds under ``python``, until its process has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

LATE = """
import atexit, pickle, sys, threading, time

class Mine:
    pass

def look(who):
    import sibling
    print(who, sibling.value, len(pickle.dumps(Mine())), sys.argv[1:], __name__, flush=True)

def later():
    time.sleep(0.2)
    look("thread")

look("main")
atexit.register(look, "at the end")
threading.Thread(target=later).start()
"""

POOL = """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)  # its idle threads end with the interpreter
print(pool.submit(sum, [1, 2]).result())
"""

MOVES = """
import os, sys
os.chdir("/")
import torch, triton, triton.language as tl

@triton.jit
def one_kernel(out, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), 1.0)

out = torch.zeros(4)
one_kernel[(1,)](out, BLOCK=4)
print(__file__, one_kernel.fn.__code__.co_filename, out.tolist())
"""

NAMES = """
import sys
names = {name: str(each) for name, each in globals().items() if name != "__builtins__"}
print(names, type(__builtins__), type(__loader__), sys.argv)
print(sys.path[0], sys.path.count(sys.path[0]))
"""

ENDS = {
    "del argv": "import sys; del sys.argv[:]",
    "the last exception": "import atexit, sys\n"
    "atexit.register(lambda: print(repr(sys.last_value), sys.last_type))\n1 / 0",
    "a hook that fails": "import sys\ndef hook(*error): raise KeyError('in the hook')\n"
    "sys.excepthook = hook\n1 / 0",
    "a hook that exits": "import sys\nsys.excepthook = lambda *error: sys.exit(7)\n1 / 0",
    "a syntax error": "1 +",
    "a message": "raise SystemExit('bye')",
    "no future": "def f(x: int): pass\nprint(f.__annotations__)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package, below = tmp_path / "package", tmp_path / "below"
    package.mkdir()
    below.mkdir()
    (package / "__init__.py").touch()
    for place in (tmp_path, package):
        (place / "late.py").write_text(LATE)
        (place / "names.py").write_text(NAMES)
    (package / "__main__.py").write_text(NAMES)
    (tmp_path / "sibling.py").write_text("value = 5")
    (below / "sibling.py").write_text("raise ImportError('of the current folder')")
    (tmp_path / "pool.py").write_text(POOL)
    (tmp_path / "moves.py").write_text(MOVES)
    for number, text in enumerate(ENDS.values()):
        (tmp_path / f"end{number}.py").write_text(text)
    return tmp_path


def both(place: Path, *words: str) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of a program under python and under `tzero run`."""
    environment = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    environment |= {"TZERO_CPU": "1", "TZERO_CACHE_DIR": str(place / "cache"), "TZERO_QUIET": "1"}
    found = []
    plain = subprocess.run(
        [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True
    )
    command = [sys.executable, "-m", "tzero.__main__", "run", *words]
    for done in (plain, warm.run(command, cwd=place, env=environment)):
        lines = [line for line in done.stderr.splitlines() if "<frozen runpy>" not in line]
        found.append((done.returncode, done.stdout, "\n".join(lines)))
    return found


@pytest.mark.parametrize("words", [("late.py", "7"), ("-m", "package.late", "7")], ids=" ".join)
def test_what_outlives_the_main_code_finds_the_same_world(
    folder: Path, words: tuple[str, ...]
) -> None:
    plain, under = both(folder, *words)
    assert plain[1].count(" 5 ") == 3 and plain[2] == ""
    assert under == plain


def test_a_pool_of_threads_that_is_left_open_ends(folder: Path) -> None:
    assert both(folder, "pool.py") == [(0, "3\n", "")] * 2


def test_a_program_may_leave_its_folder_before_it_defines_kernels(folder: Path) -> None:
    plain, under = both(folder, "moves.py")
    assert plain[0] == 0 and under == plain


def test_the_folder_of_a_script_takes_the_place_of_the_current_one(folder: Path) -> None:
    plain, under = both(folder / "below", "../late.py")
    assert plain[0] == 0 and under == plain


@pytest.mark.parametrize(
    "words",
    [("names.py", "-x"), ("package", "y"), ("-m", "package"), ("-m", "package.names", "z")],
    ids=" ".join,
)
def test_main_has_the_names_that_it_has_under_python(folder: Path, words: tuple[str, ...]) -> None:
    plain, under = both(folder, *words)
    assert plain[0] == 0
    assert [part.split(" object at ")[0] for part in under[1].split(",")] == [
        part.split(" object at ")[0] for part in plain[1].split(",")
    ]


@pytest.mark.parametrize("number", range(len(ENDS)), ids=list(ENDS))
def test_a_program_ends_as_under_python(folder: Path, number: int) -> None:
    plain, under = both(folder, f"end{number}.py")
    assert under == plain


def test_a_module_that_is_not_there_is_told_in_one_line(folder: Path) -> None:
    plain, under = both(folder, "-m", "nothere")
    assert plain[0] == 1 and plain[2].count("\n") == 0
    assert under == plain
