"""Native choices leak no memory, references or objects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tzero._native", reason="the native extension is not built")

ROOT = Path(__file__).parents[2]

LEAKS = """
import gc, os, sys
from tzero._native import Nearest

HINTS = tuple(((2**k, 1000 + k), (None, 3)) for k in range(16)) + (((70_000,),),)
ASKED = [((100_000, 2), (3, 4)), ((100_000,),), ((9, 9, 9),), ((2**64, 2), (3, 4)), [3], ((-1,),)]
WRONG = [(), (3,), (((-5,),),), (((8,), (8,) * 255),)]
held = (None, Nearest, HINTS, HINTS[0], HINTS[0][0][1], ASKED[0], ASKED[0][0], ASKED[0][0][0])
nearest = Nearest(HINTS)

def work(times):
    for _ in range(times // 10):
        for _ in range(10):
            for shapes in ASKED:
                nearest.number(shapes)
        Nearest(HINTS).number
        for hints in WRONG:
            try:
                Nearest(hints)
            except (TypeError, ValueError):
                pass

def counts():
    gc.collect()
    return [sys.getrefcount(each) for each in held] + [len(gc.get_objects())]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

assert [nearest.number(each) for each in ASKED] == [15, 16, 0, None, None, None]
work(20_000)
counts()
before, memory = counts(), resident()
work(100_000)
after, grown = counts(), resident() - memory
off = [b - a for a, b in zip(before, after)]
assert max(map(abs, off)) < 100, off  # of 600,000 calls and 50,000 objects
assert grown < 1 << 20, grown
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_a_hundred_thousand_choices_leak_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAKS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
