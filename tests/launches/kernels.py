"""The functions that the rows make kernels of; plain, so that each row gets kernels of its own.

Enters: nothing. Leaves: functions for `make`. A row that changes a global changes one of these.
Annotations are values here, because Triton reads them.
"""

import triton
import triton.language as tl

FACTOR: tl.constexpr = tl.constexpr(3)
SHIFT: tl.constexpr = tl.constexpr(10)
ADDRESS = tl.pointer_type(tl.int64)


def copy(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


def double(x, n, BLOCK: tl.constexpr = 8):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def put(out, value):
    tl.store(out, value)


def put_if_any(out, value):
    if value is None:
        tl.store(out, -1)
    else:
        tl.store(out, value)


def put_wide(out, value: tl.int64):
    tl.store(out, value)


def give(out, VALUE: tl.constexpr):
    tl.store(out, VALUE)


def choose(out, KIND: tl.constexpr):
    """Stores what kind of constant it was given."""
    if KIND is None:
        tl.store(out, 1)
    elif KIND == "left":
        tl.store(out, 2)
    elif KIND == "right":
        tl.store(out, 3)
    else:
        tl.store(out, 4)


def cast(out, KIND: tl.constexpr):
    tl.store(out, tl.full((), 2.75, tl.float32).to(KIND).to(tl.float32))


def pair(out, PAIR: tl.constexpr):
    tl.store(out, PAIR[0])
    tl.store(out + 1, PAIR[1])


def call(out, FUNCTION: tl.constexpr):
    tl.store(out, FUNCTION(tl.load(out)))


@triton.jit
def plus_one(x):
    return x + 1


@triton.jit
def times_five(x):
    return x * 5


def defaults(out, A: tl.constexpr = 2, b=3, *, C: tl.constexpr = 5):
    tl.store(out, A * 100 + b * 10 + C)


def numbers(out, items):
    tl.store(out, items[0])
    tl.store(out + 1, items[1])


def nested(out, items):
    tl.store(out, tl.load(items[0]))
    tl.store(out + 1, items[1][0])
    tl.store(out + 2, items[1][1])


def count_first(out, items):
    tl.store(out, len(items[0]))


def named_items(out, items):
    tl.store(out, items.first)
    tl.store(out + 1, items.second)


def descriptor(source, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    block = source.load([0, 0])
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, block)


def sum_of_block(source, out):
    tl.store(out, tl.sum(tl.sum(source.load([0, 0]), 0), 0))


def described_item(items, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    block = items[1][0].load([0, 0]) + items[0] + items[1][1]
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, block)


def call_item(out, items):
    tl.store(out, items[0](tl.load(out)) + items[1])


def count_programs(out):
    at = tl.program_id(0)
    at += tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))
    tl.store(out + at, at + 1)


def with_global(out):
    tl.store(out, tl.load(out) * FACTOR)


@triton.jit
def shifted(x):
    return x + SHIFT


def with_inner_global(out):
    tl.store(out, shifted(tl.load(out)))


def checked(out, n):
    tl.device_assert(n < 100, "n is too large")
    tl.store(out, n)


def collecting(out, *items):
    tl.store(out, items[0])


def named_grid(out, grid):
    tl.store(out, grid)


def put_at(out: ADDRESS, value):
    tl.store(out, value)


def positional_defaults(out, A: tl.constexpr = 2, b=3):
    tl.store(out, A * 100 + b * 10)


def renamed(out, value):
    tl.store(out, value)


def fill(out, value, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, value, mask=at < n)


def odd_names(type, tuple, self, k: tl.constexpr, v=3):
    tl.store(type, tuple + self + k + v)
