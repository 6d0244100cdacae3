"""How long a new kernel takes from its first call to its result, with empty caches.

Each call makes a new Triton function from the same source and makes Triton compile it again. The
check before it has already paid the costs that a process pays once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton

from bench import kernels
from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]


def _compile_anew(kernel: Any, launch: Callable[[Any], None]) -> None:
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.always_compile = True
        launch(triton.jit(kernel.fn))


def _small() -> Case:
    x, out = torch.randn(1000), torch.empty(1000)

    def launch(kernel: Any) -> None:
        kernel[(1,)](x, x, out, 1000, BLOCK=1024)

    def check() -> None:
        _compile_anew(kernels.add_kernel, launch)
        torch.testing.assert_close(out, x + x, rtol=0, atol=0)

    def once() -> None:
        _compile_anew(kernels.add_kernel, launch)

    return Case({"triton": once}, check, calls=1, rounds=9)


def _sort() -> Case:
    x, out = torch.randn(16, 64), torch.empty(16, 64)

    def launch(kernel: Any) -> None:
        kernel[(1,)](x, out, ROWS=16, COLUMNS=64)

    def check() -> None:
        _compile_anew(kernels.sort_rows_kernel, launch)
        torch.testing.assert_close(out, x.sort(1).values, rtol=0, atol=0)

    def once() -> None:
        _compile_anew(kernels.sort_rows_kernel, launch)

    return Case({"triton": once}, check, calls=1, rounds=3)


ROWS = (
    Row(
        "cpu.compile.small",
        "Compile and run a new small kernel",
        _small,
        baseline=None,
        target=Target("value", 0.25),
        interpreted=False,
    ),
    Row(
        "cpu.compile.sort.16x64",
        "Compile and run a new 16×64 sort",
        _sort,
        baseline=None,
        target=Target("value", 2.0),
        interpreted=False,
    ),
)
