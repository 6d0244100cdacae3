"""Rules that kernels rely on implicitly: NaNs, rounding, masks, wrap-around.

Where Triton leaves a result undefined, the test only checks that nothing else is affected.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import (
    FLOATS,
    FORMATS,
    FP8,
    SIGNED,
    Array,
    array,
    assert_same,
    assert_same_bits,
    covered,
    edges,
    empty,
    float_edges,
    product,
    round_to,
    survives,
    tensor,
)
from tests.cpu.rows import Row, evaluate, result

# -- NaN ------------------------------------------------------------------------------------------


def nan_pairs() -> tuple[Array, Array]:
    """All pairs of these values, which include NaN."""
    values = np.array([np.nan, -np.inf, -1.5, -0.0, 0.0, 2.0, np.inf, 0.5])
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


@pytest.mark.parametrize(
    "dtype", [covered("propagate_nan of minimum, maximum", d, args=(d,)) for d in FLOATS]
)
def test_minimum_and_maximum_follow_their_nan_rule(dtype: str) -> None:
    x, y = nan_pairs()
    rows = {
        f"{name} {rule}": Row(f"tl.{name}(x, y, propagate_nan=tl.PropagateNan.{rule})", dtype)
        for name, rule in product(("minimum", "maximum"), ("ALL", "NONE"))
    }
    found = evaluate({"x": tensor(x, dtype), "y": tensor(y, dtype)}, rows, block=64)
    assert_same(array(result(found, "minimum ALL")), np.minimum(x, y))
    assert_same(array(result(found, "maximum ALL")), np.maximum(x, y))
    assert_same(array(result(found, "minimum NONE")), np.fmin(x, y))
    assert_same(array(result(found, "maximum NONE")), np.fmax(x, y))


@pytest.mark.parametrize("dtype", [covered("propagate_nan of clamp", d, args=(d,)) for d in FLOATS])
def test_clamp_follows_its_nan_rule(dtype: str) -> None:
    """A NaN value stays NaN under ALL and becomes the lower bound under NONE."""
    x = np.array(
        [np.nan, -np.inf, -5.0, -1.0, -0.25, 0.0, 0.25, 2.0, 5.0, np.inf, np.nan, 1, 3, -3, 9, -9]
    )
    rows = {
        rule: Row(f"tl.clamp(x, -1.0, 2.0, propagate_nan=tl.PropagateNan.{rule})", dtype)
        for rule in ("ALL", "NONE")
    }
    found = evaluate({"x": tensor(x, dtype)}, rows, block=16)
    clipped = np.clip(x, -1.0, 2.0)
    assert_same(array(result(found, "ALL")), clipped)
    assert_same(array(result(found, "NONE")), np.where(np.isnan(x), -1.0, clipped))


@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_with_nan_are_false_except_inequality(dtype: str) -> None:
    x, y = nan_pairs()
    ops = ("<", "<=", ">", ">=", "==", "!=")
    rows = {op: Row(f"x {op} y", "int1") for op in ops}
    found = evaluate({"x": tensor(x, dtype), "y": tensor(y, dtype)}, rows, block=64)
    wants = (x < y, x <= y, x > y, x >= y, x == y, x != y)
    for op, want in zip(ops, wants, strict=True):
        assert_same(array(result(found, op)), want, op)


# -- rounding of halves ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [covered("rounding after each operation", d, args=(d,)) for d in ("fp16", "bf16")]
)
def test_halves_are_rounded_after_every_operation(dtype: str) -> None:
    rng = np.random.default_rng(141)
    x, y, z = (round_to(rng.normal(size=256) * 8, dtype) for _ in range(3))
    rows = {
        "sum": Row("x + y + z", dtype),
        "difference": Row("x - y - z", dtype),
        "product": Row("x * y * z", dtype),
        "mixed": Row("(x + y) * (x - z)", dtype),
        "multiply-add": Row("x * y + z", dtype),
    }
    found = evaluate({n: tensor(v, dtype) for n, v in zip("xyz", (x, y, z), strict=True)}, rows)

    def r(values: Array) -> Array:
        return round_to(values, dtype)

    wants = {
        "sum": r(r(x + y) + z),
        "difference": r(r(x - y) - z),
        "product": r(r(x * y) * z),
        "mixed": r(r(x + y) * r(x - z)),
        "multiply-add": r(r(x * y) + z),
    }
    for key, want in wants.items():
        assert_same(array(result(found, key)), want, key)
    once = r(x + y + z)
    assert (once != wants["sum"]).any(), "the values do not tell one rounding from two"


@triton.jit
def repeated_sum_kernel(x_ptr, y_ptr, steps, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    total = tl.zeros_like(x)
    for _ in range(steps):
        total += x
    tl.store(y_ptr + at, total)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_half_accumulator_stops_growing_where_it_must(dtype: str) -> None:
    """A sum of ones in half precision stops at 2**digits; a wider accumulator would not."""
    x, y = tensor(np.ones(16), dtype), empty(16, dtype)
    repeated_sum_kernel[(1,)](x, y, 5000, N=16)
    assert_same(array(y), np.full(16, 2.0 ** FORMATS[dtype].digits))


def test_a_product_and_a_sum_in_fp32_round_once_or_twice_and_no_other_way() -> None:
    rng = np.random.default_rng(142)
    x, y = (round_to(rng.normal(size=256), "fp32") for _ in range(2))
    z = round_to(-x * y, "fp32")
    found = evaluate(
        {"x": tensor(x, "fp32"), "y": tensor(y, "fp32"), "z": tensor(z, "fp32")},
        {"value": Row("x * y + z", "fp32")},
    )
    got = array(result(found, "value"))
    once, twice = round_to(x * y + z, "fp32"), round_to(round_to(x * y, "fp32") + z, "fp32")
    assert ((got == once) | (got == twice)).all()


# -- fp8 ------------------------------------------------------------------------------------------


def fp8_decode(code: int, dtype: str) -> float:
    """One byte by the definition of the format (OCP 8-bit floating point, and the formats without
    infinities and negative zero, whose exponent bias is one higher)."""
    mantissa_bits = 3 if "e4" in dtype else 2
    bias = {"fp8e4nv": 7, "fp8e5": 15, "fp8e4b8": 8, "fp8e5b16": 16}[dtype]
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    if dtype == "fp8e4nv":
        if code & 0x7F == 0x7F:
            return np.nan
    elif dtype in ("fp8e4b8", "fp8e5b16"):
        if code == 0x80:
            return np.nan
    elif exponent == 31:
        return sign * np.inf if mantissa == 0 else np.nan
    scale = 2.0 ** (max(exponent, 1) - bias - mantissa_bits)
    return sign * (mantissa + (exponent > 0) * (1 << mantissa_bits)) * scale


@pytest.mark.parametrize(
    "dtype", [covered("fp8 decoding, all 256 codes", d, args=(d,)) for d in FP8]
)
def test_every_fp8_code_decodes_exactly(dtype: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(FORMATS[dtype].torch)
    want = np.array([fp8_decode(code, dtype) for code in range(256)])
    rows = {
        t: Row(f"x.to({n})", t)
        for t, n in (("fp16", "tl.float16"), ("bf16", "tl.bfloat16"), ("fp32", "tl.float32"))
    }
    found = evaluate({"x": codes}, rows)
    for target in rows:
        assert_same_bits(array(result(found, target)), want)


@pytest.mark.parametrize(
    ("source", "dtype"),
    [
        covered(f"fp8 encoding to {d}, every tie", s, args=(s, d))
        for d in FP8
        for s in ("fp32", "fp16", "bf16")
    ],
)
def test_fp8_encoding_rounds_to_nearest_even(source: str, dtype: str) -> None:
    """Every fp8 number, every midpoint, and the source's numbers just beside the midpoints."""
    numbers = np.array(sorted({fp8_decode(code, dtype) for code in range(128)} - {np.inf}))
    numbers = numbers[np.isfinite(numbers)]
    middles = (numbers[:-1] + numbers[1:]) / 2
    step = 2.0 ** (2 - FORMATS[source].digits)
    points = np.concatenate([numbers, middles, middles * (1 + step), middles * (1 - step)])
    points = np.resize(round_to(np.concatenate([points, -points]), source), 1024)
    found = evaluate(
        {"x": tensor(points, source)},
        {"fp8": Row(f"x.to({FORMATS[dtype].source})", dtype)},
    )
    assert_same_bits(array(result(found, "fp8")), round_to(points, dtype))


