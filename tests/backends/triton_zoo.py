"""Kernels that refer to the world around them in every way there is.

Enters: nothing. Leaves: kernels, with the helpers, constants and types that they read. Only this
module has them: a worker that compiles them must do without it.
"""

import collections
import enum
import math

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tests.backends import triton_zoo_helpers as helpers

SCALE: tl.constexpr = tl.constexpr(2.5)
ZERO: tl.constexpr = tl.constexpr(-0.0)
WIDTHS = (1, 2, 4)
KIND = tl.float32
PLAIN = 4
Pair = collections.namedtuple("Pair", ["first", "second"])


class Mode(enum.IntEnum):
    SLOW = 1
    FAST = 2


x = object()  # called like the arguments of kernels below, and nothing that they could read


@triton.jit
def twice(value):
    return value * 2


@triton.jit
def thrice(value):
    return twice(value) + value


@triton.constexpr_function
def next_even(n):
    return n + n % 2


@triton.constexpr_function
def size_of(n):
    steps = [each for each in range(n) if each % 2]
    return next_even(int(math.log2(n)) + len(steps) - n // 2)


@triton.jit
def nested_calls(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, thrice(tl.load(x + at, mask=at < n)), mask=at < n)


@triton.jit
def through_modules(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at) * helpers.FACTOR + helpers.deeper.OFFSET
    tl.store(out + at, helpers.deeper.squared(value))


@triton.jit
def uses_constants(x, out, BLOCK: tl.constexpr = PLAIN):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at) * SCALE + ZERO
    tl.store(out + at, value.to(KIND) + math.pi)


@triton.jit
def evaluates(out, N: tl.constexpr):
    tl.store(out, size_of(N))
    tl.store(out + 1, triton.cdiv(N, 3))
    tl.store(out + 2, triton.language.cdiv(N, 5))


@triton.jit
def of_libdevice(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, libdevice.pow(tl.load(x + at), 2.0) + libdevice.rint(2.5))


@triton.jit
def adds(a, b):
    return a + b


@triton.jit
def reduces(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.reduce(value, 0, adds))
    tl.store(out + 1, tl.sum(value) + tl.max(value))


@triton.jit
def makes_pairs(out, A: tl.constexpr):
    pair = Pair(A, A + 1)
    tl.store(out, pair.first)
    tl.store(out + 1, pair.second)


@triton.jit
def takes_mode(out, MODE: tl.constexpr):
    if MODE == 2:
        tl.store(out, 20)
    else:
        tl.store(out, 10)


@triton.jit(noinline=True)
def apart(a, b):
    return a * b + 1


@triton.jit
def calls_apart(x, out):
    tl.store(out, apart(tl.load(x), 3.0))


@triton.jit(repr=lambda specialization: f"named_{specialization.constants['N']}")
def gives_itself_a_name(out, N: tl.constexpr):
    tl.store(out, N)


@triton.jit
def prints_while_it_compiles(out, N: tl.constexpr):
    tl.static_print("N is", N)
    tl.store(out, N)


@triton.jit
def shadows(x, out, BLOCK: tl.constexpr):
    # Both are globals of this module, and neither is read.
    twice = tl.load(x + tl.arange(0, BLOCK))
    for PLAIN in range(2):
        twice += PLAIN
    tl.store(out + tl.arange(0, BLOCK), twice)


@triton.jit
def reads_what_it_then_hides(out):
    SCALE = SCALE * 2  # noqa: F823 - Python would mind, Triton does not
    tl.store(out, SCALE)


@triton.autotune([triton.Config({"BLOCK": 4})], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % 2 == 0})
@triton.jit
def decorated(
    x,
    out,
    n,
    BLOCK: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Text that looks like code:

    def decorated(x):
        '''and more \\' of it'''
    """
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + EVEN)


def closing_over(factor, helper):
    @triton.jit
    def closes(x, out, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(out + at, helper(tl.load(x + at)) * factor)

    return closes
