"""Host functions and kernels for the tests with torch, at each tier.

Enters: a tier. Leaves: `Made`, the same few kernels at that tier. They are made once per process,
and are globals, so that they can be pickled and other processes have them too.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

import tzero
from tzero import settings

BLOCK = 64


@triton.jit(do_not_specialize=["n"])
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


def scaled(x, by):
    """A contiguous tensor times a number, in a new one."""
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, out, by, x.numel(), BLOCK=BLOCK)
    return out


def fixed(x):
    """Twice a tensor of up to 64 elements, without reading its size."""
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, 2.0, 4, BLOCK=BLOCK)
    return out


def summed(x, y):
    """The sum of two contiguous tensors; the grid is a function."""
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    add_kernel[grid](x, y, out, x.numel(), BLOCK=BLOCK)
    return out


def grown(x):
    """Doubles a tensor in place."""
    scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, x, 2.0, x.numel(), BLOCK=BLOCK)


def square(x):
    """Torch functions around a launch."""
    return scaled(x @ x.t(), 0.5).sum(0) + 1


class Made(NamedTuple):
    """The kernels of one tier; `launch` is one of `tzero.jit`."""

    tier: int
    scaled: Any
    fixed: Any
    summed: Any
    grown: Any
    square: Any
    launch: Any


@functools.cache
def made(tier: int) -> Made:
    """The kernels of a tier."""
    with settings.override(tier=tier):
        kernels = [tzero.kernel(host) for host in (scaled, fixed, summed, grown, square)]
        found = Made(tier, *kernels, tzero.jit(scale_kernel))
    x = torch.ones(4)
    for _ in range(2):  # recorded, and replayed
        found.scaled(x, 2.0)
        found.fixed(x)
        found.summed(x, x)
        found.grown(x.clone())
        found.square(torch.ones(2, 2))
    return found


def launched(launch: Any, x: torch.Tensor, by: float) -> torch.Tensor:
    """`scaled`, with a `tzero.jit` kernel."""
    out = torch.empty_like(x)
    launch[(triton.cdiv(x.numel(), BLOCK),)](x, out, by, x.numel(), BLOCK=BLOCK)
    return out


@tzero.kernel
def doubled(x):
    """A kernel of the current tier that can be found by its name."""
    return scaled(x, 2.0)


@tzero.kernel(configs=[tzero.Config(BLOCK=64), tzero.Config(BLOCK=128)])
def chosen(x, config):
    """The same, with several configs."""
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), config.BLOCK),)
    scale_kernel[grid](x, out, 2.0, x.numel(), BLOCK=config.BLOCK)
    return out