@pytest.mark.parametrize("dtype", [covered("fp8 saturation", d, args=(d,)) for d in FP8])
def test_fp8_saturates_above_its_largest_number(dtype: str) -> None:
    """Like the GPU's conversions: beyond the range is the largest number, NaN stays NaN."""
    largest = FORMATS[dtype].largest
    x = np.array([largest, largest * 1.01, largest * 1.5, largest * 100, np.inf, np.nan, 1.0, 0.0])
    x = round_to(np.concatenate([x, -x]), "fp32")
    found = evaluate(
        {"x": tensor(x, "fp32")},
        {"fp8": Row(f"x.to({FORMATS[dtype].source})", dtype)},
        block=16,
    )
    want = np.where(np.isnan(x), np.nan, round_to(np.clip(x, -largest, largest), dtype))
    assert_same(array(result(found, "fp8")), want)


FP8_ARITHMETIC = {
    "x + y": np.add,
    "x - y": np.subtract,
    "x * y": np.multiply,
    "x / y": np.divide,
    "-x": lambda x, y: -x,
    "tl.abs(x)": lambda x, y: np.abs(x),
    "tl.maximum(x, y)": np.maximum,
    "tl.where(x < y, x, y)": np.minimum,
}


@pytest.mark.parametrize("dtype", [covered("fp8 arithmetic", d, args=(d,)) for d in FP8])
def test_fp8_arithmetic_is_exact_but_for_one_rounding(dtype: str) -> None:
    numbers = np.array([fp8_decode(code, dtype) for code in range(256)])
    numbers = numbers[np.isfinite(numbers) & (numbers != 0)]
    x, y = np.random.default_rng(61).choice(numbers, (2, 1024))
    inputs = {"x": tensor(x, dtype), "y": tensor(y, dtype)}
    found = evaluate(inputs, {text: Row(text, dtype) for text in FP8_ARITHMETIC})
    for text, exact in FP8_ARITHMETIC.items():
        want = round_to(round_to(exact(x, y), "fp32"), dtype, overflow="saturate")
        assert_same(array(result(found, text)), want, text)


