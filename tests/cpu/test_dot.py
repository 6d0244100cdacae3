"""tl.dot in every dtype, against float64 products with the error bound of the sum.

Small integers make a product exact whatever the order of its sum, so those cases allow no
difference at all; random values may differ by the rounding of the accumulator's own dtype.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import (
    FORMATS,
    FP8,
    Array,
    array,
    assert_same,
    covered,
    empty,
    round_to,
    tensor,
)


@triton.jit
def dot_kernel(
    a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HOW: tl.constexpr,
    OUT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """c = a b, or c += a b where ACC."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    if ACC:
        c = tl.dot(a, b, acc=tl.load(c_ptr + at), input_precision=HOW, out_dtype=OUT)
    else:
        c = tl.dot(a, b, input_precision=HOW, out_dtype=OUT)
    tl.store(c_ptr + at, c)


OPERANDS = ("fp32", "fp16", "bf16", "fp64", "int8", *FP8)


def accumulator(dtype: str) -> str:
    return {"int8": "int32", "fp64": "fp64"}.get(dtype, "fp32")


def small(shape: tuple[int, ...], seed: int) -> Array:
    """Integers that every format holds, fp8e5 included, with exact sums of products."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def product(
    a: Array, b: Array, dtype: str, out: str = "", how: str | None = None, c: Array | None = None
) -> Array:
    """a @ b through the kernel, added to c if there is one."""
    out = out or accumulator(dtype)
    (m, k), n = a.shape, b.shape[1]
    result = empty((m, n), out) if c is None else tensor(c, out)
    dot_kernel[(1,)](
        tensor(a, dtype), tensor(b, dtype), result, M=m, N=n, K=k, HOW=how, OUT=FORMATS[out].tl,
        ACC=c is not None,
    )  # fmt: skip
    return array(result)


@pytest.mark.parametrize("dtype", [covered("tl.dot", d, args=(d,)) for d in OPERANDS])
def test_a_product_of_small_integers_is_exact(dtype: str) -> None:
    a, b = small((16, 32), 91), small((32, 64), 92)
    assert_same(product(a, b, dtype), a @ b)


@pytest.mark.parametrize("dtype", [covered("tl.dot(acc=...)", d, args=(d,)) for d in OPERANDS])
def test_a_product_is_added_to_the_accumulator(dtype: str) -> None:
    a, b, c = small((16, 16), 93), small((16, 16), 94), small((16, 16), 95)
    assert_same(product(a, b, dtype, c=c), a @ b + c)


def test_int8_products_use_all_32_bits() -> None:
    a = np.full((16, 512), -128)
    b = np.full((512, 16), -128)
    assert_same(product(a, b, "int8"), np.full((16, 16), 512 * 128 * 128))


def bounded(got: Array, a: Array, b: Array, unit: float, c: Array | float = 0.0) -> None:
    """Within `unit` times the sum of magnitudes, the bound for any order of summation."""
    limit = unit * (np.abs(a) @ np.abs(b) + np.abs(c)) * (1 + 1e-9)
    off = np.abs(got - (a @ b + c))
    assert (off <= limit).all(), f"worst {np.max(off / limit):.2f} times the bound"


@pytest.mark.parametrize("dtype", [d for d in OPERANDS if d != "int8"])
def test_random_products_stay_within_the_rounding_of_the_sum(dtype: str) -> None:
    rng = np.random.default_rng(96)
    a, b = round_to(rng.normal(size=(32, 64)), dtype), round_to(rng.normal(size=(64, 32)), dtype)
    digits = FORMATS[accumulator(dtype)].digits
    # Products of narrow formats are exact in the accumulator: only the additions round.
    bounded(product(a, b, dtype), a, b, 65 * 2.0**-digits)


PRECISIONS = {
    # Relative error of one product when each fp32 operand is replaced by that many short ones.
    "ieee": 0.0,
    "tf32": 2 * 2.0**-10,
    "tf32x3": 4 * 2.0**-20,
    "bf16x3": 4 * 2.0**-15,
    "bf16x6": 4 * 2.0**-22,
}


@pytest.mark.parametrize(
    "how", [covered(f"tl.dot(input_precision={h!r})", "fp32", args=(h,)) for h in PRECISIONS]
)
def test_input_precision_keeps_at_least_what_it_promises(how: str) -> None:
    rng = np.random.default_rng(97)
    a, b = round_to(rng.normal(size=(16, 64)), "fp32"), round_to(rng.normal(size=(64, 16)), "fp32")
    bounded(product(a, b, "fp32", how=how), a, b, PRECISIONS[how] + 65 * 2.0**-24)


@pytest.mark.parametrize(
    "dtype", [covered("tl.dot(out_dtype=tl.float16)", d, args=(d,)) for d in ("fp16", *FP8)]
)
def test_a_product_in_half_precision(dtype: str) -> None:
    a, b = small((16, 16), 98), small((16, 16), 99)
    assert_same(product(a, b, dtype, out="fp16"), a @ b)
    rng = np.random.default_rng(100)
    a, b = round_to(rng.normal(size=(16, 32)), dtype), round_to(rng.normal(size=(32, 16)), dtype)
    bounded(product(a, b, dtype, out="fp16"), a, b, 33 * 2.0**-11)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 16), (16, 1, 16), (16, 16, 1), (2, 4, 8), (128, 64, 32)]
)
def test_products_of_many_shapes(m: int, n: int, k: int) -> None:
    a, b = small((m, k), 101), small((k, n), 102)
    assert_same(product(a, b, "fp32"), a @ b)


@pytest.mark.parametrize(
    "pair", [covered("tl.dot (two fp8 formats)", *p, args=(p,)) for p in (FP8[:2], FP8[2:])]
)
def test_operands_of_two_fp8_formats(pair: tuple[str, str]) -> None:
    a, b = small((16, 32), 103), small((32, 16), 104)
    c = empty((16, 16), "fp32")
    dot_kernel[(1,)](
        tensor(a, pair[0]), tensor(b, pair[1]), c, M=16, N=16, K=32, HOW=None, OUT=tl.float32,
        ACC=False,
    )  # fmt: skip
    assert_same(array(c), a @ b)


# -- batches, transposes, loops -------------------------------------------------------------------


@triton.jit
def batched_kernel(
    a_ptr, b_ptr, c_ptr, G: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    OUT: tl.constexpr,
):  # fmt: skip
    g = tl.arange(0, G)[:, None, None]
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + g * (M * K) + m[None, :, None] * K + k[None, None, :])
    b = tl.load(b_ptr + g * (K * N) + k[None, :, None] * N + n[None, None, :])
    c = tl.dot(a, b, out_dtype=OUT)
    tl.store(c_ptr + g * (M * N) + m[None, :, None] * N + n[None, None, :], c)


@pytest.mark.parametrize(
    "dtype",
    [covered("tl.dot (3-D)", d, args=(d,)) for d in ("fp32", "fp16", "bf16", "fp64", "int8")],
)
def test_a_batch_of_products(dtype: str) -> None:
    a, b = small((4, 16, 32), 105), small((4, 32, 16), 106)
    out = accumulator(dtype)
    c = empty((4, 16, 16), out)
    batched_kernel[(1,)](
        tensor(a, dtype), tensor(b, dtype), c, G=4, M=16, N=16, K=32, OUT=FORMATS[out].tl
    )
    assert_same(array(c), a @ b)


@triton.jit
def gram_kernel(a_ptr, c_ptr, rows, ROWS: tl.constexpr, N: tl.constexpr):
    """c = aᵀ a over blocks of rows, the accumulator carried through a loop."""
    n = tl.arange(0, N)
    total = tl.zeros((N, N), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)
        a = tl.load(a_ptr + row[:, None] * N + n[None, :], mask=(row < rows)[:, None], other=0.0)
        total = tl.dot(tl.trans(a), a, total)
    tl.store(c_ptr + n[:, None] * N + n[None, :], total)


@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_transposed_operand_and_an_accumulator_in_a_loop(dtype: str) -> None:
    a = small((75, 32), 107)
    c = torch.empty(32, 32)
    gram_kernel[(1,)](tensor(a, dtype), c, 75, ROWS=16, N=32)
    assert_same(array(c), a.T @ a)


def test_nan_and_infinity_spread_only_along_their_row_and_column() -> None:
    a, b = small((16, 16), 108), small((16, 16), 109)
    a[3, 5], b[2, 7] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        want = a @ b
    assert_same(product(a, b, "fp32"), want)
