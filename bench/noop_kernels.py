# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""Kernels that do nothing, with 0, 19 and 58 arguments: tensors, integers, floats and constants.

Enters: arguments. Leaves: nothing. It must not know about timing or devices.
"""

from __future__ import annotations

import triton
import triton.language as tl

KINDS = {0: (0, 0, 0, 0), 19: (8, 6, 3, 2), 58: (24, 20, 8, 6)}
"""By the number of arguments: how many are tensors, integers, floats and constants."""


@triton.jit
def noop0():
    pass


@triton.jit
def noop19(
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    t6,
    t7,
    n0,
    n1,
    n2,
    n3,
    n4,
    n5,
    f0,
    f1,
    f2,
    C0: tl.constexpr,
    C1: tl.constexpr,
):
    pass


@triton.jit
def noop58(
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    t6,
    t7,
    t8,
    t9,
    t10,
    t11,
    t12,
    t13,
    t14,
    t15,
    t16,
    t17,
    t18,
    t19,
    t20,
    t21,
    t22,
    t23,
    n0,
    n1,
    n2,
    n3,
    n4,
    n5,
    n6,
    n7,
    n8,
    n9,
    n10,
    n11,
    n12,
    n13,
    n14,
    n15,
    n16,
    n17,
    n18,
    n19,
    f0,
    f1,
    f2,
    f3,
    f4,
    f5,
    f6,
    f7,
    C0: tl.constexpr,
    C1: tl.constexpr,
    C2: tl.constexpr,
    C3: tl.constexpr,
    C4: tl.constexpr,
    C5: tl.constexpr,
):
    pass


NOOPS = {0: noop0, 19: noop19, 58: noop58}


@triton.jit
def noop_constant(C0: tl.constexpr):
    pass


@triton.jit
def noop_tuples(tensors, numbers, C0: tl.constexpr, C1: tl.constexpr):
    pass


@triton.jit
def noop_descriptors(one, other, n):
    pass