# -- integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [covered("// and % of all signs", d, args=(d,)) for d in SIGNED])
def test_division_truncates_for_all_signs(dtype: str) -> None:
    """Python rounds down; Triton truncates, like C: -7 // 2 is -3 and -7 % 2 is -1."""
    x = np.array([7, -7, 7, -7, 6, -6, 1, -1, 0, 0, 100, -100, 127, -127, 5, -5])
    y = np.array([2, 2, -2, -2, 3, -3, 2, 2, 5, -5, 7, 7, -10, -10, 5, 5])
    found = evaluate(
        {"x": tensor(x, dtype), "y": tensor(y, dtype)},
        {"q": Row("x // y", dtype), "r": Row("x % y", dtype)},
        block=16,
    )
    assert_same(
        array(result(found, "q")), [3, -3, -3, 3, 2, 2, 0, 0, 0, 0, 14, -14, -12, 12, 1, -1]
    )
    assert_same(array(result(found, "r")), [1, -1, 1, -1, 0, 0, 1, -1, 0, 0, 2, -2, 7, -7, 0, 0])


@triton.jit
def divide_kernel(x_ptr, y_ptr, q_ptr, r_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    y = tl.load(y_ptr + at)
    tl.store(q_ptr + at, x // y)
    tl.store(r_ptr + at, x % y)


@pytest.mark.parametrize("dtype", [*SIGNED, "uint32"])
def test_division_by_zero_or_overflow_does_not_trap(dtype: str) -> None:
    """On a GPU only that lane's result is undefined; C code might trap."""
    kind = FORMATS[dtype].numpy
    x = np.arange(1, 17).astype(kind)
    y = np.tile([0, 2, 3, 1], 4).astype(kind)
    if dtype in SIGNED:
        x[3], y[3] = np.iinfo(kind).min, -1

    def work() -> None:
        q, r = empty(16, dtype), empty(16, dtype)
        divide_kernel[(1,)](tensor(x, dtype), tensor(y, dtype), q, r, N=16)
        defined = (y != 0) & ~(
            (x == np.iinfo(kind).min) & (y == kind.type(-1 if dtype in SIGNED else 1))
        )
        safe = np.where(y == 0, 1, y).astype(kind)
        assert_same(array(q)[defined], (x // safe)[defined])
        assert_same(array(r)[defined], (x % safe)[defined])

    survives(work)


@pytest.mark.parametrize("dtype", SIGNED)
def test_signed_overflow_wraps_even_in_comparisons(dtype: str) -> None:
    """A C compiler that assumes x + 1 > x for signed x would make them all true."""
    info = np.iinfo(FORMATS[dtype].numpy)
    x = np.array([info.max, info.max - 1, 0, -1, info.min] * 4)[:16]
    found = evaluate(
        {"x": tensor(x, dtype)},
        {
            "greater": Row("x + 1 > x", "int1"),
            "back": Row("(x * 2) // 2 == x", "int1"),
            "negated": Row("-x", dtype),
            "magnitude": Row("tl.abs(x)", dtype),
        },
        block=16,
    )
    with np.errstate(over="ignore"):
        values = x.astype(info.dtype)
        one, two = info.dtype.type(1), info.dtype.type(2)
        doubled = values * two
        halved = np.sign(doubled) * (np.abs(doubled) // two)
        halved[doubled == info.min] = info.min // 2
        assert_same(array(result(found, "greater")), values + one > values)
        assert_same(array(result(found, "back")), halved == values)
        assert_same(array(result(found, "negated")), -values)
        assert_same(array(result(found, "magnitude")), np.abs(values))


# -- masks ----------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["n"])
def masked_copy_kernel(x_ptr, y_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    x = tl.load(x_ptr + at, mask=at < n, other=-7)
    tl.store(y_ptr + at, x)
    tl.store(y_ptr + N + at, x + 1, mask=at < n)


@pytest.mark.parametrize(
    "dtype",
    [
        covered("masks at every boundary", d, args=(d,))
        for d in ("int8", "int32", "int64", "fp16", "bf16", "fp32", "fp64")
    ],
)
def test_masks_hold_at_every_boundary(dtype: str) -> None:
    size = 64
    x = np.arange(size) % 100
    for n in range(size + 1):
        y = empty((2, size), dtype)
        canary = array(y)[0, 0]
        masked_copy_kernel[(1,)](tensor(x, dtype), y, n, N=size)
        inside = np.arange(size) < n
        assert_same(array(y)[0], np.where(inside, x, -7))
        assert_same(array(y)[1], np.where(inside, x + 1, canary))


@triton.jit(do_not_specialize=["rows", "columns", "left"])
def masked_block_kernel(x_ptr, y_ptr, rows, columns, left, A: tl.constexpr, B: tl.constexpr):
    row = tl.arange(0, A)[:, None]
    column = tl.arange(0, B)[None, :]
    inside = (row < rows) & (column < columns) & (column >= left)
    x = tl.load(x_ptr + row * B + column, mask=inside, other=-1)
    tl.store(y_ptr + row * B + column, x * 2, mask=inside)


def test_two_dimensional_masks_hold_at_every_boundary() -> None:
    a, b = 8, 16
    x = np.arange(a * b).reshape(a, b)
    for rows, columns, left in product(range(a + 1), range(b + 1), (0, 3)):
        y = empty((a, b), "int32")
        masked_block_kernel[(1,)](tensor(x, "int32"), y, rows, columns, left, A=a, B=b)
        inside = (np.arange(a)[:, None] < rows) & (np.arange(b) < columns) & (np.arange(b) >= left)
        assert_same(array(y), np.where(inside, x * 2, 85))


@triton.jit
def scattered_kernel(x_ptr, m_ptr, y_ptr, N: tl.constexpr):
    at = tl.arange(0, N)
    mask = tl.load(m_ptr + at)
    x = tl.load(x_ptr + (at * 5) % N, mask=mask, other=0)
    tl.store(y_ptr + N - 1 - at, x, mask=mask)


def test_masks_without_a_pattern_and_strided_addresses() -> None:
    size = 128
    rng = np.random.default_rng(143)
    x = rng.integers(1, 1000, size)
    for _ in range(8):
        mask = rng.integers(0, 2, size).astype(bool)
        y = empty(size, "int32")
        scattered_kernel[(1,)](tensor(x, "int32"), tensor(mask, "int1"), y, N=size)
        want = np.where(mask, x[(np.arange(size) * 5) % size], 85)[::-1]
        assert_same(array(y), want)


@triton.jit
def other_kernel(x_ptr, o_ptr, y_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    other = tl.load(o_ptr + at)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n, other=other))
    tl.store(y_ptr + N + at, tl.load(x_ptr + at, mask=at < n, other=float("-inf")))
    scalar = tl.load(x_ptr + n, mask=n < 0, other=2.5)
    tl.store(y_ptr + 2 * N + at, scalar)


def test_other_may_be_a_block_an_infinity_or_a_scalar() -> None:
    x, other = np.arange(32.0), np.arange(32.0) * -3
    y = empty((3, 32), "fp32")
    other_kernel[(1,)](tensor(x, "fp32"), tensor(other, "fp32"), y, 11, N=32)
    inside = np.arange(32) < 11
    assert_same(array(y)[0], np.where(inside, x, other))
    assert_same(array(y)[1], np.where(inside, x, -np.inf))
    assert_same(array(y)[2], np.full(32, 2.5))


# -- masked-off lanes and memory ------------------------------------------------------------------


@contextmanager
def guarded_page() -> Iterator[torch.Tensor]:
    """One page of floats between two inaccessible pages."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 3 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for start in (base, base + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), 0) == 0
    middle = (ctypes.c_float * (page // 4)).from_address(base + page)
    try:
        yield torch.frombuffer(middle, dtype=torch.float32)
    finally:
        for start in (base, base + 2 * page):
            access = mmap.PROT_READ | mmap.PROT_WRITE
            libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(page), access)


@triton.jit(do_not_specialize=["n", "first"])
def edge_kernel(x_ptr, y_ptr, n, first, N: tl.constexpr):
    at = tl.arange(0, N)
    inside = (at >= first) & (at < n)
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    tl.store(y_ptr + at, x + 1.0, mask=inside)


def test_lanes_past_the_end_of_a_page_are_not_touched() -> None:
    def work() -> None:
        with guarded_page() as page:
            page.copy_(torch.arange(page.numel()))
            for kept in (1, 3, 8, 17, 63):
                tail = page[-kept:]
                want = tail + 1.0
                edge_kernel[(1,)](tail, tail, kept, 0, N=64)
                assert torch.equal(tail, want)

    survives(work)


@triton.jit(do_not_specialize=["shift", "n"])
def shifted_kernel(x_ptr, shift, n, N: tl.constexpr):
    at = tl.arange(0, N)
    offset = at + shift
    inside = (offset >= 0) & (offset < n)
    x = tl.load(x_ptr + offset, mask=inside, other=0.0)
    tl.store(x_ptr + offset, x * 2.0, mask=inside)


def test_lanes_before_the_start_of_a_page_are_not_touched() -> None:
    def work() -> None:
        with guarded_page() as page:
            for shift in (-1, -5, -31, -60, -64):
                page.fill_(3.0)
                shifted_kernel[(1,)](page, shift, page.numel(), N=64)
                want = torch.full_like(page, 3.0)
                want[: 64 + shift] = 6.0
                assert torch.equal(page, want)

    survives(work)


@triton.jit(do_not_specialize=["address", "n"])
def invalid_pointer_kernel(address, y_ptr, n, N: tl.constexpr):
    """Pointers made from an unmapped address: no lane may use them."""
    at = tl.arange(0, N)
    x_ptr = address.to(tl.pointer_type(tl.float32))
    x = tl.load(x_ptr + at, mask=at < n, other=4.0)
    tl.store(y_ptr + at, x)
    tl.store(x_ptr + at * 1000, x, mask=at < n)
    if n > 0:
        tl.store(x_ptr, 1.0)
    tl.atomic_add(x_ptr + at, x, mask=at < n)


@pytest.mark.parametrize(
    "op", [covered("masked-off lanes on unmapped memory", "fp32", args=("m",))]
)
def test_invalid_pointers_under_a_false_mask_are_not_used(op: str) -> None:
    def work() -> None:
        y = empty(32, "fp32")
        invalid_pointer_kernel[(1,)](1 << 45, y, 0, N=32)
        assert_same(array(y), np.full(32, 4.0))

    survives(work)


# -- specials pass through ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zeros_and_subnormals_survive(dtype: str) -> None:
    x = float_edges(dtype, 256, 144)
    found = evaluate(
        {"x": tensor(x, dtype)},
        {"same": Row("x * 1.0", dtype), "turned": Row("x * -1.0", dtype)},
    )
    assert_same_bits(array(result(found, "same")), x)
    assert_same_bits(array(result(found, "turned")), -x)


def test_scalar_arguments_keep_their_values() -> None:
    y = torch.zeros(8, dtype=torch.float64)
    scalars_kernel[(1,)](y, 1, -(2**31), 2**40, 0.1, True, 16, 2**63 + 5, -1.0)
    want = [1.0, -(2.0**31), 2.0**40, float(np.float32(0.1)), 1.0, 16.0, float(2**63 + 5), -1.0]
    assert y.tolist() == want


@triton.jit
def scalars_kernel(y_ptr, one, low, wide, tenth, flag, sixteen, unsigned, minus):
    tl.store(y_ptr, one + 0.0)
    tl.store(y_ptr + 1, low.to(tl.float64))
    tl.store(y_ptr + 2, wide.to(tl.float64))
    tl.store(y_ptr + 3, tenth.to(tl.float64))
    tl.store(y_ptr + 4, flag + 0.0)
    tl.store(y_ptr + 5, sixteen.to(tl.float64))
    tl.store(y_ptr + 6, unsigned.to(tl.float64))
    tl.store(y_ptr + 7, minus.to(tl.float64))


def test_edge_values_contain_nan_infinity_and_zero() -> None:
    """The tests above depend on it."""
    for dtype in FLOATS:
        values = edges(dtype, 256, 1)
        assert np.isnan(values).any() and np.isinf(values).any() and (values == 0).any()
