"""Kernels for `test_forks`: plans need host functions whose source is in a file."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import tzero


@triton.jit
def twice(value):
    return value + value


def new_add():
    """A kernel that nobody has called yet, with a launch that nobody has compiled."""

    @tzero.jit
    def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = at < n
        tl.store(out + at, twice(tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask)), mask)

    @tzero.kernel
    def add(x, y):
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), 64)
        return out

    return add
