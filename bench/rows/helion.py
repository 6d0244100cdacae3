"""What a call of a Helion kernel costs, by Helion and through tzero: sums of 2, 8 and 16 tensors.

Both call the same kernel with the same configuration and the same binary.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

import tzero
from bench.measure import Call, calls_of
from bench.record import Target
from bench.rows.row import Case, Row
from tzero import settings

__all__ = ["ROWS"]

N = 4096
COUNTS = (2, 8, 16)
CPU = 0.15
CUDA = {2: 0.18, 8: 0.13, 16: 0.10}
"""The largest allowed ratio to Helion's own call. On CUDA the launch is a graph of one."""


def _kernel(count: int) -> Any:
    """A new Helion kernel that nothing has called yet."""
    import helion

    from bench.helion_kernels import SUMS

    config = helion.Config(block_sizes=[128], num_warps=4, num_stages=2)
    return helion.kernel(config=config)(SUMS[count].fn)


def _case(count: int, device: str) -> Case:
    tensors = [torch.randn(N, device=device) for _ in range(count)]
    with settings.override(tier=2):
        ours = tzero.kernel(_kernel(count))
    plain = _kernel(count)
    wanted = torch.stack(tensors).sum(0)

    def check() -> None:
        for _ in range(3):
            for function in (ours, plain):
                torch.testing.assert_close(function(*tensors), wanted)
        assert ours.explain(*tensors).plan is not None, ours.explain(*tensors)

    contenders: dict[str, Call] = {
        "tzero": calls_of(ours, [tensors]),
        "helion": calls_of(plain, [tensors]),
    }
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    return Case(contenders, check, settle=settle)


def _row(count: int, device: str, target: float) -> Row:
    where, on = ("cuda.", " on CUDA") if device == "cuda" else ("", "")
    return Row(
        f"{where}helion.{count}",
        f"Helion kernel adding {count} tensors{on}",
        functools.partial(_case, count, device),
        subject="tzero",
        baseline="helion",
        unit="us",
        target=Target("ratio", target),
        interpreted=False,
        needs="helion",
        device=device,
        seconds=8.0,
    )


ROWS = (
    *(_row(count, "cpu", CPU) for count in COUNTS),
    *(_row(count, "cuda", CUDA[count]) for count in COUNTS),
)
