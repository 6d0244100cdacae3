"""A module within a module."""

import triton

OFFSET = 0.5


@triton.jit
def squared(value):
    return value * value
