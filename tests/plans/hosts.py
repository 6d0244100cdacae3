"""What the host functions of this directory are made of: launches on tensors of any geometry.

Enters: tensors. Leaves: tensors. All of it is recorded, as the helpers of a host function are.
"""

from __future__ import annotations

import torch

from tests.plans.kernels import BLOCK, add, gather, increase, scale, stamp


def gathered(x: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor of up to four dimensions, in a new one, by a launch."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    above = (1,) * (4 - x.dim())
    _, *sizes = (*above, *x.shape)
    gather[(1,)](x, out, x.numel(), *sizes, *above, *x.stride(), BLOCK=BLOCK)
    return out


def stamped(x: torch.Tensor) -> torch.Tensor:
    """The tensor, with 1, 2, 3... in it by a launch."""
    above = (1,) * (4 - x.dim())
    _, *sizes = (*above, *x.shape)
    stamp[(1,)](x, x.numel(), *sizes, *above, *x.stride(), BLOCK=BLOCK)
    return x


def increased(x: torch.Tensor, by: float) -> torch.Tensor:
    """The tensor, which must have no gaps, with a number added to each element by a launch."""
    increase[(1,)](x, by, x.numel(), BLOCK=BLOCK)
    return x


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    """A tensor without gaps, times a number, in a new one, by a launch."""
    out = torch.empty_like(x)
    scale[(1,)](x, out, by, x.numel(), BLOCK=BLOCK)
    return out


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two tensors without gaps, in a new one, by a launch."""
    out = torch.empty_like(x)
    add[(1,)](x, y, out, x.numel(), BLOCK=BLOCK)
    return out
