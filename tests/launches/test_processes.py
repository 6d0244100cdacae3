"""Kernels outlive a fork, start afresh in a new process, and go when nobody has them."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.launches import kernels
from tests.launches.looking import VERSION
from tests.launches.rows_arguments import integers
from tests.tiers import jit_maker

ROOT = Path(__file__).parents[2]


def run(name: str, *numbers: int, timeout: float = 300) -> None:
    """One of `tests.launches.programs` in a process of its own."""
    command = [sys.executable, "-m", "tests.launches.programs", name, *map(str, numbers)]
    done = warm.run(command, cwd=ROOT, timeout=timeout)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"


def test_a_child_launches_what_its_parent_warmed_up(tier: int, device: Any) -> None:
    if device.type != "cpu":
        pytest.skip("CUDA does not survive a fork")
    run("fork", tier)


def test_a_spawned_process_launches(fast_tier: int) -> None:
    run("spawn", fast_tier)


def test_a_kernel_that_was_launched_goes_when_nobody_has_it(tier: int, device: Any) -> None:
    make, out = jit_maker(tier), integers(device)
    gone = []
    for _ in range(20):
        kernel = make(kernels.put)
        for value in (7, 16, 1, 7):
            kernel[(1,)](out, value)
        launch = kernel[(2,)]
        launch(out, 7)
        gone.append(weakref.ref(kernel))
    del kernel, launch
    gc.collect()
    # Since 3.9 Triton itself keeps the last kernel of each name.
    kept = 1 if VERSION >= (3, 9) else 0
    assert sum(each() is not None for each in gone) <= kept


def test_what_a_kernel_compiled_goes_with_it(tier: int, device: Any) -> None:
    make, out = jit_maker(tier), integers(device)
    kernel = make(kernels.put)
    for _ in range(3):
        binary = kernel[(1,)](out, 7)
    gone = weakref.ref(binary)
    del binary
    gc.collect()
    assert gone() is not None
    if VERSION >= (3, 9):
        make(kernels.put)  # takes the place of the other where Triton keeps the last one
    del kernel
    gc.collect()
    assert gone() is None
