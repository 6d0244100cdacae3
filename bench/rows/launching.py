"""What one launch costs: sums of 2, 8 and 16 small tensors into a new one.

The kernels do next to nothing, so that the call is what is timed. Later tiers add contenders here
under the same ids.
"""

from __future__ import annotations

import functools

import torch

from bench import kernels
from bench.measure import Call
from bench.rows.row import Case, Row

__all__ = ["ROWS"]

N = 4096


def _sum(count: int) -> Case:
    inputs = [torch.randn(N) for _ in range(count)]
    contenders: dict[str, Call] = {"triton": functools.partial(kernels.add_many, *inputs)}
    if count == 2:
        contenders["torch"] = functools.partial(torch.add, *inputs)

    def check() -> None:
        torch.testing.assert_close(kernels.add_many(*inputs), torch.stack(inputs).sum(0))

    return Case(contenders, check)


ROWS = tuple(
    Row(
        f"launch.triton.{count}",
        f"launch with {count} tensors and a new output",
        functools.partial(_sum, count),
        baseline="torch" if count == 2 else None,
        unit="us",
    )
    for count in (2, 8, 16)
)
