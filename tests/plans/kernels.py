"""The kernels that the host functions launch: few, because each variant is compiled.

Enters: nothing. Leaves: Triton kernels, and one of `tzero.jit`. Sizes and strides do not
specialize, so that geometries need no compiles; integers that tests are about do.
"""

import triton
import triton.language as tl

import tzero

BLOCK = 64
"""No tensor of these tests has more elements than one program processes."""

_PLACES = ["n", "n1", "n2", "n3", "s0", "s1", "s2", "s3"]


@triton.jit(do_not_specialize=_PLACES, do_not_specialize_on_alignment=["x", "out"])
def gather(x, out, n, n1, n2, n3, s0, s1, s2, s3, BLOCK: tl.constexpr):
    """Copy a strided tensor of four dimensions into a contiguous one."""
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
    """Add to a tensor in place, so that a duplicate launch shows."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit(do_not_specialize=["n"])
def shift(x, out, by, n, BLOCK: tl.constexpr):
    """The same signature as `scale`, but another result."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + by, mask=at < n)


@triton.jit
def put(out, value):
    """Store a number; the launch specializes on its class."""
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
