"""The kernels that the host functions of this directory launch: few, for each variant is compiled.

Enters: nothing. Leaves: Triton kernels, and one of `tzero.jit`. Integers that say where elements
are do not specialize, so that geometry costs no compilations; those that tests are about do.
"""

import triton
import triton.language as tl

import tzero

BLOCK = 64
"""No tensor of these tests has more elements than one program takes."""

_PLACES = ["n", "n1", "n2", "n3", "s0", "s1", "s2", "s3"]


@triton.jit(do_not_specialize=_PLACES, do_not_specialize_on_alignment=["x", "out"])
def gather(x, out, n, n1, n2, n3, s0, s1, s2, s3, BLOCK: tl.constexpr):
    """All of a strided tensor of four dimensions, in order, into one without gaps."""
    at = tl.arange(0, BLOCK)
    where = at // (n1 * n2 * n3) * s0 + at // (n2 * n3) % n1 * s1
    where += at // n3 % n2 * s2 + at % n3 * s3
    tl.store(out + at, tl.load(x + where, mask=at < n), mask=at < n)


@triton.jit(do_not_specialize=_PLACES, do_not_specialize_on_alignment=["out"])
def stamp(out, n, n1, n2, n3, s0, s1, s2, s3, BLOCK: tl.constexpr):
    """Write 1, 2, 3... into a strided tensor of four dimensions."""
    at = tl.arange(0, BLOCK)
    where = at // (n1 * n2 * n3) * s0 + at // (n2 * n3) % n1 * s1
    where += at // n3 % n2 * s2 + at % n3 * s3
    tl.store(out + where, at + 1, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def increase(x, by, n, BLOCK: tl.constexpr):
    """Add to a tensor in place: a launch that is made twice shows."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def shift(x, out, by, n, BLOCK: tl.constexpr):
    """As `scale` is called, and something else."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit
def put(out, value):
    """Store a number, which the launch specializes by its class."""
    tl.store(out, value)


@triton.jit
def put_if_any(out, value):
    if value is None:
        tl.store(out, -1)
    else:
        tl.store(out, value)


@triton.jit
def give(out, VALUE: tl.constexpr):
    """Store a number that is compiled in."""
    tl.store(out, VALUE)


@tzero.jit(do_not_specialize=["n"])
def fast_scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)
