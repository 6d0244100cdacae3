"""Helpers of host functions: launches on tensors of any geometry.

Enters: tensors. Leaves: tensors. They are recorded with the host function that calls them.
"""

from __future__ import annotations

import torch

from tests.plans.kernels import BLOCK, add, gather, increase, scale, stamp


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Copy a tensor of up to four dimensions into a new one by a launch."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    above = (1,) * (4 - x.dim())
    _, *sizes = (*above, *x.shape)
    gather[(1,)](x, out, x.numel(), *sizes, *above, *x.stride(), BLOCK=BLOCK)
    return out


def stamped(x: torch.Tensor) -> torch.Tensor:
    """Write 1, 2, 3... into a tensor by a launch; returns it."""
    above = (1,) * (4 - x.dim())
    _, *sizes = (*above, *x.shape)
    stamp[(1,)](x, x.numel(), *sizes, *above, *x.stride(), BLOCK=BLOCK)
    return x


def increased(x: torch.Tensor, by: float) -> torch.Tensor:
    """Add a number to a contiguous tensor in place by a launch; returns it."""
    increase[(1,)](x, by, x.numel(), BLOCK=BLOCK)
    return x


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    """A contiguous tensor times a number, in a new one, by a launch."""
    out = torch.empty_like(x)
    scale[(1,)](x, out, by, x.numel(), BLOCK=BLOCK)
    return out


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two contiguous tensors, in a new one, by a launch."""
    out = torch.empty_like(x)
    add[(1,)](x, y, out, x.numel(), BLOCK=BLOCK)
    return out
